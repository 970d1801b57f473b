//! SendMessage: parses and checks the request, stores its messages and returns their receipts.

use std::{
    fmt::Write,
    iter::repeat,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use ferromq_store::{
    dedup::SEQUENCE,
    formats::compression::sys_flag,
    log::{Appended, Location},
    record::NewMessage,
};
use tonic::Status;

use super::{
    message::{Outgoing, SendRequest},
    send_check, send_properties,
};
use crate::{
    TransportError,
    connections::budget::{OverBudget, Share},
    grpc::{
        call::malformed,
        convert::{Refusal, check_topic, code, put_status},
    },
    hot::{
        Hot, batches::MAX_INLINE_MESSAGES, latencies::Protocol, message_group::queue_of_group, recall_handle,
        send::Deduplication,
    },
    protobuf::{
        CHOSEN_QUEUE, DURABILITY, FLUSHED, PHYSICAL_OFFSETS, STORE_HOST, WRITTEN, bytes_field_len,
        put_bytes_field, put_len_prefix, put_varint_field, varint_len,
    },
    tables::{MessageType, TopicEntry},
};

const GZIP: i32 = 2;
/// Memory of a parsed request, beside its bytes, up to which it is not counted: the number of calls bounds it.
const UNCOUNTED: usize = 4 << 10;

/// Answers an encoded `SendMessageRequest` with an encoded `SendMessageResponse`.
///
/// All messages of a request are checked before any is stored, so a refusal means that none is. A crash before their
/// flush may keep only the first of several. The answer comes once the promise of the flush policy holds.
///
/// # Errors
/// `INVALID_ARGUMENT` for a malformed request; `RESOURCE_EXHAUSTED` if `share` has no room for the memory that many
/// small messages take beside their bytes.
pub(in crate::grpc) async fn send_message(
    hot: &Arc<Hot>,
    request: &Bytes,
    peer: SocketAddr,
    share: &Arc<Share>,
    form: ReceiptForm,
) -> Result<Bytes, Status> {
    let count = SendRequest::count(request).map_err(malformed)?;
    let stored = if count > MAX_INLINE_MESSAGES {
        store_many(hot, request, count, peer, share).await?
    } else {
        store(hot, request, count, peer, share).await?
    };
    let answer = match stored {
        Ok((mut answer, appended)) => {
            let durable = hot.sends.durable(appended.end).await;
            durable.map_err(Refusal::from).map(|()| {
                if form == ReceiptForm::Whole {
                    put_records(&mut answer, hot, &appended);
                }
                answer.into()
            })
        }
        Err(refusal) => Err(refusal),
    };
    Ok(answer.unwrap_or_else(|refusal| {
        let topic = SendRequest::first_topic(request).ok();
        hot.refused_send(peer, topic, (Protocol::Grpc, refusal.code), &refusal.message);
        let mut out = Vec::new();
        put_status(&mut out, 1, refusal.code, &refusal.message);
        out.into()
    }))
}

/// What the receipts of a send say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::grpc) enum ReceiptForm {
    /// RocketMQ's fields.
    Plain,
    /// Also durability, and where the records are: for ferromq's clients.
    Whole,
}

/// The answer, valid once the append is durable.
type StoredAnswer = Result<(Vec<u8>, Appended), Refusal>;

/// As [`store`], for a large request, in turns that let other requests through.
async fn store_many(
    hot: &Arc<Hot>,
    request: &Bytes,
    count: usize,
    peer: SocketAddr,
    share: &Arc<Share>,
) -> Result<StoredAnswer, Status> {
    let name = SendRequest::first_topic(request).map_err(malformed)?;
    // No turn is held while the control plane creates the topic or assigns its type.
    let topic = match topic_of(hot, name, peer).await {
        Ok(topic) => topic,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let captured = (Arc::clone(hot), request.clone(), Arc::clone(share));
    let stored = in_turn(hot, peer, move || {
        let (hot, request, share) = captured;
        let request = parse(&request, count, &share)?;
        let topic_name = common_topic(&hot, &request);
        Ok(topic_name.and_then(|_| store_unless_untyped(&hot, &request, &topic, peer)))
    });
    let kind = match stored.await? {
        Ok(StoreStep::Untyped(kind)) => kind,
        Ok(StoreStep::Stored(answer, appended)) => return Ok(Ok((answer, appended))),
        Err(refusal) => return Ok(Err(refusal)),
    };
    let topic = match hot.lookup.typed_topic(name, kind, peer).await {
        Ok(topic) => topic,
        Err(error) => return Ok(Err(error.into())),
    };
    let (shared, request) = (Arc::clone(hot), request.clone());
    in_turn(hot, peer, move || {
        // Its memory is already counted.
        let request = SendRequest::parse(&request).map_err(malformed)?;
        Ok(append(&shared, &request, &topic, peer).map(|stored| answer(&shared, &request, stored)))
    })
    .await
}

/// Does a part of the work on a large request in its connection's turn.
async fn in_turn<T: Send + 'static>(
    hot: &Hot,
    peer: SocketAddr,
    work: impl FnOnce() -> Result<Result<T, Refusal>, Status> + Send + 'static,
) -> Result<Result<T, Refusal>, Status> {
    match hot.batches.turn(peer).await {
        Ok(turn) => turn.run(work).await.unwrap_or_else(|closed| Ok(Err(closed.into()))),
        Err(closed) => Ok(Err(closed.into())),
    }
}

/// Stores the messages of a request.
async fn store(
    hot: &Hot,
    request: &[u8],
    count: usize,
    peer: SocketAddr,
    share: &Share,
) -> Result<StoredAnswer, Status> {
    let request = parse(request, count, share)?;
    Ok(store_parsed(hot, &request, peer).await)
}

/// Parses a request of `count` messages once there is room for them.
fn parse<'a>(request: &'a [u8], count: usize, share: &Share) -> Result<SendRequest<'a>, Status> {
    // Before parsing, so that a request without room costs little time.
    count_extra(share, SendRequest::memory_of_messages(count))?;
    let request = SendRequest::parse_counted(request, count).map_err(malformed)?;
    count_extra(share, request.memory_of_texts())?;
    Ok(request)
}

fn count_extra(share: &Share, bytes: usize) -> Result<(), OverBudget> {
    if bytes > UNCOUNTED { share.take(bytes) } else { Ok(()) }
}

/// The stored messages of a request.
struct Stored {
    appended: Appended,
    /// Type of a single message. Of several, none is delayed or a half message.
    kind: MessageType,
    /// Delivery time of a single delayed message.
    deliver_at: Option<i64>,
    /// The queue of each message if one differs from its client's choice; else empty.
    chosen: Vec<i32>,
}

/// The outcome of a step of a request.
enum StoreStep {
    /// The answer, valid once the append is durable.
    Stored(Vec<u8>, Appended),
    /// Nothing is stored: the topic needs this type first.
    Untyped(MessageType),
}

async fn store_parsed(hot: &Hot, request: &SendRequest<'_>, peer: SocketAddr) -> StoredAnswer {
    let name = common_topic(hot, request)?;
    let topic = topic_of(hot, name, peer).await?;
    match store_unless_untyped(hot, request, &topic, peer)? {
        StoreStep::Stored(answer, appended) => Ok((answer, appended)),
        StoreStep::Untyped(kind) => {
            let topic = hot.lookup.typed_topic(name, kind, peer).await?;
            append(hot, request, &topic, peer).map(|stored| answer(hot, request, stored))
        }
    }
}

/// Stores the messages of a request that [`common_topic`] accepted, unless they are the first of a topic without type.
fn store_unless_untyped(
    hot: &Hot,
    request: &SendRequest<'_>,
    topic: &TopicEntry,
    peer: SocketAddr,
) -> Result<StoreStep, Refusal> {
    if let Some(kind) = send_check::type_to_assign(request, topic, &hot.policy.load())? {
        return Ok(StoreStep::Untyped(kind));
    }
    let (answer, appended) = answer(hot, request, append(hot, request, topic, peer)?);
    Ok(StoreStep::Stored(answer, appended))
}

fn answer(hot: &Hot, request: &SendRequest<'_>, stored: Stored) -> (Vec<u8>, Appended) {
    (receipts(hot, request, &stored), stored.appended)
}

/// Returns the common topic of all messages of a request, and checks their delivery times.
fn common_topic<'a>(hot: &Hot, request: &SendRequest<'a>) -> Result<&'a str, Refusal> {
    let Some(first) = request.messages.first() else {
        return Err(Refusal::new(code::MESSAGE_CORRUPTED, "the request has no message; send at least one"));
    };
    if request.messages.iter().any(|message| message.topic != first.topic) {
        return Err(Refusal::new(
            code::MESSAGE_CORRUPTED,
            "the messages of the request have different topics; send one request per topic",
        ));
    }
    if let Some(latest) = request.messages.iter().filter_map(|message| message.delivery_timestamp).max() {
        check_delay(hot, latest)?;
    }
    Ok(first.topic)
}

/// Rejects a delivery time further ahead than the policy allows over gRPC, with RocketMQ's text.
fn check_delay(hot: &Hot, at: i64) -> Result<(), Refusal> {
    let max = hot.client_policy.load().max_delay.as_millis();
    let ahead = u128::try_from(at.saturating_sub(hot.clock.now_ms())).unwrap_or(0);
    if ahead > max {
        let why = format!("the max delay time of message is too large, max is {max}");
        return Err(Refusal::new(code::ILLEGAL_DELIVERY_TIME, why));
    }
    Ok(())
}

/// Returns the entry of a topic, if clients are allowed to write it.
async fn topic_of(hot: &Hot, name: &str, peer: SocketAddr) -> Result<TopicEntry, Refusal> {
    check_topic(name)?;
    let topic = hot.lookup.topic(name, peer).await.map_err(|error| unknown_topic(hot, error))?;
    topic.check_writable(name)?;
    Ok(topic)
}

/// If topics are not created over gRPC, an unknown topic fails RocketMQ's check of its type, which comes first.
fn unknown_topic(hot: &Hot, error: TransportError) -> Refusal {
    match error {
        TransportError::NoSuchTopic(topic)
            if !hot.client_policy.load().creates_topics && hot.policy.load().type_checks.grpc =>
        {
            let why = format!(
                "TopicMessageType validate failed, the expected type is UNSPECIFIED: the topic {topic} does not exist; \
                 create it"
            );
            Refusal::new(code::MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, why)
        }
        error => error.into(),
    }
}

/// Checks all messages, then appends them. Nothing is borrowed from the request afterwards.
fn append(
    hot: &Hot,
    request: &SendRequest<'_>,
    topic: &TopicEntry,
    peer: SocketAddr,
) -> Result<Stored, Refusal> {
    let mut kind = MessageType::Normal;
    let policy = hot.policy.load();
    let mut texts = Vec::with_capacity(request.messages.len() * 256);
    let mut ends = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        kind = send_check::check(request, message, topic, &policy)?;
        send_properties::put(&mut texts, request, message, kind);
        // As over remoting: batches have no stamp. Remoting consumers trace by it.
        if request.messages.len() == 1 {
            texts.extend_from_slice(policy.stamp());
        }
        ends.push(texts.len());
    }
    let kept = Deduplication::of(request.properties.iter().any(|(name, _)| *name == SEQUENCE));
    let mut messages = new_messages(hot, request, topic, peer);
    let chosen = changed_queues(request, &messages);
    let (appended, deliver_at) = match (messages.as_mut_slice(), kind) {
        ([_], MessageType::Transaction) if kept == Deduplication::On => {
            let why = format!("a message of a transaction cannot have the property {SEQUENCE}");
            return Err(Refusal::new(code::BAD_REQUEST, why));
        }
        ([message], MessageType::Transaction) => {
            let has_timer = request.messages.iter().any(|message| message.delivery_timestamp.is_some());
            (hot.sends.append_half(message, first_id(request), has_timer, &mut texts)?, None)
        }
        ([message], MessageType::Delay) => {
            message.properties = &texts;
            hot.sends.append_delayed(message, true, kept)?
        }
        (many, _) => {
            let mut begin = 0;
            for (message, end) in many.iter_mut().zip(ends) {
                message.properties = texts.get(begin..end).unwrap_or_default();
                begin = end;
            }
            (hot.sends.append_with(many, kept)?, None)
        }
    };
    Ok(Stored { appended, kind, deliver_at, chosen })
}

fn first_id<'a>(request: &SendRequest<'a>) -> &'a str {
    request.messages.first().map_or("", |message| message.message_id)
}

/// Returns the messages of a request, still without properties.
fn new_messages<'a>(
    hot: &Hot,
    request: &SendRequest<'a>,
    topic: &TopicEntry,
    peer: SocketAddr,
) -> Vec<NewMessage<'a>> {
    let now = hot.clock.now_ms();
    // Drawn at most once: messages of one request without a chosen queue share one.
    let mut drawn = None;
    let messages = request.messages.iter().map(|message| NewMessage {
        topic: message.topic,
        queue_id: chosen_queue(message, topic).unwrap_or_else(|| {
            (*drawn.get_or_insert_with(|| hot.sends.pick_queue(message.topic, topic))).cast_signed()
        }),
        flag: 0,
        sys_flag: if message.body_encoding == GZIP { sys_flag(message.compression) } else { 0 },
        born_timestamp: message.born_timestamp.unwrap_or(now),
        born_host: peer,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: message.body,
        properties: &[],
    });
    messages.collect()
}

/// Returns the queue that a message determines itself. Its message group precedes the queue that its producer chose,
/// because each official client chooses that by a hash of its own.
fn chosen_queue(message: &Outgoing<'_>, topic: &TopicEntry) -> Option<i32> {
    if !message.message_group.is_empty() {
        return Some(queue_of_group(message.message_group, topic.write_queues).cast_signed());
    }
    match message.priority.and_then(|priority| u32::try_from(priority).ok()) {
        Some(priority) if send_check::kind(message) == MessageType::Priority => {
            Some(topic.queue_of_priority(priority).cast_signed())
        }
        _ => message.queue_id,
    }
}

/// Returns the queue of each message if one differs from its client's choice; else nothing.
fn changed_queues(request: &SendRequest<'_>, messages: &[NewMessage<'_>]) -> Vec<i32> {
    let is_other = |(asked, given): (&Outgoing<'_>, &NewMessage<'_>)| asked.queue_id != Some(given.queue_id);
    if request.messages.iter().zip(messages).any(is_other) {
        messages.iter().map(|message| message.queue_id).collect()
    } else {
        Vec::new()
    }
}

/// Encodes the response of a request whose messages are all stored.
fn receipts(hot: &Hot, request: &SendRequest<'_>, stored: &Stored) -> Vec<u8> {
    let mut status = Vec::new();
    put_status(&mut status, 1, code::OK, "OK");
    let mut out = Vec::with_capacity(request.messages.len() * 72 + 48);
    out.extend_from_slice(&status);
    let chosen = stored.chosen.iter().copied().map(Some).chain(repeat(None));
    for ((message, location), chosen) in request.messages.iter().zip(&stored.appended.locations).zip(chosen) {
        let chosen = chosen.and_then(|queue_id| u64::try_from(queue_id).ok());
        let transaction = match stored.kind {
            MessageType::Transaction => transaction_id(location),
            _ => String::new(),
        };
        let recall = stored.deliver_at.map_or_else(String::new, |at| {
            recall_handle::handle(message.topic, &hot.broker_name, at, message.message_id)
        });
        // Protobuf leaves out empty texts.
        let texts = [(2, message.message_id), (3, transaction.as_str()), (5, recall.as_str())];
        let texts = || texts.iter().filter(|(_, text)| !text.is_empty());
        // -1 for a duplicate.
        let offset = location.queue_offset;
        let len = texts().map(|(number, text)| bytes_field_len(*number, text.len())).sum::<usize>();
        let chosen_len = chosen.map_or(0, |id| varint_len(u64::from(CHOSEN_QUEUE) << 3) + varint_len(id));
        put_len_prefix(&mut out, 2, status.len() + len + 1 + varint_len(offset) + chosen_len);
        out.extend_from_slice(&status);
        texts().for_each(|(number, text)| put_bytes_field(&mut out, *number, text.as_bytes()));
        put_varint_field(&mut out, 4, offset);
        if let Some(queue_id) = chosen {
            put_varint_field(&mut out, CHOSEN_QUEUE, queue_id);
        }
    }
    out
}

/// Appends what only ferromq's clients read, see [`DURABILITY`].
fn put_records(out: &mut Vec<u8>, hot: &Hot, appended: &Appended) {
    let durability = if hot.sends.is_promised_on_disk(appended.end) { FLUSHED } else { WRITTEN };
    put_varint_field(out, DURABILITY, durability);
    let host = hot.sends.store_host();
    let (v4, v6);
    let ip: &[u8] = match host.ip() {
        IpAddr::V4(ip) => {
            v4 = ip.octets();
            &v4
        }
        IpAddr::V6(ip) => {
            v6 = ip.octets();
            &v6
        }
    };
    put_len_prefix(out, STORE_HOST, ip.len() + 4);
    out.extend_from_slice(ip);
    out.extend_from_slice(&u32::from(host.port()).to_be_bytes());
    put_len_prefix(out, PHYSICAL_OFFSETS, appended.locations.len() * 8);
    for location in &appended.locations {
        out.extend_from_slice(&location.physical_offset.to_le_bytes());
    }
}

/// Names a half message by its location, so that no table is needed: physical offset and queue offset of the half
/// message, 16 hexadecimal digits each.
fn transaction_id(place: &Location) -> String {
    let mut text = String::with_capacity(32);
    // Writing to a String cannot fail.
    let _ = write!(text, "{:016X}{:016X}", place.physical_offset, place.queue_offset);
    text
}
