//! Files in rows, and the slots of consume queues in them.

use std::{io, path::PathBuf};

use ferromq_store::{
    files::{Allocation, Disk, Region},
    formats::consume_queue::{ENTRY_LEN, Entry},
};

/// A file of a row, named by the offset of its first byte.
#[derive(Debug, Clone)]
pub(crate) struct RowFile {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) path: PathBuf,
}

impl RowFile {
    pub(crate) fn end(&self) -> u64 {
        self.base.saturating_add(self.len)
    }
}

/// The files of one consume queue.
#[derive(Debug, Clone)]
pub(crate) struct QueueFiles {
    pub(crate) topic: String,
    pub(crate) queue_id: u32,
    pub(crate) files: Vec<RowFile>,
}

/// What lies at a place of a consume queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nothing was written.
    Empty,
    /// Space before the first entry, or what RocketMQ fills it with.
    Filler,
    Entry(Entry),
    /// Bytes that are no entry.
    Invalid,
}

pub(crate) fn decode(bytes: &[u8]) -> Slot {
    match Entry::decode(bytes) {
        Some(entry) if entry.is_filler() => Slot::Filler,
        Some(entry) => Slot::Entry(entry),
        None if bytes.iter().all(|byte| *byte == 0) => Slot::Empty,
        None => Slot::Invalid,
    }
}

/// Whether nothing was written at a queue offset yet.
pub(crate) fn is_empty<D: Disk>(disk: &D, file: &RowFile, offset: u64) -> bool {
    slot_of(disk, file, offset).is_ok_and(|slot| slot == Slot::Empty)
}

/// One slot, read alone.
pub(crate) fn slot_of<D: Disk>(disk: &D, file: &RowFile, offset: u64) -> io::Result<Slot> {
    let mut bytes = [0; ENTRY_LEN as usize];
    let Some(at) = offset.checked_mul(ENTRY_LEN).and_then(|at| at.checked_sub(file.base)) else {
        return Ok(Slot::Empty);
    };
    disk.open(&file.path, Allocation::ReadOnly)?.read_at(at, &mut bytes)?;
    Ok(decode(&bytes))
}

/// The last entry of a queue, found by bisection: all before it are written, nothing behind it is.
pub(crate) fn last_entry<D: Disk>(disk: &D, queue: &QueueFiles) -> Option<Entry> {
    let is_begun = |file: &&RowFile| !is_empty(disk, file, file.base / ENTRY_LEN);
    let file = queue.files.iter().rev().find(is_begun)?;
    let (mut low, mut high) = (file.base / ENTRY_LEN, file.end() / ENTRY_LEN);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if is_empty(disk, file, middle) { high = middle } else { low = middle }
    }
    match slot_of(disk, file, low) {
        Ok(Slot::Entry(entry)) => Some(entry),
        _ => None,
    }
}
