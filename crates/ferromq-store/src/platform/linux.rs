//! Linux: blocks reserved by `fallocate`, locks that a Java broker respects, holes, the free space of a disk.

use std::{
    fs::File,
    io::{self, IoSlice},
    os::unix::fs::FileExt,
    path::Path,
    sync::OnceLock,
    time::Duration,
};

use memmap2::{Advice, MmapRaw};
use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, FcntlArg, PosixFadviseAdvice, fallocate, fcntl, posix_fadvise},
    libc,
    sys::{
        resource::{Resource, getrlimit},
        statfs::fstatfs,
        statvfs::statvfs,
        uio::pwritev,
    },
    time::{ClockId, clock_gettime},
    unistd::{SysconfVar, Whence, lseek, sysconf},
};

use crate::files::space::Space;

/// Whether a file system writes over a block in place. One that copies on write needs a new block each time, so
/// reserving promises nothing there: btrfs, ZFS, bcachefs, NILFS, F2FS.
fn overwrites(magic: u32) -> bool {
    !matches!(magic, 0x9123_683E | 0x2FC1_2FC1 | 0xCA45_1A4E | 0x3434 | 0xF2F5_2010)
}

/// Reserves all blocks of a file. `false` if the file system cannot: such a file must not be written through a map.
pub(crate) fn reserve(file: &File, len: u64) -> io::Result<bool> {
    let len = i64::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    loop {
        return match fallocate(file, FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(fstatfs(file).is_ok_and(|found| overwrites(found.filesystem_type().0 as u32))),
            Err(Errno::EINTR) => continue,
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(false),
            Err(errno) => Err(errno.into()),
        };
    }
}

/// Limits a `pread` to the pages it needs: one entry of each of many files would cost four pages instead of one.
/// Reads through a map do not change.
pub(crate) fn disable_read_ahead(file: &File) {
    // Without the advice the system only reads more.
    let _ = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
}

/// Locks the byte that Java's `FileChannel.tryLock(0, 1)` locks, so a Java broker and ferromq exclude each other. `false`
/// if another open file holds the lock.
///
/// The lock belongs to the open file: closing another descriptor of the same file keeps it.
pub(crate) fn lock(file: &File) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&first_byte(libc::F_WRLCK))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Releases the lock of an open file, also if a forked child has the file open.
pub(crate) fn unlock(file: &File) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&first_byte(libc::F_UNLCK)))?;
    Ok(())
}

/// Whether another open file holds the lock.
pub(crate) fn is_locked(file: &File) -> io::Result<bool> {
    let mut found = first_byte(libc::F_WRLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(found.l_type != libc::F_UNLCK as libc::c_short)
}

fn first_byte(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    }
}

/// Free and used space of the file system that holds `path`.
pub(crate) fn space(path: &Path) -> io::Result<Space> {
    // One call, so that both are of the same moment.
    let found = statvfs(path)?;
    let used = found.blocks().saturating_sub(found.blocks_free());
    Ok(Space { free: found.blocks_available() * found.fragment_size(), used: used * found.fragment_size() })
}

/// Reads at an offset, without a position that threads share.
pub(crate) fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(out, offset)
}

/// Writes at an offset, without a position that threads share.
pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

/// Most parts of one [`write_parts_at`]: the kernel's `UIO_MAXIOV`.
pub(crate) const MAX_PARTS: usize = 1024;

/// Writes parts one after the other by one system call; returns how many bytes were written, maybe fewer than given.
pub(crate) fn write_parts_at(file: &File, parts: &[&[u8]], offset: u64) -> io::Result<usize> {
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let offset = i64::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    match pwritev(file, &slices, offset) {
        Err(Errno::EINTR) => Ok(0),
        written => Ok(written?),
    }
}

/// The first byte from `offset` on that is not in a hole; `None` if all bytes to the end are, `offset` if unknown.
pub(crate) fn next_data(file: &File, offset: u64) -> Option<u64> {
    let Ok(at) = i64::try_from(offset) else { return Some(offset) };
    // Nothing else uses the file's position.
    match lseek(file, at, Whence::SeekData) {
        Ok(found) => Some(u64::try_from(found).unwrap_or(offset).max(offset)),
        Err(Errno::ENXIO) => None,
        Err(_) => Some(offset),
    }
}

/// Where the first hole from `offset` on begins; `None` if that is unknown.
pub(crate) fn next_hole(file: &File, offset: u64) -> Option<u64> {
    let found = lseek(file, i64::try_from(offset).ok()?, Whence::SeekHole).ok()?;
    u64::try_from(found).ok()
}

/// Makes pages of a map ready to be written. Kernels before 5.14 refuse; the writer then meets the page faults.
pub(crate) fn populate(map: &MmapRaw, offset: usize, len: usize) {
    let _ = map.advise_range(Advice::PopulateWrite, offset, len);
}

/// Bytes of a page of memory.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    let asked = || sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| usize::try_from(size).ok());
    *SIZE.get_or_init(|| asked().filter(|size| size.is_power_of_two()).unwrap_or(4096))
}

/// Whether an error is a shortage of memory or descriptors.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENFILE | libc::EMFILE))
}

/// How many files the process may have open; `None` if unknown.
pub(crate) fn open_file_limit() -> Option<u64> {
    getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft)
}

/// Time since the machine started, including the time it slept; `None` if unknown.
pub(crate) fn since_boot() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_BOOTTIME).ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_written_only_where_reserved_blocks_stay_reserved() {
        let (ext4, xfs, tmpfs) = (0xEF53, 0x5846_5342, 0x0102_1994);
        assert!([ext4, xfs, tmpfs].into_iter().all(overwrites));
        let (btrfs, zfs) = (nix::sys::statfs::BTRFS_SUPER_MAGIC.0 as u32, 0x2FC1_2FC1);
        assert!(![btrfs, zfs].into_iter().any(overwrites));
    }
}
