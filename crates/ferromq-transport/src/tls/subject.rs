//! The subject of a client's certificate as text, in the form of RFC 4514: `CN=ada,O=Acme`.
//!
//! The certificate was verified in the handshake, but not the form of its subject. The text may go into logs, so it has no
//! control characters and a bounded length.

use std::{fmt::Write as _, sync::Arc};

use tokio_rustls::rustls::{ServerConnection, pki_types::CertificateDer};
use x509_parser::{
    asn1_rs::ToDer as _,
    certificate::X509CertificateParser,
    nom::Parser as _,
    x509::{AttributeTypeAndValue, X509Name},
};

/// The subject of a client's certificate; `None` without one. A subject has `=`, unless it is [`EMPTY`] or [`MALFORMED`].
pub type CertificateSubject = Option<Arc<str>>;

/// The text for a subject without attributes: the certificate names its owner elsewhere.
const EMPTY: &str = "(empty)";
/// The text for a subject that cannot be read.
const MALFORMED: &str = "(malformed)";
/// The most bytes of a subject; what is longer is cut and ends with [`CUT`].
const MOST: usize = 1_000;
const CUT: char = '…';

/// RFC 4514's short names of attributes, and the one that OpenSSL and Java print for an e-mail address.
const SHORT_NAMES: [(&str, &str); 10] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// The subject of the certificate that the client of an accepted connection has shown.
pub(crate) fn of_connection(connection: &ServerConnection) -> CertificateSubject {
    connection.peer_certificates()?.first().map(subject)
}

fn subject(certificate: &CertificateDer<'_>) -> Arc<str> {
    // What is in the extensions does not matter here.
    let mut parser = X509CertificateParser::new().with_deep_parse_extensions(false);
    let Ok((_, parsed)) = parser.parse(certificate) else { return MALFORMED.into() };
    match text(parsed.subject()) {
        None => MALFORMED.into(),
        Some(text) if text.is_empty() => EMPTY.into(),
        Some(text) => cut(text).into(),
    }
}

/// The most significant part comes last, as RFC 4514 says. `None` if an attribute cannot be encoded.
fn text(name: &X509Name<'_>) -> Option<String> {
    let mut text = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for part in parts.into_iter().rev() {
        for (position, attribute) in part.iter().enumerate() {
            if !text.is_empty() {
                text.push(if position == 0 { ',' } else { '+' });
            }
            put_attribute(&mut text, attribute)?;
        }
    }
    Some(text)
}

/// An attribute that has no short name, or no text of Unicode or ASCII, has its value in hexadecimal.
fn put_attribute(text: &mut String, attribute: &AttributeTypeAndValue<'_>) -> Option<()> {
    let oid = attribute.attr_type().to_id_string();
    let short = SHORT_NAMES.iter().find(|(known, _)| *known == oid);
    match (short, attribute.as_str()) {
        (Some((_, name)), Ok(value)) => {
            text.push_str(name);
            text.push('=');
            put_escaped(text, value);
        }
        _ => {
            text.push_str(&oid);
            text.push_str("=#");
            put_hexadecimal(text, "", &attribute.attr_value().to_der_vec().ok()?);
        }
    }
    Some(())
}

fn put_escaped(text: &mut String, value: &str) {
    let last = value.len().saturating_sub(1);
    for (at, character) in value.char_indices() {
        match character {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=' => text.extend(['\\', character]),
            ' ' if at == 0 || at == last => text.push_str("\\ "),
            '#' if at == 0 => text.push_str("\\#"),
            _ if character.is_control() => {
                put_hexadecimal(text, "\\", character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            _ => text.push(character),
        }
    }
}

fn put_hexadecimal(text: &mut String, before: &str, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string never fails.
        let _ = write!(text, "{before}{byte:02x}");
    }
}

fn cut(mut text: String) -> String {
    if text.len() > MOST {
        text.truncate(text.floor_char_boundary(MOST - CUT.len_utf8()));
        text.push(CUT);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn shown(attributes: Vec<(DnType, DnValue)>) -> Arc<str> {
        let (mut params, mut name) = (CertificateParams::default(), DistinguishedName::new());
        for (kind, value) in attributes {
            name.push(kind, value);
        }
        params.distinguished_name = name;
        let key = KeyPair::generate().unwrap();
        subject(params.self_signed(&key).unwrap().der())
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    /// Undoes the escaping: a backslash stands before a character, or before two hexadecimal digits.
    fn unescaped(text: &str) -> String {
        let (mut bytes, mut rest) = (Vec::new(), text.bytes());
        while let Some(byte) = rest.next() {
            if byte != b'\\' {
                bytes.push(byte);
                continue;
            }
            let next = rest.next().unwrap();
            if next.is_ascii_hexdigit() {
                let digits = [next, rest.next().unwrap()];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            } else {
                bytes.push(next);
            }
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_most_significant_part_comes_last() {
        let subject = shown(vec![
            (DnType::CountryName, DnValue::PrintableString("DE".try_into().unwrap())),
            (DnType::OrganizationName, utf8("Müller, Söhne")),
            (DnType::CommonName, utf8("ada")),
        ]);
        assert_eq!(&*subject, "CN=ada,O=Müller\\, Söhne,C=DE");
    }

    #[test]
    fn other_attributes_and_other_texts_are_hexadecimal() {
        let subject = shown(vec![
            (DnType::CustomDnType(vec![1, 2, 3, 4]), utf8("x")),
            (DnType::CommonName, DnValue::BmpString("y".try_into().unwrap())),
        ]);
        assert_eq!(&*subject, "CN=#1e020079,1.2.3.4=#0c0178".replace("CN", "2.5.4.3"));
    }

    #[test]
    fn without_attributes_or_form_there_is_a_text_all_the_same() {
        assert_eq!(&*shown(vec![]), EMPTY);
        for bytes in [vec![], vec![0x30], vec![0xff; 64], vec![0x30, 0x82, 0xff, 0xff]] {
            assert_eq!(&*super::subject(&CertificateDer::from(bytes)), MALFORMED);
        }
    }

    #[test]
    fn a_long_subject_is_cut() {
        let subject = shown(vec![(DnType::CommonName, utf8(&"ö".repeat(5_000)))]);
        assert!(
            subject.len() <= MOST && subject.starts_with("CN=öö") && subject.ends_with("ö…"),
            "{subject}"
        );
    }

    proptest! {
        /// Nothing in a value can pass for another part of the subject, or for another line of a log.
        #[test]
        fn values_are_escaped(value in "[ #\"+,;<>=\\\\a-f0\u{0}-\u{1f}\u{7f}-\u{9f}é…]{0,12}|\\PC*") {
            let mut text = String::new();
            put_escaped(&mut text, &value);
            prop_assert_eq!(unescaped(&text), value.clone());
            prop_assert!(!text.chars().any(char::is_control));
            prop_assert!(!text.starts_with([' ', '#']) && (!text.ends_with(' ') || text.ends_with("\\ ")));
            let mut bare = text.replace("\\\\", "");
            for special in ['"', '+', ',', ';', '<', '>', '='] {
                bare = bare.replace(&format!("\\{special}"), "");
                prop_assert!(!bare.contains(special), "{text}");
            }
        }

        /// A verified certificate has any bytes in its subject.
        #[test]
        fn any_certificate_has_a_text(at in 0_usize..400, byte: u8) {
            let key = KeyPair::generate().unwrap();
            let mut der = CertificateParams::default().self_signed(&key).unwrap().der().to_vec();
            let at = at % der.len();
            der[at] = byte;
            let text = super::subject(&CertificateDer::from(der));
            prop_assert!(!text.is_empty() && text.len() <= MOST);
        }
    }
}
