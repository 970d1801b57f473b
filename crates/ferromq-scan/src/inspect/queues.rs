//! Consume queues as they lie on disk: read through once, and looked up by queue offset.
//!
//! Whether an entry leads to the right record is decided by those who have the records.

use std::{
    collections::HashMap,
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{
    finding::{Finding, FindingKind, Run, Sink},
    layout::Layout,
    queue_slots::{QueueFiles, RowFile, Slot, decode, is_empty},
    window::Window,
};
use ferromq_store::{
    files::{Disk, Region},
    formats::consume_queue::{ENTRY_LEN, Entry},
};

const ENTRY: usize = ENTRY_LEN as usize;
/// Bytes of a queue read at once.
const PIECE: u64 = 3_276 * ENTRY_LEN;

/// What a queue was found to be.
#[derive(Debug, Default)]
pub(crate) struct QueueScan {
    /// First queue offset whose record is kept.
    pub(crate) min_offset: u64,
    /// Behind the last entry written.
    pub(crate) max_offset: u64,
    /// Entries that should lead to a record.
    pub(crate) expected: u64,
    /// Bytes of their records.
    pub(crate) bytes: u64,
    pub(crate) first: Option<Entry>,
    pub(crate) last: Option<Entry>,
    /// Records met in the log that their entry leads to.
    pub(crate) matched: AtomicU64,
}

/// Calls `visit` with queue offset and slot over one file, holes left out, until it says `false`.
pub(crate) fn walk_file<D: Disk>(
    layout: &Layout<D>,
    file: &RowFile,
    from: u64,
    mut visit: impl FnMut(u64, Slot) -> bool,
) -> io::Result<()> {
    let mut window = Window::with_step(layout.open(&file.path)?, PIECE);
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
            if slot != Slot::Empty && !visit(offset, slot) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Reads a queue through. Tells of gaps, of fillers between entries and of bytes that are no entries.
pub(crate) fn scan<D: Disk>(layout: &Layout<D>, queue: &QueueFiles, sink: &Sink<'_>) -> QueueScan {
    let (log_start, log_end) = (layout.log_start(), layout.log_end());
    let mut scan = QueueScan::default();
    let mut next = queue.files.first().map_or(0, |file| file.base / ENTRY_LEN);
    let (mut fillers, mut invalid) = (Run::default(), Run::default());
    let mut has_entry = false;
    (scan.min_offset, scan.max_offset) = (next, next);
    for file in &queue.files {
        // A missing file was told already.
        next = next.max(file.base / ENTRY_LEN);
        let in_file = |offset: u64| offset * ENTRY_LEN - file.base;
        let walked = walk_file(layout, file, 0, |offset, slot| {
            // What a broker at work has added since.
            if matches!(slot, Slot::Entry(entry) if layout.is_open() && entry.physical_offset >= log_end) {
                return false;
            }
            if offset > next {
                // Zeros that were read before the entries behind them were written are no gap.
                if layout.is_open() && !is_empty(&layout.disk, file, next) {
                    return false;
                }
                let (from, to) = (in_file(next), in_file(offset));
                let found = format!("no entries at the queue offsets {next} to {}", offset - 1);
                let mut finding = Finding::new(FindingKind::QueueGap, &file.path, from..to, "entries", found);
                finding.count = offset - next;
                sink.find(&finding);
            }
            next = offset + 1;
            let range = in_file(offset)..in_file(offset) + ENTRY_LEN;
            match slot {
                Slot::Entry(entry) => {
                    has_entry = true;
                    scan.max_offset = next;
                    if entry.physical_offset < log_start && scan.expected == 0 {
                        scan.min_offset = next;
                    } else {
                        scan.expected += 1;
                        scan.bytes += u64::from(entry.size);
                        scan.first = scan.first.or(Some(entry));
                        scan.last = Some(entry);
                    }
                }
                Slot::Filler if has_entry => {
                    let found = format!("a filler at queue offset {offset}");
                    fillers.add(
                        sink,
                        offset,
                        Finding::new(FindingKind::FillerInside, &file.path, range, "an entry", found),
                    );
                }
                Slot::Filler => (scan.min_offset, scan.max_offset) = (next, next),
                Slot::Invalid | Slot::Empty => {
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
            Err(error) => sink.unreadable(&file.path, 0..file.len, &error),
            Ok(()) => {}
        }
        sink.advance(file.len);
    }
    fillers.end(sink);
    invalid.end(sink);
    scan
}

/// Finds queues by name, and their entries by queue offset, through pieces kept of each.
pub(crate) struct Entries<'a, D: Disk> {
    layout: &'a Layout<D>,
    scans: &'a [QueueScan],
    names: &'a Names<'a>,
    pieces: HashMap<usize, Piece>,
    /// Entries in a piece.
    piece_len: u64,
    last: Option<usize>,
}

struct Piece {
    first: u64,
    bytes: Vec<u8>,
}

/// Queues by topic and id.
pub(crate) struct Names<'a>(HashMap<(&'a str, u32), usize>);

impl<'a> Names<'a> {
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

/// Bytes of pieces one worker keeps.
const BUDGET: u64 = 16 << 20;
const MAX_PIECES: usize = 8192;

impl<'a, D: Disk> Entries<'a, D> {
    pub(crate) fn new(layout: &'a Layout<D>, scans: &'a [QueueScan], names: &'a Names<'a>) -> Self {
        let share = BUDGET / ENTRY_LEN / (layout.queues.len().clamp(1, MAX_PIECES) as u64);
        Self { layout, scans, names, pieces: HashMap::new(), piece_len: share.clamp(64, 8192), last: None }
    }

    /// The number of a queue; most records follow one of the same queue.
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

    /// The slot at a queue offset; `Empty` behind the end that was found when the queue was read through.
    pub(crate) fn slot(&mut self, queue: usize, offset: u64) -> io::Result<Slot> {
        let Some(scan) = self.scans.get(queue) else { return Ok(Slot::Empty) };
        if offset >= scan.max_offset {
            return Ok(Slot::Empty);
        }
        let held = self.pieces.get(&queue).filter(|piece| {
            offset >= piece.first && offset - piece.first < piece.bytes.len() as u64 / ENTRY_LEN
        });
        if held.is_none() {
            let piece = self.read(queue, offset)?;
            if self.pieces.len() >= MAX_PIECES {
                self.pieces.clear();
            }
            self.pieces.insert(queue, piece);
        }
        let slot = self.pieces.get(&queue).and_then(|piece| {
            let at = usize::try_from(offset.checked_sub(piece.first)?).ok()?.checked_mul(ENTRY)?;
            piece.bytes.get(at..at.checked_add(ENTRY)?)
        });
        Ok(slot.map_or(Slot::Empty, decode))
    }

    fn read(&self, queue: usize, offset: u64) -> io::Result<Piece> {
        let none = Piece { first: offset, bytes: Vec::new() };
        let Some(at) = offset.checked_mul(ENTRY_LEN) else { return Ok(none) };
        let file = self.layout.queues.get(queue).and_then(|queue| {
            let after = queue.files.partition_point(|file| file.base <= at);
            queue.files.get(after.checked_sub(1)?).filter(|file| at < file.end())
        });
        let Some(file) = file else { return Ok(none) };
        let len = (file.end() - at).min(self.piece_len * ENTRY_LEN);
        let mut bytes = vec![0; len as usize];
        self.layout.open(&file.path)?.read_at(at - file.base, &mut bytes)?;
        Ok(Piece { first: offset, bytes })
    }
}

impl QueueScan {
    pub(crate) fn add_match(&self) {
        self.matched.fetch_add(1, Ordering::Relaxed);
    }

    /// Says whether some entry leads to no record of its own.
    pub(crate) fn is_suspect(&self) -> bool {
        self.matched.load(Ordering::Relaxed) != self.expected
    }
}
