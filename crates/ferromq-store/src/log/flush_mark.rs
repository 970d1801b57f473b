//! `ferromq/flushed`: the end of the log at the last known flush.
//!
//! The checkpoint follows only when everything derived is durable too, so it may lag; this mark is noted after each
//! flush. What a kill leaves behind it is written and flushed again; what lies before it was on disk, and is
//! damaged where it is not sound now. Written in place and not flushed itself: an older mark that a lost machine leaves
//! is only an older truth, and half of one is none.

use std::path::Path;

use parking_lot::Mutex;

use crate::{
    error::{Result, StoreError},
    files::{
        anchor::{self, Anchor},
        disk::{Allocation, Disk},
        mapped_file::MappedFile,
    },
};

const MAGIC: &[u8; 8] = b"FMQFLSH1";
/// Magic, anchor, end and checksum: less than a block of the disk, so that it is written whole or not at all.
const LEN: u64 = 40;
/// Stands for "nobody knows": the file was lost, the log was not.
const UNKNOWN: u64 = u64::MAX;

fn decode(bytes: &[u8]) -> Option<(Anchor, u64)> {
    let (anchor, end) = anchor::unseal(MAGIC, bytes).ok()?;
    let end = u64::from_be_bytes(end.try_into().ok()?);
    (end != UNKNOWN).then_some((anchor, end))
}

/// What the file of a store says that somebody else may have open; `None` where it says nothing, or is being written.
pub fn read<D: Disk>(disk: &D, root: &Path) -> Option<(Anchor, u64)> {
    disk.read_file(&root.join("ferromq").join("flushed")).ok().and_then(|bytes| decode(&bytes))
}

/// The open file.
pub(crate) struct FlushMark<D: Disk> {
    file: MappedFile<D::Region>,
    /// What the file says, and for which record.
    found: Option<(Anchor, u64)>,
    last: Mutex<Noted>,
}

/// What was noted since the store was opened.
#[derive(Default)]
struct Noted {
    end: Option<u64>,
    anchor: Option<Anchor>,
}

impl<D: Disk> FlushMark<D> {
    /// Opens the file of a store directory, made where there is none of its size: `is_new` says that the log is empty.
    pub(crate) fn open(disk: &D, root: &Path, is_new: bool) -> Result<Self> {
        let path = root.join("ferromq").join("flushed");
        let failed = |source| StoreError::io("open", &path, source);
        let len = match disk.len(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            len => len.map_err(failed)?,
        };
        if len != LEN {
            let end = if is_new { 0 } else { UNKNOWN };
            let nothing = anchor::seal(MAGIC, Anchor::NONE, &end.to_be_bytes());
            disk.replace_file(&path, &nothing).map_err(failed)?;
        }
        let region = disk.open(&path, Allocation::Sparse).map_err(failed)?;
        let file = MappedFile::new(0, path, region);
        let mut bytes = [0; LEN as usize];
        file.read_into(0, &mut bytes)?;
        let found = decode(&bytes);
        Ok(Self { file, found, last: Mutex::default() })
    }

    /// The mark that was found, and the record it was noted at.
    pub(crate) fn found(&self) -> Option<(Anchor, u64)> {
        self.found
    }

    /// Notes that everything below `end` is on disk. Later notes speak for the log with this record too.
    pub(crate) fn note(&self, end: u64, anchor: Anchor) -> Result<()> {
        self.last.lock().anchor = Some(anchor);
        self.note_flush(end)
    }

    /// As [`Self::note`] right after a flush, for the record noted last; nothing before there is one.
    pub(crate) fn note_flush(&self, end: u64) -> Result<()> {
        let mut last = self.last.lock();
        let Some(anchor) = last.anchor.filter(|_| last.end.is_none_or(|noted| noted < end)) else {
            return Ok(());
        };
        self.file.write(0, &[&anchor::seal(MAGIC, anchor, &end.to_be_bytes())])?;
        last.end = Some(end);
        Ok(())
    }
}
