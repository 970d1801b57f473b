//! The record on disk and on the wire: encode, decode, checksum.

use std::net::SocketAddr;

/// A message to append. Everything is borrowed; the body is copied once, into the log.
#[derive(Debug, Clone, Copy)]
pub struct NewMessage<'a> {
    /// Topic name, 1 to 127 bytes (longer ones need V2 records and are stored as such, up to 255).
    pub topic: &'a str,
    /// Queue of the topic.
    pub queue_id: i32,
    /// The application's own flag.
    pub flag: i32,
    /// RocketMQ's system flag; the host bits 16 and 32 are set by the store.
    pub sys_flag: i32,
    /// When the producer made the message, milliseconds since 1970.
    pub born_timestamp: i64,
    /// Where the producer sits.
    pub born_host: SocketAddr,
    /// How often the message was consumed again.
    pub reconsume_times: i32,
    /// Physical offset of the half message, 0 where there is none.
    pub prepared_transaction_offset: i64,
    /// The body.
    pub body: &'a [u8],
    /// Properties in RocketMQ's text form: `NAME \x01 VALUE \x02 …`, see [`properties`].
    pub properties: &'a [u8],
}

/// A record, decoded in place.
#[derive(Debug, Clone, Copy)]
pub struct MessageView<'a> {
    /// Whole length in bytes.
    pub total_size: u32,
    /// CRC32 of the body with the top bit cleared, as RocketMQ stores it.
    pub body_crc: u32,
    /// Queue of the topic.
    pub queue_id: i32,
    /// The application's own flag.
    pub flag: i32,
    /// Index of the message in its queue.
    pub queue_offset: u64,
    /// Byte position in the commit log.
    pub physical_offset: u64,
    /// RocketMQ's system flag.
    pub sys_flag: i32,
    /// When the producer made the message, milliseconds since 1970.
    pub born_timestamp: i64,
    /// Where the producer sits.
    pub born_host: SocketAddr,
    /// When the broker stored it, milliseconds since 1970.
    pub store_timestamp: i64,
    /// The broker's own address.
    pub store_host: SocketAddr,
    /// How often the message was consumed again.
    pub reconsume_times: i32,
    /// Physical offset of the half message, 0 where there is none.
    pub prepared_transaction_offset: i64,
    /// The body.
    pub body: &'a [u8],
    /// Topic name.
    pub topic: &'a str,
    /// Properties in RocketMQ's text form.
    pub properties: &'a [u8],
}

impl<'a> MessageView<'a> {
    /// Decodes the record at the start of `bytes` and checks lengths, magic code and, where `check_crc`, the body's CRC32.
    pub fn decode(_bytes: &'a [u8], _check_crc: bool) -> std::result::Result<Self, &'static str> {
        todo!()
    }
}

/// RocketMQ's text form of properties.
pub mod properties {
    /// Walks over name and value of each property; parts that are not UTF-8 are skipped.
    pub fn iter(_properties: &[u8]) -> impl Iterator<Item = (&str, &str)> {
        std::iter::empty()
    }

    /// Returns the value of `name`.
    #[must_use]
    pub fn get<'a>(properties: &'a [u8], name: &str) -> Option<&'a str> {
        iter(properties).find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    /// Appends one property to `out`.
    pub fn push(out: &mut Vec<u8>, name: &str, value: &str) {
        out.extend_from_slice(name.as_bytes());
        out.push(1);
        out.extend_from_slice(value.as_bytes());
        out.push(2);
    }
}
