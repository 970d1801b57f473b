//! The two seams of all I/O: `Disk` makes and finds files, `Region` is one fixed-size file.
//!
//! Generic, never `dyn`: the real disk compiles to direct calls, and tests pass a disk that forgets
//! what was not flushed. Nothing here knows what the bytes mean.

use std::{
    io::{self},
    ops::Range,
    path::{Path, PathBuf},
};

use crate::files::space::Space;

/// How the blocks of a file are obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// All blocks are reserved now, so that writing through a map can never meet a full disk.
    Reserved,
    /// Blocks come as they are written (by `pwrite`, where a full disk is an error).
    Sparse,
    /// Nothing is ever written, and no file is made.
    ReadOnly,
}

/// A file system as the store needs it.
pub trait Disk: Clone + Send + Sync + 'static {
    /// One open file of fixed size.
    type Region: Region;
    /// Holds the store's lock until dropped.
    type Lock: Send + Sync;
    /// A directory kept open, so that [`Self::sync_open_dir`] needs no descriptor.
    type Directory: Send + Sync;

    /// Makes a file of `len` zero bytes; it must not exist.
    fn create(&self, path: &Path, len: u64, allocation: Allocation) -> io::Result<Self::Region>;
    /// Opens an existing file; its size is taken from the file.
    fn open(&self, path: &Path, allocation: Allocation) -> io::Result<Self::Region>;
    /// Size of an existing file.
    fn len(&self, path: &Path) -> io::Result<u64>;
    /// Removes a file. Readers that hold its region keep their bytes.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Renames a file, replacing `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Paths of the entries of a directory, sorted; empty where there is none.
    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;
    /// Makes a directory and its parents.
    fn create_dir(&self, directory: &Path) -> io::Result<()>;
    /// The path of an existing directory from the root on, whatever the working directory becomes.
    fn absolute(&self, directory: &Path) -> io::Result<PathBuf> {
        Ok(directory.to_path_buf())
    }
    /// Makes creations, removals and renames in `directory` durable.
    ///
    /// Here and in [`Region::flush`] `ENOMEM`, `ENFILE` and `EMFILE` mean that nothing was tried, and so nothing is lost.
    fn sync_dir(&self, directory: &Path) -> io::Result<()>;
    /// Opens a directory for [`Self::sync_open_dir`].
    fn open_dir(&self, directory: &Path) -> io::Result<Self::Directory>;
    /// As [`Self::sync_dir`].
    fn sync_open_dir(&self, directory: &Self::Directory) -> io::Result<()>;
    /// Reads a small file whole; `NotFound` where there is none.
    fn read_file(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Replaces a small file atomically and durably: temporary file, flush, rename, directory flush.
    fn replace_file(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// The space of the file system of `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// Bytes a writer may still use on the file system of `path`.
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        Ok(self.space(path)?.free)
    }
    /// Says whether somebody holds the lock that [`Self::lock`] takes, without taking it.
    fn is_locked(&self, _path: &Path) -> io::Result<bool> {
        Ok(false)
    }
    /// Removes a directory, where it is empty.
    fn remove_dir(&self, _directory: &Path) -> io::Result<()> {
        Ok(())
    }
    /// Takes the exclusive lock Java takes on the same file; `WouldBlock` when it is held.
    fn lock(&self, path: &Path) -> io::Result<Self::Lock>;
}

/// One file of fixed size.
///
/// There is one writer at a time for any byte; readers only touch bytes below a watermark that the
/// owner published after writing them.
pub trait Region: Send + Sync + 'static {
    /// Size of the file in bytes.
    fn len(&self) -> u64;
    /// Says whether the file has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes in `range`, which must lie below what was published. Out of bounds gives an empty slice.
    fn read(&self, range: Range<u64>) -> &[u8];
    /// Copies bytes from `offset` on, also such as another thread may be writing: they come as they are.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Copies `parts` one after the other to `offset`.
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()>;
    /// As [`Self::write_at`], for bytes that will be flushed at once: where the file is written through a map, a flush
    /// of what came through the map costs more, because the system tracks it by large pieces and takes them from the map.
    fn write_flushed_soon(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.write_at(offset, parts)
    }
    /// Makes the bytes of `range` durable; returns after the disk has said so.
    fn flush(&self, range: Range<u64>) -> io::Result<()>;
    /// Begins to write the bytes of `range` to the disk. Only a hint: [`Self::flush`] makes them durable and tells
    /// of failures.
    fn begin_flush(&self, _range: Range<u64>) {}
    /// Lets go of memory that holds the file's bytes. They stay readable, and what is not flushed is not lost.
    fn release(&self) {}
    /// The first place from `offset` on that may hold anything but zeros; the file's end where none does.
    fn next_data(&self, offset: u64) -> u64 {
        offset
    }
    /// The first place from `offset` on where zeros begin that take no space; the file's end where none are known.
    ///
    /// A look at them through a map would take memory, and on some file systems space, for each page.
    fn next_hole(&self, _offset: u64) -> u64 {
        self.len()
    }
    /// The end of the part of `range`, from its start on, that can be read without waiting for the disk.
    fn resident_to(&self, range: Range<u64>) -> u64 {
        range.end
    }
    /// Gets memory for `range` ready, whose bytes will soon be written. Only a hint: the bytes do not change.
    fn prefault(&self, _range: Range<u64>) {}
}
