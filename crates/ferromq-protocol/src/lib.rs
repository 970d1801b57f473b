//! The bytes that ferromq's servers and clients exchange, as pure functions over buffers.
//!
//! This crate does no I/O and knows no store. [`remoting`] is RocketMQ's remoting protocol, [`protobuf`] the wire format of gRPC's
//! messages.

pub mod compression;
pub mod protobuf;
pub mod reader;
pub mod record;
pub mod remoting;
pub mod signing;

pub use compression::MAX_DECOMPRESSED;

/// The property with which a writer numbers its messages, so that a broker stores each once.
pub const SEQUENCE: &str = "FERROMQ_SEQUENCE";

/// Bytes that do not follow the protocol, or do not fit it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Bytes from the peer do not follow the protocol.
    #[error("malformed request: {0}")]
    Malformed(&'static str),
    /// A frame or its header exceeds the limit.
    #[error("frame of {len} bytes is over the limit of {limit}")]
    FrameTooLarge {
        /// The length that the peer announced, or that a command needs.
        len: u64,
        /// The largest length allowed.
        limit: u64,
    },
}
