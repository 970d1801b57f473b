//! The span of a client that a request continues. Source of its format: W3C, "Trace Context", version 00.

use ferromq_protocol::{
    protobuf::{Fields, map_entry},
    record::properties,
};

/// The name of the context in metadata and among the properties of a message.
pub const TRACEPARENT: &str = "traceparent";
/// The first numbers of SendMessage's messages, and of their user properties.
const MESSAGES: u32 = 1;
const USER_PROPERTIES: u32 = 2;

/// The client's span, which a span of the server belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: u128,
    /// The client's span.
    pub parent: u64,
}

impl TraceContext {
    /// Reads the text of a `traceparent`; `None` if it is malformed or the client does not sample the trace.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_known = version.len() == 2 && version != "ff" && (version != "00" || parts.next().is_none());
        let is_long = trace.len() == 32 && parent.len() == 16 && flags.len() == 2;
        let is_hex = [version, trace, parent, flags]
            .iter()
            .all(|part| part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)));
        if !(is_known && is_long && is_hex) {
            return None;
        }
        let (trace, parent) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(parent, 16).ok()?);
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        (is_sampled && trace != 0 && parent != 0).then_some(Self { trace, parent })
    }

    /// The context among the properties of a message, as a record has them.
    #[must_use]
    pub fn of_properties(given: &[u8]) -> Option<Self> {
        properties::get(given, TRACEPARENT).and_then(Self::parse)
    }

    /// The context of the first message of a `SendMessageRequest`.
    #[must_use]
    pub fn of_send(request: &[u8]) -> Option<Self> {
        let mut messages = Fields::new(request).flatten().filter(|(number, _)| *number == MESSAGES);
        let message = messages.next()?.1.bytes().ok()?;
        let mut properties = Fields::new(message)
            .flatten()
            .filter(|(number, _)| *number == USER_PROPERTIES)
            .filter_map(|(_, value)| map_entry(value.bytes().ok()?).ok());
        properties.find(|(name, _)| *name == TRACEPARENT).and_then(|(_, value)| Self::parse(value))
    }
}

#[cfg(test)]
mod tests {
    use ferromq_protocol::protobuf::put_bytes_field;
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_read_if_it_is_well_formed_and_sampled() {
        let context = TraceContext::parse(TEXT).unwrap();
        assert_eq!(context.trace, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!(context.parent, 0xb7ad_6b71_6920_3331);
        // A later version may have more parts.
        assert!(TraceContext::parse(&format!("{}-more", TEXT.replacen("00", "01", 1))).is_some());
        for wrong in [
            "",
            "00",
            &TEXT.replace("-01", "-00"),
            &TEXT.replacen("00", "ff", 1),
            &TEXT.replace('b', "B"),
            &format!("{TEXT}-more"),
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceContext::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_context_of_a_send_is_that_of_its_first_message() {
        let entry = |name: &str, value: &str| {
            let mut entry = Vec::new();
            put_bytes_field(&mut entry, 1, name.as_bytes());
            put_bytes_field(&mut entry, 2, value.as_bytes());
            entry
        };
        let mut message = Vec::new();
        put_bytes_field(&mut message, USER_PROPERTIES, &entry("color", "red"));
        put_bytes_field(&mut message, USER_PROPERTIES, &entry(TRACEPARENT, TEXT));
        let mut request = Vec::new();
        put_bytes_field(&mut request, MESSAGES, &message);
        assert_eq!(TraceContext::of_send(&request), TraceContext::parse(TEXT));
        let record = format!("color\u{1}red\u{2}traceparent\u{1}{TEXT}\u{2}");
        assert_eq!(TraceContext::of_properties(record.as_bytes()), TraceContext::parse(TEXT));
        // The body of a message is no property.
        let mut body = Vec::new();
        put_bytes_field(&mut body, 4, &message);
        let mut request = Vec::new();
        put_bytes_field(&mut request, MESSAGES, &body);
        assert_eq!(TraceContext::of_send(&request), None);
    }

    proptest! {
        #[test]
        fn any_text_and_any_bytes_are_read_or_left(text: String, bytes: Vec<u8>) {
            let _ = TraceContext::parse(&text);
            let _ = TraceContext::of_send(&bytes);
            let _ = TraceContext::of_properties(&bytes);
        }

        #[test]
        fn a_context_is_read_back(trace in 1_u128.., parent in 1_u64.., flags: u8) {
            let text = format!("00-{trace:032x}-{parent:016x}-{flags:02x}");
            let expected = (flags & 1 == 1).then_some(TraceContext { trace, parent });
            prop_assert_eq!(TraceContext::parse(&text), expected);
        }
    }
}
