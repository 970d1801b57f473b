//! The error of a filter expression.

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the filter expression is wrong at position {position}: {reason}")]
pub struct FilterError {
    /// Position of the error, in characters from 0.
    pub position: usize,
    /// What is wrong.
    pub reason: String,
}
