//! Reads messages of a queue, limited by count and bytes, with RocketMQ's statuses.
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
    queues::consume_queue::{ConsumeQueue, QueueEntry},
    read::reader::Reader,
    read::types::{GetRequest, GetResult, GetStatus, Source, TransferLimits},
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
/// RocketMQ's smallest byte limit of a read.
const MIN_READ_BYTES: usize = 100;

impl<D: Disk> Reader<D> {
    /// Reads up to `max_count` messages and about `max_bytes` from `from_offset` on.
    ///
    /// The first message is returned whatever its size. A record that does not match its consume queue entry is never
    /// served. After a close there are no messages.
    pub fn get(
        &self,
        topic: &str,
        queue_id: u32,
        from_offset: u64,
        max_count: usize,
        max_bytes: usize,
        filter: &MessageFilter,
    ) -> GetResult<D::Region> {
        let (source, limits) = (Source::Anywhere, TransferLimits::NONE);
        let offset = from_offset;
        self.get_from(&GetRequest { topic, queue_id, offset, max_count, max_bytes, filter, source, limits })
    }

    /// As [`Self::get`], with all options of a request.
    ///
    /// A call skips a bounded number of messages and bytes that the filter rejects, whatever the source.
    pub fn get_from(&self, request: &GetRequest<'_>) -> GetResult<D::Region> {
        match self.if_open() {
            Some(reader) => {
                let begun = Instant::now();
                let found = reader.read(request);
                reader.counters.count_get_time(begun.elapsed());
                found
            }
            None => empty(GetStatus::NoMatchedLogicQueue, request.offset, 0, 0),
        }
    }
}

/// Reads that go on during a close: the state of leases depends on them.
impl<D: Disk> Reader<D> {
    /// As [`Self::get_from`], for a client.
    pub(crate) fn read(&self, request: &GetRequest<'_>) -> GetResult<D::Region> {
        let result = self.read_internal(request);
        self.counters.count_get(&result);
        result
    }

    /// As [`Self::get_from`], for the store itself.
    pub(crate) fn read_internal(&self, request: &GetRequest<'_>) -> GetResult<D::Region> {
        let result = match self.queues.find(request.topic, request.queue_id) {
            Some(queue) => self.read_queue(&queue, request),
            None => empty(GetStatus::NoMatchedLogicQueue, 0, 0, 0),
        };
        if result.status != GetStatus::Found && !result.is_cold {
            self.counters.count_missed_get(result.status);
        }
        result
    }

    /// Reads messages of a queue without a filter, for a thread of the store.
    pub(crate) fn read_all(
        &self,
        topic: &str,
        queue_id: u32,
        offset: u64,
        max_count: usize,
        max_bytes: usize,
    ) -> GetResult<D::Region> {
        let (filter, source, limits) = (&MessageFilter::All, Source::Anywhere, TransferLimits::NONE);
        self.read_internal(&GetRequest {
            topic,
            queue_id,
            offset,
            max_count,
            max_bytes,
            filter,
            source,
            limits,
        })
    }

    fn read_queue(&self, queue: &ConsumeQueue<D>, request: &GetRequest<'_>) -> GetResult<D::Region> {
        let is_end_unknown = queue.marks.is_end_unknown();
        let (min_offset, max_offset) = (queue.min_offset(), queue.max_offset());
        let (status, next_offset) = match request.offset {
            offset if queue.marks.is_shut() => (GetStatus::QueueClosed, offset),
            // Messages there may exist, but are not listed yet.
            offset if is_end_unknown && offset >= max_offset => (GetStatus::QueueClosed, offset),
            _ if max_offset == 0 => (GetStatus::NoMessageInQueue, 0),
            offset if offset < min_offset => (GetStatus::OffsetTooSmall, min_offset),
            offset if offset == max_offset => (GetStatus::OffsetOverflowOne, offset),
            offset if offset > max_offset => (GetStatus::OffsetOverflowBadly, max_offset),
            offset => {
                let found = QueueRead::new(self, queue, request, min_offset, max_offset).read();
                let min_offset = queue.min_offset();
                if !found.messages.is_empty() || offset >= min_offset {
                    return found;
                }
                // Retention removed it meanwhile.
                (GetStatus::OffsetTooSmall, min_offset)
            }
        };
        empty(status, next_offset, min_offset, max_offset)
    }

    /// Where to continue after a removed message: after all messages of its file if that is gone.
    fn offset_after_removed(&self, queue: &ConsumeQueue<D>, queue_offset: u64, removed: QueueEntry) -> u64 {
        let files = self.log.files();
        let next = queue_offset + 1;
        if files.contains(removed.physical_offset) {
            return next;
        }
        match files.begin_after(removed.physical_offset) {
            Some(kept) => queue.first_at_or_after(kept, next),
            None => next,
        }
    }
}

fn empty<R: Region>(status: GetStatus, next_offset: u64, min_offset: u64, max_offset: u64) -> GetResult<R> {
    GetResult { status, messages: Vec::new(), next_offset, min_offset, max_offset, is_cold: false }
}

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
struct QueueRead<'a, D: Disk> {
    reader: &'a Reader<D>,
    queue: &'a ConsumeQueue<D>,
    filter: &'a MessageFilter,
    source: Source,
    max_count: usize,
    max_bytes: usize,
    limits: TransferLimits,
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
    result: GetResult<D::Region>,
}

impl<'a, D: Disk> QueueRead<'a, D> {
    fn new(
        reader: &'a Reader<D>,
        queue: &'a ConsumeQueue<D>,
        request: &GetRequest<'a>,
        min_offset: u64,
        max_offset: u64,
    ) -> Self {
        let log_end = reader.log.written();
        Self {
            reader,
            queue,
            filter: request.filter,
            source: request.source,
            max_count: request.max_count,
            max_bytes: request.max_bytes.max(MIN_READ_BYTES),
            limits: request.limits,
            log_end,
            bytes: 0,
            entries_left: request.limits.scan_entries.max(request.max_count as u64),
            bytes_left: MAX_FRUITLESS_BYTES,
            file: None,
            known: KnownPages::new(reader.log.freshness.from(log_end)),
            result: empty(GetStatus::NoMatchedMessage, request.offset, min_offset, max_offset),
        }
    }

    fn read(mut self) -> GetResult<D::Region> {
        let left = usize::try_from(self.result.max_offset - self.result.next_offset).unwrap_or(usize::MAX);
        self.result.messages.reserve_exact(self.max_count.min(left).min(USUAL_BATCH));
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
        match self.source {
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
        if !self.filter.may_have_hash(entry.tag_hash) {
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
        let record = match self.reader.log.record_in(&mut self.file, entry.physical_offset, entry.size) {
            Ok(record) => record,
            Err(error) => return self.end_before_unreadable(entry, &error),
        };
        // A filter reads only parts of other records: the rest may still be unreadable.
        if record.is_none() || self.reads_whole(queue_offset) {
            self.clear_unreadable(entry);
        }
        let is_other = |record: &Record<D::Region>| !record.is_at(entry.physical_offset, entry.size);
        if self.source == Source::Memory
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
                self.result.next_offset = self.reader.offset_after_removed(self.queue, queue_offset, entry);
                if self.result.next_offset > queue_offset + 1 { ReadStep::Jump } else { ReadStep::Continue }
            }
        }
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
        if self.source == Source::Anywhere {
            return Ok(true);
        }
        let log = &self.reader.log;
        if self.source == Source::Memory {
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
            return load_or_check(&mut self.known, file, whole, self.source);
        }
        let [head, tail] = parts_of_filter(whole);
        Ok(load_or_check(&mut self.known, file, head, self.source)?
            && load_or_check(&mut self.known, file, tail, self.source)?)
    }

    /// Whether the whole record is read before the filter decides.
    fn reads_whole(&self, queue_offset: u64) -> bool {
        *self.filter == MessageFilter::All || self.queue.is_unchecked(queue_offset)
    }

    /// Marks a record as readable: all of it was read, or it is gone.
    fn clear_unreadable(&self, entry: QueueEntry) {
        if self.source != Source::Anywhere {
            self.reader.unreadable.clear_record(entry.physical_offset);
        }
    }

    fn is_done(&self, queue_offset: u64) -> bool {
        self.entries_left == 0
            || self.bytes_left == 0
            || queue_offset >= self.result.max_offset
            || self.result.messages.len() >= self.max_count
            || self.is_late()
    }

    /// Whether the answer has no room for the message; it always has room for the first one.
    fn is_full_before(&self, entry: QueueEntry) -> bool {
        let (count, bytes) = (self.result.messages.len(), self.bytes + entry.size as usize);
        let behind = self.log_end.saturating_sub(entry.physical_offset);
        count > 0 && (bytes > self.max_bytes || self.limits.exclude(count, bytes, behind))
    }

    /// Whether the time of the read is over; it always makes one step.
    fn is_late(&self) -> bool {
        matches!(self.source, Source::Disk(until) if self.has_begun() && Instant::now() >= until)
    }

    fn has_begun(&self) -> bool {
        self.bytes_left < MAX_FRUITLESS_BYTES || !self.result.messages.is_empty()
    }

    fn miss(&mut self, status: GetStatus) {
        if self.result.messages.is_empty() {
            self.result.status = status;
        }
    }

    fn take(&mut self, queue_offset: u64, record: Record<D::Region>, entry: QueueEntry) -> ReadStep {
        if *self.filter != MessageFilter::All {
            if !is_wanted(self.filter, &record) {
                self.bytes_left = self.bytes_left.saturating_sub(entry.size.into());
                self.result.next_offset = queue_offset + 1;
                return ReadStep::Continue;
            }
            let whole = entry.physical_offset..entry.end();
            if let Some(file) = self.file.as_ref().filter(|_| self.source != Source::Anywhere) {
                match load_or_check(&mut self.known, file, whole, self.source) {
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

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, path::Path};

    use super::*;
    use crate::{
        config::StoreConfig, read::types::Boundary, record::message::NewMessage,
        store::message_store::MessageStore, time::clock::Clock,
    };

    fn filled(directory: &Path) -> MessageStore {
        let config = StoreConfig {
            commit_log_file_size: 4 << 10,
            consume_queue_file_entries: 10,
            index_slots: 50,
            index_entries: 200,
            disk_reserve: 0,
            ..StoreConfig::default()
        };
        let clock = Clock::manual(1000);
        let store = MessageStore::open(directory, config, clock.clone()).unwrap();
        for number in 0..60u8 {
            let message = NewMessage {
                topic: "t",
                queue_id: 0,
                flag: 0,
                sys_flag: 0,
                born_timestamp: 0,
                born_host: SocketAddr::from(([127, 0, 0, 1], 1)),
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body: &[number; 500],
                properties: b"",
            };
            store.log().append(&[message]).unwrap();
            clock.advance(1);
        }
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while store.admin().stats().dispatched_offset < store.admin().stats().max_physical_offset {
            assert!(std::time::Instant::now() < deadline, "not dispatched: {:?}", store.admin().stats());
            std::thread::yield_now();
        }
        store
    }

    fn offsets(found: &GetResult<crate::files::mapped_file::MappedRegion>) -> Vec<u64> {
        found.messages.iter().map(|(offset, _)| *offset).collect()
    }

    #[test]
    fn messages_whose_file_is_gone_are_passed_over_in_one_read() {
        let directory = tempfile::tempdir().unwrap();
        let store = filled(directory.path());
        let log = &store.queues().log;
        // The queue does not know it yet, as while files are being deleted.
        log.files().remove_below(5 * (4 << 10)).unwrap();
        let first = (0..60).find(|at| {
            let entry = store.queues().queues.find("t", 0).unwrap().entry(*at).unwrap();
            entry.physical_offset >= log.start()
        });
        let first = first.unwrap();
        assert!(first > 20, "{first}");
        let found = store.queues().get("t", 0, 0, 3, usize::MAX, &MessageFilter::All);
        assert_eq!((found.status, offsets(&found)), (GetStatus::Found, vec![first, first + 1, first + 2]));
        assert_eq!(found.next_offset, first + 3);
        let filtered = store.queues().get("t", 0, 0, 3, usize::MAX, &MessageFilter::tags("none"));
        assert_eq!((filtered.status, filtered.next_offset), (GetStatus::NoMatchedMessage, 60));
        // Removed messages have no time.
        let kept_time = 1000 + first as i64;
        assert_eq!(store.queues().earliest_time("t", 0), Some(kept_time));
        for (time, lower, upper) in [
            (0, first, 0),
            (1005, first, 0),
            (kept_time, first, first),
            (kept_time + 1, first + 1, first + 1),
        ] {
            assert_eq!(store.queues().offset_by_time("t", 0, time, Boundary::Lower), lower, "{time}");
            assert_eq!(store.queues().offset_by_time("t", 0, time, Boundary::Upper), upper, "{time}");
        }
    }

    #[test]
    fn a_read_that_finds_only_what_is_gone_says_so_and_goes_on_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = filled(directory.path());
        let reader = store.queues();
        let queue = reader.queues.find("t", 0).unwrap();
        let last = queue.entry(59).unwrap();
        let file = reader.log.files().open(last.physical_offset).unwrap().unwrap();
        // Its head states another offset.
        file.write(last.physical_offset + 28, &[&7u64.to_be_bytes()]).unwrap();
        let found = store.queues().get("t", 0, 59, 3, usize::MAX, &MessageFilter::All);
        assert_eq!((found.status, found.next_offset), (GetStatus::MessageWasRemoving, 60));
        assert!(found.messages.is_empty());
        assert_eq!(store.admin().stats().mismatches, 1);
        let before = store.queues().get("t", 0, 57, 3, usize::MAX, &MessageFilter::All);
        assert_eq!((before.status, offsets(&before)), (GetStatus::Found, vec![57, 58]));
        assert_eq!(before.next_offset, 60);
        // A wrong size is rejected too.
        let size = queue.entry(30).unwrap();
        let file = reader.log.files().open(size.physical_offset).unwrap().unwrap();
        file.write(size.physical_offset, &[&(size.size - 1).to_be_bytes()]).unwrap();
        assert_eq!(
            offsets(&store.queues().get("t", 0, 30, 2, usize::MAX, &MessageFilter::All)),
            vec![31, 32]
        );
    }

    #[test]
    fn where_a_file_of_the_queue_is_missing_a_read_goes_on_at_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let store = filled(directory.path());
        let queue = store.queues().queues.find("t", 0).unwrap();
        queue.files().remove_below(20 * 20).unwrap();
        let found = store.queues().get("t", 0, 3, 5, usize::MAX, &MessageFilter::All);
        assert_eq!((found.status, found.next_offset), (GetStatus::OffsetFoundNull, 20));
        let next = store.queues().get("t", 0, found.next_offset, 2, usize::MAX, &MessageFilter::All);
        assert_eq!((next.status, offsets(&next)), (GetStatus::Found, vec![20, 21]));
        assert_eq!(store.admin().stats().missed_gets.get(&GetStatus::OffsetFoundNull), Some(&1));
    }
}
