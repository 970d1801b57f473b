//! RocketMQ's protocols on tokio, over the store.
//!
//! Hot verbs (their rate grows with the message rate) are answered here; everything else is a *cold*
//! request and goes to the [`ColdHandler`] the control plane gave. This crate knows no Python.

mod error;
pub mod grpc;
mod handler;
pub mod hot;
mod long_poll;
pub mod remoting;
pub mod tables;

pub use error::TransportError;
pub use handler::{ColdHandler, ColdRequest, ColdResponse, Missing, Reply, Route};
