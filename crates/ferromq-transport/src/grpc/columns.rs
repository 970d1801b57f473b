//! Answers of PullMessage as the column buffers of Arrow.
//!
//! Pure: bytes of the stream in, buffers out (values, offsets, validity; little-endian, as Arrow lays them
//! out). It knows neither Arrow's types, which the caller puts round the buffers, nor how the bytes came.
//! Fields of a message the protocol does not carry are simply not here.

use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use thiserror::Error;

use super::wire::{Fields, Malformed, map_entry, seconds_and_nanos, take_varint};

/// A body may not grow beyond this when it is decompressed; RocketMQ's own messages end at 4 MiB.
pub const MAX_DECOMPRESSED: usize = 64 << 20;

/// `body_encoding` of the protocol: the body is compressed.
const GZIP: i32 = 2;

/// Why an answer is not rows.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnsError {
    /// The bytes break protobuf's rules.
    #[error("the answer is not a PullMessageResponse: {0}")]
    Malformed(&'static str),
    /// A compressed body is none, or larger than [`MAX_DECOMPRESSED`].
    #[error("the body of message {message_id:?} says GZIP, but {reason}")]
    Body {
        /// Which message.
        message_id: String,
        /// What is wrong with its body.
        reason: String,
    },
    /// A column of one answer holds at most 2 GiB.
    #[error("an answer of more than 2 GiB does not fit one batch")]
    TooLarge,
}

impl From<Malformed> for ColumnsError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed.0)
    }
}

/// The buffers of one column.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Buffers {
    /// How many rows are null.
    pub null_count: usize,
    /// One bit a row, least significant first; none where no row is null.
    pub validity: Option<Vec<u8>>,
    /// Numbers: values. Text and bytes: offsets, data. Lists of text: offsets, then the items' two.
    /// Maps of text: offsets, then the keys' two, then the values' two.
    pub data: Vec<Vec<u8>>,
}

/// What one PullMessage call answered.
#[derive(Debug, Default)]
pub struct Pulled {
    /// Rows in every column.
    pub rows: usize,
    /// The last status of the stream: code and message.
    pub status: Option<(i32, String)>,
    /// Where the next pull begins.
    pub next_offset: Option<i64>,
    /// Name and buffers of each column.
    pub columns: Vec<(&'static str, Buffers)>,
}

/// Decodes the messages of one PullMessage stream.
///
/// `packed`: each part is a sequence of length-prefixed responses, else one response. Rows at and after
/// queue offset `until` are left out.
///
/// # Errors
/// [`ColumnsError`] for bytes that are no responses, and for compressed bodies that do not decompress.
pub fn decode<'a>(
    parts: impl IntoIterator<Item = &'a [u8]>,
    packed: bool,
    until: i64,
) -> Result<Pulled, ColumnsError> {
    let mut pulled = Pulled::default();
    let mut table = Table::default();
    let mut row = Row::default();
    for mut part in parts {
        // Bodies are nearly all of it: one allocation of what is here anyway, instead of many that copy.
        table.body.data.reserve(part.len());
        if !packed {
            response(part, until, &mut pulled, &mut table, &mut row)?;
            continue;
        }
        while !part.is_empty() {
            let len = take_varint(&mut part)?;
            let len =
                usize::try_from(len).map_err(|_| Malformed("a response runs past the end of its packet"))?;
            let (head, tail) =
                part.split_at_checked(len).ok_or(Malformed("a response runs past the end of its packet"))?;
            part = tail;
            response(head, until, &mut pulled, &mut table, &mut row)?;
        }
    }
    pulled.rows = table.queue_offset.validity.len;
    pulled.columns = table.finish();
    Ok(pulled)
}

fn response<'a>(
    bytes: &'a [u8],
    until: i64,
    pulled: &mut Pulled,
    table: &mut Table,
    row: &mut Row<'a>,
) -> Result<(), ColumnsError> {
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => pulled.status = Some(status(value.bytes()?)?),
            (2, value) => {
                row.read(value.bytes()?)?;
                if row.queue_offset.is_none_or(|offset| offset < until) {
                    table.push(row)?;
                }
            }
            (3, value) => pulled.next_offset = Some(value.int64()?),
            _ => {}
        }
    }
    Ok(())
}

fn status(bytes: &[u8]) -> Result<(i32, String), Malformed> {
    let (mut code, mut message) = (0, "");
    for field in Fields::new(bytes) {
        match field? {
            (1, value) => code = value.int32()?,
            (2, value) => message = value.text()?,
            _ => {}
        }
    }
    Ok((code, message.to_owned()))
}

/// One message, as slices of the answer.
#[derive(Debug, Default)]
struct Row<'a> {
    topic: Option<&'a str>,
    queue_id: i32,
    queue_offset: Option<i64>,
    message_id: Option<&'a str>,
    keys: Vec<&'a str>,
    tag: Option<&'a str>,
    properties: Vec<(&'a str, &'a str)>,
    body: &'a [u8],
    encoding: i32,
    born_timestamp: Option<i64>,
    store_timestamp: Option<i64>,
    born_host: Option<&'a str>,
    store_host: Option<&'a str>,
    delivery_attempt: Option<i32>,
}

impl<'a> Row<'a> {
    fn read(&mut self, message: &'a [u8]) -> Result<(), Malformed> {
        let (mut keys, mut properties) =
            (std::mem::take(&mut self.keys), std::mem::take(&mut self.properties));
        keys.clear();
        properties.clear();
        *self = Self { keys, properties, ..Self::default() };
        for field in Fields::new(message) {
            match field? {
                (1, value) => self.read_topic(value.bytes()?)?,
                (2, value) => self.properties.push(map_entry(value.bytes()?)?),
                (3, value) => self.read_system_properties(value.bytes()?)?,
                (4, value) => self.body = value.bytes()?,
                _ => {}
            }
        }
        self.keep_last_of_equal_keys();
        Ok(())
    }

    fn read_topic(&mut self, resource: &'a [u8]) -> Result<(), Malformed> {
        for field in Fields::new(resource) {
            if let (2, value) = field? {
                self.topic = Some(value.text()?);
            }
        }
        Ok(())
    }

    fn read_system_properties(&mut self, properties: &'a [u8]) -> Result<(), Malformed> {
        for field in Fields::new(properties) {
            match field? {
                (1, value) => self.tag = Some(value.text()?),
                (2, value) => self.keys.push(value.text()?),
                (3, value) => self.message_id = Some(value.text()?),
                (5, value) => self.encoding = value.int32()?,
                (7, value) => self.born_timestamp = Some(micros(value.bytes()?)?),
                (8, value) => self.born_host = Some(value.text()?),
                (9, value) => self.store_timestamp = Some(micros(value.bytes()?)?),
                (10, value) => self.store_host = Some(value.text()?),
                (13, value) => self.queue_id = value.int32()?,
                (14, value) => self.queue_offset = Some(value.int64()?),
                (16, value) => self.delivery_attempt = Some(value.int32()?),
                _ => {}
            }
        }
        Ok(())
    }

    /// A map holds a key once; protobuf says the last one counts. Sorted, so that many keys stay cheap.
    fn keep_last_of_equal_keys(&mut self) {
        if self.properties.len() > 1 {
            self.properties.reverse();
            self.properties.sort_by_key(|(key, _)| *key); // stable: the last one now comes first
            self.properties.dedup_by_key(|(key, _)| *key);
        }
    }

    fn decompressed(&self) -> Result<Vec<u8>, ColumnsError> {
        let fail = |reason: String| ColumnsError::Body {
            message_id: self.message_id.unwrap_or_default().to_owned(),
            reason,
        };
        // RocketMQ's proxy says GZIP of every compressed body, also of zlib ones that its 4.x clients sent.
        let decoder: &mut dyn Read = if self.body.starts_with(&[0x1f, 0x8b]) {
            &mut MultiGzDecoder::new(self.body)
        } else {
            &mut ZlibDecoder::new(self.body)
        };
        let mut body = Vec::new();
        decoder
            .take(MAX_DECOMPRESSED as u64 + 1)
            .read_to_end(&mut body)
            .map_err(|error| fail(error.to_string()))?;
        if body.len() > MAX_DECOMPRESSED {
            return Err(fail(format!("it is larger than {MAX_DECOMPRESSED} bytes when decompressed")));
        }
        Ok(body)
    }
}

/// `google.protobuf.Timestamp` as microseconds, Spark's resolution.
fn micros(bytes: &[u8]) -> Result<i64, Malformed> {
    let (seconds, nanos) = seconds_and_nanos(bytes)?;
    seconds
        .checked_mul(1_000_000)
        .and_then(|micros| micros.checked_add(i64::from(nanos / 1000)))
        .ok_or(Malformed("a timestamp is out of range"))
}

/// The columns while they grow.
#[derive(Debug, Default)]
struct Table {
    topic: Texts,
    queue_id: Numbers,
    queue_offset: Numbers,
    message_id: Texts,
    keys: Lists,
    tag: Texts,
    properties: Maps,
    body: Texts,
    born_timestamp: Numbers,
    store_timestamp: Numbers,
    born_host: Texts,
    store_host: Texts,
    reconsume_times: Numbers,
}

impl Table {
    fn push(&mut self, row: &Row<'_>) -> Result<(), ColumnsError> {
        self.topic.push(row.topic.map(str::as_bytes))?;
        self.queue_id.push(Some(row.queue_id.to_le_bytes()));
        self.queue_offset.push(row.queue_offset.map(i64::to_le_bytes));
        self.message_id.push(row.message_id.map(str::as_bytes))?;
        self.keys.push(&row.keys)?;
        self.tag.push(row.tag.map(str::as_bytes))?;
        self.properties.push(&row.properties)?;
        if row.encoding == GZIP {
            self.body.push(Some(&row.decompressed()?))?;
        } else {
            self.body.push(Some(row.body))?;
        }
        self.born_timestamp.push(row.born_timestamp.map(i64::to_le_bytes));
        self.store_timestamp.push(row.store_timestamp.map(i64::to_le_bytes));
        self.born_host.push(row.born_host.map(str::as_bytes))?;
        self.store_host.push(row.store_host.map(str::as_bytes))?;
        // The first delivery is attempt 1 and has been consumed again 0 times.
        let again = row.delivery_attempt.map(|attempt| attempt.saturating_sub(1).max(0));
        self.reconsume_times.push(again.map(i32::to_le_bytes));
        Ok(())
    }

    fn finish(self) -> Vec<(&'static str, Buffers)> {
        vec![
            ("topic", self.topic.finish()),
            ("queue_id", self.queue_id.finish()),
            ("queue_offset", self.queue_offset.finish()),
            ("message_id", self.message_id.finish()),
            ("keys", self.keys.finish()),
            ("tag", self.tag.finish()),
            ("properties", self.properties.finish()),
            ("body", self.body.finish()),
            ("born_timestamp", self.born_timestamp.finish()),
            ("store_timestamp", self.store_timestamp.finish()),
            ("born_host", self.born_host.finish()),
            ("store_host", self.store_host.finish()),
            ("reconsume_times", self.reconsume_times.finish()),
        ]
    }
}

/// Which rows of a column are there.
#[derive(Debug, Default)]
struct Validity {
    bits: Vec<u8>,
    len: usize,
    nulls: usize,
}

impl Validity {
    fn push(&mut self, valid: bool) {
        if self.len.is_multiple_of(8) {
            self.bits.push(0);
        }
        if valid {
            if let Some(last) = self.bits.last_mut() {
                *last |= 1 << (self.len % 8);
            }
        } else {
            self.nulls += 1;
        }
        self.len += 1;
    }

    fn finish(self, data: Vec<Vec<u8>>) -> Buffers {
        Buffers { null_count: self.nulls, validity: (self.nulls > 0).then_some(self.bits), data }
    }
}

/// A column of numbers of one width; a null holds zeros.
#[derive(Debug, Default)]
struct Numbers {
    values: Vec<u8>,
    validity: Validity,
}

impl Numbers {
    fn push<const N: usize>(&mut self, value: Option<[u8; N]>) {
        self.values.extend_from_slice(&value.unwrap_or([0; N]));
        self.validity.push(value.is_some());
    }

    fn finish(self) -> Buffers {
        self.validity.finish(vec![self.values])
    }
}

/// Arrow's 32-bit offsets: one more than items, the first is 0.
#[derive(Debug)]
struct Offsets(Vec<u8>);

impl Default for Offsets {
    fn default() -> Self {
        Self(0i32.to_le_bytes().to_vec())
    }
}

impl Offsets {
    fn push(&mut self, end: usize) -> Result<(), ColumnsError> {
        let end = i32::try_from(end).map_err(|_| ColumnsError::TooLarge)?;
        self.0.extend_from_slice(&end.to_le_bytes());
        Ok(())
    }
}

/// A column of text or bytes.
#[derive(Debug, Default)]
struct Texts {
    offsets: Offsets,
    data: Vec<u8>,
    validity: Validity,
}

impl Texts {
    fn push(&mut self, value: Option<&[u8]>) -> Result<(), ColumnsError> {
        self.data.extend_from_slice(value.unwrap_or_default());
        self.validity.push(value.is_some());
        self.offsets.push(self.data.len())
    }

    fn finish(self) -> Buffers {
        self.validity.finish(vec![self.offsets.0, self.data])
    }
}

/// A column of lists of text; a row without items is an empty list.
#[derive(Debug, Default)]
struct Lists {
    offsets: Offsets,
    items: Texts,
}

impl Lists {
    fn push(&mut self, items: &[&str]) -> Result<(), ColumnsError> {
        for item in items {
            self.items.push(Some(item.as_bytes()))?;
        }
        self.offsets.push(self.items.validity.len)
    }

    fn finish(self) -> Buffers {
        Buffers { data: vec![self.offsets.0, self.items.offsets.0, self.items.data], ..Buffers::default() }
    }
}

/// A column of maps from text to text; a row without entries is an empty map.
#[derive(Debug, Default)]
struct Maps {
    offsets: Offsets,
    keys: Texts,
    values: Texts,
}

impl Maps {
    fn push(&mut self, entries: &[(&str, &str)]) -> Result<(), ColumnsError> {
        for (key, value) in entries {
            self.keys.push(Some(key.as_bytes()))?;
            self.values.push(Some(value.as_bytes()))?;
        }
        self.offsets.push(self.keys.validity.len)
    }

    fn finish(self) -> Buffers {
        let data = vec![
            self.offsets.0,
            self.keys.offsets.0,
            self.keys.data,
            self.values.offsets.0,
            self.values.data,
        ];
        Buffers { data, ..Buffers::default() }
    }
}
