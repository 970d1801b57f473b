//! Decodes the body of a batch: consecutive messages. No I/O.
//!
//! ```text
//! message = length: i32 | magic: i32 | crc: i32 | flag: i32 | body length: i32 | body
//!         | properties length: i16 | properties                                   (big-endian)
//! ```
//! Producers set magic and crc to 0. RocketMQ ignores both, and the length.

use ferromq_store::record::reader::Reader;

use crate::TransportError;

/// A message of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchMessage<'a> {
    /// Flag of the application.
    pub flag: i32,
    /// The body.
    pub body: &'a [u8],
    /// Properties in RocketMQ's text form.
    pub properties: &'a str,
}

/// Bytes of the smallest message: five numbers and the length of the properties.
pub(super) const MIN_MESSAGE_BYTES: usize = 22;
/// Most messages of a batch: until they are stored, they take many times their bytes.
const MAX_MESSAGES: usize = 1 << 16;

/// Number of messages that begin in a batch. Counts at most one more than the limit.
pub(super) fn count(bytes: &[u8]) -> usize {
    let (mut reader, mut count) = (Reader::new(bytes), 0);
    while !reader.is_empty() && count <= MAX_MESSAGES {
        count += 1;
        if skip_message(&mut reader).is_none() {
            break;
        }
    }
    count
}

fn skip_message(reader: &mut Reader<'_>) -> Option<()> {
    reader.take(16)?;
    let body = reader.u32()?;
    reader.take(usize::try_from(body).ok()?)?;
    reader.short_bytes().map(drop)
}

/// Splits a batch into its messages, without copying.
///
/// # Errors
/// `IllegalMessage` for an empty batch, one of more than 65,536 messages, a message that ends too early, or properties
/// that are not UTF-8.
pub fn parse(bytes: &[u8]) -> Result<Vec<BatchMessage<'_>>, TransportError> {
    if bytes.is_empty() {
        return Err(TransportError::IllegalMessage("the batch is empty"));
    }
    // No announced length is trusted before its bytes are seen, not even the first one.
    let first = bytes.first_chunk::<4>().map_or(0, |length| u32::from_be_bytes(*length) as usize);
    let expected = bytes.len() / first.clamp(MIN_MESSAGE_BYTES, bytes.len().max(MIN_MESSAGE_BYTES));
    let mut messages = Vec::with_capacity(expected.min(MAX_MESSAGES));
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        if messages.len() == MAX_MESSAGES {
            return Err(TransportError::IllegalMessage("the batch has more than 65,536 messages; split it"));
        }
        messages.push(take_message(&mut reader)?);
    }
    Ok(messages)
}

const TOO_SHORT: TransportError = TransportError::IllegalMessage("a message of the batch ends too early");

fn take_message<'a>(reader: &mut Reader<'a>) -> Result<BatchMessage<'a>, TransportError> {
    let _length_magic_and_crc = reader.take(12).ok_or(TOO_SHORT)?;
    let flag = reader.i32().ok_or(TOO_SHORT)?;
    let body_length = usize::try_from(reader.i32().ok_or(TOO_SHORT)?).map_err(|_| TOO_SHORT)?;
    let body = reader.take(body_length).ok_or(TOO_SHORT)?;
    let properties_length = usize::try_from(reader.i16().ok_or(TOO_SHORT)?).map_err(|_| TOO_SHORT)?;
    let properties = std::str::from_utf8(reader.take(properties_length).ok_or(TOO_SHORT)?)
        .map_err(|_| TransportError::IllegalMessage("properties in the batch are not UTF-8"))?;
    Ok(BatchMessage { flag, body, properties })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(messages: &[(i32, Vec<u8>, String)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (flag, body, properties) in messages {
            let length = MIN_MESSAGE_BYTES + body.len() + properties.len();
            out.extend_from_slice(&(length as u32).to_be_bytes());
            out.extend_from_slice(&[0; 8]);
            out.extend_from_slice(&flag.to_be_bytes());
            out.extend_from_slice(&(body.len() as u32).to_be_bytes());
            out.extend_from_slice(body);
            out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
            out.extend_from_slice(properties.as_bytes());
        }
        out
    }

    #[test]
    fn a_batch_without_messages_is_refused() {
        assert!(parse(&[]).unwrap_err().to_string().contains("empty"));
    }

    #[test]
    fn a_batch_of_too_many_messages_is_refused_and_counted_no_further() {
        let most = encoded(&[(0, Vec::new(), String::new())]).repeat(MAX_MESSAGES);
        assert_eq!((parse(&most).unwrap().len(), count(&most)), (MAX_MESSAGES, MAX_MESSAGES));
        let more = [most.as_slice(), &most].concat();
        assert!(parse(&more).unwrap_err().to_string().contains("65,536"));
        assert_eq!(count(&more), MAX_MESSAGES + 1);
    }

    proptest! {
        #[test]
        fn a_batch_is_parsed_into_its_messages(messages in prop::collection::vec((any::<i32>(), prop::collection::vec(any::<u8>(), 0..40), "[a-z\u{1}\u{2}ü]{0,20}"), 1..6)) {
            let bytes = encoded(&messages);
            let parsed = parse(&bytes).unwrap();
            let seen: Vec<_> = parsed.iter().map(|m| (m.flag, m.body.to_vec(), m.properties.to_owned())).collect();
            prop_assert_eq!(count(&bytes), messages.len());
            prop_assert_eq!(seen, messages);
        }

        #[test]
        fn a_batch_cut_off_anywhere_gives_whole_messages_or_an_error(messages in prop::collection::vec((any::<i32>(), prop::collection::vec(any::<u8>(), 0..40), "[a-z]{0,20}"), 1..4), at in any::<prop::sample::Index>()) {
            let bytes = encoded(&messages);
            let cut = at.index(bytes.len());
            if let Ok(parsed) = parse(&bytes[..cut]) {
                prop_assert_eq!(encoded(&messages[..parsed.len()]).len(), cut);
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(parsed) = parse(&bytes) {
                prop_assert_eq!(count(&bytes), parsed.len());
            }
        }

        #[test]
        fn announced_lengths_cost_no_memory(length in any::<[u8; 4]>(), body in any::<[u8; 4]>()) {
            let mut bytes = encoded(&[(0, Vec::new(), String::new())]);
            bytes[..4].copy_from_slice(&length);
            bytes[16..20].copy_from_slice(&body);
            let _ = parse(&bytes);
        }
    }
}
