//! What std alone does, for systems without a file of their own.
//!
//! Files are never reserved, so they are written by positioned writes and not through a map. A lock excludes ferromq, not
//! a Java broker. The free space of a disk is unknown, so neither retention by usage nor the refusal of sends on a full
//! disk works: a full disk is met by the write that fails.

use std::{
    fs::{File, TryLockError},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::LazyLock,
    time::{Duration, Instant},
};

use memmap2::MmapRaw;

use crate::files::space::Space;

/// Reserves nothing.
pub(crate) fn reserve(_file: &File, _len: u64) -> io::Result<bool> {
    Ok(false)
}

/// Does nothing: reads may load more than they need.
pub(crate) fn disable_read_ahead(_file: &File) {}

/// Locks a file. `false` if another open file holds the lock.
pub(crate) fn lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Releases the lock of an open file.
pub(crate) fn unlock(file: &File) -> io::Result<()> {
    file.unlock()
}

/// Whether another open file holds the lock.
pub(crate) fn is_locked(file: &File) -> io::Result<bool> {
    match file.try_lock_shared() {
        Ok(()) => file.unlock().map(|()| false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Unknown.
pub(crate) fn space(_path: &Path) -> io::Result<Space> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Reads at an offset, without a position that threads share.
pub(crate) fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(out, offset)
}

/// Writes at an offset, without a position that threads share.
pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

/// Most parts of one [`write_parts_at`].
pub(crate) const MAX_PARTS: usize = 1024;

/// Writes nothing: the caller writes each part by itself.
pub(crate) fn write_parts_at(_file: &File, _parts: &[&[u8]], _offset: u64) -> io::Result<usize> {
    Ok(0)
}

/// Unknown.
pub(crate) fn next_data(_file: &File, offset: u64) -> Option<u64> {
    Some(offset)
}

/// Unknown.
pub(crate) fn next_hole(_file: &File, _offset: u64) -> Option<u64> {
    None
}

/// Does nothing: the writer meets the page faults.
pub(crate) fn populate(_map: &MmapRaw, _offset: usize, _len: usize) {}

/// Unknown.
pub(crate) fn is_shortage(_error: &io::Error) -> bool {
    false
}

/// Unknown.
pub(crate) fn open_file_limit() -> Option<u64> {
    None
}

/// Time since the process first asked, without the time that the machine slept.
pub(crate) fn since_boot() -> Option<Duration> {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    Some(START.elapsed())
}
