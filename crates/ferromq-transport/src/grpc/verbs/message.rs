//! Parses a `SendMessageRequest` in place.
//!
//! Each message is one object, whose fields are slices of the request. `send_check` checks their values.

use std::ops::Range;

use crate::{
    hot::batches::MESSAGE_OVERHEAD,
    protobuf::{COMPRESSION, Fields, Malformed, map_entry, seconds_and_nanos},
};

/// Most messages of a request. An empty one takes two bytes of the request, but many more in memory.
pub const MAX_MESSAGES: usize = 1 << 16;
/// Most keys and user properties of all messages of a request together.
pub const MAX_ALL_TEXTS: usize = 1 << 19;
/// Most keys, and most user properties, of one message. The parser keeps one more, so that the check can refuse them.
pub const MAX_TEXTS: usize = 1 << 10;

/// A message as the producer wrote it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outgoing<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// The body.
    pub body: &'a [u8],
    /// The tag.
    pub tag: &'a str,
    /// Range of its keys in [`SendRequest::keys`].
    pub keys: Range<usize>,
    /// Range of its user properties in [`SendRequest::properties`].
    pub properties: Range<usize>,
    /// The producer's id of the message.
    pub message_id: &'a str,
    /// `Encoding`.
    pub body_encoding: i32,
    /// RocketMQ's number of the algorithm, if it is not zlib.
    pub compression: i32,
    /// `MessageType`.
    pub message_type: i32,
    /// Creation time in milliseconds since 1970, if given.
    pub born_timestamp: Option<i64>,
    /// The producer's name for its host.
    pub born_host: &'a str,
    /// Delivery time in milliseconds since 1970, if given.
    pub delivery_timestamp: Option<i64>,
    /// The queue, if the producer chose one. A field with the value 0 counts as chosen.
    pub queue_id: Option<i32>,
    /// The message group.
    pub message_group: &'a str,
    /// The trace context.
    pub trace_context: &'a str,
    /// Seconds until the check-back of its transaction, if given.
    pub recovery_seconds: Option<i64>,
    /// The lite topic.
    pub lite_topic: &'a str,
    /// The priority, if given.
    pub priority: Option<i32>,
}

/// A `SendMessageRequest`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// The messages.
    pub messages: Vec<Outgoing<'a>>,
    /// Keys of all messages.
    pub keys: Vec<&'a str>,
    /// User properties of all messages.
    pub properties: Vec<(&'a str, &'a str)>,
}

const TOO_MANY: Malformed = Malformed("a request has more than 65,536 messages; send several");

impl<'a> SendRequest<'a> {
    /// Counts the messages of an encoded request without parsing them.
    ///
    /// # Errors
    /// The errors of [`Self::parse`] for the request itself.
    pub fn count(request: &[u8]) -> Result<usize, Malformed> {
        let mut count = 0_usize;
        for field in Fields::new(request) {
            count += usize::from(field?.0 == 1);
            if count > MAX_MESSAGES {
                return Err(TOO_MANY);
            }
        }
        Ok(count)
    }

    /// Memory of `count` parsed messages until their request is answered, without the request's bytes, keys and
    /// properties.
    #[must_use]
    pub fn memory_of_messages(count: usize) -> usize {
        count * MESSAGE_OVERHEAD
    }

    /// Returns the topic of the first message of an encoded request; empty if the request has no message.
    ///
    /// # Errors
    /// The errors of [`Self::parse`] for that message.
    pub fn first_topic(request: &[u8]) -> Result<&str, Malformed> {
        for field in Fields::new(request) {
            if let (1, value) = field? {
                return Ok(SendRequest::default().message(value.bytes()?)?.topic);
            }
        }
        Ok("")
    }

    /// Memory of the parsed keys and properties, without the request's bytes.
    #[must_use]
    pub fn memory_of_texts(&self) -> usize {
        self.keys.capacity() * size_of::<&str>() + self.properties.capacity() * size_of::<(&str, &str)>()
    }

    /// As [`Self::parse`], for a request of `count` messages, see [`Self::count`].
    pub fn parse_counted(request: &'a [u8], count: usize) -> Result<Self, Malformed> {
        let messages = Vec::with_capacity(count.min(MAX_MESSAGES));
        Self { messages, ..Self::default() }.parse_all(request)
    }

    /// Parses an encoded request. Unknown fields are skipped. Repeated fields follow protobuf: the last number or text
    /// counts, and embedded messages are merged.
    pub fn parse(request: &'a [u8]) -> Result<Self, Malformed> {
        Self::default().parse_all(request)
    }

    fn parse_all(self, request: &'a [u8]) -> Result<Self, Malformed> {
        let mut parsed = self;
        for field in Fields::new(request) {
            if let (1, value) = field? {
                if parsed.messages.len() == MAX_MESSAGES {
                    return Err(TOO_MANY);
                }
                if parsed.keys.len() + parsed.properties.len() > MAX_ALL_TEXTS {
                    return Err(Malformed(
                        "a request has more than 524,288 keys and user properties; send several",
                    ));
                }
                let message = parsed.message(value.bytes()?)?;
                parsed.messages.push(message);
            }
        }
        Ok(parsed)
    }

    fn message(&mut self, bytes: &'a [u8]) -> Result<Outgoing<'a>, Malformed> {
        let (first_key, first_property) = (self.keys.len(), self.properties.len());
        let mut message = Outgoing::default();
        for field in Fields::new(bytes) {
            match field? {
                (1, value) => {
                    for field in Fields::new(value.bytes()?) {
                        match field? {
                            (1, value) => _ = value.text()?,
                            (2, value) => message.topic = value.text()?,
                            _ => {}
                        }
                    }
                }
                (2, value) => {
                    let property = map_entry(value.bytes()?)?;
                    if self.properties.len() - first_property <= MAX_TEXTS {
                        self.properties.push(property);
                    }
                }
                (3, value) => self.system_properties(&mut message, first_key, value.bytes()?)?,
                (4, value) => message.body = value.bytes()?,
                _ => {}
            }
        }
        message.keys = first_key..self.keys.len();
        message.properties = first_property..self.properties.len();
        Ok(message)
    }

    fn system_properties(
        &mut self,
        message: &mut Outgoing<'a>,
        first_key: usize,
        bytes: &'a [u8],
    ) -> Result<(), Malformed> {
        for field in Fields::new(bytes) {
            match field? {
                (1, value) => message.tag = value.text()?,
                (2, value) => {
                    let key = value.text()?;
                    if self.keys.len() - first_key <= MAX_TEXTS {
                        self.keys.push(key);
                    }
                }
                (3, value) => message.message_id = value.text()?,
                (5, value) => message.body_encoding = value.int32()?,
                (COMPRESSION, value) => message.compression = value.int32()?,
                (6, value) => message.message_type = value.int32()?,
                (7, value) => message.born_timestamp = Some(millis(value.bytes()?)?),
                (8, value) => message.born_host = value.text()?,
                (11, value) => message.delivery_timestamp = Some(millis(value.bytes()?)?),
                (13, value) => message.queue_id = Some(value.int32()?),
                (17, value) => message.message_group = value.text()?,
                (18, value) => message.trace_context = value.text()?,
                (19, value) => message.recovery_seconds = Some(seconds_and_nanos(value.bytes()?)?.0),
                (21, value) => message.lite_topic = value.text()?,
                (22, value) => message.priority = Some(value.int32()?),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Converts a `Timestamp` to milliseconds, clamped to the range.
fn millis(bytes: &[u8]) -> Result<i64, Malformed> {
    let (seconds, nanos) = seconds_and_nanos(bytes)?;
    Ok(seconds.saturating_mul(1_000).saturating_add(i64::from(nanos) / 1_000_000))
}
