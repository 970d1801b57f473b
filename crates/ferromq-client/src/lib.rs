//! The data path of ferromq's clients: what grows with the message rate.
//!
//! A [`Connections`] calls servers with frames of the remoting protocol. It holds one connection for each server, and
//! opens it with the first call, in plaintext or with TLS. A [`LocalServer`] is called without one. Routes, retries and
//! sessions belong to its users. This crate knows no Python, no store
//! and no server.
//!
//! It runs on Linux. A port gives two files what their system has: `socket` has flags of calls that std does not have, and
//! `completions` a pair of Unix sockets, whose descriptor wakes event loops.

#[cfg(not(target_os = "linux"))]
compile_error!("ferromq-client runs on Linux: a port begins with src/socket.rs and src/completions.rs");

mod arrivals;
mod cancellation;
pub mod codec;
mod completions;
mod connection;
mod connections;
mod error;
mod frames;
mod local;
mod outgoing;
mod pace;
pub mod sends;
mod socket;
mod sync;
mod tls;
mod waiter;

pub use arrivals::{Arrivals, Watched};
pub use cancellation::Cancellation;
pub use completions::Completions;
pub use connections::{Begun, Connections};
pub use error::CallError;
pub use local::{LocalCallback, LocalError, LocalServer, Release};
pub use outgoing::MAX_QUEUED;
pub use pace::{MAX_BATCH, Pace};
pub use tls::{ClientTls, TlsError, TlsOptions};

use std::time::{Duration, Instant};

use bytes::Bytes;
use ferromq_protocol::remoting::Fields;

/// How often a thread that waits looks at its call: whether it is late, or interrupted.
const TICK: Duration = Duration::from_millis(500);

/// A request, before it has a number.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The request code.
    pub code: i32,
    /// The extension fields.
    pub fields: Fields,
    /// The parts of everything behind the header, in order.
    pub parts: Vec<Bytes>,
    /// The server waits with its answer until it has messages. When the caller stops waiting, the server stops, too.
    pub is_poll: bool,
}

/// What the server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The response code; 0 for success.
    pub code: i32,
    /// The explanation of a failure.
    pub remark: Option<String>,
    /// The extension fields.
    pub fields: Fields,
    /// Everything behind the header.
    pub body: Bytes,
}

/// How long a call may take, and what ends it earlier.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// When the call fails with [`CallError::Timeout`].
    pub until: Instant,
    /// Returns true to end the call with [`CallError::Interrupted`]. The caller's thread asks at least twice a second,
    /// and after each signal.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Patience").field("until", &self.until).finish_non_exhaustive()
    }
}
