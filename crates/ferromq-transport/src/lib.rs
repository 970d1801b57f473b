//! RocketMQ's protocols on tokio, over the store.
//!
//! Hot verbs (their rate grows with the message rate) are answered here; everything else is a *cold*
//! request and goes to the [`ColdHandler`] the control plane gave. This crate knows no Python.

pub mod client;
mod connections;
pub mod dispatcher;
mod error;
pub mod grpc;
mod handler;
pub mod hot;
pub mod protobuf;
pub mod remoting;
mod server;
pub mod tables;
pub mod tls;
mod verb;

pub use connections::log_limiter::LogLimiter;
pub use error::TransportError;
pub use handler::{ColdHandler, ColdRequest, ColdResponse, Demoted, Memory, Missing, Reply};
pub use remoting::server::connection::ConnectionLimits;
pub use server::{Server, ServerOptions};
pub use verb::Verb;
