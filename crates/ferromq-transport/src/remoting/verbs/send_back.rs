//! Request 36: a consumer gives a message back, to come again later or to be kept as dead.
//!
//! The group's own retry topic is written, so that no other group gets the message again.

use std::net::SocketAddr;

use ferromq_store::record::{
    MessageView, NewMessage,
    names::{self, RETRY_PREFIX},
    properties,
};

use super::{headers::SendBackHeader, refused::Refused};
use crate::{
    TransportError,
    hot::{
        Hot,
        dead_letters::{Cause, GIVEN_BACK, GIVEN_UP, properties_of_retry},
        send::Kept,
    },
    remoting::{RemotingCommand, codes::response},
    tables::GroupEntry,
};

/// The level of a first retry; each further one waits a level longer.
const FIRST_LEVEL: i32 = 3;
/// System flag of a topic that consumers of a unit read.
pub(super) const UNIT_SUBSCRIPTION: i32 = 2;

/// Stores a message again for one group; the answer comes once the promise of the flush policy holds.
pub(super) async fn send_back(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
) -> Result<RemotingCommand, Refused> {
    let header = SendBackHeader::parse(command)?;
    let (name, wanted_level) = (header.group, header.delay_level);
    let group = hot.lookup.group(name, peer).await?;
    let max_times = header.max_reconsume_times.unwrap_or_else(|| max_retries(&group));
    if group.retry_queues == 0 {
        // The group wants no retries; RocketMQ drops the message, too.
        return Ok(command.respond(response::SUCCESS, None));
    }
    let record = hot.message_at(header.physical_offset).await?;
    let message = MessageView::decode(record.bytes(), false)
        .map_err(|_| TransportError::IllegalMessage("the message to be sent back cannot be read"))?;
    // No consumer got it: a half message that came back would count as committed.
    if names::is_never_consumed(message.topic) {
        let topic = message.topic.to_owned();
        return Err(TransportError::TopicForbidden { topic, done: "given back from" }.into());
    }
    let times = message.reconsume_times.saturating_add(1);
    if message.reconsume_times >= max_times || wanted_level < 0 {
        let reason = if wanted_level < 0 { GIVEN_UP } else { GIVEN_BACK };
        if let Some(letters) = hot.dead_letters(peer, name).await? {
            let end = hot.append_letter(name, &letters, &message, times, &Cause::of(reason))?;
            hot.sends.durable(end).await?;
        }
        return Ok(command.respond(response::SUCCESS, None));
    }
    let level = match wanted_level {
        0 => FIRST_LEVEL.saturating_add(message.reconsume_times),
        level => level,
    };
    let sys_flag = if header.is_unit { UNIT_SUBSCRIPTION } else { 0 };
    let topic = format!("{RETRY_PREFIX}{name}");
    let entry = hot.lookup.topic_of_group(peer, &topic, group.retry_queues, sys_flag).await?;
    let text = properties_of_retry(&message, level);
    let back = NewMessage {
        topic: &topic,
        queue_id: hot.sends.pick_queue(&topic, &entry).cast_signed(),
        flag: message.flag,
        sys_flag: message.sys_flag,
        born_timestamp: message.born_timestamp,
        born_host: message.born_host,
        reconsume_times: times,
        prepared_transaction_offset: 0,
        body: message.body,
        properties: &text,
    };
    let (appended, _) = hot.sends.append_delayed(&back, true, Kept::All)?;
    hot.sends.durable(appended.end).await?;
    let consumed = properties::get(&text, "RETRY_TOPIC").unwrap_or(message.topic);
    hot.traffic.count_send_back(consumed, name, 1, u64::from(message.total_size));
    Ok(command.respond(response::SUCCESS, None))
}

/// How often a message comes again before it counts as dead.
pub(super) fn max_retries(group: &GroupEntry) -> i32 {
    i32::try_from(group.max_attempts.saturating_sub(1)).unwrap_or(i32::MAX)
}
