//! Messages a group could not consume: where they are kept, and that they are there before their life in the queue ends.

use std::{collections::HashSet, net::SocketAddr, sync::Arc};

use ferromq_store::{
    GetStatus, Leased, MessageFilter, MessageView, NewMessage, OffsetMessageId, ReceiptHandle, Record,
    StoreError, properties,
};
use parking_lot::Mutex;

use super::{Hot, pop_retries::retried_topic, receive::Receive};
use crate::{Missing, TransportError, seldom::Seldom, tables::TopicEntry};

static LOST: Seldom = Seldom::new();
static NOT_KEPT: Seldom = Seldom::new();
static COMES_AGAIN: Seldom = Seldom::new();
static NO_ROOM: Seldom = Seldom::new();

/// Before the name of a group in the name of its dead-letter topic.
pub(crate) const DLQ_PREFIX: &str = "%DLQ%";
/// A dead-letter topic has one queue.
pub(crate) const DLQ_QUEUES: u32 = 1;

/// A dead-letter topic that may be written.
struct DeadLetters {
    name: String,
    entry: TopicEntry,
}

/// A message that goes to the dead-letter topic now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Going {
    group: String,
    topic: String,
    queue_id: u32,
    queue_offset: u64,
}

/// The messages consumers give up at this moment: one that is given up twice is kept once.
#[derive(Debug, Default)]
pub(super) struct Givings(Mutex<HashSet<Going>>);

/// Takes its message out again.
struct Claim {
    hot: Arc<Hot>,
    going: Going,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.hot.givings.0.lock().remove(&self.going);
    }
}

impl Hot {
    /// Keeps a message a group holds in the group's dead-letter topic, and then ends its lease.
    ///
    /// It is there as durably as the flush policy promises when this returns. A kill between the two steps leaves it in
    /// both places; whoever drops the future changes nothing. A group that wants no retries has no dead-letter topic:
    /// as in RocketMQ, the message is dropped.
    ///
    /// # Errors
    /// `StaleReceipt` where the lease is no longer held, or is given up already; `NoSuchGroup`, what forbids to write
    /// the dead-letter topic, and those of the store; the lease is then as it was.
    pub async fn to_dead_letters(
        &self,
        peer: SocketAddr,
        group: &str,
        topic: &str,
        handle: &ReceiptHandle,
    ) -> Result<(), TransportError> {
        let hot = self.me.upgrade().ok_or(StoreError::Closed)?;
        let ReceiptHandle { queue_id, queue_offset, .. } = *handle;
        let going = Going { group: group.to_owned(), topic: topic.to_owned(), queue_id, queue_offset };
        if !self.givings.0.lock().insert(going.clone()) {
            self.counters.stale_receipts.add(1);
            return Err(StoreError::StaleReceipt.into());
        }
        let (claim, handle) = (Claim { hot, going }, *handle);
        // A task of its own: between the two steps nobody who goes away may stop it.
        let done = tokio::spawn(async move { claim.hot.give_up(peer, &claim.going, &handle).await });
        done.await.unwrap_or(Err(TransportError::Unanswered))
    }

    async fn give_up(
        &self,
        peer: SocketAddr,
        Going { group, topic, .. }: &Going,
        handle: &ReceiptHandle,
    ) -> Result<(), TransportError> {
        let dead_letters = self.dead_letters(peer, group).await?;
        let Some(attempt) = self.store.attempt(group, topic, handle) else {
            self.counters.stale_receipts.add(1);
            return Err(StoreError::StaleReceipt.into());
        };
        if let Some(dead_letters) = dead_letters {
            let record = self.record_at(topic, handle)?;
            let end = self.append_dead(group, &dead_letters, &record, attempt)?;
            self.durable(end).await?;
        }
        match self.ack(group, topic, handle) {
            // It ended meanwhile: the message is kept, and comes again as well.
            Err(StoreError::StaleReceipt) => Ok(()),
            done => Ok(done?),
        }
    }

    /// As [`Self::to_dead_letters`], of messages a receive found dead, each for itself. What fails is said and tried
    /// again when the leases of the dead end.
    pub(super) async fn bury(&self, request: &Receive<'_>, dead: Vec<Leased>) {
        let Some(hot) = self.me.upgrade() else { return };
        let (group, topic, peer) = (request.group.to_owned(), request.topic.to_owned(), request.peer);
        // A task of its own, as above.
        let done = tokio::spawn(async move {
            let count = dead.len();
            if let Err(error) = hot.bury_all(peer, &group, &topic, dead).await {
                LOST.say(|left_out| {
                    tracing::error!(topic, group, count, %error, left_out,
                        "dead messages are not kept; they are tried again");
                });
            }
        });
        // It is cancelled only where everything ends.
        let _ = done.await;
    }

    async fn bury_all(
        &self,
        peer: SocketAddr,
        group: &str,
        topic: &str,
        dead: Vec<Leased>,
    ) -> Result<(), TransportError> {
        let mut kept = Vec::with_capacity(dead.len());
        match self.dead_letters(peer, group).await? {
            None => kept.extend(dead.iter().map(|leased| leased.handle)),
            Some(dead_letters) => {
                let mut end = None;
                for Leased { record, handle, attempt } in &dead {
                    match self.append_dead(group, &dead_letters, record, *attempt) {
                        Ok(its_end) => {
                            end = Some(its_end);
                            kept.push(*handle);
                        }
                        Err(error) => NOT_KEPT.say(|left_out| {
                            tracing::error!(topic, group, queue_id = handle.queue_id,
                                queue_offset = handle.queue_offset, %error, left_out,
                                "a dead message is not kept; it is tried again");
                        }),
                    }
                }
                if let Some(end) = end {
                    self.durable(end).await?;
                }
            }
        }
        for handle in kept {
            if let Err(error) = self.store.ack(group, topic, &handle) {
                COMES_AGAIN.say(|left_out| {
                    tracing::warn!(topic, group, queue_offset = handle.queue_offset, %error, left_out,
                        "a dead message is kept and comes again");
                });
            }
        }
        Ok(())
    }

    /// The dead-letter topic of a group, ready to be written; `None` where the group wants no retries.
    async fn dead_letters(
        &self,
        peer: SocketAddr,
        group: &str,
    ) -> Result<Option<DeadLetters>, TransportError> {
        if self.group(group, peer).await?.retry_queues == 0 {
            return Ok(None);
        }
        let name = format!("{DLQ_PREFIX}{group}");
        let entry = self.topic_of_group(peer, &name, DLQ_QUEUES, 0).await?;
        Ok(Some(DeadLetters { name, entry }))
    }

    /// Appends one message, delivered `attempt` times, to a dead-letter topic; returns where it ends.
    fn append_dead(
        &self,
        group: &str,
        DeadLetters { name, entry }: &DeadLetters,
        record: &Record,
        attempt: u32,
    ) -> Result<u64, TransportError> {
        let message = MessageView::decode(record.bytes(), false)
            .map_err(|_| TransportError::IllegalMessage("the message cannot be read"))?;
        let text = properties_of_dead(&message, group);
        let dead = NewMessage {
            topic: name,
            queue_id: self.pick_queue(name, entry).cast_signed(),
            flag: message.flag,
            sys_flag: message.sys_flag,
            born_timestamp: message.born_timestamp,
            born_host: message.born_host,
            reconsume_times: message.reconsume_times.saturating_add_unsigned(attempt),
            prepared_transaction_offset: 0,
            body: message.body,
            properties: &text,
        };
        let appended = match self.append(&[dead]) {
            // There is no room to tell where it comes from; it is kept all the same.
            Err(StoreError::TooLarge { what: "properties", .. }) => {
                NO_ROOM.say(|left_out| {
                    tracing::warn!(
                        topic = name,
                        group,
                        left_out,
                        "a dead message has no room for the name of its topic"
                    );
                });
                self.append(&[NewMessage { properties: message.properties, ..dead }])?
            }
            appended => appended?,
        };
        let consumed = properties::get(&text, "RETRY_TOPIC").unwrap_or(message.topic);
        self.traffic.count_send_back(consumed, group, 1, u64::from(message.total_size));
        self.counters.dead.add(1);
        Ok(appended.end)
    }

    /// The entry of a group's retry or dead-letter topic, which is made where it is missing.
    ///
    /// # Errors
    /// Those of [`Self::topic_or`], and `TopicForbidden`.
    pub(crate) async fn topic_of_group(
        &self,
        peer: SocketAddr,
        name: &str,
        queues: u32,
        sys_flag: i32,
    ) -> Result<TopicEntry, TransportError> {
        let entry = match self.tables.topic(name) {
            Some(entry) => entry,
            None => {
                let missing = Missing::TopicOfGroup { name: name.to_owned(), queues, sys_flag };
                self.topic_or(missing, peer).await?
            }
        };
        entry.check_writable(name)?;
        Ok(entry)
    }

    fn record_at(&self, topic: &str, handle: &ReceiptHandle) -> Result<Record, TransportError> {
        let ReceiptHandle { queue_id, queue_offset, .. } = *handle;
        let found = self.store.get(topic, queue_id, queue_offset, 1, usize::MAX, &MessageFilter::All);
        match found.messages.into_iter().next() {
            Some((at, record)) if at == queue_offset => Ok(record),
            _ if matches!(found.status, GetStatus::OffsetTooSmall | GetStatus::MessageWasRemoving) => {
                Err(TransportError::IllegalMessage("the message is no longer kept"))
            }
            _ => Err(TransportError::IllegalMessage("the message cannot be read")),
        }
    }
}

/// The properties of a message that is kept as dead, which tell gRPC consumers where it comes from.
fn properties_of_dead(message: &MessageView<'_>, group: &str) -> Vec<u8> {
    let text = properties_of_retry(message, 0);
    let known = |name| properties::get(&text, name);
    let topic = retried_topic(known("RETRY_TOPIC").unwrap_or(message.topic), group);
    let id = known("UNIQ_KEY").or_else(|| known("ORIGIN_MESSAGE_ID")).unwrap_or("");
    properties::replace(&text, &[], &[("DLQ_ORIGIN_TOPIC", topic), ("DLQ_ORIGIN_MESSAGE_ID", id)])
}

/// The properties of a message that goes back: it tells where it was read first, and by which id.
pub(crate) fn properties_of_retry(message: &MessageView<'_>, level: i32) -> Vec<u8> {
    let place = OffsetMessageId { store_host: message.store_host, physical_offset: message.physical_offset };
    let (place, level_text) = (place.to_string(), level.to_string());
    let known = |name| properties::get(message.properties, name);
    let mut set = Vec::with_capacity(3);
    if known("RETRY_TOPIC").is_none() {
        set.push(("RETRY_TOPIC", message.topic));
    }
    if known("ORIGIN_MESSAGE_ID").is_none() {
        set.push(("ORIGIN_MESSAGE_ID", place.as_str()));
    }
    if level > 0 {
        set.push(("DELAY", level_text.as_str()));
    }
    properties::replace(message.properties, &["DELAY"], &set)
}
