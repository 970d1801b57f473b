//! Protobuf's wire format, read and written in place.
//!
//! For messages with bodies, which are too many to build an object for each: the functions here read fields as slices
//! of the request and write them straight into the response. The small messages use prost. Source of the format:
//! protobuf.dev, "Encoding".

/// The value of a field on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// int32, int64, uint32, uint64, bool, enum.
    Varint(u64),
    /// fixed64, sfixed64, double.
    Fixed64(u64),
    /// string, bytes, embedded message, packed repeated.
    Bytes(&'a [u8]),
    /// fixed32, sfixed32, float.
    Fixed32(u32),
}

impl<'a> Value<'a> {
    /// The bytes of a length-delimited field.
    pub fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed("a length-delimited field has another wire type")),
        }
    }

    /// The text of a string field.
    pub fn text(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a string field is not UTF-8"))
    }

    /// The number in a varint field.
    pub fn varint(self) -> Result<u64, Malformed> {
        match self {
            Self::Varint(value) => Ok(value),
            _ => Err(Malformed("a varint field has another wire type")),
        }
    }

    /// The number in an int32 or enum field; the upper bits are dropped, as protobuf does.
    pub fn int32(self) -> Result<i32, Malformed> {
        #[allow(clippy::cast_possible_truncation)] // protobuf's own rule for int32
        self.varint().map(|value| value as i32)
    }

    /// The number in an int64 field.
    pub fn int64(self) -> Result<i64, Malformed> {
        self.varint().map(u64::cast_signed)
    }
}

/// The protobuf rule that malformed bytes break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// Iterates over the fields of a message.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Starts at the first field of `message`.
    #[must_use]
    pub fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) =
            self.rest.split_at_checked(len).ok_or(Malformed("a field runs past the end of its message"))?;
        self.rest = tail;
        Ok(head)
    }

    #[inline]
    fn field(&mut self) -> Result<(u32, Value<'a>), Malformed> {
        let key = take_varint(&mut self.rest)?;
        let number = u32::try_from(key >> 3).map_err(|_| Malformed("a field number is out of range"))?;
        if number == 0 {
            return Err(Malformed("field number 0"));
        }
        let value = match key & 7 {
            0 => Value::Varint(take_varint(&mut self.rest)?),
            1 => Value::Fixed64(u64::from_le_bytes(array(self.take(8)?)?)),
            2 => {
                let len = take_varint(&mut self.rest)?;
                let len = usize::try_from(len)
                    .map_err(|_| Malformed("a field runs past the end of its message"))?;
                Value::Bytes(self.take(len)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(array(self.take(4)?)?)),
            _ => return Err(Malformed("an unknown wire type")),
        };
        Ok((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Malformed> {
    bytes.try_into().map_err(|_| Malformed("a field runs past the end of its message"))
}

/// Returns key and value of an entry of a `map<string, string>`.
pub fn map_entry(entry: &[u8]) -> Result<(&str, &str), Malformed> {
    let (mut key, mut text) = ("", "");
    for field in Fields::new(entry) {
        match field? {
            (1, value) => key = value.text()?,
            (2, value) => text = value.text()?,
            _ => {}
        }
    }
    Ok((key, text))
}

/// Returns seconds and nanoseconds of a `google.protobuf.Timestamp` or `Duration`.
pub fn seconds_and_nanos(time: &[u8]) -> Result<(i64, i32), Malformed> {
    let (mut seconds, mut nanos) = (0, 0);
    for field in Fields::new(time) {
        match field? {
            (1, value) => seconds = value.int64()?,
            (2, value) => nanos = value.int32()?,
            _ => {}
        }
    }
    Ok((seconds, nanos))
}

/// Takes one varint from the front of `rest`.
#[inline]
pub fn take_varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    // Nearly all keys and lengths take one byte.
    if let Some((&byte, tail)) = rest.split_first()
        && byte < 0x80
    {
        *rest = tail;
        return Ok(u64::from(byte));
    }
    take_long_varint(rest)
}

fn take_long_varint(rest: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0u64;
    for (index, &byte) in rest.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            *rest = rest.get(index + 1..).unwrap_or_default();
            return Ok(value);
        }
    }
    Err(Malformed("a varint has no end"))
}

/// Number of bytes that [`put_varint`] writes for `value`.
#[must_use]
pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// ferromq's own field of a `SendResultEntry`: the queue of a message, if the broker chose another one than the client.
/// Other clients skip it.
pub const CHOSEN_QUEUE: u32 = 1000;
/// ferromq's own fields of a `SendMessageResponse`, for clients that ask for them: what the answer promises
/// ([`WRITTEN`] or [`FLUSHED`]); the broker's address as in an offset message id; and a physical offset for each
/// message (packed fixed64), [`UNKNOWN_OFFSET`] for a duplicate.
pub const DURABILITY: u32 = 1001;
/// See [`DURABILITY`].
pub const STORE_HOST: u32 = 1002;
/// See [`DURABILITY`].
pub const PHYSICAL_OFFSETS: u32 = 1003;
/// A value of [`DURABILITY`]: the messages are in the log, in memory.
pub const WRITTEN: u64 = 1;
/// A value of [`DURABILITY`]: the messages are on disk.
pub const FLUSHED: u64 = 2;
/// A value of [`PHYSICAL_OFFSETS`].
pub const UNKNOWN_OFFSET: u64 = u64::MAX;
/// The field of `SystemProperties` for a compressed body that is not zlib's: RocketMQ's number of the algorithm (int32).
pub const COMPRESSION: u32 = 1001;

/// Appends a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a varint field. Pass an int32 or int64 through `i64::cast_unsigned`.
pub fn put_varint_field(out: &mut Vec<u8>, number: u32, value: u64) {
    put_varint(out, u64::from(number) << 3);
    put_varint(out, value);
}

/// Appends a field of type string, bytes or (encoded) message.
pub fn put_bytes_field(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_len_prefix(out, number, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends tag and length of a length-delimited field; `len` bytes must follow.
pub fn put_len_prefix(out: &mut Vec<u8>, number: u32, len: usize) {
    put_varint(out, u64::from(number) << 3 | 2);
    put_varint(out, len as u64);
}

/// Number of bytes that [`put_bytes_field`] writes.
#[must_use]
pub fn bytes_field_len(number: u32, len: usize) -> usize {
    varint_len(u64::from(number) << 3) + varint_len(len as u64) + len
}
