//! Why a call has no answer.

use std::sync::Arc;

/// A call without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The request was not sent: no connection could be opened, or the request does not fit a frame.
    #[error("{address}: {reason}")]
    NotSent {
        /// The server.
        address: Arc<str>,
        /// Why.
        reason: Arc<str>,
    },
    /// The connection ended after the request was sent, or while it was: the server may have served it.
    #[error("{address}: {reason}")]
    Lost {
        /// The server.
        address: Arc<str>,
        /// Why.
        reason: Arc<str>,
    },
    /// No answer came in time: the server may have served the request, or will.
    #[error("no answer from {address} in time")]
    Timeout {
        /// The server.
        address: Arc<str>,
    },
    /// The caller ended the call: the server may have served the request, or will.
    #[error("the call of {address} was interrupted")]
    Interrupted {
        /// The server.
        address: Arc<str>,
    },
}
