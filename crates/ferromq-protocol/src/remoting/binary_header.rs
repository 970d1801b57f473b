//! The binary form of a header.
//!
//! ```text
//! code: i16 | language: u8 | version: i16 | opaque: i32 | flag: i32
//! | remark length: i32 | remark | fields length: i32 | fields
//! field = name length: i16 | name | value length: i32 | value               (big-endian, UTF-8)
//! ```
//! Codes from 32,768 on (pop, acknowledge) do not fit, see [`fits`]; the codec then uses JSON.

use std::borrow::Cow;

use crate::reader::Reader;
use bytes::{BufMut, BytesMut};

use super::{Fields, HeaderForm, Language, RemotingCommand};
use crate::ProtocolError;

/// A field has at least its two lengths.
const MIN_FIELD_BYTES: usize = 6;

/// Returns whether code, version and field names fit into this form.
pub(super) fn fits(command: &RemotingCommand) -> bool {
    i16::try_from(command.code).is_ok()
        && i16::try_from(command.version).is_ok()
        && command.fields.iter().all(|(name, _)| i16::try_from(name.len()).is_ok())
}

/// Appends the header. The caller must have checked [`fits`].
pub(super) fn encode(command: &RemotingCommand, out: &mut BytesMut) {
    out.put_i16(i16::try_from(command.code).unwrap_or_default());
    out.put_u8(command.language.0);
    out.put_i16(i16::try_from(command.version).unwrap_or_default());
    out.put_i32(command.opaque);
    out.put_i32(command.flag);
    put_prefixed(out, command.remark.as_deref().unwrap_or_default());
    let size: usize = command.fields.iter().map(|(n, v)| MIN_FIELD_BYTES + n.len() + v.len()).sum();
    out.put_u32(u32::try_from(size).unwrap_or(u32::MAX));
    for (name, value) in &command.fields {
        out.put_i16(i16::try_from(name.len()).unwrap_or_default());
        out.put_slice(name.as_bytes());
        put_prefixed(out, value);
    }
}

/// Appends a text after its length. The codec's limit on the header rejects lengths that do not fit.
fn put_prefixed(out: &mut BytesMut, text: &str) {
    out.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
    out.put_slice(text.as_bytes());
}

/// Decodes a header. Ignores bytes after the fields, as Java does.
pub(super) fn decode(header: &[u8]) -> Result<RemotingCommand, ProtocolError> {
    let mut reader = Reader::new(header);
    let code = i32::from(reader.i16().ok_or(TOO_SHORT)?);
    let language = Language(reader.u8().ok_or(TOO_SHORT)?);
    let version = i32::from(reader.i16().ok_or(TOO_SHORT)?);
    let opaque = reader.i32().ok_or(TOO_SHORT)?;
    let flag = reader.i32().ok_or(TOO_SHORT)?;
    let remark = text(take_prefixed(&mut reader)?).into_owned();
    let entries = take_prefixed(&mut reader)?;
    let mut fields = Fields::default();
    if !entries.is_empty() {
        fields.reserve_header(entries.len());
    }
    let mut entries = Reader::new(entries);
    while !entries.is_empty() {
        let name_length = usize::try_from(entries.i16().ok_or(TOO_SHORT)?).map_err(|_| NEGATIVE)?;
        let name = text(entries.take(name_length).ok_or(TOO_SHORT)?);
        let value = text(take_prefixed(&mut entries)?);
        // Java reads an empty name as null, which no header class can request.
        if !name.is_empty() {
            fields.push(&name, &value);
        }
    }
    Ok(RemotingCommand {
        code,
        language,
        version,
        opaque,
        flag,
        // Java writes an absent and an empty remark alike, and reads both as null.
        remark: (!remark.is_empty()).then_some(remark),
        fields,
        header_form: HeaderForm::Binary,
        ..RemotingCommand::default()
    })
}

const TOO_SHORT: ProtocolError = ProtocolError::Malformed("the binary header ends too early");
const NEGATIVE: ProtocolError = ProtocolError::Malformed("a length in the binary header is negative");

fn length(reader: &mut Reader<'_>) -> Result<usize, ProtocolError> {
    usize::try_from(reader.i32().ok_or(TOO_SHORT)?).map_err(|_| NEGATIVE)
}

/// Reads a length and the bytes after it.
fn take_prefixed<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], ProtocolError> {
    let length = length(reader)?;
    reader.take(length).ok_or(TOO_SHORT)
}

/// Replaces invalid UTF-8, as Java does.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
