//! Request 200050: pop, which leases messages to remoting clients.

use std::net::SocketAddr;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ferromq_store::{
    progress::{Begin, Leased, MAX_ATTEMPT_ID},
    record::{MessageView, add_reconsume_times, readdressed},
};

use super::{
    consumer::{Consumer, filter, wait},
    extra_info::{ORDERED_REVIVE_QUEUE, describe, order_counts},
    headers::PopHeader,
    refused::Refused,
};
use crate::{
    hot::{
        Hot,
        pop_retries::{mark, stored_topic},
        reads::SCAN_PATIENCE,
        receive::Receive,
    },
    remoting::{Fields, RemotingCommand, codes::response},
};

/// RocketMQ's limit of one response.
const MAX_COUNT: usize = 32;
const MAX_BYTES: usize = 4 << 20;

/// Leases messages. Waits in a long poll if there are none and the client allows it.
///
/// Redelivered messages come from their own queue, with increased reconsume times; there is no retry topic.
pub(super) async fn pop(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
) -> Result<RemotingCommand, Refused> {
    let refused = |why: &str| Refused::new(command, response::INVALID_PARAMETER, why);
    let header = PopHeader::parse(command)?;
    let Some(max_count) =
        usize::try_from(header.max_count).ok().filter(|count| (1..=MAX_COUNT).contains(count))
    else {
        return Err(refused("maxMsgNums must be 1 to 32"));
    };
    let order = header.is_ordered.then(|| hot.ordered(header.attempt_id));
    if order.and_then(|order| order.attempt_id).is_some_and(|id| id.len() > MAX_ATTEMPT_ID) {
        return Err(refused("attemptId is longer than 256 bytes"));
    }
    let Some(invisible) = u64::try_from(header.invisible_ms).ok().filter(|ms| *ms > 0) else {
        return Err(refused("invisibleTime must be 1 ms or more"));
    };
    let consumer = Consumer::of(hot, peer, command, &header.consumer).await?;
    // An empty expression matches every message, whatever its type.
    let kind = if header.expression.is_empty() { "" } else { header.expression_type };
    let filter = filter(hot, command, kind, header.expression)?;
    let begin = match header.init_mode {
        0 => Begin::AtMin,
        1 => Begin::AtLast,
        _ => return Err(refused("initMode must be 0 (min offset) or 1 (max offset)")),
    };
    let receive = Receive {
        group: consumer.group,
        topic: consumer.topic,
        queue_count: consumer.queue_count,
        queue: consumer.queue,
        max_count,
        max_bytes: MAX_BYTES,
        limits: hot.transfer_limits(),
        invisible_duration: Duration::from_millis(invisible),
        filter: &filter,
        begin,
        order,
        max_attempts: consumer.deliveries,
        by_priority: order.is_none() && consumer.is_by_priority,
        peer,
        wait: wait(header.poll_ms),
        patience: SCAN_PATIENCE,
    };
    let mut leased = hot.receive(&receive).await?.messages;
    if stored_topic(&leased, receive.topic) != receive.topic {
        // An unreadable record cannot be readdressed: it is neither sent nor listed.
        leased.retain(|leased| MessageView::decode(leased.record.bytes(), false).is_ok());
    }
    let now = hot.clock.now_ms();
    let rest = consumer.queues().map(|queue| {
        let ahead = hot.store.groups().ahead(consumer.group, consumer.topic, queue, begin);
        // Messages that no receive can take now must not make the client ask again.
        let is_leased = order.is_some() && ahead.last_expiry_ms.is_some_and(|at| at > now);
        if is_leased || ahead.held_until_ms.is_some() { 0 } else { ahead.unread }
    });
    Ok(respond(command, hot, &receive, &leased, rest.sum()))
}

fn respond(
    command: &RemotingCommand,
    hot: &Hot,
    request: &Receive<'_>,
    leased: &[Leased],
    rest: u64,
) -> RemotingCommand {
    let (code, remark) = match leased.is_empty() {
        true => (response::POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE"),
        false => (response::SUCCESS, "FOUND"),
    };
    let pop_time = leased.first().map_or_else(|| hot.clock.now_ms(), |first| first.handle.pop_time);
    let topic = stored_topic(leased, request.topic);
    let info = describe(topic, leased);
    let mut answer = command.respond(code, Some(remark.to_owned()));
    answer.fields = Fields::for_response()
        .with("popTime", pop_time)
        .with("invisibleTime", request.invisible_duration.as_millis())
        .with("reviveQid", if request.order.is_some() { ORDERED_REVIVE_QUEUE } else { 0 })
        .with("restNum", rest)
        .with("startOffsetInfo", info.start)
        .with("msgOffsetInfo", info.messages);
    if request.order.is_some() && !leased.is_empty() {
        answer.fields.put("orderCountInfo", order_counts(request.topic, leased));
    }
    answer.body = match topic == request.topic {
        true => join(leased),
        false => join_readdressed(hot, request, topic, leased),
    };
    answer
}

/// Concatenates records, copied once. Adds earlier deliveries to the reconsume times of the copies.
fn join(leased: &[Leased]) -> Bytes {
    let len = leased.iter().map(|leased| leased.record.bytes().len()).sum();
    let mut body = BytesMut::with_capacity(len);
    for Leased { record, attempt, .. } in leased {
        let start = body.len();
        body.extend_from_slice(record.bytes());
        if *attempt > 1
            && let Some(copy) = body.get_mut(start..)
        {
            add_reconsume_times(copy, attempt - 1);
        }
    }
    body.freeze()
}

/// Concatenates records of a retry topic as a Java broker sends them: under the requested topic, with the handle in a
/// property.
fn join_readdressed(hot: &Hot, request: &Receive<'_>, topic: &str, leased: &[Leased]) -> Bytes {
    let mut body = BytesMut::new();
    for Leased { record, attempt, handle } in leased {
        let Ok(view) = MessageView::decode(record.bytes(), false) else { continue };
        let (offset, queue_id) = (handle.queue_offset, handle.queue_id);
        let text = format!(
            "{offset} {} {} 0 {} {} {queue_id} {offset}",
            handle.pop_time,
            handle.invisible_ms,
            mark(topic),
            hot.broker_name
        );
        let mut copy = readdressed(record.bytes(), &view, request.topic, ("POP_CK", &text));
        add_reconsume_times(&mut copy, attempt.saturating_sub(1));
        body.extend_from_slice(&copy);
    }
    body.freeze()
}
