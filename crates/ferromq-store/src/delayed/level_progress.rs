//! How far each delay level is delivered: in memory, and in RocketMQ's file.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    delayed::level_offsets::DelayFile,
    error::Result,
    files::{disk::Disk, store_directory::StoreDirectory},
    log::commit_log::CommitLog,
    queues::{consume_queue::ConsumeQueue, queue_table::ConsumeQueues},
    record::names::SCHEDULE_TOPIC,
    time::clock::Clock,
};

/// The offsets of the delay levels.
pub(crate) struct LevelOffsets<D: Disk> {
    home: Arc<StoreDirectory<D>>,
    log: Arc<CommitLog<D>>,
    queues: Arc<ConsumeQueues<D>>,
    clock: Clock,
    level_count: u32,
    /// Next queue offset to deliver by level; `None` while delivery is not running.
    offsets: Mutex<Option<BTreeMap<u32, u64>>>,
    /// Levels whose queue end was unknown when the offsets were corrected.
    unsettled: Mutex<BTreeSet<u32>>,
    /// Whether the offsets changed since they were written.
    is_file_due: AtomicBool,
    /// Whether the file holds offsets past the end of their queues that could not be corrected for lack of space. After
    /// a kill, new waiting messages would count as delivered.
    is_file_wrong: AtomicBool,
    /// The content on disk; locked by the writing thread.
    file: Mutex<DelayFile>,
}

impl<D: Disk> LevelOffsets<D> {
    pub(crate) fn new(
        home: Arc<StoreDirectory<D>>,
        log: Arc<CommitLog<D>>,
        queues: Arc<ConsumeQueues<D>>,
        clock: Clock,
        level_count: u32,
    ) -> Self {
        let (offsets, unsettled, file) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (is_file_due, is_file_wrong) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { home, log, queues, clock, level_count, offsets, unsettled, is_file_due, is_file_wrong, file }
    }
}

impl<D: Disk> LevelOffsets<D> {
    /// Writes changed offsets, after making the delivered messages durable.
    pub(crate) fn persist(&self) -> Result<()> {
        let _held = self.home.hold()?;
        let mut file = self.file.lock();
        if !self.is_file_due.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let Some(offsets) = self.offsets.lock().clone() else { return Ok(()) };
        let mut newer = file.clone();
        newer.advance(offsets, self.clock.now_ms());
        let written = self.log.flush().and_then(|_| newer.save(&self.home.disk, &self.home.root));
        match written {
            Ok(()) => {
                *file = newer;
                self.is_file_wrong.store(false, Ordering::Release);
            }
            Err(_) => self.is_file_due.store(true, Ordering::Release),
        }
        written
    }

    /// Corrects offsets on disk that lie past the end of their queues. Call it before a message is made to wait; it
    /// costs one atomic load if they are correct. `Full` if there is no space.
    pub(crate) fn correct(&self) -> Result<()> {
        if !self.is_file_wrong() {
            return Ok(());
        }
        self.persist().map_err(|error| self.log.full_or(error, 0))
    }

    /// The offsets of all levels that are configured or have waiting messages, each within its queue. After the log was
    /// cut, messages that replace the lost end must not count as delivered.
    fn corrected(&self, offsets: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
        let names = self.queues.names();
        let waiting = names.iter().filter(|(topic, _)| topic == SCHEDULE_TOPIC).flat_map(|(_, ids)| ids);
        let levels: BTreeSet<u32> =
            (1..=self.level_count).chain(waiting.map(|queue_id| queue_id + 1)).collect();
        let correct = |level: u32| {
            let known = offsets.get(&level).copied();
            let queue = self.queues.find(SCHEDULE_TOPIC, level - 1);
            if let Some(queue) = queue.as_ref().filter(|queue| queue.marks.is_end_unknown()) {
                self.unsettled.lock().insert(level);
                return (level, known.unwrap_or_else(|| queue.min_offset()));
            }
            let (min, max) = queue.map_or((0, 0), |queue| (queue.min_offset(), queue.max_offset()));
            let offset = known.unwrap_or(min).clamp(min, max.max(min));
            if known.is_some_and(|known| known != offset) {
                tracing::warn!(level, known, offset, "delay offset lies outside of its queue: corrected");
            }
            (level, offset)
        };
        levels.into_iter().map(correct).collect()
    }

    /// Corrects the offset of a level whose queue end became known.
    pub(crate) fn settle_level(&self, level: u32, queue: &ConsumeQueue<D>) {
        let mut unsettled = self.unsettled.lock();
        if !unsettled.contains(&level) || queue.marks.is_end_unknown() {
            return;
        }
        unsettled.remove(&level);
        let (end, mut offsets) = (queue.found_end(), self.offsets.lock());
        let known = offsets.as_mut().and_then(|offsets| offsets.get_mut(&level));
        if let Some(known) = known.filter(|known| **known > end) {
            tracing::warn!(level, known, offset = end, "delay offset lies outside of its queue: corrected");
            *known = end;
            self.is_file_due.store(true, Ordering::Release);
        }
    }

    /// Reads the file and corrects it, before any message is delivered or made to wait.
    pub(crate) fn begin(&self) -> Result<()> {
        let file = DelayFile::load(&self.home.disk, &self.home.root)?;
        let offsets = self.corrected(&file.offsets);
        self.is_file_due.store(offsets != file.offsets, Ordering::Release);
        let is_corrected = file.offsets.iter().any(|(level, known)| offsets.get(level) != Some(known));
        *self.file.lock() = file;
        *self.offsets.lock() = Some(offsets);
        self.is_file_wrong.store(is_corrected, Ordering::Release);
        match self.correct() {
            Err(error) if error.is_of_full_disk() => {
                tracing::warn!(%error, "no space to correct delay offsets: delayed messages are refused until there is");
            }
            Err(error) => {
                *self.offsets.lock() = None;
                return Err(error);
            }
            Ok(()) => {}
        }
        Ok(())
    }

    /// Ends the delivery. A wrong file is still corrected before a message is made to wait.
    pub(crate) fn end(&self) {
        if !self.is_file_wrong() {
            *self.offsets.lock() = None;
        }
    }

    pub(crate) fn levels(&self) -> Vec<u32> {
        self.offsets.lock().iter().flat_map(|offsets| offsets.keys().copied()).collect()
    }

    pub(crate) fn offset(&self, level: u32) -> Option<u64> {
        self.offsets.lock().as_ref()?.get(&level).copied()
    }

    pub(crate) fn set_offset(&self, level: u32, offset: u64) {
        if let Some(offsets) = self.offsets.lock().as_mut() {
            offsets.insert(level, offset);
        }
        self.is_file_due.store(true, Ordering::Release);
    }

    /// Next queue offset to deliver of each level, from the file while delivery is not running.
    pub(crate) fn all(&self) -> Result<BTreeMap<u32, u64>> {
        if let Some(offsets) = self.offsets.lock().clone() {
            return Ok(offsets);
        }
        Ok(DelayFile::load(&self.home.disk, &self.home.root)?.offsets)
    }

    /// Like [`Self::all`], in the form of the file.
    pub(crate) fn json(&self) -> Result<String> {
        let Some(offsets) = self.offsets.lock().clone() else {
            return Ok(DelayFile::load(&self.home.disk, &self.home.root)?.encode());
        };
        let mut file = self.file.lock().clone();
        file.offsets = offsets;
        Ok(file.encode())
    }

    /// Whether the offsets on disk must be corrected before a message is made to wait.
    pub(crate) fn is_file_wrong(&self) -> bool {
        self.is_file_wrong.load(Ordering::Acquire)
    }
}
