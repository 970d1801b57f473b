//! Messages to send, parsed in place: what lies where in a `SendMessageRequest`.
//!
//! No object a message but this one, whose fields are slices of the request. What is allowed is `send`'s
//! business.

use std::ops::Range;

use crate::{
    hot::batches::OF_MESSAGE,
    protobuf::{Fields, Malformed, map_entry, seconds_and_nanos},
};

/// More messages than this in a request are refused: an empty one takes two bytes of the request, but many
/// more here.
pub const MAX_MESSAGES: usize = 1 << 16;
/// The same of keys and user properties of all messages together.
pub const MAX_ALL_TEXTS: usize = 1 << 19;
/// Of keys, and of user properties, of one message at most one more than this is kept: enough to refuse it.
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
    /// Where its keys lie in [`SendRequest::keys`].
    pub keys: Range<usize>,
    /// Where its user properties lie in [`SendRequest::properties`].
    pub properties: Range<usize>,
    /// The producer's id of the message.
    pub message_id: &'a str,
    /// `Encoding`.
    pub body_encoding: i32,
    /// `MessageType`.
    pub message_type: i32,
    /// Milliseconds since 1970, where given.
    pub born_timestamp: Option<i64>,
    /// The producer's host, as it calls itself.
    pub born_host: &'a str,
    /// When it is to be delivered, in milliseconds since 1970, where given.
    pub delivery_timestamp: Option<i64>,
    /// The queue, where the producer chose one: a field that is there counts even where it is 0.
    pub queue_id: Option<i32>,
    /// The message group.
    pub message_group: &'a str,
    /// The trace context.
    pub trace_context: &'a str,
    /// Seconds until the check-back of its transaction, where given.
    pub recovery_seconds: Option<i64>,
    /// The lite topic.
    pub lite_topic: &'a str,
    /// The priority, where given.
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

const TOO_MANY: Malformed = Malformed("more than 65,536 messages in a request");

impl<'a> SendRequest<'a> {
    /// How many messages an encoded request has; nothing of them is looked at yet.
    ///
    /// # Errors
    /// What [`Self::parse`] finds wrong with the request itself.
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

    /// The memory that `count` messages take beside their bytes until their request is answered, without their keys and
    /// properties.
    #[must_use]
    pub fn memory_of_messages(count: usize) -> usize {
        count * OF_MESSAGE
    }

    /// The topic of the first message of an encoded request; empty if the request has no message.
    ///
    /// # Errors
    /// What [`Self::parse`] finds wrong with that message.
    pub fn first_topic(request: &[u8]) -> Result<&str, Malformed> {
        for field in Fields::new(request) {
            if let (1, value) = field? {
                return Ok(SendRequest::default().message(value.bytes()?)?.topic);
            }
        }
        Ok("")
    }

    /// The memory that keys and properties take beside the bytes of the request.
    #[must_use]
    pub fn memory_of_texts(&self) -> usize {
        self.keys.capacity() * size_of::<&str>() + self.properties.capacity() * size_of::<(&str, &str)>()
    }

    /// Parses an encoded request. Fields it does not know are skipped; a field that comes twice counts as
    /// protobuf says: the last number or text, embedded messages merged.
    pub fn parse(request: &'a [u8]) -> Result<Self, Malformed> {
        let mut parsed = Self::default();
        for field in Fields::new(request) {
            if let (1, value) = field? {
                if parsed.messages.len() == MAX_MESSAGES {
                    return Err(TOO_MANY);
                }
                if parsed.keys.len() + parsed.properties.len() > MAX_ALL_TEXTS {
                    return Err(Malformed("more than 524,288 keys and user properties in a request"));
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

/// A `Timestamp` in milliseconds; what does not fit is cut to the ends of the range.
fn millis(bytes: &[u8]) -> Result<i64, Malformed> {
    let (seconds, nanos) = seconds_and_nanos(bytes)?;
    Ok(seconds.saturating_mul(1_000).saturating_add(i64::from(nanos) / 1_000_000))
}
