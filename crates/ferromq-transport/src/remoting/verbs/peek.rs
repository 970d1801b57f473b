//! Requests 200052, 200054 and 200055: peek at a group's next messages, wait for them, and count the waiting requests.

use std::net::SocketAddr;

use ferromq_store::{
    filter::MessageFilter,
    progress::Begin,
    read::{GetRequest, Source},
};

use super::{
    consumer::{Consumer, wait},
    headers::{ConsumerHeader, NotificationHeader, PeekHeader},
    pull::join,
    refused::Refused,
};
use crate::{
    TransportError,
    connections::answer_memory,
    hot::{Hot, receive::Watch},
    limits,
    remoting::{Fields, RemotingCommand, codes::response},
};

/// RocketMQ's limit of a pop, which a peek has, too.
const MAX_COUNT: usize = 32;
const MAX_BYTES: usize = 4 << 20;

/// Returns the next messages that no member of the group has received, without leasing them.
pub(super) async fn peek(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
) -> Result<RemotingCommand, Refused> {
    let header = PeekHeader::parse(command)?;
    let max_count = usize::try_from(header.max_count).unwrap_or(0).clamp(1, MAX_COUNT);
    let consumer = Consumer::of(hot, peer, command, &header.consumer).await?;
    let (mut records, mut bytes, mut rest) = (Vec::new(), 0, 0);
    for queue_id in consumer.queues() {
        let ahead = hot.store.groups().ahead(consumer.group, consumer.topic, queue_id, Begin::AtMin);
        rest += ahead.unread;
        let left = max_count - records.len();
        if left == 0 || bytes >= MAX_BYTES || ahead.unread == 0 {
            continue;
        }
        let (from, room) = (ahead.next_offset, MAX_BYTES - bytes);
        let (topic, filter, source) = (consumer.topic, &MessageFilter::All, Source::Memory);
        let wanted = GetRequest {
            topic,
            queue_id,
            offset: from,
            max_count: left,
            max_bytes: room,
            filter,
            source,
            limits: hot.transfer_limits(),
        };
        let found = hot.get(&wanted).await.map_err(TransportError::from)?;
        bytes += found.messages.iter().map(|(_, record)| record.bytes().len()).sum::<usize>();
        records.extend(found.messages.into_iter().map(|(_, record)| record));
    }
    answer_memory::take(bytes).await;
    hot.counters.pulled.add(records.len() as u64);
    limits::charge(records.len(), bytes);
    let (code, remark) = match records.is_empty() {
        true => (response::PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE"),
        false => (response::SUCCESS, "FOUND"),
    };
    let mut answer = command.respond(code, Some(remark.to_owned()));
    // Clients parse the response as that of a pop.
    answer.fields = Fields::default()
        .with("popTime", 0)
        .with("invisibleTime", 0)
        .with("reviveQid", 0)
        .with("restNum", rest);
    answer.body = join(records.iter());
    Ok(answer)
}

/// Waits until the group has messages to pop or the time is over, and answers whether it has.
pub(super) async fn notify(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
) -> Result<RemotingCommand, Refused> {
    let header = NotificationHeader::parse(command)?;
    let consumer = Consumer::of(hot, peer, command, &header.consumer).await?;
    let watch = Watch {
        group: consumer.group,
        topic: consumer.topic,
        queue_count: consumer.queue_count,
        queue: consumer.queue,
        in_order: header.is_ordered,
        wait: wait(header.poll_ms),
    };
    let has_messages = hot.wait_for_messages(&watch).await;
    let mut answer = command.respond(response::SUCCESS, None);
    answer.fields = Fields::default().with("hasMsg", has_messages).with("pollingFull", false);
    Ok(answer)
}

/// Counts the group's requests that wait for messages of a queue, or of all queues.
pub(super) async fn polling(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
) -> Result<RemotingCommand, Refused> {
    let consumer = Consumer::of(hot, peer, command, &ConsumerHeader::parse(command)?).await?;
    let waiting = hot.waiting(consumer.topic, consumer.group, consumer.queue);
    let mut answer = command.respond(response::SUCCESS, None);
    answer.fields.put("pollingNum", waiting);
    Ok(answer)
}
