//! The record format of the commit log, which pulls send unchanged: bytes, properties, checksums and IDs.

pub mod encode;
pub mod encoded;
pub mod message;
pub mod message_id;
pub mod names;
pub mod properties;
pub mod property_crc;

pub use encode::NewMessage;
pub use message::{MessageView, add_reconsume_times};
pub use message_id::OffsetMessageId;
