//! Codes, statuses, receipt handles and names of the gRPC protocol.
//!
//! Every error of the hot path gets its code here, in one match. The meaning of requests is not decided here.

use std::{borrow::Cow, fmt::Write};

use ferromq_store::{StoreError, progress::ReceiptHandle, record::names};

use crate::{
    TransportError,
    access::AccessRefused,
    connections::log_limiter::LogLimiter,
    hot::{pop_retries::marked_topic, receive::ORDERED_REVIVE_QUEUE},
    limits::{LimitReached, TooManyConnections},
    protobuf::{Fields, bytes_field_len, put_bytes_field, put_len_prefix, put_varint_field, varint_len},
};

/// The values of `apache.rocketmq.v2.Code` that the hot path answers with.
pub mod code {
    #![allow(missing_docs)] // the names are RocketMQ's
    pub const OK: i32 = 20_000;
    pub const MULTIPLE_RESULTS: i32 = 30_000;
    pub const BAD_REQUEST: i32 = 40_000;
    pub const ILLEGAL_TOPIC: i32 = 40_002;
    pub const ILLEGAL_CONSUMER_GROUP: i32 = 40_003;
    pub const ILLEGAL_MESSAGE_TAG: i32 = 40_004;
    pub const ILLEGAL_MESSAGE_KEY: i32 = 40_005;
    pub const ILLEGAL_MESSAGE_GROUP: i32 = 40_006;
    pub const ILLEGAL_MESSAGE_PROPERTY_KEY: i32 = 40_007;
    pub const ILLEGAL_MESSAGE_ID: i32 = 40_009;
    pub const ILLEGAL_FILTER_EXPRESSION: i32 = 40_010;
    pub const ILLEGAL_INVISIBLE_TIME: i32 = 40_011;
    pub const INVALID_RECEIPT_HANDLE: i32 = 40_013;
    pub const ILLEGAL_DELIVERY_TIME: i32 = 40_012;
    pub const MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: i32 = 40_014;
    pub const MESSAGE_CORRUPTED: i32 = 40_016;
    pub const CLIENT_ID_REQUIRED: i32 = 40_017;
    pub const ILLEGAL_POLLING_TIME: i32 = 40_018;
    pub const ILLEGAL_OFFSET: i32 = 40_019;
    pub const UNAUTHORIZED: i32 = 40_100;
    pub const FORBIDDEN: i32 = 40_300;
    pub const MESSAGE_NOT_FOUND: i32 = 40_401;
    pub const TOPIC_NOT_FOUND: i32 = 40_402;
    pub const CONSUMER_GROUP_NOT_FOUND: i32 = 40_403;
    pub const MESSAGE_BODY_TOO_LARGE: i32 = 41_301;
    pub const MESSAGE_BODY_EMPTY: i32 = 41_302;
    pub const TOO_MANY_REQUESTS: i32 = 42_900;
    pub const MESSAGE_PROPERTIES_TOO_LARGE: i32 = 43_101;
    pub const INTERNAL_SERVER_ERROR: i32 = 50_001;
    pub const MASTER_PERSISTENCE_TIMEOUT: i32 = 50_401;
    pub const UNSUPPORTED: i32 = 50_500;
}

/// The refusal of an expired receipt handle. Begins with RocketMQ's text.
const EXPIRED: &str =
    "receipt handle is expired: its lease ended or was changed, or its message is already acknowledged";

/// Why a request is refused: a code and a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub code: i32,
    pub message: Cow<'static, str>,
}

impl Refusal {
    pub(super) fn new(code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    fn no_topic(topic: &str) -> Self {
        Self::new(
            code::TOPIC_NOT_FOUND,
            format!("topic {topic} does not exist; create it, or let the broker create topics on first use"),
        )
    }

    fn no_group(group: &str) -> Self {
        Self::new(
            code::CONSUMER_GROUP_NOT_FOUND,
            format!(
                "consumer group {group} does not exist; create it, or let the broker create groups on first use"
            ),
        )
    }
}

impl From<AccessRefused> for Refusal {
    fn from(refused: AccessRefused) -> Self {
        refused.log();
        Self::new(code::UNAUTHORIZED, refused.to_string())
    }
}

impl From<LimitReached> for Refusal {
    fn from(reached: LimitReached) -> Self {
        Self::new(code::TOO_MANY_REQUESTS, reached.to_string())
    }
}

impl From<TooManyConnections> for Refusal {
    fn from(reached: TooManyConnections) -> Self {
        Self::new(code::TOO_MANY_REQUESTS, reached.to_string())
    }
}

impl From<TransportError> for Refusal {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::NoSuchTopic(topic) => Self::no_topic(&topic),
            TransportError::NoSuchGroup(group) => Self::no_group(&group),
            TransportError::Busy(_) | TransportError::Slave => {
                Self::new(code::TOO_MANY_REQUESTS, error.to_string())
            }
            TransportError::Store(error) => error.into(),
            TransportError::Forbidden(_)
            | TransportError::TopicForbidden { .. }
            | TransportError::TopicDrained(_) => Self::new(code::FORBIDDEN, error.to_string()),
            TransportError::BadTopicName { .. } => Self::new(code::ILLEGAL_TOPIC, error.to_string()),
            TransportError::IllegalMessage(_) => Self::new(code::MESSAGE_CORRUPTED, error.to_string()),
            error => Self::new(code::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::TooLarge { what, .. } => match *what {
                "properties" => code::MESSAGE_PROPERTIES_TOO_LARGE,
                "topic" => code::ILLEGAL_TOPIC,
                _ => code::MESSAGE_BODY_TOO_LARGE,
            },
            StoreError::Invalid { what, .. } => match *what {
                "topic" => code::ILLEGAL_TOPIC,
                _ => code::BAD_REQUEST,
            },
            StoreError::TooFarAhead { .. } => code::ILLEGAL_DELIVERY_TIME,
            StoreError::StaleReceipt => code::INVALID_RECEIPT_HANDLE,
            StoreError::QueueClosed { .. } | StoreError::DedupFull { .. } => code::FORBIDDEN,
            StoreError::NoRecord { .. } => code::MESSAGE_NOT_FOUND,
            StoreError::NotDurable { .. } => code::MASTER_PERSISTENCE_TIMEOUT,
            StoreError::Io { .. } | StoreError::Corrupt { .. } => {
                static FAILED: LogLimiter = LogLimiter::new();
                FAILED.log(|suppressed| tracing::error!(%error, suppressed, "store failed"));
                code::INTERNAL_SERVER_ERROR
            }
            StoreError::Locked { .. }
            | StoreError::Full { .. }
            | StoreError::QueueSetAside { .. }
            | StoreError::DispatchStalled { .. }
            | StoreError::Poisoned
            | StoreError::Closed => code::INTERNAL_SERVER_ERROR,
            // Errors that later versions of the store add are the server's fault.
            _ => code::INTERNAL_SERVER_ERROR,
        };
        match error {
            StoreError::StaleReceipt => Self::new(code, EXPIRED),
            error => Self::new(code, error.to_string()),
        }
    }
}

/// Appends a `Status` as field `number`.
pub(super) fn put_status(out: &mut Vec<u8>, number: u32, code: i32, message: &str) {
    let code = i64::from(code).cast_unsigned();
    put_len_prefix(out, number, 1 + varint_len(code) + bytes_field_len(2, message.len()));
    put_varint_field(out, 1, code);
    put_bytes_field(out, 2, message.as_bytes());
}

/// Returns the code of the status that an encoded response has as field 1, as [`put_status`] writes it; 0 without one.
pub(super) fn status_code(response: &[u8]) -> i32 {
    let first = |message, number| match Fields::new(message).next() {
        Some(Ok((found, value))) if found == number => Some(value),
        _ => None,
    };
    let status = first(response, 1).and_then(|status| status.bytes().ok());
    status.and_then(|status| first(status, 1)).and_then(|code| code.int32().ok()).unwrap_or(0)
}

/// Appends a `Timestamp` as field `number`.
pub(super) fn put_timestamp(out: &mut Vec<u8>, number: u32, ms: i64) {
    let seconds = ms.div_euclid(1_000).cast_unsigned();
    let nanos = (ms.rem_euclid(1_000) * 1_000_000).cast_unsigned();
    put_len_prefix(out, number, 2 + varint_len(seconds) + varint_len(nanos));
    put_varint_field(out, 1, seconds);
    put_varint_field(out, 2, nanos);
}

/// Appends a `Duration` as field `number`.
pub(super) fn put_duration(out: &mut Vec<u8>, number: u32, ms: i64) {
    put_timestamp(out, number, ms.max(0));
}

/// Appends RocketMQ's text of a receipt handle: start offset, pop time, invisible milliseconds, revive queue, kind of
/// topic, broker, queue, queue offset, physical offset. ferromq has no revive queues: that field is 0, or RocketMQ's
/// mark of an ordered receive. Messages are leased one by one, so the start offset is the message's own.
pub(super) fn write_handle(
    out: &mut String,
    handle: &ReceiptHandle,
    broker_name: &str,
    physical_offset: i64,
    is_ordered: bool,
    topic_mark: u8,
) {
    let ReceiptHandle { queue_id, queue_offset, pop_time, invisible_ms } = *handle;
    let revive_queue = if is_ordered { ORDERED_REVIVE_QUEUE } else { 0 };
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "{queue_offset} {pop_time} {invisible_ms} {revive_queue} {topic_mark} {broker_name} {queue_id} {queue_offset} {physical_offset}"
    );
}

/// Returns the topic that holds the message of a receipt handle received from `topic`, and the mark of that topic.
pub(super) fn handle_topic<'a>(handle: &str, group: &str, topic: &'a str) -> (Cow<'a, str>, u8) {
    let mark = handle.split(' ').nth(4).unwrap_or("0");
    let found = marked_topic(topic, group, mark);
    found.map_or((Cow::Borrowed(topic), 0), |found| (found, mark.parse().unwrap_or(0)))
}

/// Returns whether a receipt handle belongs to an ordered receive.
pub(super) fn is_in_order(handle: &str) -> bool {
    handle.split(' ').nth(3).and_then(|field| field.parse().ok()) == Some(ORDERED_REVIVE_QUEUE)
}

/// Why a receipt handle of another broker is refused.
pub(super) const ANOTHER_BROKER: &str = "the receipt handle belongs to another broker";

/// Parses a receipt handle of this broker. The second value is its physical offset, or -1 if it has none.
pub(super) fn parse_handle(text: &str, broker_name: &str) -> Result<(ReceiptHandle, i64), Refusal> {
    let refused = |why: &'static str| Refusal::new(code::INVALID_RECEIPT_HANDLE, why);
    let mut fields = text.split(' ');
    let mut next = || fields.next().ok_or_else(|| refused("the receipt handle has too few fields"));
    let (_start_offset, pop_time, invisible_ms) = (next()?, next()?, next()?);
    let (_revive_queue, _topic_kind, broker) = (next()?, next()?, next()?);
    let (queue_id, queue_offset) = (next()?, next()?);
    let physical_offset = next().unwrap_or("-1");
    if broker != broker_name {
        return Err(refused(ANOTHER_BROKER));
    }
    let number = |_| refused("the receipt handle has an invalid number");
    let handle = ReceiptHandle {
        queue_id: queue_id.parse().map_err(number)?,
        queue_offset: queue_offset.parse().map_err(number)?,
        pop_time: pop_time.parse().map_err(number)?,
        invisible_ms: invisible_ms.parse().map_err(number)?,
    };
    Ok((handle, physical_offset.parse().map_err(number)?))
}

/// Returns whether a text has a control character in Java's sense. Records separate properties by such characters.
pub(super) fn has_control(text: &str) -> bool {
    let bytes = text.as_bytes();
    // Without an early end: the compiler looks at many bytes at once.
    let is_odd = |byte: u8| (byte < 0x20) | (byte == 0x7f) | (byte == 0xc2);
    if !bytes.iter().fold(false, |any, &byte| any | is_odd(byte)) {
        return false;
    }
    bytes.iter().any(|&b| b < 0x20 || b == 0x7f)
        || bytes.windows(2).any(|pair| matches!(pair, [0xc2, 0x80..=0x9f]))
}

/// Checks a topic name by RocketMQ's rules.
pub(super) fn check_topic(name: &str) -> Result<(), Refusal> {
    let refused = |why: &str| Err(Refusal::new(code::ILLEGAL_TOPIC, format!("topic {name:?} {why}")));
    match name {
        "" => refused("is empty"),
        _ if !names::has_legal_bytes(name) => {
            refused("has an illegal character; allowed are letters, digits, %, |, - and _")
        }
        _ if name.len() > names::max_topic_len(name) => {
            refused(&format!("is longer than {} characters", names::max_topic_len(name)))
        }
        _ if names::is_system_topic(name) => refused("is a system topic"),
        _ => Ok(()),
    }
}

/// Checks the name of a consumer group by RocketMQ's rules.
pub(super) fn check_group(name: &str) -> Result<(), Refusal> {
    let refused =
        |why: &str| Err(Refusal::new(code::ILLEGAL_CONSUMER_GROUP, format!("consumer group {name:?} {why}")));
    match name {
        "" => refused("is empty"),
        _ if !names::has_legal_bytes(name) => {
            refused("has an illegal character; allowed are letters, digits, %, |, - and _")
        }
        _ if name.len() > 120 => refused("is longer than 120 characters"),
        _ if name.starts_with("CID_RMQ_SYS_") => refused("is a system group"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_handle_has_rocketmqs_fields() {
        let handle = ReceiptHandle { queue_id: 3, queue_offset: 17, pop_time: 1_700, invisible_ms: 30_000 };
        let mut text = String::new();
        write_handle(&mut text, &handle, "broker-a", 4_096, true, 0);
        assert_eq!(text, "17 1700 30000 999 0 broker-a 3 17 4096");
        assert!(is_in_order(&text));
        text.clear();
        write_handle(&mut text, &handle, "broker-a", 4_096, false, 0);
        assert_eq!(text, "17 1700 30000 0 0 broker-a 3 17 4096");
        assert!(!is_in_order(&text));
        assert_eq!(parse_handle(&text, "broker-a").unwrap(), (handle, 4_096));
        assert_eq!(parse_handle("17 1700 30000 0 0 broker-a 3 17", "broker-a").unwrap(), (handle, -1));
        assert_eq!(parse_handle(&text, "broker-b").unwrap_err().code, code::INVALID_RECEIPT_HANDLE);
    }

    #[test]
    fn names_follow_rocketmqs_rules() {
        for good in ["flights", "%RETRY%group", "a|b-c_d", &"x".repeat(127)] {
            assert!(check_topic(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "tür", "a@b", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", &"x".repeat(128)] {
            assert_eq!(check_topic(bad).unwrap_err().code, code::ILLEGAL_TOPIC, "{bad}");
        }
        assert!(check_group("billing").is_ok());
        for bad in ["", "a b", &"x".repeat(121)] {
            assert_eq!(check_group(bad).unwrap_err().code, code::ILLEGAL_CONSUMER_GROUP, "{bad}");
        }
    }

    #[test]
    fn a_full_disk_and_a_large_body_have_their_own_codes() {
        let large = StoreError::TooLarge { what: "message body", len: 9, limit: 8 };
        assert_eq!(Refusal::from(large).code, code::MESSAGE_BODY_TOO_LARGE);
        let large = StoreError::TooLarge { what: "properties", len: 9, limit: 8 };
        assert_eq!(Refusal::from(large).code, code::MESSAGE_PROPERTIES_TOO_LARGE);
        assert_eq!(Refusal::from(StoreError::StaleReceipt).code, code::INVALID_RECEIPT_HANDLE);
        assert_eq!(Refusal::from(StoreError::Poisoned).code, code::INTERNAL_SERVER_ERROR);
        let missing = Refusal::from(StoreError::NoRecord { physical_offset: 7, nearest: Some(5) });
        assert_eq!(missing.code, code::MESSAGE_NOT_FOUND);
        assert!(missing.message.contains("begins at 5"), "{}", missing.message);
    }

    #[test]
    fn a_failed_flush_leaves_the_outcome_open_and_a_closed_queue_forbids() {
        let failed = StoreError::NotDurable { cause: "EIO".into() };
        assert_eq!(Refusal::from(failed).code, code::MASTER_PERSISTENCE_TIMEOUT);
        let closed = StoreError::QueueClosed { topic: "orders".to_owned(), queue_id: 3 };
        assert_eq!(Refusal::from(closed).code, code::FORBIDDEN);
    }

    proptest! {
        #[test]
        fn control_characters_are_those_of_java(text in "\\PC{0,6}[\\x00-\\xff]{0,6}") {
            prop_assert_eq!(has_control(&text), text.chars().any(char::is_control));
        }

        #[test]
        fn any_text_is_a_handle_or_a_refusal(text in "[0-9 a-z-]{0,60}") {
            if let Err(refusal) = parse_handle(&text, "broker-a") {
                prop_assert_eq!(refusal.code, code::INVALID_RECEIPT_HANDLE);
            }
        }
    }
}
