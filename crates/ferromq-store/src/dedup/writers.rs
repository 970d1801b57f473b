//! The numbered messages in the log, so that a message sent again is not stored again.
//!
//! For each writer, partition, topic and queue the table holds the highest epoch and row appended. A writer sends to
//! each queue in rising order, so a message that is not higher is a duplicate. The table is guarded by the append lock.
//! At open it is restored from the snapshot and the records behind it (`sequences_file`).

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    config::StoreConfig,
    dedup::sequence::{Numbered, Sequence},
    error::{Result, StoreError},
    files::write_retry::WriteRetry,
};

/// Smallest table that is searched for expired entries.
const LEAST_PURGED: usize = 1024;

/// Smallest clock step that makes a snapshot due.
const STEP_MS: u64 = 1_000;

/// Names copied at once.
const NAMES_A_PIECE: usize = 4096;
/// After this many interrupted copies, the table is copied at once.
const MOST_COPIES: usize = 4;

/// Writer, partition, topic and queue; names are stored as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WriterKey {
    pub(crate) writer: u32,
    pub(crate) topic: u32,
    pub(crate) partition: u32,
    pub(crate) queue_id: u32,
}

/// The highest row appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HighestRow {
    pub(crate) epoch: u64,
    pub(crate) row: u64,
    /// When the row was stored, by the clock without its steps ([`crate::time::clock::Clock::steady_ms`]), so that a
    /// step changes no age. A snapshot holds the wall time instead.
    pub(crate) at_ms: i64,
}

/// Number of parts of a table, each short enough to copy at once.
const PARTS: usize = 256;

/// The rows of a table in parts, so that a table in use can be copied part by part.
#[derive(Debug, Clone)]
pub(crate) struct SequenceRows {
    parts: Vec<HashMap<WriterKey, HighestRow>>,
    len: usize,
}

impl Default for SequenceRows {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| HashMap::default()).collect(), len: 0 }
    }
}

impl SequenceRows {
    fn part_of(key: &WriterKey) -> usize {
        // Writers have few partitions, each with one or two queues.
        let mixed = [key.topic, key.partition, key.queue_id]
            .iter()
            .fold(key.writer, |mixed, number| mixed.wrapping_mul(31).wrapping_add(*number));
        mixed as usize % PARTS
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&WriterKey, &HighestRow)> {
        self.parts.iter().flatten()
    }

    fn get(&self, key: &WriterKey) -> Option<&HighestRow> {
        self.parts.get(Self::part_of(key))?.get(key)
    }

    fn insert(&mut self, key: WriterKey, highest: HighestRow) {
        if let Some(part) = self.parts.get_mut(Self::part_of(&key)) {
            self.len += usize::from(part.insert(key, highest).is_none());
        }
    }

    fn remove(&mut self, key: &WriterKey) {
        if let Some(part) = self.parts.get_mut(Self::part_of(key)) {
            self.len -= usize::from(part.remove(key).is_some());
        }
    }

    fn retain(&mut self, is_kept: impl Fn(&WriterKey, &HighestRow) -> bool) {
        for part in &mut self.parts {
            part.retain(|key, highest| is_kept(key, highest));
        }
        self.len = self.parts.iter().map(HashMap::len).sum();
    }
}

/// Names of writers and topics, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriterNames {
    numbers: HashMap<Arc<str>, u32>,
    pub(crate) texts: Vec<Arc<str>>,
}

impl WriterNames {
    pub(crate) fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let (text, number) = (Arc::<str>::from(text), self.texts.len() as u32);
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    fn find(&self, text: &str) -> Option<u32> {
        self.numbers.get(text).copied()
    }
}

/// The highest rows of all writers.
#[derive(Debug, Clone, Default)]
pub(crate) struct SequenceTable {
    pub(crate) names: WriterNames,
    pub(crate) rows: SequenceRows,
    /// Lower bound of the rows' times.
    oldest_ms: i64,
    /// Number of entries at which expired ones are purged.
    purge_at: usize,
    /// How often the names were renumbered.
    renumbered: u64,
}

impl SequenceTable {
    pub(crate) fn of(names: WriterNames) -> Self {
        Self { names, ..Self::default() }
    }

    fn key(&self, numbered: &Numbered<'_>) -> Option<WriterKey> {
        let Numbered { sequence: Sequence { writer, partition, .. }, topic, queue_id } = *numbered;
        Some(WriterKey {
            writer: self.names.find(writer)?,
            topic: self.names.find(topic)?,
            partition,
            queue_id,
        })
    }

    fn new_key(&mut self, numbered: &Numbered<'_>) -> WriterKey {
        let Numbered { sequence: Sequence { writer, partition, .. }, topic, queue_id } = *numbered;
        WriterKey { writer: self.names.number(writer), topic: self.names.number(topic), partition, queue_id }
    }

    /// Notes a row appended at `at_ms`, with entries older than `horizon_ms` expired. Lower rows change nothing.
    pub(crate) fn note(&mut self, numbered: &Numbered<'_>, at_ms: i64, horizon_ms: i64) {
        let key = self.new_key(numbered);
        // A writer may number anew after the window; the old number must not count.
        if self.rows.get(&key).is_some_and(|known| known.at_ms < horizon_ms) {
            self.rows.remove(&key);
        }
        let Sequence { epoch, row, .. } = numbered.sequence;
        self.put(key, HighestRow { epoch, row, at_ms });
    }

    /// As [`Self::note`], for a key of this table.
    pub(crate) fn put(&mut self, key: WriterKey, highest: HighestRow) {
        let is_lower = |known: &HighestRow| (highest.epoch, highest.row) <= (known.epoch, known.row);
        if !self.rows.get(&key).is_some_and(is_lower) {
            self.set(key, highest);
        }
    }

    fn set(&mut self, key: WriterKey, highest: HighestRow) {
        self.oldest_ms = if self.rows.is_empty() { highest.at_ms } else { self.oldest_ms.min(highest.at_ms) };
        self.rows.insert(key, highest);
    }

    /// Limits the times of all rows to `latest_ms`, then adds `by_ms`. A wrong clock thus keeps no row longer than the
    /// window.
    pub(crate) fn move_times(&mut self, latest_ms: i64, by_ms: i64) {
        for highest in self.rows.parts.iter_mut().flat_map(HashMap::values_mut) {
            highest.at_ms = highest.at_ms.min(latest_ms).saturating_add(by_ms);
        }
        self.oldest_ms = self.oldest_ms.min(latest_ms).saturating_add(by_ms);
    }

    fn forget(&mut self, queues: &[(&str, u32)]) {
        let gone: Vec<_> = queues
            .iter()
            .filter_map(|(topic, queue_id)| Some((self.names.find(topic)?, *queue_id)))
            .collect();
        if !gone.is_empty() {
            self.rows.retain(|key, _| !gone.contains(&(key.topic, key.queue_id)));
        }
    }

    /// Removes entries stored before `horizon_ms`, and unused names.
    pub(crate) fn purge(&mut self, horizon_ms: i64) {
        if self.oldest_ms < horizon_ms {
            self.rows.retain(|_, highest| highest.at_ms >= horizon_ms);
            self.oldest_ms = self.rows.iter().map(|(_, highest)| highest.at_ms).min().unwrap_or(i64::MAX);
            let mut kept =
                Self { oldest_ms: self.oldest_ms, renumbered: self.renumbered + 1, ..Self::default() };
            for (key, highest) in self.rows.iter() {
                let texts = [key.writer, key.topic].map(|number| self.names.texts.get(number as usize));
                if let [Some(writer), Some(topic)] = texts {
                    let (writer, topic) = (kept.names.number(writer), kept.names.number(topic));
                    kept.rows.insert(WriterKey { writer, topic, ..*key }, *highest);
                }
            }
            *self = kept;
        }
        self.purge_at = (self.rows.len() * 2).max(LEAST_PURGED);
    }
}

/// The changes of an append, to undo them if it fails.
#[derive(Debug, Default)]
pub(crate) struct TakenSequences {
    /// For each message, whether it must be stored.
    pub(crate) is_new: Vec<bool>,
    before: Vec<(WriterKey, Option<HighestRow>)>,
}

/// The numbered messages of an open store.
pub(crate) struct Dedup {
    /// Locked after the append lock.
    table: Mutex<SequenceTable>,
    window_ms: i64,
    limit: usize,
    duplicates: AtomicU64,
    /// The snapshot on disk covers the log up to here.
    saved_to: AtomicU64,
    /// Clock steps at the time of the snapshot, in milliseconds.
    saved_stepped_ms: AtomicI64,
    pub(crate) trouble: WriteRetry,
}

impl Dedup {
    pub(crate) fn new(config: &StoreConfig) -> Self {
        Self {
            table: Mutex::default(),
            window_ms: i64::try_from(config.dedup_window.as_millis()).unwrap_or(i64::MAX),
            limit: config.dedup_writers as usize,
            duplicates: AtomicU64::new(0),
            saved_to: AtomicU64::new(0),
            saved_stepped_ms: AtomicI64::new(0),
            trouble: WriteRetry::default(),
        }
    }

    /// Decides for each message whether to store it, and notes the new ones as appended. Call it under the append lock;
    /// [`Self::give_back`] undoes it.
    ///
    /// Errors: `DedupFull` if there is no room for another writer, partition and queue.
    pub(crate) fn take(&self, messages: &[Option<Numbered<'_>>], now_ms: i64) -> Result<TakenSequences> {
        let mut table = self.table.lock();
        let mut taken = TakenSequences { is_new: Vec::with_capacity(messages.len()), before: Vec::new() };
        let horizon_ms = self.horizon(now_ms);
        for numbered in messages {
            let Some(numbered) = numbered else {
                taken.is_new.push(true);
                continue;
            };
            let mut key = table.key(numbered);
            let known = key.and_then(|key| table.rows.get(&key).copied());
            let Sequence { epoch, row, .. } = numbered.sequence;
            if known.is_some_and(|k| k.at_ms >= horizon_ms && (epoch, row) <= (k.epoch, k.row)) {
                taken.is_new.push(false);
                continue;
            }
            if known.is_none() {
                if table.rows.len() >= table.purge_at.min(self.limit) && taken.before.is_empty() {
                    table.purge(horizon_ms);
                    // The names may have other numbers now.
                    key = None;
                }
                if table.rows.len() >= self.limit {
                    undo(&mut table, &taken);
                    return Err(StoreError::DedupFull { limit: self.limit as u64 });
                }
            }
            let key = key.unwrap_or_else(|| table.new_key(numbered));
            taken.before.push((key, known));
            table.set(key, HighestRow { epoch, row, at_ms: now_ms });
            taken.is_new.push(true);
        }
        Ok(taken)
    }

    /// Undoes a failed append.
    pub(crate) fn give_back(&self, taken: &TakenSequences) {
        undo(&mut self.table.lock(), taken);
    }

    /// Forgets the messages of deleted queues. Call it under the append lock.
    pub(crate) fn forget(&self, queues: &[(&str, u32)]) {
        self.table.lock().forget(queues);
    }

    pub(crate) fn count_duplicates(&self, taken: &TakenSequences) {
        let count = taken.is_new.iter().filter(|is_new| !**is_new).count() as u64;
        self.duplicates.fetch_add(count, Ordering::Relaxed);
    }

    /// Number of duplicates refused since open.
    pub(crate) fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Number of writers, partitions and queues in the table.
    pub(crate) fn entries(&self) -> u64 {
        self.table.lock().rows.len() as u64
    }

    /// Messages stored before this time are expired.
    pub(crate) fn horizon(&self, now_ms: i64) -> i64 {
        now_ms.saturating_sub(self.window_ms)
    }

    /// Copies the table in pieces, each under the append lock taken by `hold`, so that no append waits for more than a
    /// piece.
    ///
    /// The copy has all messages appended before the call, and perhaps some appended during it.
    pub(crate) fn copy<G>(&self, hold: impl Fn() -> G) -> SequenceTable {
        for _ in 0..MOST_COPIES {
            if let Some(copy) = self.try_copy(&hold) {
                return copy;
            }
        }
        // Frequent renumbering, for example at the table's limit, interrupts each copy.
        let _held = hold();
        self.table.lock().clone()
    }

    /// `None` if the names were renumbered meanwhile.
    fn try_copy<G>(&self, hold: &impl Fn() -> G) -> Option<SequenceTable> {
        let mut copy = SequenceTable::default();
        let renumbered = {
            let table = self.table.lock();
            (copy.oldest_ms, copy.purge_at) = (table.oldest_ms, table.purge_at);
            table.renumbered
        };
        let locked = || {
            let held = hold();
            let table = self.table.lock();
            (table.renumbered == renumbered).then_some((held, table))
        };
        for (number, part) in copy.rows.parts.iter_mut().enumerate() {
            let (_held, table) = locked()?;
            *part = table.rows.parts.get(number).cloned().unwrap_or_default();
        }
        copy.rows.len = copy.rows.parts.iter().map(HashMap::len).sum();
        // Names are only added, so these cover all copied rows.
        let count = locked()?.1.names.texts.len();
        while copy.names.texts.len() < count {
            let known = copy.names.texts.len();
            let piece: Vec<Arc<str>> = {
                let (_held, table) = locked()?;
                table.names.texts.iter().skip(known).take(NAMES_A_PIECE).cloned().collect()
            };
            for name in &piece {
                copy.names.number(name);
            }
        }
        Some(copy)
    }

    pub(crate) fn begin(&self, table: SequenceTable, saved_to: u64, stepped_ms: i64) {
        *self.table.lock() = table;
        self.set_saved(saved_to, stepped_ms);
    }

    /// Whether the clock stepped since the snapshot, whose times then look older than they are.
    pub(crate) fn is_stepped(&self, stepped_ms: i64) -> bool {
        let moved = stepped_ms.abs_diff(self.saved_stepped_ms.load(Ordering::Acquire));
        moved >= STEP_MS && self.entries() > 0
    }

    pub(crate) fn saved_to(&self) -> u64 {
        self.saved_to.load(Ordering::Acquire)
    }

    pub(crate) fn set_saved(&self, end: u64, stepped_ms: i64) {
        self.saved_stepped_ms.store(stepped_ms, Ordering::Release);
        self.saved_to.store(end, Ordering::Release);
    }
}

fn undo(table: &mut SequenceTable, taken: &TakenSequences) {
    for (key, before) in taken.before.iter().rev() {
        match before {
            Some(highest) => table.rows.insert(*key, *highest),
            None => table.rows.remove(key),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn numbered(writer: &str, partition: u32) -> Numbered<'_> {
        let sequence = Sequence { writer, partition, epoch: 1, row: 7 };
        Numbered { sequence, topic: "orders", queue_id: partition % 8 }
    }

    fn name_of(table: &SequenceTable, key: &WriterKey) -> (Arc<str>, u32) {
        (Arc::clone(&table.names.texts[key.writer as usize]), key.partition)
    }

    #[test]
    fn a_copy_is_made_in_pieces_between_which_appends_go_on() {
        const BEFORE: u32 = 20_000;
        let config =
            StoreConfig { dedup_window: std::time::Duration::from_millis(1000), ..StoreConfig::default() };
        for must_renumber in [false, true] {
            let dedup = Dedup::new(&config);
            dedup.take(&[Some(numbered("gone", 0))], 0).unwrap();
            for partition in 0..BEFORE {
                dedup.take(&[Some(numbered(&format!("w{}", partition % 100), partition))], 900).unwrap();
            }
            let (pieces, lens) = (Cell::new(0_u32), Cell::new(0));
            let copy = dedup.copy(|| {
                // Appends happen before each piece, and expired entries are purged once.
                pieces.set(pieces.get() + 1);
                let now = if must_renumber && pieces.get() == 100 { 1100 } else { 950 };
                if now == 1100 {
                    dedup.table.lock().purge(dedup.horizon(now));
                }
                dedup.take(&[Some(numbered(&format!("new{}", pieces.get()), pieces.get()))], now).unwrap();
                let parts = dedup.table.lock().rows.parts.iter().map(HashMap::len).max();
                lens.set(parts.unwrap_or(0).max(lens.get()));
            });
            assert!(pieces.get() > PARTS as u32, "{}", pieces.get());
            assert!(lens.get() < BEFORE as usize / 50, "a piece is a small part: {}", lens.get());
            let known: std::collections::HashSet<_> =
                copy.rows.iter().map(|(key, _)| name_of(&copy, key)).collect();
            for partition in 0..BEFORE {
                assert!(known.contains(&(format!("w{}", partition % 100).into(), partition)), "{partition}");
            }
            assert_eq!(known.contains(&("gone".into(), 0)), !must_renumber);
            assert_eq!(copy.rows.len(), copy.rows.iter().count());
        }
    }
}
