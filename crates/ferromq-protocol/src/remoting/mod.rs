//! RocketMQ's remoting protocol: the command, its two header forms, its frames and its codes.

mod binary_header;
pub mod codec;
pub mod codes;
mod command;
mod fields;
mod json_header;

pub use codec::{Decoder, Frame, Limits};
pub use command::{HeaderForm, Language, RemotingCommand};
pub use fields::Fields;
