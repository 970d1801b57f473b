//! How the last shutdown left the store: the abort file, and the end of the log at the last clean close.
//!
//! `plan` acts on it.

use std::path::{Path, PathBuf};

use crate::{
    error::{IoResult, Result},
    files::store_directory::StoreDirectory,
    files::{
        anchor::{self, Anchor},
        disk::Disk,
        mapped_file_queue::MappedFileQueue,
    },
    recovery::torn_tail,
};

/// Prefix of this broker's abort file; a Java broker writes only its process id.
pub const ABORT_MARK: &str = "ferromq ";
/// Prefix while this broker recovers a store that another broker closed.
const TAKING_MARK: &str = "taking over ";
const CLOSED_MAGIC: &[u8; 8] = b"FMQCLSD1";

/// How the last shutdown left the store, and which broker it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Closed by this broker and unused since: everything is durable, and the log ends at `end`.
    Closed { end: u64, anchor: Anchor },
    /// Closed by another broker: everything is durable.
    ClosedByOther,
    /// Killed while this broker had it open.
    Killed,
    /// Killed while another broker had it open, whose index promises less. With `is_log_whole`: killed while this
    /// broker recovered a store that the other had closed, so the whole log was durable.
    KilledOther { is_log_whole: bool },
}

impl Left {
    pub(crate) fn is_clean(self) -> bool {
        matches!(self, Self::Closed { .. } | Self::ClosedByOther)
    }

    /// Whether the whole log was durable, whatever the state of derived files.
    pub(crate) fn has_whole_log(self) -> bool {
        self.is_clean() || self == Self::KilledOther { is_log_whole: true }
    }

    /// Whether another broker closed the store, and none of this broker's marks count yet.
    pub(crate) fn is_whole_of_other(self) -> bool {
        self.has_whole_log() && !self.is_ours()
    }

    /// Whether this broker used the store last: then the files in `ferromq/` are current.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Closed { .. } | Self::Killed)
    }

    /// Whether a file of this broker with this anchor is valid: no other broker used the store since, and the file was
    /// derived from this log.
    pub(crate) fn trusts<D: Disk>(self, anchor: Anchor, log: &MappedFileQueue<D>) -> bool {
        self.is_ours() && anchor.is_held_by(log)
    }

    /// The last record of a log that this broker closed.
    pub(crate) fn anchor(self) -> Option<Anchor> {
        match self {
            Self::Closed { anchor, .. } if anchor != Anchor::NONE => Some(anchor),
            _ => None,
        }
    }
}

/// Reads how the last shutdown left the store. Call it before [`mark_open`].
pub(crate) fn read_left<D: Disk>(disk: &D, root: &Path, log: &MappedFileQueue<D>) -> Result<Left> {
    let path = abort_path(root);
    match disk.read_file(&path).if_found().or_io("read", &path)? {
        Some(bytes) if bytes.starts_with(ABORT_MARK.as_bytes()) || bytes.starts_with(CLOSED_MAGIC) => {
            return Ok(Left::Killed);
        }
        Some(bytes) => {
            let is_log_whole = bytes.starts_with(TAKING_MARK.as_bytes());
            return Ok(Left::KilledOther { is_log_whole });
        }
        None => {}
    }
    let Some((end, anchor)) = read_closed(disk, root)? else { return Ok(Left::ClosedByOther) };
    // Every appender writes at the end, so zeros there mean that nothing was appended since.
    if anchor.is_held_by(log) && torn_tail::is_zero(log, end)? {
        return Ok(Left::Closed { end, anchor });
    }
    Ok(Left::ClosedByOther)
}

/// End of the log at this broker's last close, if it may be this log: everything before it was durable, whatever
/// happened since.
pub(crate) fn closed_end<D: Disk>(disk: &D, root: &Path, log: &MappedFileQueue<D>) -> Result<Option<u64>> {
    let closed = read_closed(disk, root)?.filter(|(_, anchor)| anchor.is_held_by(log));
    Ok(closed.map(|(end, _)| end))
}

/// End of the log at this broker's last close, and its last record.
fn read_closed<D: Disk>(disk: &D, root: &Path) -> Result<Option<(u64, Anchor)>> {
    let path = closed_path(root);
    let bytes = disk.read_file(&path).if_found().or_io("read", &path)?;
    Ok(bytes.and_then(|bytes| decode_closed(&bytes).ok()))
}

/// Decodes `ferromq/closed`: end of the log and its last record.
pub fn decode_closed(bytes: &[u8]) -> std::result::Result<(u64, Anchor), &'static str> {
    let (anchor, end) = anchor::unseal(CLOSED_MAGIC, bytes)?;
    Ok((u64::from_be_bytes(end.try_into().map_err(|_| "no end of the log")?), anchor))
}

/// Writes an abort file durably, before any other write but that of an empty `ferromq/flushed`. If another broker used
/// the store last, its promises apply until [`take_over`], so a kill before that must read as a kill of that broker.
pub(crate) fn mark_open<D: Disk>(home: &StoreDirectory<D>, left: Left) -> Result<()> {
    match left {
        Left::Closed { .. } => match write_abort(home, ABORT_MARK) {
            // A rename needs no space: the outdated note of the clean close becomes the abort file.
            Err(error) if error.is_of_full_disk() => rename_closed(home),
            written => written,
        },
        Left::ClosedByOther => write_abort(home, TAKING_MARK),
        Left::Killed | Left::KilledOther { .. } => Ok(()),
    }
}

fn rename_closed<D: Disk>(home: &StoreDirectory<D>) -> Result<()> {
    let (from, to) = (closed_path(&home.root), abort_path(&home.root));
    home.disk.rename(&from, &to).or_io("rename", &from)?;
    home.disk.sync_dir(&home.root).or_io("flush", &home.root)
}

/// From now on this broker's promises apply: the other broker's state is recovered and saved.
pub(crate) fn take_over<D: Disk>(home: &StoreDirectory<D>, left: Left) -> Result<()> {
    if left.is_ours() { Ok(()) } else { write_abort(home, ABORT_MARK) }
}

fn write_abort<D: Disk>(home: &StoreDirectory<D>, mark: &str) -> Result<()> {
    let path = abort_path(&home.root);
    let text = format!("{mark}{}\n", std::process::id());
    home.disk.replace_file(&path, text.as_bytes()).or_io("write", &path)
}

/// Records the end of the log, then removes the abort file: the close is clean.
pub(crate) fn mark_closed<D: Disk>(home: &StoreDirectory<D>, anchor: Anchor, end: u64) -> Result<()> {
    let path = closed_path(&home.root);
    let bytes = anchor::seal(CLOSED_MAGIC, anchor, &end.to_be_bytes());
    home.disk.replace_file(&path, &bytes).or_io("write", &path)?;
    remove_abort(home)
}

pub(crate) fn remove_abort<D: Disk>(home: &StoreDirectory<D>) -> Result<()> {
    let path = abort_path(&home.root);
    home.disk.remove(&path).or_io("remove", &path)?;
    home.disk.sync_dir(&home.root).or_io("flush", &home.root)
}

fn abort_path(root: &Path) -> PathBuf {
    root.join("abort")
}

fn closed_path(root: &Path) -> PathBuf {
    root.join("ferromq").join("closed")
}
