//! Writes missing consume queue entries and index keys during the walk at open, in log order.
//!
//! Existing entries are skipped. A queue that lacks entries from before the walk is noted as lost: a second walk from
//! further back rebuilds it.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use crate::{
    derive::{
        derived_entries::{ChunkDerived, Derived, EntryRun},
        derived_files::DerivedFiles,
        set_aside::IndexRepair,
    },
    error::{Result, StoreError},
    files::{anchor::Anchor, disk::Disk},
    index::index_file::IndexKey,
    log::damage::{Damage, DamageReason},
    queues::{
        admin_files::QueueName,
        consume_queue::{ConsumeQueue, NO_BATCH},
        queue_entry::{ENTRY_LEN, QueueEntry},
    },
    record::message::MIN_RECORD_LEN,
};

/// Bytes of the log between two writes: large, because thousands of queues share them.
const ROUND_BYTES: u64 = 32 << 20;
/// Largest valid queue offset: the entries of higher ones would lie past the largest file offset.
const MAX_QUEUE_OFFSET: u64 = i64::MAX as u64 / ENTRY_LEN;

/// Consecutive entries of one queue that are not written yet.
struct RebuildBatch<D: Disk> {
    queue: Arc<ConsumeQueue<D>>,
    first: u64,
    entries: Vec<u8>,
}

impl<D: Disk> RebuildBatch<D> {
    fn next(&self) -> u64 {
        self.first + self.entries.len() as u64 / ENTRY_LEN
    }

    /// Writes as many entries as the disk has space for. Returns the next queue offset.
    fn write_pieces(&self) -> u64 {
        const PIECE: u64 = 25;
        let pieces = self.entries.chunks((PIECE * ENTRY_LEN) as usize);
        let mut written = (self.first..).step_by(PIECE as usize).zip(pieces);
        // If all can be written now, space was freed meanwhile: the retry finds them written.
        written
            .find(|(first, piece)| self.queue.write(*first, piece).is_err())
            .map_or(self.first, |(first, _)| first)
    }
}

/// The output of one walk.
pub(crate) struct Rebuild<'a, D: Disk> {
    files: &'a DerivedFiles<D>,
    /// Start of the walk: a queue without entries may lack some from before it.
    from: u64,
    /// Records before it have their keys in the index; the record at it perhaps some.
    index_from: u64,
    /// The walk begins where the entries of every queue end, so entries still missing have no record.
    is_thorough: bool,
    batches: Vec<RebuildBatch<D>>,
    keys: Vec<IndexKey>,
    buffer: Vec<u8>,
    round_bytes: u64,
    /// Records of a batch whose last record has not come yet, and the offset of the first one.
    continued: Option<(u64, Vec<Derived>)>,
    /// Queues whose entries end before those of the walk begin.
    pub(crate) lost: BTreeSet<QueueName>,
    pub(crate) messages: u64,
    pub(crate) redone: u64,
    pub(crate) last_timestamp: i64,
    pub(crate) last: Option<Anchor>,
}

impl<'a, D: Disk> Rebuild<'a, D> {
    pub(crate) fn new(files: &'a DerivedFiles<D>, from: u64, index_from: u64, is_thorough: bool) -> Self {
        Self {
            files,
            from,
            index_from,
            is_thorough,
            batches: Vec::new(),
            keys: Vec::new(),
            buffer: Vec::new(),
            round_bytes: 0,
            continued: None,
            lost: BTreeSet::new(),
            messages: 0,
            redone: 0,
            last_timestamp: 0,
            last: None,
        }
    }

    /// Takes what the next records derive to.
    pub(crate) fn take(&mut self, chunk: ChunkDerived, range: Range<u64>) -> Result<()> {
        let ChunkDerived { whole, continued } = chunk;
        if whole.messages > 0 {
            self.take_continued()?;
            self.take_derived(whole)?;
        }
        if let Some((from, derived)) = continued {
            self.continued.get_or_insert((from, Vec::new())).1.push(derived);
        }
        self.round_bytes += range.end - range.start;
        if self.round_bytes >= ROUND_BYTES { self.write() } else { Ok(()) }
    }

    /// Takes the records held back: the last one of their batch has come, or preceded a damage.
    pub(crate) fn take_continued(&mut self) -> Result<()> {
        for derived in self.continued.take().into_iter().flat_map(|(_, held)| held) {
            self.take_derived(derived)?;
        }
        Ok(())
    }

    /// The first record held back, if any.
    pub(crate) fn continued_from(&self) -> Option<u64> {
        self.continued.as_ref().map(|(from, _)| *from)
    }

    fn take_derived(&mut self, derived: Derived) -> Result<()> {
        self.messages += derived.messages;
        self.last_timestamp = self.last_timestamp.max(derived.last_timestamp);
        self.last = derived.last.or(self.last);
        for run in &derived.runs {
            self.take_run(run)?;
        }
        if !self.files.aside.takes_keys() {
            return Ok(());
        }
        let index = &self.files.index;
        let from = self.index_from;
        let is_missing = |key: &IndexKey| {
            key.physical_offset > from || (key.physical_offset == from && !index.has_last(key))
        };
        self.keys.extend(derived.keys.into_iter().filter(is_missing));
        Ok(())
    }

    fn take_run(&mut self, run: &EntryRun) -> Result<()> {
        let queue = self.files.queues.find_or_make(&run.topic, run.queue_id);
        if queue.marks.is_aside() {
            return Ok(());
        }
        queue.begin_anew(run.first, run.physical_offset);
        let known = self.batch_of(&queue).map_or(queue.max_offset(), RebuildBatch::next);
        let end = run.first.saturating_add(run.count);
        if end <= known || end > MAX_QUEUE_OFFSET {
            return Ok(());
        }
        if run.first > known {
            match self.fill_gap(&queue, known, run) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.files.aside.put_unread(&queue, &error);
                    return Ok(());
                }
            }
        }
        let skipped = known.saturating_sub(run.first);
        let entries = run.entries.get((skipped * ENTRY_LEN) as usize..).unwrap_or_default();
        self.redone += run.count - skipped;
        self.append(queue, run.first + skipped, entries);
        Ok(())
    }

    fn batch_of(&self, queue: &ConsumeQueue<D>) -> Option<&RebuildBatch<D>> {
        self.batches.get(queue.batch.load(Ordering::Relaxed) as usize)
    }

    fn append(&mut self, queue: Arc<ConsumeQueue<D>>, first: u64, entries: &[u8]) {
        let number = queue.batch.load(Ordering::Relaxed) as usize;
        if let Some(batch) = self.batches.get_mut(number) {
            batch.entries.extend_from_slice(entries);
            return;
        }
        queue.batch.store(self.batches.len() as u32, Ordering::Relaxed);
        self.batches.push(RebuildBatch { queue, first, entries: entries.to_vec() });
    }

    /// Fills offsets whose records are gone. Returns whether the run may follow.
    fn fill_gap(&mut self, queue: &Arc<ConsumeQueue<D>>, known: u64, run: &EntryRun) -> Result<bool> {
        if self.lost.contains(&queue.name()) {
            return Ok(false);
        }
        let Some(last_end) = self.last_end(queue)? else {
            // Retention removed everything before the start of the log.
            let is_first = self.is_thorough || self.from <= self.files.log.start();
            if !is_first {
                self.lost.insert(queue.name());
            }
            return Ok(is_first);
        };
        let damage = self.files.log.damages.overlapping(&(last_end..run.physical_offset));
        let from = match &damage {
            Some(damage) => damage.start.max(last_end),
            None if self.is_thorough => last_end,
            None => {
                self.lost.insert(queue.name());
                return Ok(false);
            }
        };
        let missing = run.first - known;
        let room = run.physical_offset.saturating_sub(last_end) / u64::from(MIN_RECORD_LEN);
        if missing > room {
            self.report_impossible(run);
            return Ok(false);
        }
        let lost: Vec<u8> =
            (from..).take(missing as usize).flat_map(|at| QueueEntry::leading_nowhere(at).encode()).collect();
        self.append(Arc::clone(queue), known, &lost);
        Ok(true)
    }

    /// Notes a record with an impossible queue offset: its head, which no checksum covers, is damaged.
    fn report_impossible(&self, run: &EntryRun) {
        let files = self.files.log.files();
        let entry = QueueEntry::decode(&run.entries);
        self.files.log.damages.add(Damage {
            file: files.path_at(run.physical_offset).unwrap_or_default(),
            range: run.physical_offset..entry.map_or(run.physical_offset, QueueEntry::end),
            reason: DamageReason::Corrupt,
        });
    }

    /// Where the record of the queue's last entry ends in the log.
    fn last_end(&self, queue: &ConsumeQueue<D>) -> Result<Option<u64>> {
        if let Some(batch) = self.batch_of(queue) {
            let last = batch.entries.last_chunk::<{ ENTRY_LEN as usize }>();
            return Ok(last.and_then(|last| QueueEntry::decode(last)).map(QueueEntry::end));
        }
        Ok(queue.last_entry()?.map(QueueEntry::end))
    }

    /// Writes the collected entries and keys, and makes them visible.
    pub(crate) fn write(&mut self) -> Result<()> {
        for batch in &self.batches {
            let written = batch.queue.write(batch.first, &batch.entries);
            let is_full = written.as_ref().is_err_and(StoreError::is_of_full_disk);
            let end = match &written {
                Ok(()) => batch.next(),
                Err(_) if is_full => batch.write_pieces(),
                Err(_) => batch.first,
            };
            if end > batch.first && batch.queue.publish(end) {
                self.files.dirty.add(Arc::clone(&batch.queue));
            }
            if let Err(error) = written {
                let rest =
                    batch.entries.get(((end - batch.first) * ENTRY_LEN) as usize..).unwrap_or_default();
                let from = QueueEntry::decode(rest).map_or(self.from, |entry| entry.physical_offset);
                self.files.aside.put(&batch.queue, end, from, &error);
            }
        }
        self.forget();
        if let Err(error) = self.files.index.add(&self.keys, self.files.clock.now_ms(), &mut self.buffer) {
            let from = self.keys.first().map_or(self.from, |key| key.physical_offset);
            self.files.aside.put_index(from, IndexRepair::Add, &error);
        }
        self.keys.clear();
        self.round_bytes = 0;
        Ok(())
    }

    fn forget(&mut self) {
        for batch in self.batches.drain(..) {
            batch.queue.batch.store(NO_BATCH, Ordering::Relaxed);
        }
    }
}

impl<D: Disk> Drop for Rebuild<'_, D> {
    fn drop(&mut self) {
        self.forget();
    }
}
