//! Requests 11 and 361: a consumer reads a queue from an offset it keeps.
//!
//! Records leave as they lie in the log. Answers follow `PullMessageProcessor` of RocketMQ, code by code.

use std::net::SocketAddr;

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use ferromq_store::{
    filter::MessageFilter,
    read::{GetResult, GetStatus, TransferLimits},
    record::Record,
};

use super::{
    consumer::{self, wait},
    headers::{PullHeader, pull_flag},
    refused::Refused,
};
use crate::{
    TransportError,
    connections::answer_memory,
    hot::{Hot, pull::Pull, reads::PATIENCE},
    remoting::{Fields, RemotingCommand, codes::response},
    tables::{GroupEntry, subscriptions::Subscribed},
};

/// Why a pull is forbidden, RocketMQ's `forbiddenType`.
mod forbidden {
    pub const GROUP: u32 = 2;
    pub const TOPIC: u32 = 3;
    pub const BROADCASTING: u32 = 4;
    pub const SUBSCRIPTION: u32 = 5;
}

/// Messages and bytes of one answer, whatever is asked for and whatever the broker's own limits are.
const MAX_COUNT: usize = 4_096;
const MAX_BYTES: usize = 4 << 20;
/// Answers a pull, parked where there is nothing to read yet and the client lets it.
pub(super) async fn pull(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
) -> Result<RemotingCommand, Refused> {
    let asked = PullHeader::parse(command)?;
    let group = check(hot, peer, command, &asked).await?;
    let filter = filter(hot, command, &asked, group)?;
    if !hot.tables.filters.allows(&filter) {
        let why =
            "The broker does not support consumer to filter message by SQL92; set enablePropertyFilter=true";
        return Err(Refused::new(command, response::SYSTEM_ERROR, why));
    }
    if let Some(offset) = hot.tables.resets.take(asked.group, asked.topic, asked.queue_id) {
        return Ok(moved(hot, command, &asked, offset));
    }
    let Ok(offset) = u64::try_from(asked.offset) else {
        return Ok(respond(command, &before_the_first(hot, &asked), 1));
    };
    let request = Pull {
        topic: asked.topic,
        queue_id: asked.queue_id,
        offset,
        max_count: usize::try_from(asked.max_count).unwrap_or(0).clamp(1, MAX_COUNT),
        max_bytes: match usize::try_from(asked.max_bytes) {
            Ok(bytes) if bytes > 0 => bytes.min(MAX_BYTES),
            _ => MAX_BYTES,
        },
        limits: if asked.is_large { TransferLimits::NONE } else { hot.transfer_limits() },
        filter: &filter,
        wait: if asked.flags & pull_flag::SUSPEND == 0 { Duration::ZERO } else { wait(asked.suspend_ms) },
        patience: PATIENCE,
    };
    let mut found = hot.pull_now(&request).await;
    // As in RocketMQ: once, whatever the answer, and not again after the wait.
    if let Some(committed) = asked.commit_offset {
        hot.progress
            .update_offset(asked.group, asked.topic, asked.queue_id, committed)
            .map_err(TransportError::from)?;
    }
    if code(&found, offset) == response::PULL_NOT_FOUND && !request.wait.is_zero() {
        let resets = &hot.tables.resets;
        let is_reset = || resets.is_pending(asked.group, asked.topic, asked.queue_id);
        found = hot.pull_parked(&request, found.next_offset.max(offset), is_reset).await;
        if let Some(offset) = resets.take(asked.group, asked.topic, asked.queue_id) {
            return Ok(moved(hot, command, &asked, offset));
        }
    }
    // The records are read where they lie; only the answer is memory.
    answer_memory::take(found.messages.iter().map(|(_, record)| record.bytes().len()).sum()).await;
    let answer = respond(command, &found, offset);
    if !found.messages.is_empty() {
        let (messages, bytes) = (found.messages.len() as u64, answer.body.len() as u64);
        hot.traffic.count_get(asked.topic, asked.group, messages, bytes);
    }
    Ok(answer)
}

/// Tells a consumer to go on at `offset`. Its commit is dropped: it refers to the offset being reset.
fn moved(hot: &Hot, command: &RemotingCommand, asked: &PullHeader<'_>, offset: u64) -> RemotingCommand {
    let found = GetResult { next_offset: offset, ..before_the_first(hot, asked) };
    let mut answer = respond(command, &found, offset);
    answer.remark = Some("OFFSET_RESET".to_owned());
    answer
}

/// What a read at a negative offset finds.
fn before_the_first(hot: &Hot, asked: &PullHeader<'_>) -> GetResult {
    let (topic, queue_id) = (asked.topic, asked.queue_id);
    let min_offset = hot.store.queues().min_offset(topic, queue_id);
    GetResult {
        status: GetStatus::OffsetTooSmall,
        messages: Vec::new(),
        next_offset: min_offset,
        min_offset,
        max_offset: hot.store.queues().max_offset(topic, queue_id),
        is_cold: false,
    }
}

/// Looks at topic, queue and group. A topic is never created by a pull; a group may be, as RocketMQ does.
async fn check(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
    asked: &PullHeader<'_>,
) -> Result<GroupEntry, Refused> {
    let PullHeader { group, topic, queue_id, .. } = *asked;
    let entry = hot.tables.topic(topic).ok_or_else(|| TransportError::NoSuchTopic(topic.to_owned()))?;
    let group_entry = hot.lookup.group(group, peer).await?;
    if !group_entry.enabled {
        let why = format!("subscription group no permission, {group}: it may not consume");
        return Err(forbid(command, forbidden::GROUP, why));
    }
    if hot.tables.is_forbidden(group, topic) {
        let why = format!("the consumer group[{group}] is forbidden for topic[{topic}]");
        return Err(forbid(command, forbidden::SUBSCRIPTION, why));
    }
    if !entry.is_readable() {
        let why = format!("the topic[{topic}] pulling message is forbidden");
        return Err(forbid(command, forbidden::TOPIC, why));
    }
    if queue_id >= entry.read_queues {
        let why = format!(
            "queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{}] consumer:[{}]",
            entry.read_queues, peer
        );
        return Err(Refused::new(command, response::INVALID_PARAMETER, why));
    }
    Ok(group_entry)
}

fn filter(
    hot: &Hot,
    command: &RemotingCommand,
    asked: &PullHeader<'_>,
    group: GroupEntry,
) -> Result<Arc<MessageFilter>, Refused> {
    if asked.flags & pull_flag::CLASS_FILTER != 0 {
        let why = "filter classes are not supported; subscribe with a tag expression such as a || b";
        return Err(Refused::new(command, response::SYSTEM_ERROR, why));
    }
    if asked.flags & pull_flag::SUBSCRIPTION != 0 {
        return consumer::filter(hot, command, asked.expression_type, asked.expression).map(Arc::new);
    }
    let missing = |why: String| Refused::new(command, response::SUBSCRIPTION_NOT_EXIST, why);
    let (group_name, topic) = (asked.group, asked.topic);
    match hot.tables.subscriptions.find(group_name, topic) {
        Subscribed::NoGroup => {
            Err(missing(format!("the consumer's group info not exist: {group_name} has no live consumer")))
        }
        Subscribed::NoTopic => Err(missing(format!(
            "the consumer's subscription not exist: {group_name} did not subscribe to {topic}"
        ))),
        Subscribed::To(subscription) => {
            if subscription.is_broadcasting && !group.broadcast {
                let why = format!("the consumer group[{group_name}] can not consume by broadcast way");
                return Err(forbid(command, forbidden::BROADCASTING, why));
            }
            if subscription.version < asked.subscription_version {
                let why = format!("the consumer's subscription not latest: {group_name} of {topic}");
                return Err(Refused::new(command, response::SUBSCRIPTION_NOT_LATEST, why));
            }
            subscription.filter.clone().map_err(|error| {
                let why = format!("the subscription of {group_name} to {topic} filters nothing: {error}");
                Refused::new(command, response::FILTER_DATA_NOT_EXIST, why)
            })
        }
    }
}

/// The response code of a read that began at `offset`.
fn code(found: &GetResult, offset: u64) -> i32 {
    match found.status {
        GetStatus::Found => response::SUCCESS,
        GetStatus::NoMatchedMessage | GetStatus::MessageWasRemoving => response::PULL_RETRY_IMMEDIATELY,
        // The queue lost what the consumer remembers.
        GetStatus::NoMatchedLogicQueue | GetStatus::NoMessageInQueue if offset != 0 => {
            response::PULL_OFFSET_MOVED
        }
        GetStatus::NoMatchedLogicQueue
        | GetStatus::NoMessageInQueue
        | GetStatus::OffsetFoundNull
        | GetStatus::OffsetOverflowOne
        | GetStatus::MessageUnreadable
        | GetStatus::QueueClosed => response::PULL_NOT_FOUND,
        GetStatus::OffsetOverflowBadly | GetStatus::OffsetTooSmall => response::PULL_OFFSET_MOVED,
    }
}

fn respond(command: &RemotingCommand, found: &GetResult, offset: u64) -> RemotingCommand {
    let mut answer = command.respond(code(found, offset), Some(found.status.name().to_owned()));
    answer.fields = Fields::of_answer()
        .with("suggestWhichBrokerId", 0)
        .with("nextBeginOffset", found.next_offset)
        .with("minOffset", found.min_offset)
        .with("maxOffset", found.max_offset)
        .with("topicSysFlag", 0)
        .with("groupSysFlag", 0);
    answer.body = join(found.messages.iter().map(|(_, record)| record));
    answer
}

/// Records one after the other, copied once.
pub(super) fn join<'a>(records: impl Iterator<Item = &'a Record> + Clone) -> Bytes {
    let len = records.clone().map(|record| record.bytes().len()).sum();
    let mut body = BytesMut::with_capacity(len);
    records.for_each(|record| body.extend_from_slice(record.bytes()));
    body.freeze()
}

fn forbid(command: &RemotingCommand, kind: u32, why: String) -> Refused {
    let mut answer = command.respond(response::NO_PERMISSION, Some(why));
    answer.fields.put("forbiddenType", kind);
    Refused::With(Box::new(answer))
}
