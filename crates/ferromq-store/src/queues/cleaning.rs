//! Removes the old entries and files of a consume queue.
//!
//! An empty queue keeps its last file, whose end determines the next offset, here and for Java.

use std::sync::atomic::Ordering;

use crate::{
    error::Result,
    files::disk::Disk,
    queues::{
        consume_queue::ConsumeQueue,
        queue_entry::{ENTRY_LEN, QueueEntry},
    },
};

impl<D: Disk> ConsumeQueue<D> {
    /// Moves the first kept offset past entries that lead below `log_start`.
    ///
    /// Errors: `Io` if an entry cannot be read; the offset then stays.
    pub(crate) fn move_min_offset(&self, log_start: u64) -> Result<()> {
        let (min, max) = (self.min_offset(), self.max_offset());
        let is_kept =
            |entry: Option<QueueEntry>| entry.is_some_and(|entry| entry.physical_offset >= log_start);
        if min >= max || is_kept(self.find_entry(min)?) {
            return Ok(());
        }
        let found = self.search(min, max, is_kept)?;
        self.min_offset.fetch_max(found, Ordering::AcqRel);
        Ok(())
    }

    /// The entry of the queue's last kept message before `physical_end`.
    pub(crate) fn last_entry_below(&self, physical_end: u64) -> Result<Option<QueueEntry>> {
        let (min, max) = (self.min_offset(), self.max_offset());
        let is_behind =
            |entry: Option<QueueEntry>| entry.is_some_and(|entry| entry.physical_offset >= physical_end);
        if min >= max || is_behind(self.find_entry(min)?) {
            return Ok(None);
        }
        let found = self.search(min, max, is_behind)?;
        self.find_entry(found.saturating_sub(1))
    }

    /// Removes whole files below the first kept offset, except the one with the last entry. Returns their bytes.
    pub(crate) fn remove_passed_files(&self) -> Result<u64> {
        let first = self.min_offset().min(self.max_offset().saturating_sub(1));
        if self.files.span().is_none_or(|span| span.start + self.files.file_size() > first * ENTRY_LEN) {
            return Ok(0);
        }
        self.files.remove_below(first * ENTRY_LEN)
    }

    /// The first offset of `low..high` whose entry matches, by bisection; `high` if none does.
    fn search(&self, low: u64, high: u64, is_wanted: impl Fn(Option<QueueEntry>) -> bool) -> Result<u64> {
        let (mut low, mut high) = (low, high);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_wanted(self.find_entry(middle)?) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low)
    }

    /// The entry at `queue_offset`; `None` for a missing file or a filler.
    fn find_entry(&self, queue_offset: u64) -> Result<Option<QueueEntry>> {
        let at = queue_offset * ENTRY_LEN;
        let Some(file) = self.files.open(at)? else { return Ok(None) };
        Ok(QueueEntry::decode(file.read(at..at + ENTRY_LEN)).filter(|entry| !entry.is_filler()))
    }
}
