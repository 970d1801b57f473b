//! Encodes records of the log as protobuf `Message`s, straight into the response.

use std::{
    fmt::Write,
    net::{IpAddr, SocketAddr},
};

use ferromq_store::{
    progress::ReceiptHandle,
    record::{MessageView, names::DLQ_PREFIX, properties},
};
use md5::{Digest, Md5};

use crate::{
    grpc::convert::{put_duration, put_timestamp, write_handle},
    protobuf::{bytes_field_len, put_bytes_field, put_len_prefix, put_varint_field},
};

const COMPRESSED: i32 = 1;
const IDENTITY: u64 = 1;
const GZIP: u64 = 2;

/// The body checksum in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyDigest {
    /// As RocketMQ's proxy. The official clients format a CRC32 in three different ways, so only MD5 suits them all.
    Md5,
    /// For ferromq's own client: the checksum of the record, a CRC32 with its top bit cleared, as eight upper-case hex
    /// digits. It also covers the way from the producer through the log, and costs nothing.
    Stored,
}

/// Encodes a record as a `Message`, as RocketMQ's proxy sends it outside a receive, for example in a check-back.
#[must_use]
pub fn encode_message(message: &MessageView<'_>, digest: BodyDigest) -> Vec<u8> {
    let mut writer = MessageWriter::new(digest);
    let mut out = Vec::with_capacity(writer.prepare(message, None));
    writer.finish(&mut out, message);
    out
}

/// The lease fields of a response.
#[derive(Debug, Clone, Copy)]
pub(in crate::grpc) struct LeaseInfo<'a> {
    pub handle: &'a ReceiptHandle,
    /// Number of the delivery, from 1.
    pub attempt: u32,
    pub broker_name: &'a str,
    /// Whether the receive was ordered.
    pub is_ordered: bool,
    /// RocketMQ's number for the kind of topic that holds the message.
    pub topic_mark: u8,
}

/// Writes messages one after the other and reuses its buffers.
pub(in crate::grpc) struct MessageWriter {
    digest: BodyDigest,
    system: Vec<u8>,
    user: Vec<u8>,
    text: String,
}

impl MessageWriter {
    pub(in crate::grpc) fn new(digest: BodyDigest) -> Self {
        Self { digest, system: Vec::new(), user: Vec::new(), text: String::new() }
    }

    /// Prepares a `Message` and returns its length. [`Self::finish`] writes it.
    pub(in crate::grpc) fn prepare(
        &mut self,
        message: &MessageView<'_>,
        lease: Option<LeaseInfo<'_>>,
    ) -> usize {
        self.system.clear();
        self.user.clear();
        self.put_properties(message);
        self.put_body_facts(message);
        self.put_origin(message);
        // A group that receives dead letters counts its own deliveries.
        let is_dead_letter = lease.is_some() && message.topic.starts_with(DLQ_PREFIX);
        let before = if is_dead_letter { 0 } else { u32::try_from(message.reconsume_times).unwrap_or(0) };
        if let Some(lease) = lease {
            self.put_lease(message, lease);
        }
        // A pull is no delivery. It reports the number of the next one, so that readers see the number of earlier ones.
        let attempt = lease.map_or(1, |lease| lease.attempt).saturating_add(before);
        put_varint_field(&mut self.system, 16, u64::from(attempt));
        put_varint_field(&mut self.system, 13, i64::from(message.queue_id).cast_unsigned());
        put_varint_field(&mut self.system, 14, message.queue_offset);
        bytes_field_len(1, bytes_field_len(2, message.topic.len()))
            + self.user.len()
            + bytes_field_len(3, self.system.len())
            + bytes_field_len(4, message.body.len())
    }

    /// Appends the prepared `Message`.
    pub(in crate::grpc) fn finish(&self, out: &mut Vec<u8>, message: &MessageView<'_>) {
        put_len_prefix(out, 1, bytes_field_len(2, message.topic.len()));
        put_bytes_field(out, 2, message.topic.as_bytes());
        out.extend_from_slice(&self.user);
        put_bytes_field(out, 3, &self.system);
        put_bytes_field(out, 4, message.body);
    }

    /// Writes the system properties stored as properties (tag, keys, id, type, ...) and the user properties.
    fn put_properties(&mut self, message: &MessageView<'_>) {
        let mut seen = SeenProperties::default();
        for (name, value) in properties::iter(message.properties) {
            match name {
                "TAGS" => put_bytes_field(&mut self.system, 1, value.as_bytes()),
                "KEYS" => {
                    for key in value.split(' ').filter(|key| !key.is_empty()) {
                        put_bytes_field(&mut self.system, 2, key.as_bytes());
                    }
                }
                "UNIQ_KEY" => {
                    seen.id = true;
                    put_bytes_field(&mut self.system, 3, value.as_bytes());
                }
                "__BORNHOST" => {
                    seen.born_host = true;
                    put_bytes_field(&mut self.system, 8, value.as_bytes());
                }
                "TRACE_CONTEXT" => put_bytes_field(&mut self.system, 18, value.as_bytes()),
                "TRAN_MSG" => seen.is_transaction = value == "true",
                "DELAY" | "TIMER_DELAY_SEC" | "TIMER_DELAY_MS" => seen.is_delayed = true,
                "TIMER_DELIVER_MS" => {
                    seen.is_delayed = true;
                    if let Ok(ms) = value.parse() {
                        put_timestamp(&mut self.system, 11, ms);
                    }
                }
                "_SYS_MSG_PRIORITY_" => {
                    if let Ok(priority) = value.parse::<i32>() {
                        seen.has_priority = true;
                        put_varint_field(&mut self.system, 22, i64::from(priority).cast_unsigned());
                    }
                }
                "DLQ_ORIGIN_TOPIC" => seen.dead_topic = Some(value),
                "DLQ_ORIGIN_MESSAGE_ID" => seen.dead_id = Some(value),
                "__SHARDINGKEY" => {
                    seen.is_ordered = true;
                    put_bytes_field(&mut self.system, 17, value.as_bytes());
                }
                _ => {}
            }
            if !properties::is_hidden(name) {
                put_len_prefix(
                    &mut self.user,
                    2,
                    bytes_field_len(1, name.len()) + bytes_field_len(2, value.len()),
                );
                put_bytes_field(&mut self.user, 1, name.as_bytes());
                put_bytes_field(&mut self.user, 2, value.as_bytes());
            }
        }
        put_varint_field(&mut self.system, 6, seen.message_type());
        if let (Some(topic), Some(id)) = (seen.dead_topic, seen.dead_id) {
            let len = bytes_field_len(1, topic.len()) + bytes_field_len(2, id.len());
            put_len_prefix(&mut self.system, 20, len);
            put_bytes_field(&mut self.system, 1, topic.as_bytes());
            put_bytes_field(&mut self.system, 2, id.as_bytes());
        }
        if !seen.id {
            self.text.clear();
            write_offset_id(&mut self.text, message.store_host, message.physical_offset);
            put_bytes_field(&mut self.system, 3, self.text.as_bytes());
        }
        if !seen.born_host {
            self.put_text(8, message.born_host.ip());
        }
    }

    fn put_body_facts(&mut self, message: &MessageView<'_>) {
        self.text.clear();
        // Writing to a String cannot fail.
        let kind = match self.digest {
            BodyDigest::Md5 => {
                for byte in Md5::digest(message.body) {
                    self.text.extend([hex_digit(byte >> 4), hex_digit(byte)]);
                }
                2
            }
            BodyDigest::Stored => {
                let _ = write!(self.text, "{:08X}", message.body_crc);
                1
            }
        };
        put_len_prefix(&mut self.system, 4, 2 + bytes_field_len(2, self.text.len()));
        put_varint_field(&mut self.system, 1, kind);
        put_bytes_field(&mut self.system, 2, self.text.as_bytes());
        let encoding = if message.sys_flag & COMPRESSED == 0 { IDENTITY } else { GZIP };
        put_varint_field(&mut self.system, 5, encoding);
    }

    fn put_origin(&mut self, message: &MessageView<'_>) {
        put_timestamp(&mut self.system, 7, message.born_timestamp);
        put_timestamp(&mut self.system, 9, message.store_timestamp);
        self.put_text(10, message.store_host);
    }

    fn put_lease(&mut self, message: &MessageView<'_>, lease: LeaseInfo<'_>) {
        self.text.clear();
        let place = message.physical_offset.cast_signed();
        write_handle(
            &mut self.text,
            lease.handle,
            lease.broker_name,
            place,
            lease.is_ordered,
            lease.topic_mark,
        );
        put_bytes_field(&mut self.system, 12, self.text.as_bytes());
        put_duration(&mut self.system, 15, lease.handle.invisible_ms);
    }

    fn put_text(&mut self, number: u32, value: impl std::fmt::Display) {
        self.text.clear();
        let _ = write!(self.text, "{value}");
        put_bytes_field(&mut self.system, number, self.text.as_bytes());
    }
}

/// Returns the upper-case hex digit of the lower four bits.
fn hex_digit(bits: u8) -> char {
    let bits = bits & 0xF;
    char::from(if bits < 10 { b'0' + bits } else { b'A' - 10 + bits })
}

/// Facts from the properties of a message.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // independent facts
struct SeenProperties<'a> {
    /// Original topic and message id of a dead letter.
    dead_topic: Option<&'a str>,
    dead_id: Option<&'a str>,
    has_priority: bool,
    id: bool,
    born_host: bool,
    is_transaction: bool,
    is_delayed: bool,
    is_ordered: bool,
}

impl SeenProperties<'_> {
    /// Returns the `MessageType`, by the rules of RocketMQ's proxy.
    fn message_type(&self) -> u64 {
        match self {
            Self { is_transaction: true, .. } => 4,
            Self { is_delayed: true, .. } => 3,
            Self { is_ordered: true, .. } => 2,
            Self { has_priority: true, .. } => 6,
            _ => 1,
        }
    }
}

/// Appends RocketMQ's id of a message without its own: the broker's address and the physical offset, in hex.
fn write_offset_id(out: &mut String, host: SocketAddr, physical_offset: u64) {
    let _ = match host.ip() {
        IpAddr::V4(ip) => write!(out, "{:08X}", u32::from(ip)),
        IpAddr::V6(ip) => write!(out, "{:032X}", u128::from(ip)),
    };
    let _ = write!(out, "{:08X}{physical_offset:016X}", host.port());
}
