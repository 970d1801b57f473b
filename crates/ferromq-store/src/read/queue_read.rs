//! A read of one queue, limited by count, bytes and time, from memory or from the disk.
//!
//! The tag hash in the consume queue is checked first, so that most unwanted messages are skipped without reading the
//! log.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use crate::{
    error::{Result, StoreError},
    files::{
        disk::{Disk, Region},
        mapped_file::MappedFile,
    },
    filter::message_filter::MessageFilter,
    log::recent_pages::KnownPages,
    queues::{consume_queue::ConsumeQueue, queue_entry::QueueEntry},
    read::{
        reader::Reader,
        types::{GetRequest, GetResult, GetStatus, Source},
    },
    record::{
        log_record::Record,
        message::{self, MessageView},
    },
};

/// Most bytes of messages that a filtered read skips, so that a call stays short; the last one counts in full.
const MAX_FRUITLESS_BYTES: u64 = 4 << 20;
/// Bytes at the start of a record that contain the start of its body; `TAIL` bytes hold its topic and properties.
const HEAD: u64 = 256;
const TAIL: u64 = (message::MAX_PROPERTIES_LEN + message::MAX_TOPIC_LEN + 16) as u64;
/// Most messages that space is reserved for before a read.
const USUAL_BATCH: usize = 32;
/// Records whose first bytes are fetched together: the misses of the processor's caches overlap then.
const FETCHED: u64 = 16;
/// RocketMQ's smallest byte limit of a read.
const MIN_READ_BYTES: usize = 100;

/// The parts of a record that a filter reads: up to the start of the body, and everything after it.
fn parts_of_filter(record: Range<u64>) -> [Range<u64>; 2] {
    let head_end = record.end.min(record.start + HEAD);
    let tail_start = record.end.saturating_sub(TAIL).max(record.start);
    [record.start..head_end, tail_start..record.end]
}

/// How a read continues after an entry.
enum ReadStep {
    Continue,
    End,
    /// It continues at another offset: the following messages are missing.
    Jump,
}

/// A read of a queue under way.
pub(super) struct QueueRead<'a, D: Disk> {
    reader: &'a Reader<D>,
    queue: &'a ConsumeQueue<D>,
    request: &'a GetRequest<'a>,
    /// End of the log when the read began.
    log_end: u64,
    bytes: usize,
    /// Entries that the read may still visit …
    entries_left: u64,
    /// … and bytes of messages that it may skip.
    bytes_left: u64,
    /// The log file of the previous message.
    file: Option<Arc<MappedFile<D::Region>>>,
    known: KnownPages,
    /// End of the entries that the walk under way may read …
    visit_to: u64,
    /// … and records below this queue offset were fetched.
    fetched_to: u64,
    result: GetResult<D::Region>,
}

impl<'a, D: Disk> QueueRead<'a, D> {
    pub(super) fn new(
        reader: &'a Reader<D>,
        queue: &'a ConsumeQueue<D>,
        request: &'a GetRequest<'a>,
        min_offset: u64,
        max_offset: u64,
    ) -> Self {
        let log_end = reader.log.written();
        Self {
            reader,
            queue,
            request,
            log_end,
            bytes: 0,
            entries_left: request.limits.scan_entries.max(request.max_count as u64),
            bytes_left: MAX_FRUITLESS_BYTES,
            file: None,
            known: KnownPages::new(reader.log.freshness.from(log_end)),
            visit_to: request.offset,
            fetched_to: request.offset,
            result: GetResult::empty(GetStatus::NoMatchedMessage, request.offset, min_offset, max_offset),
        }
    }

    pub(super) fn read(mut self) -> GetResult<D::Region> {
        let left = usize::try_from(self.result.max_offset - self.result.next_offset).unwrap_or(usize::MAX);
        self.result.messages.reserve_exact(self.request.max_count.min(left).min(USUAL_BATCH));
        let mut continues = true;
        while continues {
            let from = self.result.next_offset;
            let to = self.entries_to(from);
            if to <= from {
                self.result.is_cold = from < self.result.max_offset;
                break;
            }
            // Continue after the entries in memory or after a jump; anything else ends the read.
            continues = to < self.result.max_offset;
            self.visit_to = to;
            let queue = self.queue;
            let walked = queue.walk_to(from, to, |queue_offset, entry| {
                let step = match self.is_done(queue_offset) {
                    true => ReadStep::End,
                    false => self.visit(queue_offset, entry),
                };
                if !matches!(step, ReadStep::Continue) {
                    continues = matches!(step, ReadStep::Jump);
                }
                matches!(step, ReadStep::Continue)
            });
            match walked {
                Ok(()) => self.reader.unreadable.clear_entries(queue, from..self.result.next_offset),
                Err(error) => {
                    self.miss(GetStatus::MessageUnreadable);
                    self.reader.unreadable.note_entry(queue, self.result.next_offset, &error);
                }
            }
            continues &= self.result.next_offset > from;
        }
        self.result
    }

    /// End of the entries from `from` on that the read may visit now.
    fn entries_to(&self, from: u64) -> u64 {
        match self.request.source {
            Source::Memory => {
                self.queue.in_memory_to(from, self.entries_left.max(1), self.reader.log.freshness.now())
            }
            Source::Anywhere | Source::Disk(_) => self.result.max_offset,
        }
    }

    fn visit(&mut self, queue_offset: u64, entry: Option<QueueEntry>) -> ReadStep {
        self.entries_left -= 1;
        let Some(entry) = entry else {
            self.miss(GetStatus::OffsetFoundNull);
            self.result.next_offset = self.queue.behind_hole(queue_offset);
            return ReadStep::End;
        };
        if entry.leads_nowhere() {
            self.miss(GetStatus::MessageWasRemoving);
            self.result.next_offset = queue_offset + 1;
            return ReadStep::Continue;
        }
        if self.is_full_before(entry) {
            return ReadStep::End;
        }
        if !self.request.filter.may_have_hash(entry.tag_hash) {
            self.result.next_offset = queue_offset + 1;
            return ReadStep::Continue;
        }
        match self.load_needed(queue_offset, entry) {
            Ok(true) => {}
            Ok(false) => {
                self.result.is_cold = true;
                return ReadStep::End;
            }
            Err(error) => return self.end_before_unreadable(entry, &error),
        }
        if queue_offset >= self.fetched_to {
            self.fetch(queue_offset);
        }
        let record = match self.reader.log.record_in(&mut self.file, entry.physical_offset, entry.size) {
            Ok(record) => record,
            Err(error) => return self.end_before_unreadable(entry, &error),
        };
        // A filter reads only parts of other records: the rest may still be unreadable.
        if record.is_none() || self.reads_whole(queue_offset) {
            self.clear_unreadable(entry);
        }
        let is_other = |record: &Record<D::Region>| !record.is_at(entry.physical_offset, entry.size);
        if self.request.source == Source::Memory
            && self.queue.is_unchecked(queue_offset)
            && record.as_ref().is_some_and(is_other)
        {
            // Repeat the read from disk, to find the damage.
            self.result.is_cold = true;
            return ReadStep::End;
        }
        match record.filter(|record| matches_entry(self.reader, self.queue, queue_offset, record, entry)) {
            Some(record) => self.take(queue_offset, record, entry),
            None => {
                self.miss(GetStatus::MessageWasRemoving);
                self.result.next_offset = self.offset_after_removed(queue_offset, entry);
                if self.result.next_offset > queue_offset + 1 { ReadStep::Jump } else { ReadStep::Continue }
            }
        }
    }

    /// Touches the next records, as far as they are known to be in memory: each visit alone would wait for its bytes.
    fn fetch(&mut self, queue_offset: u64) {
        self.fetched_to = queue_offset + 1;
        let Some(file) = &self.file else { return };
        let (log, filter, known) = (&self.reader.log, self.request.filter, &self.known);
        let wanted = self.request.max_count.saturating_sub(self.result.messages.len()) as u64;
        let to = self.visit_to.min(queue_offset + FETCHED.min(wanted));
        let fetched_to = &mut self.fetched_to;
        // The visits report what cannot be read.
        let _ = self.queue.walk_to(queue_offset, to, |offset, entry| {
            let Some(entry) = entry else { return false };
            let range = entry.physical_offset..entry.end();
            if filter.may_have_hash(entry.tag_hash) && !(known.covers(&range) && log.touch(file, range)) {
                return false;
            }
            *fetched_to = offset + 1;
            true
        });
    }

    /// Ends the read before a message that exists but cannot be read now; a later request finds it.
    #[cold]
    fn end_before_unreadable(&mut self, entry: QueueEntry, error: &StoreError) -> ReadStep {
        self.miss(GetStatus::MessageUnreadable);
        self.reader.unreadable.note_record(entry.physical_offset..entry.end(), error);
        ReadStep::End
    }

    /// Loads what the read needs of a message. Returns whether it is in memory. Errors: `Io` if it cannot be read now.
    fn load_needed(&mut self, queue_offset: u64, entry: QueueEntry) -> Result<bool> {
        if self.request.source == Source::Anywhere {
            return Ok(true);
        }
        let log = &self.reader.log;
        if self.request.source == Source::Memory {
            // A read from disk handles missing messages and log files that are not open.
            if !log.find_open(&mut self.file, entry.physical_offset) || self.file.is_none() {
                return Ok(false);
            }
        } else if log.record_in(&mut self.file, entry.physical_offset, entry.size)?.is_none() {
            return Ok(true);
        }
        let Some(file) = &self.file else { return Ok(true) };
        let whole = entry.physical_offset..entry.end();
        // A record that was there when the store was opened is checked as a whole.
        if self.reads_whole(queue_offset) {
            return load_or_check(&mut self.known, file, whole, self.request.source);
        }
        let [head, tail] = parts_of_filter(whole);
        Ok(load_or_check(&mut self.known, file, head, self.request.source)?
            && load_or_check(&mut self.known, file, tail, self.request.source)?)
    }

    /// Whether the whole record is read before the filter decides.
    fn reads_whole(&self, queue_offset: u64) -> bool {
        *self.request.filter == MessageFilter::All || self.queue.is_unchecked(queue_offset)
    }

    /// Marks a record as readable: all of it was read, or it is gone.
    fn clear_unreadable(&self, entry: QueueEntry) {
        if self.request.source != Source::Anywhere {
            self.reader.unreadable.clear_record(entry.physical_offset);
        }
    }

    fn is_done(&self, queue_offset: u64) -> bool {
        self.entries_left == 0
            || self.bytes_left == 0
            || queue_offset >= self.result.max_offset
            || self.result.messages.len() >= self.request.max_count
            || self.is_late()
    }

    /// Whether the answer has no room for the message; it always has room for the first one.
    fn is_full_before(&self, entry: QueueEntry) -> bool {
        let (count, bytes) = (self.result.messages.len(), self.bytes + entry.size as usize);
        let behind = self.log_end.saturating_sub(entry.physical_offset);
        count > 0
            && (bytes > self.request.max_bytes.max(MIN_READ_BYTES)
                || self.request.limits.exclude(count, bytes, behind))
    }

    /// Whether the time of the read is over; it always makes one step.
    fn is_late(&self) -> bool {
        matches!(self.request.source, Source::Disk(until) if self.has_begun() && Instant::now() >= until)
    }

    fn has_begun(&self) -> bool {
        self.bytes_left < MAX_FRUITLESS_BYTES || !self.result.messages.is_empty()
    }

    /// Where to continue after a removed message: after all messages of its file if that is gone.
    fn offset_after_removed(&self, queue_offset: u64, removed: QueueEntry) -> u64 {
        let files = self.reader.log.files();
        let next = queue_offset + 1;
        if files.contains(removed.physical_offset) {
            return next;
        }
        match files.begin_after(removed.physical_offset) {
            Some(kept) => self.queue.first_at_or_after(kept, next),
            None => next,
        }
    }

    fn miss(&mut self, status: GetStatus) {
        if self.result.messages.is_empty() {
            self.result.status = status;
        }
    }

    fn take(&mut self, queue_offset: u64, record: Record<D::Region>, entry: QueueEntry) -> ReadStep {
        if *self.request.filter != MessageFilter::All {
            if !is_wanted(self.request.filter, &record) {
                self.bytes_left = self.bytes_left.saturating_sub(entry.size.into());
                self.result.next_offset = queue_offset + 1;
                return ReadStep::Continue;
            }
            let whole = entry.physical_offset..entry.end();
            if let Some(file) = self.file.as_ref().filter(|_| self.request.source != Source::Anywhere) {
                match load_or_check(&mut self.known, file, whole, self.request.source) {
                    Ok(true) => self.clear_unreadable(entry),
                    Ok(false) => {
                        self.result.is_cold = true;
                        return ReadStep::End;
                    }
                    Err(error) => return self.end_before_unreadable(entry, &error),
                }
            }
        }
        self.result.next_offset = queue_offset + 1;
        self.bytes += record.len();
        self.result.messages.push((queue_offset, record));
        self.result.status = GetStatus::Found;
        ReadStep::Continue
    }
}

/// Whether a range of a log file is in memory; a read from disk loads it.
fn load_or_check<R: Region>(
    known: &mut KnownPages,
    file: &MappedFile<R>,
    range: Range<u64>,
    source: Source,
) -> Result<bool> {
    match source {
        Source::Anywhere => Ok(true),
        Source::Memory => Ok(known.has(file, range)),
        Source::Disk(_) => file.load(range).map(|()| true),
    }
}

/// Whether the record matches its consume queue entry. A record that was there when the store was opened is fully
/// checked, once if the queue is read in order.
fn matches_entry<D: Disk>(
    reader: &Reader<D>,
    queue: &ConsumeQueue<D>,
    queue_offset: u64,
    record: &Record<D::Region>,
    entry: QueueEntry,
) -> bool {
    let mut is_same = record.is_at(entry.physical_offset, entry.size);
    if !is_same && queue.is_unchecked(queue_offset) && reader.note_damage_at(entry.physical_offset) {
        return false;
    }
    if is_same && queue.is_unchecked(queue_offset) {
        match MessageView::decode(record.bytes(), true) {
            Ok(view) => {
                is_same = view.topic == queue.topic()
                    && view.queue_id as u32 == queue.queue_id()
                    && view.queue_offset == queue_offset;
            }
            Err(_) => {
                reader.note_damage(entry.physical_offset..entry.end());
                return false;
            }
        }
        if is_same {
            queue.set_checked(queue_offset);
        }
    }
    if !is_same && reader.counters.mismatches.fetch_add(1, Ordering::Relaxed) == 0 {
        tracing::error!(
            physical_offset = entry.physical_offset,
            size = entry.size,
            "record does not match its consume queue entry: not served"
        );
    }
    is_same
}

fn is_wanted<R: Region>(filter: &MessageFilter, record: &Record<R>) -> bool {
    MessageView::decode(record.bytes(), false).is_ok_and(|view| filter.wants(view.properties))
}
