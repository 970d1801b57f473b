//! Encodes the stored properties of a message: the producer's, and RocketMQ's own by message type. No I/O.

use ferromq_store::record::properties;

use super::message::{Outgoing, SendRequest};
use crate::tables::MessageType;

/// Appends the properties of a message of type `kind`, in RocketMQ's text form.
pub(in crate::grpc) fn put(
    out: &mut Vec<u8>,
    request: &SendRequest<'_>,
    message: &Outgoing<'_>,
    kind: MessageType,
) {
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
    if !message.message_group.is_empty() {
        properties::push(out, "__SHARDINGKEY", message.message_group);
    }
    put_of_kind(out, message, kind);
    if !message.trace_context.is_empty() {
        properties::push(out, "TRACE_CONTEXT", message.trace_context);
    }
    // The producer's name for its host; the record holds the address.
    if !message.born_host.trim().is_empty() {
        properties::push(out, "__BORNHOST", message.born_host);
    }
}

fn put_of_kind(out: &mut Vec<u8>, message: &Outgoing<'_>, kind: MessageType) {
    if let Some(at) = message.delivery_timestamp {
        properties::push(out, "TIMER_DELIVER_MS", &at.to_string());
    }
    match kind {
        MessageType::Transaction => {
            properties::push(out, "TRAN_MSG", "true");
            // A gRPC producer has no group: any producer of the topic can answer a check-back.
            properties::push(out, "PGROUP", message.topic);
            if let Some(seconds) = message.recovery_seconds {
                properties::push(out, "CHECK_IMMUNITY_TIME_IN_SECONDS", &seconds.to_string());
            }
        }
        MessageType::Priority => {
            if let Some(priority) = message.priority {
                properties::push(out, "_SYS_MSG_PRIORITY_", &priority.to_string());
            }
        }
        _ => {}
    }
}
