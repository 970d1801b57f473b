//! Request 36: a consumer gives a message back, to come again later or to be kept as dead.
//!
//! The group's own retry topic is written, so that no other group gets the message again.

use std::net::SocketAddr;

use ferromq_store::{MessageView, NewMessage, OffsetMessageId, properties};

use super::fields::{is_set, number, number_or, required};
use crate::{
    Missing, TransportError,
    hot::Hot,
    remoting::{RemotingCommand, codes::response},
    tables::{GroupEntry, TopicEntry},
};

pub(super) const RETRY_PREFIX: &str = "%RETRY%";
pub(super) const DLQ_PREFIX: &str = "%DLQ%";
/// A dead-letter topic has one queue.
pub(super) const DLQ_QUEUES: u32 = 1;
/// The level of a first retry; each further one waits a level longer.
const FIRST_LEVEL: i32 = 3;
/// System flag of a topic that consumers of a unit read.
pub(super) const UNIT_SUBSCRIPTION: i32 = 2;

/// Stores a message again for one group; the answer comes once the promise of the flush policy holds.
pub(super) async fn send_back(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
) -> Result<RemotingCommand, TransportError> {
    let (name, offset) = (required(command, "group")?, number(command, "offset")?);
    let wanted_level: i32 = number(command, "delayLevel")?;
    let group = hot.group(name, peer).await?;
    let max_times: i32 = number_or(command, "maxReconsumeTimes", max_retries(&group))?;
    if group.retry_queues == 0 {
        // The group wants no retries; RocketMQ drops the message, too.
        return Ok(command.respond(response::SUCCESS, None));
    }
    let record = hot.store.message_at(offset)?;
    let message = MessageView::decode(record.bytes(), false)
        .map_err(|_| TransportError::IllegalMessage("the message to be sent back cannot be read"))?;
    let is_dead = message.reconsume_times >= max_times || wanted_level < 0;
    let level = match wanted_level {
        _ if is_dead => 0,
        0 => FIRST_LEVEL.saturating_add(message.reconsume_times),
        level => level,
    };
    let (prefix, queues) =
        if is_dead { (DLQ_PREFIX, DLQ_QUEUES) } else { (RETRY_PREFIX, group.retry_queues) };
    let sys_flag = if is_set(command, "unitMode") && !is_dead { UNIT_SUBSCRIPTION } else { 0 };
    let topic = format!("{prefix}{name}");
    let entry = topic_of_group(hot, peer, &topic, queues, sys_flag).await?;
    let text = text(&message, level);
    let back = NewMessage {
        topic: &topic,
        queue_id: hot.pick_queue(&topic, &entry).cast_signed(),
        flag: message.flag,
        sys_flag: message.sys_flag,
        born_timestamp: message.born_timestamp,
        born_host: message.born_host,
        reconsume_times: message.reconsume_times.saturating_add(1),
        prepared_transaction_offset: 0,
        body: message.body,
        properties: &text,
    };
    let appended = hot.append_delayed(&back, level)?;
    hot.durable(appended.end).await?;
    let consumed = properties::get(&text, "RETRY_TOPIC").unwrap_or(message.topic);
    hot.traffic.count_send_back(consumed, name, 1, u64::from(message.total_size));
    Ok(command.respond(response::SUCCESS, None))
}

/// How often a message comes again before it counts as dead.
pub(super) fn max_retries(group: &GroupEntry) -> i32 {
    i32::try_from(group.max_attempts.saturating_sub(1)).unwrap_or(i32::MAX)
}

/// The entry of a group's retry or dead-letter topic, which is made where it is missing.
///
/// # Errors
/// Those of `Hot::topic_or`, and `TopicForbidden`.
pub(super) async fn topic_of_group(
    hot: &Hot,
    peer: SocketAddr,
    name: &str,
    queues: u32,
    sys_flag: i32,
) -> Result<TopicEntry, TransportError> {
    let entry = match hot.tables.topic(name) {
        Some(entry) => entry,
        None => {
            let missing = Missing::TopicOfGroup { name: name.to_owned(), queues, sys_flag };
            hot.topic_or(missing, peer).await?
        }
    };
    if entry.is_writable() {
        Ok(entry)
    } else {
        Err(TransportError::TopicForbidden { topic: name.to_owned(), done: "written" })
    }
}

/// The properties of a message that goes back: it tells where it was read first, and by which id.
fn text(message: &MessageView<'_>, level: i32) -> Vec<u8> {
    let place = OffsetMessageId { store_host: message.store_host, physical_offset: message.physical_offset };
    let (place, level_text) = (place.to_string(), level.to_string());
    let known = |name| properties::get(message.properties, name);
    let mut set = Vec::with_capacity(3);
    if known("RETRY_TOPIC").is_none() {
        set.push(("RETRY_TOPIC", message.topic));
    }
    if known("ORIGIN_MESSAGE_ID").is_none() {
        set.push(("ORIGIN_MESSAGE_ID", place.as_str()));
    }
    if level > 0 {
        set.push(("DELAY", level_text.as_str()));
    }
    properties::replace(message.properties, &["DELAY"], &set)
}
