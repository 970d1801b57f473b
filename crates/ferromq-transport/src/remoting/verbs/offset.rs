//! Request 15: a consumer commits its offset of a queue.

use super::{headers::UpdateOffsetHeader, refused::Refused};
use crate::{
    TransportError,
    hot::Hot,
    remoting::{RemotingCommand, codes::response},
};

/// Sets the committed offset of a group.
///
/// Names are looked up and never created: a late commit must not bring a deleted topic or group back.
pub(super) fn update(hot: &Hot, command: &RemotingCommand) -> Result<RemotingCommand, Refused> {
    let UpdateOffsetHeader { group, topic, queue_id, offset } = UpdateOffsetHeader::parse(command)?;
    // Offsets refer to the master's log: a slave refuses commits.
    hot.check_reads()?;
    if hot.tables.group(group).is_none() {
        return Err(TransportError::NoSuchGroup(group.to_owned()).into());
    }
    let entry = hot.tables.topic(topic).ok_or_else(|| TransportError::NoSuchTopic(topic.to_owned()))?;
    // After a topic lost queues, consumers may still read the removed ones to their end.
    if queue_id >= entry.read_queues.max(entry.write_queues)
        && hot.store.queues().max_offset(topic, queue_id) == 0
    {
        let reason = "the topic has no such queue";
        return Err(TransportError::BadField { name: "queueId", reason }.into());
    }
    if !hot.tables.resets.admits(group, topic, queue_id, offset) {
        // The client has not seen the reset yet.
        return Ok(command.respond(response::SUCCESS, Some("Offset has been previously reset".to_owned())));
    }
    hot.progress.update_offset(group, topic, queue_id, offset)?;
    Ok(command.respond(response::SUCCESS, None))
}
