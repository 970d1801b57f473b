//! Reads the records of a topic from a store directory, one at a time.
//!
//! It follows the consume queues, not the index, so an incomplete index hides no record.

use std::{io, path::Path};

use super::{
    InspectOptions,
    buffered_file::BufferedFile,
    layout::StoreLayout,
    queue_slots::{QueueFiles, QueueSlot, SegmentFile, decode},
    record_reader::{self, OpenLogFile},
};
use ferromq_store::{
    Result, StoreError,
    files::{Disk, RealDisk},
    formats::{
        message,
        queue_entry::{ENTRY_LEN, QueueEntry},
    },
    record::MessageView,
};

/// The records to read. `None` does not restrict.
#[derive(Debug, Clone, Default)]
pub struct DumpQuery {
    /// Topic name.
    pub topic: String,
    /// Queue ID; `None` reads all queues in turn.
    pub queue_id: Option<u32>,
    /// First queue offset.
    pub from_offset: Option<u64>,
    /// End of the queue offsets, exclusive.
    pub to_offset: Option<u64>,
    /// First store timestamp, in milliseconds since 1970.
    pub from_time: Option<i64>,
    /// Last store timestamp, in milliseconds since 1970.
    pub to_time: Option<i64>,
    /// A key or the unique key.
    pub key: Option<String>,
    /// Tag.
    pub tag: Option<String>,
    /// Most records to read.
    pub limit: Option<u64>,
}

/// The target of a queue entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DumpItem {
    /// A record. Decode its bytes with [`MessageView`].
    Record {
        /// The stored bytes of the record.
        bytes: Vec<u8>,
        /// Whether the checksums match.
        is_sound: bool,
    },
    /// An entry without a record.
    Lost {
        /// Queue ID.
        queue_id: u32,
        /// Queue offset of the entry.
        queue_offset: u64,
        /// What is wrong.
        reason: String,
    },
}

/// Reads records on demand and holds one at a time.
pub struct Dump<D: Disk = RealDisk> {
    layout: StoreLayout<D>,
    query: DumpQuery,
    /// Numbers of the queues left to read; the first is the current one.
    queues: std::collections::VecDeque<usize>,
    next: u64,
    is_begun: bool,
    open_file: Option<OpenQueueFile<D>>,
    log: OpenLogFile<D>,
    left: u64,
}

/// Reads a topic's records from the store directory of a ferromq or Java broker, closed or open. Read-only.
///
/// Records come in the order of queue offsets, queue after queue. Errors: those of [`super::verify`]; `NoSuchQueue` if
/// the topic or queue does not exist.
pub fn dump(directory: &Path, query: &DumpQuery, options: &InspectOptions) -> Result<Dump> {
    dump_on(RealDisk, directory, query, options)
}

/// As [`dump`], on another disk.
pub fn dump_on<D: Disk>(
    disk: D,
    directory: &Path,
    query: &DumpQuery,
    options: &InspectOptions,
) -> Result<Dump<D>> {
    let layout = StoreLayout::read(disk, directory, options)?;
    let is_wanted = |queue: &QueueFiles| {
        queue.topic == query.topic && query.queue_id.is_none_or(|queue_id| queue_id == queue.queue_id)
    };
    let queues: std::collections::VecDeque<usize> =
        (0..).zip(&layout.queues).filter(|(_, queue)| is_wanted(queue)).map(|(number, _)| number).collect();
    if queues.is_empty() {
        let mut topics: Vec<String> = layout.queues.iter().map(|queue| queue.topic.clone()).collect();
        topics.dedup();
        return Err(StoreError::NoSuchQueue { topic: query.topic.clone(), queue_id: query.queue_id, topics });
    }
    let left = query.limit.unwrap_or(u64::MAX);
    let query = query.clone();
    Ok(Dump { layout, query, queues, next: 0, is_begun: false, open_file: None, log: None, left })
}

impl<D: Disk> Iterator for Dump<D> {
    type Item = Result<DumpItem>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            let queue = *self.queues.front()?;
            match self.next_of(queue) {
                Ok(Some(item)) => {
                    self.left -= 1;
                    return Some(Ok(item));
                }
                Ok(None) => {
                    self.queues.pop_front();
                    self.is_begun = false;
                    self.open_file = None;
                }
                Err((path, source)) => {
                    self.queues.pop_front();
                    self.is_begun = false;
                    return Some(Err(StoreError::io("read", &path, source)));
                }
            }
        }
        None
    }
}

type Failed = (std::path::PathBuf, io::Error);

impl<D: Disk> Dump<D> {
    /// The next matching record of a queue; `None` at its end.
    fn next_of(&mut self, queue: usize) -> std::result::Result<Option<DumpItem>, Failed> {
        let root = self.layout.root.clone();
        let failed = |source| (root.clone(), source);
        if !self.is_begun {
            self.is_begun = true;
            self.next = self.begin(queue).map_err(failed)?;
        }
        let end = self.query.to_offset.unwrap_or(u64::MAX);
        let wanted_hash = self.query.tag.as_deref().map(|tag| message::tag_hash(Some(tag)));
        loop {
            let Some((offset, slot)) = self.next_slot(queue).map_err(failed)? else { return Ok(None) };
            if offset >= end {
                return Ok(None);
            }
            let QueueSlot::Entry(entry) = slot else { continue };
            let is_gone = entry.physical_offset < self.layout.log_start();
            // If the field holds no tag hash, the record's tag decides.
            let is_other = wanted_hash.is_some_and(|hash| hash != entry.tag_hash) && is_hash(entry);
            if is_gone || is_other {
                continue;
            }
            match self.matching(queue, offset, entry).map_err(failed)? {
                DumpMatch::ColumnSet(item) => return Ok(Some(item)),
                DumpMatch::Other => {}
                DumpMatch::PastEnd => return Ok(None),
            }
        }
    }

    fn matching(&mut self, queue: usize, offset: u64, entry: QueueEntry) -> io::Result<DumpMatch> {
        let queue_id = self.layout.queues.get(queue).map_or(0, |queue| queue.queue_id);
        let lost = |reason: &str| {
            let reason = format!("{reason} at physical offset {}", entry.physical_offset);
            Ok(DumpMatch::ColumnSet(DumpItem::Lost { queue_id, queue_offset: offset, reason }))
        };
        let Some((file, at)) = record_reader::find(&self.layout, &mut self.log, entry.physical_offset)?
        else {
            return lost("no file of the commit log");
        };
        let Some(view) = file.record_at(at)? else { return lost("no record") };
        if self.query.to_time.is_some_and(|to| view.store_timestamp > to) {
            return Ok(DumpMatch::PastEnd);
        }
        let is_early = self.query.from_time.is_some_and(|from| view.store_timestamp < from);
        if is_early || !has_marks(&self.query, &view) {
            return Ok(DumpMatch::Other);
        }
        let bytes = file.bytes_at(at)?.to_vec();
        let is_sound = MessageView::decode(&bytes, true).is_ok();
        Ok(DumpMatch::ColumnSet(DumpItem::Record { bytes, is_sound }))
    }

    /// The queue offset to begin at, found by bisection if the query has a first time.
    fn begin(&mut self, queue: usize) -> io::Result<u64> {
        let first = self.query.from_offset.unwrap_or(0);
        let (Some(time), Some(files)) = (self.query.from_time, self.layout.queues.get(queue)) else {
            return Ok(first);
        };
        let span = |file: &SegmentFile| (file.base / ENTRY_LEN, file.end() / ENTRY_LEN);
        let (Some((low, _)), Some((_, high))) = (files.files.first().map(span), files.files.last().map(span))
        else {
            return Ok(first);
        };
        let (mut low, mut high) = (low.max(first), high);
        while low < high {
            let middle = low + (high - low) / 2;
            let is_before = match self.slot(queue, middle)? {
                QueueSlot::Filler => true,
                QueueSlot::Entry(entry) if entry.physical_offset < self.layout.log_start() => true,
                // An unreadable record moves the search backward, so that no match is skipped.
                QueueSlot::Entry(entry) => {
                    match record_reader::find(&self.layout, &mut self.log, entry.physical_offset)? {
                        Some((file, at)) => {
                            file.record_at(at)?.is_some_and(|view| view.store_timestamp < time)
                        }
                        None => false,
                    }
                }
                QueueSlot::Empty | QueueSlot::Invalid => false,
            };
            if is_before { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    /// The next written slot from `self.next` on, and its queue offset.
    fn next_slot(&mut self, queue: usize) -> io::Result<Option<(u64, QueueSlot)>> {
        loop {
            let Some(files) = self.layout.queues.get(queue).map(|queue| &queue.files) else {
                return Ok(None);
            };
            let Some(at) = self.next.checked_mul(ENTRY_LEN) else { return Ok(None) };
            let Some(file) = files.iter().find(|file| file.end() > at) else { return Ok(None) };
            self.next = self.next.max(file.base / ENTRY_LEN);
            let offset = self.next;
            let slot = self.slot(queue, offset)?;
            self.next += 1;
            if slot != QueueSlot::Empty {
                return Ok(Some((offset, slot)));
            }
            if let Some(open) = &self.open_file {
                let data = open.file.next_data((offset * ENTRY_LEN).saturating_sub(open.base)) + open.base;
                self.next = self.next.max(data / ENTRY_LEN);
            }
        }
    }

    fn slot(&mut self, queue: usize, offset: u64) -> io::Result<QueueSlot> {
        let Some(at) = offset.checked_mul(ENTRY_LEN) else { return Ok(QueueSlot::Empty) };
        let Some(files) = self.layout.queues.get(queue).map(|queue| &queue.files) else {
            return Ok(QueueSlot::Empty);
        };
        let after = files.partition_point(|file| file.base <= at);
        let found = after.checked_sub(1).and_then(|number| files.get(number));
        let Some(file) = found.filter(|file| at < file.end()) else { return Ok(QueueSlot::Empty) };
        let open = match self.open_file.take().filter(|open| (open.queue, open.base) == (queue, file.base)) {
            Some(open) => open,
            None => OpenQueueFile {
                queue,
                base: file.base,
                file: BufferedFile::with_step(self.layout.open(&file.path)?, 64 << 10),
            },
        };
        let at = at - file.base;
        Ok(decode(self.open_file.insert(open).file.get(at..at + ENTRY_LEN)?))
    }
}

/// The consume queue file that was read last.
struct OpenQueueFile<D: Disk> {
    queue: usize,
    base: u64,
    file: BufferedFile<D::Region>,
}

enum DumpMatch {
    ColumnSet(DumpItem),
    Other,
    /// The record is newer than the query's last time.
    PastEnd,
}

/// Delayed messages hold their delivery time in this field, extended entries an address; neither fits 32 bits.
fn is_hash(entry: QueueEntry) -> bool {
    i32::try_from(entry.tag_hash).is_ok()
}

fn has_marks(query: &DumpQuery, view: &MessageView<'_>) -> bool {
    let marks = view.marks();
    query.tag.as_deref().is_none_or(|tag| marks.tags == Some(tag))
        && query.key.as_deref().is_none_or(|wanted| marks.each_key().any(|key| key == wanted))
}
