//! Finds and cuts a consume queue's entries when a store is opened.
//!
//! `rebuild` then derives missing entries from the log.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use crate::{
    error::{Result, StoreError},
    files::{
        disk::{Disk, Region},
        mapped_file::MappedFile,
    },
    queues::{
        consume_queue::ConsumeQueue,
        known_entries::KnownEntries,
        queue_entry::{ENTRY, ENTRY_LEN, QueueEntry},
        queue_list::QueueExtent,
        queue_table::ConsumeQueues,
    },
    sync::parallel::side_by_side,
};

/// Entries read at once.
const READ_ENTRIES: usize = 4096;

impl<D: Disk> ConsumeQueue<D> {
    /// Lists the queue's files. Removes files of a wrong size or position and all later ones, and then returns `false`.
    pub(crate) fn load(&mut self) -> Result<bool> {
        let configured = self.files.file_size();
        match self.files.load() {
            Err(StoreError::Corrupt { file, .. }) => {
                tracing::warn!(file = %file.display(), "consume queue files are inconsistent: rebuilding them from the log");
                self.files.remove_all_found()?;
                self.files.set_file_size(configured);
                self.files.load()?;
                return Ok(false);
            }
            done => done?,
        }
        let spans = self.files.spans();
        let misfit = spans.iter().find(|span| span.start % ENTRY_LEN != 0 || span.end % ENTRY_LEN != 0);
        let gap = self.files.gaps().into_iter().next();
        let cut = [misfit.map(|span| span.start), gap.map(|gap| gap.start)].into_iter().flatten().min();
        let Some(cut) = cut else { return Ok(true) };
        tracing::warn!(
            topic = self.topic(),
            queue_id = self.queue_id(),
            queue_offset = cut / ENTRY_LEN,
            "consume queue files are missing or of a wrong size: redone from the log"
        );
        self.files.truncate(cut)?;
        if self.files.span().is_some_and(|span| span.start >= cut) {
            self.files.clear()?;
        }
        // The size came from a file that is gone.
        self.files.set_file_size(configured);
        self.files.load()?;
        Ok(false)
    }

    /// Finds the end of the entries and erases everything behind it, so that no stale entry is taken for a new one.
    ///
    /// Returns the end of the last record that a kept entry leads to.
    pub(crate) fn recover(
        &self,
        log_start: u64,
        known: KnownEntries,
        listed: Option<QueueExtent>,
    ) -> Result<Option<u64>> {
        let Some(first) = self.files.span().map(|span| span.start) else { return Ok(None) };
        if let (KnownEntries::Closed, Some(extent)) = (known, listed)
            && self.ends_at(extent)?
        {
            self.publish_extent(extent.max_offset, extent.max_offset);
            self.find_min_offset(first / ENTRY_LEN, extent, log_start)?;
            return Ok(self.read_entry(extent.max_offset.saturating_sub(1))?.map(QueueEntry::end));
        }
        let limit = known.limit();
        let is_kept = |entry: QueueEntry| entry.is_filler() || entry.end() <= limit;
        let last = self.last_kept_file(first, is_kept)?;
        let (end, physical_end, met_other) = match known {
            KnownEntries::DurableBelow(_) => last_below(&last, is_kept)?,
            KnownEntries::Closed | KnownEntries::Nothing { .. } => read_through(&last, is_kept)?,
        };
        if met_other || !matches!(known, KnownEntries::Closed | KnownEntries::Nothing { is_cut: false, .. }) {
            // Flushed at once: a second crash must not bring the old bytes back.
            if last.erase(end..last.end())? > end {
                last.flush(end..last.end())?;
            }
        }
        if end == first && first > 0 {
            // Entries before these may be missing, and earlier entries cannot be added to files.
            self.clear_keeping(first / ENTRY_LEN)?;
            return Ok(None);
        }
        self.files.truncate(end.max(last.base() + 1))?;
        let max_offset = end / ENTRY_LEN;
        let flushed = match known {
            KnownEntries::DurableBelow(_) => max_offset,
            KnownEntries::Closed | KnownEntries::Nothing { is_cut: false, .. } => {
                max_offset.min(last.base() / ENTRY_LEN)
            }
            // Another broker was killed: flush all entries once.
            KnownEntries::Nothing { is_cut: true, .. } => first / ENTRY_LEN,
        };
        self.publish_extent(flushed, max_offset);
        self.find_min_offset(first / ENTRY_LEN, QueueExtent { min_offset: 0, max_offset }, log_start)?;
        Ok((physical_end > 0).then_some(physical_end))
    }

    /// The end of the entries before recovery changes any, and the end of their last record before `limit`. `None` if
    /// there are no entries or they cannot be read.
    fn found_ends(&self, limit: u64) -> Option<(u64, u64)> {
        let is_kept = |entry: QueueEntry| entry.is_filler() || entry.end() <= limit;
        for span in self.files.spans().into_iter().rev() {
            let file = self.files.open(span.start).ok()??;
            let (end, physical_end, _) = read_through(&file, is_kept).ok()?;
            if end > span.start {
                return Some((end / ENTRY_LEN, physical_end));
            }
        }
        None
    }

    fn publish_extent(&self, flushed: u64, max_offset: u64) {
        self.max_offset.store(max_offset, Ordering::Release);
        self.flushed.store(flushed, Ordering::Release);
    }

    /// Whether the entries end at the noted extent: one before its end, none behind it.
    fn ends_at(&self, extent: QueueExtent) -> Result<bool> {
        let has_last = match extent.max_offset.checked_sub(1) {
            Some(last) if extent.min_offset < extent.max_offset => self.read_entry(last)?.is_some(),
            _ => false,
        };
        Ok(has_last && self.read_entry(extent.max_offset)?.is_none())
    }

    /// The newest file that begins with a kept entry; earlier files were flushed before.
    fn last_kept_file(
        &self,
        first: u64,
        is_kept: impl Fn(QueueEntry) -> bool,
    ) -> Result<Arc<MappedFile<D::Region>>> {
        for span in self.files.spans().into_iter().rev() {
            let file = self.files.ensure(span.start)?;
            if span.start == first || entry_in(&file, span.start)?.is_some_and(&is_kept) {
                return Ok(file);
            }
        }
        self.files.ensure(first)
    }

    fn find_min_offset(&self, first: u64, extent: QueueExtent, log_start: u64) -> Result<()> {
        let is_kept = |offset| {
            let entry = self.read_entry(offset)?;
            Ok::<_, StoreError>(entry.is_some_and(|e| !e.is_filler() && e.physical_offset >= log_start))
        };
        let begin = extent.min_offset.max(first);
        let (mut low, mut high) = (first, extent.max_offset);
        // The usual case: nothing was deleted since.
        if begin < high && is_kept(begin)? && (begin == first || !is_kept(begin - 1)?) {
            (low, high) = (begin, begin);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if is_kept(middle)? { high = middle } else { low = middle + 1 }
        }
        self.min_offset.store(low, Ordering::Release);
        Ok(())
    }
}

/// The ends of the queues of a broker that stopped cleanly: all its entries were on disk.
pub(crate) struct FoundEnds<D: Disk> {
    /// Lower bound of the end of the log.
    pub(crate) log_end: u64,
    /// Queue offsets below these were assigned.
    pub(crate) queues: Vec<(Arc<ConsumeQueue<D>>, u64)>,
}

impl<D: Disk> ConsumeQueues<D> {
    /// Finds the end of each queue before recovery changes any; entries that lead past `limit` do not count.
    pub(crate) fn found_ends(&self, limit: u64) -> FoundEnds<D> {
        let (log_end, queues) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        side_by_side(&self.all(), |queue| {
            if let Some((end, physical_end)) = queue.found_ends(limit) {
                log_end.fetch_max(physical_end, Ordering::AcqRel);
                queues.lock().push((Arc::clone(queue), end));
            }
        });
        FoundEnds { log_end: log_end.into_inner(), queues: queues.into_inner() }
    }

    /// Recovers all queues in parallel and returns the end of the newest record that an entry leads to. Unreadable
    /// queues are collected in `unread`.
    pub(crate) fn recover(
        &self,
        log_start: u64,
        known: KnownEntries,
        listed: impl Fn(&str, u32) -> Option<QueueExtent> + Sync,
    ) -> u64 {
        let newest = AtomicU64::new(0);
        let all = self.all();
        side_by_side(&all, |queue| {
            match queue.recover(log_start, known, listed(queue.topic(), queue.queue_id())) {
                Ok(end) => drop(newest.fetch_max(end.unwrap_or(0), Ordering::AcqRel)),
                // The other queues are recovered all the same.
                Err(error) => self.unread.lock().push((Arc::clone(queue), error)),
            }
        });
        newest.into_inner()
    }
}

fn entry_in<R: Region>(file: &MappedFile<R>, at: u64) -> Result<Option<QueueEntry>> {
    Ok(QueueEntry::decode(&file.copy::<ENTRY>(at)?))
}

/// Reads entries up to the first that must not be kept. Returns their end, the end of their last record, and whether
/// nonzero bytes follow.
fn read_through<R: Region>(
    file: &MappedFile<R>,
    is_kept: impl Fn(QueueEntry) -> bool,
) -> Result<(u64, u64, bool)> {
    let mut buffer = vec![0; READ_ENTRIES * ENTRY];
    let (mut end, mut physical_end) = (file.base(), 0);
    while end < file.end() {
        let in_data = file.next_hole(end).saturating_sub(end).div_ceil(ENTRY_LEN) * ENTRY_LEN;
        let len = in_data.max(ENTRY_LEN).min(buffer.len() as u64).min(file.end() - end);
        let bytes = buffer.get_mut(..len as usize).unwrap_or_default();
        file.read_into(end, bytes)?;
        for bytes in bytes.chunks_exact(ENTRY) {
            match QueueEntry::decode(bytes) {
                Some(entry) if is_kept(entry) && (entry.is_filler() || entry.end() > physical_end) => {
                    if !entry.is_filler() {
                        physical_end = entry.end();
                    }
                    end += ENTRY_LEN;
                }
                other => return Ok((end, physical_end, other.is_some())),
            }
        }
    }
    Ok((end, physical_end, false))
}

/// As [`read_through`], when all entries to keep are known to exist: later ones lead further or nowhere.
fn last_below<R: Region>(
    file: &MappedFile<R>,
    is_kept: impl Fn(QueueEntry) -> bool,
) -> Result<(u64, u64, bool)> {
    // Entries are contiguous from the start of the file, so none follow its first hole.
    let data = file.next_hole(file.base()) - file.base();
    let (mut low, mut high) = (0, data.div_ceil(ENTRY_LEN).min((file.end() - file.base()) / ENTRY_LEN));
    while low < high {
        let middle = low + (high - low) / 2;
        let is_below = entry_in(file, file.base() + middle * ENTRY_LEN)?.is_some_and(&is_kept);
        if is_below { low = middle + 1 } else { high = middle }
    }
    let end = file.base() + low * ENTRY_LEN;
    let last = match end.checked_sub(ENTRY_LEN).filter(|at| *at >= file.base()) {
        Some(at) => entry_in(file, at)?,
        None => None,
    };
    let physical_end = last.filter(|entry| !entry.is_filler()).map_or(0, QueueEntry::end);
    Ok((end, physical_end, true))
}
