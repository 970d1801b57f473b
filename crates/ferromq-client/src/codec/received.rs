//! Decodes received messages in place, without copying them out of the response.
//!
//! Decoding checks everything once. Reading a field later cannot fail, except for the body: it is compared with its
//! digest and decompressed when it is read.

use std::borrow::Cow;

use ferromq_protocol::compression::{COMPRESSED, decompressed};

use super::{Status, digest, entries, texts};
use ferromq_protocol::protobuf::{Fields, Malformed, Value, map_entry, seconds_and_nanos, take_varint};

const GZIP: i32 = 2;

/// A range of bytes in a response.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// The range of `inner`, a slice of `outer`. Responses are far smaller than 4 GiB.
    pub(super) fn of(inner: &[u8], outer: &[u8]) -> Result<Self, Malformed> {
        const TOO_LARGE: Malformed = Malformed("the response has 4 GiB or more");
        let start = inner.as_ptr().addr().wrapping_sub(outer.as_ptr().addr());
        let start = u32::try_from(start).map_err(|_| TOO_LARGE)?;
        Ok(Self { start, len: u32::try_from(inner.len()).map_err(|_| TOO_LARGE)? })
    }

    /// The bytes. `answer` is the response that the span was made from.
    #[must_use]
    pub fn bytes(self, answer: &[u8]) -> &[u8] {
        let start = self.start as usize;
        answer.get(start..start + self.len as usize).unwrap_or_default()
    }

    /// The bytes as text, which was checked when the span was made.
    #[must_use]
    pub fn text(self, answer: &[u8]) -> &str {
        std::str::from_utf8(self.bytes(answer)).unwrap_or_default()
    }
}

/// A received message: its numbers, and the ranges of its other fields in the response.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    message: Span,
    system: Span,
    body: Span,
    encoding: i32,
    digest: Option<Span>,
    /// Topic.
    pub topic: Span,
    /// Message id.
    pub message_id: Span,
    /// Tag.
    pub tag: Option<Span>,
    /// Receipt handle.
    pub receipt_handle: Span,
    /// Host of the producer.
    pub born_host: Span,
    /// Host of the broker.
    pub store_host: Span,
    /// Message group of an ordered message.
    pub message_group: Option<Span>,
    /// Delivery time of a delayed message, in milliseconds since 1970.
    pub delivery_timestamp: Option<i64>,
    /// Priority, if it has one.
    pub priority: Option<i32>,
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
    /// Length of the lease in milliseconds.
    pub invisible_ms: i64,
}

impl Received {
    fn read(message: &[u8], answer: &[u8]) -> Result<Self, Malformed> {
        let mut received = Self { message: Span::of(message, answer)?, ..Self::default() };
        for field in Fields::new(message) {
            match field? {
                (1, value) => {
                    for field in Fields::new(value.bytes()?) {
                        if let (2, value) = field? {
                            received.topic = text_span(value, answer)?;
                        }
                    }
                }
                (2, value) => {
                    map_entry(value.bytes()?)?;
                }
                (3, value) => {
                    received.system = Span::of(value.bytes()?, answer)?;
                    received.read_system_properties(value.bytes()?, answer)?;
                }
                (4, value) => received.body = Span::of(value.bytes()?, answer)?,
                _ => {}
            }
        }
        Ok(received)
    }

    fn read_system_properties(&mut self, properties: &[u8], answer: &[u8]) -> Result<(), Malformed> {
        for field in Fields::new(properties) {
            match field? {
                (1, value) => self.tag = Some(text_span(value, answer)?),
                (2, value) => {
                    value.text()?;
                }
                (3, value) => self.message_id = text_span(value, answer)?,
                (4, value) => self.digest = Some(Span::of(value.bytes()?, answer)?),
                (5, value) => self.encoding = value.int32()?,
                (7, value) => self.born_timestamp = millis(value.bytes()?)?,
                (8, value) => self.born_host = text_span(value, answer)?,
                (9, value) => self.store_timestamp = millis(value.bytes()?)?,
                (10, value) => self.store_host = text_span(value, answer)?,
                (11, value) => self.delivery_timestamp = Some(millis(value.bytes()?)?),
                (12, value) => self.receipt_handle = text_span(value, answer)?,
                (13, value) => self.queue_id = value.int32()?,
                (14, value) => self.queue_offset = value.int64()?,
                (15, value) => self.invisible_ms = millis(value.bytes()?)?,
                (16, value) => self.delivery_attempt = value.int32()?,
                (17, value) => self.message_group = Some(text_span(value, answer)?),
                (22, value) => self.priority = Some(value.int32()?),
                _ => {}
            }
        }
        Ok(())
    }

    /// The keys.
    pub fn keys(self, answer: &[u8]) -> impl Iterator<Item = &str> {
        texts(self.system.bytes(answer), 2)
    }

    /// The properties. The last of equal names counts.
    pub fn properties(self, answer: &[u8]) -> impl Iterator<Item = (&str, &str)> {
        entries(self.message.bytes(answer))
    }

    /// The body as received, compressed or not.
    #[must_use]
    pub fn raw_body(self, answer: &[u8]) -> &[u8] {
        self.body.bytes(answer)
    }

    /// The body as sent; borrowed, unless it was compressed.
    ///
    /// # Errors
    /// If it does not match its digest, does not decompress, or decompresses to more than
    /// [`MAX_DECOMPRESSED`](ferromq_protocol::MAX_DECOMPRESSED) bytes.
    pub fn body(self, answer: &[u8]) -> Result<Body<'_>, String> {
        let body = self.body.bytes(answer);
        if let Some(digest) = self.digest {
            digest::check(digest.bytes(answer), body)?;
        }
        // RocketMQ marks every compressed body as GZIP, whatever its algorithm.
        Body::of(if self.encoding == GZIP { COMPRESSED } else { 0 }, body)
    }
}

/// The body of a received message.
#[derive(Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// A part of the response.
    Plain(&'a [u8]),
    /// Decompressed.
    Unpacked(Vec<u8>),
}

impl<'a> Body<'a> {
    /// The body that a system flag describes.
    pub(super) fn of(sys_flag: i32, body: &'a [u8]) -> Result<Self, String> {
        Ok(match decompressed(sys_flag, body)? {
            Cow::Borrowed(body) => Self::Plain(body),
            Cow::Owned(body) => Self::Unpacked(body),
        })
    }
}

/// The content of one packet of a stream of messages.
#[derive(Debug, Default)]
pub struct Packet {
    /// The status, if the packet has one.
    pub status: Option<Status>,
    /// The messages.
    pub messages: Vec<Received>,
    /// Queue offset of the next pull; only in the stream of a pull.
    pub next_offset: Option<i64>,
}

/// Decodes one packet of a ReceiveMessage or PullMessage stream: one response or, if `packed`, several length-prefixed
/// ones.
pub fn decode_received(answer: &[u8], packed: bool) -> Result<Packet, Malformed> {
    let Packet { mut status, mut messages, mut next_offset } = Packet::default();
    let mut rest = answer;
    loop {
        let response;
        if packed {
            if rest.is_empty() {
                break;
            }
            let len = usize::try_from(take_varint(&mut rest)?).unwrap_or(usize::MAX);
            (response, rest) =
                rest.split_at_checked(len).ok_or(Malformed("a response runs past the end of its packet"))?;
        } else {
            response = std::mem::take(&mut rest);
        }
        for field in Fields::new(response) {
            match field? {
                (1, value) => status = Some(Status::read(value.bytes()?)?),
                (2, value) => messages.push(Received::read(value.bytes()?, answer)?),
                // In the stream of a receive this field is a time.
                (3, Value::Varint(value)) => next_offset = Some(value.cast_signed()),
                _ => {}
            }
        }
        if !packed {
            break;
        }
    }
    Ok(Packet { status, messages, next_offset })
}

fn text_span(value: Value<'_>, answer: &[u8]) -> Result<Span, Malformed> {
    Span::of(value.text()?.as_bytes(), answer)
}

/// `Timestamp` or `Duration` in milliseconds.
fn millis(bytes: &[u8]) -> Result<i64, Malformed> {
    let (seconds, nanos) = seconds_and_nanos(bytes)?;
    seconds
        .checked_mul(1000)
        .and_then(|millis| millis.checked_add(i64::from(nanos / 1_000_000)))
        .ok_or(Malformed("a time is out of range"))
}
