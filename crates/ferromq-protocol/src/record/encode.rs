//! Encodes a record to append: everything but its body, and without the fields that the log assigns.

use std::net::{IpAddr, SocketAddr};

use crate::record::{
    encoded::{CRC_BITS, Encoded},
    message::{
        BORN_HOST_V6, CONTINUED, MAGIC_V1, MAGIC_V2, MAX_V1_TOPIC_LEN, MIN_RECORD_LEN, STORE_HOST_V6,
        SYS_FLAG_AT,
    },
    property_crc,
};

/// A message to append. Everything is borrowed; the body is copied once, into the log.
#[derive(Debug, Clone, Copy)]
pub struct NewMessage<'a> {
    /// Topic name of 1 to 127 bytes; longer names, up to 255 bytes, are stored as V2 records.
    pub topic: &'a str,
    /// Queue ID.
    pub queue_id: i32,
    /// The application's own flag.
    pub flag: i32,
    /// RocketMQ's system flag. The store sets the host bits 16 and 32 and bit 24 (continued); it refuses 128.
    pub sys_flag: i32,
    /// When the producer created the message, in milliseconds since 1970.
    pub born_timestamp: i64,
    /// Address of the producer.
    pub born_host: SocketAddr,
    /// Number of redeliveries.
    pub reconsume_times: i32,
    /// Physical offset of the half message; 0 for none.
    pub prepared_transaction_offset: i64,
    /// The body.
    pub body: &'a [u8],
    /// Properties as `NAME \x01 VALUE \x02 …`, see [`properties`](crate::record::properties).
    pub properties: &'a [u8],
}

/// Length of the record that [`encode`] produces, in bytes.
pub fn encoded_len(message: &NewMessage<'_>, store_host: SocketAddr, with_property_crc: bool) -> u64 {
    let hosts = [message.born_host, store_host].iter().filter(|host| host.is_ipv6()).count() * 12;
    let wide_topic = usize::from(message.topic.len() > MAX_V1_TOPIC_LEN);
    let fields = MIN_RECORD_LEN as usize + hosts + wide_topic;
    let properties = stored_properties_len(message.properties, with_property_crc);
    (fields + message.body.len() + message.topic.len() + properties) as u64
}

/// Length of the stored properties, in bytes.
pub fn stored_properties_len(given: &[u8], with_property_crc: bool) -> usize {
    let kept = property_crc::kept(given, with_property_crc);
    kept.len() + if with_property_crc { property_crc::added_len(&kept) } else { 0 }
}

/// Appends the head and tail of a record to `out`. Queue offset, physical offset, store timestamp and property CRC are
/// filled in later.
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

/// Marks an encoded record as followed by another record of its atomic batch.
pub fn mark_continued(bytes: &mut [u8], encoded: &mut Encoded) {
    encoded.sys_flag |= CONTINUED;
    patch(bytes, encoded.head_at + SYS_FLAG_AT, encoded.sys_flag.to_be_bytes());
}

/// Marks an encoded record as the last of its atomic batch.
pub fn mark_last(bytes: &mut [u8], encoded: &Encoded) {
    patch(bytes, encoded.head_at + SYS_FLAG_AT, (encoded.sys_flag & !CONTINUED).to_be_bytes());
}

/// Overwrites `bytes` at `at`; the codec's positions always fit.
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
