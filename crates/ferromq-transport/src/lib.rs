//! RocketMQ's protocols on tokio, over the store.
//!
//! This crate answers hot verbs, whose rate grows with the message rate. All other requests are *cold*: the
//! [`ColdHandler`] of the control plane answers them. This crate knows no Python.

pub mod access;
pub mod client;
mod connections;
pub mod dispatcher;
mod error;
pub mod grpc;
mod handler;
pub mod hot;
pub mod limits;
pub mod remoting;
mod server;
pub mod tables;
pub mod tls;
mod verb;

pub use ferromq_protocol::protobuf;

pub use connections::log_limiter::LogLimiter;
pub use error::TransportError;
pub use handler::{ColdHandler, ColdRequest, ColdResponse, Demoted, Memory, Missing, Reply, Sender};
pub use remoting::server::connection::ConnectionLimits;
pub use server::{Server, ServerOptions};
pub use verb::Verb;
