//! Why a filter was refused.

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the filter expression is wrong at position {position}: {reason}")]
pub struct FilterError {
    /// The character of the expression, counted from 0, where it goes wrong.
    pub position: usize,
    /// What is wrong there.
    pub reason: String,
}
