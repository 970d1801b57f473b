//! Which numbered messages are in the log already, so that one sent again is not stored again.
//!
//! For each writer, partition, topic and queue the highest epoch and row that was appended: whoever numbers messages
//! sends them to a queue in rising order, so what is not higher is there. Looked up and raised under the append's lock;
//! at open it comes from the snapshot and the records behind it (`sequences_file`).

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

/// Fewer entries are not worth looking for what is out of the window.
const LEAST_PURGED: usize = 1024;

/// A step of the clock that is worth a snapshot.
const STEP_MS: u64 = 1_000;

/// Names copied at once.
const NAMES_A_PIECE: usize = 4096;
/// A copy that was overtaken so often is made at once.
const MOST_COPIES: usize = 4;

/// Whose rows these are, and where they go: names by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) writer: u32,
    pub(crate) topic: u32,
    pub(crate) partition: u32,
    pub(crate) queue_id: u32,
}

/// The highest row that was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Highest {
    pub(crate) epoch: u64,
    pub(crate) row: u64,
    /// When it was stored, by the clock without its steps ([`crate::time::clock::Clock::steady_ms`]): a step changes no one's age. In a
    /// snapshot by the wall clock as it was when the snapshot was taken.
    pub(crate) at_ms: i64,
}

/// How many parts a table has: a copy of one is short work.
const PARTS: usize = 256;

/// The rows of a table in parts, so that one that is in use can be copied part by part.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    parts: Vec<HashMap<Key, Highest>>,
    len: usize,
}

impl Default for Rows {
    fn default() -> Self {
        Self { parts: (0..PARTS).map(|_| HashMap::default()).collect(), len: 0 }
    }
}

impl Rows {
    fn part_of(key: &Key) -> usize {
        // Writers have few partitions, and each a queue or two.
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

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Highest)> {
        self.parts.iter().flatten()
    }

    fn get(&self, key: &Key) -> Option<&Highest> {
        self.parts.get(Self::part_of(key))?.get(key)
    }

    fn insert(&mut self, key: Key, highest: Highest) {
        if let Some(part) = self.parts.get_mut(Self::part_of(&key)) {
            self.len += usize::from(part.insert(key, highest).is_none());
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(part) = self.parts.get_mut(Self::part_of(key)) {
            self.len -= usize::from(part.remove(key).is_some());
        }
    }

    fn retain(&mut self, is_kept: impl Fn(&Key, &Highest) -> bool) {
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

/// What is known of all writers.
#[derive(Debug, Clone, Default)]
pub(crate) struct SequenceTable {
    pub(crate) names: WriterNames,
    pub(crate) rows: Rows,
    /// No row is older.
    oldest_ms: i64,
    /// With so many entries those out of the window are looked for.
    purge_at: usize,
    /// How often names got other numbers.
    renumbered: u64,
}

impl SequenceTable {
    pub(crate) fn of(names: WriterNames) -> Self {
        Self { names, ..Self::default() }
    }

    fn key(&self, numbered: &Numbered<'_>) -> Option<Key> {
        let Numbered { sequence: Sequence { writer, partition, .. }, topic, queue_id } = *numbered;
        Some(Key { writer: self.names.find(writer)?, topic: self.names.find(topic)?, partition, queue_id })
    }

    fn new_key(&mut self, numbered: &Numbered<'_>) -> Key {
        let Numbered { sequence: Sequence { writer, partition, .. }, topic, queue_id } = *numbered;
        Key { writer: self.names.number(writer), topic: self.names.number(topic), partition, queue_id }
    }

    /// Says that a row was appended at `at_ms`, when what is older than `horizon_ms` was forgotten. Lower ones change
    /// nothing.
    pub(crate) fn note(&mut self, numbered: &Numbered<'_>, at_ms: i64, horizon_ms: i64) {
        let key = self.new_key(numbered);
        // Who numbers anew after the window must be known by the new numbers.
        if self.rows.get(&key).is_some_and(|known| known.at_ms < horizon_ms) {
            self.rows.remove(&key);
        }
        let Sequence { epoch, row, .. } = numbered.sequence;
        self.put(key, Highest { epoch, row, at_ms });
    }

    /// As [`Self::note`], for a key of this table.
    pub(crate) fn put(&mut self, key: Key, highest: Highest) {
        let is_lower = |known: &Highest| (highest.epoch, highest.row) <= (known.epoch, known.row);
        if self.rows.get(&key).is_some_and(is_lower) {
            return;
        }
        self.oldest_ms = if self.rows.is_empty() { highest.at_ms } else { self.oldest_ms.min(highest.at_ms) };
        self.rows.insert(key, highest);
    }

    /// Moves the times of all rows by `by_ms`, after those later than `latest_ms` were set to that: no clock that was
    /// wrong keeps a row for longer than the window.
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

    /// Forgets what was stored before `horizon_ms`, and the names nobody has any more.
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
                    kept.rows.insert(Key { writer, topic, ..*key }, *highest);
                }
            }
            *self = kept;
        }
        self.purge_at = (self.rows.len() * 2).max(LEAST_PURGED);
    }
}

/// What an append took of the table, to be given back where it fails.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Of each message, whether it is to be stored.
    pub(crate) is_new: Vec<bool>,
    before: Vec<(Key, Option<Highest>)>,
}

/// The table of an open store.
pub(crate) struct Dedup {
    /// Locked under the append's lock, never the other way.
    table: Mutex<SequenceTable>,
    window_ms: i64,
    limit: usize,
    duplicates: AtomicU64,
    /// The log up to here is in the snapshot on disk.
    saved_to: AtomicU64,
    /// How far the clock had stepped when it was taken.
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

    /// Decides for each message whether it is to be stored, and takes those that are as appended. To be called under
    /// the append's lock; [`Self::give_back`] undoes it.
    ///
    /// Errors: `DedupFull` where one is of a writer, partition and queue that has no place any more.
    pub(crate) fn take(&self, messages: &[Option<Numbered<'_>>], now_ms: i64) -> Result<Taken> {
        let mut table = self.table.lock();
        let mut taken = Taken { is_new: Vec::with_capacity(messages.len()), before: Vec::new() };
        let horizon_ms = self.horizon(now_ms);
        for numbered in messages {
            let Some(numbered) = numbered else {
                taken.is_new.push(true);
                continue;
            };
            let known = table.key(numbered).and_then(|key| table.rows.get(&key).copied());
            let Sequence { epoch, row, .. } = numbered.sequence;
            if known.is_some_and(|k| k.at_ms >= horizon_ms && (epoch, row) <= (k.epoch, k.row)) {
                taken.is_new.push(false);
                continue;
            }
            if known.is_none() {
                if table.rows.len() >= table.purge_at.min(self.limit) && taken.before.is_empty() {
                    table.purge(horizon_ms);
                }
                if table.rows.len() >= self.limit {
                    undo(&mut table, &taken);
                    return Err(StoreError::DedupFull { limit: self.limit as u64 });
                }
            }
            let key = table.new_key(numbered);
            taken.before.push((key, known));
            // What is out of the window may be higher.
            table.rows.remove(&key);
            table.put(key, Highest { epoch, row, at_ms: now_ms });
            taken.is_new.push(true);
        }
        Ok(taken)
    }

    /// The append failed: nothing of it is in the log.
    pub(crate) fn give_back(&self, taken: &Taken) {
        undo(&mut self.table.lock(), taken);
    }

    /// Forgets what was appended to queues that are deleted. To be called under the append's lock.
    pub(crate) fn forget(&self, queues: &[(&str, u32)]) {
        self.table.lock().forget(queues);
    }

    pub(crate) fn count_duplicates(&self, taken: &Taken) {
        let count = taken.is_new.iter().filter(|is_new| !**is_new).count() as u64;
        self.duplicates.fetch_add(count, Ordering::Relaxed);
    }

    /// Messages that were sent again and not stored, since open.
    pub(crate) fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Writers, partitions and queues that are remembered.
    pub(crate) fn entries(&self) -> u64 {
        self.table.lock().rows.len() as u64
    }

    /// What was stored before is forgotten.
    pub(crate) fn horizon(&self, now_ms: i64) -> i64 {
        now_ms.saturating_sub(self.window_ms)
    }

    /// A copy made piece by piece, each while `hold` holds the append's lock: no append waits for more than a piece.
    ///
    /// All is in it that was appended before the call; of what was appended meanwhile some may be.
    pub(crate) fn copy<G>(&self, hold: impl Fn() -> G) -> SequenceTable {
        for _ in 0..MOST_COPIES {
            if let Some(copy) = self.try_copy(&hold) {
                return copy;
            }
        }
        // Names get other numbers all the time, as where the table is at its limit.
        let _held = hold();
        self.table.lock().clone()
    }

    /// `None` where names got other numbers meanwhile.
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
        // Those of all rows copied: names are only added.
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

    /// Says whether the clock stepped since the snapshot was taken: its times look older than they are.
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

fn undo(table: &mut SequenceTable, taken: &Taken) {
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

    fn name_of(table: &SequenceTable, key: &Key) -> (Arc<str>, u32) {
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
                // Others append before each piece, and what is out of the window goes once.
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
