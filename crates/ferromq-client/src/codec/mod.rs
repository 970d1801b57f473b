//! Encodes and decodes the bulk messages of a gRPC client: batches to send, receipts, received messages,
//! acknowledgements.
//!
//! Does no I/O. The client makes the calls, and builds small messages with protobuf's own classes. Received messages
//! are not copied: a [`Received`] has the positions of its fields in the response.

mod digest;
mod headers;
mod received;
mod records;
pub mod rows;
#[cfg(test)]
mod tests;

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    mem,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use ferromq_protocol::protobuf::{
    CHOSEN_QUEUE, COMPRESSION, DURABILITY, FLUSHED, Fields, Malformed, PHYSICAL_OFFSETS, STORE_HOST,
    UNKNOWN_OFFSET, Value, WRITTEN, bytes_field_len, map_entry, put_bytes_field, put_len_prefix,
    put_varint_field, varint_len,
};

pub use ferromq_protocol::compression::Algorithm;
pub use headers::{Headers, IllegalHeader, Kind};
pub use received::{Body, Packet, Received, Span, decode_received};
pub use records::{
    RecordAnswer, RecordBytes, RecordMessage, decode_record_acks, decode_records, encode_record_acks,
    split_records,
};

/// `Code.OK`.
pub const OK: i32 = 20_000;

const IDENTITY: u64 = 1;
const GZIP: u64 = 2;
const TRANSACTION: u64 = 4;

/// Length of a message id in characters.
pub const MESSAGE_ID_LEN: usize = 34;

/// Message ids of one batch, in RocketMQ's second format: `01`, six bytes of the network address, two of the
/// process id, four of seconds since 2021, four of a number; hexadecimal in upper case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageIds {
    /// Network address and process id.
    pub process: [u8; 8],
    /// Seconds since 2021-01-01T00:00:00Z.
    pub seconds: u32,
    /// The number of the first message; the next ones count up.
    pub first: u32,
    /// Number of ids.
    pub count: u32,
}

/// First number of the next batch. Starts at random, because processes can share network address and process id, as
/// containers do.
static NEXT_NUMBER: LazyLock<AtomicU32> = LazyLock::new(|| {
    let random = RandomState::new().build_hasher().finish();
    AtomicU32::new((random & u64::from(u32::MAX)) as u32)
});

impl MessageIds {
    /// Reserves ids that no other batch of this process gets.
    #[must_use]
    pub fn reserve(process: [u8; 8], seconds: u32, count: u32) -> Self {
        let first = NEXT_NUMBER.fetch_add(count, Ordering::Relaxed);
        Self { process, seconds, first, count }
    }

    /// The id of message `index`; `None` past the end.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<[u8; MESSAGE_ID_LEN]> {
        (index < self.count).then(|| self.text(index))
    }

    fn text(&self, index: u32) -> [u8; MESSAGE_ID_LEN] {
        let mut id = [b'0'; MESSAGE_ID_LEN];
        let seconds = self.seconds.to_be_bytes();
        let number = self.first.wrapping_add(index).to_be_bytes();
        let bytes = [1].iter().chain(&self.process).chain(&seconds).chain(&number);
        for (digits, byte) in id.chunks_exact_mut(2).zip(bytes) {
            digits.copy_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 15)]);
        }
        id
    }
}

const fn hex_digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'A' + value - 10 }
}

/// Values common to all messages of a send request.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Queue of the topic.
    pub queue_id: i32,
    /// Time of the send, in milliseconds since 1970.
    pub born_timestamp: i64,
    /// Host name of the producer.
    pub born_host: &'a str,
    /// An id for each message.
    pub ids: MessageIds,
    /// For half messages: milliseconds until the first check-back, the broker's default if 0.
    pub transaction: Option<u64>,
}

/// The headers of a message, encoded.
#[derive(Debug, Clone, Copy)]
struct EncodedHeaders<'a> {
    user_properties: &'a [u8],
    system_properties: &'a [u8],
    kind: &'a Kind,
    compression: Option<Algorithm>,
}

/// Encodes a `SendMessageRequest` of `messages`: their headers and bodies, in order.
#[must_use]
pub fn encode_send<'a>(
    batch: &Batch<'_>,
    messages: impl IntoIterator<Item = (&'a Headers, &'a [u8]), IntoIter: Clone>,
) -> Vec<u8> {
    encode(batch, messages.into_iter().map(|(headers, body)| (headers.encoded(), body)))
}

/// Encodes the request of [`encode_send`] into memory of the caller's, and copies each body once.
#[derive(Debug)]
pub struct SendEncoding<'a, 'b> {
    batch: &'a Batch<'b>,
    topic: Vec<u8>,
    shared: Vec<u8>,
}

impl<'a, 'b> SendEncoding<'a, 'b> {
    /// Prepares what all messages of a batch share.
    #[must_use]
    pub fn new(batch: &'a Batch<'b>) -> Self {
        Self { batch, topic: resource(batch.topic, 1), shared: shared_system_properties(batch) }
    }

    /// Length of the request in bytes.
    pub fn len<'c>(&self, messages: impl IntoIterator<Item = (&'c Headers, &'c [u8])>) -> usize {
        self.total(messages.into_iter().map(|(headers, body)| (headers.encoded(), body)))
    }

    /// Encodes the messages into `out`, which has as many bytes as [`Self::len`] says.
    pub fn put<'c>(&self, mut out: &mut [u8], messages: impl IntoIterator<Item = (&'c Headers, &'c [u8])>) {
        let mut head = Vec::new();
        for ((headers, body), index) in messages.into_iter().zip(0..self.batch.ids.count) {
            head.clear();
            self.put_head(&mut head, &headers.encoded(), body, index);
            for part in [head.as_slice(), body] {
                if let Some((first, rest)) = mem::take(&mut out).split_at_mut_checked(part.len()) {
                    first.copy_from_slice(part);
                    out = rest;
                }
            }
        }
    }

    /// Whether messages say their kind; those of transactions do it among the shared properties.
    fn has_kind(&self) -> bool {
        self.batch.transaction.is_none()
    }

    /// Lengths of the system properties, and of the message without its own length.
    fn of(&self, headers: &EncodedHeaders<'_>, body: &[u8]) -> (usize, usize) {
        let kind_len = if self.has_kind() { headers.kind.len(self.batch.born_timestamp) } else { 0 };
        let system_len = headers.system_properties.len()
            + bytes_field_len(3, MESSAGE_ID_LEN)
            + self.shared.len()
            + kind_len
            + encoding_len(headers.compression);
        let len = self.topic.len()
            + headers.user_properties.len()
            + bytes_field_len(3, system_len)
            + bytes_field_len(4, body.len());
        (system_len, len)
    }

    fn total<'c>(&self, messages: impl Iterator<Item = (EncodedHeaders<'c>, &'c [u8])>) -> usize {
        messages.map(|(headers, body)| bytes_field_len(1, self.of(&headers, body).1)).sum()
    }

    /// Appends a message up to its body.
    fn put_head(&self, out: &mut Vec<u8>, headers: &EncodedHeaders<'_>, body: &[u8], index: u32) {
        let (system_len, len) = self.of(headers, body);
        put_len_prefix(out, 1, len);
        out.extend_from_slice(&self.topic);
        out.extend_from_slice(headers.user_properties);
        put_len_prefix(out, 3, system_len);
        out.extend_from_slice(headers.system_properties);
        put_bytes_field(out, 3, &self.batch.ids.text(index));
        put_encoding(out, headers.compression);
        out.extend_from_slice(&self.shared);
        if self.has_kind() {
            headers.kind.put(out, self.batch.born_timestamp);
        }
        put_len_prefix(out, 4, body.len());
    }
}

fn encode<'a>(
    batch: &Batch<'_>,
    messages: impl Iterator<Item = (EncodedHeaders<'a>, &'a [u8])> + Clone,
) -> Vec<u8> {
    let encoding = SendEncoding::new(batch);
    // Exact: growing the buffer would copy the bodies again.
    let mut out = Vec::with_capacity(encoding.total(messages.clone()));
    for ((headers, body), index) in messages.zip(0..batch.ids.count) {
        encoding.put_head(&mut out, &headers, body, index);
        out.extend_from_slice(body);
    }
    out
}

fn shared_system_properties(batch: &Batch<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    put_instant(&mut out, 7, batch.born_timestamp);
    put_bytes_field(&mut out, 8, batch.born_host.as_bytes());
    put_varint_field(&mut out, 13, i64::from(batch.queue_id).cast_unsigned());
    if let Some(recovery_ms) = batch.transaction {
        put_varint_field(&mut out, 6, TRANSACTION);
        if recovery_ms > 0 {
            put_instant(&mut out, 19, i64::try_from(recovery_ms).unwrap_or(i64::MAX));
        }
    }
    out
}

/// Appends how a body is compressed. The protocol calls any compressed body GZIP; RocketMQ takes it for zlib.
fn put_encoding(out: &mut Vec<u8>, compression: Option<Algorithm>) {
    put_varint_field(out, 5, if compression.is_some() { GZIP } else { IDENTITY });
    if let Some(number) = told_compression(compression) {
        put_varint_field(out, COMPRESSION, number);
    }
}

/// Number of bytes that [`put_encoding`] writes.
fn encoding_len(compression: Option<Algorithm>) -> usize {
    let told = told_compression(compression);
    2 + told.map_or(0, |number| varint_len(u64::from(COMPRESSION) << 3) + varint_len(number))
}

/// The number of an algorithm that RocketMQ's gRPC has no word for.
fn told_compression(compression: Option<Algorithm>) -> Option<u64> {
    let told = compression.filter(|algorithm| *algorithm != Algorithm::Zlib);
    told.and_then(|algorithm| u64::try_from(algorithm.number()).ok())
}

/// Appends a `Timestamp` of milliseconds since 1970, or a `Duration` of milliseconds.
fn put_instant(out: &mut Vec<u8>, number: u32, millis: i64) {
    let [seconds, nanos] = seconds_and_nanos_of(millis);
    put_len_prefix(out, number, 2 + varint_len(seconds) + varint_len(nanos));
    put_varint_field(out, 1, seconds);
    put_varint_field(out, 2, nanos);
}

/// Number of bytes that [`put_instant`] writes.
fn instant_len(number: u32, millis: i64) -> usize {
    let [seconds, nanos] = seconds_and_nanos_of(millis);
    bytes_field_len(number, 2 + varint_len(seconds) + varint_len(nanos))
}

fn seconds_and_nanos_of(millis: i64) -> [u64; 2] {
    [millis.div_euclid(1000).cast_unsigned(), (millis.rem_euclid(1000) * 1_000_000).cast_unsigned()]
}

/// Index of the queue of a message group, among `queues` writable queues in the order of the route.
///
/// RocketMQ's own clients choose the same queue, so that producers in all languages keep a group's messages together.
/// It is SipHash-2-4 of the group under the key bytes 0, 1, … 15.
#[must_use]
pub fn queue_of_group(group: &str, queues: u32) -> u32 {
    // The only SipHash-2-4 of the standard library; its replacement promises no algorithm.
    #[allow(deprecated)]
    let mut hasher = std::hash::SipHasher::new_with_keys(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
    hasher.write(group.as_bytes());
    let remainder = hasher.finish().cast_signed().rem_euclid(i64::from(queues.max(1)));
    u32::try_from(remainder).unwrap_or_default()
}

/// A topic or group as field `number` of its message.
fn resource(name: &str, number: u32) -> Vec<u8> {
    let mut out = Vec::new();
    put_len_prefix(&mut out, number, bytes_field_len(2, name.len()));
    put_bytes_field(&mut out, 2, name.as_bytes());
    out
}

/// A code of the protocol and the server's text.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Status {
    /// `Code`.
    pub code: i32,
    /// The server's text.
    pub message: String,
}

impl Status {
    fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut status = Self::default();
        for field in Fields::new(bytes) {
            match field? {
                (1, value) => status.code = value.int32()?,
                (2, value) => value.text()?.clone_into(&mut status.message),
                _ => {}
            }
        }
        Ok(status)
    }
}

/// Outcome of a send request.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Status of the whole request.
    pub status: Status,
    /// Queue offset of each message, in the order sent; 0 for one that failed.
    pub queue_offsets: Vec<i64>,
    /// Messages that were not stored, by index.
    pub failures: Vec<(usize, Status)>,
    /// Transaction id and recall handle of the messages that have one, by index.
    pub handles: Vec<(usize, String, String)>,
    /// Queue of the first message, if the broker chose another one than the client.
    pub queue_id: Option<i32>,
    /// What the answer promises, if it says it.
    pub durability: Option<Durability>,
    /// The broker's address as in an [`OffsetId`], and physical offsets in 8 bytes each, the lowest first; both are
    /// empty if the answer does not have them.
    pub records: (Vec<u8>, Vec<u8>),
}

/// Decodes a `SendMessageResponse`.
pub fn decode_sent(bytes: &[u8]) -> Result<Sent, Malformed> {
    let mut sent = Sent::default();
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => sent.status = Status::read(value.bytes()?)?,
            (2, value) => {
                let (mut status, mut queue_offset) = (Status { code: OK, ..Status::default() }, 0);
                let (mut transaction_id, mut recall_handle) = ("", "");
                for field in Fields::new(value.bytes()?) {
                    match field? {
                        (1, value) => status = Status::read(value.bytes()?)?,
                        (3, value) => transaction_id = value.text()?,
                        (4, value) => queue_offset = value.int64()?,
                        (5, value) => recall_handle = value.text()?,
                        (CHOSEN_QUEUE, value) if sent.queue_offsets.is_empty() => {
                            sent.queue_id = Some(value.int32()?);
                        }
                        _ => {}
                    }
                }
                let index = sent.queue_offsets.len();
                if status.code != OK {
                    sent.failures.push((index, status));
                } else if !transaction_id.is_empty() || !recall_handle.is_empty() {
                    sent.handles.push((index, transaction_id.to_owned(), recall_handle.to_owned()));
                }
                sent.queue_offsets.push(queue_offset);
            }
            (DURABILITY, value) => sent.durability = Durability::read(value)?,
            (STORE_HOST, value) => sent.records.0 = value.bytes()?.to_vec(),
            (PHYSICAL_OFFSETS, value) => sent.records.1 = value.bytes()?.to_vec(),
            _ => {}
        }
    }
    Ok(sent)
}

/// How safe a message is that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// In the broker's log, in memory.
    Written,
    /// On disk.
    Flushed,
}

impl Durability {
    /// `None` for a number that later brokers may add.
    fn read(value: Value<'_>) -> Result<Option<Self>, Malformed> {
        Ok(match value.varint()? {
            WRITTEN => Some(Self::Written),
            FLUSHED => Some(Self::Flushed),
            _ => None,
        })
    }

    /// Its name in receipts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Flushed => "flushed",
        }
    }
}

/// RocketMQ's second id of a message as bytes: the broker's address, and the physical offset of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffsetId {
    bytes: [u8; Self::LONGEST],
    len: usize,
}

impl OffsetId {
    /// With an address of IPv6, its port in four bytes, and the offset in eight.
    const LONGEST: usize = 28;

    /// `None` if the address is too long for one, or the offset is not known.
    fn new(host: &[u8], physical_offset: u64) -> Option<Self> {
        if physical_offset == UNKNOWN_OFFSET {
            return None;
        }
        let (mut bytes, len) = ([0; Self::LONGEST], host.len() + 8);
        bytes.get_mut(..host.len())?.copy_from_slice(host);
        bytes.get_mut(host.len()..len)?.copy_from_slice(&physical_offset.to_be_bytes());
        Some(Self { bytes, len })
    }

    /// The bytes, of which the id is the hexadecimal text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Where a message was stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// Its place in the queue.
    pub queue_offset: i64,
    /// The queue, if the broker chose another one than the client.
    pub queue_id: Option<i32>,
    /// Where its record is in the log, if the answer says it.
    pub offset_id: Option<OffsetId>,
    /// What the answer promises, if it says it.
    pub durability: Option<Durability>,
}

/// Decodes the status and the place of each message of a `SendMessageResponse`.
///
/// The status is that of the first message that was not stored, if there is one.
pub fn decode_places(bytes: &[u8]) -> Result<(Status, Vec<Place>), Malformed> {
    let (mut status, mut failure, mut places) = (Status::default(), None, Vec::new());
    let (mut durability, mut host, mut offsets) = (None, &[][..], &[][..]);
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => status = Status::read(value.bytes()?)?,
            (2, value) => {
                let mut place = Place::default();
                for field in Fields::new(value.bytes()?) {
                    match field? {
                        (1, value) => {
                            let entry = Status::read(value.bytes()?)?;
                            failure = failure.or_else(|| (entry.code != OK).then_some(entry));
                        }
                        (4, value) => place.queue_offset = value.int64()?,
                        (CHOSEN_QUEUE, value) => place.queue_id = Some(value.int32()?),
                        _ => {}
                    }
                }
                places.push(place);
            }
            (DURABILITY, value) => durability = Durability::read(value)?,
            (STORE_HOST, value) => host = value.bytes()?,
            (PHYSICAL_OFFSETS, value) => offsets = value.bytes()?,
            _ => {}
        }
    }
    places.iter_mut().for_each(|place| place.durability = durability);
    for (place, offset) in places.iter_mut().zip(offsets.as_chunks().0) {
        place.offset_id = OffsetId::new(host, u64::from_le_bytes(*offset));
    }
    Ok((failure.unwrap_or(status), places))
}

/// Encodes an `AckMessageRequest` of message ids and receipt handles.
#[must_use]
pub fn encode_acks<'a>(
    group: &str,
    topic: &str,
    entries: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<u8> {
    let mut out = resource(group, 1);
    out.extend_from_slice(&resource(topic, 2));
    for (message_id, receipt_handle) in entries {
        let len = bytes_field_len(1, message_id.len()) + bytes_field_len(2, receipt_handle.len());
        put_len_prefix(&mut out, 3, len);
        put_bytes_field(&mut out, 1, message_id.as_bytes());
        put_bytes_field(&mut out, 2, receipt_handle.as_bytes());
    }
    out
}

/// Decodes an `AckMessageResponse`: its status, and message id and status of each entry that failed.
pub fn decode_acked(bytes: &[u8]) -> Result<(Status, Vec<(String, Status)>), Malformed> {
    let (mut status, mut failures) = (Status::default(), Vec::new());
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => status = Status::read(value.bytes()?)?,
            (2, value) => {
                let (mut message_id, mut entry) = ("", Status { code: OK, ..Status::default() });
                for field in Fields::new(value.bytes()?) {
                    match field? {
                        (1, value) => message_id = value.text()?,
                        (3, value) => entry = Status::read(value.bytes()?)?,
                        _ => {}
                    }
                }
                if entry.code != OK {
                    failures.push((message_id.to_owned(), entry));
                }
            }
            _ => {}
        }
    }
    Ok((status, failures))
}

/// The text fields `number` of a message that was checked.
fn texts(message: &[u8], number: u32) -> impl Iterator<Item = &str> {
    Fields::new(message).filter_map(move |field| match field {
        Ok((found, value)) if found == number => value.text().ok(),
        _ => None,
    })
}

/// The entries of `user_properties` of a message that was checked.
fn entries(message: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    Fields::new(message).filter_map(|field| match field {
        Ok((2, value)) => value.bytes().and_then(map_entry).ok(),
        _ => None,
    })
}
