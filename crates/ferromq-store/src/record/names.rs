//! The names that RocketMQ fixes: its own topics, prefixes of the topics it derives from a group, and what names look like.

/// Before the name of a group: its retry topic.
pub const RETRY_PREFIX: &str = "%RETRY%";
/// Before the name of a group: the topic of its dead letters.
pub const DLQ_PREFIX: &str = "%DLQ%";

/// Messages with a delay level, until they are due.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Messages with a time of delivery of their own, until then.
pub const TIMER_TOPIC: &str = "rmq_sys_wheel_timer";
/// Half messages, until their transaction ends.
pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// The marks of transactions that ended.
const OP_HALF_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
const TRANSACTION_CHECK_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
const SELF_TEST_TOPIC: &str = "SELF_TEST_TOPIC";
const OFFSET_MOVED_TOPIC: &str = "OFFSET_MOVED_EVENT";

/// Says whether the messages of a topic wait there until they go elsewhere.
#[must_use]
pub fn is_waiting_room(topic: &str) -> bool {
    matches!(topic, SCHEDULE_TOPIC | TIMER_TOPIC | HALF_TOPIC)
}

/// Says whether no consumer ever gets messages of a topic.
#[must_use]
pub fn is_never_consumed(topic: &str) -> bool {
    is_waiting_room(topic) || topic == OP_HALF_TOPIC
}

/// Says whether only the broker writes a topic.
#[must_use]
pub fn is_closed_to_clients(topic: &str) -> bool {
    is_never_consumed(topic)
        || matches!(topic, TRANSACTION_CHECK_TOPIC | SELF_TEST_TOPIC | OFFSET_MOVED_TOPIC)
}

/// Says whether RocketMQ's proxy keeps a topic from its clients.
#[must_use]
pub fn is_system_topic(topic: &str) -> bool {
    is_closed_to_clients(topic)
        || topic.starts_with("rmq_sys_")
        || matches!(topic, "TBW102" | "BenchmarkTest" | "RMQ_SYS_TRACE_TOPIC" | "CHECKPOINT_TOPIC")
}

/// Says whether a topic is the retry or dead-letter topic of a group.
#[must_use]
pub fn is_of_group(topic: &str) -> bool {
    topic.starts_with(RETRY_PREFIX) || topic.starts_with(DLQ_PREFIX)
}

/// Says whether the broker fills a topic with copies of messages that it checked when they were sent.
pub(crate) fn holds_copies(topic: &str) -> bool {
    is_of_group(topic) || topic.starts_with("RMQ_SYS_")
}

/// Says whether the names of topics and groups may hold each byte of `name`.
#[must_use]
pub fn has_legal_bytes(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'|' | b'-' | b'_'))
}

/// The longest name of a topic that begins like `topic`, in bytes.
#[must_use]
pub fn max_topic_len(topic: &str) -> usize {
    if is_of_group(topic) { 255 } else { 127 }
}

/// Java's `String.hashCode`, continued from `hash` (0 at the beginning).
#[must_use]
pub fn java_hash(hash: i32, text: &str) -> i32 {
    let add = |hash: i32, unit: u16| hash.wrapping_mul(31).wrapping_add(i32::from(unit));
    if text.is_ascii() {
        text.bytes().map(u16::from).fold(hash, add)
    } else {
        text.encode_utf16().fold(hash, add)
    }
}
