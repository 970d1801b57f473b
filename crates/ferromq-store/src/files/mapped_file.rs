//! One fixed-size file: read through a map, written through the map or by `pwrite`.
//!
//! It holds the only unsafe code of the crate. It never returns a `&mut [u8]` into a map. Owners publish a watermark
//! that says which bytes are readable.

use std::{
    fs::File,
    io,
    ops::Range,
    path::{Path, PathBuf},
    ptr,
};

use memmap2::{MmapOptions, MmapRaw};
#[cfg(all(target_os = "linux", not(feature = "portable")))]
use nix::libc;

use crate::{
    error::{IoResult, Result},
    files::disk::Region,
    platform,
};

/// Bytes of one `pread` that only loads pages into memory.
const LOADED: usize = 16 << 10;

/// A mapped file of the operating system.
#[derive(Debug)]
pub struct MappedRegion {
    file: File,
    map: MmapRaw,
    access: Access,
}

/// How a region is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Through the map. All blocks exist, so no write meets a full disk (a SIGBUS).
    Map,
    /// By `pwrite`.
    File,
    /// Never.
    ReadOnly,
}

impl MappedRegion {
    /// Maps `file`, whose size must not change. `Access::Map` requires that every block of the file is allocated.
    pub(crate) fn new(file: File, access: Access) -> io::Result<Self> {
        let map = match access {
            Access::Map => MmapOptions::new().map_raw(&file)?,
            Access::File | Access::ReadOnly => MmapOptions::new().map_raw_read_only(&file)?,
        };
        Ok(Self { file, map, access })
    }

    /// Positions in the map; `None` if the range leaves the file.
    fn bounds(&self, range: Range<u64>) -> Option<(usize, usize)> {
        let start = usize::try_from(range.start).ok()?;
        let end = usize::try_from(range.end).ok()?;
        (start <= end && end <= self.map.len()).then_some((start, end))
    }
}

impl Region for MappedRegion {
    fn len(&self) -> u64 {
        self.map.len() as u64
    }

    fn read(&self, range: Range<u64>) -> &[u8] {
        let Some((start, end)) = self.bounds(range) else { return &[] };
        // SAFETY: `bounds` keeps the range inside the map, which lives as long as `self` and is never shortened (the
        // store holds the lock of its directory). Callers read below a watermark published after the bytes were
        // written. Bytes below it are rewritten only during recovery, before readers exist.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(start), end - start) }
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        platform::read_exact_at(&self.file, out, offset)
    }

    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let Some((start, _)) = self.bounds(offset..offset.saturating_add(len as u64)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a write past the end of a file"));
        };
        match self.access {
            Access::ReadOnly => return Err(io::ErrorKind::PermissionDenied.into()),
            Access::File => return write_file(&self.file, offset, parts),
            Access::Map => {}
        }
        let mut at = start;
        for part in parts {
            // SAFETY: `bounds` keeps `at + part.len()` inside the map, which `Access::Map` makes writable. A byte has
            // one writer at a time and no reader before it is published, and `part` belongs to the caller, never to
            // this map.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), self.map.as_mut_ptr().add(at), part.len()) };
            at += part.len();
        }
        Ok(())
    }

    fn write_by_call(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if self.access != Access::Map || self.bounds(offset..offset.saturating_add(len as u64)).is_none() {
            return self.write_at(offset, parts);
        }
        write_file(&self.file, offset, parts)
    }

    fn flush(&self, range: Range<u64>) -> io::Result<()> {
        if self.access != Access::Map {
            return self.file.sync_data().map_err(of_flush);
        }
        match self.bounds(range) {
            Some((start, end)) if start < end => self.map.flush_range(start, end - start).map_err(of_flush),
            _ => Ok(()),
        }
    }

    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    fn begin_flush(&self, range: Range<u64>) {
        let (start, end) = (range.start as libc::off64_t, range.end as libc::off64_t);
        // SAFETY: a system call on a descriptor that `self` keeps open; it touches no memory of this process. The
        // following flush reports failures, so the result is ignored.
        let _ = unsafe {
            libc::sync_file_range(
                std::os::fd::AsRawFd::as_raw_fd(&self.file),
                start,
                end - start,
                libc::SYNC_FILE_RANGE_WRITE,
            )
        };
    }

    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    fn release(&self) {
        // SAFETY: the map is a shared map of a file, so its bytes, written ones too, come back from the file; readers
        // only meet page faults.
        let _ = unsafe { self.map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }

    fn next_data(&self, offset: u64) -> u64 {
        platform::next_data(&self.file, offset).unwrap_or(self.len())
    }

    fn next_hole(&self, offset: u64) -> u64 {
        platform::next_hole(&self.file, offset).map_or(self.len(), |found| found.min(self.len()))
    }

    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    fn resident_to(&self, range: Range<u64>) -> u64 {
        let Some((start, end)) = self.bounds(range.clone()) else { return range.end };
        let page = platform::page_size();
        let mut at = start - start % page;
        let mut pages = [0; 64];
        while at < end {
            let len = (end - at).min(page * pages.len());
            // SAFETY: `at` is the start of a page of the map, `len` bytes from there lie inside it, and `pages` has one
            // byte for each of their pages. The call reads no byte of the map.
            let done =
                unsafe { libc::mincore(self.map.as_mut_ptr().add(at).cast(), len, pages.as_mut_ptr()) };
            if done != 0 {
                // Unknown: readers may have to wait.
                return range.end;
            }
            let there = pages.iter().take(len.div_ceil(page)).take_while(|page| **page & 1 != 0).count();
            at += there * page;
            if there < len.div_ceil(page) {
                return (at.max(start) as u64).min(range.end);
            }
        }
        range.end
    }

    fn prefault(&self, range: Range<u64>) {
        if let Some((start, end)) = self.bounds(range)
            && self.access == Access::Map
            && start < end
        {
            platform::populate(&self.map, start, end - start);
        }
    }
}

/// The error of a failed flush, which may have lost bytes. It hides the number of a shortage, which would mean that
/// nothing was lost.
pub(crate) fn of_flush(error: io::Error) -> io::Error {
    if platform::is_shortage(&error) { io::Error::other(format!("flush: {error}")) } else { error }
}

/// Writes all parts with as few system calls as the system allows, or with more after a short write.
fn write_file(file: &File, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
    let mut at = offset;
    for parts in parts.chunks(platform::MAX_PARTS) {
        let mut written = platform::write_parts_at(file, parts, at)?;
        for part in parts {
            let done = written.min(part.len());
            platform::write_all_at(file, part.get(done..).unwrap_or_default(), at + done as u64)?;
            written -= done;
            at += part.len() as u64;
        }
    }
    Ok(())
}

/// A file of a file queue, named by the offset of its first byte.
///
/// Readers hold it by `Arc`. Its bytes stay readable while any reader holds it, even after the file is removed.
pub(crate) struct MappedFile<R: Region> {
    base: u64,
    path: PathBuf,
    region: R,
}

impl<R: Region> MappedFile<R> {
    pub(crate) fn new(base: u64, path: PathBuf, region: R) -> Self {
        Self { base, path, region }
    }

    /// Offset of the first byte.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Offset after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.region.len()
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.region.len()
    }

    /// The first offset from `offset` on that may hold nonzero bytes, or the end of the file.
    pub(crate) fn next_data(&self, offset: u64) -> u64 {
        self.base + self.region.next_data(offset.saturating_sub(self.base))
    }

    /// The first hole from `offset` on, or the end of the file if none is known.
    pub(crate) fn next_hole(&self, offset: u64) -> u64 {
        self.base + self.region.next_hole(offset.saturating_sub(self.base))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes between two offsets; empty if the range leaves this file.
    ///
    /// Read written bytes only: reading a hole through the map fills it in memory and, on a full tmpfs, ends the
    /// process. [`Self::read_into`] reads any bytes.
    pub(crate) fn read(&self, range: Range<u64>) -> &[u8] {
        match (range.start.checked_sub(self.base), range.end.checked_sub(self.base)) {
            (Some(start), Some(end)) => self.region.read(start..end),
            _ => &[],
        }
    }

    /// The end of the prefix of a range that is in memory.
    pub(crate) fn resident_to(&self, range: Range<u64>) -> u64 {
        match (range.start.checked_sub(self.base), range.end.checked_sub(self.base)) {
            (Some(start), Some(end)) if end <= self.region.len() => {
                self.base + self.region.resident_to(start..end)
            }
            _ => range.end,
        }
    }

    /// Loads a range into memory and waits for the disk.
    ///
    /// It uses `pread`, which reports a failure as an error; a map would raise a signal.
    pub(crate) fn load(&self, range: Range<u64>) -> Result<()> {
        let mut buffer = [0; LOADED];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(LOADED as u64);
            self.read_into(at, buffer.get_mut(..len as usize).unwrap_or_default())?;
            at += len;
        }
        Ok(())
    }

    /// Copies bytes from an offset on.
    pub(crate) fn read_into(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.region.read_at(offset.wrapping_sub(self.base), out).or_io("read", &self.path)
    }

    /// Copies `N` bytes from an offset on; zeros outside this file.
    pub(crate) fn copy<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        let inside = self.end().saturating_sub(offset).min(N as u64) as usize;
        self.read_into(offset, bytes.get_mut(..inside).unwrap_or_default())?;
        Ok(bytes)
    }

    /// Writes `parts` in sequence at an offset.
    pub(crate) fn write(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.region.write_at(offset.wrapping_sub(self.base), parts).or_io("write", &self.path)
    }

    /// As [`Self::write`], for many bytes, or for bytes that are flushed at once.
    pub(crate) fn write_by_call(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.region.write_by_call(offset.wrapping_sub(self.base), parts).or_io("write", &self.path)
    }

    /// Writes zeros over a range that is flushed at once.
    pub(crate) fn zero(&self, range: Range<u64>) -> Result<()> {
        // Small pieces, because each blocks the appender.
        const ZEROS: &[u8] = &[0; 16 << 10];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(ZEROS.len() as u64);
            self.write_by_call(at, &[ZEROS.get(..len as usize).unwrap_or(ZEROS)])?;
            at += len;
        }
        Ok(())
    }

    /// Prepares memory for writes to a range.
    pub(crate) fn prefault(&self, range: Range<u64>) {
        self.region.prefault(range.start.saturating_sub(self.base)..range.end.saturating_sub(self.base));
    }

    /// The parts of a range outside holes.
    fn data_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        let mut at = self.next_data(range.start);
        while at < range.end {
            let end = self.next_hole(at).max(at + 1).min(range.end);
            parts.push(at..end);
            at = self.next_data(end);
        }
        parts
    }

    /// Zeroes the written bytes of a range; holes of a sparse file stay.
    ///
    /// Returns the end of the written bytes, or the start of the range if there were none.
    pub(crate) fn erase(&self, range: Range<u64>) -> Result<u64> {
        // A copy, because reading through the map would fill holes in memory.
        let mut buffer = vec![0; 64 << 10];
        let mut written_to = range.start;
        // All parts are found before any is read, because the system's read-ahead looks like data.
        for part in self.data_in(range) {
            let mut at = part.start;
            while at < part.end {
                let len = (part.end - at).min(buffer.len() as u64);
                let bytes = buffer.get_mut(..len as usize).unwrap_or_default();
                self.read_into(at, bytes)?;
                let first = bytes.iter().position(|byte| *byte != 0);
                let last = bytes.iter().rposition(|byte| *byte != 0);
                if let (Some(first), Some(last)) = (first, last) {
                    written_to = at + last as u64 + 1;
                    // Only written bytes: a full disk has no blocks for holes.
                    self.zero(at + first as u64..written_to)?;
                }
                at += len;
            }
        }
        Ok(written_to)
    }

    /// Rewrites a range unchanged, so that the next flush covers it whatever an earlier flush did.
    pub(crate) fn rewrite(&self, range: Range<u64>) -> Result<()> {
        let mut buffer = vec![0; 256 << 10];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(buffer.len() as u64);
            let bytes = buffer.get_mut(..len as usize).unwrap_or_default();
            self.read_into(at, bytes)?;
            self.write(at, &[bytes])?;
            at += len;
        }
        Ok(())
    }

    /// Releases the memory of the file's pages until they are read again.
    pub(crate) fn release(&self) {
        self.region.release();
    }

    /// Starts writing a range to disk without waiting.
    pub(crate) fn begin_flush(&self, range: Range<u64>) {
        let end = range.end.min(self.end()).saturating_sub(self.base);
        self.region.begin_flush(range.start.saturating_sub(self.base).min(end)..end);
    }

    /// Makes a range durable.
    pub(crate) fn flush(&self, range: Range<u64>) -> Result<()> {
        let inside =
            range.start.saturating_sub(self.base)..range.end.min(self.end()).saturating_sub(self.base);
        self.region.flush(inside).or_io("flush", &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{
        disk::{Allocation, Disk},
        real_disk::RealDisk,
    };

    #[test]
    fn erasing_finds_what_was_written_anywhere_and_leaves_what_is_before() {
        let directory = tempfile::tempdir().unwrap();
        for (name, allocation) in [("a", Allocation::Reserved), ("b", Allocation::Sparse)] {
            let path = directory.path().join(name);
            let file =
                MappedFile::new(1 << 30, path.clone(), RealDisk.create(&path, 8 << 20, allocation).unwrap());
            let base = file.base();
            for (at, byte) in [(0, 1), (100_000, 2), (5 << 20, 3), ((8 << 20) - 1, 4)] {
                file.write(base + at, &[&[byte]]).unwrap();
            }
            assert_eq!(file.erase(base + 50_000..base + (6 << 20)).unwrap(), base + (5 << 20) + 1);
            let mut bytes = vec![0; 8 << 20];
            file.read_into(base, &mut bytes).unwrap();
            let left: Vec<u8> = bytes.into_iter().filter(|byte| *byte != 0).collect();
            assert_eq!(left, [1, 4]);
            assert_eq!(file.erase(base + 1..base + (1 << 20)).unwrap(), base + 1);
        }
    }
}
