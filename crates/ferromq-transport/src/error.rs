//! What can go wrong between a socket and the store, and the one mapping to response codes.

use ferromq_store::StoreError;

/// An error of the transport.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// Bytes from the peer do not follow the protocol.
    #[error("malformed request: {0}")]
    Malformed(&'static str),
    /// A frame is over the limit.
    #[error("frame of {len} bytes is over the limit of {limit}")]
    FrameTooLarge {
        /// The length the peer announced.
        len: u64,
        /// The largest length allowed.
        limit: u64,
    },
    /// Nobody answers this request code.
    #[error("request code {0} is not supported")]
    Unsupported(i32),
    /// The topic does not exist and may not be created.
    #[error("topic {0} does not exist")]
    NoSuchTopic(String),
    /// The consumer group does not exist and may not be created.
    #[error("consumer group {0} does not exist")]
    NoSuchGroup(String),
    /// Permissions forbid the request.
    #[error("{0}")]
    Forbidden(&'static str),
    /// Too much is waiting; try again later.
    #[error("the server is busy: {0}")]
    Busy(&'static str),
    /// No answer in time.
    #[error("no answer from {peer} within {timeout_ms} ms")]
    Timeout {
        /// Whom we asked.
        peer: String,
        /// How long we waited.
        timeout_ms: u64,
    },
    /// A cold handler failed; the text says how.
    #[error("{0}")]
    Handler(String),
    /// The network failed.
    #[error("{peer}: {source}")]
    Io {
        /// The other side.
        peer: String,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
}
