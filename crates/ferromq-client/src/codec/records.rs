//! Decodes the answers of framed receives and pulls: a head, then records as stored in the broker's log.
//!
//! `ferromq-transport` describes the format (`grpc/verbs/records.rs`). Decoding checks the structure once; properties
//! are found when they are read.

use std::{borrow::Cow, fmt::Write as _, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use ferromq_protocol::{
    protobuf::{Fields, Malformed, put_bytes_field, put_varint, put_varint_field, take_varint},
    record::{MessageView, OffsetMessageId, message::body_crc, names::DLQ_PREFIX, properties},
};

use super::{Body, Span, Status, digest::MISMATCH};

/// The revive queue in receipt handles of ordered receives.
const ORDERED_REVIVE_QUEUE: i32 = 999;

/// An answer to a framed receive or pull.
#[derive(Debug)]
pub struct RecordAnswer {
    /// The status.
    pub status: Status,
    /// The messages.
    pub messages: Vec<RecordMessage>,
    /// Queue offset of the next pull; only in the answer to a pull.
    pub next_offset: Option<i64>,
}

/// A message of an answer. It keeps the answer alive.
#[derive(Debug, Clone)]
pub struct RecordMessage {
    answer: Arc<Answer>,
    topic: Span,
    body: Span,
    properties: Span,
    body_crc: u32,
    sys_flag: i32,
    born_host: SocketAddr,
    id: OffsetMessageId,
    /// The lease, if the message was received, not pulled.
    lease: Option<Lease>,
    /// Queue of the topic.
    pub queue_id: i32,
    /// Offset in its queue.
    pub queue_offset: i64,
    /// Number of this delivery, from 1.
    pub delivery_attempt: i32,
    /// Time of the send, in milliseconds since 1970.
    pub born_timestamp: i64,
    /// Time of the append, in milliseconds since 1970.
    pub store_timestamp: i64,
}

/// What the messages of an answer share.
#[derive(Debug, Default)]
struct Answer {
    bytes: Bytes,
    broker_name: String,
    /// The requested topic, if another one holds the messages.
    topic: Option<String>,
    topic_mark: u64,
    is_ordered: bool,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    pop_time: i64,
    invisible_ms: i64,
}

impl RecordMessage {
    fn property(&self, name: &str) -> Option<&str> {
        properties::get(self.properties.bytes(&self.answer.bytes), name)
    }

    /// Topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.answer.topic.as_deref().unwrap_or_else(|| self.topic.text(&self.answer.bytes))
    }

    /// The producer's message id. A message without one has the broker's.
    #[must_use]
    pub fn message_id(&self) -> Cow<'_, str> {
        self.property("UNIQ_KEY").map_or_else(|| self.id.to_string().into(), Cow::Borrowed)
    }

    /// Tag.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.property("TAGS")
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.property("KEYS").unwrap_or_default().split(' ').filter(|key| !key.is_empty())
    }

    /// The properties but for RocketMQ's own.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &str)> {
        properties::iter(self.properties.bytes(&self.answer.bytes))
            .filter(|(name, _)| !properties::is_hidden(name))
    }

    /// Message group of an ordered message.
    #[must_use]
    pub fn message_group(&self) -> Option<&str> {
        self.property("__SHARDINGKEY")
    }

    /// Delivery time of a delayed message, in milliseconds since 1970.
    #[must_use]
    pub fn delivery_timestamp(&self) -> Option<i64> {
        self.property("TIMER_DELIVER_MS").and_then(|time| time.parse().ok())
    }

    /// Priority, if it has one.
    #[must_use]
    pub fn priority(&self) -> Option<i32> {
        self.property("_SYS_MSG_PRIORITY_").and_then(|priority| priority.parse().ok())
    }

    /// Host of the producer.
    #[must_use]
    pub fn born_host(&self) -> Cow<'_, str> {
        self.property("__BORNHOST").map_or_else(|| self.born_host.ip().to_string().into(), Cow::Borrowed)
    }

    /// Address of the broker.
    #[must_use]
    pub fn store_host(&self) -> String {
        self.id.store_host.to_string()
    }

    /// Length of the lease in milliseconds; 0 without one.
    #[must_use]
    pub fn invisible_ms(&self) -> i64 {
        self.lease.map_or(0, |lease| lease.invisible_ms)
    }

    /// Receipt handle, as the broker writes it over HTTP/2; empty without a lease.
    #[must_use]
    pub fn receipt_handle(&self) -> String {
        let mut text = String::new();
        let Some(Lease { pop_time, invisible_ms }) = self.lease else { return text };
        let Answer { broker_name, topic_mark, is_ordered, .. } = &*self.answer;
        let (queue_id, offset) = (self.queue_id, self.queue_offset);
        let revive_queue = if *is_ordered { ORDERED_REVIVE_QUEUE } else { 0 };
        let place = self.id.physical_offset;
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{offset} {pop_time} {invisible_ms} {revive_queue} {topic_mark} {broker_name} {queue_id} {offset} {place}"
        );
        text
    }

    /// The body as received, compressed or not.
    #[must_use]
    pub fn raw_body(&self) -> &[u8] {
        self.body.bytes(&self.answer.bytes)
    }

    /// The body as sent; borrowed, unless it was compressed.
    ///
    /// # Errors
    /// If it does not match its checksum, does not decompress, or decompresses to more than
    /// [`MAX_DECOMPRESSED`](ferromq_protocol::MAX_DECOMPRESSED) bytes.
    pub fn body(&self) -> Result<Body<'_>, String> {
        let body = self.raw_body();
        if body_crc(body) != self.body_crc {
            return Err(MISMATCH.to_owned());
        }
        Body::of(self.sys_flag, body)
    }
}

/// The parts of an answer before they are decoded.
struct Parts<'a> {
    head: &'a [u8],
    records: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(mut answer: &'a [u8]) -> Result<Self, Malformed> {
        let head_len = usize::try_from(take_varint(&mut answer)?).unwrap_or(usize::MAX);
        let (head, records) =
            answer.split_at_checked(head_len).ok_or(Malformed("the head runs past the end of the answer"))?;
        Ok(Self { head, records })
    }
}

/// An answer whose records are not decoded.
#[derive(Debug)]
pub struct RecordBytes {
    /// The status.
    pub status: Status,
    /// Queue offset of the next pull; only in the answer to a pull.
    pub next_offset: Option<i64>,
    /// The records.
    pub records: Bytes,
}

/// Splits an answer, and copies nothing.
///
/// # Errors
/// For bytes that are no answer. The records are not checked.
pub fn split_records(answer: &Bytes) -> Result<RecordBytes, Malformed> {
    let Parts { head, records } = Parts::of(answer)?;
    let (mut status, mut next_offset) = (None, None);
    for field in Fields::new(head) {
        match field? {
            (1, value) => status = Some(Status::read(value.bytes()?)?),
            (3, value) => next_offset = Some(value.int64()?),
            _ => {}
        }
    }
    let status = status.ok_or(NO_STATUS)?;
    Ok(RecordBytes { status, next_offset, records: answer.slice_ref(records) })
}

const NO_STATUS: Malformed = Malformed("the answer has no status");

/// Decodes an answer.
///
/// # Errors
/// For bytes that are no answer.
pub fn decode_records(answer: &Bytes) -> Result<RecordAnswer, Malformed> {
    let RecordBytes { status, next_offset, .. } = split_records(answer)?;
    let Parts { head, mut records } = Parts::of(answer)?;
    let mut shared = Answer { bytes: answer.clone(), ..Answer::default() };
    let mut leases = None;
    for field in Fields::new(head) {
        match field? {
            (16, value) => value.text()?.clone_into(&mut shared.broker_name),
            (17, value) => shared.topic = Some(value.text()?.to_owned()),
            (18, value) => shared.topic_mark = value.int64()?.cast_unsigned(),
            (19, value) => shared.is_ordered = value.int64()? != 0,
            (20, value) => leases = Some(value.bytes()?),
            _ => {}
        }
    }
    let shared = Arc::new(shared);
    let mut messages = Vec::new();
    while !records.is_empty() {
        let view = MessageView::decode(records, false).map_err(Malformed)?;
        let leased = match &mut leases {
            Some(leases) => Some((
                Lease {
                    pop_time: take_varint(leases)?.cast_signed(),
                    invisible_ms: take_varint(leases)?.cast_signed(),
                },
                take_varint(leases)?,
            )),
            None => None,
        };
        messages.push(RecordMessage {
            topic: Span::of(view.topic.as_bytes(), answer)?,
            body: Span::of(view.body, answer)?,
            properties: Span::of(view.properties, answer)?,
            body_crc: view.body_crc,
            sys_flag: view.sys_flag,
            born_host: view.born_host,
            id: OffsetMessageId::of(&view),
            lease: leased.map(|(lease, _)| lease),
            queue_id: view.queue_id,
            queue_offset: view.queue_offset.cast_signed(),
            delivery_attempt: attempt(&view, &shared, leased.map(|(_, attempt)| attempt)),
            born_timestamp: view.born_timestamp,
            store_timestamp: view.store_timestamp,
            answer: Arc::clone(&shared),
        });
        records = records.get(view.total_size as usize..).unwrap_or_default();
    }
    Ok(RecordAnswer { status, messages, next_offset })
}

/// Encodes the acknowledgement of `messages` of `topic`, which is the answers' topic, for a framed call.
///
/// Returns `None` unless all came in answers of one broker and one kind of topic: they need receipt handles then.
pub fn encode_record_acks<'a>(
    group: &str,
    topic: &str,
    messages: impl Iterator<Item = &'a RecordMessage>,
) -> Option<Vec<u8>> {
    let mut first: Option<&Arc<Answer>> = None;
    let mut entries = Vec::new();
    for message in messages {
        let (answer, lease) = (&message.answer, message.lease?);
        let first = first.get_or_insert(answer);
        let is_alike = Arc::ptr_eq(first, answer)
            || (first.broker_name == answer.broker_name && first.topic_mark == answer.topic_mark);
        if !is_alike || message.topic() != topic {
            return None;
        }
        put_varint(&mut entries, u64::try_from(message.queue_id).ok()?);
        put_varint(&mut entries, message.queue_offset.cast_unsigned());
        put_varint(&mut entries, lease.pop_time.cast_unsigned());
        put_varint(&mut entries, lease.invisible_ms.cast_unsigned());
    }
    let mut request = Vec::with_capacity(entries.len() + group.len() + topic.len() + 64);
    put_bytes_field(&mut request, 1, group.as_bytes());
    put_bytes_field(&mut request, 2, topic.as_bytes());
    put_bytes_field(&mut request, 3, first?.broker_name.as_bytes());
    put_varint_field(&mut request, 4, first?.topic_mark);
    put_bytes_field(&mut request, 5, &entries);
    Some(request)
}

/// Decodes the answer to [`encode_record_acks`]: the status, and the index and status of each failed message.
///
/// # Errors
/// For bytes that are no answer.
pub fn decode_record_acks(answer: &[u8]) -> Result<(Status, Vec<(usize, Status)>), Malformed> {
    let (mut status, mut failed) = (Status::default(), Vec::new());
    for field in Fields::new(answer) {
        match field? {
            (1, value) => status = Status::read(value.bytes()?)?,
            (2, value) => {
                let (mut index, mut why) = (0, Status::default());
                for field in Fields::new(value.bytes()?) {
                    match field? {
                        (1, value) => index = usize::try_from(value.varint()?).unwrap_or(usize::MAX),
                        (2, value) => why = Status::read(value.bytes()?)?,
                        _ => {}
                    }
                }
                failed.push((index, why));
            }
            _ => {}
        }
    }
    Ok((status, failed))
}

/// A pull is no delivery: it reports the number of the next one. A group that receives dead letters counts its own.
fn attempt(view: &MessageView<'_>, shared: &Answer, delivery: Option<u64>) -> i32 {
    let topic = shared.topic.as_deref().unwrap_or(view.topic);
    let is_dead_letter = delivery.is_some() && topic.starts_with(DLQ_PREFIX);
    let before = if is_dead_letter { 0 } else { view.reconsume_times.max(0) };
    let delivery = delivery.map_or(1, |attempt| i32::try_from(attempt).unwrap_or(i32::MAX));
    delivery.saturating_add(before)
}

#[cfg(test)]
mod tests {
    use ferromq_protocol::{
        protobuf::put_len_prefix,
        record::encode::{NewMessage, encode},
    };
    use proptest::prelude::*;

    use super::*;

    fn record(body: &[u8], properties: &[u8], sys_flag: i32) -> Vec<u8> {
        let host = "10.0.0.1:10911".parse().unwrap();
        let message = NewMessage {
            topic: "flights",
            queue_id: 3,
            flag: 0,
            sys_flag,
            born_timestamp: 5,
            born_host: host,
            reconsume_times: 2,
            prepared_transaction_offset: 0,
            body,
            properties,
        };
        let mut out = Vec::new();
        let encoded = encode(&message, host, false, &mut out);
        [&out[..encoded.tail_at], body, &out[encoded.tail_at..]].concat()
    }

    fn answer(leases: Option<&[u8]>, topic: Option<&str>, records: &[Vec<u8>]) -> Bytes {
        let mut head = Vec::new();
        put_len_prefix(&mut head, 1, 4);
        put_varint_field(&mut head, 1, 20_000);
        put_bytes_field(&mut head, 16, b"broker-a");
        if let Some(topic) = topic {
            put_bytes_field(&mut head, 17, topic.as_bytes());
            put_varint_field(&mut head, 18, 2);
        }
        if let Some(leases) = leases {
            put_bytes_field(&mut head, 20, leases);
        }
        let mut answer = Vec::new();
        put_varint(&mut answer, head.len() as u64);
        answer.extend_from_slice(&head);
        records.iter().for_each(|record| answer.extend_from_slice(record));
        answer.into()
    }

    #[test]
    fn a_message_of_another_topic_shows_the_requested_one_and_its_handle_the_other() {
        let records = [record(b"body", b"UNIQ_KEY\x0101AB\x02", 0)];
        let decoded = decode_records(&answer(Some(&[7, 9, 1]), Some("asked"), &records)).unwrap();
        let message = &decoded.messages[0];
        assert_eq!((message.topic(), &*message.message_id()), ("asked", "01AB"));
        assert_eq!(message.receipt_handle(), "0 7 9 0 2 broker-a 3 0 0");
        assert_eq!(message.delivery_attempt, 3, "the first delivery after two");
        assert!(encode_record_acks("g", "flights", decoded.messages.iter()).is_none(), "of another topic");
        assert!(encode_record_acks("g", "asked", decoded.messages.iter()).is_some());
        assert!(encode_record_acks("g", "asked", std::iter::empty()).is_none());
    }

    #[test]
    fn a_dead_letter_counts_its_own_deliveries() {
        let decoded = decode_records(&answer(Some(&[7, 9, 1]), Some("%DLQ%g"), &[record(b"b", b"", 0)]));
        assert_eq!(decoded.unwrap().messages[0].delivery_attempt, 1);
    }

    #[test]
    fn a_body_that_does_not_match_its_checksum_is_an_error_and_its_bytes_can_be_read() {
        let mut damaged = record(b"body", b"", 0);
        let at = damaged.windows(4).position(|bytes| bytes == b"body").unwrap();
        damaged[at] ^= 1;
        let decoded = decode_records(&answer(None, None, &[damaged])).unwrap();
        let error = decoded.messages[0].body().unwrap_err();
        assert!(error.contains("checksum"), "{error}");
        assert_eq!(decoded.messages[0].raw_body(), b"cody");
    }

    #[test]
    fn fewer_leases_than_records_are_refused() {
        let records = [record(b"a", b"", 0), record(b"b", b"", 0)];
        assert!(decode_records(&answer(Some(&[7, 9, 1]), None, &records)).is_err());
        assert!(decode_records(&Bytes::new()).is_err(), "no head");
        assert!(decode_records(&Bytes::from_static(&[0])).is_err(), "no status");
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(
            head in proptest::collection::vec(any::<u8>(), 0..60),
            rest in proptest::collection::vec(any::<u8>(), 0..200),
            at in any::<proptest::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let noise = [&[head.len() as u8][..], &head, &rest].concat();
            let mut damaged = answer(Some(&[7, 9, 1]), None, &[record(&rest, b"KEYS\x01a b\x02", 0)]).to_vec();
            let at = at.index(damaged.len());
            damaged[at] = byte;
            for bytes in [noise, damaged] {
                let Ok(decoded) = decode_records(&bytes.into()) else { continue };
                for message in decoded.messages {
                    _ = (message.topic(), message.keys().count(), message.properties().count());
                    _ = (message.body(), message.message_id(), message.receipt_handle());
                }
            }
        }

        #[test]
        fn any_answer_to_acknowledgements_is_decoded_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let _ = decode_record_acks(&bytes);
        }
    }
}
