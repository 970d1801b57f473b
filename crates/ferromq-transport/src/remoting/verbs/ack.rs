//! Requests 200051, 200151 and 200053: acknowledge popped messages, or change an invisible duration.
//!
//! An ended lease gets code 208: its message is redelivered, or was already. RocketMQ records each acknowledgement and
//! answers 0. A repetition within the invisible duration gets 0 from both: push consumers of Java's proxy repeat an
//! acknowledgement with any other response every second.

use std::time::Duration;

use ferromq_store::{StoreError, progress::ReceiptHandle};

use super::{
    batch_ack,
    extra_info::{self, ORDERED_REVIVE_QUEUE, PopHandle},
    headers::{AckHeader, ChangeInvisibleHeader},
    refused::Refused,
};
use crate::{
    TransportError,
    hot::Hot,
    remoting::{Fields, RemotingCommand, codes::response},
};

/// A popped message as its client names it.
struct PoppedMessage<'a> {
    group: &'a str,
    topic: &'a str,
    handle: ReceiptHandle,
    revive_queue: i32,
}

/// Acknowledges one message.
pub(super) fn ack(hot: &Hot, command: &RemotingCommand) -> Result<RemotingCommand, Refused> {
    let popped = popped(hot, command, &AckHeader::parse(command)?)?;
    match hot.progress.ack(popped.group, popped.topic, &popped.handle) {
        Err(StoreError::StaleReceipt) => Err(stale(command)),
        done => Ok(done.map(|()| command.respond(response::SUCCESS, None))?),
    }
}

/// Changes the invisible duration. The client builds its next handle from the new pop time.
pub(super) fn change_invisible(hot: &Hot, command: &RemotingCommand) -> Result<RemotingCommand, Refused> {
    let ChangeInvisibleHeader { ack, invisible_ms, is_suspended } = ChangeInvisibleHeader::parse(command)?;
    let popped = popped(hot, command, &ack)?;
    let Ok(invisible) = u64::try_from(invisible_ms) else {
        let why = "invisibleTime must be 0 ms or more";
        return Err(Refused::new(command, response::INVALID_PARAMETER, why));
    };
    let duration = Duration::from_millis(invisible);
    let PoppedMessage { group, topic, ref handle, .. } = popped;
    let changed = if is_suspended {
        hot.progress.suspend(group, topic, handle, duration)
    } else {
        hot.progress.change_invisible(group, topic, handle, duration)
    };
    let new = match changed {
        Err(StoreError::StaleReceipt) => return Err(stale(command)),
        changed => changed?,
    };
    let mut answer = command.respond(response::SUCCESS, None);
    answer.fields = Fields::default()
        .with("popTime", new.pop_time)
        // An ordered pop keeps its pop time, so that its messages stay together.
        .with(
            "invisibleTime",
            if popped.revive_queue == ORDERED_REVIVE_QUEUE { new.invisible_ms } else { invisible_ms },
        )
        .with("reviveQid", popped.revive_queue);
    Ok(answer)
}

/// The message that a request names. Its topic and its queue must exist.
fn popped<'a>(
    hot: &Hot,
    command: &RemotingCommand,
    header: &AckHeader<'a>,
) -> Result<PoppedMessage<'a>, Refused> {
    let AckHeader { group, topic, queue_id, offset, extra_info } = *header;
    let entry = hot.tables.topic(topic).ok_or_else(|| TransportError::NoSuchTopic(topic.to_owned()))?;
    if queue_id >= entry.read_queues {
        let why = format!(
            "queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{}]",
            entry.read_queues
        );
        return Err(Refused::new(command, response::MESSAGE_ILLEGAL, why));
    }
    let PopHandle { pop_time, invisible_ms, revive_queue } = extra_info::parse(extra_info)?;
    let Ok(queue_offset) = u64::try_from(offset) else { return Err(stale(command)) };
    Ok(PoppedMessage {
        group,
        topic,
        handle: ReceiptHandle { queue_id, queue_offset, pop_time, invisible_ms },
        revive_queue,
    })
}

fn stale(command: &RemotingCommand) -> Refused {
    let why = "the lease has ended: the message was acknowledged, or its invisible duration is over";
    Refused::new(command, response::NO_MESSAGE, why)
}

/// Acknowledges many messages; the code is 0 if no lease had ended.
pub(super) fn batch_ack(hot: &Hot, command: &RemotingCommand) -> Result<RemotingCommand, Refused> {
    let acks = match batch_ack::parse(&command.body) {
        Ok(acks) => acks,
        Err(why) => return Ok(command.respond(response::INVALID_PARAMETER, Some(why.to_owned()))),
    };
    let (mut all, mut stale) = (0, 0);
    for ack in &acks {
        for handle in &ack.handles {
            all += 1;
            match hot.progress.ack(&ack.group, &ack.topic, handle) {
                Err(StoreError::StaleReceipt) => stale += 1,
                done => done?,
            }
        }
    }
    if all > 0 && stale == 0 {
        return Ok(command.respond(response::SUCCESS, None));
    }
    let why = format!("{stale} of {all} leases have ended; the other messages were acknowledged");
    Ok(command.respond(response::NO_MESSAGE, Some(why)))
}
