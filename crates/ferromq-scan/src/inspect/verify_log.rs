//! Verifies one commit log file against its queue entries and index keys.
//!
//! Each file is checked alone, so several can be checked at once.

use std::{collections::HashMap, io, ops::Range};

use super::{
    finding::{Finding, FindingKind, FindingRun, Sink},
    index_scan::{IndexCursor, IndexScan, IndexedEntry},
    key_hashes,
    layout::StoreLayout,
    log_file::{LogFile, Scanned},
    may_have_key,
    queue_scan::{QueueEntries, QueueScan},
    queue_slots::{QueueSlot, SegmentFile},
    record_reader::RecordReader,
};
use ferromq_store::{
    files::Disk,
    formats::{
        message::{self, CONTINUED},
        queue_entry::QueueEntry,
    },
    record::{MessageView, names::SCHEDULE_TOPIC},
};

/// The queues and index that all threads compare with.
pub(crate) struct DerivedData<'a, D: Disk> {
    pub(crate) layout: &'a StoreLayout<D>,
    pub(crate) queues: &'a [QueueScan],
    pub(crate) index: &'a IndexScan,
    /// Records before this physical offset must have queue entries.
    pub(crate) limit: u64,
    /// Records before this physical offset must have index entries …
    pub(crate) index_limit: u64,
    /// … except these, for which no index was built.
    pub(crate) unindexed: Range<u64>,
    pub(crate) is_deleted: &'a (dyn Fn(&str, u32, u64) -> bool + Sync),
}

/// The result of reading a log file.
#[derive(Debug, Default)]
pub(crate) struct LogFileScan {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) first_timestamp: Option<i64>,
    pub(crate) last_timestamp: i64,
    /// End of the last record, relative to the file; the file's length if it is full.
    pub(crate) end: u64,
    /// Start of the zeros that fill the rest of the file.
    pub(crate) unwritten_from: Option<u64>,
    /// Bytes behind the last record that are no record.
    pub(crate) tail: Option<LogTail>,
    /// Records at the end that belong to an unfinished atomic batch: their number, and where they begin.
    pub(crate) open_batch: OpenBatch,
    pub(crate) not_dispatched: u64,
    pub(crate) of_deleted: u64,
    /// The open broker removed the file meanwhile.
    pub(crate) is_gone: bool,
}

/// Bytes behind the last record of a file, and their fault.
#[derive(Debug)]
pub(crate) struct LogTail {
    pub(crate) range: Range<u64>,
    pub(crate) kind: FindingKind,
    pub(crate) reason: &'static str,
}

/// An atomic batch whose last record is missing: its records so far, and its position in the file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OpenBatch {
    pub(crate) records: u64,
    pub(crate) start: u64,
}

/// Most runs of records without entries that are kept open, one a queue.
const MAX_OPEN_RUNS: usize = 4096;

/// The check of one file in progress.
struct LogFileCheck<'a, 'b, D: Disk> {
    derived: &'b DerivedData<'a, D>,
    file: &'b SegmentFile,
    sink: &'b Sink<'b>,
    entries: &'b mut QueueEntries<'a, D>,
    probe: RecordReader<'a, D>,
    cursor: IndexCursor<'a, D>,
    next_key: Option<IndexedEntry>,
    hashes: Vec<IndexedEntry>,
    keys: Vec<u32>,
    scan: LogFileScan,
    ordinal: u64,
    damaged: FindingRun,
    unindexed: FindingRun,
    stray: FindingRun,
    other_keys: FindingRun,
    without_entry: HashMap<usize, FindingRun>,
}

/// Reads and checks a log file.
pub(crate) fn check_log_file<'a, D: Disk>(
    derived: &DerivedData<'a, D>,
    number: usize,
    entries: &mut QueueEntries<'a, D>,
    sink: &Sink<'_>,
) -> LogFileScan {
    let layout = derived.layout;
    let Some(file) = layout.log.get(number) else { return LogFileScan::default() };
    let region = match layout.open(&file.path) {
        Ok(region) => region,
        Err(error) => {
            let is_gone = error.kind() == io::ErrorKind::NotFound && layout.is_open();
            if !is_gone {
                sink.report_unreadable(&file.path, 0..file.len, &error);
            }
            return LogFileScan { is_gone, ..LogFileScan::default() };
        }
    };
    let mut check = LogFileCheck {
        derived,
        file,
        sink,
        entries,
        probe: RecordReader::new(layout),
        cursor: derived.index.cursor(layout, number),
        next_key: None,
        hashes: Vec::new(),
        keys: Vec::new(),
        scan: LogFileScan::default(),
        ordinal: 0,
        damaged: FindingRun::default(),
        unindexed: FindingRun::default(),
        stray: FindingRun::default(),
        other_keys: FindingRun::default(),
        without_entry: HashMap::new(),
    };
    check.next_key = check.next_in_line();
    check.run(LogFile::new(region, file.base));
    check.end()
}

impl<D: Disk> LogFileCheck<'_, '_, D> {
    fn run(&mut self, mut log: LogFile<D::Region>) {
        const STEP: u64 = 1 << 20;
        let mut reported = 0;
        while !self.sink.is_stopped() {
            let at = log.position();
            if at >= reported + STEP {
                self.sink.advance(at - reported);
                reported = at;
            }
            match log.next_scanned() {
                // An open broker may be writing this record.
                Ok(Some(Scanned::Damaged { .. } | Scanned::Unsound { .. })) if self.is_unpromised(at) => {
                    break;
                }
                Ok(Some(scanned)) => self.take(at, scanned),
                Ok(None) => break,
                Err(error) => {
                    // The next record's start is unknown, so the rest of the file is skipped.
                    self.sink.report_unreadable(&self.file.path, at..self.file.len, &error);
                    break;
                }
            }
        }
        self.sink.advance(self.file.len - reported.min(self.file.len));
    }

    fn is_unpromised(&self, at: u64) -> bool {
        self.derived.layout.is_open() && self.file.base + at >= self.derived.limit
    }

    fn take(&mut self, at: u64, scanned: Scanned<'_>) {
        match scanned {
            Scanned::Record(view) => self.take_record(at, &view),
            Scanned::Damaged { kind, view } => {
                self.take_record(at, &view);
                let expected = match kind {
                    FindingKind::BodyChecksum => format!("a body with the CRC32 {:08x}", view.body_crc),
                    _ => "a record that matches its property CRC32".into(),
                };
                let found =
                    format!("{} of {} at queue offset {}", describe(&view), view.topic, view.queue_offset);
                let range = at..at + u64::from(view.total_size);
                self.damaged.add(self.sink, at, Finding::new(kind, &self.file.path, range, expected, found));
            }
            Scanned::Unsound { kind, range, reason, is_last: true } => {
                self.scan.tail = Some(LogTail { range, kind, reason });
            }
            Scanned::Unsound { kind, range, reason, .. } => {
                let expected = format!("a record at physical offset {}", self.file.base + range.start);
                self.sink.report(&Finding::new(kind, &self.file.path, range, expected, reason));
            }
            Scanned::Unwritten { at } => self.scan.unwritten_from = Some(at),
            Scanned::Full => self.scan.end = self.file.len,
        }
    }

    fn take_record(&mut self, at: u64, view: &MessageView<'_>) {
        let size = u64::from(view.total_size);
        let scan = &mut self.scan;
        self.ordinal += 1;
        scan.records += 1;
        scan.bytes += size;
        scan.end = at + size;
        scan.first_timestamp = scan.first_timestamp.or(Some(view.store_timestamp));
        scan.last_timestamp = scan.last_timestamp.max(view.store_timestamp);
        if view.sys_flag & CONTINUED == 0 {
            scan.open_batch = OpenBatch::default();
        } else if scan.open_batch.records == 0 {
            scan.open_batch = OpenBatch { records: 1, start: at };
        } else {
            scan.open_batch.records += 1;
        }
        let is_promised = view.physical_offset < self.derived.limit;
        scan.not_dispatched += u64::from(!is_promised);
        if let Some(found) = transaction_fault(view) {
            let range = at..at + size;
            let finding =
                Finding::new(FindingKind::TransactionFlag, &self.file.path, range, found.0, found.1);
            self.sink.report(&finding);
        }
        if message::is_consumable(view.sys_flag) && view.sys_flag & message::INNER_BATCH == 0 {
            self.check_entry(at, view, is_promised);
        }
        let DerivedData { index_limit, unindexed, .. } = self.derived;
        let is_indexed = view.physical_offset < *index_limit && !unindexed.contains(&view.physical_offset);
        self.check_keys(at, view, is_indexed);
    }

    fn check_entry(&mut self, at: u64, view: &MessageView<'_>, is_promised: bool) {
        let queue_id = u32::try_from(view.queue_id).unwrap_or(u32::MAX);
        let Some(queue) = self.entries.queue(view.topic, queue_id) else {
            if !is_promised {
            } else if (self.derived.is_deleted)(view.topic, queue_id, view.physical_offset) {
                self.scan.of_deleted += 1;
            } else {
                self.without_entry(usize::MAX, at, view, "there is no such queue".into());
            }
            return;
        };
        let slot = match self.entries.slot(queue, view.queue_offset) {
            Ok(slot) => slot,
            // The pass over the queue reported the error.
            Err(_) => return,
        };
        match slot {
            QueueSlot::Entry(entry) if entry.physical_offset == view.physical_offset => {
                let is_right = entry.size == view.total_size && is_tag_hash_of(entry.tag_hash, view);
                if is_right && let Some(scan) = self.derived.queues.get(queue) {
                    scan.add_match();
                }
            }
            _ if !is_promised => {}
            _ if (self.derived.is_deleted)(view.topic, queue_id, view.physical_offset) => {
                self.scan.of_deleted += 1
            }
            QueueSlot::Entry(entry) => self.other_entry(queue, at, view, entry),
            QueueSlot::Empty => self.without_entry(queue, at, view, "no entry there".into()),
            QueueSlot::Filler => self.without_entry(queue, at, view, "a filler there".into()),
            QueueSlot::Invalid => self.without_entry(queue, at, view, "bytes there that are no entry".into()),
        }
    }

    /// Handles an entry that leads elsewhere: perhaps to a second record of the same queue offset.
    fn other_entry(&mut self, queue: usize, at: u64, view: &MessageView<'_>, entry: QueueEntry) {
        let is_same = |other: &MessageView<'_>| {
            (other.topic, other.queue_id, other.queue_offset)
                == (view.topic, view.queue_id, view.queue_offset)
        };
        let is_twin = matches!(self.probe.record(entry.physical_offset), Ok(Some(other)) if is_same(&other));
        if is_twin {
            let expected = format!(
                "one record at queue offset {} of {} queue {}",
                view.queue_offset, view.topic, view.queue_id
            );
            let found = format!("a second record at physical offset {}", entry.physical_offset);
            let range = at..at + u64::from(view.total_size);
            let kind = FindingKind::DuplicateQueueOffset;
            self.sink.report(&Finding::new(kind, &self.file.path, range, expected, found));
        } else {
            let found = format!("an entry there that leads to {}", entry.physical_offset);
            self.without_entry(queue, at, view, found);
        }
    }

    fn without_entry(&mut self, queue: usize, at: u64, view: &MessageView<'_>, found: String) {
        if self.without_entry.len() >= MAX_OPEN_RUNS {
            self.without_entry.drain().for_each(|(_, mut run)| run.end(self.sink));
        }
        let place = format!("queue offset {} of {} queue {}", view.queue_offset, view.topic, view.queue_id);
        let range = at..at + u64::from(view.total_size);
        let finding = Finding::new(
            FindingKind::RecordWithoutEntry,
            &self.file.path,
            range,
            format!("an entry at {place}"),
            found,
        );
        // Records of missing queues are joined by their order in the log.
        let ordinal = if queue == usize::MAX { self.ordinal } else { view.queue_offset };
        self.without_entry.entry(queue).or_default().add(self.sink, ordinal, finding);
    }

    /// Compares the index entries for this record with its keys, in both directions.
    fn check_keys(&mut self, at: u64, view: &MessageView<'_>, is_promised: bool) {
        self.pass_stray(view.physical_offset);
        self.hashes.clear();
        while let Some(indexed) =
            self.next_key.filter(|key| key.entry.physical_offset == view.physical_offset)
        {
            self.hashes.push(indexed);
            self.next_key = self.next_in_line();
        }
        let is_indexed = message::is_indexed(view.sys_flag);
        self.keys.clear();
        if is_indexed {
            self.keys.extend(key_hashes(view));
        }
        for indexed in &self.hashes {
            let is_key = self.keys.contains(&indexed.entry.hash)
                || is_indexed && may_have_key(view, indexed.entry.hash);
            if !is_key {
                let (path, range) = self.derived.index.place(self.derived.layout, indexed);
                let expected = format!("a key of the record at physical offset {}", view.physical_offset);
                let found = format!("entry {} with the key hash {:08x}", indexed.number, indexed.entry.hash);
                let finding = Finding::new(FindingKind::IndexOtherKey, path, range, expected, found);
                self.other_keys.add(self.sink, u64::from(indexed.number), finding);
            }
        }
        if !is_promised {
            return;
        }
        let is_missing = |hash: &&u32| self.hashes.iter().all(|key| key.entry.hash != **hash);
        let missing = self.keys.iter().filter(is_missing).count();
        if missing > 0 {
            let range = at..at + u64::from(view.total_size);
            let expected = format!("index entries of the record at physical offset {}", view.physical_offset);
            let found = format!("{missing} keys without");
            let finding = Finding::new(FindingKind::KeyNotIndexed, &self.file.path, range, expected, found);
            self.unindexed.add(self.sink, self.ordinal, finding);
        }
    }

    /// Reports index entries for positions before `until` where no record begins.
    fn pass_stray(&mut self, until: u64) {
        while let Some(indexed) = self.next_key.filter(|key| key.entry.physical_offset < until) {
            let (path, range) = self.derived.index.place(self.derived.layout, &indexed);
            let found = format!(
                "entry {} leads to the physical offset {}",
                indexed.number, indexed.entry.physical_offset
            );
            let kind = FindingKind::IndexEntryWithoutRecord;
            let finding = Finding::new(kind, path, range, "a record where the entry leads", found);
            self.stray.add(self.sink, u64::from(indexed.number), finding);
            self.next_key = self.next_in_line();
        }
    }

    fn next_in_line(&mut self) -> Option<IndexedEntry> {
        loop {
            // The pass over the index reported the outliers.
            let indexed = self.cursor.next(self.sink)?;
            if indexed.entry.physical_offset >= self.file.end() && !indexed.is_outlier {
                return None;
            }
            if !indexed.is_outlier && indexed.entry.physical_offset >= self.file.base {
                return Some(indexed);
            }
        }
    }

    fn end(mut self) -> LogFileScan {
        let is_whole = !self.sink.is_stopped();
        // Records that an open broker appended meanwhile are not verified.
        if is_whole && !self.derived.layout.is_open() {
            self.pass_stray(self.file.end());
        } else if is_whole {
            self.pass_stray(self.file.base + self.scan.end);
        }
        for mut run in [self.damaged, self.unindexed, self.stray, self.other_keys] {
            run.end(self.sink);
        }
        self.without_entry.into_values().for_each(|mut run| run.end(self.sink));
        self.scan
    }
}

fn describe(view: &MessageView<'_>) -> String {
    format!("a body of {} bytes", view.body.len())
}

/// What a transaction's record must hold, and what it holds.
pub(crate) fn transaction_fault(view: &MessageView<'_>) -> Option<(&'static str, String)> {
    if !message::is_consumable(view.sys_flag) && view.queue_offset != 0 {
        let found = format!("system flag {} and queue offset {}", view.sys_flag, view.queue_offset);
        return Some(("queue offset 0 in a record that enters no queue", found));
    }
    let half = view.prepared_transaction_offset;
    let is_after = half < 0 || half as u64 >= view.physical_offset.max(1);
    if message::is_transaction_end(view.sys_flag) && is_after {
        let found = format!("a half message at physical offset {half}");
        return Some(("a half message before the record that ends it", found));
    }
    None
}

/// Whether a queue entry's tag hash is right. Delayed messages hold their delivery time there, extended entries an
/// address.
pub(crate) fn is_tag_hash_of(found: i64, view: &MessageView<'_>) -> bool {
    found == message::tag_hash(view.marks().tags)
        || (view.topic == SCHEDULE_TOPIC && found >= view.store_timestamp)
        || found < i64::from(i32::MIN)
}
