//! The server's side of remoting: connections, responses, and requests to clients.

pub(crate) mod connection;
mod incoming;
pub(crate) mod outbox;
pub(crate) mod peers;
