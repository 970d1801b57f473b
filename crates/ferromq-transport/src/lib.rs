//! RocketMQ's protocols on tokio, over the store.
//!
//! Hot verbs (their rate grows with the message rate) are answered here; everything else is a *cold*
//! request and goes to the [`ColdHandler`] the control plane gave. This crate knows no Python.

mod budget;
mod calls;
pub mod client;
mod connection;
mod descriptors;
pub mod dispatcher;
mod error;
pub mod filters;
pub mod grpc;
mod handler;
pub mod hot;
mod leaving;
mod long_poll;
mod outbox;
mod pace;
mod peers;
pub mod remoting;
pub mod resets;
mod room;
pub mod routes;
mod seldom;
mod serve;
mod server;
mod sockets;
pub mod subscriptions;
pub mod tables;
pub mod tls;

pub use connection::ConnectionLimits;
pub use error::TransportError;
pub use handler::{ColdHandler, ColdRequest, ColdResponse, Demoted, Memory, Missing, Reply, Route};
pub use seldom::Seldom;
pub use server::{Server, ServerOptions};
