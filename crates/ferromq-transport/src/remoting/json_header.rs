//! The JSON form of a header, written and read as Java's fastjson does.
//!
//! Members: `code`, `language` (a name), `version`, `opaque`, `flag`, `remark`, `extFields` (names and
//! texts) and `serializeTypeCurrentRPC`, which everybody writes and nobody reads. Clients in other
//! languages are loose about types: numbers come as texts and texts as numbers, unknown members are common.

use std::fmt;

use bytes::{BufMut, BytesMut};
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::{Language, RemotingCommand};
use crate::TransportError;

/// Appends the header. Members come in alphabetical order and absent ones are left out, as from Java.
pub(super) fn encode(command: &RemotingCommand, out: &mut BytesMut) {
    out.put_slice(format!("{{\"code\":{}", command.code).as_bytes());
    if !command.fields.is_empty() {
        out.put_slice(b",\"extFields\":{");
        for (index, (name, value)) in command.fields.iter().enumerate() {
            if index > 0 {
                out.put_u8(b',');
            }
            put_text(out, name);
            out.put_u8(b':');
            put_text(out, value);
        }
        out.put_u8(b'}');
    }
    let (flag, language, opaque) = (command.flag, command.language.name(), command.opaque);
    out.put_slice(format!(",\"flag\":{flag},\"language\":\"{language}\",\"opaque\":{opaque}").as_bytes());
    if let Some(remark) = &command.remark {
        out.put_slice(b",\"remark\":");
        put_text(out, remark);
    }
    out.put_slice(
        format!(",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{}}}", command.version).as_bytes(),
    );
}

fn put_text(out: &mut BytesMut, text: &str) {
    out.put_slice(Value::from(text).to_string().as_bytes());
}

/// Decodes a header.
pub(super) fn decode(header: &[u8]) -> Result<RemotingCommand, TransportError> {
    // Java replaces bytes that are no UTF-8 before it parses; a lone one in a remark is no reason to hang up.
    let text = String::from_utf8_lossy(header);
    let mut json = serde_json::Deserializer::from_str(&text);
    let command = json.deserialize_map(Header).and_then(|command| json.end().map(|()| command));
    command.map_err(|_| TransportError::Malformed("the header is no JSON object of a remoting command"))
}

/// Reads member by member, so that a header of thousands of unknown members costs no memory.
struct Header;

impl<'de> Visitor<'de> for Header {
    type Value = RemotingCommand;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a remoting header")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RemotingCommand, A::Error> {
        let mut command = RemotingCommand { language: Language::JAVA, ..RemotingCommand::default() };
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "code" => command.code = number(&map.next_value()?)?,
                "version" => command.version = number(&map.next_value()?)?,
                "opaque" => command.opaque = number(&map.next_value()?)?,
                "flag" => command.flag = number(&map.next_value()?)?,
                "language" => command.language = language(&map.next_value()?),
                "remark" => command.remark = text(map.next_value()?),
                "extFields" => command.fields = map.next_value::<Fields>()?.0,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(command)
    }
}

/// `extFields`, in the order written. A null and an empty text in place of the object are no fields.
struct Fields(Vec<(String, String)>);

impl<'de> serde::Deserialize<'de> for Fields {
    fn deserialize<D: serde::Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts")
    }

    fn visit_unit<E>(self) -> Result<Fields, E> {
        Ok(Fields(Vec::new()))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Fields, E> {
        if text.is_empty() { Ok(Fields(Vec::new())) } else { Err(E::custom("extFields is a text")) }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if let Some(value) = text(value) {
                fields.push((name, value));
            }
        }
        Ok(Fields(fields))
    }
}

/// What fastjson makes of a value where Java wants a text.
fn text(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

/// What fastjson makes of a value where Java wants an `int`.
fn number<E: serde::de::Error>(value: &Value) -> Result<i32, E> {
    let wide = match value {
        Value::Null => Some(0),
        Value::Bool(yes) => Some(i64::from(*yes)),
        Value::Number(number) => number.as_i64().or_else(|| whole(number.as_f64()?)),
        Value::String(text) if text.is_empty() || text == "null" => Some(0),
        Value::String(text) => text.parse().ok(),
        Value::Array(_) | Value::Object(_) => None,
    };
    wide.and_then(|wide| i32::try_from(wide).ok()).ok_or_else(|| E::custom("no 32-bit number"))
}

/// A float is cut to an integer as Java's cast does; the range check of the caller makes it safe.
#[allow(clippy::cast_possible_truncation)]
fn whole(number: f64) -> Option<i64> {
    number.is_finite().then_some(number as i64)
}

fn language(value: &Value) -> Language {
    match value {
        Value::String(name) => Language::from_name(name),
        Value::Number(number) => {
            number.as_u64().and_then(|n| u8::try_from(n).ok()).map_or(Language::OTHER, Language)
        }
        _ => Language::OTHER,
    }
}
