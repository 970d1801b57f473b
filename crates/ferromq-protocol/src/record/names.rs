//! Names that RocketMQ fixes: system topics, prefixes of a group's topics, and the rules for names.

use std::borrow::Cow;

/// Prefix of a group's retry topic.
pub const RETRY_PREFIX: &str = "%RETRY%";
/// Prefix of a group's dead-letter topic.
pub const DLQ_PREFIX: &str = "%DLQ%";

/// Topic of messages with a delay level until their delivery.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Topic of messages with a delivery time until their delivery.
pub const TIMER_TOPIC: &str = "rmq_sys_wheel_timer";
/// Topic of half messages until their transaction ends.
pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// Topic of the marks of ended transactions.
const OP_HALF_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
const TRANSACTION_CHECK_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
const SELF_TEST_TOPIC: &str = "SELF_TEST_TOPIC";
const OFFSET_MOVED_TOPIC: &str = "OFFSET_MOVED_EVENT";

/// Whether messages wait in this topic for another one.
#[must_use]
pub fn is_waiting_room(topic: &str) -> bool {
    matches!(topic, SCHEDULE_TOPIC | TIMER_TOPIC | HALF_TOPIC)
}

/// Whether consumers never get messages of this topic.
#[must_use]
pub fn is_never_consumed(topic: &str) -> bool {
    is_waiting_room(topic) || topic == OP_HALF_TOPIC
}

/// Whether only the broker writes to this topic.
#[must_use]
pub fn is_closed_to_clients(topic: &str) -> bool {
    is_never_consumed(topic)
        || matches!(topic, TRANSACTION_CHECK_TOPIC | SELF_TEST_TOPIC | OFFSET_MOVED_TOPIC)
}

/// Whether RocketMQ's proxy hides this topic from its clients.
#[must_use]
pub fn is_system_topic(topic: &str) -> bool {
    is_closed_to_clients(topic)
        || topic.starts_with("rmq_sys_")
        || matches!(topic, "TBW102" | "BenchmarkTest" | "RMQ_SYS_TRACE_TOPIC" | "CHECKPOINT_TOPIC")
}

/// Whether the topic is a group's retry or dead-letter topic.
#[must_use]
pub fn is_of_group(topic: &str) -> bool {
    topic.starts_with(RETRY_PREFIX) || topic.starts_with(DLQ_PREFIX)
}

/// Whether the broker fills the topic with copies of messages checked at their send.
pub fn holds_copies(topic: &str) -> bool {
    is_of_group(topic) || topic.starts_with("RMQ_SYS_")
}

/// Whether the names of topics and groups may hold each byte of `name`.
#[must_use]
pub fn has_legal_bytes(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'|' | b'-' | b'_'))
}

/// Longest name of a topic that begins like `topic`, in bytes.
#[must_use]
pub fn max_topic_len(topic: &str) -> usize {
    if is_of_group(topic) { 255 } else { 127 }
}

/// The name of a topic in a namespace; a name that is in another one or in none, as it is.
#[must_use]
pub fn without_namespace<'a>(namespace: &str, whole: &'a str) -> Cow<'a, str> {
    let prefix = [RETRY_PREFIX, DLQ_PREFIX].into_iter().find(|prefix| whole.starts_with(prefix));
    let rest = whole.strip_prefix(prefix.unwrap_or_default()).unwrap_or(whole);
    match (rest.strip_prefix(namespace).and_then(|rest| rest.strip_prefix('%')), prefix) {
        (Some(name), None) => Cow::Borrowed(name),
        (Some(name), Some(prefix)) => Cow::Owned(format!("{prefix}{name}")),
        (None, _) => Cow::Borrowed(whole),
    }
}

/// Java's `String.hashCode`, continued from `hash`, which is 0 at the beginning.
#[must_use]
pub fn java_hash(hash: i32, text: &str) -> i32 {
    let add = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
    if text.is_ascii() {
        text.bytes().map(u16::from).fold(hash, add)
    } else {
        text.encode_utf16().fold(hash, add)
    }
}
