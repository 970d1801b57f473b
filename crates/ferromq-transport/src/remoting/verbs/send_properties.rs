//! Reads the properties of a send that the broker interprets, and writes those that are stored. No I/O.
//!
//! Properties are stored as received; only the broker's own names are removed and set.

use ferromq_store::{dedup::SEQUENCE, record::properties};

use crate::{hot::half_message::HALF_NAMES, tables::MessageType};

const SEPARATOR: char = '\u{2}';
/// Names that the broker sets itself, or that a producer must not set.
const BROKER_NAMES: [&str; 4] = ["MSG_REGION", "TRACE_ON", "CLUSTER", "POP_CK"];
const PRIORITY: &str = "_SYS_MSG_PRIORITY_";

/// Properties of a message that the broker interprets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PropertyMarks<'a> {
    /// The producer's own id of the message.
    pub unique_key: Option<&'a str>,
    /// The delay level, not parsed.
    pub delay_level: Option<&'a str>,
    /// Has a delivery time other than a delay level.
    pub has_timer: bool,
    /// Is the half message of a transaction.
    pub is_half: bool,
    /// The response waits until the message is durable.
    pub waits: bool,
    /// Claims to be a batch in one record.
    pub is_inner_batch: bool,
    /// Is for a lite topic.
    pub is_lite: bool,
    /// Its writer numbers messages, so that duplicates are detected.
    pub is_numbered: bool,
    /// Another cluster has accepted it already.
    pub is_transferred: bool,
    is_ordered: bool,
    priority: Option<&'a str>,
    /// Has one of the broker's own names.
    has_broker_name: bool,
}

impl<'a> PropertyMarks<'a> {
    /// Reads the text in one pass. The last of equal names counts, as in RocketMQ.
    pub(super) fn read(text: &'a str) -> Self {
        let mut marks = Self {
            unique_key: None,
            delay_level: None,
            has_timer: false,
            is_half: false,
            waits: true,
            is_inner_batch: false,
            is_lite: false,
            is_numbered: false,
            is_transferred: false,
            is_ordered: false,
            priority: None,
            has_broker_name: false,
        };
        for (name, value) in pairs(text) {
            match name {
                "UNIQ_KEY" => marks.unique_key = Some(value),
                "DELAY" => marks.delay_level = Some(value),
                "TIMER_DELAY_SEC" | "TIMER_DELAY_MS" | "TIMER_DELIVER_MS" => marks.has_timer = true,
                "TRAN_MSG" => marks.is_half = value.eq_ignore_ascii_case("true"),
                "WAIT" => marks.waits = value.eq_ignore_ascii_case("true"),
                "INNER_NUM" => marks.is_inner_batch = true,
                "__SHARDINGKEY" => marks.is_ordered = true,
                "__LITE_TOPIC" => marks.is_lite = true,
                SEQUENCE => marks.is_numbered = true,
                "TRANSFER_FLAG" => marks.is_transferred = true,
                PRIORITY => marks.priority = Some(value),
                _ => marks.has_broker_name |= BROKER_NAMES.contains(&name),
            }
        }
        marks
    }

    /// The delay level; 0 without one, `None` if it is not a number.
    pub(super) fn level(&self) -> Option<i32> {
        self.delay_level.map_or(Some(0), |text| text.parse().ok())
    }

    /// The type of the message, as RocketMQ derives it.
    pub(super) fn kind(&self) -> MessageType {
        if self.is_half {
            MessageType::Transaction
        } else if self.delay_level.is_some() || self.has_timer {
            MessageType::Delay
        } else if self.is_ordered {
            MessageType::Fifo
        } else if self.priority.is_some() {
            MessageType::Priority
        } else if self.is_lite {
            MessageType::Lite
        } else {
            MessageType::Normal
        }
    }

    /// The priority, if no other property decides the order of delivery.
    pub(super) fn priority(&self) -> Option<u32> {
        self.priority.filter(|_| self.kind() == MessageType::Priority)?.parse().ok()
    }
}

/// Appends the properties to store: those received, without the broker's own names, then `stamp`.
pub(super) fn write(
    out: &mut Vec<u8>,
    text: &str,
    marks: &PropertyMarks<'_>,
    (unique_key, stamp): (&str, &[u8]),
) {
    // A priority counts only if no other property decides the order of delivery.
    let has_other_order = marks.priority.is_some() && marks.kind() != MessageType::Priority;
    if marks.has_broker_name || marks.is_half || has_other_order {
        write_if(out, text, |name| {
            !(BROKER_NAMES.contains(&name)
                || marks.is_half && HALF_NAMES.contains(&name)
                || has_other_order && name == PRIORITY)
        });
    } else {
        write_all(out, text);
    }
    if marks.unique_key.is_none() {
        properties::push(out, "UNIQ_KEY", unique_key);
    }
    out.extend_from_slice(stamp);
}

/// Copies the text, with a separator after its last pair.
fn write_all(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    if !text.is_empty() && !text.ends_with(SEPARATOR) {
        out.push(SEPARATOR as u8);
    }
}

/// Copies the pairs whose names are wanted.
pub(super) fn write_if(out: &mut Vec<u8>, text: &str, is_wanted: impl Fn(&str) -> bool) {
    for (name, value) in pairs(text).filter(|(name, _)| is_wanted(name)) {
        properties::push(out, name, value);
    }
}

/// Pairs of name and value. Empty ones count as absent, as in RocketMQ.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(SEPARATOR)
        .filter_map(|pair| pair.split_once('\u{1}'))
        .filter(|(name, value)| !name.is_empty() && !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pairs: &[(&str, &str)]) -> String {
        pairs.iter().map(|(name, value)| format!("{name}\u{1}{value}\u{2}")).collect()
    }

    fn written(given: &str, stamp: &[(&str, &str)]) -> String {
        let mut out = Vec::new();
        write(&mut out, given, &PropertyMarks::read(given), ("NEW", text(stamp).as_bytes()));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_marks_of_a_message_are_read_in_one_pass() {
        let given = text(&[
            ("KEYS", "a b"),
            ("UNIQ_KEY", "7F"),
            ("DELAY", "3"),
            ("TRAN_MSG", "true"),
            ("WAIT", "false"),
            ("TIMER_DELAY_SEC", "9"),
            ("INNER_NUM", "2"),
        ]);
        let marks = PropertyMarks::read(&given);
        assert_eq!((marks.unique_key, marks.level()), (Some("7F"), Some(3)));
        assert!(marks.is_half && !marks.waits && marks.has_timer && marks.is_inner_batch);
        let plain = PropertyMarks::read("WAIT\u{1}true\u{2}TRAN_MSG\u{1}\u{2}NOTHING");
        assert!(plain.waits && !plain.is_half && plain.level() == Some(0));
        assert_eq!(PropertyMarks::read("DELAY\u{1}soon").level(), None);
    }

    #[test]
    fn properties_pass_through_as_they_came_and_get_the_brokers_stamp() {
        let given = text(&[("KEYS", "a"), ("UNIQ_KEY", "7F"), ("mine", "ü")]);
        let stamp = [("CLUSTER", "c")];
        assert_eq!(written(&given, &stamp), given.clone() + &text(&stamp));
        // The last pair needs no separator.
        assert_eq!(written(given.trim_end_matches('\u{2}'), &stamp), given + &text(&stamp));
        assert_eq!(written("", &stamp), text(&[("UNIQ_KEY", "NEW"), ("CLUSTER", "c")]));
    }

    #[test]
    fn the_brokers_own_names_are_not_taken_from_a_producer() {
        let given = text(&[("CLUSTER", "other"), ("POP_CK", "1 2 3"), ("KEYS", "a"), ("UNIQ_KEY", "7F")]);
        let wanted = text(&[("KEYS", "a"), ("UNIQ_KEY", "7F"), ("CLUSTER", "c")]);
        assert_eq!(written(&given, &[("CLUSTER", "c")]), wanted);
    }

    #[test]
    fn a_producer_cannot_set_the_target_of_its_half_message() {
        let given = text(&[("REAL_TOPIC", "lie"), ("UNIQ_KEY", "7F"), ("TRAN_MSG", "true")]);
        assert_eq!(written(&given, &[]), text(&[("UNIQ_KEY", "7F"), ("TRAN_MSG", "true")]));
    }

    #[test]
    fn the_type_of_a_message_is_what_rocketmq_concludes() {
        let kind = |given: &[(&str, &str)]| PropertyMarks::read(&text(given)).kind();
        let priority = ("_SYS_MSG_PRIORITY_", "3");
        assert_eq!(kind(&[]), MessageType::Normal);
        assert_eq!(kind(&[("__LITE_TOPIC", "l")]), MessageType::Lite);
        assert_eq!(kind(&[("__LITE_TOPIC", "l"), priority]), MessageType::Priority);
        assert_eq!(kind(&[("__SHARDINGKEY", "k"), priority]), MessageType::Fifo);
        assert_eq!(kind(&[("__SHARDINGKEY", "k"), ("TIMER_DELAY_MS", "9")]), MessageType::Delay);
        assert_eq!(kind(&[("DELAY", "3"), ("TRAN_MSG", "true")]), MessageType::Transaction);
        assert_eq!(PropertyMarks::read(&text(&[priority])).priority(), Some(3));
    }

    #[test]
    fn the_priority_of_a_message_with_another_order_is_left_out() {
        let given = text(&[("_SYS_MSG_PRIORITY_", "3"), ("__SHARDINGKEY", "k"), ("UNIQ_KEY", "7F")]);
        assert_eq!(PropertyMarks::read(&given).priority(), None);
        assert_eq!(written(&given, &[]), text(&[("__SHARDINGKEY", "k"), ("UNIQ_KEY", "7F")]));
        let kept = text(&[("_SYS_MSG_PRIORITY_", "3"), ("UNIQ_KEY", "7F")]);
        assert_eq!(written(&kept, &[]), kept);
    }
}
