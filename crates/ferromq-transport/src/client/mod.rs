//! Outgoing remoting connections of servers.

mod remoting;

pub use remoting::{Credentials, RemotingClient};
