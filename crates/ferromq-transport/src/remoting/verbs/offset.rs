//! Request 15: a consumer commits its offset of a queue.

use super::fields::{number, required};
use crate::{
    TransportError,
    hot::Hot,
    remoting::{RemotingCommand, codes::response},
};

/// Sets the committed offset of a group.
///
/// Names are looked up and never created: a late commit must not bring a deleted topic or group back.
pub(super) fn update(hot: &Hot, command: &RemotingCommand) -> Result<RemotingCommand, TransportError> {
    let (group, topic) = (required(command, "consumerGroup")?, required(command, "topic")?);
    let (queue_id, offset) = (number(command, "queueId")?, number(command, "commitOffset")?);
    // It counts in the master's log.
    hot.check_reads()?;
    if hot.tables.group(group).is_none() {
        return Err(TransportError::NoSuchGroup(group.to_owned()));
    }
    let entry = hot.tables.topic(topic).ok_or_else(|| TransportError::NoSuchTopic(topic.to_owned()))?;
    // A queue beyond the topic's may still be read to its end after the topic was made narrower.
    if queue_id >= entry.read_queues.max(entry.write_queues) && hot.store.max_offset(topic, queue_id) == 0 {
        return Err(TransportError::BadField { name: "queueId", reason: "the topic has no such queue" });
    }
    if !hot.tables.resets.admits(group, topic, queue_id, offset) {
        // The client does not know yet that it is to go on elsewhere.
        return Ok(command.respond(response::SUCCESS, Some("Offset has been previously reset".to_owned())));
    }
    hot.update_offset(group, topic, queue_id, offset)?;
    Ok(command.respond(response::SUCCESS, None))
}
