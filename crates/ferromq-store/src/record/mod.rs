//! The record format: bytes, properties, checksums and IDs. It knows no files.

pub mod encode;
pub(crate) mod encoded;
pub(crate) mod log_record;
pub mod message;
pub(crate) mod message_id;
pub mod names;
pub mod properties;
pub mod property_crc;
pub(crate) mod readdressed;
pub use ferromq_protocol::reader;

pub use encode::NewMessage;
pub use log_record::Record;
pub use message::{MessageView, add_reconsume_times};
pub use message_id::OffsetMessageId;
pub use readdressed::readdressed;
