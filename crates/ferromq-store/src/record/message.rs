//! The record on disk and on the wire: encode, decode, checksum.
//!
//! Knows nothing of files and queues. All integers are big-endian, hosts and topic lengths vary:
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

use crate::record::{
    encoded::{CRC_BITS, Encoded},
    names::java_hash,
    properties, property_crc,
    reader::Reader,
};

/// Magic code of a record whose topic length takes one byte.
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
/// Magic code of a record whose topic length takes two bytes.
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// Magic code of the record that fills the end of a file.
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;
/// Size and magic code: what a blank record needs at least.
pub const BLANK_LEN: u64 = 8;
/// The shortest record there can be: two IPv4 hosts, nothing else.
pub const MIN_RECORD_LEN: u32 = 91;
/// RocketMQ keeps the length of properties in a signed 16-bit integer.
pub(crate) const MAX_PROPERTIES_LEN: usize = 32_767;
/// RocketMQ's limit for topic names.
pub(crate) const MAX_TOPIC_LEN: usize = 255;
const MAX_V1_TOPIC_LEN: usize = 127;

const BORN_HOST_V6: i32 = 16;
const STORE_HOST_V6: i32 = 32;
/// System flag of a record that was appended as one with those that follow, and is not the last of them.
///
/// RocketMQ leaves the bit alone. Only the store sets it.
pub const CONTINUED: i32 = 1 << 24;
const TRANSACTION_BITS: i32 = 12;
const TRANSACTION_COMMIT: i32 = 8;
const TRANSACTION_ROLLBACK: i32 = 12;
/// Most bytes of a decompressed body; RocketMQ's own messages end at 4 MiB.
pub const MAX_DECOMPRESSED: usize = 64 << 20;
/// System flag of a batch that is one record; it has another kind of queue.
pub const INNER_BATCH: i32 = 128;

/// Where the queue offset lies in a record; the physical offset follows.
pub const QUEUE_OFFSET_AT: usize = 20;
/// Where the physical offset lies in a record.
pub const PHYSICAL_OFFSET_AT: usize = 28;

/// Says whether records with this flag enter the consume queue: half and rolled-back ones do not.
pub fn is_consumable(sys_flag: i32) -> bool {
    matches!(sys_flag & TRANSACTION_BITS, 0 | TRANSACTION_COMMIT)
}

/// Says whether a record with this flag ends a transaction.
pub fn is_transaction_end(sys_flag: i32) -> bool {
    matches!(sys_flag & TRANSACTION_BITS, TRANSACTION_COMMIT | TRANSACTION_ROLLBACK)
}

/// Says whether records with this flag are found by key: all but rolled-back ones.
pub fn is_indexed(sys_flag: i32) -> bool {
    sys_flag & TRANSACTION_BITS != TRANSACTION_ROLLBACK
}

/// Where the system flag lies in a record.
const SYS_FLAG_AT: usize = 36;

/// Adds to the reconsume times of a record that is about to leave: the log tells of the first delivery only.
///
/// Bytes too short for a record stay as they are.
pub fn add_reconsume_times(record: &mut [u8], more: u32) {
    if let Some(at) = reconsume_times_at(record)
        && let Some(bytes) = record.get_mut(at..at + 4)
        && let Ok(old) = <[u8; 4]>::try_from(&*bytes)
    {
        let times = i32::from_be_bytes(old).saturating_add_unsigned(more);
        bytes.copy_from_slice(&times.to_be_bytes());
    }
}

/// The reconsume times a record tells of; 0 where it is too short to tell.
pub(crate) fn reconsume_times(record: &[u8]) -> u32 {
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

/// Where the store timestamp lies in a record with this system flag.
pub fn store_timestamp_at(sys_flag: i32) -> usize {
    if sys_flag & BORN_HOST_V6 == 0 { 56 } else { 68 }
}

/// A message to append. Everything is borrowed; the body is copied once, into the log.
#[derive(Debug, Clone, Copy)]
pub struct NewMessage<'a> {
    /// Topic name, 1 to 127 bytes (longer ones need V2 records and are stored as such, up to 255).
    pub topic: &'a str,
    /// Queue of the topic.
    pub queue_id: i32,
    /// The application's own flag.
    pub flag: i32,
    /// RocketMQ's system flag; the host bits 16 and 32 and bit 24 (continued) are the store's own, 128 is refused.
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

/// Length of the record [`encode`] makes.
pub(crate) fn encoded_len(message: &NewMessage<'_>, store_host: SocketAddr, with_property_crc: bool) -> u64 {
    let hosts = [message.born_host, store_host].iter().filter(|host| host.is_ipv6()).count() * 12;
    let wide_topic = usize::from(message.topic.len() > MAX_V1_TOPIC_LEN);
    let fields = MIN_RECORD_LEN as usize + hosts + wide_topic;
    let properties = stored_properties_len(message.properties, with_property_crc);
    (fields + message.body.len() + message.topic.len() + properties) as u64
}

/// Length of the properties as stored.
pub(crate) fn stored_properties_len(given: &[u8], with_property_crc: bool) -> usize {
    let kept = property_crc::kept(given, with_property_crc);
    kept.len() + if with_property_crc { property_crc::added_len(&kept) } else { 0 }
}

/// Appends the head and tail of a record to `out`; queue offset, physical offset and store timestamp stay 0, and the
/// property CRC, where there is to be one, waits for them.
///
/// The caller has checked the limits.
pub fn encode(
    message: &NewMessage<'_>,
    store_host: SocketAddr,
    with_property_crc: bool,
    out: &mut Vec<u8>,
) -> Encoded {
    let mut sys_flag = message.sys_flag & !(BORN_HOST_V6 | STORE_HOST_V6 | CONTINUED);
    if message.born_host.is_ipv6() {
        sys_flag |= BORN_HOST_V6;
    }
    if store_host.is_ipv6() {
        sys_flag |= STORE_HOST_V6;
    }
    let wide_topic = message.topic.len() > MAX_V1_TOPIC_LEN;
    let magic = if wide_topic { MAGIC_V2 } else { MAGIC_V1 };
    let body_hash = crc32fast::hash(message.body);

    let head_at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&magic.to_be_bytes());
    out.extend_from_slice(&(body_hash & CRC_BITS).to_be_bytes());
    out.extend_from_slice(&message.queue_id.to_be_bytes());
    out.extend_from_slice(&message.flag.to_be_bytes());
    out.extend_from_slice(&[0; 16]);
    out.extend_from_slice(&sys_flag.to_be_bytes());
    out.extend_from_slice(&message.born_timestamp.to_be_bytes());
    push_host(out, message.born_host);
    out.extend_from_slice(&[0; 8]);
    push_host(out, store_host);
    out.extend_from_slice(&message.reconsume_times.to_be_bytes());
    out.extend_from_slice(&message.prepared_transaction_offset.to_be_bytes());
    out.extend_from_slice(&(message.body.len() as u32).to_be_bytes());
    let tail_at = out.len();
    if wide_topic {
        out.extend_from_slice(&(message.topic.len() as u16).to_be_bytes());
    } else {
        out.push(message.topic.len() as u8);
    }
    out.extend_from_slice(message.topic.as_bytes());
    let properties_at = out.len();
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&property_crc::kept(message.properties, with_property_crc));
    if with_property_crc {
        property_crc::reserve(out, properties_at + 2);
    }
    let tail_end = out.len();
    patch(out, properties_at, ((tail_end - properties_at - 2) as u16).to_be_bytes());

    let len = (tail_end - head_at + message.body.len()) as u32;
    patch(out, head_at, len.to_be_bytes());
    let body_hash = with_property_crc.then_some(body_hash);
    Encoded { head_at, tail_at, tail_end, len, sys_flag, body_hash }
}

/// Ties an encoded record to the one that follows it.
pub(crate) fn mark_continued(bytes: &mut [u8], encoded: &mut Encoded) {
    encoded.sys_flag |= CONTINUED;
    patch(bytes, encoded.head_at + SYS_FLAG_AT, encoded.sys_flag.to_be_bytes());
}

/// Makes an encoded record the last of those it is tied to.
pub(crate) fn mark_last(bytes: &mut [u8], encoded: &Encoded) {
    patch(bytes, encoded.head_at + SYS_FLAG_AT, (encoded.sys_flag & !CONTINUED).to_be_bytes());
}

/// Overwrites `bytes` at `at`; positions are the codec's own, so they always fit.
pub fn patch<const N: usize>(out: &mut [u8], at: usize, bytes: [u8; N]) {
    if let Some(place) = out.get_mut(at..at + N) {
        place.copy_from_slice(&bytes);
    }
}

fn push_host(out: &mut Vec<u8>, host: SocketAddr) {
    match host.ip() {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
    out.extend_from_slice(&u32::from(host.port()).to_be_bytes());
}

/// RocketMQ's checksum of a body: CRC32 with the top bit cleared.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & CRC_BITS
}

/// Says whether a record says of itself that it lies at `physical_offset` and has `size` bytes.
pub(crate) fn is_at(record: &[u8], physical_offset: u64, size: u32) -> bool {
    let told = record.get(PHYSICAL_OFFSET_AT..).and_then(|rest| rest.first_chunk::<8>());
    record.first_chunk::<4>().is_some_and(|told| u32::from_be_bytes(*told) == size)
        && told.is_some_and(|told| u64::from_be_bytes(*told) == physical_offset)
}

/// The store timestamp of a record, without looking at the rest.
pub(crate) fn store_timestamp(record: &[u8]) -> Option<i64> {
    let sys_flag = i32::from_be_bytes(*record.get(SYS_FLAG_AT..)?.first_chunk::<4>()?);
    Some(i64::from_be_bytes(*record.get(store_timestamp_at(sys_flag)..)?.first_chunk::<8>()?))
}

/// What lies at a place of the commit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peek {
    /// A message record of this total size, not checked further.
    Message(u32),
    /// The rest of the file is unused.
    Blank,
    /// No record begins here.
    Nothing,
}

/// Looks at the first eight bytes of a record.
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
    /// Decodes the record at the start of `bytes` and checks lengths, magic code and, where `check_crc`, the body's CRC32
    /// and the property CRC if there is one.
    ///
    /// Any bytes may be given. The reason of a refusal names the rule that is broken.
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

    /// The properties the store itself looks at; the last of a name counts, as in RocketMQ.
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

/// What a query looks at in a record. Nothing else is decoded, so that it costs little.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Brief<'a> {
    pub(crate) store_timestamp: i64,
    pub(crate) topic: &'a [u8],
    properties: &'a [u8],
}

impl<'a> Brief<'a> {
    /// `None` where the lengths in the record do not fill it.
    pub(crate) fn of(record: &'a [u8]) -> Option<Self> {
        let sys_flag = i32::from_be_bytes(*record.get(SYS_FLAG_AT..)?.first_chunk::<4>()?);
        let is_wide = record.get(4..8) == Some(&MAGIC_V2.to_be_bytes());
        let mut reader = Reader::new(record.get(store_timestamp_at(sys_flag)..)?);
        let store_timestamp = reader.i64()?;
        let _host_and_counts = reader.take(if sys_flag & STORE_HOST_V6 == 0 { 20 } else { 32 })?;
        let body_len = reader.i32()?;
        let _body = reader.take(usize::try_from(body_len).ok()?)?;
        let topic_len = if is_wide { reader.u16()? } else { u16::from(reader.u8()?) };
        let topic = reader.take(usize::from(topic_len))?;
        let properties_len = reader.u16()?;
        let properties = reader.take(usize::from(properties_len))?;
        reader.is_empty().then_some(Self { store_timestamp, topic, properties })
    }

    /// Says whether the unique key is `key` or, unless only that counts, one of the words of `KEYS`.
    pub(crate) fn has_key(&self, key: &str, is_unique: bool) -> bool {
        let (mut keys, mut unique_key) = (None, None);
        for (name, value) in properties::iter_bytes(self.properties) {
            match name {
                b"KEYS" => keys = Some(value),
                b"UNIQ_KEY" => unique_key = Some(value),
                _ => {}
            }
        }
        let key = key.as_bytes();
        let mut words = keys.unwrap_or_default().split(|byte| *byte == b' ');
        unique_key == Some(key) || (!is_unique && !key.is_empty() && words.any(|word| word == key))
    }
}

/// The properties the store itself looks at.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordMarks<'a> {
    /// Tag.
    pub tags: Option<&'a str>,
    pub(crate) keys: Option<&'a str>,
    pub(crate) unique_key: Option<&'a str>,
    pub(crate) delay_level: Option<&'a str>,
}

impl<'a> RecordMarks<'a> {
    /// Each key the message is found by: the unique key first, then the words of `KEYS`.
    pub fn each_key(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let words = self.keys.unwrap_or_default().split(' ').filter(|word| !word.is_empty());
        self.unique_key.into_iter().chain(words)
    }
}

/// The tag hash of a consume queue entry; 0 without tag.
pub fn tag_hash(tags: Option<&str>) -> i64 {
    tags.map_or(0, |tags| i64::from(java_hash(0, tags)))
}

/// Reads a host: its address, and four bytes of a port.
fn host(reader: &mut Reader<'_>, is_v6: bool) -> Option<SocketAddr> {
    let ip: IpAddr = if is_v6 {
        Ipv6Addr::from(reader.array::<16>()?).into()
    } else {
        Ipv4Addr::from(reader.array::<4>()?).into()
    };
    // Four bytes on disk, as Java writes an int; the port is the low half.
    Some(SocketAddr::new(ip, reader.u32()? as u16))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            // A top bit of the checksum is not part of it.
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
