//! A record in the log. Its format is in `ferromq-protocol`, because clients read it, too.

pub(crate) mod log_record;
pub(crate) mod readdressed;

pub use ferromq_protocol::{
    reader,
    record::{
        MessageView, NewMessage, OffsetMessageId, add_reconsume_times, encode, encoded, message, message_id,
        names, properties, property_crc,
    },
};
pub use log_record::Record;
pub use readdressed::readdressed;
