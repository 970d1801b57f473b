//! What a store does for `ferromq store backup`, which copies its files from outside.
//!
//! A file `backup.asked` in the directory of an open store asks it to write the consumers' progress and to flush the
//! log. The store answers by removing the file. So a tool needs no address, and an older store does not answer.

use std::{io, path::Path};

use crate::{
    error::{IoResult, Result, StoreError},
    files::{disk::Disk, store_directory::StoreDirectory},
    log::commit_log::CommitLog,
};

/// Asks an open store to write its progress and to flush its log.
const ASKED: &str = "backup.asked";
/// Exists in a target while a backup is copied into it.
const INCOMPLETE: &str = "backup.incomplete";
/// Describes a finished backup that no broker has opened since.
const FINISHED: &str = "backup.json";

/// Takes a directory over as a store: refuses an unfinished backup. A finished one is no backup any more, because the
/// next one must not continue a log that this store wrote.
pub(super) fn take_as_store<D: Disk>(disk: &D, root: &Path) -> Result<()> {
    let incomplete = root.join(INCOMPLETE);
    if exists(disk, &incomplete).or_io("open", &incomplete)? {
        let missing = "a complete backup; run `ferromq store backup` with this target again";
        return Err(StoreError::NoStore { path: root.to_path_buf(), missing });
    }
    let finished = root.join(FINISHED);
    if exists(disk, &finished).or_io("open", &finished)? {
        disk.remove(&finished).or_io("remove", &finished)?;
        disk.sync_dir(root).or_io("flush", root)?;
    }
    Ok(())
}

/// Whether a backup waits for [`answer`]. What is written after this call is in the backup.
pub(super) fn is_asked<D: Disk>(home: &StoreDirectory<D>) -> bool {
    exists(&home.disk, &home.root.join(ASKED)).unwrap_or(false)
}

/// Flushes the log, and removes the request: the backup may copy.
pub(super) fn answer<D: Disk>(home: &StoreDirectory<D>, log: &CommitLog<D>) -> Result<()> {
    log.flush()?;
    let _held = home.hold()?;
    let path = home.root.join(ASKED);
    home.disk.remove(&path).if_found().or_io("remove", &path).map(drop)
}

fn exists<D: Disk>(disk: &D, path: &Path) -> io::Result<bool> {
    Ok(disk.len(path).if_found()?.is_some())
}
