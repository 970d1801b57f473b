//! The headers of a message to send: tag, keys, properties and kind.

use thiserror::Error;

use super::{EncodedHeaders, entries, instant_len, put_instant, texts};
use ferromq_protocol::{
    compression::Algorithm,
    protobuf::{bytes_field_len, put_bytes_field, put_len_prefix, put_varint_field, varint_len},
};

// Field numbers of `SystemProperties`.
const MESSAGE_TYPE: u32 = 6;
const DELIVERY_TIMESTAMP: u32 = 11;
const MESSAGE_GROUP: u32 = 17;
const PRIORITY: u32 = 22;

/// Why a tag, a key, a property or a message group cannot be sent.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum IllegalHeader {
    /// A filter joins tags by `||`, so a tag cannot contain a bar. It cannot be blank.
    #[error("the tag {0:?} {1}")]
    Tag(String, &'static str),
    /// The record joins keys by spaces.
    #[error("the key {0:?} {1}")]
    Key(String, &'static str),
    /// The record separates properties by control characters.
    #[error("the property {0:?} {1}")]
    Property(String, &'static str),
    /// The record stores the group as a property.
    #[error("the message group {0:?} {1}")]
    Group(String, &'static str),
}

/// How a message is delivered.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum Kind {
    /// At once, in no particular order.
    #[default]
    Normal,
    /// In order with the other messages of its group.
    Fifo(String),
    /// Not before this time, in milliseconds since 1970.
    At(i64),
    /// Not before this many milliseconds after the send.
    After(u32),
    /// Before messages of lower priority.
    Priority(i32),
}

impl Kind {
    /// The number of its `MessageType`.
    const fn message_type(&self) -> u64 {
        match self {
            Self::Normal => 1,
            Self::Fifo(_) => 2,
            Self::At(_) | Self::After(_) => 3,
            Self::Priority(_) => 6,
        }
    }

    fn delivery_timestamp(&self, born_timestamp: i64) -> Option<i64> {
        match self {
            Self::At(millis) => Some(*millis),
            Self::After(millis) => Some(born_timestamp.saturating_add(i64::from(*millis))),
            Self::Normal | Self::Fifo(_) | Self::Priority(_) => None,
        }
    }

    /// Appends the fields of `SystemProperties` for this kind.
    pub(super) fn put(&self, out: &mut Vec<u8>, born_timestamp: i64) {
        put_varint_field(out, MESSAGE_TYPE, self.message_type());
        if let Some(millis) = self.delivery_timestamp(born_timestamp) {
            put_instant(out, DELIVERY_TIMESTAMP, millis);
        }
        match self {
            Self::Fifo(group) => put_bytes_field(out, MESSAGE_GROUP, group.as_bytes()),
            Self::Priority(priority) => {
                put_varint_field(out, PRIORITY, i64::from(*priority).cast_unsigned());
            }
            Self::Normal | Self::At(_) | Self::After(_) => {}
        }
    }

    /// Number of bytes that [`Self::put`] writes.
    pub(super) fn len(&self, born_timestamp: i64) -> usize {
        const TYPE_LEN: usize = 2;
        TYPE_LEN
            + match self {
                Self::Normal => 0,
                Self::Fifo(group) => bytes_field_len(MESSAGE_GROUP, group.len()),
                Self::Priority(priority) => 2 + varint_len(i64::from(*priority).cast_unsigned()),
                Self::At(_) | Self::After(_) => self
                    .delivery_timestamp(born_timestamp)
                    .map_or(0, |millis| instant_len(DELIVERY_TIMESTAMP, millis)),
            }
    }
}

const BLANK: &str = "is blank; leave it out instead";
const CONTROL: &str = "contains a control character, which RocketMQ's records use as a separator";
const BAR: &str = "contains a |, which separates tags in a filter";
const SPACE: &str = "contains white space, which separates keys in the record; give several keys as a list";

/// Checks a tag and appends it to system properties.
pub(super) fn put_tag(out: &mut Vec<u8>, tag: &str) -> Result<(), IllegalHeader> {
    let fail = |why| Err(IllegalHeader::Tag(tag.to_owned(), why));
    match tag {
        _ if tag.trim().is_empty() => return fail(BLANK),
        _ if tag.contains('|') => return fail(BAR),
        _ if tag.contains(char::is_control) => return fail(CONTROL),
        _ => put_bytes_field(out, 1, tag.as_bytes()),
    }
    Ok(())
}

/// Checks a key and appends it to system properties.
pub(super) fn put_key(out: &mut Vec<u8>, key: &str) -> Result<(), IllegalHeader> {
    let fail = |why| Err(IllegalHeader::Key(key.to_owned(), why));
    match key {
        _ if key.trim().is_empty() => return fail(BLANK),
        _ if key.contains(char::is_control) => return fail(CONTROL),
        _ if key.contains(char::is_whitespace) => return fail(SPACE),
        _ => put_bytes_field(out, 2, key.as_bytes()),
    }
    Ok(())
}

/// Checks a property and appends it to user properties.
pub(super) fn put_property(out: &mut Vec<u8>, name: &str, value: &str) -> Result<(), IllegalHeader> {
    let fail = |why| Err(IllegalHeader::Property(name.to_owned(), why));
    match name {
        _ if name.trim().is_empty() => return fail(BLANK),
        _ if name.contains(char::is_control) || value.contains(char::is_control) => return fail(CONTROL),
        _ => {}
    }
    let len = bytes_field_len(1, name.len()) + bytes_field_len(2, value.len());
    put_len_prefix(out, 2, len);
    put_bytes_field(out, 1, name.as_bytes());
    put_bytes_field(out, 2, value.as_bytes());
    Ok(())
}

/// Checks a message group.
pub(super) fn check_group(group: &str) -> Result<(), IllegalHeader> {
    let fail = |why| Err(IllegalHeader::Group(group.to_owned(), why));
    match group {
        _ if group.trim().is_empty() => fail(BLANK),
        _ if group.contains(char::is_control) => fail(CONTROL),
        _ => Ok(()),
    }
}

/// The headers of a message to send, encoded once.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Headers {
    user_properties: Vec<u8>,
    system_properties: Vec<u8>,
    kind: Kind,
    compression: Option<Algorithm>,
}

impl Headers {
    /// Checks and encodes a tag, keys and properties.
    pub fn new<'a>(
        tag: Option<&str>,
        keys: impl IntoIterator<Item = &'a str>,
        properties: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, IllegalHeader> {
        let mut headers = Self::default();
        if let Some(tag) = tag {
            put_tag(&mut headers.system_properties, tag)?;
        }
        for key in keys {
            put_key(&mut headers.system_properties, key)?;
        }
        for (name, value) in properties {
            put_property(&mut headers.user_properties, name, value)?;
        }
        Ok(headers)
    }

    /// Sets the kind, and checks a message group.
    pub fn of_kind(mut self, kind: Kind) -> Result<Self, IllegalHeader> {
        if let Kind::Fifo(group) = &kind {
            check_group(group)?;
        }
        self.kind = kind;
        Ok(self)
    }

    /// Says how the body is compressed.
    #[must_use]
    pub fn of_compression(mut self, algorithm: Algorithm) -> Self {
        self.compression = Some(algorithm);
        self
    }

    /// How the body is compressed.
    #[must_use]
    pub const fn compression(&self) -> Option<Algorithm> {
        self.compression
    }

    /// Adds properties. They replace those of the same names.
    ///
    /// # Errors
    /// [`IllegalHeader::Property`].
    pub fn with_properties<'a>(
        &self,
        added: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, IllegalHeader> {
        let added: Vec<_> = added.into_iter().collect();
        let mut properties = Vec::new();
        let kept = self.properties().filter(|(name, _)| added.iter().all(|(other, _)| other != name));
        for (name, value) in kept.chain(added.iter().copied()) {
            put_property(&mut properties, name, value)?;
        }
        Ok(Self { user_properties: properties, ..self.clone() })
    }

    pub(super) fn encoded(&self) -> EncodedHeaders<'_> {
        let Self { user_properties, system_properties, kind, compression } = self;
        EncodedHeaders { user_properties, system_properties, kind, compression: *compression }
    }

    /// How the message is delivered.
    #[must_use]
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The tag.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        texts(&self.system_properties, 1).next()
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        texts(&self.system_properties, 2)
    }

    /// The properties.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &str)> {
        entries(&self.user_properties)
    }

    /// Approximate size in a request, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.user_properties.len() + self.system_properties.len()
    }

    /// Returns whether there is no tag, no key and no property.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
