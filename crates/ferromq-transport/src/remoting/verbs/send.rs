//! Requests 10, 310 and 320: a producer sends a message, or a batch of them.
//!
//! Checks topic names and messages by RocketMQ's rules. The store places the records; the control plane creates topics.

use std::{cell::RefCell, fmt, net::SocketAddr, sync::Arc};

use ferromq_store::{
    StoreError,
    log::{Appended, Location},
    record::{
        NewMessage, OffsetMessageId,
        names::{self, DLQ_PREFIX, RETRY_PREFIX},
        properties,
    },
};

use super::{
    batch, flushed,
    send_back::{UNIT_SUBSCRIPTION, max_retries},
    send_header::SendHeader,
    send_properties::{self, PropertyMarks},
};
use crate::{
    Missing, TransportError,
    connections::answer_memory,
    hot::{
        Hot, SendPolicy,
        batches::{MAX_INLINE_MESSAGES, MESSAGE_OVERHEAD},
        dead_letters::{DLQ_QUEUES, GIVEN_BACK, GIVEN_UP, properties_of_sent},
        half_message::TRANSACTION_BITS,
        recall_handle,
        send::Deduplication,
    },
    remoting::{
        Fields, RemotingCommand,
        codes::{request, response},
    },
    tables::{MessageType, TopicEntry},
};

thread_local! {
    /// Properties of the message being stored.
    static PROPERTIES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Largest buffer for properties that a thread keeps, in bytes. The properties of every message fit into it.
const KEPT_PROPERTIES: usize = 64 << 10;

/// A send whose messages are in the log.
pub(super) struct StoredSend {
    /// The response.
    pub response: RemotingCommand,
    /// The response is valid once the log is durable up to this physical offset; at once if `None`.
    pub flush_to: Option<u64>,
}

/// Stores the messages of a request, and answers once they have the durability of the flush policy.
pub(super) async fn send(
    hot: &Arc<Hot>,
    peer: SocketAddr,
    command: &RemotingCommand,
) -> Result<RemotingCommand, TransportError> {
    let header = SendHeader::parse(command)?;
    let stored = match header.topic.strip_prefix(RETRY_PREFIX) {
        Some(group) => store_retry(hot, peer, command, &header, group_of(group)).await?,
        None => {
            let mut topic = find_topic(hot, peer, &header).await?;
            if decides_type(hot, &header, &topic) {
                let kind = first_kind(&header, command)?;
                topic = hot.lookup.typed_topic(header.topic, kind, peer).await?;
            }
            match large_batch(&header, command) {
                Some(count) => store_many(hot, peer, command, topic, count).await?,
                None => store(hot, peer, command, &header, &topic)?,
            }
        }
    };
    Ok(match stored.flush_to {
        Some(end) => flushed(stored.response, hot.sends.durable(end).await),
        None => stored.response,
    })
}

/// As [`send`], up to the flush and without waiting. `None` if the request needs a lookup or a turn first; most do not.
pub(super) fn send_now(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
) -> Option<Result<StoredSend, TransportError>> {
    let header = match SendHeader::parse(command) {
        Ok(header) => header,
        Err(error) => return Some(Err(error)),
    };
    let topic = hot.tables.topic(header.topic).filter(|_| !header.topic.starts_with(RETRY_PREFIX))?;
    if decides_type(hot, &header, &topic) || large_batch(&header, command).is_some() {
        return None;
    }
    Some(store(hot, peer, command, &header, &topic))
}

/// Returns whether the request decides the type of the topic: the first one does, if remoting sends are type-checked.
fn decides_type(hot: &Hot, header: &SendHeader<'_>, topic: &TopicEntry) -> bool {
    topic.message_type == MessageType::Undecided
        && hot.policy.load().type_checks.remoting
        && topic.is_writable()
        && !header.topic.starts_with(DLQ_PREFIX)
}

fn first_kind(header: &SendHeader<'_>, command: &RemotingCommand) -> Result<MessageType, TransportError> {
    if !is_batch(header, command) {
        return Ok(PropertyMarks::read(header.properties).kind());
    }
    let messages = batch::parse(&command.body)?;
    Ok(messages.first().map_or(MessageType::Normal, |message| PropertyMarks::read(message.properties).kind()))
}

/// Stores a request whose topic is known.
fn store(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
    header: &SendHeader<'_>,
    topic: &TopicEntry,
) -> Result<StoredSend, TransportError> {
    if names::is_closed_to_clients(header.topic) {
        let topic = header.topic.to_owned();
        return Err(TransportError::TopicForbidden { topic, done: "written by clients" });
    }
    if !topic.is_writable() {
        return Err(TransportError::TopicForbidden { topic: header.topic.to_owned(), done: "written" });
    }
    let queue_id = queue(hot, header, topic)?;
    let target = SendTarget { header, policy: &hot.policy.load(), topic, queue_id };
    if is_batch(header, command) {
        target.store_batch(hot, peer, command)
    } else {
        target.store_one(hot, peer, command)
    }
}

pub(super) fn is_batch(header: &SendHeader<'_>, command: &RemotingCommand) -> bool {
    header.is_batch || command.code == request::SEND_BATCH_MESSAGE
}

/// Number of messages, if the request is a batch too large for the task that reads requests.
fn large_batch(header: &SendHeader<'_>, command: &RemotingCommand) -> Option<usize> {
    let can_be_large =
        command.body.len() > MAX_INLINE_MESSAGES * batch::MIN_MESSAGE_BYTES && is_batch(header, command);
    can_be_large.then(|| batch::count(&command.body)).filter(|count| *count > MAX_INLINE_MESSAGES)
}

/// As [`store`], for a large batch of `count` messages.
async fn store_many(
    hot: &Arc<Hot>,
    peer: SocketAddr,
    command: &RemotingCommand,
    topic: TopicEntry,
    count: usize,
) -> Result<StoredSend, TransportError> {
    let memory = count * MESSAGE_OVERHEAD;
    let mut turn = hot.batches.turn(peer).await?;
    if !answer_memory::try_take(memory) {
        // Memory may become free late: meanwhile other large batches can have the turn.
        drop(turn);
        answer_memory::take(memory).await;
        turn = hot.batches.turn(peer).await?;
    }
    let (hot, command) = (Arc::clone(hot), command.clone());
    let work = move || {
        let header = SendHeader::parse(&command)?;
        store(&hot, peer, &command, &header, &topic)
    };
    turn.run(work).await?
}

/// Stores a message that a consumer sends to its group's retry topic itself, because it could not give it back.
async fn store_retry(
    hot: &Hot,
    peer: SocketAddr,
    command: &RemotingCommand,
    header: &SendHeader<'_>,
    name: &str,
) -> Result<StoredSend, TransportError> {
    if is_batch(header, command) {
        return Err(TransportError::IllegalMessage("a batch cannot be sent to a retry topic"));
    }
    let group = hot.lookup.group(name, peer).await?;
    let max_times = header.max_reconsume_times.unwrap_or_else(|| max_retries(&group));
    // The group consumes in order: a message that it gave up must not return after later ones.
    let is_ordered = hot.tables.is_locked(name, hot.clock.now_ms());
    if header.reconsume_times <= max_times && !is_ordered {
        let sys_flag = if header.is_unit { UNIT_SUBSCRIPTION } else { 0 };
        let queues = group.retry_queues.max(1);
        let topic = hot.lookup.topic_of_group(peer, header.topic, queues, sys_flag).await?;
        return store(hot, peer, command, header, &topic);
    }
    let dead = format!("{DLQ_PREFIX}{name}");
    let topic = hot.lookup.topic_of_group(peer, &dead, DLQ_QUEUES, 0).await?;
    // A dead letter is not delayed: RocketMQ writes level -1.
    let text = properties::replace(header.properties.as_bytes(), &[], &[("DELAY", "-1")]);
    let reason = if is_ordered { GIVEN_UP } else { GIVEN_BACK };
    let with_reason = properties_of_sent(&text, name, header.reconsume_times, reason);
    let store_as = |text: &[u8]| {
        let properties = String::from_utf8_lossy(text);
        let header = SendHeader { topic: &dead, queue_id: -1, properties: &properties, ..*header };
        store(hot, peer, command, &header, &topic)
    };
    match store_as(&with_reason) {
        // Without room for the reason, the dead letter is stored without it.
        Err(TransportError::Store(StoreError::TooLarge { what: "properties", .. })) => {
            store_as(&properties::replace(&text, &["DELAY"], &[]))
        }
        stored => stored,
    }
}

/// The group of a retry topic. A plus sign separates it from the topic that the message was received from.
fn group_of(rest: &str) -> &str {
    match rest.split_once('+') {
        Some((group, topic)) if !topic.is_empty() && !topic.contains('+') => group,
        _ => rest,
    }
}

async fn find_topic(
    hot: &Hot,
    peer: SocketAddr,
    header: &SendHeader<'_>,
) -> Result<TopicEntry, TransportError> {
    if let Some(topic) = hot.tables.topic(header.topic) {
        return Ok(topic);
    }
    check_name(header.topic)?;
    let missing = Missing::TopicToSend {
        name: header.topic.to_owned(),
        default_topic: header.default_topic.to_owned(),
        queues: header.default_queues,
        sys_flag: i32::from(header.is_unit),
    };
    hot.lookup.topic_or(missing, peer).await
}

/// Checks a new topic's name by RocketMQ's rules. Names in the tables satisfy them.
fn check_name(topic: &str) -> Result<(), TransportError> {
    let reason = if topic.trim().is_empty() {
        "it is blank"
    } else if !names::has_legal_bytes(topic) {
        "only letters a-z A-Z, digits and _ - % | are allowed"
    } else if topic.len() <= names::max_topic_len(topic) {
        return Ok(());
    } else if names::is_of_group(topic) {
        "it has more than 255 characters"
    } else {
        "it has more than 127 characters"
    };
    Err(TransportError::BadTopicName { topic: topic.chars().take(300).collect(), reason })
}

/// The queue of a request. The server chooses one if its id is negative.
fn queue(hot: &Hot, header: &SendHeader<'_>, topic: &TopicEntry) -> Result<i32, TransportError> {
    // After a topic lost write queues, it still accepts messages in those that are read until they are empty.
    let queues = topic.write_queues.max(topic.read_queues);
    match u32::try_from(header.queue_id) {
        Err(_) if topic.write_queues > 0 => Ok(hot.sends.pick_queue(header.topic, topic).cast_signed()),
        Ok(queue_id) if queue_id < queues => Ok(header.queue_id),
        _ => Err(TransportError::NoSuchQueue {
            topic: header.topic.to_owned(),
            queue_id: header.queue_id,
            queues,
        }),
    }
}

/// A request whose topic and queue are known.
struct SendTarget<'a> {
    header: &'a SendHeader<'a>,
    policy: &'a SendPolicy,
    topic: &'a TopicEntry,
    queue_id: i32,
}

impl SendTarget<'_> {
    fn store_one(
        mut self,
        hot: &Hot,
        peer: SocketAddr,
        command: &RemotingCommand,
    ) -> Result<StoredSend, TransportError> {
        let mut marks = PropertyMarks::read(self.header.properties);
        // A retried message was committed long ago, whatever its properties and flags still say.
        let is_retry = self.is_retry(&marks);
        marks.is_half &= !is_retry;
        let level = self.check(&marks, is_retry)?;
        if let Some(priority) = marks.priority() {
            self.queue_id = self.topic.queue_of_priority(priority).cast_signed();
        }
        let generated = marks.unique_key.is_none().then(|| hot.unique_keys.next(hot.clock.now_ms()));
        let unique_key = marks.unique_key.or(generated.as_deref()).unwrap_or_default();
        let (appended, deliver_at) = PROPERTIES.with_borrow_mut(|text| {
            text.clear();
            text.shrink_to(KEPT_PROPERTIES);
            let own = (unique_key, self.policy.stamp());
            send_properties::write(text, self.header.properties, &marks, own);
            let message = NewMessage {
                sys_flag: self.header.sys_flag & !TRANSACTION_BITS,
                ..self.message(peer, self.header.flag, &command.body, &[])
            };
            if marks.is_half {
                return Ok((hot.sends.append_half(&message, unique_key, marks.has_timer, text)?, None));
            }
            let kept = Deduplication::of(marks.is_numbered);
            hot.sends.append_delayed(
                &NewMessage { properties: text, ..message },
                level > 0 || marks.has_timer,
                kept,
            )
        })?;
        let mut stored = self.stored(hot, command, &appended, (unique_key, marks.waits));
        if let Some(at) = deliver_at.filter(|_| !self.header.topic.starts_with(RETRY_PREFIX)) {
            let handle = recall_handle::handle(self.header.topic, &hot.broker_name, at, unique_key);
            stored.response.fields.push("recallHandle", handle.as_str());
        }
        Ok(stored)
    }

    /// Returns whether the message is a retry after a failed consumption.
    fn is_retry(&self, marks: &PropertyMarks<'_>) -> bool {
        let topic = self.header.topic;
        self.header.reconsume_times > 0
            && (names::is_of_group(topic) || marks.level().is_some_and(|level| level > 0))
    }

    /// Refuses a message that would be stored as another kind than it claims. Returns the delay level.
    fn check(&self, marks: &PropertyMarks<'_>, is_retry: bool) -> Result<i32, TransportError> {
        self.check_type(marks)?;
        let level = marks.level().ok_or(TransportError::IllegalMessage("the delay level is not a number"))?;
        if marks.is_inner_batch {
            return Err(TransportError::IllegalMessage(
                "a batch in one record (INNER_NUM) is not supported; send an ordinary batch",
            ));
        }
        if self.header.sys_flag & TRANSACTION_BITS != 0 && !marks.is_half && !is_retry {
            return Err(TransportError::IllegalMessage(
                "its system flag marks a transaction, but it is not a half message",
            ));
        }
        if marks.is_half && marks.is_numbered {
            return Err(TransportError::IllegalMessage(
                "a message of a transaction cannot have FERROMQ_SEQUENCE",
            ));
        }
        if marks.is_half && level > 0 {
            return Err(TransportError::IllegalMessage("a message of a transaction cannot be delayed"));
        }
        if marks.is_half && self.policy.rejects_transactions {
            return Err(TransportError::Forbidden("the broker takes no transactions"));
        }
        Ok(level)
    }

    /// Refuses lite messages and, if types are checked, messages of another type than the topic's.
    fn check_type(&self, marks: &PropertyMarks<'_>) -> Result<(), TransportError> {
        if marks.is_lite {
            return Err(TransportError::IllegalMessage("lite topics (__LITE_TOPIC) are not supported yet"));
        }
        let (topic, kind) = (self.header.topic, marks.kind());
        let is_checked =
            self.policy.type_checks.remoting && !marks.is_transferred && !names::is_of_group(topic);
        if !is_checked || self.topic.message_type.takes(kind) {
            return Ok(());
        }
        Err(TransportError::WrongMessageType {
            topic: topic.to_owned(),
            takes: self.topic.message_type.as_str(),
            sent: kind.as_str(),
        })
    }

    fn store_batch(
        &self,
        hot: &Hot,
        peer: SocketAddr,
        command: &RemotingCommand,
    ) -> Result<StoredSend, TransportError> {
        let parsed = batch::parse(&command.body)?;
        let mut messages = Vec::with_capacity(parsed.len());
        let mut is_numbered = false;
        for message in &parsed {
            let marks = PropertyMarks::read(message.properties);
            self.check_in_batch(&marks)?;
            self.check_type(&marks)?;
            is_numbered |= marks.is_numbered;
            let properties = message.properties.as_bytes();
            messages.push(self.message(peer, message.flag, message.body, properties));
        }
        let appended = hot.sends.append_as_one(&messages, Deduplication::of(is_numbered))?;
        let marks = PropertyMarks::read(self.header.properties);
        Ok(self.stored(hot, command, &appended, (marks.unique_key.unwrap_or_default(), marks.waits)))
    }

    /// Refuses messages that RocketMQ would store as ordinary ones: early, uncommitted, or never consumed.
    fn check_in_batch(&self, marks: &PropertyMarks<'_>) -> Result<(), TransportError> {
        if marks.has_timer || marks.level() != Some(0) {
            return Err(TransportError::IllegalMessage("a message of a batch cannot be delayed"));
        }
        if marks.is_half || self.header.sys_flag & TRANSACTION_BITS != 0 {
            return Err(TransportError::IllegalMessage(
                "a message of a batch cannot belong to a transaction",
            ));
        }
        if marks.is_inner_batch {
            return Err(TransportError::IllegalMessage(
                "a batch in one record (INNER_NUM) is not supported; send an ordinary batch",
            ));
        }
        Ok(())
    }

    fn message<'a>(
        &'a self,
        peer: SocketAddr,
        flag: i32,
        body: &'a [u8],
        properties: &'a [u8],
    ) -> NewMessage<'a> {
        NewMessage {
            topic: self.header.topic,
            queue_id: self.queue_id,
            flag,
            sys_flag: self.header.sys_flag,
            born_timestamp: self.header.born_timestamp,
            born_host: peer,
            reconsume_times: self.header.reconsume_times,
            prepared_transaction_offset: 0,
            body,
            properties,
        }
    }

    /// The response to a stored request. A producer can choose not to wait until it is durable.
    fn stored(
        &self,
        hot: &Hot,
        command: &RemotingCommand,
        appended: &Appended,
        (transaction_id, waits): (&str, bool),
    ) -> StoredSend {
        let flush_to = (waits && !command.is_one_way()).then_some(appended.end);
        let queue_offset =
            appended.locations.first().map_or(0, |location| location.queue_offset.cast_signed());
        let mut answer = command.respond(response::SUCCESS, None);
        answer.fields = Fields::for_response();
        let fields = &mut answer.fields;
        fields.put(
            "msgId",
            OffsetIds { store_host: hot.store.admin().store_host(), locations: &appended.locations },
        );
        fields.put("queueId", self.queue_id);
        fields.put("queueOffset", queue_offset);
        fields.push("MSG_REGION", self.policy.region());
        fields.push("TRACE_ON", self.policy.traced());
        if !transaction_id.is_empty() {
            fields.push("transactionId", transaction_id);
        }
        StoredSend { response: answer, flush_to }
    }
}

/// The offset message ids of a send, joined by commas.
struct OffsetIds<'a> {
    store_host: SocketAddr,
    locations: &'a [Location],
}

impl fmt::Display for OffsetIds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, location) in self.locations.iter().enumerate() {
            let id =
                OffsetMessageId { store_host: self.store_host, physical_offset: location.physical_offset };
            write!(f, "{}{id}", if number == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}
