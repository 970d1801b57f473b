//! Which numbered messages are in the log already, so that one sent again is not stored again.
//!
//! For each writer, partition, topic and queue the highest epoch and row that was appended: whoever numbers messages
//! sends them to a queue in rising order, so what is not higher is there. Looked up and raised under the append's lock;
//! at open it comes from the snapshot and the records behind it (`dedup_file`).

use std::{
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    Result, StoreConfig, StoreError,
    fast_hash::FastMap,
    sequence::{Numbered, Sequence},
};

/// Fewer entries are not worth looking for what is out of the window.
const LEAST_PURGED: usize = 1024;

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
    /// When it was stored.
    pub(crate) at_ms: i64,
}

/// Names of writers and topics, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    numbers: FastMap<Arc<str>, u32>,
    pub(crate) texts: Vec<Arc<str>>,
}

impl Names {
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
pub(crate) struct Table {
    pub(crate) names: Names,
    pub(crate) rows: FastMap<Key, Highest>,
    /// No row is older.
    oldest_ms: i64,
    /// With so many entries those out of the window are looked for.
    purge_at: usize,
}

impl Table {
    pub(crate) fn of(names: Names) -> Self {
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
            self.oldest_ms = self.rows.values().map(|highest| highest.at_ms).min().unwrap_or(i64::MAX);
            let mut kept = Self { oldest_ms: self.oldest_ms, ..Self::default() };
            for (key, highest) in &self.rows {
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
    table: Mutex<Table>,
    window_ms: i64,
    limit: usize,
    duplicates: AtomicU64,
    /// The log up to here is in the snapshot on disk.
    saved_to: AtomicU64,
}

impl Dedup {
    pub(crate) fn new(config: &StoreConfig) -> Self {
        Self {
            table: Mutex::default(),
            window_ms: i64::try_from(config.dedup_window.as_millis()).unwrap_or(i64::MAX),
            limit: config.dedup_writers as usize,
            duplicates: AtomicU64::new(0),
            saved_to: AtomicU64::new(0),
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

    /// A copy; consistent with the end of the log where the append's lock is held.
    pub(crate) fn copy(&self) -> Table {
        self.table.lock().clone()
    }

    pub(crate) fn begin(&self, table: Table, saved_to: u64) {
        *self.table.lock() = table;
        self.set_saved_to(saved_to);
    }

    pub(crate) fn saved_to(&self) -> u64 {
        self.saved_to.load(Ordering::Acquire)
    }

    pub(crate) fn set_saved_to(&self, end: u64) {
        self.saved_to.store(end, Ordering::Release);
    }
}

fn undo(table: &mut Table, taken: &Taken) {
    for (key, before) in taken.before.iter().rev() {
        match before {
            Some(highest) => table.rows.insert(*key, *highest),
            None => table.rows.remove(key),
        };
    }
}
