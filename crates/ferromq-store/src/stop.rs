//! How the store was left: the abort file, and where the log ended at our last clean stop.
//!
//! What follows from it is `recovery`'s business.

use std::path::{Path, PathBuf};

use crate::{Disk, Result, StoreError, recovery::LastStop, store::Inner};

/// What our abort file begins with; a Java broker writes only its process id.
const ABORT_MARK: &str = "ferromq ";

pub(crate) fn read_last_stop<D: Disk>(disk: &D, root: &Path) -> Result<LastStop> {
    let path = root.join("abort");
    match disk.read_file(&path) {
        Ok(bytes) if bytes.starts_with(ABORT_MARK.as_bytes()) => Ok(LastStop::Unclean),
        Ok(_) => Ok(LastStop::UncleanForeign),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(LastStop::Clean),
        Err(source) => Err(StoreError::io("read", &path, source)),
    }
}

/// Leaves the abort file, durably, before anything else is written.
pub(crate) fn mark_open<D: Disk>(inner: &Inner<D>) -> Result<()> {
    let path = inner.root.join("abort");
    if read_last_stop(&inner.disk, &inner.root)?.is_clean() {
        let text = format!("{ABORT_MARK}{}\n", std::process::id());
        inner
            .disk
            .replace_file(&path, text.as_bytes())
            .map_err(|source| StoreError::io("write", &path, source))?;
    }
    Ok(())
}

/// Notes where the log ended, then removes the abort file: the stop is clean.
pub(crate) fn mark_closed<D: Disk>(inner: &Inner<D>, end: u64) -> Result<()> {
    let path = closed_path(&inner.root);
    let noted = inner.disk.replace_file(&path, &end.to_be_bytes());
    noted.map_err(|source| StoreError::io("write", &path, source))?;
    remove_abort(inner)
}

pub(crate) fn remove_abort<D: Disk>(inner: &Inner<D>) -> Result<()> {
    let path = inner.root.join("abort");
    inner.disk.remove(&path).map_err(|source| StoreError::io("remove", &path, source))?;
    inner.disk.sync_dir(&inner.root).map_err(|source| StoreError::io("flush", &inner.root, source))
}

/// Where the log ended when we last closed the store; a broker that had it since may have moved it.
pub(crate) fn closed_at<D: Disk>(inner: &Inner<D>) -> Option<u64> {
    let bytes = inner.disk.read_file(&closed_path(&inner.root)).ok()?;
    bytes.try_into().ok().map(u64::from_be_bytes)
}

fn closed_path(root: &Path) -> PathBuf {
    root.join("ferromq").join("closed")
}
