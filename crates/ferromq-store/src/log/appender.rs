//! The way of messages into the store: checked, encoded outside any lock, appended, answered.
//!
//! Where records go is the commit log's business, when they are durable `flush`'s.

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
        commit_log::{self, CommitLog, Once, Pending},
    },
    queues::{
        consume_queue::{ConsumeQueue, check_name},
        queue_table::ConsumeQueues,
    },
    read::counters::Counters,
    record::{
        message::{self, NewMessage},
        names::SCHEDULE_TOPIC,
    },
    sync::wake::Wake,
    time::clock::Clock,
};

/// A buffer for records grows with the largest batch; above this it is not kept.
const MAX_SCRATCH: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Which messages of an append are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// Each.
    All,
    /// Each that has no number, and of the others those that are not there yet.
    New,
}

/// Whether the records of an append stand for themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tie {
    /// A crash may keep some of them.
    Loose,
    /// All or none.
    AsOne,
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
    /// The promise of the flush policy holds once [`Self::wait_durable`] or [`Self::when_durable`] of
    /// `Appended::end` says so. A crash before may keep the first of the messages and lose the others.
    /// Errors: `TooLarge`, `Invalid`, `Full`, `QueueClosed`, `QueueSetAside`, `DispatchStalled`, `Poisoned`, `Closed`, `Io`:
    /// nothing was stored.
    pub fn append(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        self.append_tied(messages, (Tie::Loose, Kept::All), true)
    }

    /// As [`Self::append`], but what has a [`SEQUENCE`](crate::record::properties::SEQUENCE) is stored where nothing of its writer's
    /// partition as high is in the queue, whoever sent it: what is there already has
    /// [`Location::THERE_ALREADY`](crate::log::appended::Location::THERE_ALREADY), and is as durable as the policy promises once
    /// `Appended::end` is. Look at and append are one.
    ///
    /// The promise is that of `dedup_window`, and of writers that send rows to a queue in rising order and no row before
    /// the one before it was answered. For messages that come from producers; of a message that waits for its time, the
    /// queue it waits for counts. Errors: those of [`Self::append`]; `Invalid` for a property that is no sequence,
    /// `DedupFull`.
    pub fn append_once(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        self.append_tied(messages, (Tie::Loose, Kept::New), true)
    }

    /// As [`Self::append_once`], but whatever happens all that were to be stored are there afterwards or none.
    pub fn append_once_as_one(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        self.append_tied(messages, (Tie::AsOne, Kept::New), true)
    }

    /// As [`Self::append`], but whatever happens all of the messages are there afterwards or none.
    pub fn append_as_one(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        self.append_tied(messages, (Tie::AsOne, Kept::All), true)
    }

    /// Appends and waits until the promise of the flush policy holds; the place is given with it.
    ///
    /// Cheaper than [`Self::append`] and [`Self::wait_durable`] one after the other: no other thread is asked
    /// to flush. Errors: those of [`Self::append`], and `NotDurable` where the flush failed.
    pub fn append_durable(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        let appended = self.append_tied(messages, (Tie::Loose, Kept::All), false)?;
        self.wait_durable(appended.end)?;
        Ok(appended)
    }

    /// Says how a message must be stored that has a delay level or a time of delivery, see [`waiting_message::rewrite`]; `None` for
    /// one that does not wait.
    ///
    /// The store stores what it is given, so whoever takes messages from producers asks. Errors: `Invalid`, `TooFarAhead`.
    pub fn delayed(&self, message: &NewMessage<'_>) -> Result<Option<Delayed>> {
        let NewMessage { topic, queue_id, sys_flag, properties, .. } = *message;
        waiting_message::rewrite(&self.config, self.clock.now_ms(), topic, queue_id, sys_flag, properties)
    }

    /// Says whether the promise of the flush policy holds for what ends at `end`; `None` where a flush must come first.
    ///
    /// What [`Self::when_durable`] tells at once, without a callback.
    pub fn durable_now(&self, end: u64) -> Option<Result<()>> {
        let outcome = self.log.durable_now(end);
        outcome.map(|outcome| outcome.inspect_err(|error| self.counters.count_failed_put(error)))
    }

    /// Calls `done` once the promise of the flush policy holds for what ends at `end`, an `Appended::end`: at
    /// once where a send is answered when written, after the covering flush otherwise.
    ///
    /// `done` gets `NotDurable` where that flush failed: the messages may be there after a restart. It may run
    /// on the flushing thread, so it must return quickly.
    pub fn when_durable(&self, end: u64, done: impl FnOnce(Result<()>) + Send + 'static) {
        let counters = Arc::clone(&self.counters);
        self.log.when_durable(
            end,
            Box::new(move |outcome| {
                done(outcome.inspect_err(|error| counters.count_failed_put(error)));
            }),
        );
    }

    /// As [`Self::when_durable`], waiting for it; the waiting thread flushes itself where nobody else does.
    pub fn wait_durable(&self, end: u64) -> Result<()> {
        let outcome = self.log.wait_durable(end);
        outcome.inspect_err(|error| self.counters.count_failed_put(error))
    }
}

impl<D: Disk> Log<D> {
    /// The errors [`Self::append`] has for a message whatever the state of the log.
    pub(crate) fn check(&self, message: &NewMessage<'_>) -> Result<()> {
        check_name(message.topic, message.queue_id)?;
        commit_log::check_limits(message, &self.config, self.log.max_record_len())
    }

    fn append_tied(
        &self,
        messages: &[NewMessage<'_>],
        (tie, kept): (Tie, Kept),
        is_flush_asked: bool,
    ) -> Result<Appended> {
        let begun = Instant::now();
        let open = self.home.check_open().and_then(|()| self.stall.check());
        let is_to_wait = |message: &NewMessage<'_>| message.topic == SCHEDULE_TOPIC;
        // Almost never wrong: a load is less than a look at each topic.
        let is_wrong = self.levels.is_file_wrong() && messages.iter().any(is_to_wait);
        let open = open.and_then(|()| if is_wrong { self.levels.correct() } else { Ok(()) });
        let appended = open.and_then(|()| {
            SCRATCH.with_borrow_mut(|bytes| {
                bytes.clear();
                bytes.shrink_to(MAX_SCRATCH);
                if kept == Kept::New {
                    let numbered = messages.iter().map(|m| Numbered::of(m.topic, m.queue_id, m.properties));
                    let numbered: Vec<_> = numbered.collect::<Result<_>>()?;
                    let steady_ms = self.clock.steady_ms();
                    let once = Once { dedup: &self.dedup, steady_ms, numbered: &numbered };
                    let pending = self.encode_all(messages, tie, bytes)?;
                    return self.log.append(&self.clock, messages, &pending, bytes, Some(once));
                }
                if let [message] = messages {
                    let pending = [self.encode(message, None, bytes)?];
                    return self.log.append(&self.clock, messages, &pending, bytes, None);
                }
                let pending = self.encode_all(messages, tie, bytes)?;
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
            if is_flush_asked {
                self.log.ask_for_flush(appended.end);
            }
        }
        Ok(appended)
    }

    fn encode_all(
        &self,
        messages: &[NewMessage<'_>],
        tie: Tie,
        bytes: &mut Vec<u8>,
    ) -> Result<Vec<Pending<D>>> {
        let mut pending: Vec<Pending<D>> = Vec::with_capacity(messages.len());
        for (number, message) in messages.iter().enumerate() {
            let before = pending.last().and_then(|pending| pending.queue.as_ref());
            let mut next = self.encode(message, before, bytes)?;
            if tie == Tie::AsOne && number + 1 < messages.len() {
                message::mark_continued(bytes, &mut next.encoded);
            }
            pending.push(next);
        }
        Ok(pending)
    }

    /// Checks a message and encodes it; `before` is the queue of the message before it, most often the same.
    fn encode(
        &self,
        message: &NewMessage<'_>,
        before: Option<&Arc<ConsumeQueue<D>>>,
        bytes: &mut Vec<u8>,
    ) -> Result<Pending<D>> {
        let config = &self.config;
        let queue_id = check_name(message.topic, message.queue_id)?;
        let max_record = self.log.max_record_len();
        commit_log::check_limits(message, config, max_record)?;
        let encoded = message::encode(message, config.store_host, config.property_crc, bytes);
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
