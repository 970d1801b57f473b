//! The operating system's files: [`RealDisk`], and the lock of a store's directory.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, FcntlArg, fallocate, fcntl},
    libc,
    sys::{statfs::fstatfs, statvfs::statvfs},
};
use parking_lot::Mutex;

use crate::files::{
    disk::{Allocation, Disk},
    mapped_file::{Access, MappedRegion, of_flush},
    space::Space,
};

/// The operating system's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

/// The locked files, each with its number and the process that locked it.
static HELD: Mutex<BTreeMap<u64, (u32, File)>> = Mutex::new(BTreeMap::new());

static NEXT_LOCK: AtomicU64 = AtomicU64::new(0);

/// The lock of a store directory, released on drop and by the system when the process ends.
///
/// It belongs to the open file, not to the process: closing another descriptor of the same file keeps it. A forked
/// child has the open file too, so it must call [`release_in_forked_child`].
#[derive(Debug)]
pub struct DirectoryLock(u64);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        let Some((process, file)) = HELD.lock().remove(&self.0) else { return };
        if process == process::id() {
            // A forked child may still have the file open: closing it here would not be enough.
            let released = fcntl(&file, FcntlArg::F_OFD_SETLK(&first_byte(libc::F_UNLCK)));
            if let Err(error) = released {
                tracing::warn!(%error, "directory lock not released, the closed file releases it");
            }
        }
    }
}

/// Closes, in a forked child, the lock files of its parent, which keeps its locks.
///
/// Without this call a store that a killed parent had open stays locked until the child ends.
pub fn release_in_forked_child() {
    // A fork may have caught the map locked. Then nothing can be done.
    if let Some(mut held) = HELD.try_lock() {
        held.retain(|_, (process, _)| *process == process::id());
    }
}

/// Says whether a file system puts what is written over a block into the same block. Those that copy on write need
/// a new one each time, so reserving promises nothing there: btrfs, ZFS, bcachefs, NILFS, F2FS.
fn overwrites(magic: u32) -> bool {
    !matches!(magic, 0x9123_683E | 0x2FC1_2FC1 | 0xCA45_1A4E | 0x3434 | 0xF2F5_2010)
}

/// Reserves all blocks. `false` where the file system cannot: the file is then written by `pwrite`.
fn reserve(file: &File, len: u64) -> io::Result<bool> {
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

/// Lets a read by `pread` take the pages it needs and none behind them: where one entry of each of many files is read,
/// four pages would be read for one. Reads through the map are not changed.
fn read_no_further(file: &File) {
    // Where the system does not take the advice it only reads more.
    #[cfg(target_os = "linux")]
    let _ = nix::fcntl::posix_fadvise(file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_RANDOM);
}

impl Disk for RealDisk {
    type Region = MappedRegion;
    type Lock = DirectoryLock;
    type Directory = File;

    fn create(&self, path: &Path, len: u64, allocation: Allocation) -> io::Result<Self::Region> {
        if allocation == Allocation::ReadOnly {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        let made = (|| {
            let is_reserved = allocation == Allocation::Reserved && reserve(&file, len)?;
            file.set_len(len)?;
            MappedRegion::new(file, if is_reserved { Access::Map } else { Access::File })
        })();
        if made.is_err() {
            // Half a file must not stay behind; the first error is the one worth telling.
            let _ = fs::remove_file(path);
        }
        made
    }

    fn open(&self, path: &Path, allocation: Allocation) -> io::Result<Self::Region> {
        if allocation == Allocation::ReadOnly {
            return MappedRegion::new(File::open(path)?, Access::ReadOnly);
        }
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        // A Java broker's files have holes. Where the disk cannot fill them, `pwrite` meets the error later.
        let is_reserved =
            allocation == Allocation::Reserved && reserve(&file, file.metadata()?.len()).unwrap_or(false);
        if allocation == Allocation::Sparse {
            read_no_further(&file);
        }
        MappedRegion::new(file, if is_reserved { Access::Map } else { Access::File })
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        let found = fs::metadata(path)?;
        if found.is_file() { Ok(found.len()) } else { Err(io::ErrorKind::IsADirectory.into()) }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut paths = entries.map(|entry| entry.map(|e| e.path())).collect::<io::Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    }

    fn create_dir(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)
    }

    fn absolute(&self, directory: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(directory)
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all().map_err(of_flush)
    }

    fn open_dir(&self, directory: &Path) -> io::Result<File> {
        File::open(directory)
    }

    fn sync_open_dir(&self, directory: &File) -> io::Result<()> {
        directory.sync_all().map_err(of_flush)
    }

    fn read_file(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn replace_file(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        match path.parent() {
            Some(directory) => self.sync_dir(directory),
            None => Ok(()),
        }
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        // One call, so that both are of the same moment.
        let found = statvfs(path)?;
        let used = found.blocks().saturating_sub(found.blocks_free());
        Ok(Space {
            free: found.blocks_available() * found.fragment_size(),
            used: used * found.fragment_size(),
        })
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        let mut found = first_byte(libc::F_WRLCK);
        fcntl(&file, FcntlArg::F_OFD_GETLK(&mut found))?;
        Ok(found.l_type != libc::F_UNLCK as libc::c_short)
    }

    fn remove_dir(&self, directory: &Path) -> io::Result<()> {
        fs::remove_dir(directory)
    }

    fn lock(&self, path: &Path) -> io::Result<Self::Lock> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&first_byte(libc::F_WRLCK))) {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EACCES) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(errno) => return Err(errno.into()),
        }
        let number = NEXT_LOCK.fetch_add(1, Ordering::Relaxed);
        HELD.lock().insert(number, (process::id(), file));
        Ok(DirectoryLock(number))
    }
}

/// The byte that Java's FileChannel.tryLock(0, 1) locks for its process. A lock of an open file conflicts with that.
fn first_byte(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    }
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

    #[test]
    fn one_lock_at_a_time_holds_whoever_takes_and_releases_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let holders = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..3_000 {
                        if let Ok(lock) = RealDisk.lock(&path) {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                            std::thread::yield_now();
                            assert!(RealDisk.is_locked(&path).unwrap());
                            holders.fetch_sub(1, Ordering::SeqCst);
                            drop(lock);
                        }
                    }
                });
            }
        });
        assert!(!RealDisk.is_locked(&path).unwrap());
    }

    #[test]
    fn a_lock_stays_when_other_descriptors_of_its_file_are_closed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = RealDisk.lock(&path).unwrap();
        drop(File::open(&path).unwrap());
        fs::read(&path).unwrap();
        assert!(RealDisk.is_locked(&path).unwrap());
        assert_eq!(RealDisk.lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(RealDisk.is_locked(&path).unwrap());
        drop(lock);
        RealDisk.lock(&path).unwrap();
    }

    #[test]
    fn a_forked_child_closes_the_locks_of_its_parent_and_keeps_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let (of_parent, own) = (directory.path().join("parent"), directory.path().join("own"));
        let lock = RealDisk.lock(&of_parent).unwrap();
        let kept = RealDisk.lock(&own).unwrap();
        HELD.lock().get_mut(&lock.0).unwrap().0 = process::id() + 1;
        release_in_forked_child();
        // The only open file is closed here. In a fork the parent has another.
        assert!(!RealDisk.is_locked(&of_parent).unwrap());
        assert!(RealDisk.is_locked(&own).unwrap());
        drop((lock, kept));
    }
}
