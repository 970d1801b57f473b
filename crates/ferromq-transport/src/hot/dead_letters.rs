//! Messages a group could not consume: where they are kept, and that they are there before their life in the queue ends.

use std::{collections::HashSet, net::SocketAddr, sync::Arc};

use ferromq_store::{
    StoreError,
    filter::MessageFilter,
    progress::{Leased, ReceiptHandle},
    read::{GetRequest, GetStatus, Source, TransferLimits},
    record::{MessageView, NewMessage, OffsetMessageId, Record, names::DLQ_PREFIX, properties},
};
use parking_lot::Mutex;

use super::{Hot, pop_retries::retried_topic, receive::Receive};
use crate::{TransportError, connections::log_limiter::LogLimiter, tables::TopicEntry};

static LOST: LogLimiter = LogLimiter::new();
static NOT_KEPT: LogLimiter = LogLimiter::new();
static COMES_AGAIN: LogLimiter = LogLimiter::new();
static NO_ROOM: LogLimiter = LogLimiter::new();

/// A dead-letter topic has one queue.
pub(crate) const DLQ_QUEUES: u32 = 1;

/// Where a dead letter comes from and why it is dead, in properties that clients of every kind see.
///
/// RocketMQ's own names for the first two are among those that its proxy hides from consumers.
const SOURCE_TOPIC: &str = "DLQ_SOURCE_TOPIC";
const SOURCE_ID: &str = "DLQ_SOURCE_MESSAGE_ID";
const ATTEMPTS: &str = "DLQ_ATTEMPTS";
const REASON: &str = "DLQ_REASON";
const EXCEPTION: &str = "DLQ_EXCEPTION";
/// The reason of a message that no consumer gave up.
const EXPIRED: &str = "not acknowledged in its last delivery attempt";
/// The reasons of a message that a remoting consumer gives back; its request has no field for more.
pub(crate) const GIVEN_BACK: &str = "given back after its last delivery attempt";
pub(crate) const GIVEN_UP: &str = "given up by its consumer";
/// The properties of a record hold less than twice as much as all texts together may take.
const MAX_REASON: usize = 1024;

/// Why a message becomes a dead letter, as its consumer says.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Cause {
    /// What the consumer says, empty where it says nothing.
    pub reason: String,
    /// The class of the exception that ended its handling, empty where there was none.
    pub exception: String,
    /// How often the consumer tried: in place, too, of which the broker does not know. 0: it does not say.
    pub attempts: u32,
}

impl Cause {
    pub(crate) fn of(reason: &str) -> Self {
        Self { reason: reason.to_owned(), ..Self::default() }
    }
}

/// Text as a property may hold it: nothing that separates properties, and not too long.
fn clean(text: &str) -> String {
    let mut out: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if out.len() > MAX_REASON {
        let end = (0..=MAX_REASON).rev().find(|at| out.is_char_boundary(*at)).unwrap_or(0);
        out.truncate(end);
    }
    out
}

/// A dead-letter topic that may be written.
pub(crate) struct DeadLetters {
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
    /// both places; dropping the future changes nothing. A group that wants no retries has no dead-letter topic:
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
        cause: Cause,
    ) -> Result<(), TransportError> {
        let hot = self.me.upgrade().ok_or(StoreError::Closed)?;
        let ReceiptHandle { queue_id, queue_offset, .. } = *handle;
        let going = Going { group: group.to_owned(), topic: topic.to_owned(), queue_id, queue_offset };
        if !self.givings.0.lock().insert(going.clone()) {
            self.counters.stale_receipts.add(1);
            return Err(StoreError::StaleReceipt.into());
        }
        let (claim, handle) = (Claim { hot, going }, *handle);
        // A task of its own: a client that leaves must not stop it between the two steps.
        let done = tokio::spawn(async move { claim.hot.give_up(peer, &claim.going, &handle, &cause).await });
        done.await.unwrap_or(Err(TransportError::Unanswered))
    }

    async fn give_up(
        &self,
        peer: SocketAddr,
        Going { group, topic, .. }: &Going,
        handle: &ReceiptHandle,
        cause: &Cause,
    ) -> Result<(), TransportError> {
        let dead_letters = self.dead_letters(peer, group).await?;
        let Some(attempt) = self.store.groups().attempt(group, topic, handle) else {
            self.counters.stale_receipts.add(1);
            return Err(StoreError::StaleReceipt.into());
        };
        if let Some(dead_letters) = dead_letters {
            let record = self.record_at(topic, handle).await?;
            let end = self.append_dead(group, &dead_letters, &record, attempt, cause)?;
            self.sends.durable(end).await?;
        }
        match self.progress.ack(group, topic, handle) {
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
                LOST.log(|left_out| {
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
                let cause = Cause::of(EXPIRED);
                for Leased { record, handle, attempt } in &dead {
                    match self.append_dead(group, &dead_letters, record, *attempt, &cause) {
                        Ok(its_end) => {
                            end = Some(its_end);
                            kept.push(*handle);
                        }
                        Err(error) => NOT_KEPT.log(|left_out| {
                            tracing::error!(topic, group, queue_id = handle.queue_id,
                                queue_offset = handle.queue_offset, %error, left_out,
                                "a dead message is not kept; it is tried again");
                        }),
                    }
                }
                if let Some(end) = end {
                    self.sends.durable(end).await?;
                }
            }
        }
        for handle in kept {
            if let Err(error) = self.store.groups().ack(group, topic, &handle) {
                COMES_AGAIN.log(|left_out| {
                    tracing::warn!(topic, group, queue_offset = handle.queue_offset, %error, left_out,
                        "a dead message is kept and comes again");
                });
            }
        }
        Ok(())
    }

    /// The dead-letter topic of a group, ready to be written; `None` where the group wants no retries.
    pub(crate) async fn dead_letters(
        &self,
        peer: SocketAddr,
        group: &str,
    ) -> Result<Option<DeadLetters>, TransportError> {
        if self.lookup.group(group, peer).await?.retry_queues == 0 {
            return Ok(None);
        }
        let name = format!("{DLQ_PREFIX}{group}");
        let entry = self.lookup.topic_of_group(peer, &name, DLQ_QUEUES, 0).await?;
        Ok(Some(DeadLetters { name, entry }))
    }

    /// Appends one message, delivered `attempt` times, to a dead-letter topic; returns where it ends.
    fn append_dead(
        &self,
        group: &str,
        letters: &DeadLetters,
        record: &Record,
        attempt: u32,
        cause: &Cause,
    ) -> Result<u64, TransportError> {
        let message = MessageView::decode(record.bytes(), false)
            .map_err(|_| TransportError::IllegalMessage("the message cannot be read"))?;
        let times = message.reconsume_times.saturating_add_unsigned(attempt);
        self.append_letter(group, letters, &message, times, cause)
    }

    /// As [`Self::append_dead`], of a message that was delivered `reconsume_times` times in all.
    pub(crate) fn append_letter(
        &self,
        group: &str,
        DeadLetters { name, entry }: &DeadLetters,
        message: &MessageView<'_>,
        reconsume_times: i32,
        cause: &Cause,
    ) -> Result<u64, TransportError> {
        let origin = properties_of_origin(&properties_of_retry(message, 0), group);
        let text = properties_of_cause(&origin, reconsume_times, cause);
        let dead = NewMessage {
            topic: name,
            queue_id: self.sends.pick_queue(name, entry).cast_signed(),
            flag: message.flag,
            sys_flag: message.sys_flag,
            born_timestamp: message.born_timestamp,
            born_host: message.born_host,
            reconsume_times,
            prepared_transaction_offset: 0,
            body: message.body,
            properties: &text,
        };
        // Where there is no room to tell why it is dead, or even where it comes from, it is kept all the same.
        let mut appended = self.sends.append(&[dead]);
        for properties in [origin.as_slice(), message.properties] {
            if !matches!(appended, Err(StoreError::TooLarge { what: "properties", .. })) {
                break;
            }
            NO_ROOM.log(|left_out| {
                tracing::warn!(
                    topic = name,
                    group,
                    left_out,
                    "a dead message has no room for why it is dead"
                );
            });
            appended = self.sends.append(&[NewMessage { properties, ..dead }]);
        }
        let appended = appended?;
        let consumed = properties::get(&text, "RETRY_TOPIC").unwrap_or(message.topic);
        self.traffic.count_send_back(consumed, group, 1, u64::from(message.total_size));
        self.counters.dead.add(1);
        Ok(appended.end)
    }

    async fn record_at(&self, topic: &str, handle: &ReceiptHandle) -> Result<Record, TransportError> {
        let ReceiptHandle { queue_id, queue_offset, .. } = *handle;
        let (offset, max_count, max_bytes) = (queue_offset, 1, usize::MAX);
        let (filter, source) = (&MessageFilter::All, Source::Memory);
        let one = GetRequest {
            topic,
            queue_id,
            offset,
            max_count,
            max_bytes,
            filter,
            source,
            limits: TransferLimits::NONE,
        };
        let found = self.get(&one).await?;
        match found.messages.into_iter().next() {
            Some((at, record)) if at == queue_offset => Ok(record),
            _ if matches!(found.status, GetStatus::OffsetTooSmall | GetStatus::MessageWasRemoving) => {
                Err(TransportError::IllegalMessage("the message is no longer kept"))
            }
            _ => Err(TransportError::IllegalMessage("the message cannot be read")),
        }
    }
}

/// The properties of a message that its consumer sends to its retry topic itself, and that is dead.
pub(crate) fn properties_of_sent(text: &[u8], group: &str, reconsume_times: i32, reason: &str) -> Vec<u8> {
    properties_of_cause(&properties_of_origin(text, group), reconsume_times, &Cause::of(reason))
}

/// The properties of a retry with what tells gRPC consumers where a dead message comes from.
fn properties_of_origin(text: &[u8], group: &str) -> Vec<u8> {
    let known = |name| properties::get(text, name);
    let topic = known("RETRY_TOPIC").map_or("", |topic| retried_topic(topic, group));
    let id = known("UNIQ_KEY").or_else(|| known("ORIGIN_MESSAGE_ID")).unwrap_or("");
    let told = [("DLQ_ORIGIN_TOPIC", topic), ("DLQ_ORIGIN_MESSAGE_ID", id)];
    let set: Vec<_> = told.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    properties::replace(text, &[], &set)
}

/// These properties of a dead message, and why it is dead; what another group said of it before is replaced.
fn properties_of_cause(origin: &[u8], reconsume_times: i32, cause: &Cause) -> Vec<u8> {
    let known = |name| properties::get(origin, name).unwrap_or("");
    let attempts = u32::try_from(reconsume_times).unwrap_or(0).max(cause.attempts).to_string();
    let (reason, exception) = (clean(&cause.reason), clean(&cause.exception));
    let told = [
        (SOURCE_TOPIC, known("DLQ_ORIGIN_TOPIC")),
        (SOURCE_ID, known("DLQ_ORIGIN_MESSAGE_ID")),
        (ATTEMPTS, attempts.as_str()),
        (REASON, reason.as_str()),
        (EXCEPTION, exception.as_str()),
    ];
    let set: Vec<_> = told.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    properties::replace(origin, &[REASON, EXCEPTION], &set)
}

/// The properties of a message that goes back: it tells where it was read first, and by which id, and at which level it
/// waits, 0 where it is dead. `WAIT=false` is RocketMQ's value for a copy that the broker makes.
pub(crate) fn properties_of_retry(message: &MessageView<'_>, level: i32) -> Vec<u8> {
    let place = OffsetMessageId { store_host: message.store_host, physical_offset: message.physical_offset };
    let (place, level_text) = (place.to_string(), level.to_string());
    let known = |name| properties::get(message.properties, name);
    let mut set = vec![("DELAY", level_text.as_str()), ("WAIT", "false")];
    if known("RETRY_TOPIC").is_none() {
        set.push(("RETRY_TOPIC", message.topic));
    }
    if known("ORIGIN_MESSAGE_ID").is_none() {
        set.push(("ORIGIN_MESSAGE_ID", place.as_str()));
    }
    properties::replace(message.properties, &[], &set)
}
