//! `FERROMQ_SEQUENCE`: the property with which a writer numbers its messages, so that duplicates are recognized.
//!
//! ```text
//! writer / partition / epoch / row
//! writer      1 to 128 of  a-z A-Z 0-9 _ . : -
//! others      decimal digits; partition below 2^32, epoch and row below 2^63
//! ```

use crate::{
    delayed::delay_levels,
    error::{Result, StoreError},
    record::{
        names::{self, SCHEDULE_TOPIC, TIMER_TOPIC},
        properties::{self, SEQUENCE},
    },
};

/// Longest name of a writer, in bytes.
pub const MAX_WRITER_LEN: usize = 128;

/// The number of a message of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// Name of the writer: a query or a job.
    pub writer: &'a str,
    /// Part of the writer that runs independently.
    pub partition: u32,
    /// Grows with each round of the writer.
    pub epoch: u64,
    /// Grows within an epoch of a partition.
    pub row: u64,
}

impl<'a> Sequence<'a> {
    /// Parses the value of the property. Errors: `Invalid` with the expected form.
    pub fn parse(text: &'a str) -> Result<Self> {
        let reason = "it must be WRITER/PARTITION/EPOCH/ROW: letters, digits and _ . : - (at most 128), and three whole \
                      numbers";
        Self::read(text).ok_or(StoreError::Invalid { what: "property FERROMQ_SEQUENCE", reason })
    }

    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.split('/');
        let (writer, partition, epoch, row) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
        let is_writer = (1..=MAX_WRITER_LEN).contains(&writer.len()) && writer.bytes().all(is_legal);
        if parts.next().is_some() || !is_writer {
            return None;
        }
        let partition = u32::try_from(number(partition)?).ok()?;
        Some(Self { writer, partition, epoch: number(epoch)?, row: number(row)? })
    }

    /// The number in a message's properties; `None` if it has none. Errors: those of [`Self::parse`].
    pub fn of(properties: &'a [u8]) -> Result<Option<Self>> {
        let named = properties::iter_bytes(properties).filter(|(name, _)| *name == SEQUENCE.as_bytes());
        let Some((_, value)) = named.last() else { return Ok(None) };
        Self::parse(std::str::from_utf8(value).unwrap_or_default()).map(Some)
    }
}

/// Signs and spaces are refused, and numbers are limited to Java's 63 bits.
fn number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_plain && *number <= i64::MAX as u64)
}

/// A numbered message with its consumers' queue, even while it waits elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Numbered<'a> {
    pub(crate) sequence: Sequence<'a>,
    pub(crate) topic: &'a str,
    pub(crate) queue_id: u32,
}

impl<'a> Numbered<'a> {
    /// The number of a record or a new message; `None` if it has none to remember.
    pub(crate) fn of(topic: &'a str, queue_id: i32, properties: &'a [u8]) -> Result<Option<Self>> {
        let Some(sequence) = Sequence::of(properties)? else { return Ok(None) };
        let place = match topic {
            SCHEDULE_TOPIC | TIMER_TOPIC => delay_levels::destination(properties),
            _ => Some((topic, queue_id)),
        };
        Ok(place.filter(|(topic, _)| !names::holds_copies(topic)).and_then(|(topic, queue_id)| {
            Some(Self { sequence, topic, queue_id: u32::try_from(queue_id).ok()? })
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_sequence_is_refused_with_what_it_must_be_like() {
        let long = format!("{}/0/0/0", "w".repeat(MAX_WRITER_LEN + 1));
        for bad in [
            "",
            "w",
            "w/1/2",
            "w/1/2/3/4",
            "/1/2/3",
            "a b/1/2/3",
            "w/-1/2/3",
            "w/+1/2/3",
            "w/4294967296/2/3",
            "w/1/9223372036854775808/3",
            "w/1/2/",
            "w/1/2/ 3",
            &long,
        ] {
            let error = Sequence::parse(bad).unwrap_err().to_string();
            assert!(
                error.contains("FERROMQ_SEQUENCE") && error.contains("WRITER/PARTITION"),
                "{bad}: {error}"
            );
        }
    }

    #[test]
    fn a_message_that_waits_is_one_of_the_queue_it_waits_for_and_a_copy_of_none() {
        let mut text = Vec::new();
        properties::push(&mut text, SEQUENCE, "w/1/2/3");
        let sequence = Sequence { writer: "w", partition: 1, epoch: 2, row: 3 };
        let plain = Numbered::of("orders", 4, &text).unwrap();
        assert_eq!(plain, Some(Numbered { sequence, topic: "orders", queue_id: 4 }));
        for copy in ["%RETRY%g", "%DLQ%g", "RMQ_SYS_TRANS_HALF_TOPIC"] {
            assert_eq!(Numbered::of(copy, 0, &text).unwrap(), None);
        }
        let waiting = delay_levels::at_level(3, "orders", 4, &text);
        assert_eq!(Numbered::of(waiting.topic, waiting.queue_id, &waiting.properties).unwrap(), plain);
        assert_eq!(Numbered::of("orders", 4, b"KEYS\x01a\x02").unwrap(), None);
        assert!(Numbered::of("orders", 4, b"FERROMQ_SEQUENCE\x01w\x02").is_err());
        assert!(Numbered::of("orders", 4, b"FERROMQ_SEQUENCE\x01\xff/1/2/3\x02").is_err());
    }

    proptest! {
        #[test]
        fn a_sequence_is_read_as_it_was_written(
            writer in "[a-zA-Z0-9_.:-]{1,128}", partition in any::<u32>(), epoch in 0..=i64::MAX as u64,
            row in 0..=i64::MAX as u64,
        ) {
            let text = format!("{writer}/{partition}/{epoch}/{row}");
            prop_assert_eq!(Sequence::parse(&text).unwrap(), Sequence { writer: &writer, partition, epoch, row });
        }

        #[test]
        fn any_text_is_a_sequence_or_refused(text in "\\PC{0,60}", near in "[a-z/0-9+-]{0,20}") {
            for text in [text, near] {
                if let Ok(Sequence { writer, partition, epoch, row }) = Sequence::parse(&text) {
                    let again = format!("{writer}/{partition}/{epoch}/{row}");
                    prop_assert_eq!(Sequence::parse(&again).unwrap(), Sequence::parse(&text).unwrap());
                }
            }
        }

        #[test]
        fn any_properties_are_looked_at_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Numbered::of("t", 0, &bytes);
            let _ = Numbered::of(SCHEDULE_TOPIC, 0, &[&b"FERROMQ_SEQUENCE\x01w/1/2/3\x02"[..], &bytes].concat());
        }
    }
}
