//! ReceiveMessage and PullMessage: check the request, receive or pull, and encode the messages as a stream.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use ferromq_store::{
    filter::MessageFilter,
    progress::{Begin, Leased, MAX_ATTEMPT_ID},
    read::{GetResult, GetStatus, TransferLimits},
    record::{MessageView, Record},
};
use prost::Message as _;

use super::{
    outgoing::{BodyDigest, LeaseInfo, MessageWriter},
    polling::Polling,
    proto::{
        FilterExpression, MessageQueue, ProtoDuration, PullMessageRequest, ReceiveMessageRequest, Resource,
    },
};
use crate::{
    connections::answer_memory::{self, MESSAGE_OVERHEAD},
    grpc::{
        connection::Link,
        convert::{Refusal, check_group, check_topic, code, put_status, put_timestamp},
        stream::{Packer, ResponseStream, ReturnTo},
    },
    hot::{
        ClientPolicy, Hot,
        pop_retries::{mark, stored_topic},
        pull::Pull,
        reads::SCAN_PATIENCE,
        receive::{Receive, Watch},
        renewals::RENEWED_LEASE,
    },
    limits,
    protobuf::{Malformed, bytes_field_len, put_len_prefix, put_varint_field, varint_len},
    tables::TopicEntry,
};

/// Most messages of one answer: as in RocketMQ, and for packed streams.
const MAX_BATCH: usize = 32;
const MAX_PACKED_BATCH: usize = 4_096;
/// Larger, because records are not encoded one by one.
const MAX_RECORDS: usize = 16_384;
const MAX_BYTES: usize = 4 << 20;
/// RocketMQ's default.
const DEFAULT_INVISIBLE: Duration = Duration::from_secs(60);
/// The shortest lease.
const MIN_INVISIBLE: Duration = Duration::from_millis(1);
const SQL: i32 = 2;

/// The parts of a request outside its message: peer, metadata and deadline.
pub(in crate::grpc) struct CallTerms {
    pub peer: SocketAddr,
    pub form: AnswerForm,
    /// Time until the client gives up.
    pub deadline: Option<Duration>,
    /// Rule for the wait for messages.
    pub polling: Polling,
}

/// The layout of messages in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::grpc) enum AnswerForm {
    /// One response per gRPC message, as RocketMQ sends them.
    Single,
    /// Many responses in one gRPC message.
    Packed,
    /// For pulls only: one packed gRPC message with status and next offset, then records as stored in the log.
    Records,
}

impl AnswerForm {
    /// Returns the requested form, or `Single` if this method does not have it.
    pub(in crate::grpc) fn asked(value: Option<&str>, is_pull: bool) -> Self {
        match value {
            Some("1") => Self::Packed,
            Some("2") if is_pull => Self::Records,
            _ => Self::Single,
        }
    }

    /// Returns the metadata value that announces the form.
    pub(in crate::grpc) fn announced(self) -> Option<&'static str> {
        match self {
            Self::Single => None,
            Self::Packed => Some("1"),
            Self::Records => Some("2"),
        }
    }

    pub(in crate::grpc) fn is_packed(self) -> bool {
        self != Self::Single
    }
}

/// The receiving client, one of a connection's clients.
pub(in crate::grpc) struct Client {
    pub link: Link,
    pub id: String,
}

impl CallTerms {
    fn max_batch(&self, asked: i32) -> Result<usize, Refusal> {
        let limit = match self.form {
            AnswerForm::Single => MAX_BATCH,
            AnswerForm::Packed => MAX_PACKED_BATCH,
            AnswerForm::Records => MAX_RECORDS,
        };
        match usize::try_from(asked) {
            Ok(count) if count > 0 => Ok(count.min(limit)),
            _ => Err(Refusal::new(
                code::BAD_REQUEST,
                format!("the batch size is {asked}; it must be 1 or more"),
            )),
        }
    }

    /// Returns further limits of an answer. The packed forms, which only ferromq's client requests, have none.
    fn limits(&self, hot: &Hot) -> TransferLimits {
        if self.form.is_packed() { TransferLimits::NONE } else { hot.transfer_limits() }
    }

    fn wait(&self, asked: Option<ProtoDuration>) -> Result<Duration, Refusal> {
        self.polling.wait(asked.map(|wait| wait.get().unwrap_or_default()), self.deadline)
    }

    /// Returns how long a filter may skip messages: the default, but at most half of the client's remaining time.
    fn patience(&self) -> Duration {
        self.deadline.map_or(SCAN_PATIENCE, |left| SCAN_PATIENCE.min(left / 2))
    }

    fn digest(&self) -> BodyDigest {
        if self.form.is_packed() { BodyDigest::Stored } else { BodyDigest::Md5 }
    }
}

/// Answers an encoded `ReceiveMessageRequest`: status, messages, delivery time.
///
/// The wait is a parked long poll. Dropping the future meanwhile leases nothing.
pub(in crate::grpc) async fn receive_message(
    hot: &Arc<Hot>,
    request: Bytes,
    terms: &CallTerms,
    client: &Client,
) -> Result<ResponseStream, Malformed> {
    let request =
        ReceiveMessageRequest::decode(request).map_err(|_| Malformed("not a ReceiveMessageRequest"))?;
    let mut packer;
    let mut return_to = None;
    match receive(hot, &request, terms).await {
        Ok((leased, _)) if leased.is_empty() => {
            packer = Packer::new(terms.form.is_packed(), 64);
            put_status_item(&mut packer, code::MESSAGE_NOT_FOUND, "no new message");
        }
        Ok((leased, is_ordered)) => {
            let bytes = leased.iter().map(|leased| leased.record.bytes().len() + MESSAGE_OVERHEAD).sum();
            packer = Packer::new(terms.form.is_packed(), bytes);
            put_status_item(&mut packer, code::OK, "OK");
            let (group, topic) = (name(request.group.as_ref()), topic_name(request.message_queue.as_ref()));
            let stored_topic = stored_topic(&leased, topic).to_owned();
            let mark = if stored_topic == topic { 0 } else { mark(&stored_topic) };
            if request.auto_renew {
                let handles = leased.iter().map(|leased| leased.handle);
                hot.renew_while_there(group, &stored_topic, handles, &client.link.presence(&client.id));
            }
            let view = LeaseView { topic, mark, is_ordered };
            put_leased(&mut packer, hot, leased, terms.digest(), view);
            return_to = Some(ReturnTo { hot: Arc::clone(hot), group: group.to_owned(), topic: stored_topic });
        }
        Err(refusal) => {
            packer = Packer::new(terms.form.is_packed(), 128);
            put_status_item(&mut packer, refusal.code, &refusal.message);
        }
    }
    let mut time = Vec::new();
    put_timestamp(&mut time, 3, hot.clock.now_ms());
    packer.put(time.len(), None, |out| out.extend_from_slice(&time));
    Ok(packer.finish(return_to))
}

/// Returns the messages and whether the receive was ordered, which their handles record.
pub(super) async fn receive(
    hot: &Hot,
    request: &ReceiveMessageRequest,
    terms: &CallTerms,
) -> Result<(Vec<Leased>, bool), Refusal> {
    // As in RocketMQ's proxy, before any other check.
    let wait = terms.wait(request.long_polling_timeout)?;
    let (topic, group) = (topic_name(request.message_queue.as_ref()), name(request.group.as_ref()));
    check_topic(topic)?;
    check_group(group)?;
    let max_count = terms.max_batch(request.batch_size)?;
    let invisible_duration = match request.invisible_duration {
        // As in RocketMQ's proxy, the requested duration is ignored.
        _ if request.auto_renew => RENEWED_LEASE,
        asked => invisible_duration(&hot.client_policy.load(), asked)?,
    };
    let filter = filter(hot, request.filter_expression.as_ref())?;
    let entry = readable(hot, topic, terms.peer).await?;
    let group_entry = hot.lookup.group(group, terms.peer).await?;
    if !group_entry.enabled {
        return Err(Refusal::new(
            code::FORBIDDEN,
            format!("consumer group {group} is disabled; set its consumeEnable to true"),
        ));
    }
    check_allowed(hot, group, topic)?;
    let order = match group_entry.ordered {
        true => Some(hot.ordered(attempt_id(request)?)),
        false => None,
    };
    let receive = Receive {
        group,
        topic,
        queue_count: entry.read_queues,
        queue: None,
        max_count,
        max_bytes: MAX_BYTES,
        limits: terms.limits(hot),
        invisible_duration,
        filter: &filter,
        begin: if group_entry.from_beginning { Begin::AtMin } else { Begin::AtMax },
        order,
        max_attempts: group_entry.deliveries(),
        by_priority: order.is_none() && hot.is_by_priority(&entry, &group_entry),
        peer: terms.peer,
        wait,
        patience: terms.patience(),
    };
    Ok((hot.receive(&receive).await?.messages, order.is_some()))
}

/// Returns whether a receive would find a message, waiting for the first one. Messages that a filter rejects count.
pub(super) async fn has_messages(
    hot: &Hot,
    request: &ReceiveMessageRequest,
    terms: &CallTerms,
) -> Result<bool, Refusal> {
    let wait = terms.wait(request.long_polling_timeout)?;
    let (topic, group) = (topic_name(request.message_queue.as_ref()), name(request.group.as_ref()));
    check_topic(topic)?;
    check_group(group)?;
    let entry = readable(hot, topic, terms.peer).await?;
    let group_entry = hot.lookup.group(group, terms.peer).await?;
    let watch = Watch {
        group,
        topic,
        queue_count: entry.read_queues,
        queue: None,
        in_order: group_entry.ordered,
        wait,
    };
    Ok(hot.wait_for_messages(&watch).await)
}

/// Returns the attempt id, whose length is limited because it is kept until the next attempt.
fn attempt_id(request: &ReceiveMessageRequest) -> Result<Option<&str>, Refusal> {
    match request.attempt_id.as_deref() {
        Some(id) if id.len() > MAX_ATTEMPT_ID => {
            let why = format!("the attempt id has {} bytes; the limit is {MAX_ATTEMPT_ID}", id.len());
            Err(Refusal::new(code::BAD_REQUEST, why))
        }
        id => Ok(id),
    }
}

/// Returns the length of a receive's leases. With RocketMQ's minimum, a missing length is too short, as there.
fn invisible_duration(policy: &ClientPolicy, asked: Option<ProtoDuration>) -> Result<Duration, Refusal> {
    match asked {
        None if policy.min_invisible <= MIN_INVISIBLE => Ok(DEFAULT_INVISIBLE),
        asked => check_invisible(
            asked.unwrap_or_default(),
            policy.min_invisible.max(MIN_INVISIBLE),
            policy.max_invisible,
        ),
    }
}

/// Checks the length of a lease against its bounds. The texts are RocketMQ's, with milliseconds.
pub(in crate::grpc) fn check_invisible(
    asked: ProtoDuration,
    min: Duration,
    max: Duration,
) -> Result<Duration, Refusal> {
    let refused = |why: String| Err(Refusal::new(code::ILLEGAL_INVISIBLE_TIME, why));
    match asked.get() {
        Some(duration) if duration > max => {
            refused(format!("the invisibleTime is too large. max is {}", max.as_millis()))
        }
        Some(duration) if duration >= min => Ok(duration),
        _ => refused(format!("the invisibleTime is too small. min is {}", min.as_millis())),
    }
}

/// The presentation of leased messages to their client.
#[derive(Clone, Copy)]
struct LeaseView<'a> {
    /// The requested topic, even if another one holds the messages.
    topic: &'a str,
    /// The mark of the topic that holds the messages; 0 if it is the requested one.
    mark: u8,
    is_ordered: bool,
}

fn put_leased(packer: &mut Packer, hot: &Hot, leased: Vec<Leased>, digest: BodyDigest, view: LeaseView<'_>) {
    let mut writer = MessageWriter::new(digest);
    for Leased { record, handle, attempt } in leased {
        let LeaseView { topic, mark: topic_mark, is_ordered } = view;
        let broker_name = &hot.broker_name;
        let lease = LeaseInfo { handle: &handle, attempt, broker_name, is_ordered, topic_mark };
        let shown = (topic_mark > 0).then_some(topic);
        put_message(packer, &mut writer, &record, Some(lease), shown);
    }
}

fn put_message(
    packer: &mut Packer,
    writer: &mut MessageWriter,
    record: &Record,
    lease: Option<LeaseInfo<'_>>,
    topic: Option<&str>,
) {
    match MessageView::decode(record.bytes(), false) {
        Ok(message) => {
            let message = MessageView { topic: topic.unwrap_or(message.topic), ..message };
            let len = writer.prepare(&message, lease);
            packer.put(bytes_field_len(2, len), lease.map(|lease| *lease.handle), |out| {
                put_len_prefix(out, 2, len);
                writer.finish(out, &message);
            });
        }
        // It was decodable when it was dispatched, so the disk has changed since. The lease expires.
        Err(reason) => tracing::error!(reason, "record in the log cannot be decoded; not delivered"),
    }
}

fn put_status_item(packer: &mut Packer, code: i32, message: &str) {
    let mut status = Vec::new();
    put_status(&mut status, 1, code, message);
    packer.put(status.len(), None, |out| out.extend_from_slice(&status));
}

/// An answer to a pull.
pub(in crate::grpc) struct PullAnswer {
    pub stream: ResponseStream,
    /// The queue's min offset, if the queue was read.
    pub min_offset: Option<u64>,
}

/// Answers an encoded `PullMessageRequest`: status, messages, next offset.
pub(in crate::grpc) async fn pull_message(
    hot: &Hot,
    request: Bytes,
    terms: &CallTerms,
) -> Result<PullAnswer, Malformed> {
    let request = PullMessageRequest::decode(request).map_err(|_| Malformed("not a PullMessageRequest"))?;
    let found = match pull(hot, &request, terms).await {
        Ok(found) => found,
        Err(refusal) => {
            let mut packer = Packer::new(terms.form.is_packed(), 128);
            put_status_item(&mut packer, refusal.code, &refusal.message);
            return Ok(PullAnswer { stream: packer.finish(None), min_offset: None });
        }
    };
    let records = || found.messages.iter().map(|(_, record)| record);
    answer_memory::take(records().map(|record| record.bytes().len() + MESSAGE_OVERHEAD).sum()).await;
    let bytes = match terms.form {
        AnswerForm::Records => 64,
        _ => records().map(|record| record.bytes().len() + MESSAGE_OVERHEAD).sum(),
    };
    let mut packer = Packer::new(terms.form.is_packed(), bytes);
    match found.messages.is_empty() {
        true => put_status_item(&mut packer, code::MESSAGE_NOT_FOUND, "no new message"),
        false => put_status_item(&mut packer, code::OK, "OK"),
    }
    if terms.form != AnswerForm::Records {
        let mut writer = MessageWriter::new(terms.digest());
        records().for_each(|record| put_message(&mut packer, &mut writer, record, None, None));
    }
    let next_offset = found.next_offset;
    packer.put(1 + varint_len(next_offset), None, |out| put_varint_field(out, 3, next_offset));
    if terms.form == AnswerForm::Records {
        packer.put_records(records().map(Record::bytes));
    }
    Ok(PullAnswer { stream: packer.finish(None), min_offset: Some(found.min_offset) })
}

pub(super) async fn pull(
    hot: &Hot,
    request: &PullMessageRequest,
    terms: &CallTerms,
) -> Result<GetResult, Refusal> {
    let topic = topic_name(request.message_queue.as_ref());
    check_topic(topic)?;
    // A pull does not move the group's offsets, so the group may be empty; a named one must be allowed.
    let group = name(request.group.as_ref());
    if !group.is_empty() {
        check_group(group)?;
    }
    let filter = filter(hot, request.filter_expression.as_ref())?;
    let max_count = terms.max_batch(request.batch_size)?;
    let entry = readable(hot, topic, terms.peer).await?;
    if hot.tables.group(group).is_some_and(|group| !group.enabled) {
        return Err(Refusal::new(
            code::FORBIDDEN,
            format!("consumer group {group} is disabled; set its consumeEnable to true"),
        ));
    }
    check_allowed(hot, group, topic)?;
    let queue_id = queue_id(request.message_queue.as_ref(), topic, &entry)?;
    let offset = u64::try_from(request.offset).map_err(|_| {
        Refusal::new(code::ILLEGAL_OFFSET, format!("the offset is {}; it must be 0 or more", request.offset))
    })?;
    let wait = terms.wait(request.long_polling_timeout)?;
    let (max_bytes, limits, patience, filter) = (MAX_BYTES, terms.limits(hot), terms.patience(), &filter);
    let wanted = Pull { topic, queue_id, offset, max_count, max_bytes, limits, filter, wait, patience };
    let found = hot.pull(&wanted).await;
    limits::charge(found.messages.len(), found.messages.iter().map(|(_, record)| record.bytes().len()).sum());
    match found.status {
        GetStatus::OffsetTooSmall | GetStatus::OffsetOverflowBadly => Err(Refusal::new(
            code::ILLEGAL_OFFSET,
            format!(
                "the offset {offset} is out of range: queue {queue_id} of topic {topic} holds {} to {}",
                found.min_offset, found.max_offset
            ),
        )),
        _ => Ok(found),
    }
}

/// Returns the requested queue, if the topic has it.
pub(in crate::grpc) fn queue_id(
    queue: Option<&MessageQueue>,
    topic: &str,
    entry: &TopicEntry,
) -> Result<u32, Refusal> {
    let asked = queue.map_or(0, |queue| queue.id);
    u32::try_from(asked).ok().filter(|id| *id < entry.read_queues).ok_or_else(|| {
        let why = format!("topic {topic} has no queue {asked}; it has {} read queues", entry.read_queues);
        Refusal::new(code::BAD_REQUEST, why)
    })
}

/// Returns the topic's entry, if consumers are allowed to read it.
pub(in crate::grpc) async fn readable(
    hot: &Hot,
    topic: &str,
    peer: SocketAddr,
) -> Result<TopicEntry, Refusal> {
    hot.check_reads()?;
    let entry = hot.lookup.topic(topic, peer).await?;
    if entry.is_readable() {
        return Ok(entry);
    }
    Err(Refusal::new(
        code::FORBIDDEN,
        format!("topic {topic} cannot be read: its permission or the broker's forbids it"),
    ))
}

/// Rejects a topic that is forbidden to the group, even if the group subscribes to it.
fn check_allowed(hot: &Hot, group: &str, topic: &str) -> Result<(), Refusal> {
    if hot.tables.is_forbidden(group, topic) {
        let why = format!("topic {topic} is forbidden to consumer group {group}");
        return Err(Refusal::new(code::FORBIDDEN, why));
    }
    Ok(())
}

fn filter(hot: &Hot, expression: Option<&FilterExpression>) -> Result<MessageFilter, Refusal> {
    let Some(FilterExpression { kind, expression }) = expression else { return Ok(MessageFilter::All) };
    let kind = if *kind == SQL { "SQL92" } else { "TAG" };
    hot.tables
        .filters
        .compile(kind, expression)
        .map_err(|error| Refusal::new(code::ILLEGAL_FILTER_EXPRESSION, error.to_string()))
}

/// Returns the name of a resource; empty for `None`.
pub(in crate::grpc) fn name(resource: Option<&Resource>) -> &str {
    resource.map_or("", |resource| &resource.name)
}

/// Returns the topic of a queue; empty for `None`.
pub(in crate::grpc) fn topic_name(queue: Option<&MessageQueue>) -> &str {
    queue.map_or("", |queue| name(queue.topic.as_ref()))
}
