//! The record on disk and on the wire: its fields, decoded in place. `encode` writes it.
//!
//! All integers are big-endian; hosts and topic lengths vary:
//!
//! | bytes | field | | bytes | field |
//! | --- | --- | --- | --- | --- |
//! | 4 | total size | | 8 | born timestamp |
//! | 4 | magic code | | 8 or 20 | born host: address, port in 4 bytes |
//! | 4 | CRC32 of the body, top bit cleared | | 8 | store timestamp |
//! | 4 | queue id | | 8 or 20 | store host |
//! | 4 | flag | | 4 | reconsume times |
//! | 8 | queue offset | | 8 | prepared transaction offset |
//! | 8 | physical offset | | 4 + n | body |
//! | 4 | system flag | | 1 (V2: 2) + n | topic |
//! | | | | 2 + n | properties |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::reader::Reader;
use crate::record::{encoded::CRC_BITS, names::java_hash, properties, property_crc};

/// Magic code of a record with a topic length of one byte.
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
/// Magic code of a record with a topic length of two bytes.
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// Magic code of the record that fills the end of a file.
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
/// Length of the shortest blank record: size and magic code.
pub const BLANK_LEN: u64 = 8;
/// Length of the shortest record: two IPv4 hosts and nothing else.
pub const MIN_RECORD_LEN: u32 = 91;
/// RocketMQ stores the length of properties as a signed 16-bit integer.
pub const MAX_PROPERTIES_LEN: usize = 32_767;
/// RocketMQ's limit for topic names, in bytes.
pub const MAX_TOPIC_LEN: usize = 255;
/// Longest topic name of a V1 record, in bytes.
pub const MAX_V1_TOPIC_LEN: usize = 127;

/// System flag: the producer's address is IPv6.
pub const BORN_HOST_V6: i32 = 16;
/// System flag: the broker's address is IPv6.
pub const STORE_HOST_V6: i32 = 32;
/// System flag of a record of an atomic batch that is not its last. RocketMQ does not use the bit; only the store sets
/// it.
pub const CONTINUED: i32 = 1 << 24;
const TRANSACTION_BITS: i32 = 12;
const TRANSACTION_COMMIT: i32 = 8;
const TRANSACTION_ROLLBACK: i32 = 12;
pub use crate::MAX_DECOMPRESSED;
/// System flag of a batch in one record, which needs another kind of queue.
pub const INNER_BATCH: i32 = 128;

/// Position of the queue offset in a record; the physical offset follows.
pub const QUEUE_OFFSET_AT: usize = 20;
/// Position of the physical offset in a record.
pub const PHYSICAL_OFFSET_AT: usize = 28;

/// Whether records with this flag enter the consume queue. Half and rolled-back messages do not.
pub fn is_consumable(sys_flag: i32) -> bool {
    matches!(sys_flag & TRANSACTION_BITS, 0 | TRANSACTION_COMMIT)
}

/// Whether a record with this flag ends a transaction.
pub fn is_transaction_end(sys_flag: i32) -> bool {
    matches!(sys_flag & TRANSACTION_BITS, TRANSACTION_COMMIT | TRANSACTION_ROLLBACK)
}

/// Whether records with this flag are indexed. Rolled-back messages are not.
pub fn is_indexed(sys_flag: i32) -> bool {
    sys_flag & TRANSACTION_BITS != TRANSACTION_ROLLBACK
}

/// Position of the system flag in a record.
pub const SYS_FLAG_AT: usize = 36;

/// Adds to the reconsume times of a record before it is sent: the log holds those of the first delivery only.
///
/// Bytes too short for a record stay unchanged.
pub fn add_reconsume_times(record: &mut [u8], more: u32) {
    if let Some(at) = reconsume_times_at(record)
        && let Some(bytes) = record.get_mut(at..at + 4)
        && let Ok(old) = <[u8; 4]>::try_from(&*bytes)
    {
        let times = i32::from_be_bytes(old).saturating_add_unsigned(more);
        bytes.copy_from_slice(&times.to_be_bytes());
    }
}

/// The reconsume times in a record; 0 if it is too short.
pub fn reconsume_times(record: &[u8]) -> u32 {
    let bytes = reconsume_times_at(record).and_then(|at| record.get(at..at + 4));
    let times = bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_be_bytes);
    u32::try_from(times).unwrap_or(0)
}

fn reconsume_times_at(record: &[u8]) -> Option<usize> {
    let flag = record.get(SYS_FLAG_AT..SYS_FLAG_AT + 4)?.try_into().ok()?;
    let flag = i32::from_be_bytes(flag);
    let host = |is_v6: i32| if flag & is_v6 == 0 { 8 } else { 20 };
    Some(SYS_FLAG_AT + 4 + 8 + host(BORN_HOST_V6) + 8 + host(STORE_HOST_V6))
}

/// Position of the store timestamp in a record with this system flag.
pub fn store_timestamp_at(sys_flag: i32) -> usize {
    if sys_flag & BORN_HOST_V6 == 0 { 56 } else { 68 }
}

/// RocketMQ's checksum of a body: CRC32 with the top bit cleared.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & CRC_BITS
}

/// Whether the record holds this physical offset and size.
pub fn is_at(record: &[u8], physical_offset: u64, size: u32) -> bool {
    let told = record.get(PHYSICAL_OFFSET_AT..).and_then(|rest| rest.first_chunk::<8>());
    record.first_chunk::<4>().is_some_and(|told| u32::from_be_bytes(*told) == size)
        && told.is_some_and(|told| u64::from_be_bytes(*told) == physical_offset)
}

/// The store timestamp of a record, without decoding the rest.
pub fn store_timestamp(record: &[u8]) -> Option<i64> {
    let sys_flag = i32::from_be_bytes(*record.get(SYS_FLAG_AT..)?.first_chunk::<4>()?);
    Some(i64::from_be_bytes(*record.get(store_timestamp_at(sys_flag)..)?.first_chunk::<8>()?))
}

/// Content at a position of the commit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peek {
    /// A record of this total size, not checked further.
    Message(u32),
    /// A blank record: the rest of the file is unused.
    Blank,
    /// No record begins here.
    Nothing,
}

/// Reads the first eight bytes of a record.
pub fn peek(bytes: &[u8]) -> Peek {
    let mut reader = Reader::new(bytes);
    let (Some(size), Some(magic)) = (reader.u32(), reader.u32()) else { return Peek::Nothing };
    match magic {
        MAGIC_V1 | MAGIC_V2 if size >= MIN_RECORD_LEN && size <= i32::MAX as u32 => Peek::Message(size),
        MAGIC_BLANK => Peek::Blank,
        _ => Peek::Nothing,
    }
}

/// A record, decoded in place.
#[derive(Debug, Clone, Copy)]
pub struct MessageView<'a> {
    /// Length of the record, in bytes.
    pub total_size: u32,
    /// CRC32 of the body with the top bit cleared.
    pub body_crc: u32,
    /// Queue ID.
    pub queue_id: i32,
    /// The application's own flag.
    pub flag: i32,
    /// Offset of the message in its queue.
    pub queue_offset: u64,
    /// Physical offset of the record, in bytes.
    pub physical_offset: u64,
    /// RocketMQ's system flag.
    pub sys_flag: i32,
    /// When the producer created the message, in milliseconds since 1970.
    pub born_timestamp: i64,
    /// Address of the producer.
    pub born_host: SocketAddr,
    /// When the broker stored the message, in milliseconds since 1970.
    pub store_timestamp: i64,
    /// Address of the broker.
    pub store_host: SocketAddr,
    /// Number of redeliveries.
    pub reconsume_times: i32,
    /// Physical offset of the half message; 0 for none.
    pub prepared_transaction_offset: i64,
    /// The body.
    pub body: &'a [u8],
    /// Topic name.
    pub topic: &'a str,
    /// Properties as `NAME \x01 VALUE \x02 …`.
    pub properties: &'a [u8],
}

impl<'a> MessageView<'a> {
    /// Decodes the record at the start of `bytes` and checks its lengths and magic code. With `check_crc` it also
    /// checks the body's CRC32 and the property CRC, if there is one. Accepts any bytes. Errors: the broken rule.
    pub fn decode(bytes: &'a [u8], check_crc: bool) -> std::result::Result<Self, &'static str> {
        const SHORT: &str = "the record is shorter than its fields";
        let Peek::Message(total_size) = peek(bytes) else { return Err("no record begins here") };
        let bytes = bytes.get(..total_size as usize).ok_or("the record is longer than its file")?;
        let mut reader = Reader::new(bytes);
        let _size = reader.u32().ok_or(SHORT)?;
        let wide_topic = reader.u32().ok_or(SHORT)? == MAGIC_V2;
        let body_crc = reader.u32().ok_or(SHORT)?;
        let queue_id = reader.i32().ok_or(SHORT)?;
        let flag = reader.i32().ok_or(SHORT)?;
        let queue_offset = reader.u64().ok_or(SHORT)?;
        let physical_offset = reader.u64().ok_or(SHORT)?;
        let sys_flag = reader.i32().ok_or(SHORT)?;
        let born_timestamp = reader.i64().ok_or(SHORT)?;
        let born_host = host(&mut reader, sys_flag & BORN_HOST_V6 != 0).ok_or(SHORT)?;
        let store_timestamp = reader.i64().ok_or(SHORT)?;
        let store_host = host(&mut reader, sys_flag & STORE_HOST_V6 != 0).ok_or(SHORT)?;
        let reconsume_times = reader.i32().ok_or(SHORT)?;
        let prepared_transaction_offset = reader.i64().ok_or(SHORT)?;
        let body_len = reader.i32().ok_or(SHORT)?;
        let body = reader.take(usize::try_from(body_len).unwrap_or(0)).ok_or(SHORT)?;
        let topic_len =
            if wide_topic { reader.u16().ok_or(SHORT)? } else { u16::from(reader.u8().ok_or(SHORT)?) };
        let topic = reader.take(usize::from(topic_len)).ok_or(SHORT)?;
        let topic = std::str::from_utf8(topic).map_err(|_| "the topic is not UTF-8")?;
        let properties_len = reader.u16().ok_or(SHORT)?;
        let properties = reader.take(usize::from(properties_len)).ok_or(SHORT)?;
        if !reader.is_empty() {
            return Err("the record is longer than its fields");
        }
        if check_crc && !body.is_empty() && self::body_crc(body) != body_crc {
            return Err("the body does not match its checksum");
        }
        if check_crc && !property_crc::matches(bytes, properties) {
            return Err("the record does not match the checksum among its properties");
        }
        Ok(Self {
            total_size,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body,
            topic,
            properties,
        })
    }

    /// The properties that the store uses; the last of equal names counts, as in RocketMQ.
    pub fn marks(&self) -> RecordMarks<'a> {
        let mut marks = RecordMarks::default();
        for (name, value) in properties::iter_bytes(self.properties) {
            match name {
                b"TAGS" => marks.tags = std::str::from_utf8(value).ok(),
                b"KEYS" => marks.keys = std::str::from_utf8(value).ok(),
                b"UNIQ_KEY" => marks.unique_key = std::str::from_utf8(value).ok(),
                b"DELAY" => marks.delay_level = std::str::from_utf8(value).ok(),
                _ => {}
            }
        }
        marks
    }
}

/// The properties that the store uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordMarks<'a> {
    /// Tag.
    pub tags: Option<&'a str>,
    /// Keys, separated by spaces.
    pub keys: Option<&'a str>,
    /// The producer's message id.
    pub unique_key: Option<&'a str>,
    /// Delay level.
    pub delay_level: Option<&'a str>,
}

impl<'a> RecordMarks<'a> {
    /// The keys of the message: the unique key, then the words of `KEYS`.
    pub fn each_key(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let words = self.keys.unwrap_or_default().split(' ').filter(|word| !word.is_empty());
        self.unique_key.into_iter().chain(words)
    }
}

/// The tag hash of a consume queue entry; 0 without a tag.
pub fn tag_hash(tags: Option<&str>) -> i64 {
    tags.map_or(0, |tags| i64::from(java_hash(0, tags)))
}

/// Reads a host: its address and a port of four bytes.
fn host(reader: &mut Reader<'_>, is_v6: bool) -> Option<SocketAddr> {
    let ip: IpAddr = if is_v6 {
        Ipv6Addr::from(reader.array::<16>()?).into()
    } else {
        Ipv4Addr::from(reader.array::<4>()?).into()
    };
    // Java writes the port as an int; the low half holds it.
    Some(SocketAddr::new(ip, reader.u32()? as u16))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::encode::{NewMessage, encode, encoded_len, patch};

    fn message<'a>(topic: &'a str, body: &'a [u8], properties: &'a [u8]) -> NewMessage<'a> {
        NewMessage {
            topic,
            queue_id: 3,
            flag: 7,
            sys_flag: 0,
            born_timestamp: 1_700_000_000_123,
            born_host: SocketAddr::from(([10, 0, 0, 1], 4567)),
            reconsume_times: 2,
            prepared_transaction_offset: 99,
            body,
            properties,
        }
    }

    fn whole(message: &NewMessage<'_>, host: SocketAddr) -> Vec<u8> {
        let mut out = Vec::new();
        let encoded = encode(message, host, false, &mut out);
        let mut record = out[..encoded.tail_at].to_vec();
        record.extend_from_slice(message.body);
        record.extend_from_slice(&out[encoded.tail_at..]);
        assert_eq!(record.len(), encoded.len as usize);
        assert_eq!(record.len() as u64, encoded_len(message, host, false));
        record
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            topic in "[a-zA-Z0-9_%-]{1,255}",
            body in proptest::collection::vec(any::<u8>(), 0..300),
            properties in proptest::collection::vec(any::<u8>(), 0..100),
            v6 in any::<bool>(),
        ) {
            let host: SocketAddr = if v6 { "[::1]:80".parse().unwrap() } else { "1.2.3.4:80".parse().unwrap() };
            let message = message(&topic, &body, &properties);
            let record = whole(&message, host);
            let view = MessageView::decode(&record, true).unwrap();
            prop_assert_eq!(view.topic, &topic);
            prop_assert_eq!(view.body, &body);
            prop_assert_eq!(view.properties, &properties);
            prop_assert_eq!(view.store_host, host);
            prop_assert_eq!(view.born_host, message.born_host);
            prop_assert_eq!(view.prepared_transaction_offset, 99);
            let mut again = record.clone();
            add_reconsume_times(&mut again, 3);
            let changed = MessageView::decode(&again, true).unwrap();
            prop_assert_eq!(reconsume_times(&again), 5);
            prop_assert_eq!((changed.reconsume_times, changed.body, changed.topic), (5, &body[..], &topic[..]));
            add_reconsume_times(again.get_mut(..record.len().min(59)).unwrap(), 1);
        }

        #[test]
        fn decoding_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400), magic in 0..4) {
            let mut bytes = bytes;
            if bytes.len() > 8 {
                let size = bytes.len() as u32;
                patch(&mut bytes, 0, size.to_be_bytes());
                match magic {
                    0 => patch(&mut bytes, 4, MAGIC_V1.to_be_bytes()),
                    1 => patch(&mut bytes, 4, MAGIC_V2.to_be_bytes()),
                    _ => {}
                }
            }
            let _ = MessageView::decode(&bytes, true).map(|view| view.marks().each_key().count());
        }

        #[test]
        fn a_changed_body_or_length_is_noticed(at in 0usize..200, bit in 0u8..8) {
            let body = [7u8; 100];
            let record = whole(&message("topic", &body, b"TAGS\x01a\x02"), "1.2.3.4:80".parse().unwrap());
            let mut changed = record.clone();
            let at = at % record.len();
            changed[at] ^= 1 << bit;
            let in_body = (88..188).contains(&at);
            let in_lengths = at < 8 || (84..88).contains(&at) || at == 188 || (194..196).contains(&at);
            let decoded = MessageView::decode(&changed, true);
            // The CRC does not cover the top bit.
            if in_body || in_lengths {
                prop_assert!(decoded.is_err(), "byte {} bit {}", at, bit);
            }
        }
    }

    #[test]
    fn hashes_are_those_of_java() {
        assert_eq!(java_hash(0, ""), 0);
        assert_eq!(java_hash(0, "TagA"), 2_598_919);
        assert_eq!(java_hash(0, "hello world"), 1_794_106_052);
        assert_eq!(
            java_hash(0, "ü€😀"),
            "ü€😀".encode_utf16().fold(0, |h: i32, c| h.wrapping_mul(31) + i32::from(c))
        );
        assert_eq!(java_hash(java_hash(0, "topic#"), "key"), java_hash(0, "topic#key"));
    }
}
