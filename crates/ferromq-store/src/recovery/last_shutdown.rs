//! How the store was left: the abort file, and where the log ended at our last clean stop.
//!
//! What follows from it is `recover`'s business.

use std::path::{Path, PathBuf};

use crate::{
    error::{Result, StoreError},
    files::store_directory::StoreDirectory,
    files::{
        anchor::{self, Anchor},
        disk::Disk,
        mapped_file_queue::MappedFileQueue,
    },
    recovery::torn_tail,
};

/// What our abort file begins with; a Java broker writes only its process id.
pub const ABORT_MARK: &str = "ferromq ";
/// What it begins with while we recover what another broker closed.
const TAKING_MARK: &str = "taking over ";
const CLOSED_MAGIC: &[u8; 8] = b"FMQCLSD1";

/// How the store was left, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Closed by us, and nobody had it since: everything is on disk, and the log ends here.
    Closed { end: u64, anchor: Anchor },
    /// Closed by another broker: everything is on disk.
    ClosedByOther,
    /// Killed while we had it open.
    Killed,
    /// Killed while another broker had it open, whose index promises less; or while we recovered what that broker had
    /// closed, so that all of its log was on disk.
    KilledOther { is_log_whole: bool },
}

impl Left {
    pub(crate) fn is_clean(self) -> bool {
        matches!(self, Self::Closed { .. } | Self::ClosedByOther)
    }

    /// Says whether all of the log was on disk, whatever became of the derived files.
    pub(crate) fn has_whole_log(self) -> bool {
        self.is_clean() || self == Self::KilledOther { is_log_whole: true }
    }

    /// Says whether another broker stopped cleanly, and nothing of ours counts yet.
    pub(crate) fn is_whole_of_other(self) -> bool {
        self.has_whole_log() && !self.is_ours()
    }

    /// Says whether we were the last to have the store: then what lies in `ferromq/` is true.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Closed { .. } | Self::Killed)
    }

    /// Says whether a file of ours with this anchor still holds: no other broker had the store since, and the log is the
    /// one the file was derived from.
    pub(crate) fn trusts<D: Disk>(self, anchor: Anchor, log: &MappedFileQueue<D>) -> bool {
        self.is_ours() && anchor.is_held_by(log)
    }

    /// The last record of a log that we closed.
    pub(crate) fn anchor(self) -> Option<Anchor> {
        match self {
            Self::Closed { anchor, .. } if anchor != Anchor::NONE => Some(anchor),
            _ => None,
        }
    }
}

/// Reads how the store was left. To be asked before [`mark_open`].
pub(crate) fn read_left<D: Disk>(disk: &D, root: &Path, log: &MappedFileQueue<D>) -> Result<Left> {
    let path = abort_path(root);
    match disk.read_file(&path) {
        Ok(bytes) if bytes.starts_with(ABORT_MARK.as_bytes()) || bytes.starts_with(CLOSED_MAGIC) => {
            return Ok(Left::Killed);
        }
        Ok(bytes) => {
            let is_log_whole = bytes.starts_with(TAKING_MARK.as_bytes());
            return Ok(Left::KilledOther { is_log_whole });
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(StoreError::io("read", &path, source)),
    }
    let Some((end, anchor)) = read_closed(disk, root)? else { return Ok(Left::ClosedByOther) };
    // Whoever appends writes at the end, and nobody else writes there.
    if anchor.is_held_by(log) && torn_tail::is_zero(log, end)? {
        return Ok(Left::Closed { end, anchor });
    }
    Ok(Left::ClosedByOther)
}

/// Where the log ended when we last closed the store, where it may still be that log: all before it was on disk,
/// whatever was appended or was damaged since.
pub(crate) fn closed_end<D: Disk>(disk: &D, root: &Path, log: &MappedFileQueue<D>) -> Result<Option<u64>> {
    let closed = read_closed(disk, root)?.filter(|(_, anchor)| anchor.is_held_by(log));
    Ok(closed.map(|(end, _)| end))
}

/// Where the log ended when we last closed the store, and its last record.
fn read_closed<D: Disk>(disk: &D, root: &Path) -> Result<Option<(u64, Anchor)>> {
    let path = closed_path(root);
    let bytes = match disk.read_file(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StoreError::io("read", &path, source)),
    };
    Ok(decode_closed(&bytes).ok())
}

/// End of the log and its last record, of the bytes of `ferromq/closed`.
pub fn decode_closed(bytes: &[u8]) -> std::result::Result<(u64, Anchor), &'static str> {
    let (anchor, end) = anchor::unseal(CLOSED_MAGIC, bytes)?;
    Ok((u64::from_be_bytes(end.try_into().map_err(|_| "no end of the log")?), anchor))
}

/// Leaves an abort file, durably, before anything else is written: ours where the store was ours. Where it was another
/// broker's its promises count until [`take_over`], so a kill before that must read as a kill of that broker.
pub(crate) fn mark_open<D: Disk>(home: &StoreDirectory<D>, left: Left) -> Result<()> {
    match left {
        Left::Closed { .. } => match write_abort(home, ABORT_MARK) {
            // A name takes no space: the note of the clean stop, which is true no longer, becomes the abort file.
            Err(error) if error.is_of_full_disk() => rename_closed(home),
            written => written,
        },
        Left::ClosedByOther => write_abort(home, TAKING_MARK),
        Left::Killed | Left::KilledOther { .. } => Ok(()),
    }
}

fn rename_closed<D: Disk>(home: &StoreDirectory<D>) -> Result<()> {
    let (from, to) = (closed_path(&home.root), abort_path(&home.root));
    home.disk.rename(&from, &to).map_err(|source| StoreError::io("rename", &from, source))?;
    home.disk.sync_dir(&home.root).map_err(|source| StoreError::io("flush", &home.root, source))
}

/// From now on it is our promises that count: what another broker left is recovered and noted.
pub(crate) fn take_over<D: Disk>(home: &StoreDirectory<D>, left: Left) -> Result<()> {
    if left.is_ours() { Ok(()) } else { write_abort(home, ABORT_MARK) }
}

fn write_abort<D: Disk>(home: &StoreDirectory<D>, mark: &str) -> Result<()> {
    let path = abort_path(&home.root);
    let text = format!("{mark}{}\n", std::process::id());
    let written = home.disk.replace_file(&path, text.as_bytes());
    written.map_err(|source| StoreError::io("write", &path, source))
}

/// Notes where the log ended, then removes the abort file: the stop is clean.
pub(crate) fn mark_closed<D: Disk>(home: &StoreDirectory<D>, anchor: Anchor, end: u64) -> Result<()> {
    let path = closed_path(&home.root);
    let bytes = anchor::seal(CLOSED_MAGIC, anchor, &end.to_be_bytes());
    let noted = home.disk.replace_file(&path, &bytes);
    noted.map_err(|source| StoreError::io("write", &path, source))?;
    remove_abort(home)
}

pub(crate) fn remove_abort<D: Disk>(home: &StoreDirectory<D>) -> Result<()> {
    let path = abort_path(&home.root);
    home.disk.remove(&path).map_err(|source| StoreError::io("remove", &path, source))?;
    home.disk.sync_dir(&home.root).map_err(|source| StoreError::io("flush", &home.root, source))
}

fn abort_path(root: &Path) -> PathBuf {
    root.join("abort")
}

fn closed_path(root: &Path) -> PathBuf {
    root.join("ferromq").join("closed")
}
