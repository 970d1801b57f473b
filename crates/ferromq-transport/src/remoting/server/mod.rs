//! The server's side of remoting: connections, their answers, and requests to clients.

pub(crate) mod connection;
mod incoming;
pub(crate) mod outbox;
pub(crate) mod peers;
