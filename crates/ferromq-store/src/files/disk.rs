//! The two traits of all I/O: `Disk` creates and finds files, `Region` is one fixed-size file.
//!
//! Both are generic, never `dyn`: the real disk compiles to direct calls, and tests pass a disk that forgets unflushed
//! bytes.

use std::{
    io::{self},
    ops::Range,
    path::{Path, PathBuf},
};

use crate::files::space::Space;

/// How a file gets its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// All blocks are reserved at once, so a write through a map never meets a full disk.
    Reserved,
    /// Blocks are allocated by `pwrite`, which reports a full disk as an error.
    Sparse,
    /// The file is only read and must exist.
    ReadOnly,
}

/// The file system operations that a store needs.
pub trait Disk: Clone + Send + Sync + 'static {
    /// An open file of fixed size.
    type Region: Region;
    /// The store's lock, released on drop.
    type Lock: Send + Sync;
    /// An open directory, so that [`Self::sync_open_dir`] needs no descriptor.
    type Directory: Send + Sync;

    /// Creates a file of `len` zero bytes; it must not exist.
    fn create(&self, path: &Path, len: u64, allocation: Allocation) -> io::Result<Self::Region>;
    /// Opens an existing file at its size.
    fn open(&self, path: &Path, allocation: Allocation) -> io::Result<Self::Region>;
    /// Size of an existing file, in bytes.
    fn len(&self, path: &Path) -> io::Result<u64>;
    /// Removes a file. Readers that hold its region keep its bytes.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Renames a file and replaces `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Sorted paths in a directory; empty if it does not exist.
    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;
    /// Creates a directory and its parents.
    fn create_dir(&self, directory: &Path) -> io::Result<()>;
    /// The absolute path of an existing directory.
    fn absolute(&self, directory: &Path) -> io::Result<PathBuf> {
        Ok(directory.to_path_buf())
    }
    /// Makes creations, removals and renames in `directory` durable.
    ///
    /// Here and in [`Region::flush`], `ENOMEM`, `ENFILE` and `EMFILE` mean that nothing was attempted and nothing is
    /// lost.
    fn sync_dir(&self, directory: &Path) -> io::Result<()>;
    /// Opens a directory for [`Self::sync_open_dir`].
    fn open_dir(&self, directory: &Path) -> io::Result<Self::Directory>;
    /// As [`Self::sync_dir`].
    fn sync_open_dir(&self, directory: &Self::Directory) -> io::Result<()>;
    /// Reads a whole small file. Errors: `NotFound` if it does not exist.
    fn read_file(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Replaces a small file atomically and durably: temporary file, flush, rename, directory sync.
    fn replace_file(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Free and used space of the file system that holds `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// Bytes that a writer may still use on the file system of `path`.
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        Ok(self.space(path)?.free)
    }
    /// Whether any process holds the lock of [`Self::lock`].
    fn is_locked(&self, _path: &Path) -> io::Result<bool> {
        Ok(false)
    }
    /// Removes an empty directory.
    fn remove_dir(&self, _directory: &Path) -> io::Result<()> {
        Ok(())
    }
    /// Takes the exclusive lock that a Java broker takes on the same file. Errors: `WouldBlock` if it is held.
    fn lock(&self, path: &Path) -> io::Result<Self::Lock>;
}

/// An open file of fixed size.
///
/// Each byte has one writer at a time. Readers read only bytes below a watermark that the owner published after the
/// write.
pub trait Region: Send + Sync + 'static {
    /// Size in bytes.
    fn len(&self) -> u64;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The bytes of `range`, which must be published. Empty if the range is out of bounds.
    fn read(&self, range: Range<u64>) -> &[u8];
    /// Copies bytes from `offset` on. Another thread may be writing them.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Writes `parts` in sequence at `offset`.
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()>;
    /// As [`Self::write_at`], for many bytes, or for bytes that are flushed at once. It bypasses a map, whose pages must
    /// be faulted in, and whose flush costs more.
    fn write_by_call(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.write_at(offset, parts)
    }
    /// Makes the bytes of `range` durable before it returns.
    fn flush(&self, range: Range<u64>) -> io::Result<()>;
    /// Starts writing the bytes of `range` to disk. A hint: only [`Self::flush`] makes them durable and reports
    /// failures.
    fn begin_flush(&self, _range: Range<u64>) {}
    /// Releases the memory of the file's pages. They stay readable, and unflushed bytes are kept.
    fn release(&self) {}
    /// The first position from `offset` on that may hold nonzero bytes, or the end of the file.
    fn next_data(&self, offset: u64) -> u64 {
        offset
    }
    /// The first hole from `offset` on, or the end of the file if none is known.
    ///
    /// Reading a hole through a map costs memory and, on some file systems, disk space.
    fn next_hole(&self, _offset: u64) -> u64 {
        self.len()
    }
    /// The end of the prefix of `range` that is in memory.
    fn resident_to(&self, range: Range<u64>) -> u64 {
        range.end
    }
    /// Prepares memory for writes to `range`. A hint: the bytes do not change.
    fn prefault(&self, _range: Range<u64>) {}
}
