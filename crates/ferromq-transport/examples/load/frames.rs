//! Remoting frames that are encoded once and sent many times: only their opaque changes.
//!
//! Written for the load generator, so that its cost is negligible compared with the server's.

use std::fmt::Write;

/// The first opaque. All have ten digits, so that they can be replaced in place.
const FIRST_NUMBER: u32 = 1_000_000_000;
const NUMBER: &str = "\"opaque\":";
const RESERVED: &str = "\"opaque\":1000000000";

/// The form of a request's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// JSON, the default of Java's clients.
    Json,
    /// RocketMQ's binary form.
    Binary,
}

/// A request that is sent many times.
#[derive(Clone)]
pub struct Template {
    bytes: Vec<u8>,
    number_at: usize,
    header: Header,
}

impl Template {
    /// A request with these fields and this body.
    pub fn new(header: Header, code: i16, fields: &[(&str, &str)], body: &[u8]) -> Self {
        let (encoded, number_at) = match header {
            Header::Json => json(code, fields),
            Header::Binary => binary(code, fields),
        };
        let kind = if header == Header::Binary { 1 << 24 } else { 0 };
        let mut bytes = Vec::with_capacity(8 + encoded.len() + body.len());
        bytes.extend(((4 + encoded.len() + body.len()) as u32).to_be_bytes());
        bytes.extend((kind | encoded.len() as u32).to_be_bytes());
        bytes.extend(encoded);
        bytes.extend(body);
        Self { bytes, number_at: 8 + number_at, header }
    }

    /// Appends the request with this number as its opaque to `out`.
    pub fn write(&self, number: u32, out: &mut Vec<u8>) {
        let begin = out.len() + self.number_at;
        out.extend_from_slice(&self.bytes);
        let number = FIRST_NUMBER + number;
        let text = number.to_string();
        let (place, value): (_, &[u8]) = match self.header {
            Header::Json => (out.get_mut(begin..begin + 10), text.as_bytes()),
            Header::Binary => (out.get_mut(begin..begin + 4), &number.to_be_bytes()),
        };
        if let Some(place) = place {
            place.copy_from_slice(value);
        }
    }
}

fn json(code: i16, fields: &[(&str, &str)]) -> (Vec<u8>, usize) {
    let fields: serde_json::Map<String, serde_json::Value> =
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    let fields = serde_json::Value::Object(fields);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{{\"code\":{code},\"extFields\":{fields},\"flag\":0,\"language\":\"JAVA\",{RESERVED},\
         \"serializeTypeCurrentRPC\":\"JSON\",\"version\":513}}"
    );
    let number_at = text.rfind(RESERVED).map_or(0, |at| at + NUMBER.len());
    (text.into_bytes(), number_at)
}

fn binary(code: i16, fields: &[(&str, &str)]) -> (Vec<u8>, usize) {
    let mut out = Vec::new();
    out.extend(code.to_be_bytes());
    out.push(0);
    out.extend(513i16.to_be_bytes());
    let number_at = out.len();
    out.extend([0; 4]);
    out.extend([0; 4]);
    out.extend([0; 4]);
    let length_at = out.len();
    out.extend([0; 4]);
    for (name, value) in fields {
        out.extend((name.len() as i16).to_be_bytes());
        out.extend(name.as_bytes());
        out.extend((value.len() as i32).to_be_bytes());
        out.extend(value.as_bytes());
    }
    let length = (out.len() - length_at - 4) as i32;
    if let Some(place) = out.get_mut(length_at..length_at + 4) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    (out, number_at)
}

/// A response whose header is not decoded further.
pub struct Response<'a> {
    /// Response code.
    pub code: i32,
    /// Number of its request.
    pub number: u32,
    /// The bytes of the header.
    pub header: &'a [u8],
    /// The body.
    pub body: &'a [u8],
}

/// The first response in `bytes` and its length; `None` if it is incomplete.
pub fn response(bytes: &[u8]) -> Option<(Response<'_>, usize)> {
    let length = u32::from_be_bytes(*bytes.first_chunk::<4>()?) as usize;
    let frame = bytes.get(4..4 + length)?;
    let mark = u32::from_be_bytes(*frame.first_chunk::<4>()?);
    let header_length = (mark & 0x00FF_FFFF) as usize;
    let (header, body) = frame.get(4..)?.split_at_checked(header_length)?;
    let (code, number) = if mark >> 24 == 0 {
        (digits(header, b"\"code\":")? as i32, digits(header, NUMBER.as_bytes())? as u32)
    } else {
        let code = i16::from_be_bytes(*header.first_chunk::<2>()?);
        (i32::from(code), u32::from_be_bytes(*header.get(5..)?.first_chunk::<4>()?))
    };
    Some((Response { code, number: number.wrapping_sub(FIRST_NUMBER), header, body }, 4 + length))
}

/// A field of a JSON header, as a number.
pub fn field(header: &[u8], name: &str) -> Option<i64> {
    digits(header, format!("\"{name}\":\"").as_bytes())
}

/// A field of a JSON header, as text.
pub fn text<'a>(header: &'a [u8], name: &str) -> Option<&'a str> {
    let name = format!("\"{name}\":\"");
    let at = header.windows(name.len()).position(|part| part == name.as_bytes())? + name.len();
    let rest = header.get(at..)?;
    let end = rest.iter().position(|byte| *byte == b'"')?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

fn digits(text: &[u8], name: &[u8]) -> Option<i64> {
    let at = text.windows(name.len()).position(|part| part == name)? + name.len();
    let rest = text.get(at..)?;
    let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    std::str::from_utf8(rest.get(..end)?).ok()?.parse().ok()
}

/// The body of a batch: consecutive messages.
pub fn batch(count: usize, body: &[u8], properties: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..count {
        out.extend(((22 + body.len() + properties.len()) as u32).to_be_bytes());
        out.extend([0; 12]);
        out.extend((body.len() as u32).to_be_bytes());
        out.extend(body);
        out.extend((properties.len() as u16).to_be_bytes());
        out.extend(properties);
    }
    out
}

/// The number of records in the body of a pull's response.
pub fn records(mut body: &[u8]) -> u64 {
    let mut count = 0;
    while let Some(size) = body.first_chunk::<4>() {
        let Some(rest) = body.get((u32::from_be_bytes(*size) as usize).max(4)..) else { break };
        body = rest;
        count += 1;
    }
    count
}
