//! Moves messages that a group could not consume to its dead-letter topic; they are stored there before they are
//! acknowledged.

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

static MOVE_FAILED: LogLimiter = LogLimiter::new();
static APPEND_FAILED: LogLimiter = LogLimiter::new();
static ACK_FAILED: LogLimiter = LogLimiter::new();
static CAUSE_LEFT_OUT: LogLimiter = LogLimiter::new();
static STORED: LogLimiter = LogLimiter::new();

/// A dead-letter topic has one queue.
pub(crate) const DLQ_QUEUES: u32 = 1;

/// Properties that tell clients of every kind where a dead letter comes from and why it is dead.
///
/// RocketMQ's own names for the first two are among those that its proxy hides from consumers.
const SOURCE_TOPIC: &str = "DLQ_SOURCE_TOPIC";
const SOURCE_ID: &str = "DLQ_SOURCE_MESSAGE_ID";
const ATTEMPTS: &str = "DLQ_ATTEMPTS";
const REASON: &str = "DLQ_REASON";
const EXCEPTION: &str = "DLQ_EXCEPTION";
/// The reason of a message that its consumers did not give up.
const EXPIRED: &str = "not acknowledged in its last delivery attempt";
/// The reasons of a message that a remoting consumer sends back; its request has no field for more.
pub(crate) const GIVEN_BACK: &str = "given back after its last delivery attempt";
pub(crate) const GIVEN_UP: &str = "given up by its consumer";
/// Most bytes of a reason or an exception. Without a limit, both could fill more than half of a record's properties.
const MAX_REASON: usize = 1024;

/// Why a message becomes a dead letter, as its consumer reports it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct DeadLetterCause {
    /// The consumer's reason; empty if it gives none.
    pub reason: String,
    /// The class of the exception that ended the handling; empty if there was none.
    pub exception: String,
    /// How often the consumer tried, including retries in place, which the broker does not see; 0 if it does not say.
    pub attempts: u32,
}

impl DeadLetterCause {
    pub(crate) fn of(reason: &str) -> Self {
        Self { reason: reason.to_owned(), ..Self::default() }
    }
}

/// Makes text safe for a property: no control characters, which separate properties, and a limited length.
fn property_text(text: &str) -> String {
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

/// A message on its way to the dead-letter topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MovingMessage {
    group: String,
    topic: String,
    queue_id: u32,
    queue_offset: u64,
}

/// The messages that consumers give up at this moment, so that one given up twice is stored once.
#[derive(Debug, Default)]
pub(super) struct MovesInProgress(Mutex<HashSet<MovingMessage>>);

/// Removes its message from [`MovesInProgress`] when dropped.
struct MoveClaim {
    hot: Arc<Hot>,
    moving: MovingMessage,
}

impl Drop for MoveClaim {
    fn drop(&mut self) {
        self.hot.dead_letter_moves.0.lock().remove(&self.moving);
    }
}

impl Hot {
    /// Stores a message that a group holds in the group's dead-letter topic, and then ends its lease.
    ///
    /// When this returns, the dead letter is as durable as the flush policy promises. A kill between the two steps
    /// leaves the message in both places; dropping the future changes nothing. A group that wants no retries has no
    /// dead-letter topic: as in RocketMQ, the message is dropped.
    ///
    /// # Errors
    /// `StaleReceipt` if the lease is no longer held, or the message is being given up already; `NoSuchGroup`; those of
    /// [`TopicEntry::check_writable`] for the dead-letter topic, and those of the store. The lease is then unchanged.
    pub async fn to_dead_letters(
        &self,
        peer: SocketAddr,
        group: &str,
        topic: &str,
        handle: &ReceiptHandle,
        cause: DeadLetterCause,
    ) -> Result<(), TransportError> {
        let hot = self.me.upgrade().ok_or(StoreError::Closed)?;
        let ReceiptHandle { queue_id, queue_offset, .. } = *handle;
        let moving =
            MovingMessage { group: group.to_owned(), topic: topic.to_owned(), queue_id, queue_offset };
        if !self.dead_letter_moves.0.lock().insert(moving.clone()) {
            self.counters.stale_receipts.add(1);
            return Err(StoreError::StaleReceipt.into());
        }
        let (claim, handle) = (MoveClaim { hot, moving }, *handle);
        // In its own task: a client that leaves must not stop it between the two steps.
        let done =
            tokio::spawn(async move { claim.hot.move_given_up(peer, &claim.moving, &handle, &cause).await });
        done.await.unwrap_or(Err(TransportError::Unanswered))
    }

    async fn move_given_up(
        &self,
        peer: SocketAddr,
        MovingMessage { group, topic, .. }: &MovingMessage,
        handle: &ReceiptHandle,
        cause: &DeadLetterCause,
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
            // The lease ended meanwhile: the dead letter is stored, and the message is redelivered as well.
            Err(StoreError::StaleReceipt) => Ok(()),
            done => Ok(done?),
        }
    }

    /// As [`Self::to_dead_letters`], for the dead messages of a receive, each on its own. Failures are logged, and
    /// tried again when the leases of the dead messages expire.
    pub(super) async fn move_dead(&self, request: &Receive<'_>, dead: Vec<Leased>) {
        let Some(hot) = self.me.upgrade() else { return };
        let (group, topic, peer) = (request.group.to_owned(), request.topic.to_owned(), request.peer);
        // In its own task, as above.
        let done = tokio::spawn(async move {
            let count = dead.len();
            if let Err(error) = hot.move_all_dead(peer, &group, &topic, dead).await {
                MOVE_FAILED.log(|suppressed| {
                    tracing::error!(topic, group, count, %error, suppressed,
                        "cannot move dead messages to the dead-letter topic; retrying when their leases expire");
                });
            }
        });
        // It is cancelled only when the runtime ends.
        let _ = done.await;
    }

    async fn move_all_dead(
        &self,
        peer: SocketAddr,
        group: &str,
        topic: &str,
        dead: Vec<Leased>,
    ) -> Result<(), TransportError> {
        let mut finished = Vec::with_capacity(dead.len());
        match self.dead_letters(peer, group).await? {
            None => finished.extend(dead.iter().map(|leased| leased.handle)),
            Some(dead_letters) => {
                let mut end = None;
                let cause = DeadLetterCause::of(EXPIRED);
                for Leased { record, handle, attempt } in &dead {
                    match self.append_dead(group, &dead_letters, record, *attempt, &cause) {
                        Ok(its_end) => {
                            end = Some(its_end);
                            finished.push(*handle);
                        }
                        Err(error) => APPEND_FAILED.log(|suppressed| {
                            tracing::error!(topic, group, queue_id = handle.queue_id,
                                queue_offset = handle.queue_offset, %error, suppressed,
                                "cannot store a dead letter; retrying when the lease expires");
                        }),
                    }
                }
                if let Some(end) = end {
                    self.sends.durable(end).await?;
                }
            }
        }
        for handle in finished {
            if let Err(error) = self.store.groups().ack(group, topic, &handle) {
                ACK_FAILED.log(|suppressed| {
                    tracing::warn!(topic, group, queue_offset = handle.queue_offset, %error, suppressed,
                        "a dead letter is stored, but its message will be redelivered");
                });
            }
        }
        Ok(())
    }

    /// Returns the writable dead-letter topic of a group; `None` if the group wants no retries.
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

    /// Appends one message, delivered `attempt` times, to a dead-letter topic. Returns the physical offset of its end.
    fn append_dead(
        &self,
        group: &str,
        letters: &DeadLetters,
        record: &Record,
        attempt: u32,
        cause: &DeadLetterCause,
    ) -> Result<u64, TransportError> {
        let message = MessageView::decode(record.bytes(), false)
            .map_err(|_| TransportError::IllegalMessage("the message cannot be read"))?;
        let times = message.reconsume_times.saturating_add_unsigned(attempt);
        self.append_dead_letter(group, letters, &message, times, cause)
    }

    /// As [`Self::append_dead`], for a message that was delivered `reconsume_times` times in all.
    pub(crate) fn append_dead_letter(
        &self,
        group: &str,
        DeadLetters { name, entry }: &DeadLetters,
        message: &MessageView<'_>,
        reconsume_times: i32,
        cause: &DeadLetterCause,
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
        // Without room for the cause, or even for the origin, the message is stored all the same.
        let mut appended = self.sends.append(&[dead]);
        for properties in [origin.as_slice(), message.properties] {
            if !matches!(appended, Err(StoreError::TooLarge { what: "properties", .. })) {
                break;
            }
            CAUSE_LEFT_OUT.log(|suppressed| {
                tracing::warn!(
                    topic = name,
                    group,
                    suppressed,
                    "the properties of a dead letter have no room for its cause; storing it without"
                );
            });
            appended = self.sends.append(&[NewMessage { properties, ..dead }]);
        }
        let appended = appended?;
        let consumed = properties::get(&text, "RETRY_TOPIC").unwrap_or(message.topic);
        self.traffic.count_send_back(consumed, group, 1, u64::from(message.total_size));
        self.count_dead(consumed, group, reconsume_times);
        Ok(appended.end)
    }

    /// Counts a message of `group` that was stored as a dead letter, and logs it.
    pub(crate) fn count_dead(&self, consumed: &str, group: &str, deliveries: i32) {
        let topic = retried_topic(consumed, group);
        self.counters.dead.add(1);
        self.traffic.count_dead(topic, group);
        STORED.log(|suppressed| {
            tracing::info!(topic, group, deliveries, suppressed, "message stored as a dead letter");
        });
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
                Err(TransportError::IllegalMessage("the message is no longer in the log"))
            }
            _ => Err(TransportError::IllegalMessage("the message cannot be read")),
        }
    }
}

/// The properties of a dead message that its consumer sends to its retry topic itself.
pub(crate) fn properties_of_sent(text: &[u8], group: &str, reconsume_times: i32, reason: &str) -> Vec<u8> {
    properties_of_cause(&properties_of_origin(text, group), reconsume_times, &DeadLetterCause::of(reason))
}

/// Adds the origin of a dead message, for gRPC consumers, to the properties of its retry.
fn properties_of_origin(text: &[u8], group: &str) -> Vec<u8> {
    let known = |name| properties::get(text, name);
    let topic = known("RETRY_TOPIC").map_or("", |topic| retried_topic(topic, group));
    let id = known("UNIQ_KEY").or_else(|| known("ORIGIN_MESSAGE_ID")).unwrap_or("");
    let values = [("DLQ_ORIGIN_TOPIC", topic), ("DLQ_ORIGIN_MESSAGE_ID", id)];
    let set: Vec<_> = values.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    properties::replace(text, &[], &set)
}

/// Adds the cause to the properties of a dead message; that of an earlier group is replaced.
fn properties_of_cause(origin: &[u8], reconsume_times: i32, cause: &DeadLetterCause) -> Vec<u8> {
    let known = |name| properties::get(origin, name).unwrap_or("");
    let attempts = u32::try_from(reconsume_times).unwrap_or(0).max(cause.attempts).to_string();
    let (reason, exception) = (property_text(&cause.reason), property_text(&cause.exception));
    let values = [
        (SOURCE_TOPIC, known("DLQ_ORIGIN_TOPIC")),
        (SOURCE_ID, known("DLQ_ORIGIN_MESSAGE_ID")),
        (ATTEMPTS, attempts.as_str()),
        (REASON, reason.as_str()),
        (EXCEPTION, exception.as_str()),
    ];
    let set: Vec<_> = values.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    properties::replace(origin, &[REASON, EXCEPTION], &set)
}

/// The properties of a message that is sent back: its first topic, its first id and the delay level at which it waits,
/// 0 if it is dead. `WAIT=false` is RocketMQ's value for a copy that the broker makes.
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
