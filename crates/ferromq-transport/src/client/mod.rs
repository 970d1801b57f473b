//! The client's side of both protocols: outgoing remoting connections, and the codec of gRPC's bulk messages.

pub mod grpc;
mod remoting;

pub use remoting::RemotingClient;
