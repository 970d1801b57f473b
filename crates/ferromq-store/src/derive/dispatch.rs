//! Dispatch: a thread reads new log records and writes their consume queue entries and index keys.
//!
//! It never writes the log and assigns no offsets: records contain them. A queue that cannot be written is set aside
//! (`set_aside`), and the others continue. At open, `rebuild` does the same on all cores.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use crate::{
    derive::{
        arrival::Arrival,
        catch_up::CatchUp,
        derived_entries::{entry_of, index_keys},
        derived_files::DerivedFiles,
        dispatching::Dispatching,
        set_aside::IndexRepair,
    },
    error::Result,
    files::{anchor::Anchor, disk::Disk},
    index::index_file::IndexKey,
    queues::{
        consume_queue::{ConsumeQueue, NO_BATCH, check_name},
        queue_entry::QueueEntry,
    },
    record::message::{self, MessageView},
};

/// Most bytes of the log per round: bounds memory, and how long readers wait for the first message.
const ROUND_BYTES: u64 = 4 << 20;

/// Consecutive entries of one queue in a round.
struct DispatchBatch<D: Disk> {
    queue: Arc<ConsumeQueue<D>>,
    first: u64,
    next: u64,
    entries: Vec<u8>,
    /// The queue is set aside: no entry of the batch becomes visible.
    is_failed: bool,
}

/// Where the index ended when the store was opened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Resume {
    /// Records before it have their keys in the index; the record at it perhaps some.
    pub(crate) indexed_to: Option<u64>,
}

/// Reusable buffers of the dispatching thread.
pub(crate) struct Dispatcher<D: Disk> {
    batches: Vec<DispatchBatch<D>>,
    used: usize,
    keys: Vec<IndexKey>,
    buffer: Vec<u8>,
    resume: Resume,
    last_timestamp: i64,
    pub(crate) messages: u64,
    last: Option<Anchor>,
}

impl<D: Disk> Dispatcher<D> {
    pub(crate) fn new(resume: Resume) -> Self {
        Self {
            batches: Vec::new(),
            used: 0,
            keys: Vec::new(),
            buffer: Vec::new(),
            resume,
            last_timestamp: 0,
            messages: 0,
            last: None,
        }
    }

    /// Dispatches the records from `from` up to `limit`, at most one round. Returns where it ended.
    ///
    /// On an error, always of a full disk, no entry of the round is visible, and the round may be retried.
    pub(crate) fn round(&mut self, shared: &Dispatching<D>, from: u64, limit: u64) -> Result<u64> {
        let (mut count, mut last_timestamp, mut last) = (0, self.last_timestamp, self.last);
        let walked = shared.files.log.walk(from..limit, |place, record| {
            match MessageView::decode(record, false) {
                Ok(view) => {
                    count += 1;
                    last_timestamp = last_timestamp.max(view.store_timestamp);
                    last = Some(Anchor::of(&view));
                    self.take(&shared.files, place, &view);
                }
                Err(reason) => tracing::error!(physical_offset = place, reason, "record not dispatched"),
            }
            let end = place + record.len() as u64;
            if end - from > ROUND_BYTES { Err(end) } else { Ok(()) }
        });
        let (Ok(to) | Err(to)) = walked;
        if let Err(error) = self.write(&shared.files) {
            // A retried round must not add the same keys again.
            self.resume.indexed_to = shared.files.index.last_physical_offset().or(self.resume.indexed_to);
            self.forget();
            return Err(error);
        }
        self.messages += count;
        self.last_timestamp = last_timestamp;
        self.last = last;
        self.publish(shared, to);
        Ok(to)
    }

    fn take(&mut self, files: &DerivedFiles<D>, place: u64, view: &MessageView<'_>) {
        let marks = view.marks();
        if message::is_consumable(view.sys_flag) {
            match check_name(view.topic, view.queue_id) {
                Ok(queue_id) => {
                    let entry = entry_of(&files.delay_levels, place, view, &marks);
                    self.take_entry(files, view.topic, queue_id, view.queue_offset, entry);
                }
                Err(error) => tracing::error!(physical_offset = place, %error, "record enters no queue"),
            }
        }
        if files.index.is_enabled()
            && message::is_indexed(view.sys_flag)
            && files.aside.takes_keys()
            && self.resume.indexed_to.is_none_or(|to| place >= to)
        {
            let is_partly_indexed = self.resume.indexed_to == Some(place);
            self.keys.extend(
                index_keys(view, &marks).filter(|key| !(is_partly_indexed && files.index.has_last(key))),
            );
        }
    }

    fn take_entry(
        &mut self,
        files: &DerivedFiles<D>,
        topic: &str,
        queue_id: u32,
        queue_offset: u64,
        entry: QueueEntry,
    ) {
        // Most records follow one of the same queue.
        let last = self.used.checked_sub(1).and_then(|last| self.batches.get(last));
        let queue = match last {
            Some(batch) if batch.queue.queue_id() == queue_id && batch.queue.topic() == topic => {
                Arc::clone(&batch.queue)
            }
            _ => files.queues.find_or_make(topic, queue_id),
        };
        if queue.marks.is_aside() {
            return;
        }
        let number = queue.batch.load(Ordering::Relaxed);
        let open = self.batches.get_mut(number as usize).filter(|batch| batch.next == queue_offset);
        if let Some(batch) = open {
            batch.entries.extend_from_slice(&entry.encode());
            batch.next += 1;
            return;
        }
        let known = self.batches.get(number as usize).map_or(queue.max_offset(), |batch| batch.next);
        if queue_offset < known {
            return;
        }
        self.begin_batch(queue, queue_offset, entry);
    }

    fn begin_batch(&mut self, queue: Arc<ConsumeQueue<D>>, queue_offset: u64, entry: QueueEntry) {
        queue.batch.store(self.used as u32, Ordering::Relaxed);
        match self.batches.get_mut(self.used) {
            Some(batch) => {
                batch.queue = queue;
                batch.first = queue_offset;
                batch.is_failed = false;
                batch.entries.clear();
            }
            None => self.batches.push(DispatchBatch {
                queue,
                first: queue_offset,
                next: 0,
                entries: Vec::new(),
                is_failed: false,
            }),
        }
        if let Some(batch) = self.batches.get_mut(self.used) {
            batch.entries.extend_from_slice(&entry.encode());
            batch.next = queue_offset + 1;
        }
        self.used += 1;
    }

    fn write(&mut self, files: &DerivedFiles<D>) -> Result<()> {
        for batch in self.batches.iter_mut().take(self.used) {
            match batch.queue.write(batch.first, &batch.entries) {
                Ok(()) => {}
                Err(error) if error.is_of_full_disk() => return Err(error),
                Err(error) => {
                    batch.is_failed = true;
                    let from = QueueEntry::decode(&batch.entries).map_or(0, |entry| entry.physical_offset);
                    files.aside.put(&batch.queue, batch.first, from, &error);
                }
            }
        }
        match files.index.add(&self.keys, files.clock.now_ms(), &mut self.buffer) {
            Ok(()) => {}
            Err(error) if error.is_of_full_disk() => return Err(error),
            Err(error) => {
                let from = self.keys.first().map_or(0, |key| key.physical_offset);
                files.aside.put_index(from, IndexRepair::Add, &error);
            }
        }
        self.keys.clear();
        Ok(())
    }

    /// Batches that were written.
    fn written(&self) -> impl Iterator<Item = &DispatchBatch<D>> {
        self.batches.iter().take(self.used).filter(|batch| !batch.is_failed)
    }

    fn publish(&mut self, shared: &Dispatching<D>, to: u64) {
        for batch in self.written() {
            if batch.queue.publish(batch.next) {
                shared.files.dirty.add(Arc::clone(&batch.queue));
            }
        }
        shared.dispatched.set(to, self.last_timestamp, self.last);
        self.written().for_each(|batch| shared.arrivals.wake(batch.queue.topic()));
        shared.arrivals.timer.dispatched(to);
        if let Some(listener) = shared.arrivals.listener() {
            for batch in self.written() {
                listener(&Arrival {
                    topic: batch.queue.topic(),
                    queue_id: batch.queue.queue_id(),
                    max_offset: batch.next,
                });
            }
        }
        self.forget();
    }

    fn forget(&mut self) {
        for batch in self.batches.iter().take(self.used) {
            batch.queue.batch.store(NO_BATCH, Ordering::Relaxed);
        }
        self.used = 0;
        self.keys.clear();
        // Do not keep buffers for thousands of queues.
        self.batches.truncate(64);
    }
}

/// How often an idle dispatcher polls before it sleeps: a wake-up costs the appender more than a poll.
const POLLS_BEFORE_SLEEP: u32 = 50;
/// A round of so many messages means that the log is busy.
const BUSY_ROUND: u64 = 2;
/// Pause after a failed round; appends do not shorten it.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Dispatches until the store stops and everything is dispatched.
pub(crate) fn run<D: Disk>(shared: &Dispatching<D>, mut dispatcher: Dispatcher<D>) {
    let mut at = shared.dispatched.end();
    let mut polls = 0;
    // Logs each offset once, however often it is retried.
    let mut stuck_at = None;
    let mut catching_up = None;
    loop {
        catch_up(shared, &mut catching_up);
        let limit = shared.files.log.readable();
        if at >= limit {
            if shared.files.log.arrived.is_stopped() {
                return;
            }
            if polls > 0 {
                polls -= 1;
                thread::yield_now();
            } else if catching_up.is_none() {
                let has_work = || shared.files.log.readable() > at || shared.files.aside.is_retry_due();
                shared.files.log.arrived.wait(has_work, shared.files.aside.retry_in());
            }
            continue;
        }
        let before = dispatcher.messages;
        let round = {
            let _dispatching = shared.rounds.lock();
            dispatcher.round(shared, at, limit)
        };
        match round {
            Ok(to) if to > at => {
                at = to;
                if stuck_at.take().is_some() {
                    shared.stall.clear();
                }
                if dispatcher.messages - before >= BUSY_ROUND {
                    polls = POLLS_BEFORE_SLEEP;
                }
                continue;
            }
            Ok(_) => {
                if stuck_at.replace(at) != Some(at) {
                    tracing::error!(
                        physical_offset = at,
                        "no record begins where one should: dispatch stops"
                    );
                    shared.stall.set_reason("no record begins where one should");
                }
            }
            Err(error) => {
                if stuck_at.replace(at) != Some(at) {
                    tracing::warn!(%error, physical_offset = at, "dispatch failed, retrying");
                    shared.stall.set_reason(&error.to_string());
                }
                // Only a full disk makes a round fail.
                shared.files.log.set_full();
            }
        }
        shared.files.log.arrived.pause(RETRY_PAUSE);
        if shared.files.log.arrived.is_stopped() {
            return;
        }
    }
}

/// Begins a due walk to catch up what was set aside, or walks one step.
fn catch_up<D: Disk>(shared: &Dispatching<D>, under_way: &mut Option<CatchUp<D>>) {
    if under_way.is_none() && !shared.files.aside.is_retry_due() {
        return;
    }
    let _dispatching = shared.rounds.lock();
    if under_way.is_none() {
        *under_way = CatchUp::begin(shared);
    }
    let Some(walk) = under_way else { return };
    let is_over = walk.step(shared).unwrap_or_else(|error| {
        tracing::warn!(%error, "the log cannot be read to rebuild what is set aside, retrying");
        true
    });
    if is_over {
        *under_way = None;
    }
}
