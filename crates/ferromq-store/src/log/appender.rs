//! Appends messages: checks and encodes them outside any lock, then hands them to the commit log.
//!
//! The commit log assigns offsets; `flush` decides when records are durable.

use std::{
    cell::RefCell,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use crate::{
    config::StoreConfig,
    dedup::{sequence::Numbered, writers::Dedup},
    delayed::{delay_levels::Delayed, level_progress::LevelOffsets, waiting_message},
    derive::dispatch_stall::DispatchStall,
    error::{Result, StoreError},
    files::{disk::Disk, store_directory::StoreDirectory},
    log::{
        appended::{Appended, Location},
        commit_log::{CommitLog, Once, Pending},
    },
    queues::{
        consume_queue::{ConsumeQueue, check_name},
        queue_table::ConsumeQueues,
    },
    read::counters::Counters,
    record::{
        encode::{self, NewMessage},
        message,
        names::SCHEDULE_TOPIC,
    },
    sync::wake::Wake,
    time::clock::Clock,
};

/// Largest scratch buffer that a thread keeps between appends.
const MAX_SCRATCH: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What an append does with duplicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Duplicates {
    /// It stores them.
    Stored,
    /// It stores only messages without a sequence, or with a new one.
    Skipped,
}

/// Whether a crash may keep some records of an append and lose the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Atomicity {
    /// It may.
    PerMessage,
    /// All records survive or none.
    AllOrNone,
}

/// Appends messages: the handle [`MessageStore::log`](crate::MessageStore::log).
pub struct Log<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) clock: Clock,
    pub(crate) config: Arc<StoreConfig>,
    pub(crate) log: Arc<CommitLog<D>>,
    pub(crate) queues: Arc<ConsumeQueues<D>>,
    pub(crate) dedup: Arc<Dedup>,
    pub(crate) stall: Arc<DispatchStall<D>>,
    pub(crate) levels: Arc<LevelOffsets<D>>,
    pub(crate) cleaning: Arc<Wake>,
    pub(crate) counters: Arc<Counters>,
}

impl<D: Disk> Log<D> {
    /// Appends `messages` in order, each its own record. Limits are checked before anything is written.
    ///
    /// The messages have the durability of the flush policy once [`Self::wait_durable`] or [`Self::when_durable`]
    /// reports success for `Appended::end`. A crash before that may keep the first messages and lose the others.
    /// Errors: `TooLarge`, `Invalid`, `Full`, `QueueClosed`, `QueueSetAside`, `DispatchStalled`, `Poisoned`, `Closed`,
    /// `Io`; nothing was stored.
    pub fn append(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        self.append_with(messages, Atomicity::PerMessage, Duplicates::Stored)
    }

    /// As [`Self::append`], but skips duplicates: a message with a [`SEQUENCE`](crate::record::properties::SEQUENCE) is
    /// stored only if it is higher than all sequences of its writer's partition in the queue, whatever their producer.
    ///
    /// A duplicate gets [`Location::THERE_ALREADY`](crate::log::appended::Location::THERE_ALREADY) and is acknowledged
    /// with `Appended::end`. The check and the append are atomic. Duplicates are detected within `dedup_window` if each
    /// writer sends rows to a queue in rising order and waits for each answer. A message with a delivery time counts in
    /// its target queue. Errors: those of [`Self::append`]; `Invalid` for a malformed sequence, `DedupFull`.
    pub fn append_once(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        self.append_with(messages, Atomicity::PerMessage, Duplicates::Skipped)
    }

    /// As [`Self::append_once`], but after a crash all new messages are stored or none.
    pub fn append_once_as_one(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        self.append_with(messages, Atomicity::AllOrNone, Duplicates::Skipped)
    }

    /// As [`Self::append`], but after a crash all messages are stored or none.
    pub fn append_as_one(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        self.append_with(messages, Atomicity::AllOrNone, Duplicates::Stored)
    }

    /// How to store a message that has a delay level or a delivery time, see [`waiting_message::rewrite`]; `None` if it
    /// has neither.
    ///
    /// `append` does not rewrite messages: call this for messages from producers. Errors: `Invalid`, `TooFarAhead`.
    pub fn delayed(&self, message: &NewMessage<'_>) -> Result<Option<Delayed>> {
        let NewMessage { topic, queue_id, sys_flag, properties, .. } = *message;
        waiting_message::rewrite(&self.config, self.clock.now_ms(), topic, queue_id, sys_flag, properties)
    }

    /// The outcome that [`Self::when_durable`] would report for `end` at once; `None` if a flush must come first.
    pub fn durable_now(&self, end: u64) -> Option<Result<()>> {
        let outcome = self.log.durable_now(end);
        outcome.map(|outcome| outcome.inspect_err(|error| self.counters.count_failed_put(error)))
    }

    /// Whether the flush policy is one that acknowledges on disk only, and the append that ends at `end` is there.
    #[must_use]
    pub fn is_promised_on_disk(&self, end: u64) -> bool {
        self.log.is_sync() && self.log.flushed() >= end
    }

    /// Calls `done` once the append that ends at `end` has the durability of the flush policy: at once if the policy
    /// acknowledges on write, else after the flush that covers it.
    ///
    /// `done` gets `NotDurable` if that flush failed; the messages may still exist after a restart. `done` may run on
    /// the flushing thread, so it must return quickly, and it must not wait for a flush, as [`Self::wait_durable`] does.
    /// A panic of `done` there is logged.
    pub fn when_durable(&self, end: u64, done: impl FnOnce(Result<()>) + Send + 'static) {
        let counters = Arc::clone(&self.counters);
        self.log.when_durable(
            end,
            Box::new(move |outcome| {
                done(outcome.inspect_err(|error| counters.count_failed_put(error)));
            }),
        );
    }

    /// Waits for what [`Self::when_durable`] reports.
    pub fn wait_durable(&self, end: u64) -> Result<()> {
        let outcome = self.log.wait_durable(end);
        outcome.inspect_err(|error| self.counters.count_failed_put(error))
    }
}

impl<D: Disk> Log<D> {
    /// Checks a message for the errors of [`Self::append`] that do not depend on the state of the log.
    pub(crate) fn check(&self, message: &NewMessage<'_>) -> Result<()> {
        check_name(message.topic, message.queue_id)?;
        check_limits(message, &self.config, self.log.max_record_len())
    }

    fn append_with(
        &self,
        messages: &[NewMessage<'_>],
        atomicity: Atomicity,
        duplicates: Duplicates,
    ) -> Result<Appended> {
        let begun = Instant::now();
        let open = self.home.check_open().and_then(|()| self.stall.check());
        let is_to_wait = |message: &NewMessage<'_>| message.topic == SCHEDULE_TOPIC;
        // The flag is almost never set: test it before comparing topics.
        let is_wrong = self.levels.is_file_wrong() && messages.iter().any(is_to_wait);
        let open = open.and_then(|()| if is_wrong { self.levels.correct() } else { Ok(()) });
        let appended = open.and_then(|()| {
            SCRATCH.with_borrow_mut(|bytes| {
                bytes.clear();
                bytes.shrink_to(MAX_SCRATCH);
                if duplicates == Duplicates::Skipped {
                    let numbered = messages.iter().map(|m| Numbered::of(m.topic, m.queue_id, m.properties));
                    let numbered: Vec<_> = numbered.collect::<Result<_>>()?;
                    let steady_ms = self.clock.steady_ms();
                    let once = Once { dedup: &self.dedup, steady_ms, numbered: &numbered };
                    let pending = self.encode_all(messages, atomicity, bytes)?;
                    return self.log.append(&self.clock, messages, &pending, bytes, Some(once));
                }
                if let [message] = messages {
                    let pending = [self.encode(message, None, bytes)?];
                    return self.log.append(&self.clock, messages, &pending, bytes, None);
                }
                let pending = self.encode_all(messages, atomicity, bytes)?;
                self.log.append(&self.clock, messages, &pending, bytes, None)
            })
        });
        let appended = appended.inspect_err(|error| {
            self.counters.count_failed_put(error);
            if matches!(error, StoreError::Full { .. }) {
                self.cleaning.ask();
            }
        })?;
        let stored = appended.locations.iter().filter(|location| **location != Location::THERE_ALREADY);
        self.counters.appended.fetch_add(stored.count() as u64, Ordering::Relaxed);
        if !self.log.is_sync() {
            self.log.put_times().count(begun.elapsed());
            self.log.arrived.ring();
        } else {
            let flushed = || self.log.flushed();
            self.log.put_times().count_when_flushed(appended.end, begun, flushed);
            self.log.ask_for_flush(appended.end);
        }
        Ok(appended)
    }

    fn encode_all(
        &self,
        messages: &[NewMessage<'_>],
        atomicity: Atomicity,
        bytes: &mut Vec<u8>,
    ) -> Result<Vec<Pending<D>>> {
        let mut pending: Vec<Pending<D>> = Vec::with_capacity(messages.len());
        for (number, message) in messages.iter().enumerate() {
            let before = pending.last().and_then(|pending| pending.queue.as_ref());
            let mut next = self.encode(message, before, bytes)?;
            if atomicity == Atomicity::AllOrNone && number + 1 < messages.len() {
                encode::mark_continued(bytes, &mut next.encoded);
            }
            pending.push(next);
        }
        Ok(pending)
    }

    /// Checks and encodes a message. `before` is the queue of the previous message, usually the same.
    fn encode(
        &self,
        message: &NewMessage<'_>,
        before: Option<&Arc<ConsumeQueue<D>>>,
        bytes: &mut Vec<u8>,
    ) -> Result<Pending<D>> {
        let config = &self.config;
        let queue_id = check_name(message.topic, message.queue_id)?;
        let max_record = self.log.max_record_len();
        check_limits(message, config, max_record)?;
        let encoded = encode::encode(message, config.store_host, config.property_crc, bytes);
        if !message::is_consumable(encoded.sys_flag) {
            return Ok(Pending { encoded, queue: None });
        }
        let queue = match before {
            Some(queue) if queue.queue_id() == queue_id && queue.topic() == message.topic => {
                Arc::clone(queue)
            }
            _ => self.queues.find_or_make(message.topic, queue_id),
        };
        Ok(Pending { encoded, queue: Some(queue) })
    }
}

/// Checks the limits of a producer's message before anything is written.
fn check_limits(message: &NewMessage<'_>, config: &StoreConfig, max_record: u64) -> Result<()> {
    let properties = encode::stored_properties_len(message.properties, config.property_crc) as u64;
    let limits = [
        ("message body", message.body.len() as u64, u64::from(config.max_message_size)),
        ("properties", properties, message::MAX_PROPERTIES_LEN as u64),
        ("topic", message.topic.len() as u64, message::MAX_TOPIC_LEN as u64),
    ];
    for (what, len, limit) in limits {
        if len > limit {
            return Err(StoreError::TooLarge { what, len, limit });
        }
    }
    if message.sys_flag & message::INNER_BATCH != 0 {
        return Err(StoreError::Invalid {
            what: "system flag",
            reason: "128, an inner batch, is not supported",
        });
    }
    // Recovery takes a zero byte there for a block that never reached the disk.
    if message.topic.as_bytes().contains(&0) {
        return Err(StoreError::Invalid { what: "topic", reason: "it holds a zero byte" });
    }
    if message.properties.contains(&0) {
        return Err(StoreError::Invalid { what: "properties", reason: "they hold a zero byte" });
    }
    let len = encode::encoded_len(message, config.store_host, config.property_crc);
    if len > max_record {
        return Err(StoreError::TooLarge { what: "record", len, limit: max_record });
    }
    Ok(())
}
