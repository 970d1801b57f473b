//! The JSON form of a header, written and read as Java's fastjson does.
//!
//! Members: `code`, `language` (a name), `version`, `opaque`, `flag`, `remark`, `extFields` (names and
//! texts) and `serializeTypeCurrentRPC`, which every client writes and none reads. Clients in other
//! languages are loose about types: numbers come as texts and texts as numbers, unknown members are common.

use std::fmt::{self, Write};

use bytes::{BufMut, BytesMut};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
    value::{MapAccessDeserializer, SeqAccessDeserializer},
};
use serde_json::Value;

use super::{Fields, Language, RemotingCommand};
use crate::TransportError;

/// Appends the header. Members come in alphabetical order and absent ones are left out, as from Java.
pub(super) fn encode(command: &RemotingCommand, out: &mut BytesMut) {
    // A buffer that grows takes whatever is written to it.
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
    // A text always has a JSON form.
    let _ = serde_json::to_writer(out.writer(), text);
}

/// Decodes a header.
pub(super) fn decode(header: &[u8]) -> Result<RemotingCommand, TransportError> {
    // Java replaces bytes that are no UTF-8 before it parses; a lone one in a remark is no reason to hang up.
    let text = String::from_utf8_lossy(header);
    let mut json = serde_json::Deserializer::from_str(&text);
    let command = json.deserialize_map(Header(header.len())).and_then(|command| json.end().map(|()| command));
    command.map_err(|_| TransportError::Malformed("the header is no JSON object of a remoting command"))
}

/// Reads member by member, so that a header of thousands of unknown members costs no memory. Has the
/// header's length.
struct Header(usize);

impl<'de> Visitor<'de> for Header {
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
                    map.next_value_seed(Text(|text: Option<&str>| command.language = language(text)))?;
                }
                Member::Remark => {
                    map.next_value_seed(Text(|text: Option<&str>| command.remark = text.map(str::to_owned)))?;
                }
                Member::Fields => {
                    command.fields = Fields::default();
                    map.next_value_seed(AllFields { expected: self.0, fields: &mut command.fields })?;
                }
                Member::Unknown => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(command)
    }
}

/// The name of a member.
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

/// Reads `extFields` in the order written. A null and an empty text in place of the object are no fields.
struct AllFields<'a> {
    expected: usize,
    fields: &'a mut Fields,
}

impl<'de> DeserializeSeed<'de> for AllFields<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AllFields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        if text.is_empty() { Ok(()) } else { Err(E::custom("extFields is a text")) }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.fields.expect(self.expected);
        loop {
            let mut name = None;
            let fields = &mut *self.fields;
            if map
                .next_key_seed(Text(|text: Option<&str>| name = text.map(|text| fields.open(text))))?
                .is_none()
            {
                return Ok(());
            }
            let Some(name) = name else { continue };
            map.next_value_seed(Text(|text: Option<&str>| fields.close(name, text)))?;
        }
    }
}

/// Hands on what fastjson makes of a value where Java wants a text; nothing for a null.
struct Text<F>(F);

impl<'de, F: FnOnce(Option<&str>)> DeserializeSeed<'de> for Text<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<F: FnOnce(Option<&str>)> Text<F> {
    fn other(self, value: impl Into<Value>) {
        (self.0)(Some(&value.into().to_string()));
    }
}

impl<'de, F: FnOnce(Option<&str>)> Visitor<'de> for Text<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
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
        self.other(value);
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.other(value);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.other(value);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.other(value);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        Value::deserialize(SeqAccessDeserializer::new(list)).map(|list| self.other(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        Value::deserialize(MapAccessDeserializer::new(map)).map(|map| self.other(map))
    }
}

/// What fastjson makes of a value where Java wants an `int`.
fn number<E: Error>(value: &Value) -> Result<i32, E> {
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

/// A language comes by its name or its number.
fn language(text: Option<&str>) -> Language {
    let text = text.unwrap_or_default();
    text.parse().map_or_else(|_| Language::from_name(text), Language)
}
