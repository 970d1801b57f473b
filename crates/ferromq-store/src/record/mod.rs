//! The record format: bytes, properties, checksums and IDs. It knows no files.

pub(crate) mod encoded;
pub(crate) mod log_record;
pub mod message;
pub(crate) mod message_id;
pub mod names;
pub mod properties;
pub mod property_crc;
pub(crate) mod readdressed;
pub mod reader;

pub use log_record::Record;
pub use message::{MessageView, NewMessage, add_reconsume_times};
pub use message_id::OffsetMessageId;
pub use readdressed::readdressed;
