//! The JSON form of a header, written and read as Java's fastjson does.
//!
//! Members: `code`, `language` (a name), `version`, `opaque`, `flag`, `remark`, `extFields` (names and strings) and
//! `serializeTypeCurrentRPC`, which every client writes and none reads. Clients in other languages also send numbers as
//! strings, strings as numbers, and unknown members.

use std::fmt::{self, Write};

use bytes::{BufMut, BytesMut};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
    value::{MapAccessDeserializer, SeqAccessDeserializer},
};
use serde_json::Value;

use super::{Fields, Language, RemotingCommand};
use crate::ProtocolError;

/// Appends the header. As in Java, members are in alphabetical order and absent ones are left out.
pub(super) fn encode(command: &RemotingCommand, out: &mut BytesMut) {
    // Writing to a growing buffer cannot fail.
    let _ = write!(out, "{{\"code\":{}", command.code);
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
    let _ = write!(out, ",\"flag\":{flag},\"language\":\"{language}\",\"opaque\":{opaque}");
    if let Some(remark) = &command.remark {
        out.put_slice(b",\"remark\":");
        put_text(out, remark);
    }
    let _ = write!(out, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{}}}", command.version);
}

fn put_text(out: &mut BytesMut, text: &str) {
    // Every string has a JSON form.
    let _ = serde_json::to_writer(out.writer(), text);
}

/// Decodes a header.
pub(super) fn decode(header: &[u8]) -> Result<RemotingCommand, ProtocolError> {
    // Java replaces invalid UTF-8 before it parses; such a byte in a remark must not close the connection.
    let text = String::from_utf8_lossy(header);
    let mut json = serde_json::Deserializer::from_str(&text);
    let command =
        json.deserialize_map(HeaderVisitor(header.len())).and_then(|command| json.end().map(|()| command));
    command.map_err(|_| ProtocolError::Malformed("the header is not the JSON object of a remoting command"))
}

/// Reads member by member, so that thousands of unknown members cost no memory. Holds the header's length.
struct HeaderVisitor(usize);

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RemotingCommand;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a remoting header")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RemotingCommand, A::Error> {
        let mut command = RemotingCommand { language: Language::JAVA, ..RemotingCommand::default() };
        while let Some(member) = map.next_key::<Member>()? {
            match member {
                Member::Code => command.code = number(&map.next_value()?)?,
                Member::Version => command.version = number(&map.next_value()?)?,
                Member::Opaque => command.opaque = number(&map.next_value()?)?,
                Member::Flag => command.flag = number(&map.next_value()?)?,
                Member::Language => {
                    map.next_value_seed(TextSeed(|text: Option<&str>| command.language = language(text)))?;
                }
                Member::Remark => {
                    map.next_value_seed(TextSeed(|text: Option<&str>| {
                        command.remark = text.map(str::to_owned)
                    }))?;
                }
                Member::Fields => {
                    command.fields = Fields::default();
                    map.next_value_seed(ExtFields { header_length: self.0, fields: &mut command.fields })?;
                }
                Member::Unknown => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(command)
    }
}

/// A member of the header.
enum Member {
    Code,
    Version,
    Opaque,
    Flag,
    Language,
    Remark,
    Fields,
    Unknown,
}

impl<'de> Deserialize<'de> for Member {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Member;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member's name")
            }

            fn visit_str<E>(self, name: &str) -> Result<Member, E> {
                Ok(match name {
                    "code" => Member::Code,
                    "version" => Member::Version,
                    "opaque" => Member::Opaque,
                    "flag" => Member::Flag,
                    "language" => Member::Language,
                    "remark" => Member::Remark,
                    "extFields" => Member::Fields,
                    _ => Member::Unknown,
                })
            }
        }
        json.deserialize_str(Name)
    }
}

/// Reads `extFields` in the order written. Null or an empty string instead of the object means no fields.
struct ExtFields<'a> {
    header_length: usize,
    fields: &'a mut Fields,
}

impl<'de> DeserializeSeed<'de> for ExtFields<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ExtFields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        if text.is_empty() { Ok(()) } else { Err(E::custom("extFields is a string")) }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.fields.reserve_header(self.header_length);
        loop {
            let mut name = None;
            let fields = &mut *self.fields;
            if map
                .next_key_seed(TextSeed(|text: Option<&str>| name = text.map(|text| fields.open(text))))?
                .is_none()
            {
                return Ok(());
            }
            let Some(name) = name else { continue };
            map.next_value_seed(TextSeed(|text: Option<&str>| fields.close(name, text)))?;
        }
    }
}

/// Passes on the string to which fastjson converts a value for a `String` in Java; `None` for null.
struct TextSeed<F>(F);

impl<'de, F: FnOnce(Option<&str>)> DeserializeSeed<'de> for TextSeed<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<F: FnOnce(Option<&str>)> TextSeed<F> {
    fn pass_json(self, value: impl Into<Value>) {
        (self.0)(Some(&value.into().to_string()));
    }
}

impl<'de, F: FnOnce(Option<&str>)> Visitor<'de> for TextSeed<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        (self.0)(Some(text));
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        (self.0)(None);
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.pass_json(value);
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.pass_json(value);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.pass_json(value);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.pass_json(value);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(list)).map(|list| self.pass_json(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        Value::deserialize(MapAccessDeserializer::new(map)).map(|map| self.pass_json(map))
    }
}

/// The number to which fastjson converts a value for an `int` in Java.
fn number<E: Error>(value: &Value) -> Result<i32, E> {
    let wide = match value {
        Value::Null => Some(0),
        Value::Bool(yes) => Some(i64::from(*yes)),
        Value::Number(number) => number.as_i64().or_else(|| truncate(number.as_f64()?)),
        Value::String(text) if text.is_empty() || text == "null" => Some(0),
        Value::String(text) => text.parse().ok(),
        Value::Array(_) | Value::Object(_) => None,
    };
    wide.and_then(|wide| i32::try_from(wide).ok()).ok_or_else(|| E::custom("not a 32-bit number"))
}

/// Truncates a float as Java's cast does. The caller checks the range.
#[allow(clippy::cast_possible_truncation)]
fn truncate(number: f64) -> Option<i64> {
    number.is_finite().then_some(number as i64)
}

/// The language of a name or a number.
fn language(text: Option<&str>) -> Language {
    let text = text.unwrap_or_default();
    text.parse().map_or_else(|_| Language::from_name(text), Language)
}
