//! `ferromq/flushed`: the end of the log at the last known flush. Recovery tells corruption from a torn tail with it.
//!
//! Records before the mark were on disk: if one is invalid now, it is damaged. The checkpoint lags behind, because it
//! waits for everything derived as well. The mark is written in place after each flush and not flushed itself: an
//! older mark is still correct, and the checksum rejects a torn one.

use std::path::Path;

use parking_lot::Mutex;

use crate::{
    error::{IoResult, Result},
    files::{
        anchor::{self, Anchor},
        disk::{Allocation, Disk},
        mapped_file::MappedFile,
    },
};

const MAGIC: &[u8; 8] = b"FMQFLSH1";
/// Magic, anchor, end and checksum: less than a disk block, so that the write is atomic.
const LEN: u64 = 40;
/// The end is unknown: this file was lost, the log was not.
const UNKNOWN: u64 = u64::MAX;

fn decode(bytes: &[u8]) -> Option<(Anchor, u64)> {
    let (anchor, end) = anchor::unseal(MAGIC, bytes).ok()?;
    let end = u64::from_be_bytes(end.try_into().ok()?);
    (end != UNKNOWN).then_some((anchor, end))
}

/// Reads the mark of a store that another process may have open; `None` if it is unknown or being written.
pub fn read<D: Disk>(disk: &D, root: &Path) -> Option<(Anchor, u64)> {
    disk.read_file(&root.join("ferromq").join("flushed")).ok().and_then(|bytes| decode(&bytes))
}

/// The open mark file.
pub(crate) struct FlushMark<D: Disk> {
    file: MappedFile<D::Region>,
    /// The mark that the last run left.
    found: Option<(Anchor, u64)>,
    last: Mutex<Noted>,
}

/// The mark written since the store was opened.
#[derive(Default)]
struct Noted {
    end: Option<u64>,
    anchor: Option<Anchor>,
}

impl<D: Disk> FlushMark<D> {
    /// Opens the mark file of a store directory; creates it if its size is wrong. `is_new`: the log is empty.
    pub(crate) fn open(disk: &D, root: &Path, is_new: bool) -> Result<Self> {
        let path = root.join("ferromq").join("flushed");
        if disk.len(&path).if_found().or_io("open", &path)? != Some(LEN) {
            let end = if is_new { 0 } else { UNKNOWN };
            let nothing = anchor::seal(MAGIC, Anchor::NONE, &end.to_be_bytes());
            disk.replace_file(&path, &nothing).or_io("open", &path)?;
        }
        let region = disk.open(&path, Allocation::Sparse).or_io("open", &path)?;
        let file = MappedFile::new(0, path, region);
        let mut bytes = [0; LEN as usize];
        file.read_into(0, &mut bytes)?;
        let found = decode(&bytes);
        Ok(Self { file, found, last: Mutex::default() })
    }

    /// The mark that was found, and its anchor.
    pub(crate) fn found(&self) -> Option<(Anchor, u64)> {
        self.found
    }

    /// Records that everything below `end` is on disk. Later marks use this anchor too.
    pub(crate) fn note(&self, end: u64, anchor: Anchor) -> Result<()> {
        self.last.lock().anchor = Some(anchor);
        self.note_flush(end)
    }

    /// As [`Self::note`] after a flush, with the last anchor; does nothing before there is one.
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
