//! `RemotingCommand`: one request or response of the remoting protocol, independent of its header form.
//!
//! `codec` encodes and decodes it; the handler of its code interprets it.

use bytes::Bytes;

use super::{Fields, codes::response};

/// `MQVersion` ordinal of RocketMQ 5.3.3, whose behaviour ferromq follows.
///
/// Java peers compare it: a name server parses registrations of brokers older than 3.0.11 (ordinal 21) in another form,
/// and a consumer refuses SQL92 filters if the broker reports less than 4.1.0 (ordinal 232).
pub const VERSION: i32 = 479;

const RESPONSE_BIT: i32 = 1;
const ONE_WAY_BIT: i32 = 1 << 1;

/// Encoding of a frame's header.
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
    /// Names by number, as in every release since 4.9.
    const NAMES: [&'static str; 14] = [
        "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS",
        "RUST", "NODE_JS",
    ];

    /// Java.
    pub const JAVA: Self = Self(0);
    /// Any other language. ferromq sends it, because 4.x clients fail on names newer than themselves, such as `RUST`.
    pub const OTHER: Self = Self(7);

    /// The name in a JSON header; `OTHER` for a number without one.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.get(usize::from(self.0)).copied().unwrap_or("OTHER")
    }

    /// The language called `name`; `OTHER` if the name is unknown.
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
    /// Number that the sender chose for the request; the response repeats it.
    pub opaque: i32,
    /// Bit 0: response. Bit 1: one-way, without a response.
    pub flag: i32,
    /// Explanation of a response.
    pub remark: Option<String>,
    /// `extFields`.
    pub fields: Fields,
    /// Everything after the header.
    pub body: Bytes,
    /// Header form on the wire.
    pub header_form: HeaderForm,
}

impl RemotingCommand {
    /// Makes a request with a JSON header; the sender sets `opaque`.
    #[must_use]
    pub fn request(code: i32, fields: impl Into<Fields>, body: Bytes) -> Self {
        Self { code, version: VERSION, fields: fields.into(), body, ..Self::default() }
    }

    /// Makes a response to this request, with the same number and, if the code fits into it, the same header form.
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

    /// Makes RocketMQ's response to a request code without a handler.
    #[must_use]
    pub fn respond_unsupported(&self) -> Self {
        let remark = format!(" request type {} not supported", self.code);
        self.respond(response::REQUEST_CODE_NOT_SUPPORTED, Some(remark))
    }

    /// Returns whether this is a response.
    #[must_use]
    pub fn is_response(&self) -> bool {
        self.flag & RESPONSE_BIT != 0
    }

    /// Returns whether the sender expects no response.
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
