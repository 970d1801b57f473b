//! Consume queues: one pass over each, then lookups by queue offset.
//!
//! [`super::verify_log`] compares the entries with their records.

use std::{
    collections::HashMap,
    io,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    buffered_file::BufferedFile,
    finding::{Finding, FindingKind, FindingRun, Sink},
    layout::StoreLayout,
    queue_slots::{QueueFiles, QueueSlot, SegmentFile, decode, is_empty},
};
use ferromq_store::{
    files::{Disk, Region},
    formats::queue_entry::{ENTRY_LEN, QueueEntry},
};

const ENTRY: usize = ENTRY_LEN as usize;
/// Bytes read at once.
const PIECE: u64 = 3_276 * ENTRY_LEN;

/// The result of one pass over a queue.
#[derive(Debug, Default)]
pub(crate) struct QueueScan {
    /// First queue offset whose record is kept.
    pub(crate) min_offset: u64,
    /// End of the written entries, exclusive.
    pub(crate) max_offset: u64,
    /// Number of entries whose record must exist.
    pub(crate) expected: u64,
    /// Bytes of their records.
    pub(crate) bytes: u64,
    pub(crate) first: Option<QueueEntry>,
    pub(crate) last: Option<QueueEntry>,
    /// Number of records in the log that their entry leads to.
    pub(crate) matched: AtomicU64,
}

/// Calls `visit` with the queue offset and slot of each written entry, until it returns `false`.
pub(crate) fn walk_file<D: Disk>(
    layout: &StoreLayout<D>,
    file: &SegmentFile,
    from: u64,
    mut visit: impl FnMut(u64, QueueSlot) -> bool,
) -> io::Result<()> {
    let mut window = BufferedFile::with_step(layout.open(&file.path)?, PIECE);
    let mut at = from.saturating_sub(file.base / ENTRY_LEN).saturating_mul(ENTRY_LEN);
    while at < file.len {
        at = window.next_data(at) / ENTRY_LEN * ENTRY_LEN;
        let bytes = window.get(at..(at + PIECE).min(file.len))?;
        if bytes.is_empty() {
            break;
        }
        let first = (file.base + at) / ENTRY_LEN;
        at += bytes.len() as u64;
        for (offset, bytes) in (first..).zip(bytes.chunks_exact(ENTRY)) {
            let slot = decode(bytes);
            if slot != QueueSlot::Empty && !visit(offset, slot) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Reads a queue once. Reports gaps, fillers between entries, and bytes that are no entry.
pub(crate) fn scan_queue<D: Disk>(layout: &StoreLayout<D>, queue: &QueueFiles, sink: &Sink<'_>) -> QueueScan {
    let (log_start, log_end) = (layout.log_start(), layout.log_end());
    let mut scan = QueueScan::default();
    let mut next = queue.files.first().map_or(0, |file| file.base / ENTRY_LEN);
    let (mut fillers, mut invalid) = (FindingRun::default(), FindingRun::default());
    let mut has_entry = false;
    (scan.min_offset, scan.max_offset) = (next, next);
    for file in &queue.files {
        next = next.max(file.base / ENTRY_LEN);
        let in_file = |offset: u64| offset * ENTRY_LEN - file.base;
        let walked = walk_file(layout, file, 0, |offset, slot| {
            // An open broker added the entry after the log was listed.
            if matches!(slot, QueueSlot::Entry(entry) if layout.is_open() && entry.physical_offset >= log_end)
            {
                return false;
            }
            if offset > next {
                // A concurrent broker filled the zeros after they were read.
                if layout.is_open() && !is_empty(&layout.disk, file, next) {
                    return false;
                }
                report_gap(file, next..offset, sink);
            }
            next = offset + 1;
            let range = in_file(offset)..in_file(offset) + ENTRY_LEN;
            match slot {
                QueueSlot::Entry(entry) => {
                    has_entry = true;
                    scan.add_entry(entry, next, log_start);
                }
                QueueSlot::Filler if has_entry => {
                    let found = format!("a filler at queue offset {offset}");
                    fillers.add(
                        sink,
                        offset,
                        Finding::new(FindingKind::FillerInside, &file.path, range, "an entry", found),
                    );
                }
                QueueSlot::Filler => (scan.min_offset, scan.max_offset) = (next, next),
                QueueSlot::Invalid | QueueSlot::Empty => {
                    let found = format!("bytes that are no entry at queue offset {offset}");
                    let kind = FindingKind::EntryWithoutRecord;
                    invalid.add(sink, offset, Finding::new(kind, &file.path, range, "an entry", found));
                    scan.max_offset = next;
                }
            }
            !sink.is_stopped()
        });
        match walked {
            Err(error) if error.kind() == io::ErrorKind::NotFound && layout.is_open() => {}
            Err(error) => sink.report_unreadable(&file.path, 0..file.len, &error),
            Ok(()) => {}
        }
        sink.advance(file.len);
    }
    fillers.end(sink);
    invalid.end(sink);
    scan
}

fn report_gap(file: &SegmentFile, offsets: Range<u64>, sink: &Sink<'_>) {
    let in_file = |offset: u64| offset * ENTRY_LEN - file.base;
    let range = in_file(offsets.start)..in_file(offsets.end);
    let found = format!("no entries at the queue offsets {} to {}", offsets.start, offsets.end - 1);
    let mut finding = Finding::new(FindingKind::QueueGap, &file.path, range, "entries", found);
    finding.count = offsets.end - offsets.start;
    sink.report(&finding);
}

/// Finds queues by name and entries by queue offset. It caches a chunk of each queue.
pub(crate) struct QueueEntries<'a, D: Disk> {
    layout: &'a StoreLayout<D>,
    scans: &'a [QueueScan],
    names: &'a QueueNumbers<'a>,
    chunks: HashMap<usize, EntryChunk>,
    /// QueueEntries in a chunk.
    chunk_len: u64,
    last: Option<usize>,
}

struct EntryChunk {
    first: u64,
    bytes: Vec<u8>,
}

/// Queue numbers by topic and queue ID.
pub(crate) struct QueueNumbers<'a>(HashMap<(&'a str, u32), usize>);

impl<'a> QueueNumbers<'a> {
    pub(crate) fn new(queues: &'a [QueueFiles]) -> Self {
        Self(
            queues
                .iter()
                .enumerate()
                .map(|(number, queue)| ((queue.topic.as_str(), queue.queue_id), number))
                .collect(),
        )
    }

    pub(crate) fn find(&self, topic: &str, queue_id: u32) -> Option<usize> {
        self.0.get(&(topic, queue_id)).copied()
    }
}

/// Bytes of chunks that one thread caches.
const BUDGET: u64 = 16 << 20;
const MAX_PIECES: usize = 8192;

impl<'a, D: Disk> QueueEntries<'a, D> {
    pub(crate) fn new(
        layout: &'a StoreLayout<D>,
        scans: &'a [QueueScan],
        names: &'a QueueNumbers<'a>,
    ) -> Self {
        let share = BUDGET / ENTRY_LEN / (layout.queues.len().clamp(1, MAX_PIECES) as u64);
        Self { layout, scans, names, chunks: HashMap::new(), chunk_len: share.clamp(64, 8192), last: None }
    }

    /// Number of a queue, cached because consecutive records often share one.
    pub(crate) fn queue(&mut self, topic: &str, queue_id: u32) -> Option<usize> {
        let is_same = |number: &usize| {
            self.layout
                .queues
                .get(*number)
                .is_some_and(|queue| queue.queue_id == queue_id && queue.topic == topic)
        };
        if self.last.as_ref().is_none_or(|number| !is_same(number)) {
            self.last = self.names.find(topic, queue_id);
        }
        self.last
    }

    /// The slot at a queue offset; `Empty` behind the end found by the first pass.
    pub(crate) fn slot(&mut self, queue: usize, offset: u64) -> io::Result<QueueSlot> {
        let Some(scan) = self.scans.get(queue) else { return Ok(QueueSlot::Empty) };
        if offset >= scan.max_offset {
            return Ok(QueueSlot::Empty);
        }
        let held = self.chunks.get(&queue).filter(|chunk| {
            offset >= chunk.first && offset - chunk.first < chunk.bytes.len() as u64 / ENTRY_LEN
        });
        if held.is_none() {
            let chunk = self.read(queue, offset)?;
            if self.chunks.len() >= MAX_PIECES {
                self.chunks.clear();
            }
            self.chunks.insert(queue, chunk);
        }
        let slot = self.chunks.get(&queue).and_then(|chunk| {
            let at = usize::try_from(offset.checked_sub(chunk.first)?).ok()?.checked_mul(ENTRY)?;
            chunk.bytes.get(at..at.checked_add(ENTRY)?)
        });
        Ok(slot.map_or(QueueSlot::Empty, decode))
    }

    fn read(&self, queue: usize, offset: u64) -> io::Result<EntryChunk> {
        let none = EntryChunk { first: offset, bytes: Vec::new() };
        let Some(at) = offset.checked_mul(ENTRY_LEN) else { return Ok(none) };
        let file = self.layout.queues.get(queue).and_then(|queue| {
            let after = queue.files.partition_point(|file| file.base <= at);
            queue.files.get(after.checked_sub(1)?).filter(|file| at < file.end())
        });
        let Some(file) = file else { return Ok(none) };
        let len = (file.end() - at).min(self.chunk_len * ENTRY_LEN);
        let mut bytes = vec![0; len as usize];
        self.layout.open(&file.path)?.read_at(at - file.base, &mut bytes)?;
        Ok(EntryChunk { first: offset, bytes })
    }
}

impl QueueScan {
    /// Counts an entry whose successor has the queue offset `next`; its record is gone if it lies before `log_start`.
    fn add_entry(&mut self, entry: QueueEntry, next: u64, log_start: u64) {
        self.max_offset = next;
        if entry.physical_offset < log_start && self.expected == 0 {
            self.min_offset = next;
        } else {
            self.expected += 1;
            self.bytes += u64::from(entry.size);
            self.first = self.first.or(Some(entry));
            self.last = Some(entry);
        }
    }

    pub(crate) fn add_match(&self) {
        self.matched.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether some entry leads to no record of its own.
    pub(crate) fn is_suspect(&self) -> bool {
        self.matched.load(Ordering::Relaxed) != self.expected
    }
}
