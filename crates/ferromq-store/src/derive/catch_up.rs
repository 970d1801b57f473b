//! Brings consume queues and the index that were set aside up to date: walks the log in steps, between dispatch rounds.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    derive::{
        derived_entries::{entry_of, index_keys},
        dispatching::Dispatching,
        set_aside::{Candidate, IndexRepair},
    },
    error::Result,
    files::disk::Disk,
    index::index_file::IndexKey,
    queues::{
        consume_queue::{ConsumeQueue, check_name},
        known_entries::KnownEntries,
        queue_entry::QueueEntry,
    },
    record::message::{self, MIN_RECORD_LEN, MessageView},
    recovery::log_walk::find_record,
};

/// Bytes of the log per step: dispatch of other queues waits for a step.
const STEP_BYTES: u64 = 4 << 20;

/// A queue that the walk brings up to date.
struct QueueCatchUp<D: Disk> {
    queue: Arc<ConsumeQueue<D>>,
    /// The next queue offset to write.
    next: u64,
    /// The record of the entry before it ends here or earlier.
    from: u64,
    /// Queue offset of the first entry not written yet.
    first: u64,
    entries: Vec<u8>,
    is_failed: bool,
}

/// A walk under way.
pub(crate) struct CatchUp<D: Disk> {
    at: u64,
    behind: Vec<QueueCatchUp<D>>,
    /// Indexes into `behind`, by topic and queue.
    numbers: HashMap<Box<str>, BTreeMap<u32, usize>>,
    /// Records before it have their keys in the index, the record at it perhaps; `None` if the index is not set aside.
    indexed_to: Option<u64>,
    keys: Vec<IndexKey>,
    buffer: Vec<u8>,
}

impl<D: Disk> CatchUp<D> {
    /// Begins a walk for everything that can be written again; `None` if nothing can.
    pub(crate) fn begin(shared: &Dispatching<D>) -> Option<Self> {
        let mut behind = Vec::new();
        let mut at = u64::MAX;
        for Candidate { queue, places, unread } in shared.files.aside.begin_retry() {
            match retry_queue(shared, &queue, places, unread) {
                Ok(found) => {
                    shared.files.aside.begin_catch_up(&queue, &found.queue, (found.next, found.from));
                    at = at.min(found.from);
                    behind.push(found);
                }
                Err(error) => {
                    tracing::debug!(%error, topic = queue.topic(), queue_id = queue.queue_id(), "still set aside");
                }
            }
        }
        let index = shared.retry_index();
        at = at.min(index.map_or(u64::MAX, |(from, _)| from));
        let mut numbers = HashMap::<Box<str>, BTreeMap<u32, usize>>::default();
        for (number, found) in behind.iter().enumerate() {
            let queues = numbers.entry(found.queue.topic().into()).or_default();
            queues.insert(found.queue.queue_id(), number);
        }
        let indexed_to = index.map(|(_, indexed_to)| indexed_to);
        let is_empty = behind.is_empty() && index.is_none();
        (!is_empty).then(|| Self { at, behind, numbers, indexed_to, keys: Vec::new(), buffer: Vec::new() })
    }

    /// Walks one step. Returns whether the walk is complete.
    pub(crate) fn step(&mut self, shared: &Dispatching<D>) -> Result<bool> {
        let (end, start) = (shared.dispatched.end(), shared.files.log.start());
        self.at = self.at.max(start);
        let is_hopeless = self.indexed_to.is_none() && self.behind.iter().all(|behind| behind.is_failed);
        if self.at >= end || is_hopeless {
            self.finish(shared);
            return Ok(true);
        }
        if let Some(damage) = shared.files.log.damages.at(self.at) {
            self.at = damage.end;
            return Ok(false);
        }
        let (from, limit) = (self.at, end);
        let limit = shared.files.log.damages.overlapping(&(from..limit)).map_or(limit, |damage| damage.start);
        let walked = shared.files.log.walk(from..limit, |place, record| {
            if let Ok(view) = MessageView::decode(record, false) {
                self.take(shared, place, &view);
            }
            let end = place + record.len() as u64;
            if end - from > STEP_BYTES { Err(end) } else { Ok(()) }
        });
        self.at = match walked {
            Ok(stop) if stop < limit => {
                find_record(shared.files.log.files(), stop.saturating_add(1)..limit, end)?.unwrap_or(limit)
            }
            Ok(stop) | Err(stop) => stop,
        };
        self.write(shared);
        Ok(false)
    }

    fn take(&mut self, shared: &Dispatching<D>, place: u64, view: &MessageView<'_>) {
        let marks = view.marks();
        if message::is_consumable(view.sys_flag)
            && let Ok(queue_id) = check_name(view.topic, view.queue_id)
            && let Some(number) = self.numbers.get(view.topic).and_then(|queues| queues.get(&queue_id))
            && let Some(behind) = self.behind.get_mut(*number)
        {
            let entry = entry_of(&shared.files.delay_levels, place, view, &marks);
            behind.take(shared, view.queue_offset, entry);
        }
        let Some(indexed_to) = self.indexed_to else { return };
        if message::is_indexed(view.sys_flag) && place >= indexed_to {
            let is_there = |key: &IndexKey| place == indexed_to && shared.files.index.has_last(key);
            self.keys.extend(index_keys(view, &marks).filter(|key| !is_there(key)));
        }
    }

    fn write(&mut self, shared: &Dispatching<D>) {
        for behind in &mut self.behind {
            behind.write(shared);
        }
        if self.indexed_to.is_some() {
            let added = shared.files.index.add(&self.keys, shared.files.clock.now_ms(), &mut self.buffer);
            if let Err(error) = added {
                tracing::debug!(%error, "index still set aside");
                self.indexed_to = None;
            }
        }
        self.keys.clear();
    }

    fn finish(&mut self, shared: &Dispatching<D>) {
        for behind in self.behind.iter().filter(|behind| !behind.is_failed) {
            match shared.settle_end(&behind.queue) {
                Ok(()) => shared.files.aside.reinstate(&behind.queue),
                Err(error) => {
                    tracing::debug!(%error, topic = behind.queue.topic(), "still set aside");
                }
            }
        }
        if self.indexed_to.is_some() {
            shared.files.aside.reinstate_index();
        }
    }
}

impl<D: Disk> QueueCatchUp<D> {
    fn take(&mut self, shared: &Dispatching<D>, queue_offset: u64, entry: QueueEntry) {
        self.next = self.next.max(self.queue.marks.floor().offset);
        if self.is_failed || queue_offset < self.next {
            return;
        }
        if queue_offset > self.next && !self.fill_gap(shared, queue_offset, entry.physical_offset) {
            return;
        }
        if self.entries.is_empty() {
            self.first = self.next;
        }
        self.entries.extend_from_slice(&entry.encode());
        (self.next, self.from) = (queue_offset + 1, entry.end());
    }

    /// Fills offsets whose records are gone. Returns whether the entry at `queue_offset` may follow.
    fn fill_gap(&mut self, shared: &Dispatching<D>, queue_offset: u64, place: u64) -> bool {
        self.write(shared);
        if self.is_failed {
            return false;
        }
        if self.queue.min_offset() >= self.next {
            // Retention removed them and everything before them.
            shared.files.aside.note_lost(&self.queue, (self.next, queue_offset), place);
            self.is_failed = self.queue.begin_at_offset(queue_offset).is_err();
            self.next = queue_offset;
            return !self.is_failed;
        }
        let missing = queue_offset - self.next;
        if missing > place.saturating_sub(self.from) / u64::from(MIN_RECORD_LEN) {
            tracing::error!(
                physical_offset = place,
                queue_offset,
                "record with an impossible queue offset skipped"
            );
            return false;
        }
        self.first = self.next;
        let lost = (self.from..).take(missing as usize).map(QueueEntry::leading_nowhere);
        self.entries.extend(lost.flat_map(QueueEntry::encode));
        self.next = queue_offset;
        true
    }

    fn write(&mut self, shared: &Dispatching<D>) {
        if self.is_failed || self.entries.is_empty() {
            return;
        }
        match self.queue.write(self.first, &self.entries) {
            Ok(()) => {
                if self.queue.publish(self.next) {
                    shared.files.dirty.add(Arc::clone(&self.queue));
                }
                shared.arrivals.notify(&self.queue.arrival());
            }
            Err(error) => {
                tracing::debug!(%error, topic = self.queue.topic(), "still set aside");
                self.is_failed = true;
            }
        }
        self.entries.clear();
    }
}

/// Checks that the queue can be read and written now, and finds where its missing entries begin.
fn retry_queue<D: Disk>(
    shared: &Dispatching<D>,
    queue: &Arc<ConsumeQueue<D>>,
    (mut next, mut from): (u64, u64),
    unread: Option<KnownEntries>,
) -> Result<QueueCatchUp<D>> {
    let mut queue = Arc::clone(queue);
    if let Some(known) = unread {
        queue = shared.files.queues.reload(&queue, shared.files.log.start(), known)?;
        next = queue.max_offset();
        from = queue.last_entry()?.map_or(shared.files.log.start(), QueueEntry::end);
    }
    // Messages deleted meanwhile are not restored.
    next = next.max(queue.marks.floor().offset);
    queue.prepare(next)?;
    Ok(QueueCatchUp { queue, next, from, first: next, entries: Vec::new(), is_failed: false })
}

impl<D: Disk> Dispatching<D> {
    /// Sets the end of a queue whose end was unknown, so that no offset is assigned twice and no group is past the end.
    fn settle_end(&self, queue: &ConsumeQueue<D>) -> Result<()> {
        if queue.marks.is_end_unknown() {
            queue.keep_offsets(queue.next_offset(), self.dispatched.end())?;
            self.progress.clamp(queue.topic(), queue.queue_id(), queue.max_offset());
        }
        Ok(())
    }

    /// Tries to write the index. Returns the first record without keys, and how far the index has keys.
    fn retry_index(&self) -> Option<(u64, u64)> {
        let aside = self.files.aside.index()?;
        let (mut from, log_start) = (aside.from, self.files.log.start());
        let tried = match aside.repair {
            IndexRepair::Reopen => return None,
            IndexRepair::Add => self.files.index.prepare(self.files.clock.now_ms()),
            IndexRepair::Reload => {
                let trusted = self.checkpoint.marks().index_timestamp;
                self.files
                    .index
                    .reload(&self.home.root, &self.config, (log_start, self.dispatched.end()), trusted)
                    .map(|to| {
                        from = to.unwrap_or(log_start);
                        self.files.aside.set_index_reloaded(from);
                    })
            }
        };
        match tried {
            // The index is disabled now: missing keys are not added.
            Ok(()) if !self.files.index.is_enabled() => {
                self.files.aside.reinstate_index();
                None
            }
            Ok(()) => Some((from, self.files.index.last_physical_offset().unwrap_or(0))),
            Err(error) => {
                tracing::debug!(%error, "index still set aside");
                None
            }
        }
    }
}
