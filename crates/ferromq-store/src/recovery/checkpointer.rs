//! Writes checkpoints: makes the log and its derived files durable, then records how far they are.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    dedup::sequences_file::SequencesFile,
    derive::{derived_files::DerivedFiles, dispatched::Dispatched, set_aside::IndexRepair},
    error::Result,
    files::{disk::Disk, store_directory::StoreDirectory},
    queues::{consume_queue::ConsumeQueue, queue_list::QueueList},
    recovery::{checkpoint::Checkpoint, last_shutdown::Left},
    sync::signal::Signal,
};

/// Time between two checkpoints while messages arrive …
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// … or longer: a pause takes at least so many times as long as the last checkpoint.
const CHECKPOINT_PAUSE: u32 = 9;

/// Writes checkpoints, one at a time: a checkpoint must not claim what another has not flushed yet.
pub(crate) struct Checkpointer<D: Disk> {
    home: Arc<StoreDirectory<D>>,
    files: Arc<DerivedFiles<D>>,
    checkpoint: Arc<Checkpoint<D>>,
    dispatched: Arc<Dispatched>,
    sequences: Arc<SequencesFile<D>>,
    /// The queue list as last written.
    listed: Mutex<Option<QueueList>>,
    writing: Mutex<()>,
    /// Wakes and stops the thread that writes checkpoints.
    pub(crate) due: Signal,
}

impl<D: Disk> Checkpointer<D> {
    pub(crate) fn new(
        home: Arc<StoreDirectory<D>>,
        files: Arc<DerivedFiles<D>>,
        checkpoint: Arc<Checkpoint<D>>,
        dispatched: Arc<Dispatched>,
        sequences: Arc<SequencesFile<D>>,
    ) -> Self {
        let (listed, writing, due) = (Mutex::new(None), Mutex::default(), Signal::default());
        Self { home, files, checkpoint, dispatched, sequences, listed, writing, due }
    }

    /// Makes everything dispatched so far durable, log first, and records it in the checkpoint.
    pub(crate) fn write(&self, is_closing: bool) -> Result<()> {
        let _held = self.home.hold()?;
        let _checkpointing = self.writing.lock();
        // Taken before the flushes, which cover at least this.
        let (end, timestamp, anchor) = self.dispatched.mark();
        self.files.aside.begin_checkpoint();
        if self.files.log.flushed() < end {
            self.files.log.flush()?;
        }
        // Independent files: a failed write of one blocks neither the others nor the checkpoint.
        let noted = self.files.log.flush_mark.note(self.files.log.flushed(), anchor);
        let noted = noted.and(self.files.log.damages.save(&self.home.disk, &self.home.root, anchor));
        let noted = noted.and(self.sequences.save(anchor, is_closing));
        let dirty = self.files.dirty.take();
        let has_flushed = self.flush_queues(dirty);
        if let Some(list) = self.due_list(is_closing) {
            // Everything in the list must be durable, including changes since the mark above.
            self.files.log.flush()?;
            list.save(&self.home.disk, &self.home.root, anchor)?;
            *self.listed.lock() = Some(list);
        }
        let is_filling = !is_closing && self.files.index.is_filling();
        let index_timestamp = self.flush_index(is_closing)?;
        has_flushed?;
        // Files set aside lack entries from here on: after a kill the walk rebuilds them.
        let aside = self.files.aside.lowest_from();
        let durable_end = aside.map_or(end, |from| from.min(end));
        // Java recovers by timestamp: it must begin at the first record that any file lacks.
        let queues_timestamp = match aside.and_then(|from| self.files.log.stored_at(from)) {
            Some(stored_at) => timestamp.min(stored_at - 1),
            None => timestamp,
        };
        // After an unclean stop Java drops the index file being filled, and finds its keys again by walking from
        // before it; we walk from `durable_end`.
        self.checkpoint.update(|marks| {
            marks.log_timestamp = timestamp;
            marks.queues_timestamp =
                if is_filling { queues_timestamp.min(index_timestamp - 1) } else { queues_timestamp };
            marks.index_timestamp = index_timestamp;
            marks.durable_end = durable_end as i64;
        })?;
        noted
    }

    /// Flushes the queues. A queue that fails is set aside, because its content on disk is unknown. After a shortage of
    /// descriptors or memory, it is flushed at the next checkpoint.
    fn flush_queues(&self, dirty: Vec<Arc<ConsumeQueue<D>>>) -> Result<()> {
        let mut outcome = Ok(());
        let dirty = self.files.aside.unlist_aside(dirty);
        for queue in dirty.iter().filter(|_| dirty.len() > 1) {
            // Only a hint: the flush below reports errors.
            let _ = queue.begin_flush();
        }
        for queue in &dirty {
            if let Err(error) = queue.flush() {
                if error.is_shortage() {
                    self.files.dirty.add(Arc::clone(queue));
                    outcome = outcome.and(Err(error));
                    continue;
                }
                queue.unlist();
                self.files.aside.put(queue, queue.flushed(), self.files.aside.in_doubt_from(queue), &error);
            }
        }
        outcome
    }

    /// Flushes the index; returns the timestamp up to which it is durable. After a failure the next open rebuilds it.
    fn flush_index(&self, is_closing: bool) -> Result<i64> {
        let durable = self.checkpoint.marks();
        if self.files.aside.index().is_some_and(|index| index.repair == IndexRepair::Reload) {
            return Ok(durable.index_timestamp);
        }
        self.files.index.flush(is_closing).or_else(|error| {
            if error.is_shortage() {
                return Err(error);
            }
            let from = u64::try_from(durable.durable_end).unwrap_or(0).max(self.files.log.start());
            self.files.aside.put_index(from, IndexRepair::Reopen, &error);
            Ok(durable.index_timestamp)
        })
    }

    /// Reads the queue list. Also returns whether there was one, valid or not.
    pub(crate) fn load_list(&self, left: Left) -> Result<(Option<QueueList>, bool)> {
        let loaded = QueueList::load(&self.home.disk, &self.home.root)?;
        let was_there = loaded.is_some();
        let mut list =
            loaded.filter(|(anchor, _)| left.trusts(*anchor, self.files.log.files())).map(|(_, list)| list);
        if let Some(list) = &mut list {
            // Queues deleted since are not lost.
            list.queues.retain(|(topic, queue_id), extent| {
                let floor = self
                    .files
                    .queues
                    .find_any(topic, *queue_id)
                    .map_or(0, |queue| queue.marks.floor().offset);
                extent.min_offset = extent.min_offset.max(floor);
                extent.max_offset > floor
            });
        }
        (*self.listed.lock()).clone_from(&list);
        Ok((list, was_there))
    }

    /// The queue list if it must be written: a queue is new, or the store closes and queues have grown.
    fn due_list(&self, is_closing: bool) -> Option<QueueList> {
        let listed = self.listed.lock();
        let listed_count = listed.as_ref().map(|listed| listed.queues.len());
        let indexes = self.files.index.names();
        let is_same = |listed: &QueueList| listed.indexes.keys().eq(indexes.keys());
        if !is_closing
            && listed_count == Some(self.files.queues.count())
            && listed.as_ref().is_some_and(is_same)
        {
            return None;
        }
        let mut list =
            QueueList { log_start: self.files.log.start(), indexes, queues: self.files.queues.extents() };
        if let Some(listed) = listed.as_ref().filter(|_| !is_closing) {
            // The dispatcher may be running: list only what is flushed.
            list.queues.retain(|(topic, queue_id), extent| {
                let flushed = self.files.queues.find(topic, *queue_id).map_or(0, |queue| queue.flushed());
                let known =
                    listed.queues.get(&(topic.clone(), *queue_id)).map_or(0, |known| known.max_offset);
                extent.max_offset = flushed.max(known);
                extent.max_offset > 0
            });
        }
        // A queue whose end is unknown keeps the noted one as a lower bound.
        for (name, known) in listed.iter().flat_map(|listed| &listed.queues) {
            let queue = self.files.queues.find(&name.0, name.1);
            if queue.is_some_and(|queue| queue.marks.is_end_unknown()) {
                let extent = list.queues.entry(name.clone()).or_insert(*known);
                extent.max_offset = extent.max_offset.max(known.max_offset);
            }
        }
        (listed.as_ref() != Some(&list)).then_some(list)
    }

    pub(crate) fn run(&self) {
        // If the policy leaves pages dirty, the checkpoint waits until it flushes them.
        let (mut awaited, mut is_failing) = (None, false);
        let mut pause = CHECKPOINT_INTERVAL;
        while !self.due.is_stopped() {
            self.due.wait(|| false, Some(pause));
            self.files.log.freshness.tick(self.files.log.written());
            let end = self.dispatched.end();
            let end = self.files.aside.first_from().map_or(end, |from| from.min(end));
            let has_more = end as i64 != self.checkpoint.marks().durable_end
                || !self.files.dirty.is_empty()
                || self.sequences.dedup.is_stepped(self.files.clock.stepped_ms())
                || self.sequences.dedup.trouble.is_failing();
            let is_due = has_more && !self.files.log.is_poisoned() && !self.due.is_stopped();
            if is_due && self.files.log.policy().leaves_pages() {
                let goal = *awaited.get_or_insert(self.dispatched.end());
                if self.files.log.flushed() < goal {
                    continue;
                }
                awaited = None;
            }
            let began = Instant::now();
            if is_due {
                let written = self.write(false);
                let was_failing = std::mem::replace(&mut is_failing, written.is_err());
                if let Err(error) = written
                    && !was_failing
                {
                    tracing::warn!(%error, "checkpoint not written, retrying");
                }
            }
            pause = pause_after(began.elapsed());
        }
    }

    /// Writes the snapshot of sequences if one exists, or if sequences that it may contain were forgotten.
    pub(crate) fn write_sequences(&self) -> Result<()> {
        let _held = self.home.hold()?;
        let _writing = self.writing.lock();
        self.sequences.forget_saved();
        self.sequences.save(self.dispatched.anchor(), true)
    }
}

/// The pause after a checkpoint: checkpoints take at most a tenth of the time.
fn pause_after(took: Duration) -> Duration {
    CHECKPOINT_INTERVAL.max(took.saturating_mul(CHECKPOINT_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_take_at_most_a_tenth_of_the_time() {
        for (took_ms, pause_ms) in [(0, 1000), (100, 1000), (112, 1008), (1300, 11_700)] {
            assert_eq!(pause_after(Duration::from_millis(took_ms)), Duration::from_millis(pause_ms));
        }
    }
}
