//! RocketMQ's text form of properties: `NAME \x01 VALUE \x02 …`.

use std::{iter, ops::Range};

/// Iterates over names and values; skips parts that are not UTF-8.
pub fn iter(properties: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    // Nearly always all of it is text: then one check is enough.
    let whole = std::str::from_utf8(properties).ok();
    places(properties).filter_map(move |(name, value)| match whole {
        Some(text) => Some((text.get(name)?, text.get(value)?)),
        None => Some((text_at(properties, name)?, text_at(properties, value)?)),
    })
}

/// As [`iter`], for any encoding. Empty names and values count as absent, as in RocketMQ.
pub fn iter_bytes(properties: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    places(properties).filter_map(|(name, value)| Some((properties.get(name)?, properties.get(value)?)))
}

fn text_at(properties: &[u8], place: Range<usize>) -> Option<&str> {
    std::str::from_utf8(properties.get(place)?).ok()
}

/// Where each name and its value are.
fn places(properties: &[u8]) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let mut next = 0;
    iter::from_fn(move || {
        loop {
            let begin = next;
            let rest = properties.get(begin..).filter(|rest| !rest.is_empty())?;
            let pair = rest.get(..find(rest, 2).unwrap_or(rest.len()))?;
            let end = begin + pair.len();
            next = end + 1;
            let name_end = begin + find(pair, 1).unwrap_or(pair.len());
            if name_end > begin && name_end + 1 < end {
                return Some((begin..name_end, name_end + 1..end));
            }
        }
    })
}

/// The first place of a byte; eight bytes are compared at once.
fn find(bytes: &[u8], wanted: u8) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let (words, rest) = bytes.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let differences = u64::from_le_bytes(*word) ^ (ONES * u64::from(wanted));
        // The lowest bit that is set marks the first byte without a difference.
        let equal = differences.wrapping_sub(ONES) & !differences & (ONES << 7);
        if equal != 0 {
            return Some(number * 8 + equal.trailing_zeros() as usize / 8);
        }
    }
    rest.iter().position(|byte| *byte == wanted).map(|at| words.len() * 8 + at)
}

/// Returns the value of `name`; the last one of equal names, as in RocketMQ.
#[must_use]
pub fn get<'a>(properties: &'a [u8], name: &str) -> Option<&'a str> {
    iter(properties).filter(|(n, _)| *n == name).last().map(|(_, v)| v)
}

/// Appends one property to `out`.
pub fn push(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.push(1);
    out.extend_from_slice(value.as_bytes());
    out.push(2);
}

/// The properties without the names in `remove` and `set`, followed by those of `set`.
///
/// Parts that are no property are dropped; the rest stays unchanged in any encoding.
#[must_use]
pub fn replace(properties: &[u8], remove: &[&str], set: &[(&str, &str)]) -> Vec<u8> {
    let added: usize = set.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    let mut out = Vec::with_capacity(properties.len() + added + 1);
    let is_gone = |name: &[u8]| {
        remove.iter().any(|gone| gone.as_bytes() == name)
            || set.iter().any(|(gone, _)| gone.as_bytes() == name)
    };
    for (name, value) in iter_bytes(properties).filter(|(name, _)| !is_gone(name)) {
        out.extend_from_slice(name);
        out.push(1);
        out.extend_from_slice(value);
        out.push(2);
    }
    set.iter().for_each(|(name, value)| push(&mut out, name, value));
    out
}

/// Whether a property is hidden from gRPC consumers and from readers of columns.
///
/// That is RocketMQ's own names and the number by which a writer's message is stored once, which only the log needs.
#[must_use]
pub fn is_hidden(name: &str) -> bool {
    is_reserved(name) || name == SEQUENCE
}

/// Whether a property name is RocketMQ's own: producers may not set it, and consumers do not see it.
///
/// These are the names of RocketMQ's proxy and the names that tell its broker how to treat a message.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    matches!(
        name,
        "TRACE_ON"
            | "MSG_REGION"
            | "KEYS"
            | "TAGS"
            | "WAIT"
            | "DELAY"
            | "RETRY_TOPIC"
            | "REAL_TOPIC"
            | "REAL_QID"
            | "TRAN_MSG"
            | "PGROUP"
            | "MIN_OFFSET"
            | "MAX_OFFSET"
            | "BUYER_ID"
            | "ORIGIN_MESSAGE_ID"
            | "TRANSFER_FLAG"
            | "CORRECTION_FLAG"
            | "MQ2_FLAG"
            | "RECONSUME_TIME"
            | "UNIQ_KEY"
            | "MAX_RECONSUME_TIMES"
            | "CONSUME_START_TIME"
            | "POP_CK"
            | "POP_CK_OFFSET"
            | "1ST_POP_TIME"
            | "TRAN_PREPARED_QUEUE_OFFSET"
            | "DUP_INFO"
            | "EXTEND_UNIQ_INFO"
            | "INSTANCE_ID"
            | "CORRELATION_ID"
            | "REPLY_TO_CLIENT"
            | "TTL"
            | "ARRIVE_TIME"
            | "PUSH_REPLY_TIME"
            | "CLUSTER"
            | "MSG_TYPE"
            | "INNER_MULTI_QUEUE_OFFSET"
            | "TIMER_DELAY_MS"
            | "TIMER_DELAY_SEC"
            | "TIMER_DELIVER_MS"
            | "TIMER_ENQUEUE_MS"
            | "TIMER_DEQUEUE_MS"
            | "TIMER_ROLL_TIMES"
            | "TIMER_OUT_MS"
            | "TIMER_DEL_UNIQKEY"
            | "TIMER_DELAY_LEVEL"
            | "__BORNHOST"
            | "BORN_TIMESTAMP"
            | "DLQ_ORIGIN_TOPIC"
            | "DLQ_ORIGIN_MESSAGE_ID"
            | "__CRC32#"
            | "ORIGIN_GROUP"
            | "_SYS_MSG_PRIORITY_"
            | "__LITE_TOPIC"
            | "__SHARDINGKEY"
            | "__transactionId__"
            | "CHECK_IMMUNITY_TIME_IN_SECONDS"
            | "TRANSACTION_CHECK_TIMES"
            | "INNER_NUM"
            | "INNER_MULTI_DISPATCH"
    )
}

pub use crate::SEQUENCE;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn properties_follow_the_rules_of_rocketmq() {
        let text = b"KEYS\x01a b\x02TAGS\x01x\x02\x02=\x01\x02NO\x02TAGS\x01y\x02END\x01z";
        assert_eq!(get(text, "TAGS"), Some("y"));
        assert_eq!(get(text, "END"), Some("z"));
        assert_eq!(get(text, "NO"), None);
        assert_eq!(iter(text).count(), 4);
    }

    #[test]
    fn what_is_no_text_is_skipped() {
        let mixed = b"A\x01\xff\x02B\x01b\x02\xfe\x01c\x02C\x01\xc3\xa9";
        assert_eq!(iter(mixed).collect::<Vec<_>>(), [("B", "b"), ("C", "\u{e9}")]);
        assert_eq!(iter_bytes(mixed).count(), 4);
    }

    proptest! {
        #[test]
        fn a_byte_is_found_where_it_is_first(bytes in proptest::collection::vec(0..4_u8, 0..40)) {
            prop_assert_eq!(find(&bytes, 2), bytes.iter().position(|byte| *byte == 2));
            let wide: Vec<u8> = bytes.iter().map(|byte| byte | 0x80).collect();
            prop_assert_eq!(find(&wide, 2), None);
            prop_assert_eq!(find(&wide, 0x81), wide.iter().position(|byte| *byte == 0x81));
        }

        #[test]
        fn any_properties_are_cut_at_their_separators(text in proptest::collection::vec(prop_oneof![0..3_u8, any::<u8>()], 0..60)) {
            let cut = text.split(|byte| *byte == 2).filter_map(|pair| {
                let at = pair.iter().position(|byte| *byte == 1)?;
                let (name, value) = (&pair[..at], &pair[at + 1..]);
                (!name.is_empty() && !value.is_empty()).then_some((name, value))
            });
            let wanted: Vec<_> = cut.collect();
            let texts: Vec<_> = wanted
                .iter()
                .filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?)))
                .collect();
            prop_assert_eq!(iter(&text).collect::<Vec<_>>(), texts);
            prop_assert_eq!(iter_bytes(&text).collect::<Vec<_>>(), wanted);
        }
    }

    #[test]
    fn replaced_properties_stand_once_and_others_stay() {
        let text = b"KEYS\x01a\x02TAGS\x01x\x02\xff\x01\xfe\x02TAGS\x01y\x02END\x01z";
        let replaced = replace(text, &["END"], &[("TAGS", "new"), ("MORE", "1")]);
        assert_eq!(replaced, b"KEYS\x01a\x02\xff\x01\xfe\x02TAGS\x01new\x02MORE\x011\x02");
        assert_eq!(replace(text, &[], &[]), [&text[..], b"\x02"].concat());
    }
}
