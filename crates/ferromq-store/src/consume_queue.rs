//! The 20-byte entries of one (topic, queue): queue offset → physical offset, size, tag hash.
//!
//! Written only by the dispatching thread, read by everyone below the published max offset. It never
//! opens the commit log; what an entry leads to is the reader's business.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;

use crate::{
    Allocation, Disk, Region, Result, StoreConfig, StoreError, mapped_file::MappedFile,
    mapped_file_queue::MappedFileQueue, queue_list::Extent,
};

/// Bytes of an entry: physical offset 8, size 4, tag hash 8, all big-endian.
pub(crate) const ENTRY_LEN: u64 = 20;
const ENTRY: usize = ENTRY_LEN as usize;
/// The size RocketMQ writes into entries that only fill the space before the first real one.
const FILLER_SIZE: u32 = i32::MAX as u32;
/// A queue that takes part in no round.
pub(crate) const NO_BATCH: u32 = u32::MAX;

/// One entry of a consume queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) physical_offset: u64,
    pub(crate) size: u32,
    pub(crate) tag_hash: i64,
}

impl Entry {
    pub(crate) fn encode(self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        let (offset, rest) = bytes.split_at_mut(8);
        let (size, hash) = rest.split_at_mut(4);
        offset.copy_from_slice(&self.physical_offset.to_be_bytes());
        size.copy_from_slice(&self.size.to_be_bytes());
        hash.copy_from_slice(&self.tag_hash.to_be_bytes());
        bytes
    }

    /// Decodes the entry at the start of `bytes`; `None` where no entry was written.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (offset, rest) = bytes.split_first_chunk::<8>()?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        let (hash, _) = rest.split_first_chunk::<8>()?;
        let entry = Self {
            physical_offset: u64::from_be_bytes(*offset),
            size: u32::from_be_bytes(*size),
            tag_hash: i64::from_be_bytes(*hash),
        };
        (entry.size > 0 && entry.size <= FILLER_SIZE && entry.physical_offset <= i64::MAX as u64)
            .then_some(entry)
    }

    /// End of the record in the commit log.
    pub(crate) fn end(self) -> u64 {
        self.physical_offset + u64::from(self.size)
    }

    fn is_filler(self) -> bool {
        self.size == FILLER_SIZE
    }
}

/// One queue of one topic.
pub(crate) struct ConsumeQueue<D: Disk> {
    topic: Box<str>,
    queue_id: u32,
    files: MappedFileQueue<D>,
    min_offset: AtomicU64,
    /// Published after the entries below it are written.
    max_offset: AtomicU64,
    /// The next queue offset to give out; only touched under the append lock.
    next_offset: AtomicU64,
    /// Entries below it are durable.
    flushed: AtomicU64,
    /// Listed among the queues that must be flushed.
    is_dirty: AtomicBool,
    /// The queue's place in the current round of the dispatcher, which alone uses it.
    pub(crate) batch: AtomicU32,
}

impl<D: Disk> ConsumeQueue<D> {
    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn queue_id(&self) -> u32 {
        self.queue_id
    }

    /// Entries below it are durable, perhaps more.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    pub(crate) fn extent(&self) -> Extent {
        Extent { min_offset: self.min_offset(), max_offset: self.max_offset() }
    }

    pub(crate) fn min_offset(&self) -> u64 {
        self.min_offset.load(Ordering::Acquire)
    }

    pub(crate) fn max_offset(&self) -> u64 {
        self.max_offset.load(Ordering::Acquire)
    }

    /// Gives out the next queue offset. Only under the append lock.
    pub(crate) fn take_next_offset(&self) -> u64 {
        let offset = self.next_offset.load(Ordering::Relaxed);
        self.next_offset.store(offset + 1, Ordering::Relaxed);
        offset
    }

    /// Takes back the last offset given out, whose record was not written. Only under the append lock.
    pub(crate) fn give_back_offset(&self) {
        self.next_offset.store(self.next_offset.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// The next queue offset to give out follows the entries there are; for recovery.
    pub(crate) fn continue_after_entries(&self) {
        self.next_offset.store(self.max_offset(), Ordering::Relaxed);
    }

    /// Removes all entries, so that they can be redone from the log's start; for recovery.
    pub(crate) fn clear(&self) -> Result<()> {
        self.files.clear()?;
        self.begin_empty_at(0);
        Ok(())
    }

    /// The queue has no messages any more, but its offsets go on at `offset`; for recovery.
    pub(crate) fn begin_empty_at(&self, offset: u64) {
        for mark in [&self.min_offset, &self.max_offset, &self.flushed] {
            mark.store(offset, Ordering::Release);
        }
    }

    /// The entry at `queue_offset`, where one is published.
    pub(crate) fn entry(&self, queue_offset: u64) -> Option<Entry> {
        (self.min_offset()..self.max_offset())
            .contains(&queue_offset)
            .then(|| self.entry_anywhere(queue_offset))?
    }

    fn entry_anywhere(&self, queue_offset: u64) -> Option<Entry> {
        let at = queue_offset * ENTRY_LEN;
        let file = self.files.find(at)?;
        Entry::decode(file.read(at..at + ENTRY_LEN))
    }

    /// Calls `visit` with queue offset and entry from `from` on until it says `false` or the published end.
    ///
    /// `None` stands for a place where an entry should be and is not.
    pub(crate) fn walk(&self, from: u64, mut visit: impl FnMut(u64, Option<Entry>) -> bool) {
        let end = self.max_offset();
        let mut at = from;
        while at < end {
            let Some(file) = self.files.find(at * ENTRY_LEN) else {
                visit(at, None);
                return;
            };
            let stop = end.min(file.end() / ENTRY_LEN);
            for bytes in file.read(at * ENTRY_LEN..stop * ENTRY_LEN).chunks_exact(ENTRY) {
                if !visit(at, Entry::decode(bytes)) {
                    return;
                }
                at += 1;
            }
            if at < stop {
                return;
            }
        }
    }

    /// Writes entries that follow each other, beginning with the one of `first`. Readers do not see them yet.
    pub(crate) fn write(&self, first: u64, entries: &[u8]) -> Result<()> {
        if first > 0 && self.files.span().is_none() {
            self.begin_at(first)?;
        }
        self.files.write(first * ENTRY_LEN, entries)
    }

    /// The messages before `first` were deleted: their entries are filled as RocketMQ does.
    fn begin_at(&self, first: u64) -> Result<()> {
        let file = self.files.ensure(first * ENTRY_LEN)?;
        let filler = Entry { physical_offset: 0, size: FILLER_SIZE, tag_hash: 0 }.encode();
        let count = (first * ENTRY_LEN - file.base()) / ENTRY_LEN;
        self.files.write(file.base(), &filler.repeat(count as usize))?;
        self.flushed.store(file.base() / ENTRY_LEN, Ordering::Release);
        self.min_offset.store(first, Ordering::Release);
        Ok(())
    }

    /// Lets readers see the entries below `max_offset`. Says whether the queue must be listed for a flush.
    pub(crate) fn publish(&self, max_offset: u64) -> bool {
        self.max_offset.fetch_max(max_offset, Ordering::SeqCst);
        !self.is_dirty.swap(true, Ordering::SeqCst)
    }

    /// Makes the published entries durable.
    pub(crate) fn flush(&self) -> Result<()> {
        // In one order with `publish`: whoever finds the queue listed is seen here, whoever is not lists it again.
        self.is_dirty.swap(false, Ordering::SeqCst);
        let end = self.max_offset.load(Ordering::SeqCst);
        let from = self.flushed.load(Ordering::Acquire);
        let done = self.files.flush(from * ENTRY_LEN..end * ENTRY_LEN);
        match done {
            Ok(()) => self.flushed.store(end.max(from), Ordering::Release),
            Err(_) => self.is_dirty.store(true, Ordering::SeqCst),
        }
        done
    }

    /// Finds the end of the entries and cuts those at or after `limit` in the commit log.
    ///
    /// After an unclean stop holes may lie between entries, so the last file is read through. Where anything
    /// may lie behind the cut it is zeroed, so that no stale entry is ever taken for a new one.
    /// Returns the end of the last record the kept entries lead to.
    pub(crate) fn recover(&self, log_start: u64, limit: u64, was_clean: bool) -> Result<Option<u64>> {
        let files = self.files.snapshot();
        let Some(first) = files.first() else { return Ok(None) };
        let is_kept = |entry: Entry| entry.is_filler() || entry.end() <= limit;
        // The newest file that begins with an entry to keep: those before it were flushed earlier.
        let last = files.iter().rev().find(|file| first_entry(file).is_some_and(is_kept)).unwrap_or(first);
        let mut end = last.base();
        let mut physical_end = 0;
        let mut is_cut = !was_clean;
        for bytes in last.read(last.base()..last.end()).chunks_exact(ENTRY) {
            match Entry::decode(bytes) {
                Some(entry) if is_kept(entry) && (entry.is_filler() || entry.end() > physical_end) => {
                    if !entry.is_filler() {
                        physical_end = entry.end();
                    }
                    end += ENTRY_LEN;
                }
                Some(_) => {
                    is_cut = true;
                    break;
                }
                None => break,
            }
        }
        if is_cut {
            // Flushed at once: after another crash the old bytes must not be back.
            if last.erase(end..last.end())? > end {
                last.flush(end..last.end())?;
            }
        }
        self.files.truncate(end.max(last.base() + 1))?;
        let max_offset = end / ENTRY_LEN;
        self.max_offset.store(max_offset, Ordering::Release);
        self.flushed.store(first.base() / ENTRY_LEN, Ordering::Release);
        self.find_min_offset(first.base() / ENTRY_LEN, max_offset, log_start);
        Ok((physical_end > 0).then_some(physical_end))
    }

    fn find_min_offset(&self, first: u64, end: u64, log_start: u64) {
        let (mut low, mut high) = (first, end);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entry_anywhere(middle) {
                Some(entry) if !entry.is_filler() && entry.physical_offset >= log_start => high = middle,
                _ => low = middle + 1,
            }
        }
        self.min_offset.store(low, Ordering::Release);
    }
}

fn first_entry<R: Region>(file: &MappedFile<R>) -> Option<Entry> {
    Entry::decode(file.read(file.base()..file.base() + ENTRY_LEN))
}

type Table<D> = HashMap<Box<str>, HashMap<u32, Arc<ConsumeQueue<D>>>>;

/// All queues of all topics.
pub(crate) struct ConsumeQueues<D: Disk> {
    disk: D,
    directory: PathBuf,
    staging: PathBuf,
    file_size: u64,
    table: RwLock<Table<D>>,
}

impl<D: Disk> ConsumeQueues<D> {
    /// Opens `consumequeue/TOPIC/QUEUE` of a store directory; entries are recovered later.
    pub(crate) fn load(disk: &D, root: &Path, staging: PathBuf, config: &StoreConfig) -> Result<Self> {
        let queues = Self {
            disk: disk.clone(),
            directory: root.join("consumequeue"),
            staging,
            file_size: config.consume_queue_file_entries.max(1) * ENTRY_LEN,
            table: RwLock::new(HashMap::new()),
        };
        for topic_path in queues.list(&queues.directory)? {
            let Some(topic) = topic_path.file_name().and_then(|name| name.to_str()) else { continue };
            for queue_path in queues.list(&topic_path)? {
                let name = queue_path.file_name().and_then(|name| name.to_str());
                let Some(queue_id) = name.and_then(|name| name.parse().ok()) else { continue };
                let mut queue = queues.make(topic, queue_id);
                queue.files.load()?;
                queues.table.write().entry(topic.into()).or_default().insert(queue_id, Arc::new(queue));
            }
        }
        Ok(queues)
    }

    fn list(&self, directory: &Path) -> Result<Vec<PathBuf>> {
        self.disk.list(directory).map_err(|source| StoreError::io("list", directory, source))
    }

    fn make(&self, topic: &str, queue_id: u32) -> ConsumeQueue<D> {
        let directory = self.directory.join(topic).join(queue_id.to_string());
        ConsumeQueue {
            topic: topic.into(),
            queue_id,
            files: MappedFileQueue::new(
                self.disk.clone(),
                directory,
                self.staging.clone(),
                self.file_size,
                Allocation::Sparse,
            ),
            min_offset: AtomicU64::new(0),
            max_offset: AtomicU64::new(0),
            next_offset: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            is_dirty: AtomicBool::new(false),
            batch: AtomicU32::new(NO_BATCH),
        }
    }

    pub(crate) fn find(&self, topic: &str, queue_id: u32) -> Option<Arc<ConsumeQueue<D>>> {
        self.table.read().get(topic)?.get(&queue_id).map(Arc::clone)
    }

    /// The queue, which begins empty where there is none yet. Its files come with its first entry.
    pub(crate) fn find_or_make(&self, topic: &str, queue_id: u32) -> Arc<ConsumeQueue<D>> {
        if let Some(queue) = self.find(topic, queue_id) {
            return queue;
        }
        let mut table = self.table.write();
        let queues = table.entry(topic.into()).or_default();
        Arc::clone(queues.entry(queue_id).or_insert_with(|| Arc::new(self.make(topic, queue_id))))
    }

    /// How many queues have messages.
    pub(crate) fn count(&self) -> usize {
        let table = self.table.read();
        table.values().flat_map(|queues| queues.values()).filter(|queue| queue.max_offset() > 0).count()
    }

    /// Where each queue with messages begins and ends.
    pub(crate) fn extents(&self) -> BTreeMap<(Box<str>, u32), Extent> {
        let queues = self.all().into_iter().filter(|queue| queue.max_offset() > 0);
        queues.map(|queue| ((queue.topic().into(), queue.queue_id()), queue.extent())).collect()
    }

    /// All queues, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<ConsumeQueue<D>>> {
        self.table.read().values().flat_map(|queues| queues.values().map(Arc::clone)).collect()
    }

    /// Topics that have messages, each with its queue ids in order.
    pub(crate) fn names(&self) -> Vec<(String, Vec<u32>)> {
        let table = self.table.read();
        let mut names: Vec<(String, Vec<u32>)> = table
            .iter()
            .map(|(topic, queues)| {
                let with_messages = queues.values().filter(|queue| queue.max_offset() > 0);
                let mut ids: Vec<u32> = with_messages.map(|queue| queue.queue_id()).collect();
                ids.sort_unstable();
                (topic.to_string(), ids)
            })
            .filter(|(_, ids)| !ids.is_empty())
            .collect();
        names.sort();
        names
    }
}

/// Checks that a topic can be a directory and a queue id a queue.
pub(crate) fn check_name(topic: &str, queue_id: i32) -> Result<u32> {
    let refuse = |what, reason| Err(StoreError::Invalid { what, reason });
    if topic.is_empty() {
        return refuse("topic", "it is empty");
    }
    if topic == "." || topic == ".." || topic.bytes().any(|b| b == b'/' || b == 0) {
        return refuse("topic", "it cannot be the name of a directory");
    }
    match u32::try_from(queue_id) {
        Ok(queue_id) => Ok(queue_id),
        Err(_) => refuse("queue id", "it is negative"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_entry_comes_back_as_written(physical_offset in 0..=i64::MAX as u64, size in 1..FILLER_SIZE, tag_hash in any::<i64>()) {
            let entry = Entry { physical_offset, size, tag_hash };
            prop_assert_eq!(Entry::decode(&entry.encode()), Some(entry));
        }

        #[test]
        fn decoding_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Entry::decode(&bytes);
        }
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for topic in ["", ".", "..", "a/b", "a\0b"] {
            assert!(check_name(topic, 0).is_err(), "{topic:?}");
        }
        assert!(check_name("a", -1).is_err());
        assert_eq!(check_name("%RETRY%group", 7).unwrap(), 7);
    }
}
