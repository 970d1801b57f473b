//! Request 36: a consumer gives a message back, for redelivery or as a dead letter.
//!
//! The message is stored in the group's own retry topic, so that no other group gets it again.

use std::net::SocketAddr;

use ferromq_store::record::{
    MessageView, NewMessage,
    names::{self, RETRY_PREFIX},
    properties,
};

use super::{headers::SendBackHeader, refused::Refused};
use crate::{
    TransportError,
    access::Actions,
    hot::{
        Hot,
        dead_letters::{DeadLetterCause, GIVEN_BACK, GIVEN_UP, properties_of_retry},
        send::Deduplication,
    },
    remoting::{RemotingCommand, codes::response},
    tables::GroupEntry,
};

/// Delay level of the first retry; each further one is a level higher.
const FIRST_RETRY_LEVEL: i32 = 3;
/// System flag of a topic for consumers of a unit.
pub(super) const UNIT_SUBSCRIPTION: i32 = 2;

/// Stores a message again for one group, and answers once it has the durability of the flush policy.
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
        // A group without retries: RocketMQ drops the message, too.
        return Ok(command.respond(response::SUCCESS, None));
    }
    let record = hot.message_at(header.physical_offset).await?;
    let message = MessageView::decode(record.bytes(), false)
        .map_err(|_| TransportError::IllegalMessage("the message to be sent back cannot be read"))?;
    // No consumer received such a message, and a half message stored again would count as committed.
    if names::is_never_consumed(message.topic) {
        let topic = message.topic.to_owned();
        return Err(TransportError::TopicForbidden { topic, done: "given back from" }.into());
    }
    // A copy goes to the group, so the user must be able to read the message itself.
    hot.access
        .check_found(command, peer, message.topic, Actions::SUB)
        .map_err(|refused| Refused::new(command, response::NO_PERMISSION, refused.to_string()))?;
    let times = message.reconsume_times.saturating_add(1);
    if message.reconsume_times >= max_times || wanted_level < 0 {
        let reason = if wanted_level < 0 { GIVEN_UP } else { GIVEN_BACK };
        if let Some(letters) = hot.dead_letters(peer, name).await? {
            let end =
                hot.append_dead_letter(name, &letters, &message, times, &DeadLetterCause::of(reason))?;
            hot.sends.durable(end).await?;
        }
        return Ok(command.respond(response::SUCCESS, None));
    }
    let level = match wanted_level {
        0 => FIRST_RETRY_LEVEL.saturating_add(message.reconsume_times),
        level => level,
    };
    let sys_flag = if header.is_unit { UNIT_SUBSCRIPTION } else { 0 };
    let topic = format!("{RETRY_PREFIX}{name}");
    let entry = hot.lookup.topic_of_group(peer, &topic, group.retry_queues, sys_flag).await?;
    let text = properties_of_retry(&message, level);
    let retry = NewMessage {
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
    let (appended, _) = hot.sends.append_delayed(&retry, true, Deduplication::Off)?;
    hot.sends.durable(appended.end).await?;
    let consumed = properties::get(&text, "RETRY_TOPIC").unwrap_or(message.topic);
    hot.traffic.count_send_back(consumed, name, 1, u64::from(message.total_size));
    Ok(command.respond(response::SUCCESS, None))
}

/// Redeliveries of a message before it becomes a dead letter.
pub(super) fn max_retries(group: &GroupEntry) -> i32 {
    i32::try_from(group.max_attempts.saturating_sub(1)).unwrap_or(i32::MAX)
}
