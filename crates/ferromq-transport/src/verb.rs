//! The name of a request's operation, in either protocol.

use std::fmt;

/// The operation that a request names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Verb {
    /// A remoting request code.
    Code(i32),
    /// A gRPC method of `apache.rocketmq.v2.MessagingService`, by its bare name.
    Rpc(String),
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "request code {code}"),
            Self::Rpc(name) => write!(f, "the RPC {name}"),
        }
    }
}
