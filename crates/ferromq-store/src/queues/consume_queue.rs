//! One consume queue: entries by queue offset.
//!
//! The dispatching thread writes; any thread reads below the published max offset. It does not read the commit log.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use crate::{
    derive::arrival::Arrival,
    error::{Result, StoreError},
    files::{disk::Disk, mapped_file::MappedFile, mapped_file_queue::MappedFileQueue},
    queues::{
        admin_files::QueueName,
        queue_entry::{ENTRY, ENTRY_LEN, FILLER_SIZE, QueueEntry},
        queue_list::QueueExtent,
        queue_marks::QueueMarks,
    },
};

/// `batch` of a queue outside the current round.
pub(crate) const NO_BATCH: u32 = u32::MAX;

/// One queue of one topic.
pub(crate) struct ConsumeQueue<D: Disk> {
    pub(super) topic: Box<str>,
    pub(super) queue_id: u32,
    pub(crate) files: MappedFileQueue<D>,
    pub(crate) min_offset: AtomicU64,
    /// Published after the entries below it are written.
    pub(crate) max_offset: AtomicU64,
    /// The next queue offset to assign. Guarded by the append lock.
    pub(super) next_offset: AtomicU64,
    /// Entries below it are durable.
    pub(crate) flushed: AtomicU64,
    /// The queue is listed for the next flush.
    pub(super) is_dirty: AtomicBool,
    /// Files were missing or unsound at open, so entries may be missing.
    pub(crate) is_cut: AtomicBool,
    /// Entries below this offset existed at open …
    pub(super) found_end: AtomicU64,
    /// … and the records of entries below this one were checked since.
    pub(super) checked_to: AtomicU64,
    /// The queue's position in the dispatcher's current round; only the dispatcher uses it.
    pub(crate) batch: AtomicU32,
    /// A page of entries last seen in memory, and when: see [`Self::in_memory_to`].
    pub(super) seen_page: AtomicU64,
    /// Deletion and access state.
    pub(crate) marks: QueueMarks,
}

impl<D: Disk> ConsumeQueue<D> {
    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn queue_id(&self) -> u32 {
        self.queue_id
    }

    pub(crate) fn name(&self) -> QueueName {
        (self.topic.clone(), self.queue_id)
    }

    #[cfg(test)]
    pub(crate) fn files(&self) -> &MappedFileQueue<D> {
        &self.files
    }

    /// Entries below this offset are durable.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    pub(crate) fn extent(&self) -> QueueExtent {
        QueueExtent { min_offset: self.min_offset(), max_offset: self.max_offset() }
    }

    pub(crate) fn min_offset(&self) -> u64 {
        self.min_offset.load(Ordering::Acquire)
    }

    pub(crate) fn max_offset(&self) -> u64 {
        self.max_offset.load(Ordering::Acquire)
    }

    /// Assigns the next queue offset. Call it under the append lock.
    pub(crate) fn take_next_offset(&self) -> u64 {
        let offset = self.next_offset.load(Ordering::Relaxed);
        self.next_offset.store(offset + 1, Ordering::Relaxed);
        offset
    }

    /// Takes back the last offset, whose record was not written. Call it under the append lock.
    pub(crate) fn give_back_offset(&self) {
        self.next_offset.store(self.next_offset.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// The next queue offset to assign. Call it under the append lock.
    pub(crate) fn next_offset(&self) -> u64 {
        self.next_offset.load(Ordering::Relaxed)
    }

    /// Whether the queue has or had messages that were not deleted with the topic.
    pub(crate) fn has_messages(&self) -> bool {
        self.max_offset() > 0 && !self.marks.is_deleted()
    }

    /// Reserves the offsets below `offset`, which were assigned before, for a queue whose end is unknown.
    pub(crate) fn expect_end(&self, offset: u64) {
        self.next_offset.fetch_max(offset, Ordering::Relaxed);
    }

    /// End of the entries that existed at open, or when the end became known.
    pub(crate) fn found_end(&self) -> u64 {
        self.found_end.load(Ordering::Acquire)
    }

    /// Reserves offsets below `offset` whose records are lost. They get entries that lead nowhere, after the last
    /// entry's record and before `physical_end`.
    pub(crate) fn keep_offsets(&self, offset: u64, physical_end: u64) -> Result<()> {
        let max_offset = self.max_offset();
        if max_offset >= offset {
            return Ok(());
        }
        match self.last_entry()? {
            None => self.begin_at_offset(offset),
            Some(last) => self.pad(max_offset..offset, last.end()..physical_end),
        }
    }

    /// Continues offsets after the existing entries; for recovery.
    pub(crate) fn continue_after_entries(&self) {
        let kept = self.found_end.load(Ordering::Acquire);
        if self.max_offset() == 0 && kept > 0 {
            self.begin_empty_at(kept);
        }
        self.next_offset.store(self.max_offset(), Ordering::Relaxed);
        self.checked_to.store(self.min_offset(), Ordering::Relaxed);
        self.found_end.store(self.max_offset(), Ordering::Release);
    }

    /// Whether the record of an entry that existed at open is still unchecked.
    pub(crate) fn is_unchecked(&self, queue_offset: u64) -> bool {
        queue_offset < self.found_end.load(Ordering::Acquire)
            && queue_offset >= self.checked_to.load(Ordering::Relaxed)
    }

    /// Notes that the record of an entry is sound.
    pub(crate) fn set_checked(&self, queue_offset: u64) {
        // A concurrent reader may be further; its records are then checked twice.
        let next = queue_offset + 1;
        let _ = self.checked_to.compare_exchange(queue_offset, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether files were missing or unsound at open.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Fills the offsets of `missing`, whose messages are lost, with entries that lead into `range`; for recovery.
    pub(crate) fn pad(&self, missing: Range<u64>, range: Range<u64>) -> Result<()> {
        const STEP: usize = 64 << 10;
        let mut places = range.map(QueueEntry::leading_nowhere);
        let mut at = missing.start;
        while at < missing.end {
            let step = STEP.min((missing.end - at) as usize);
            let entries: Vec<u8> = places.by_ref().take(step).flat_map(QueueEntry::encode).collect();
            if entries.is_empty() {
                break;
            }
            self.write(at, &entries)?;
            at += entries.len() as u64 / ENTRY_LEN;
            self.max_offset.fetch_max(at, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Removes all entries, to derive them again from the start of the log; for recovery.
    pub(crate) fn clear(&self) -> Result<()> {
        self.files.clear()?;
        self.begin_empty_at(self.marks.floor().offset);
        Ok(())
    }

    /// As [`Self::clear`], but offsets continue at `offset` if no entry is derived.
    pub(crate) fn clear_keeping(&self, offset: u64) -> Result<()> {
        self.clear()?;
        self.found_end.store(offset, Ordering::Release);
        Ok(())
    }

    /// Sets the extent of a queue whose files cannot be read; for recovery.
    pub(crate) fn set_extent(&self, extent: QueueExtent) {
        self.min_offset.store(extent.min_offset, Ordering::Release);
        self.max_offset.store(extent.max_offset, Ordering::Release);
    }

    /// Makes the queue empty, with offsets continuing at `offset`; for recovery.
    pub(crate) fn begin_empty_at(&self, offset: u64) {
        for mark in [&self.min_offset, &self.max_offset, &self.flushed] {
            mark.store(offset, Ordering::Release);
        }
    }

    /// The published entry at `queue_offset`.
    pub(crate) fn entry(&self, queue_offset: u64) -> Option<QueueEntry> {
        (self.min_offset()..self.max_offset())
            .contains(&queue_offset)
            .then(|| self.entry_anywhere(queue_offset))?
    }

    /// The newest message's entry, if one is kept; for recovery.
    ///
    /// Errors: `Io` if its file cannot be opened. It does not mean that there is no entry.
    pub(crate) fn last_entry(&self) -> Result<Option<QueueEntry>> {
        match self.max_offset().checked_sub(1).filter(|last| *last >= self.min_offset()) {
            Some(last) => self.read_entry(last),
            None => Ok(None),
        }
    }

    /// The entry at a queue offset, published or not, even a filler; for recovery. Errors as [`Self::last_entry`].
    pub(crate) fn read_entry(&self, queue_offset: u64) -> Result<Option<QueueEntry>> {
        let at = queue_offset * ENTRY_LEN;
        let Some(file) = self.files.open(at)? else { return Ok(None) };
        Ok(QueueEntry::decode(&file.copy::<ENTRY>(at)?))
    }

    /// As [`Self::entry`] for a published offset; tries the file of the previous read first.
    pub(crate) fn entry_in(
        &self,
        file: &mut Option<Arc<MappedFile<D::Region>>>,
        queue_offset: u64,
    ) -> Option<QueueEntry> {
        let at = queue_offset * ENTRY_LEN;
        if file.as_deref().is_none_or(|file| at < file.base() || at >= file.end()) {
            *file = self.files.find(at);
        }
        QueueEntry::decode(file.as_ref()?.read(at..at + ENTRY_LEN)).filter(|entry| !entry.is_filler())
    }

    /// The first queue offset from `from` on whose message lies at or after a physical offset.
    pub(crate) fn first_at_or_after(&self, physical_offset: u64, from: u64) -> u64 {
        let (mut low, mut high) = (from, self.max_offset());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entry_anywhere(middle) {
                Some(entry) if entry.physical_offset >= physical_offset => high = middle,
                _ => low = middle + 1,
            }
        }
        low
    }

    /// The offset after a missing entry: the next file if the file is missing.
    pub(crate) fn behind_hole(&self, queue_offset: u64) -> u64 {
        let at = queue_offset * ENTRY_LEN;
        let max_offset = self.max_offset();
        if self.files.contains(at) {
            return max_offset.min(queue_offset + 1);
        }
        self.files.begin_after(at).map_or(max_offset, |begin| max_offset.min(begin / ENTRY_LEN))
    }

    /// The end of the entries from `from` on that are in memory; examines at most `most`.
    ///
    /// `tick` counts moments. A page seen in memory within the last moment counts as in memory, so that readers at the
    /// end of a queue ask the system once a moment.
    pub(crate) fn in_memory_to(&self, from: u64, most: u64, tick: u64) -> u64 {
        const PAGE: u64 = 4096;
        let (at, end) = (from * ENTRY_LEN, self.max_offset());
        let file = match self.files.find_open(at) {
            None => return from,
            // Readers report the missing file.
            Some(None) => return end,
            Some(Some(file)) => file,
        };
        let page = at / PAGE;
        let page_end = ((page + 1) * PAGE).min(file.end()) / ENTRY_LEN;
        let (tick_bits, seen) = ((tick & 0xFFFF) + 1, self.seen_page.load(Ordering::Relaxed));
        let is_new = seen > 0 && tick_bits.wrapping_sub(seen & 0x1_FFFF) <= 1;
        if page_end > from && is_new && seen >> 17 == page {
            return page_end.min(end);
        }
        let wanted = from.saturating_add(most).min(end).saturating_mul(ENTRY_LEN).min(file.end());
        let there = file.resident_to(at..wanted);
        if there / ENTRY_LEN > from {
            self.seen_page.store(page << 17 | tick_bits, Ordering::Relaxed);
        }
        there / ENTRY_LEN
    }

    fn entry_anywhere(&self, queue_offset: u64) -> Option<QueueEntry> {
        let at = queue_offset * ENTRY_LEN;
        let file = self.files.find(at)?;
        QueueEntry::decode(file.read(at..at + ENTRY_LEN))
    }

    /// Calls `visit` with the queue offset and entry from `from` on, until it returns `false` or at the published end.
    ///
    /// `None` stands for a missing entry. A file that cannot be opened ends the walk: its entries are not missing.
    pub(crate) fn walk(&self, from: u64, visit: impl FnMut(u64, Option<QueueEntry>) -> bool) {
        if let Err(error) = self.walk_to(from, u64::MAX, visit) {
            tracing::error!(%error, topic = self.topic(), queue_id = self.queue_id, "queue cannot be read");
        }
    }

    /// As [`Self::walk`], at most to `to`. Errors: `Io`, `Corrupt` for a file that cannot be opened.
    pub(crate) fn walk_to(
        &self,
        from: u64,
        to: u64,
        mut visit: impl FnMut(u64, Option<QueueEntry>) -> bool,
    ) -> Result<()> {
        let end = self.max_offset().min(to);
        let mut at = from;
        while at < end {
            let Some(file) = self.files.open(at * ENTRY_LEN)? else {
                visit(at, None);
                return Ok(());
            };
            let (begin, stop) = (at, end.min(file.end() / ENTRY_LEN));
            for bytes in file.read(at * ENTRY_LEN..stop * ENTRY_LEN).chunks_exact(ENTRY) {
                if !visit(at, QueueEntry::decode(bytes)) {
                    return Ok(());
                }
                at += 1;
            }
            if at == begin {
                // The entry would span two files, which is impossible at a valid file size.
                visit(at, None);
                return Ok(());
            }
            if at < stop {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Writes consecutive entries from offset `first` on. Readers do not see them yet.
    pub(crate) fn write(&self, first: u64, entries: &[u8]) -> Result<()> {
        self.begin_files(first)?;
        self.files.write(first * ENTRY_LEN, entries)
    }

    /// Opens or creates the file for entry `first`, to find out whether the queue is writable.
    pub(crate) fn prepare(&self, first: u64) -> Result<()> {
        self.begin_files(first)?;
        self.files.ensure(first * ENTRY_LEN).map(drop)
    }

    fn begin_files(&self, first: u64) -> Result<()> {
        self.clear_deleted()?;
        if first > 0 && self.files.span().is_none() { self.begin_at(first) } else { Ok(()) }
    }

    /// Removes all entries and files; the next entry is for `offset`.
    pub(crate) fn begin_at_offset(&self, offset: u64) -> Result<()> {
        self.files.clear()?;
        self.begin_empty_at(offset);
        Ok(())
    }

    /// The queue's directory in the store directory `root`.
    pub(crate) fn directory_in(&self, root: &Path) -> PathBuf {
        root.join("consumequeue").join(self.topic()).join(self.queue_id.to_string())
    }

    /// The arrival event for the queue's current state.
    pub(crate) fn arrival(&self) -> Arrival<'_> {
        Arrival { topic: self.topic(), queue_id: self.queue_id, max_offset: self.max_offset() }
    }

    /// The error for an append while the queue is set aside.
    pub(crate) fn refusal(&self) -> StoreError {
        let reason = self.marks.aside_reason().unwrap_or_default();
        StoreError::QueueSetAside { topic: self.topic().to_owned(), queue_id: self.queue_id, reason }
    }

    /// Fills the entries before `first` as RocketMQ does; their messages were deleted.
    fn begin_at(&self, first: u64) -> Result<()> {
        let file = self.files.ensure(first * ENTRY_LEN)?;
        let filler = QueueEntry { physical_offset: 0, size: FILLER_SIZE, tag_hash: 0 }.encode();
        let count = (first * ENTRY_LEN - file.base()) / ENTRY_LEN;
        self.files.write(file.base(), &filler.repeat(count as usize))?;
        self.flushed.store(file.base() / ENTRY_LEN, Ordering::Release);
        self.min_offset.store(first, Ordering::Release);
        Ok(())
    }

    /// Publishes the entries below `max_offset`. Returns whether the queue must be listed for a flush.
    pub(crate) fn publish(&self, max_offset: u64) -> bool {
        self.max_offset.fetch_max(max_offset, Ordering::SeqCst);
        self.marks.set_alive();
        self.list()
    }

    /// Marks the queue as listed for a flush. Returns whether it was not.
    pub(crate) fn list(&self) -> bool {
        !self.is_dirty.swap(true, Ordering::SeqCst)
    }

    /// Marks the queue as not listed for a flush.
    pub(crate) fn unlist(&self) {
        self.is_dirty.store(false, Ordering::SeqCst);
    }

    /// Starts the writes that [`Self::flush`] waits for, so that many queues share one wait.
    pub(crate) fn begin_flush(&self) -> Result<()> {
        let end = self.max_offset.load(Ordering::SeqCst);
        let from = self.flushed.load(Ordering::Acquire);
        self.files.begin_flush(from * ENTRY_LEN..end * ENTRY_LEN)
    }

    /// Makes the published entries durable.
    pub(crate) fn flush(&self) -> Result<()> {
        // Ordered with `publish`: a queue published before this is flushed here, a later one is listed again.
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
}

/// Checks that a topic is a valid directory name and a queue ID is valid.
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
    use super::*;

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for topic in ["", ".", "..", "a/b", "a\0b"] {
            assert!(check_name(topic, 0).is_err(), "{topic:?}");
        }
        assert!(check_name("a", -1).is_err());
        assert_eq!(check_name("%RETRY%group", 7).unwrap(), 7);
    }
}
