//! The two seams of all I/O: `Disk` makes and finds files, `Region` is one fixed-size file.
//!
//! Generic, never `dyn`: the real disk compiles to direct calls, and tests pass a disk that forgets
//! what was not flushed. Nothing here knows what the bytes mean.

use std::{
    io,
    ops::Range,
    path::{Path, PathBuf},
};

/// How the blocks of a new file are obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// All blocks are reserved now, so that writing through a map can never meet a full disk.
    Reserved,
    /// Blocks come as they are written (by `pwrite`, where a full disk is an error).
    Sparse,
}

/// A file system as the store needs it.
pub trait Disk: Clone + Send + Sync + 'static {
    /// One open file of fixed size.
    type Region: Region;
    /// Holds the store's lock until dropped.
    type Lock: Send + Sync;

    /// Makes a file of `len` zero bytes; it must not exist.
    fn create(&self, path: &Path, len: u64, allocation: Allocation) -> io::Result<Self::Region>;
    /// Opens an existing file; its size is taken from the file.
    fn open(&self, path: &Path) -> io::Result<Self::Region>;
    /// Removes a file. Readers that hold its region keep their bytes.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Renames a file, replacing `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Names of the entries of a directory; empty where there is none.
    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;
    /// Makes a directory and its parents.
    fn create_dir(&self, directory: &Path) -> io::Result<()>;
    /// Makes creations, removals and renames in `directory` durable.
    fn sync_dir(&self, directory: &Path) -> io::Result<()>;
    /// Reads a small file whole; `NotFound` where there is none.
    fn read_file(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Replaces a small file atomically and durably: temporary file, flush, rename, directory flush.
    fn replace_file(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Bytes a writer may still use on the file system of `path`.
    fn free_space(&self, path: &Path) -> io::Result<u64>;
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
    /// Copies `parts` one after the other to `offset`.
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()>;
    /// Makes the bytes of `range` durable; returns after the disk has said so.
    fn flush(&self, range: Range<u64>) -> io::Result<()>;
}

/// The operating system's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

/// A file of the operating system, mapped.
#[derive(Debug)]
pub struct MappedRegion;

impl Region for MappedRegion {
    fn len(&self) -> u64 {
        todo!()
    }
    fn read(&self, _range: Range<u64>) -> &[u8] {
        todo!()
    }
    fn write_at(&self, _offset: u64, _parts: &[&[u8]]) -> io::Result<()> {
        todo!()
    }
    fn flush(&self, _range: Range<u64>) -> io::Result<()> {
        todo!()
    }
}

impl Disk for RealDisk {
    type Region = MappedRegion;
    type Lock = std::fs::File;
    fn create(&self, _path: &Path, _len: u64, _allocation: Allocation) -> io::Result<Self::Region> {
        todo!()
    }
    fn open(&self, _path: &Path) -> io::Result<Self::Region> {
        todo!()
    }
    fn remove(&self, _path: &Path) -> io::Result<()> {
        todo!()
    }
    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        todo!()
    }
    fn list(&self, _directory: &Path) -> io::Result<Vec<PathBuf>> {
        todo!()
    }
    fn create_dir(&self, _directory: &Path) -> io::Result<()> {
        todo!()
    }
    fn sync_dir(&self, _directory: &Path) -> io::Result<()> {
        todo!()
    }
    fn read_file(&self, _path: &Path) -> io::Result<Vec<u8>> {
        todo!()
    }
    fn replace_file(&self, _path: &Path, _bytes: &[u8]) -> io::Result<()> {
        todo!()
    }
    fn free_space(&self, _path: &Path) -> io::Result<u64> {
        todo!()
    }
    fn lock(&self, _path: &Path) -> io::Result<Self::Lock> {
        todo!()
    }
}
