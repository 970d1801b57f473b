//! `RemotingCommand`: one request or response of the remoting protocol, independent of its header form.
//!
//! `codec` knows the bytes; the handler of a code knows what it means.

use bytes::Bytes;

use super::{Fields, codes::response};

/// `MQVersion` ordinal of 5.3.3, the release whose behaviour we follow.
///
/// Java compares it: a name server reads registrations of peers older than 3.0.11 (ordinal 21) in another
/// form, and a consumer refuses SQL92 filters on a broker that says less than 4.1.0 (ordinal 232).
pub const VERSION: i32 = 479;

const RESPONSE_BIT: i32 = 1;
const ONE_WAY_BIT: i32 = 1 << 1;

/// How the header of a frame is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HeaderForm {
    /// A JSON object; type 0 of the frame's second word.
    #[default]
    Json,
    /// RocketMQ's own binary form; type 1. It has 16 bits for the code.
    Binary,
}

/// The language a peer is written in, RocketMQ's `LanguageCode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Language(pub u8);

impl Language {
    /// Names by number; the list every release since 4.9 knows.
    const NAMES: [&'static str; 14] = [
        "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS",
        "RUST", "NODE_JS",
    ];

    /// Java.
    pub const JAVA: Self = Self(0);
    /// None of the named ones. Ours: clients of 4.x fail on names younger than they are, RUST among them.
    pub const OTHER: Self = Self(7);

    /// The name in a JSON header; `OTHER` for a number without one.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.get(usize::from(self.0)).copied().unwrap_or("OTHER")
    }

    /// The language called `name`; `OTHER` for a name we do not know.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let found = Self::NAMES.iter().position(|known| *known == name);
        found.and_then(|number| u8::try_from(number).ok()).map_or(Self::OTHER, Self)
    }
}

impl Default for Language {
    fn default() -> Self {
        Self::OTHER
    }
}

/// A request or a response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RemotingCommand {
    /// Request or response code, see [`super::codes`].
    pub code: i32,
    /// The sender's language.
    pub language: Language,
    /// The sender's version, an ordinal of `MQVersion`.
    pub version: i32,
    /// Number the sender gave the request; its response carries the same.
    pub opaque: i32,
    /// Bit 0: response. Bit 1: one-way, the sender waits for no response.
    pub flag: i32,
    /// A response's explanation.
    pub remark: Option<String>,
    /// `extFields`.
    pub fields: Fields,
    /// Everything after the header.
    pub body: Bytes,
    /// How the header came, or is to be written.
    pub header_form: HeaderForm,
}

impl RemotingCommand {
    /// Makes a request with a JSON header; the sender sets `opaque`.
    #[must_use]
    pub fn request(code: i32, fields: impl Into<Fields>, body: Bytes) -> Self {
        Self { code, version: VERSION, fields: fields.into(), body, ..Self::default() }
    }

    /// Makes a response to this request: same number, same header form where the code fits.
    #[must_use]
    pub fn respond(&self, code: i32, remark: Option<String>) -> Self {
        Self {
            code,
            version: VERSION,
            opaque: self.opaque,
            flag: RESPONSE_BIT,
            remark,
            header_form: self.header_form,
            ..Self::default()
        }
    }

    /// Makes RocketMQ's answer to a request code without a handler.
    #[must_use]
    pub fn respond_unsupported(&self) -> Self {
        let remark = format!(" request type {} not supported", self.code);
        self.respond(response::REQUEST_CODE_NOT_SUPPORTED, Some(remark))
    }

    /// Says whether this answers an earlier request.
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.flag & RESPONSE_BIT != 0
    }

    /// Says whether the sender waits for no answer.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.flag & ONE_WAY_BIT != 0
    }

    /// Marks a request as one-way.
    pub fn set_one_way(&mut self) {
        self.flag |= ONE_WAY_BIT;
    }

    /// The value of an extension field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name)
    }
}
