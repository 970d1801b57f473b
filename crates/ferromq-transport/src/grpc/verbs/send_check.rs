//! Checks messages to send by the rules of RocketMQ's proxy, with its codes. No I/O.

use ferromq_store::record::{names, properties};

use super::message::{MAX_TEXTS, Outgoing, SendRequest};
use crate::{
    TransportError,
    grpc::convert::{Refusal, code, has_control},
    hot::SendPolicy,
    tables::{MessageType, TopicEntry},
};

/// RocketMQ's limits on user properties of one message.
const MAX_USER_PROPERTIES: usize = 128;
const MAX_USER_PROPERTY_BYTES: usize = 16 << 10;
/// RocketMQ rejects a message group of 64 bytes.
const MAX_GROUP_BYTES: usize = 63;
/// The longest time until the check-back of a transaction.
const MAX_RECOVERY_SECONDS: i64 = 3_600;

/// Checks a message of a request and returns its type.
pub(in crate::grpc) fn check(
    request: &SendRequest<'_>,
    message: &Outgoing<'_>,
    topic: &TopicEntry,
    policy: &SendPolicy,
) -> Result<MessageType, Refusal> {
    let kind = check_type(message, topic, policy)?;
    if request.messages.len() > 1 && matches!(kind, MessageType::Delay | MessageType::Transaction) {
        let why = format!(
            "a request has several messages, one of type {}; send such a message alone",
            kind.as_str()
        );
        return Err(Refusal::new(code::BAD_REQUEST, why));
    }
    check_texts(request, message)?;
    if let Some(queue_id) = message.queue_id
        && !u32::try_from(queue_id).is_ok_and(|id| id < topic.write_queues)
    {
        let why = format!(
            "topic {} has no queue {queue_id}; it has {} write queues",
            message.topic, topic.write_queues
        );
        return Err(Refusal::new(code::BAD_REQUEST, why));
    }
    check_properties(request, message)?;
    if kind == MessageType::Transaction {
        check_transaction(message, policy)?;
    }
    Ok(kind)
}

/// Returns the type that a request assigns to its topic without a type: that of its messages, if all pass the checks.
pub(in crate::grpc) fn type_to_assign(
    request: &SendRequest<'_>,
    topic: &TopicEntry,
    policy: &SendPolicy,
) -> Result<Option<MessageType>, Refusal> {
    if topic.message_type != MessageType::Undecided || !policy.type_checks.grpc {
        return Ok(None);
    }
    let mut first = None;
    for message in &request.messages {
        let kind = check(request, message, topic, policy)?;
        let takes = *first.get_or_insert(kind);
        if takes != kind {
            let why = wrong_type(message.topic, takes, kind).to_string();
            return Err(Refusal::new(code::MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, why));
        }
    }
    Ok(first)
}

fn wrong_type(topic: &str, takes: MessageType, sent: MessageType) -> TransportError {
    TransportError::WrongMessageType { topic: topic.to_owned(), takes: takes.as_str(), sent: sent.as_str() }
}

/// Returns the type of a message. As in RocketMQ, its fields decide.
pub(in crate::grpc) fn kind(message: &Outgoing<'_>) -> MessageType {
    if message.message_type == wire::TRANSACTION {
        MessageType::Transaction
    } else if message.delivery_timestamp.is_some() {
        MessageType::Delay
    } else if !message.message_group.is_empty() {
        MessageType::Fifo
    } else if message.priority.is_some() {
        MessageType::Priority
    } else if !message.lite_topic.is_empty() {
        MessageType::Lite
    } else {
        MessageType::Normal
    }
}

/// The values of `MessageType` on the wire.
mod wire {
    pub(in crate::grpc) const FIFO: i32 = 2;
    pub(in crate::grpc) const DELAY: i32 = 3;
    pub(in crate::grpc) const TRANSACTION: i32 = 4;
    pub(in crate::grpc) const LITE: i32 = 5;
    pub(in crate::grpc) const PRIORITY: i32 = 6;
}

fn check_type(
    message: &Outgoing<'_>,
    topic: &TopicEntry,
    policy: &SendPolicy,
) -> Result<MessageType, Refusal> {
    let conflict = |why: String| Err(Refusal::new(code::MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, why));
    if message.message_type == wire::LITE || !message.lite_topic.is_empty() {
        return Err(Refusal::new(
            code::UNSUPPORTED,
            "lite topics are not supported yet; send to a normal topic",
        ));
    }
    let kind = kind(message);
    // Stored by its fields alone, it would be delivered at once or out of order, without an error.
    let missing = match message.message_type {
        wire::FIFO if message.message_group.is_empty() => Some("FIFO, but has no message group"),
        wire::DELAY if message.delivery_timestamp.is_none() => Some("DELAY, but has no delivery timestamp"),
        wire::PRIORITY if message.priority.is_none() => Some("PRIORITY, but has no priority"),
        _ => None,
    };
    if let Some(missing) = missing {
        return conflict(format!("the message has the type {missing}"));
    }
    if message.priority.is_some_and(|priority| priority < 0) {
        return Err(Refusal::new(code::BAD_REQUEST, "the priority is negative; 0 is the lowest"));
    }
    if policy.type_checks.grpc && !names::is_of_group(message.topic) && !topic.message_type.takes(kind) {
        return conflict(wrong_type(message.topic, topic.message_type, kind).to_string());
    }
    Ok(kind)
}

/// Whether a text has nothing but white space. Most have something else at once.
fn is_blank(text: &str) -> bool {
    text.chars().all(char::is_whitespace)
}

/// Checks body, id, tag, keys and message group.
fn check_texts(request: &SendRequest<'_>, message: &Outgoing<'_>) -> Result<(), Refusal> {
    if message.body.is_empty() {
        return Err(Refusal::new(code::MESSAGE_BODY_EMPTY, "the message body is empty"));
    }
    if is_blank(message.message_id) || has_control(message.message_id) {
        return Err(Refusal::new(
            code::ILLEGAL_MESSAGE_ID,
            "the message id is blank or has a control character",
        ));
    }
    let is_bad = |text: &str| !text.is_empty() && is_blank(text) || has_control(text);
    let tag = message.tag;
    if is_bad(tag) || tag.contains('|') {
        return Err(Refusal::new(
            code::ILLEGAL_MESSAGE_TAG,
            format!("tag {tag:?} is blank or has a | or a control character"),
        ));
    }
    let keys = request.keys.get(message.keys.clone()).unwrap_or_default();
    if keys.len() > MAX_TEXTS {
        return Err(Refusal::new(
            code::MESSAGE_PROPERTIES_TOO_LARGE,
            format!("the message has more than {MAX_TEXTS} keys"),
        ));
    }
    if let Some(key) = keys.iter().find(|key| is_bad(key)) {
        let why = format!("key {key:?} is blank or has a control character");
        return Err(Refusal::new(code::ILLEGAL_MESSAGE_KEY, why));
    }
    let group = message.message_group;
    if is_bad(group) || group.len() > MAX_GROUP_BYTES {
        let why = format!(
            "message group {:?} is blank, has a control character or more than {MAX_GROUP_BYTES} bytes",
            group.chars().take(100).collect::<String>()
        );
        return Err(Refusal::new(code::ILLEGAL_MESSAGE_GROUP, why));
    }
    Ok(())
}

fn check_properties(request: &SendRequest<'_>, message: &Outgoing<'_>) -> Result<(), Refusal> {
    let illegal = |why: String| Err(Refusal::new(code::ILLEGAL_MESSAGE_PROPERTY_KEY, why));
    let keys = request.keys.get(message.keys.clone()).unwrap_or_default();
    let user = request.properties.get(message.properties.clone()).unwrap_or_default();
    if user.len() > MAX_USER_PROPERTIES {
        let why = format!("the message has more than {MAX_USER_PROPERTIES} user properties");
        return Err(Refusal::new(code::MESSAGE_PROPERTIES_TOO_LARGE, why));
    }
    let mut bytes = message.tag.len() + keys.iter().map(|key| key.len()).sum::<usize>();
    for (name, value) in user {
        if properties::is_reserved(name) {
            return illegal(format!("property {name} is reserved for the system; choose another name"));
        }
        if name.is_empty() || has_control(name) || has_control(value) {
            return illegal(format!(
                "property {name:?} has an empty name, or a control character in its name or value"
            ));
        }
        bytes += name.len() + value.len();
    }
    if has_control(message.trace_context) || has_control(message.born_host) {
        return illegal("the trace context or the born host has a control character".to_owned());
    }
    if bytes > MAX_USER_PROPERTY_BYTES {
        let why = format!(
            "tag, keys and user properties have {bytes} bytes; the limit is {MAX_USER_PROPERTY_BYTES}"
        );
        return Err(Refusal::new(code::MESSAGE_PROPERTIES_TOO_LARGE, why));
    }
    Ok(())
}

fn check_transaction(message: &Outgoing<'_>, policy: &SendPolicy) -> Result<(), Refusal> {
    if policy.rejects_transactions {
        return Err(Refusal::new(code::FORBIDDEN, "the broker does not accept transactions"));
    }
    match message.recovery_seconds {
        Some(seconds) if !(0..=MAX_RECOVERY_SECONDS).contains(&seconds) => {
            let why = format!(
                "the orphaned transaction recovery duration is {seconds} s; it must be 0 to {MAX_RECOVERY_SECONDS} s"
            );
            Err(Refusal::new(code::BAD_REQUEST, why))
        }
        _ => Ok(()),
    }
}
