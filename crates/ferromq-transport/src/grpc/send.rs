//! SendMessage: from the request's bytes to the store, and the receipts back.

use std::net::SocketAddr;

use bytes::Bytes;
use ferromq_store::{Appended, NewMessage, properties};

use super::{
    convert::{Refusal, check_topic, code, has_control, is_reserved, put_status},
    message::{MAX_TEXTS, Outgoing, SendRequest},
    wire::{Malformed, bytes_field_len, put_bytes_field, put_len_prefix, put_varint_field, varint_len},
};
use crate::{
    hot::Hot,
    tables::{MessageType, TopicEntry},
};

/// RocketMQ's limits on user properties of one message.
const MAX_USER_PROPERTIES: usize = 128;
const MAX_USER_PROPERTY_BYTES: usize = 16 << 10;
/// The system flag of a compressed body.
const COMPRESSED: i32 = 1;
const GZIP: i32 = 2;

/// Answers an encoded `SendMessageRequest` with an encoded `SendMessageResponse`.
///
/// All messages of a request are stored or none; the answer comes once the promise of the flush policy holds.
pub(super) async fn send_message(hot: &Hot, request: &[u8], peer: SocketAddr) -> Result<Bytes, Malformed> {
    let request = SendRequest::parse(request)?;
    Ok(match store(hot, &request, peer).await {
        Ok(appended) => receipts(&request, &appended),
        Err(refusal) => {
            let mut out = Vec::new();
            put_status(&mut out, 1, refusal.code, &refusal.message);
            out.into()
        }
    })
}

async fn store(hot: &Hot, request: &SendRequest<'_>, peer: SocketAddr) -> Result<Appended, Refusal> {
    let Some(first) = request.messages.first() else {
        return Err(Refusal::new(code::MESSAGE_CORRUPTED, "no message to send"));
    };
    if request.messages.iter().any(|message| message.topic != first.topic) {
        return Err(Refusal::new(code::MESSAGE_CORRUPTED, "the messages of a request have different topics"));
    }
    check_topic(first.topic)?;
    let topic = hot.topic(first.topic, peer).await?;
    if !topic.is_writable() {
        let reason = format!(
            "the topic {} may not be written here: its permission forbids it, or the broker's, or this is a slave",
            first.topic
        );
        return Err(Refusal::new(code::FORBIDDEN, reason));
    }
    let durable = append(hot, request, &topic, peer)?;
    Ok(durable.await?)
}

/// Checks all messages, then appends them. Nothing is borrowed from the request afterwards.
fn append(
    hot: &Hot,
    request: &SendRequest<'_>,
    topic: &TopicEntry,
    peer: SocketAddr,
) -> Result<impl Future<Output = ferromq_store::Result<Appended>> + Send + use<>, Refusal> {
    // Drawn at most once: messages of one request that do not choose a queue stay together.
    let mut drawn = None;
    let now = hot.clock.now_ms();
    let mut texts = Vec::with_capacity(request.messages.len() * 128);
    let mut ends = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        check(request, message, topic)?;
        put_properties(&mut texts, request, message);
        ends.push(texts.len());
    }
    let mut begin = 0;
    let mut messages = Vec::with_capacity(request.messages.len());
    for (message, end) in request.messages.iter().zip(ends) {
        let queue_id = match message.queue_id {
            Some(queue_id) => queue_id,
            None => (*drawn.get_or_insert_with(|| hot.pick_queue(message.topic, topic))).cast_signed(),
        };
        messages.push(NewMessage {
            topic: message.topic,
            queue_id,
            flag: 0,
            sys_flag: if message.body_encoding == GZIP { COMPRESSED } else { 0 },
            born_timestamp: message.born_timestamp.unwrap_or(now),
            born_host: peer,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: message.body,
            properties: texts.get(begin..end).unwrap_or_default(),
        });
        begin = end;
    }
    Ok(hot.send(&messages)?)
}

/// Checks what RocketMQ's proxy checks, with its codes.
fn check(request: &SendRequest<'_>, message: &Outgoing<'_>, topic: &TopicEntry) -> Result<(), Refusal> {
    check_type(message, topic)?;
    if message.body.is_empty() {
        return Err(Refusal::new(code::MESSAGE_BODY_EMPTY, "the message body is empty"));
    }
    if message.message_id.trim().is_empty() || has_control(message.message_id) {
        return Err(Refusal::new(
            code::ILLEGAL_MESSAGE_ID,
            "the message id is empty or holds a control character",
        ));
    }
    let tag = message.tag;
    if !tag.is_empty() && (tag.trim().is_empty() || tag.contains('|') || has_control(tag)) {
        return Err(Refusal::new(
            code::ILLEGAL_MESSAGE_TAG,
            format!("tag {tag:?} is blank or holds a | or a control character"),
        ));
    }
    let keys = request.keys.get(message.keys.clone()).unwrap_or_default();
    if keys.len() > MAX_TEXTS {
        return Err(Refusal::new(code::MESSAGE_PROPERTIES_TOO_LARGE, format!("more than {MAX_TEXTS} keys")));
    }
    if let Some(key) = keys.iter().find(|key| !key.is_empty() && key.trim().is_empty() || has_control(key)) {
        let why = format!("key {key:?} is blank or holds a control character");
        return Err(Refusal::new(code::ILLEGAL_MESSAGE_KEY, why));
    }
    if let Some(queue_id) = message.queue_id
        && !u32::try_from(queue_id).is_ok_and(|id| id < topic.write_queues)
    {
        let why = format!(
            "topic {} has {} write queues, there is no queue {queue_id}",
            message.topic, topic.write_queues
        );
        return Err(Refusal::new(code::BAD_REQUEST, why));
    }
    check_properties(request, message, keys)
}

fn check_type(message: &Outgoing<'_>, topic: &TopicEntry) -> Result<(), Refusal> {
    // The type is a hint of newer clients; what the message carries decides.
    let kind = match message.message_type {
        2 => "FIFO",
        3 => "DELAY",
        4 => "TRANSACTION",
        5 => "LITE",
        6 => "PRIORITY",
        _ if message.is_lite_or_priority => "LITE and PRIORITY",
        _ if message.has_delivery_timestamp => "DELAY",
        _ if !message.message_group.is_empty() => "FIFO",
        _ => {
            return match topic.message_type {
                MessageType::Normal | MessageType::Unspecified => Ok(()),
                other => Err(Refusal::new(
                    code::MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                    format!("topic {} takes {} messages, this one is NORMAL", message.topic, other.as_str()),
                )),
            };
        }
    };
    // Stored as a normal message it would be delivered at once, out of order or uncommitted.
    Err(Refusal::new(code::UNSUPPORTED, format!("{kind} messages are not supported yet; send NORMAL ones")))
}

fn check_properties(request: &SendRequest<'_>, message: &Outgoing<'_>, keys: &[&str]) -> Result<(), Refusal> {
    let illegal = |why: String| Err(Refusal::new(code::ILLEGAL_MESSAGE_PROPERTY_KEY, why));
    let user = request.properties.get(message.properties.clone()).unwrap_or_default();
    if user.len() > MAX_USER_PROPERTIES {
        let why = format!("more than {MAX_USER_PROPERTIES} user properties");
        return Err(Refusal::new(code::MESSAGE_PROPERTIES_TOO_LARGE, why));
    }
    let mut bytes = message.tag.len() + keys.iter().map(|key| key.len()).sum::<usize>();
    for (name, value) in user {
        if is_reserved(name) {
            return illegal(format!("property {name} belongs to the system"));
        }
        if name.is_empty() || has_control(name) || has_control(value) {
            return illegal(format!("property {name:?} has an empty name or holds a control character"));
        }
        bytes += name.len() + value.len();
    }
    if has_control(message.trace_context) || has_control(message.born_host) {
        return illegal("trace context or born host hold a control character".to_owned());
    }
    if bytes > MAX_USER_PROPERTY_BYTES {
        let why = format!(
            "tag, keys and user properties have {bytes} bytes; the limit is {MAX_USER_PROPERTY_BYTES}"
        );
        return Err(Refusal::new(code::MESSAGE_PROPERTIES_TOO_LARGE, why));
    }
    Ok(())
}

/// Appends the properties of one message in RocketMQ's text form.
fn put_properties(out: &mut Vec<u8>, request: &SendRequest<'_>, message: &Outgoing<'_>) {
    for (name, value) in request.properties.get(message.properties.clone()).unwrap_or_default() {
        properties::push(out, name, value);
    }
    if !message.tag.is_empty() {
        properties::push(out, "TAGS", message.tag);
    }
    if let Some((first, others)) = request.keys.get(message.keys.clone()).and_then(<[_]>::split_first) {
        out.extend_from_slice(b"KEYS\x01");
        out.extend_from_slice(first.as_bytes());
        for key in others {
            out.push(b' ');
            out.extend_from_slice(key.as_bytes());
        }
        out.push(2);
    }
    properties::push(out, "UNIQ_KEY", message.message_id);
    if !message.trace_context.is_empty() {
        properties::push(out, "TRACE_CONTEXT", message.trace_context);
    }
    // The record itself holds the address; this is what the producer calls its host.
    if !message.born_host.trim().is_empty() {
        properties::push(out, "__BORNHOST", message.born_host);
    }
}

/// The response of a request whose messages are all stored.
fn receipts(request: &SendRequest<'_>, appended: &Appended) -> Bytes {
    let mut status = Vec::new();
    put_status(&mut status, 1, code::OK, "OK");
    let mut out = Vec::with_capacity(request.messages.len() * 64 + 16);
    out.extend_from_slice(&status);
    for (message, location) in request.messages.iter().zip(&appended.locations) {
        let (id, offset) = (message.message_id, location.queue_offset);
        let len = status.len() + bytes_field_len(2, id.len()) + 1 + varint_len(offset);
        put_len_prefix(&mut out, 2, len);
        out.extend_from_slice(&status);
        put_bytes_field(&mut out, 2, id.as_bytes());
        put_varint_field(&mut out, 4, offset);
    }
    out.into()
}
