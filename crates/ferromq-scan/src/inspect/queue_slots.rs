//! Segment files, and the slots of consume queues in them.

use std::{io, path::PathBuf};

use ferromq_store::{
    files::{Allocation, Disk, Region},
    formats::queue_entry::{ENTRY_LEN, QueueEntry},
};

/// A file of the log or of a queue, named by the offset of its first byte.
#[derive(Debug, Clone)]
pub(crate) struct SegmentFile {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) path: PathBuf,
}

impl SegmentFile {
    pub(crate) fn end(&self) -> u64 {
        self.base.saturating_add(self.len)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct QueueFiles {
    pub(crate) topic: String,
    pub(crate) queue_id: u32,
    pub(crate) files: Vec<SegmentFile>,
}

/// Content of a consume queue's slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueSlot {
    /// Never written.
    Empty,
    /// Space before the first entry, zero or RocketMQ's filler.
    Filler,
    Entry(QueueEntry),
    /// Bytes that are no entry.
    Invalid,
}

pub(crate) fn decode(bytes: &[u8]) -> QueueSlot {
    match QueueEntry::decode(bytes) {
        Some(entry) if entry.is_filler() => QueueSlot::Filler,
        Some(entry) => QueueSlot::Entry(entry),
        None if bytes.iter().all(|byte| *byte == 0) => QueueSlot::Empty,
        None => QueueSlot::Invalid,
    }
}

/// Whether no entry is written at a queue offset.
pub(crate) fn is_empty<D: Disk>(disk: &D, file: &SegmentFile, offset: u64) -> bool {
    slot_of(disk, file, offset).is_ok_and(|slot| slot == QueueSlot::Empty)
}

/// Reads one slot.
pub(crate) fn slot_of<D: Disk>(disk: &D, file: &SegmentFile, offset: u64) -> io::Result<QueueSlot> {
    let mut bytes = [0; ENTRY_LEN as usize];
    let Some(at) = offset.checked_mul(ENTRY_LEN).and_then(|at| at.checked_sub(file.base)) else {
        return Ok(QueueSlot::Empty);
    };
    disk.open(&file.path, Allocation::ReadOnly)?.read_at(at, &mut bytes)?;
    Ok(decode(&bytes))
}

/// The last entry of a queue, found by bisection: written slots precede unwritten ones.
pub(crate) fn last_entry<D: Disk>(disk: &D, queue: &QueueFiles) -> Option<QueueEntry> {
    let is_begun = |file: &&SegmentFile| !is_empty(disk, file, file.base / ENTRY_LEN);
    let file = queue.files.iter().rev().find(is_begun)?;
    let (mut low, mut high) = (file.base / ENTRY_LEN, file.end() / ENTRY_LEN);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if is_empty(disk, file, middle) { high = middle } else { low = middle }
    }
    match slot_of(disk, file, low) {
        Ok(QueueSlot::Entry(entry)) => Some(entry),
        _ => None,
    }
}
