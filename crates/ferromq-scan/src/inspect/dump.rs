//! Records of a topic, read from a store directory one after the other.
//!
//! Queues and log are read as they lie on disk; the index is not needed, so nothing is missed where it is incomplete.

use std::{io, path::Path};

use super::{
    InspectOptions,
    layout::Layout,
    probe::{self, OpenFile},
    queue_slots::{QueueFiles, RowFile, Slot, decode},
    window::Window,
};
use ferromq_store::{
    Result, StoreError,
    files::{Disk, RealDisk},
    formats::{
        consume_queue::{ENTRY_LEN, Entry},
        message,
    },
    record::MessageView,
};

/// Which records to read. What is not set does not restrict.
#[derive(Debug, Clone, Default)]
pub struct DumpQuery {
    /// Topic.
    pub topic: String,
    /// Queue; all of them, one after the other, where not set.
    pub queue_id: Option<u32>,
    /// First queue offset.
    pub from_offset: Option<u64>,
    /// Queue offset behind the last.
    pub to_offset: Option<u64>,
    /// First store timestamp, milliseconds since 1970.
    pub from_time: Option<i64>,
    /// Last store timestamp.
    pub to_time: Option<i64>,
    /// A key, or the unique key.
    pub key: Option<String>,
    /// The tag.
    pub tag: Option<String>,
    /// Most records to read.
    pub limit: Option<u64>,
}

/// What a queue entry led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DumpItem {
    /// A record; decode its bytes with [`MessageView`].
    Record {
        /// The record as it lies on disk.
        bytes: Vec<u8>,
        /// Whether it matches its checksums.
        is_sound: bool,
    },
    /// An entry that leads to no record.
    Lost {
        /// Queue.
        queue_id: u32,
        /// Queue offset of the entry.
        queue_offset: u64,
        /// What is wrong.
        reason: String,
    },
}

/// Reads records on demand; one is held at a time.
pub struct Dump<D: Disk = RealDisk> {
    layout: Layout<D>,
    query: DumpQuery,
    /// Numbers of the queues that are left; the first is being read.
    queues: std::collections::VecDeque<usize>,
    next: u64,
    is_begun: bool,
    entries: Option<(usize, usize, Window<D::Region>)>,
    log: OpenFile<D>,
    left: u64,
}

/// Reads records of a topic from a store directory, ours or a Java broker's, closed or open. Read-only.
///
/// They come in the order of queue offsets, queue after queue. Errors: `Io` and `NoStore` as of [`super::verify`],
/// `NoSuchQueue` where the topic or queue is not there.
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
    let layout = Layout::read(disk, directory, options)?;
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
    Ok(Dump { layout, query, queues, next: 0, is_begun: false, entries: None, log: None, left })
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
                    self.entries = None;
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
    /// The next wanted record of a queue; `None` at its end.
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
            let Slot::Entry(entry) = slot else { continue };
            let is_gone = entry.physical_offset < self.layout.log_start();
            // Where the field is no tag hash, the tag itself decides.
            let is_other = wanted_hash.is_some_and(|hash| hash != entry.tag_hash) && is_hash(entry);
            if is_gone || is_other {
                continue;
            }
            match self.look(queue, offset, entry).map_err(failed)? {
                Look::Wanted(item) => return Ok(Some(item)),
                Look::Other => {}
                Look::Behind => return Ok(None),
            }
        }
    }

    fn look(&mut self, queue: usize, offset: u64, entry: Entry) -> io::Result<Look> {
        let queue_id = self.layout.queues.get(queue).map_or(0, |queue| queue.queue_id);
        let lost = |reason: &str| {
            let reason = format!("{reason} at physical offset {}", entry.physical_offset);
            Ok(Look::Wanted(DumpItem::Lost { queue_id, queue_offset: offset, reason }))
        };
        let Some((file, at)) = probe::find(&self.layout, &mut self.log, entry.physical_offset)? else {
            return lost("no file of the commit log");
        };
        let Some(view) = file.record_at(at)? else { return lost("no record") };
        if self.query.to_time.is_some_and(|to| view.store_timestamp > to) {
            return Ok(Look::Behind);
        }
        let is_early = self.query.from_time.is_some_and(|from| view.store_timestamp < from);
        if is_early || !has_marks(&self.query, &view) {
            return Ok(Look::Other);
        }
        let bytes = file.bytes_at(at)?.to_vec();
        let is_sound = MessageView::decode(&bytes, true).is_ok();
        Ok(Look::Wanted(DumpItem::Record { bytes, is_sound }))
    }

    /// The queue offset to begin at: the first wanted, or where the first wanted time can be.
    fn begin(&mut self, queue: usize) -> io::Result<u64> {
        let first = self.query.from_offset.unwrap_or(0);
        let (Some(time), Some(files)) = (self.query.from_time, self.layout.queues.get(queue)) else {
            return Ok(first);
        };
        let span = |file: &RowFile| (file.base / ENTRY_LEN, file.end() / ENTRY_LEN);
        let (Some((low, _)), Some((_, high))) = (files.files.first().map(span), files.files.last().map(span))
        else {
            return Ok(first);
        };
        let (mut low, mut high) = (low.max(first), high);
        while low < high {
            let middle = low + (high - low) / 2;
            let is_before = match self.slot(queue, middle)? {
                Slot::Filler => true,
                Slot::Entry(entry) if entry.physical_offset < self.layout.log_start() => true,
                // Where nothing can be read the search goes on before it, so that nothing is missed.
                Slot::Entry(entry) => {
                    match probe::find(&self.layout, &mut self.log, entry.physical_offset)? {
                        Some((file, at)) => {
                            file.record_at(at)?.is_some_and(|view| view.store_timestamp < time)
                        }
                        None => false,
                    }
                }
                Slot::Empty | Slot::Invalid => false,
            };
            if is_before { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    /// The next slot that was written, from `self.next` on, and its queue offset.
    fn next_slot(&mut self, queue: usize) -> io::Result<Option<(u64, Slot)>> {
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
            if slot != Slot::Empty {
                return Ok(Some((offset, slot)));
            }
            if let Some((_, number, window)) = &self.entries
                && let Some(base) =
                    self.layout.queues.get(queue).and_then(|queue| Some(queue.files.get(*number)?.base))
            {
                let data = window.next_data((offset * ENTRY_LEN).saturating_sub(base)) + base;
                self.next = self.next.max(data / ENTRY_LEN);
            }
        }
    }

    fn slot(&mut self, queue: usize, offset: u64) -> io::Result<Slot> {
        let Some(at) = offset.checked_mul(ENTRY_LEN) else { return Ok(Slot::Empty) };
        let Some(files) = self.layout.queues.get(queue).map(|queue| &queue.files) else {
            return Ok(Slot::Empty);
        };
        let after = files.partition_point(|file| file.base <= at);
        let found = after.checked_sub(1).and_then(|number| Some((number, files.get(number)?)));
        let Some((number, file)) = found.filter(|(_, file)| at < file.end()) else { return Ok(Slot::Empty) };
        if self.entries.as_ref().is_none_or(|(q, n, _)| (*q, *n) != (queue, number)) {
            let window = Window::with_step(self.layout.open(&file.path)?, 64 << 10);
            self.entries = Some((queue, number, window));
        }
        let at = at - file.base;
        match &mut self.entries {
            Some((_, _, window)) => Ok(decode(window.get(at..at + ENTRY_LEN)?)),
            None => Ok(Slot::Empty),
        }
    }
}

enum Look {
    Wanted(DumpItem),
    Other,
    /// The record is newer than all that is wanted.
    Behind,
}

/// Delivery times of delayed messages and places of extended entries are no 32-bit hashes.
fn is_hash(entry: Entry) -> bool {
    i32::try_from(entry.tag_hash).is_ok()
}

fn has_marks(query: &DumpQuery, view: &MessageView<'_>) -> bool {
    let marks = view.marks();
    query.tag.as_deref().is_none_or(|tag| marks.tags == Some(tag))
        && query.key.as_deref().is_none_or(|wanted| marks.each_key().any(|key| key == wanted))
}
