//! RocketMQ's delay levels: when a message of `SCHEDULE_TOPIC_XXXX` is due.
//!
//! A consume queue of that topic holds the due time in place of the tag hash. Who delivers is not decided here.

/// Where messages with a delay level wait.
const TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
/// RocketMQ's default `messageDelayLevel`.
const LEVELS: [i64; 18] = [
    SECOND,
    5 * SECOND,
    10 * SECOND,
    30 * SECOND,
    MINUTE,
    2 * MINUTE,
    3 * MINUTE,
    4 * MINUTE,
    5 * MINUTE,
    6 * MINUTE,
    7 * MINUTE,
    8 * MINUTE,
    9 * MINUTE,
    10 * MINUTE,
    20 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
];

/// When a waiting message is due, milliseconds since 1970; `None` for every other message.
///
/// `level` is the property `DELAY`; one above the highest counts as the highest.
pub(crate) fn due_at(topic: &str, level: Option<&str>, store_timestamp: i64) -> Option<i64> {
    if topic != TOPIC {
        return None;
    }
    let level: usize = level?.parse().ok()?;
    let delay = LEVELS.get(level.min(LEVELS.len()).checked_sub(1)?)?;
    Some(store_timestamp + delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_waiting_messages_with_a_level_are_due() {
        assert_eq!(due_at(TOPIC, Some("1"), 5), Some(1_005));
        assert_eq!(due_at(TOPIC, Some("18"), 5), Some(7_200_005));
        assert_eq!(due_at(TOPIC, Some("99"), 5), Some(7_200_005));
        for (topic, level) in [(TOPIC, None), (TOPIC, Some("0")), (TOPIC, Some("x")), ("orders", Some("1"))] {
            assert_eq!(due_at(topic, level, 5), None);
        }
    }
}
