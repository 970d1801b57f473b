//! RocketMQ's remoting protocol on connections.
//!
//! `ferromq-protocol` has the bytes. `server` serves connections; `verbs` answers hot requests.

pub(crate) mod calls;
pub(crate) mod server;
pub(crate) mod verbs;

pub use ferromq_protocol::remoting::{
    Decoder, Fields, Frame, HeaderForm, Language, Limits, RemotingCommand, codec, codes,
};
