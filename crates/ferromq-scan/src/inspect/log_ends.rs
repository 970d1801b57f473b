//! Which part of each commit log file may be read while its store is at work, and where its queues begin.
//!
//! Never beyond what was flushed: our stores note it after each flush, RocketMQ's notes up to which store time it is.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    InspectOptions,
    finding::FindingKind,
    layout::{Layout, StoreState},
    log_file::{LogFile, Scanned},
    queue_slots::{QueueFiles, RowFile, Slot, slot_of},
};
use crate::columns::{QueueBegins, QueueStarts};
use ferromq_store::{
    Result, StoreError,
    files::{Disk, RealDisk},
    formats::{anchor::Anchor, consume_queue::ENTRY_LEN, flush_mark},
    record::MessageView,
};

/// Times in RocketMQ's checkpoint may run so far ahead of its disk; its own recovery takes off as much.
const JAVA_MARGIN_MS: i64 = 3_000;

/// A commit log file and what may be read of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPart {
    /// The file.
    pub path: PathBuf,
    /// Physical offset of its first byte.
    pub base: u64,
    /// Behind the last byte that may be read, a physical offset.
    pub end: u64,
}

/// The files of a store's log, in order, with what may be read of each; those of which nothing may be are left out.
///
/// Of a store that was closed that is everything. Of one that is open, or was killed, it ends where its broker noted the
/// last flush: `ferromq/flushed`, or, of a Java broker, the last record stored three seconds before the time in its
/// checkpoint. A base that is not the end of the file before tells of a file that is missing.
///
/// # Errors
/// `Io` where a file or the directory cannot be read, `NoStore` where it is something else.
pub fn log_files(directory: &Path, options: &InspectOptions) -> Result<Vec<LogPart>> {
    log_files_on(RealDisk, directory, options)
}

/// As [`log_files`], on another disk.
pub fn log_files_on<D: Disk>(disk: D, directory: &Path, options: &InspectOptions) -> Result<Vec<LogPart>> {
    let layout = Layout::read(disk, directory, options)?;
    if let Some(finding) = layout.findings.iter().find(|finding| {
        let is_of_log = layout.log_paths.iter().any(|path| finding.file.starts_with(path));
        is_of_log && finding.kind == FindingKind::Unreadable
    }) {
        return Err(StoreError::io("open", &finding.file, io::Error::other(finding.found.clone())));
    }
    let end = readable_end(&layout)?;
    let begun = layout.log.iter().filter(|file| file.base < end);
    Ok(begun
        .map(|file| LogPart { path: file.path.clone(), base: file.base, end: file.end().min(end) })
        .collect())
}

fn readable_end<D: Disk>(layout: &Layout<D>) -> Result<u64> {
    match layout.state {
        StoreState::Closed => walk_end(layout, |_| false),
        _ if layout.is_ours() => Ok(noted_end(layout)?.min(layout.log_end())),
        _ => {
            let limit = layout.marks.map_or(0, |marks| marks.log_timestamp).saturating_sub(JAVA_MARGIN_MS);
            walk_end(layout, |view| view.store_timestamp >= limit)
        }
    }
}

/// What our store noted after a flush, or else with its last checkpoint.
fn noted_end<D: Disk>(layout: &Layout<D>) -> Result<u64> {
    let at_checkpoint = layout.marks.map_or(0, |marks| marks.durable_end.max(0) as u64);
    let mut last = None;
    // Written in place: what is read while it is written may be neither the old one nor the new one.
    for _ in 0..3 {
        let mark = flush_mark::read(&layout.disk, &layout.root);
        let is_same = mark == last;
        last = mark;
        if mark.is_some() || is_same {
            break;
        }
    }
    match last {
        Some((anchor, end)) if is_held(layout, anchor)? => Ok(end.max(at_checkpoint)),
        _ => Ok(at_checkpoint),
    }
}

/// Says whether the log is the one an anchor was taken from.
fn is_held<D: Disk>(layout: &Layout<D>, anchor: Anchor) -> Result<bool> {
    let Some((_, found)) = layout.log_file(anchor.physical_offset) else { return Ok(true) };
    let mut file = open(layout, found)?;
    let record = file.record_at(anchor.physical_offset - found.base);
    let record = record.map_err(|source| StoreError::io("read", &found.path, source))?;
    Ok(record.is_none_or(|view| Anchor::of(&view) == anchor))
}

fn open<D: Disk>(layout: &Layout<D>, file: &RowFile) -> Result<LogFile<D::Region>> {
    let region = layout.open(&file.path).map_err(|source| StoreError::io("open", &file.path, source))?;
    Ok(LogFile::new(region, file.base))
}

/// Where the first record lies that is `behind` the end, else where the records end. Times only grow along the log.
fn walk_end<D: Disk>(layout: &Layout<D>, behind: impl Fn(&MessageView<'_>) -> bool) -> Result<u64> {
    for file in layout.log.iter().rev() {
        let failed = |source| StoreError::io("read", &file.path, source);
        let mut log = open(layout, file)?;
        let mut head = [0; 8];
        layout.open(&file.path).and_then(|region| region_head(&region, &mut head)).map_err(failed)?;
        // A file that is only prepared, or that begins behind the end.
        if head == [0; 8] || log.record_at(0).map_err(failed)?.is_some_and(|view| behind(&view)) {
            continue;
        }
        loop {
            let at = log.position();
            let end = match log.next_scanned().map_err(failed)? {
                Some(Scanned::Record(view) | Scanned::Damaged { view, .. }) if behind(&view) => at,
                Some(Scanned::Unwritten { at }) => at,
                Some(Scanned::Unsound { range, is_last: true, .. }) => range.end,
                Some(Scanned::Full) | None => file.len,
                Some(_) => continue,
            };
            return Ok(file.base + end);
        }
    }
    Ok(layout.log_start())
}

fn region_head(region: &impl ferromq_store::files::Region, head: &mut [u8; 8]) -> io::Result<()> {
    if region.len() < 8 { Ok(()) } else { region.read_at(0, head) }
}

/// Reads where the queues of a store begin. To be asked after [`log_files`], so that what may be read is decided.
///
/// # Errors
/// As [`log_files`].
pub fn queue_starts(directory: &Path, options: &InspectOptions) -> Result<QueueStarts> {
    queue_starts_on(RealDisk, directory, options)
}

/// As [`queue_starts`], on another disk.
pub fn queue_starts_on<D: Disk>(disk: D, directory: &Path, options: &InspectOptions) -> Result<QueueStarts> {
    let layout = Layout::read(disk, directory, options)?;
    let mut starts = QueueStarts { undecided_from: undecided_from(&layout), ..QueueStarts::default() };
    for queue in &layout.queues {
        let Ok(queue_id) = i32::try_from(queue.queue_id) else { continue };
        let begins = begins(&layout, queue)?;
        starts.queues.entry(queue.topic.clone()).or_default().insert(queue_id, begins);
    }
    Ok(starts)
}

fn undecided_from<D: Disk>(layout: &Layout<D>) -> u64 {
    match layout.state {
        StoreState::Closed => u64::MAX,
        _ if layout.is_ours() => layout.marks.map_or(0, |marks| marks.durable_end.max(0) as u64),
        _ => layout.dispatched,
    }
}

/// The first entry whose record is kept: all before it lead to records below the log's first, or nowhere.
fn begins<D: Disk>(layout: &Layout<D>, queue: &QueueFiles) -> Result<QueueBegins> {
    let log_start = layout.log_start();
    let is_before = |slot: &Slot| match slot {
        Slot::Filler => true,
        Slot::Entry(entry) => entry.physical_offset < log_start,
        Slot::Empty | Slot::Invalid => false,
    };
    let mut next = 0;
    for file in &queue.files {
        let read = |offset| match slot_of(&layout.disk, file, offset) {
            // Deleted since it was listed: its entries led to records that are gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Slot::Filler),
            slot => slot.map_err(|source| StoreError::io("read", &file.path, source)),
        };
        let (mut low, mut high) = (file.base / ENTRY_LEN, file.end() / ENTRY_LEN);
        next = high;
        if is_before(&read(high.saturating_sub(1))?) {
            continue;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(&read(middle)?) { low = middle + 1 } else { high = middle }
        }
        return Ok(match read(low)? {
            Slot::Entry(entry) => QueueBegins { offset: low, physical_offset: entry.physical_offset },
            Slot::Invalid => QueueBegins { offset: low, physical_offset: log_start },
            Slot::Empty | Slot::Filler => QueueBegins { offset: low, physical_offset: layout.log_end() },
        });
    }
    Ok(QueueBegins { offset: next, physical_offset: layout.log_end() })
}
