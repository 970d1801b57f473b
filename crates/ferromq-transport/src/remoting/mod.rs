//! RocketMQ's remoting protocol.
//!
//! The command, its two header forms and its codes do no I/O. `server` serves connections; `verbs` answers hot
//! requests.

mod binary_header;
pub(crate) mod calls;
pub mod codec;
pub mod codes;
mod command;
mod fields;
mod json_header;
pub(crate) mod server;
pub(crate) mod verbs;

pub use codec::{Decoder, Frame, Limits};
pub use command::{HeaderForm, Language, RemotingCommand};
pub use fields::Fields;
