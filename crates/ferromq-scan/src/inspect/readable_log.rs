//! Finds how far each commit log file may be read while a broker writes to the store, and where its queues begin.
//!
//! Readers stop at the last flush. ferromq notes the flushed offset; RocketMQ notes the flushed store time.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    InspectOptions,
    finding::FindingKind,
    layout::{StoreLayout, StoreState},
    log_file::{LogFile, Scanned},
    queue_slots::{QueueFiles, QueueSlot, SegmentFile, slot_of},
};
use crate::columns::{QueueBegins, QueueStarts};
use ferromq_store::{
    Result, StoreError,
    files::{Disk, RealDisk},
    formats::{anchor::Anchor, flush_mark, queue_entry::ENTRY_LEN},
    record::MessageView,
};

/// How far RocketMQ's checkpoint may run ahead of its disk; its own recovery subtracts the same margin.
const JAVA_MARGIN_MS: i64 = 3_000;

/// The readable part of a commit log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPart {
    /// Path of the file.
    pub path: PathBuf,
    /// Physical offset of the first byte.
    pub base: u64,
    /// Physical offset of the end of the readable bytes, exclusive.
    pub end: u64,
}

/// Lists the commit log files in order, with the readable part of each. Files without readable bytes are left out.
///
/// A closed store is readable to the end. In an open or killed store the readable part ends at the last noted flush:
/// `ferromq/flushed`, or, for a Java broker, the last record stored three seconds before the time in its checkpoint. If
/// a base is not the end of the previous file, a file is missing.
///
/// # Errors
/// `Io` if a file or the directory cannot be read, `NoStore` if the directory is not a store.
pub fn log_files(directory: &Path, options: &InspectOptions) -> Result<Vec<LogPart>> {
    log_files_on(RealDisk, directory, options)
}

/// As [`log_files`], on another disk.
pub fn log_files_on<D: Disk>(disk: D, directory: &Path, options: &InspectOptions) -> Result<Vec<LogPart>> {
    let layout = StoreLayout::read(disk, directory, options)?;
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

fn readable_end<D: Disk>(layout: &StoreLayout<D>) -> Result<u64> {
    match layout.state {
        StoreState::Closed => walk_end(layout, |_| false),
        _ if layout.is_ours() => Ok(flushed_end(layout)?.min(layout.log_end())),
        _ => {
            let limit = layout.marks.map_or(0, |marks| marks.log_timestamp).saturating_sub(JAVA_MARGIN_MS);
            walk_end(layout, |view| view.store_timestamp >= limit)
        }
    }
}

/// The end noted by the last flush, or else by the last checkpoint.
fn flushed_end<D: Disk>(layout: &StoreLayout<D>) -> Result<u64> {
    let at_checkpoint = layout.marks.map_or(0, |marks| marks.durable_end.max(0) as u64);
    let mut last = None;
    // The mark is written in place, so a concurrent write can tear a read.
    for _ in 0..3 {
        let mark = flush_mark::read(&layout.disk, &layout.root);
        let is_same = mark == last;
        last = mark;
        if mark.is_some() || is_same {
            break;
        }
    }
    match last {
        Some((anchor, end)) if is_same_log(layout, anchor)? => Ok(end.max(at_checkpoint)),
        _ => Ok(at_checkpoint),
    }
}

/// Whether the anchor was taken from this log.
fn is_same_log<D: Disk>(layout: &StoreLayout<D>, anchor: Anchor) -> Result<bool> {
    let Some((_, found)) = layout.log_file(anchor.physical_offset) else { return Ok(true) };
    let mut file = open(layout, found)?;
    let record = file.record_at(anchor.physical_offset - found.base);
    let record = record.map_err(|source| StoreError::io("read", &found.path, source))?;
    Ok(record.is_none_or(|view| Anchor::of(&view) == anchor))
}

fn open<D: Disk>(layout: &StoreLayout<D>, file: &SegmentFile) -> Result<LogFile<D::Region>> {
    let region = layout.open(&file.path).map_err(|source| StoreError::io("open", &file.path, source))?;
    Ok(LogFile::new(region, file.base))
}

/// The end of the records, or the first record that is `behind` the flush. Store times grow along the log.
fn walk_end<D: Disk>(layout: &StoreLayout<D>, behind: impl Fn(&MessageView<'_>) -> bool) -> Result<u64> {
    for file in layout.log.iter().rev() {
        let failed = |source| StoreError::io("read", &file.path, source);
        let mut log = open(layout, file)?;
        let mut head = [0; 8];
        layout.open(&file.path).and_then(|region| region_head(&region, &mut head)).map_err(failed)?;
        // The file is prepared but unused, or begins behind the end.
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

/// Reads where the queues of a store begin. Call it after [`log_files`]: the queues then cover all readable records.
///
/// # Errors
/// Those of [`log_files`].
pub fn queue_starts(directory: &Path, options: &InspectOptions) -> Result<QueueStarts> {
    queue_starts_on(RealDisk, directory, options)
}

/// As [`queue_starts`], on another disk.
pub fn queue_starts_on<D: Disk>(disk: D, directory: &Path, options: &InspectOptions) -> Result<QueueStarts> {
    let layout = StoreLayout::read(disk, directory, options)?;
    let mut starts = QueueStarts { undecided_from: undecided_from(&layout), ..QueueStarts::default() };
    for queue in &layout.queues {
        let Ok(queue_id) = i32::try_from(queue.queue_id) else { continue };
        let begins = begins(&layout, queue)?;
        starts.queues.entry(queue.topic.clone()).or_default().insert(queue_id, begins);
    }
    Ok(starts)
}

fn undecided_from<D: Disk>(layout: &StoreLayout<D>) -> u64 {
    match layout.state {
        StoreState::Closed => u64::MAX,
        _ if layout.is_ours() => layout.marks.map_or(0, |marks| marks.durable_end.max(0) as u64),
        _ => layout.dispatched,
    }
}

/// The first entry whose record is kept, found by bisection.
fn begins<D: Disk>(layout: &StoreLayout<D>, queue: &QueueFiles) -> Result<QueueBegins> {
    let log_start = layout.log_start();
    let is_before = |slot: &QueueSlot| match slot {
        QueueSlot::Filler => true,
        QueueSlot::Entry(entry) => entry.physical_offset < log_start,
        QueueSlot::Empty | QueueSlot::Invalid => false,
    };
    let mut next = 0;
    for file in &queue.files {
        let read = |offset| match slot_of(&layout.disk, file, offset) {
            // Retention deleted the file after it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(QueueSlot::Filler),
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
            QueueSlot::Entry(entry) => QueueBegins { offset: low, physical_offset: entry.physical_offset },
            QueueSlot::Invalid => QueueBegins { offset: low, physical_offset: log_start },
            QueueSlot::Empty | QueueSlot::Filler => {
                QueueBegins { offset: low, physical_offset: layout.log_end() }
            }
        });
    }
    Ok(QueueBegins { offset: next, physical_offset: layout.log_end() })
}
