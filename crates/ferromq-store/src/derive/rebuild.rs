//! Writes the consume queue entries and index keys that are missing, as the walk at open hands them on in log order.
//!
//! What is there already is passed over. Where a queue lacks entries that the walk does not bring, it is noted as
//! lost: a second walk, from further back, brings them.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use crate::{
    derive::{
        derived_entries::{ChunkDerived, Derived, Part},
        derived_files::DerivedFiles,
        set_aside::Cure,
    },
    error::{Result, StoreError},
    files::{anchor::Anchor, disk::Disk},
    index::index_file::IndexKey,
    log::damage::{Damage, DamageReason},
    queues::{
        admin_files::QueueName,
        consume_queue::{ConsumeQueue, ENTRY_LEN, NO_BATCH, QueueEntry},
    },
    record::message::MIN_RECORD_LEN,
};

/// Bytes of the log between two writes: with thousands of queues each write is small anyway.
const ROUND_BYTES: u64 = 32 << 20;
/// Queue offsets beyond that are no queue offsets: their entries would lie at no byte.
const MAX_QUEUE_OFFSET: u64 = i64::MAX as u64 / ENTRY_LEN;

/// Entries of one queue, in order and without gap, not written yet.
struct RebuildBatch<D: Disk> {
    queue: Arc<ConsumeQueue<D>>,
    first: u64,
    entries: Vec<u8>,
}

impl<D: Disk> RebuildBatch<D> {
    fn next(&self) -> u64 {
        self.first + self.entries.len() as u64 / ENTRY_LEN
    }

    /// Writes as many entries as the disk has space for. Returns the queue offset after them.
    fn write_pieces(&self) -> u64 {
        const PIECE: u64 = 25;
        let pieces = self.entries.chunks((PIECE * ENTRY_LEN) as usize);
        let mut written = (self.first..).step_by(PIECE as usize).zip(pieces);
        // Where all can be written now, there was no space a moment ago: the next try finds it done.
        written
            .find(|(first, piece)| self.queue.write(*first, piece).is_err())
            .map_or(self.first, |(first, _)| first)
    }
}

/// What one walk brings.
pub(crate) struct Rebuild<'a, D: Disk> {
    files: &'a DerivedFiles<D>,
    /// Where the walk began: a queue without entries may have lost some before it.
    from: u64,
    /// Keys of records before it are in the index; the record at it may be there in part.
    index_from: u64,
    /// The walk begins where the entries of every queue end: what is missing now was in no record.
    is_thorough: bool,
    batches: Vec<RebuildBatch<D>>,
    keys: Vec<IndexKey>,
    buffer: Vec<u8>,
    round_bytes: u64,
    /// Records appended as one whose last has not come yet, and where they begin.
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

    /// Takes what the next records of the log lead to.
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

    /// Takes the records held back: the last one they belong to has come, or was there before a damage.
    pub(crate) fn take_continued(&mut self) -> Result<()> {
        for derived in self.continued.take().into_iter().flat_map(|(_, held)| held) {
            self.take_derived(derived)?;
        }
        Ok(())
    }

    /// Where the records begin that wait for their last one, if any do.
    pub(crate) fn continued_from(&self) -> Option<u64> {
        self.continued.as_ref().map(|(from, _)| *from)
    }

    fn take_derived(&mut self, derived: Derived) -> Result<()> {
        self.messages += derived.messages;
        self.last_timestamp = self.last_timestamp.max(derived.last_timestamp);
        self.last = derived.last.or(self.last);
        for part in &derived.parts {
            self.take_part(part)?;
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

    fn take_part(&mut self, part: &Part) -> Result<()> {
        let queue = self.files.queues.find_or_make(&part.topic, part.queue_id);
        if queue.marks.is_aside() {
            return Ok(());
        }
        queue.begin_anew(part.first, part.physical_offset);
        let known = self.batch_of(&queue).map_or(queue.max_offset(), RebuildBatch::next);
        let end = part.first.saturating_add(part.count);
        if end <= known || end > MAX_QUEUE_OFFSET {
            return Ok(());
        }
        if part.first > known {
            match self.bridge(&queue, known, part) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.files.aside.put_unread(&queue, &error);
                    return Ok(());
                }
            }
        }
        let skipped = known.saturating_sub(part.first);
        let entries = part.entries.get((skipped * ENTRY_LEN) as usize..).unwrap_or_default();
        self.redone += part.count - skipped;
        self.append(queue, part.first + skipped, entries);
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

    /// Makes good for offsets that no record of the walk has. Says whether the part may follow.
    fn bridge(&mut self, queue: &Arc<ConsumeQueue<D>>, known: u64, part: &Part) -> Result<bool> {
        let name = || (Box::from(queue.topic()), queue.queue_id());
        if self.lost.contains(&name()) {
            return Ok(false);
        }
        let Some(last_end) = self.last_end(queue)? else {
            // From the log's start on, what is missing is what retention took.
            let is_first = self.is_thorough || self.from <= self.files.log.start();
            if !is_first {
                self.lost.insert(name());
            }
            return Ok(is_first);
        };
        let damage = self.files.log.damages.overlapping(&(last_end..part.physical_offset));
        let from = match &damage {
            Some(damage) => damage.start.max(last_end),
            None if self.is_thorough => last_end,
            None => {
                self.lost.insert(name());
                return Ok(false);
            }
        };
        let missing = part.first - known;
        let room = part.physical_offset.saturating_sub(last_end) / u64::from(MIN_RECORD_LEN);
        if missing > room {
            self.report_impossible(part);
            return Ok(false);
        }
        let lost: Vec<u8> =
            (from..).take(missing as usize).flat_map(|at| QueueEntry::leading_nowhere(at).encode()).collect();
        self.append(Arc::clone(queue), known, &lost);
        Ok(true)
    }

    /// A record whose queue offset cannot be: its head is damaged, which its checksum does not cover.
    fn report_impossible(&self, part: &Part) {
        let files = self.files.log.files();
        let entry = QueueEntry::decode(&part.entries);
        self.files.log.damages.add(Damage {
            file: files.path_at(part.physical_offset).unwrap_or_default(),
            range: part.physical_offset..entry.map_or(part.physical_offset, QueueEntry::end),
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

    /// Writes what was taken, and lets it be read.
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
            self.files.aside.put_index(from, Cure::Add, &error);
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
