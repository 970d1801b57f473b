//! RocketMQ's checksum over a whole record (its `enabledAppendPropCRC`), kept as the record's last property.
//!
//! It covers every byte before that property, offsets and store timestamp included, so it is written last.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | `__CRC32#` |
//! | 1 | `01` |
//! | 10 | the CRC32 with the top bit cleared, in decimal digits, the lowest one first |
//! | 1 | `02` |

use std::borrow::Cow;

use crc32fast::Hasher;

use crate::record::encoded::{CRC_BITS, Encoded};

const NAME: &[u8] = b"__CRC32#";
const DIGITS: usize = 10;
/// Length of the whole property.
pub const LEN: usize = NAME.len() + 1 + DIGITS + 1;
const NAME_END: u8 = 1;
const PROPERTY_END: u8 = 2;

/// The properties to store: without the checksum of another record that came along.
///
/// If no checksum is written, only one at the end is dropped, because it would be taken for the record's own.
pub fn kept(given: &[u8], with_property_crc: bool) -> Cow<'_, [u8]> {
    if with_property_crc && given.windows(NAME.len()).any(|part| part == NAME) {
        let is_other = |property: &&[u8]| !matches!(property.strip_prefix(NAME), Some([NAME_END, ..]));
        let others: Vec<&[u8]> = given.split(|byte| *byte == PROPERTY_END).filter(is_other).collect();
        return Cow::Owned(others.join(&PROPERTY_END));
    }
    let mut kept = given;
    while let Some((before, _)) = split(kept) {
        kept = before;
    }
    Cow::Borrowed(kept)
}

/// Number of bytes that [`reserve`] adds to these properties.
pub fn added_len(properties: &[u8]) -> usize {
    LEN + usize::from(needs_end(properties))
}

fn needs_end(properties: &[u8]) -> bool {
    properties.last().is_some_and(|byte| *byte != PROPERTY_END)
}

/// Appends space for a checksum to the properties that begin at `from`.
pub fn reserve(out: &mut Vec<u8>, from: usize) {
    if out.get(from..).is_some_and(needs_end) {
        out.push(PROPERTY_END);
    }
    out.extend_from_slice(&[0; LEN]);
}

/// Writes the checksum into an otherwise complete record, if it gets one.
pub fn seal(bytes: &mut [u8], record: &Encoded) {
    let Some(body_hash) = record.body_hash else { return };
    let at = record.tail_end.saturating_sub(LEN);
    let body_len = record.len as usize - (record.tail_end - record.head_at);
    let mut hasher = Hasher::new();
    hasher.update(bytes.get(record.head_at..record.tail_at).unwrap_or_default());
    hasher.combine(&Hasher::new_with_initial_len(body_hash, body_len as u64));
    hasher.update(bytes.get(record.tail_at..at).unwrap_or_default());
    if let Some(place) = bytes.get_mut(at..record.tail_end) {
        place.copy_from_slice(&encode(hasher.finalize() & CRC_BITS));
    }
}

/// Whether the checksum at the end of a record is right or absent. `properties` are the last bytes of `record`.
pub fn matches(record: &[u8], properties: &[u8]) -> bool {
    let Some((_, digits)) = split(properties) else { return true };
    let covered = record.get(..record.len().saturating_sub(LEN)).unwrap_or_default();
    let expected = encode(crc32fast::hash(covered) & CRC_BITS);
    expected.get(NAME.len() + 1..LEN - 1) == Some(digits)
}

fn encode(crc: u32) -> [u8; LEN] {
    let mut out = [PROPERTY_END; LEN];
    let mut left = crc;
    for (at, place) in out.iter_mut().take(LEN - 1).enumerate() {
        *place = match at.checked_sub(NAME.len()) {
            None => NAME.get(at).copied().unwrap_or_default(),
            Some(0) => NAME_END,
            Some(_) => {
                let digit = b'0' + (left % 10) as u8;
                left /= 10;
                digit
            }
        };
    }
    out
}

/// The properties before a checksum at their end, and its digits.
fn split(properties: &[u8]) -> Option<(&[u8], &[u8])> {
    let (before, last) = properties.split_at_checked(properties.len().checked_sub(LEN)?)?;
    let digits = last.strip_prefix(NAME)?.strip_prefix(&[NAME_END])?.strip_suffix(&[PROPERTY_END])?;
    let is_whole = before.last().is_none_or(|byte| *byte == PROPERTY_END);
    (is_whole && digits.iter().all(u8::is_ascii_digit)).then_some((before, digits))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{
        encode::{self, NewMessage},
        message::{self, MessageView},
        properties,
    };

    const STALE: &[u8] = b"__CRC32#\x010123456789\x02";

    fn record(given: &[u8], body: &[u8], with_property_crc: bool) -> Vec<u8> {
        let host = "1.2.3.4:80".parse().unwrap();
        let message = NewMessage {
            topic: "topic",
            queue_id: 3,
            flag: 7,
            sys_flag: 0,
            born_timestamp: 1_700_000_000_123,
            born_host: host,
            reconsume_times: 2,
            prepared_transaction_offset: 99,
            body,
            properties: given,
        };
        let mut out = Vec::new();
        let encoded = encode::encode(&message, host, with_property_crc, &mut out);
        assert_eq!(encode::encoded_len(&message, host, with_property_crc), u64::from(encoded.len));
        encode::patch(&mut out, message::PHYSICAL_OFFSET_AT, 4711u64.to_be_bytes());
        seal(&mut out, &encoded);
        [&out[..encoded.tail_at], body, &out[encoded.tail_at..]].concat()
    }

    #[test]
    fn the_digits_stand_in_reverse_and_cover_all_before_them() {
        let record = record(b"TAGS\x01a", b"hello", true);
        let (covered, property) = record.split_at(record.len() - LEN);
        let digits: String = format!("{:010}", crc32fast::hash(covered) & CRC_BITS).chars().rev().collect();
        assert_eq!(property, format!("__CRC32#\x01{digits}\x02").as_bytes());
        assert!(covered.ends_with(b"\0\x1bTAGS\x01a\x02"), "the property before it is ended");
        assert_eq!(encode(42), *b"__CRC32#\x012400000000\x02");
    }

    #[test]
    fn a_checksum_that_came_along_never_counts_as_the_records_own() {
        for with_property_crc in [false, true] {
            for given in [STALE.to_vec(), [b"A\x01b\x02", STALE, STALE].concat()] {
                let record = record(&given, b"", with_property_crc);
                let view = MessageView::decode(&record, true).unwrap();
                assert_ne!(properties::get(view.properties, "__CRC32#"), Some("0123456789"));
                assert_eq!(properties::get(view.properties, "__CRC32#").is_some(), with_property_crc);
            }
        }
        let inside = [STALE, b"A\x01b\x02X__CRC32#\x01c\x02"].concat();
        let record = record(&inside, b"", true);
        let view = MessageView::decode(&record, true).unwrap();
        assert!(view.properties.starts_with(b"A\x01b\x02X__CRC32#\x01c\x02__CRC32#\x01"));
    }

    #[test]
    fn what_only_looks_like_a_checksum_is_left_alone() {
        for given in
            [&b"X__CRC32#\x010123456789\x02"[..], b"__CRC32#\x01012345678x\x02", b"__CRC32#\x01", b""]
        {
            assert_eq!(*kept(given, false), *given);
            assert!(MessageView::decode(&record(given, b"body", false), true).is_ok());
        }
    }

    proptest! {
        #[test]
        fn a_change_anywhere_is_noticed(
            body in proptest::collection::vec(any::<u8>(), 0..50),
            given in "([A-Z]{1,4}\u{1}[a-z]{1,9}\u{2}){0,3}",
            at in any::<proptest::sample::Index>(),
            bit in 0u8..8,
        ) {
            let mut record = record(given.as_bytes(), &body, true);
            prop_assert!(MessageView::decode(&record, true).is_ok());
            // Without the terminator of the previous property it is no property, and nothing is checked.
            let end = record.len() - LEN - usize::from(!given.is_empty());
            record[at.index(end)] ^= 1 << bit;
            prop_assert!(MessageView::decode(&record, true).is_err());
        }

        #[test]
        fn any_properties_make_a_record_that_is_sound(
            given in proptest::collection::vec(prop_oneof![Just(1u8), Just(2), any::<u8>()], 0..60),
            with_property_crc in any::<bool>(),
        ) {
            prop_assert!(MessageView::decode(&record(&given, b"b", with_property_crc), true).is_ok());
        }
    }
}
