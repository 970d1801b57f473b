//! ReceiveMessage and PullMessage: from the request to messages on a stream.

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
    connections::answer_memory::{self, OF_MESSAGE},
    grpc::{
        connection::Link,
        convert::{Refusal, check_group, check_topic, code, put_status, put_timestamp},
        stream::{Packer, ResponseStream, ReturnTo},
    },
    hot::{
        ClientPolicy, Hot,
        pop_retries::{lies_in, mark},
        pull::Pull,
        reads::PATIENCE,
        receive::Receive,
        renewals::RENEWED,
    },
    protobuf::{Malformed, bytes_field_len, put_len_prefix, put_varint_field, varint_len},
    tables::TopicEntry,
};

/// Messages of one answer: as RocketMQ, and for packed streams.
const MAX_BATCH: usize = 32;
const MAX_PACKED_BATCH: usize = 4_096;
/// Records are not looked at one by one.
const MAX_RECORDS: usize = 16_384;
const MAX_BYTES: usize = 4 << 20;
/// RocketMQ's default.
const DEFAULT_INVISIBLE: Duration = Duration::from_secs(60);
/// The shortest lease there is.
const SHORTEST: Duration = Duration::from_millis(1);
const SQL: i32 = 2;

/// What a request says beside its message.
pub(in crate::grpc) struct Terms {
    pub peer: SocketAddr,
    pub form: Form,
    /// How long the client waits for the answer.
    pub deadline: Option<Duration>,
    /// How long it waits for messages.
    pub polling: Polling,
}

/// How messages are laid out in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::grpc) enum Form {
    /// As RocketMQ sends them.
    Single,
    /// Many responses in one gRPC message.
    Packed,
    /// Of a pull: one packed gRPC message with status and next offset, then records as they lie in the log.
    Records,
}

impl Form {
    /// The form asked for, of those that this kind of answer has.
    pub(in crate::grpc) fn asked(value: Option<&str>, is_pull: bool) -> Self {
        match value {
            Some("1") => Self::Packed,
            Some("2") if is_pull => Self::Records,
            _ => Self::Single,
        }
    }

    /// What the answer announces.
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

/// Who receives: one of the clients of a connection.
pub(in crate::grpc) struct Client {
    pub link: Link,
    pub id: String,
}

impl Terms {
    fn max_batch(&self, asked: i32) -> Result<usize, Refusal> {
        let limit = match self.form {
            Form::Single => MAX_BATCH,
            Form::Packed => MAX_PACKED_BATCH,
            Form::Records => MAX_RECORDS,
        };
        match usize::try_from(asked) {
            Ok(count) if count > 0 => Ok(count.min(limit)),
            _ => Err(Refusal::new(
                code::BAD_REQUEST,
                format!("the batch size is {asked}; it must be 1 or more"),
            )),
        }
    }

    /// What bounds an answer besides: nothing where the form, which other clients do not ask for, is for large ones.
    fn limits(&self, hot: &Hot) -> TransferLimits {
        if self.form.is_packed() { TransferLimits::NONE } else { hot.transfer_limits() }
    }

    fn wait(&self, asked: Option<ProtoDuration>) -> Result<Duration, Refusal> {
        self.polling.wait(asked.map(|wait| wait.get().unwrap_or_default()), self.deadline)
    }

    /// How long to look at messages that are not wanted: as always, but well within the client's own patience.
    fn patience(&self) -> Duration {
        self.deadline.map_or(PATIENCE, |left| PATIENCE.min(left / 2))
    }

    fn digest(&self) -> BodyDigest {
        if self.form.is_packed() { BodyDigest::Crc32 } else { BodyDigest::Md5 }
    }
}

/// Answers an encoded `ReceiveMessageRequest`: status, messages, time of delivery.
///
/// Waits parked; dropped meanwhile, it leases nothing.
pub(in crate::grpc) async fn receive_message(
    hot: &Arc<Hot>,
    request: Bytes,
    terms: &Terms,
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
            let bytes = leased.iter().map(|leased| leased.record.bytes().len() + OF_MESSAGE).sum();
            packer = Packer::new(terms.form.is_packed(), bytes);
            put_status_item(&mut packer, code::OK, "OK");
            let (group, topic) = (name(request.group.as_ref()), topic_name(request.message_queue.as_ref()));
            let lies_in = lies_in(&leased, topic).to_owned();
            let mark = if lies_in == topic { 0 } else { mark(&lies_in) };
            if request.auto_renew {
                let handles = leased.iter().map(|leased| leased.handle);
                hot.renew_while_there(group, &lies_in, handles, &client.link.presence(&client.id));
            }
            let as_of = AsOf { topic, mark, is_ordered };
            put_leased(&mut packer, hot, leased, terms.digest(), as_of);
            return_to = Some(ReturnTo { hot: Arc::clone(hot), group: group.to_owned(), topic: lies_in });
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

/// The messages, and whether they were received in order: their handles tell.
async fn receive(
    hot: &Hot,
    request: &ReceiveMessageRequest,
    terms: &Terms,
) -> Result<(Vec<Leased>, bool), Refusal> {
    // As in RocketMQ's proxy, before any other check.
    let wait = terms.wait(request.long_polling_timeout)?;
    let (topic, group) = (topic_name(request.message_queue.as_ref()), name(request.group.as_ref()));
    check_topic(topic)?;
    check_group(group)?;
    let max_count = terms.max_batch(request.batch_size)?;
    let invisible_duration = match request.invisible_duration {
        // As in RocketMQ's proxy, whatever was asked for.
        _ if request.auto_renew => RENEWED,
        asked => invisible_duration(&hot.client_policy.load(), asked)?,
    };
    let filter = filter(hot, request.filter_expression.as_ref())?;
    let entry = readable(hot, topic, terms.peer).await?;
    let group_entry = hot.lookup.group(group, terms.peer).await?;
    if !group_entry.enabled {
        return Err(Refusal::new(code::FORBIDDEN, format!("consumer group {group} may not consume")));
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

/// The name of a try, which is kept until the next one.
fn attempt_id(request: &ReceiveMessageRequest) -> Result<Option<&str>, Refusal> {
    match request.attempt_id.as_deref() {
        Some(id) if id.len() > MAX_ATTEMPT_ID => {
            let why = format!("the attempt id has {} bytes; it may have up to {MAX_ATTEMPT_ID}", id.len());
            Err(Refusal::new(code::BAD_REQUEST, why))
        }
        id => Ok(id),
    }
}

/// The length of the leases of a receive. Where RocketMQ's bound holds, one that is not sent is too short, as there.
fn invisible_duration(policy: &ClientPolicy, asked: Option<ProtoDuration>) -> Result<Duration, Refusal> {
    match asked {
        None if policy.min_invisible <= SHORTEST => Ok(DEFAULT_INVISIBLE),
        asked => check_invisible(
            asked.unwrap_or_default(),
            policy.min_invisible.max(SHORTEST),
            policy.max_invisible,
        ),
    }
}

/// A lease that is within its bounds, in milliseconds as RocketMQ says them.
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

/// How leased messages are shown.
#[derive(Clone, Copy)]
struct AsOf<'a> {
    /// The topic that was asked for, whichever they lie in.
    topic: &'a str,
    /// Which that is.
    mark: u8,
    is_ordered: bool,
}

fn put_leased(packer: &mut Packer, hot: &Hot, leased: Vec<Leased>, digest: BodyDigest, as_of: AsOf<'_>) {
    let mut writer = MessageWriter::new(digest);
    for Leased { record, handle, attempt } in leased {
        let AsOf { topic, mark: topic_mark, is_ordered } = as_of;
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
        // It was decodable when it was dispatched: the disk has changed under us. The lease ends by itself.
        Err(reason) => tracing::error!(reason, "record in the log cannot be decoded"),
    }
}

fn put_status_item(packer: &mut Packer, code: i32, message: &str) {
    let mut status = Vec::new();
    put_status(&mut status, 1, code, message);
    packer.put(status.len(), None, |out| out.extend_from_slice(&status));
}

/// An answer to a pull.
pub(in crate::grpc) struct Pulled {
    pub stream: ResponseStream,
    /// The first offset that the queue holds, where it was read.
    pub min_offset: Option<u64>,
}

/// Answers an encoded `PullMessageRequest`: status, messages, next offset.
pub(in crate::grpc) async fn pull_message(
    hot: &Hot,
    request: Bytes,
    terms: &Terms,
) -> Result<Pulled, Malformed> {
    let request = PullMessageRequest::decode(request).map_err(|_| Malformed("not a PullMessageRequest"))?;
    let found = match pull(hot, &request, terms).await {
        Ok(found) => found,
        Err(refusal) => {
            let mut packer = Packer::new(terms.form.is_packed(), 128);
            put_status_item(&mut packer, refusal.code, &refusal.message);
            return Ok(Pulled { stream: packer.finish(None), min_offset: None });
        }
    };
    let records = || found.messages.iter().map(|(_, record)| record);
    answer_memory::take(records().map(|record| record.bytes().len() + OF_MESSAGE).sum()).await;
    let bytes = match terms.form {
        Form::Records => 64,
        _ => records().map(|record| record.bytes().len() + OF_MESSAGE).sum(),
    };
    let mut packer = Packer::new(terms.form.is_packed(), bytes);
    match found.messages.is_empty() {
        true => put_status_item(&mut packer, code::MESSAGE_NOT_FOUND, "no new message"),
        false => put_status_item(&mut packer, code::OK, "OK"),
    }
    if terms.form != Form::Records {
        let mut writer = MessageWriter::new(terms.digest());
        records().for_each(|record| put_message(&mut packer, &mut writer, record, None, None));
    }
    let next_offset = found.next_offset;
    packer.put(1 + varint_len(next_offset), None, |out| put_varint_field(out, 3, next_offset));
    if terms.form == Form::Records {
        packer.put_records(records().map(Record::bytes));
    }
    Ok(Pulled { stream: packer.finish(None), min_offset: Some(found.min_offset) })
}

async fn pull(hot: &Hot, request: &PullMessageRequest, terms: &Terms) -> Result<GetResult, Refusal> {
    let topic = topic_name(request.message_queue.as_ref());
    check_topic(topic)?;
    // A pull does not move the group, so a reader without one is welcome; one that is named must be allowed.
    let group = name(request.group.as_ref());
    if !group.is_empty() {
        check_group(group)?;
    }
    let filter = filter(hot, request.filter_expression.as_ref())?;
    let max_count = terms.max_batch(request.batch_size)?;
    let entry = readable(hot, topic, terms.peer).await?;
    if hot.tables.group(group).is_some_and(|group| !group.enabled) {
        return Err(Refusal::new(code::FORBIDDEN, format!("consumer group {group} may not consume")));
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
    match found.status {
        GetStatus::OffsetTooSmall | GetStatus::OffsetOverflowBadly => Err(Refusal::new(
            code::ILLEGAL_OFFSET,
            format!(
                "queue {queue_id} of topic {topic} holds {} to {}, {offset} was asked for",
                found.min_offset, found.max_offset
            ),
        )),
        _ => Ok(found),
    }
}

/// The queue a request names, if the topic has it.
pub(in crate::grpc) fn queue_id(
    queue: Option<&MessageQueue>,
    topic: &str,
    entry: &TopicEntry,
) -> Result<u32, Refusal> {
    let asked = queue.map_or(0, |queue| queue.id);
    u32::try_from(asked).ok().filter(|id| *id < entry.read_queues).ok_or_else(|| {
        let why = format!("topic {topic} has {} read queues, there is no queue {asked}", entry.read_queues);
        Refusal::new(code::BAD_REQUEST, why)
    })
}

/// The topic's entry, if consumers may read it.
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
    Err(Refusal::new(code::FORBIDDEN, format!("topic {topic} may not be read")))
}

/// Refuses a group what it may not read though it is subscribed to it.
fn check_allowed(hot: &Hot, group: &str, topic: &str) -> Result<(), Refusal> {
    if hot.tables.is_forbidden(group, topic) {
        let why = format!("consumer group {group} may not read topic {topic}");
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

/// The name of a resource; empty for `None`.
pub(in crate::grpc) fn name(resource: Option<&Resource>) -> &str {
    resource.map_or("", |resource| &resource.name)
}

/// The topic of a queue; empty for `None`.
pub(in crate::grpc) fn topic_name(queue: Option<&MessageQueue>) -> &str {
    queue.map_or("", |queue| name(queue.topic.as_ref()))
}
