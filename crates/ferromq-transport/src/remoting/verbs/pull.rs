//! Requests 11 and 361: a consumer reads a queue from an offset that it keeps itself.
//!
//! Records are sent unchanged. Response codes follow RocketMQ's `PullMessageProcessor`.

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
    hot::{Hot, pull::Pull, reads::SCAN_PATIENCE},
    limits,
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

/// Most messages and bytes of one response, whatever the request and the broker's options allow.
const MAX_COUNT: usize = 4_096;
const MAX_BYTES: usize = 4 << 20;

/// Answers a pull. Waits in a long poll if there is nothing to read yet and the client allows it.
pub(super) async fn pull(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
) -> Result<RemotingCommand, Refused> {
    let header = PullHeader::parse(command)?;
    let group = check(hot, peer, command, &header).await?;
    let filter = filter(hot, command, &header, group)?;
    if !hot.tables.filters.allows(&filter) {
        let why =
            "The broker does not support consumer to filter message by SQL92; set enablePropertyFilter=true";
        return Err(Refused::new(command, response::SYSTEM_ERROR, why));
    }
    if let Some(offset) = hot.tables.resets.take(header.group, header.topic, header.queue_id) {
        return Ok(respond_reset(hot, command, &header, offset));
    }
    let Ok(offset) = u64::try_from(header.offset) else {
        return Ok(respond(command, &offset_too_small(hot, &header), 1));
    };
    let request = Pull {
        topic: header.topic,
        queue_id: header.queue_id,
        offset,
        max_count: usize::try_from(header.max_count).unwrap_or(0).clamp(1, MAX_COUNT),
        max_bytes: match usize::try_from(header.max_bytes) {
            Ok(bytes) if bytes > 0 => bytes.min(MAX_BYTES),
            _ => MAX_BYTES,
        },
        limits: if header.is_large { TransferLimits::NONE } else { hot.transfer_limits() },
        filter: &filter,
        wait: if header.flags & pull_flag::SUSPEND == 0 { Duration::ZERO } else { wait(header.suspend_ms) },
        patience: SCAN_PATIENCE,
    };
    let mut found = hot.pull_now(&request).await;
    // As in RocketMQ: commits once, whatever the read found, and not again after the wait.
    if let Some(committed) = header.commit_offset {
        hot.progress
            .update_offset(header.group, header.topic, header.queue_id, committed)
            .map_err(TransportError::from)?;
    }
    if code(&found, offset) == response::PULL_NOT_FOUND && !request.wait.is_zero() {
        let resets = &hot.tables.resets;
        let is_reset = || resets.is_pending(header.group, header.topic, header.queue_id);
        found = hot.pull_parked(&request, found.next_offset.max(offset), is_reset).await;
        if let Some(offset) = resets.take(header.group, header.topic, header.queue_id) {
            return Ok(respond_reset(hot, command, &header, offset));
        }
    }
    // Records are read in place; only the response takes memory.
    answer_memory::take(found.messages.iter().map(|(_, record)| record.bytes().len()).sum()).await;
    let answer = respond(command, &found, offset);
    if !found.messages.is_empty() {
        let (messages, bytes) = (found.messages.len() as u64, answer.body.len() as u64);
        hot.traffic.count_get(header.topic, header.group, messages, bytes);
        limits::charge(found.messages.len(), answer.body.len());
    }
    Ok(answer)
}

/// Tells a consumer to continue at `offset`. Its commit is dropped: it refers to the offset being reset.
fn respond_reset(
    hot: &Hot,
    command: &RemotingCommand,
    header: &PullHeader<'_>,
    offset: u64,
) -> RemotingCommand {
    let found = GetResult { next_offset: offset, ..offset_too_small(hot, header) };
    let mut answer = respond(command, &found, offset);
    answer.remark = Some("OFFSET_RESET".to_owned());
    answer
}

/// The result of a read at a negative offset.
fn offset_too_small(hot: &Hot, header: &PullHeader<'_>) -> GetResult {
    let (topic, queue_id) = (header.topic, header.queue_id);
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

/// Checks topic, queue and group. May create the group, as RocketMQ does, never the topic.
async fn check(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
    header: &PullHeader<'_>,
) -> Result<GroupEntry, Refused> {
    let PullHeader { group, topic, queue_id, .. } = *header;
    let entry = hot.tables.topic(topic).ok_or_else(|| TransportError::NoSuchTopic(topic.to_owned()))?;
    let group_entry = hot.lookup.group(group, peer).await?;
    if !group_entry.enabled {
        let why = format!("subscription group no permission, {group}: consumption is disabled for it");
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
    header: &PullHeader<'_>,
    group: GroupEntry,
) -> Result<Arc<MessageFilter>, Refused> {
    if header.flags & pull_flag::CLASS_FILTER != 0 {
        let why = "filter classes are not supported; subscribe with a tag expression such as a || b";
        return Err(Refused::new(command, response::SYSTEM_ERROR, why));
    }
    if header.flags & pull_flag::SUBSCRIPTION != 0 {
        return consumer::filter(hot, command, header.expression_type, header.expression).map(Arc::new);
    }
    let missing = |why: String| Refused::new(command, response::SUBSCRIPTION_NOT_EXIST, why);
    let (group_name, topic) = (header.group, header.topic);
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
            if subscription.version < header.subscription_version {
                let why = format!("the consumer's subscription not latest: {group_name} of {topic}");
                return Err(Refused::new(command, response::SUBSCRIPTION_NOT_LATEST, why));
            }
            subscription.filter.clone().map_err(|error| {
                let why = format!("the filter of {group_name} for {topic} is invalid: {error}");
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
        // The queue no longer has the consumer's offset.
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
    answer.fields = Fields::for_response()
        .with("suggestWhichBrokerId", 0)
        .with("nextBeginOffset", found.next_offset)
        .with("minOffset", found.min_offset)
        .with("maxOffset", found.max_offset)
        .with("topicSysFlag", 0)
        .with("groupSysFlag", 0);
    answer.body = join(found.messages.iter().map(|(_, record)| record));
    answer
}

/// Concatenates records, copied once.
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
