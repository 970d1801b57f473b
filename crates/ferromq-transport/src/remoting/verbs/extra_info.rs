//! RocketMQ's text fields of a pop: the first offset and the offsets of each queue in the response, and the handle that
//! a client builds from them.
//!
//! Entries are joined by `;`, their fields by spaces. The first field marks the topic: 0 the requested one, 1 and 2 the
//! old and the new form of the group's retry topic. A client's handle is
//! `start pop-time invisible-ms revive-queue topic-mark broker queue offset`. The broker finds a lease by queue, offset
//! and pop time; all messages of a response share the pop time.

use std::fmt::Write as _;

use ferromq_store::progress::Leased;

use crate::TransportError;
pub(super) use crate::hot::{
    pop_retries::{mark, marked_topic},
    receive::ORDERED_REVIVE_QUEUE,
};

/// The offsets of a response's messages.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct OffsetInfo {
    /// `mark queue start` of each queue.
    pub start: String,
    /// `mark queue offset,offset,…` of each queue, in the order of the body.
    pub messages: String,
}

/// The earlier deliveries of the messages of an ordered pop: `mark qoQUEUE%OFFSET times` for each redelivered message
/// and, for old clients, `mark queue times` with the least count of each queue.
pub(super) fn order_counts(topic: &str, leased: &[Leased]) -> String {
    let of = |leased: &Leased| {
        (leased.handle.queue_id, leased.handle.queue_offset, leased.attempt.saturating_sub(1))
    };
    count_offsets(mark(topic), &leased.iter().map(of).collect::<Vec<_>>())
}

fn count_offsets(mark: u8, messages: &[(u32, u64, u32)]) -> String {
    let mut out = String::new();
    for queue in messages.chunk_by(|a, b| a.0 == b.0) {
        let Some(&(queue_id, ..)) = queue.first() else { continue };
        // Writing to a String cannot fail.
        for (_, offset, times) in queue.iter().filter(|(.., times)| *times > 0) {
            let _ = write!(out, "{mark} qo{queue_id}%{offset} {times};");
        }
        let least = queue.iter().map(|(.., times)| *times).min().unwrap_or_default();
        let _ = write!(out, "{mark} {queue_id} {least};");
    }
    out.pop();
    out
}

/// Describes messages in the order of the body, where those of a queue are consecutive.
pub(super) fn describe(topic: &str, leased: &[Leased]) -> OffsetInfo {
    let offsets = leased.iter().map(|leased| (leased.handle.queue_id, leased.handle.queue_offset));
    describe_offsets(mark(topic), &offsets.collect::<Vec<_>>())
}

fn describe_offsets(mark: u8, offsets: &[(u32, u64)]) -> OffsetInfo {
    let mut info = OffsetInfo::default();
    for queue in offsets.chunk_by(|a, b| a.0 == b.0) {
        let Some(&(queue_id, _)) = queue.first() else { continue };
        if !info.start.is_empty() {
            info.start.push(';');
            info.messages.push(';');
        }
        // Writing to a String cannot fail.
        let start = queue.iter().map(|(_, offset)| *offset).min().unwrap_or_default();
        let _ = write!(info.start, "{mark} {queue_id} {start}");
        let _ = write!(info.messages, "{mark} {queue_id} ");
        for (index, (_, offset)) in queue.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(info.messages, "{comma}{offset}");
        }
    }
    info
}

/// The part of a client's handle that finds the lease. Queue and offset are fields of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PopHandle {
    pub pop_time: i64,
    pub invisible_ms: i64,
    pub revive_queue: i32,
}

/// Parses a client's handle.
///
/// # Errors
/// `BadField`.
pub(super) fn parse(extra_info: &str) -> Result<PopHandle, TransportError> {
    let bad = |reason| TransportError::BadField { name: "extraInfo", reason };
    let mut fields = extra_info.split(' ').skip(1);
    let mut next = || fields.next().ok_or_else(|| bad("it has too few parts"));
    let number = |_| bad("it has a part that is not a number in range");
    let (pop_time, invisible_ms, revive_queue) = (next()?, next()?, next()?);
    Ok(PopHandle {
        pop_time: pop_time.parse().map_err(number)?,
        invisible_ms: invisible_ms.parse().map_err(number)?,
        revive_queue: revive_queue.parse().map_err(number)?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_of_a_pop_in_order_are_those_of_java() {
        let text = count_offsets(0, &[(3, 7, 2), (3, 8, 0), (1, 4, 1), (1, 5, 3)]);
        assert_eq!(text, "0 qo3%7 2;0 3 0;0 qo1%4 1;0 qo1%5 3;0 1 1");
        assert_eq!(count_offsets(0, &[]), "");
    }

    #[test]
    fn the_texts_are_those_java_reads() {
        let info = describe_offsets(0, &[(3, 7), (3, 5), (1, 90)]);
        assert_eq!((&info.start[..], &info.messages[..]), ("0 3 5;0 1 90", "0 3 7,5;0 1 90"));
        assert_eq!(describe_offsets(0, &[]), OffsetInfo::default());
        assert_eq!((mark("t"), mark("%RETRY%g_t"), mark("%RETRY%g+t")), (0, 1, 2));
        for marked in ["t", "%RETRY%g_t", "%RETRY%g+t"] {
            let mark = mark(marked).to_string();
            assert_eq!(marked_topic("t", "g", &mark).as_deref(), Some(marked));
        }
        assert_eq!(marked_topic("t", "g", "3"), None);
    }

    #[test]
    fn a_handle_java_made_is_read() {
        let handle = parse("5 1700000000000 60000 2 0 broker-a 3 7").unwrap();
        assert_eq!(handle, PopHandle { pop_time: 1_700_000_000_000, invisible_ms: 60_000, revive_queue: 2 });
        for bad in ["", "5", "5 1 2", "5 x 2 3", "5 1 2 99999999999"] {
            assert!(matches!(parse(bad), Err(TransportError::BadField { .. })), "{bad:?}");
        }
    }

    /// Builds each message's handle from the texts of `describe`, as Java's client does.
    fn handles(info: &OffsetInfo, pop_time: i64) -> Vec<(u32, u64, String)> {
        let starts = info.start.split(';').map(|entry| {
            let fields: Vec<&str> = entry.split(' ').collect();
            (fields[1].to_owned(), fields[2].to_owned())
        });
        let starts: std::collections::HashMap<_, _> = starts.collect();
        let mut handles = Vec::new();
        for entry in info.messages.split(';') {
            let fields: Vec<&str> = entry.split(' ').collect();
            for offset in fields[2].split(',') {
                let text = format!("{} {pop_time} 60000 0 0 b {} {offset}", starts[fields[1]], fields[1]);
                handles.push((fields[1].parse().unwrap(), offset.parse().unwrap(), text));
            }
        }
        handles
    }

    proptest! {
        #[test]
        fn each_message_of_an_answer_gets_its_handle(
            queues in prop::collection::btree_map(0..64u32, prop::collection::btree_set(0..10_000u64, 1..20), 1..9),
            pop_time in 0..i64::MAX,
        ) {
            let offsets: Vec<_> =
                queues.iter().flat_map(|(queue, offsets)| offsets.iter().map(|offset| (*queue, *offset))).collect();
            let handles = handles(&describe_offsets(0, &offsets), pop_time);
            prop_assert_eq!(handles.len(), offsets.len());
            for ((queue, offset, text), expected) in handles.into_iter().zip(offsets) {
                prop_assert_eq!((queue, offset), expected);
                prop_assert_eq!(parse(&text).unwrap().pop_time, pop_time);
            }
        }

        #[test]
        fn any_text_is_a_handle_or_refused(text in "\\PC{0,40}|[0-9 -]{0,60}") {
            let _ = parse(&text);
        }
    }
}
