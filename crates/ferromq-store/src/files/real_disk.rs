//! [`RealDisk`], the operating system's files, and the lock of a store's directory.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use crate::{
    files::{
        disk::{Allocation, Disk},
        mapped_file::{Access, MappedRegion, of_flush},
        space::Space,
    },
    platform,
};

/// The operating system's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

/// The locked files, each with the process that locked it.
static HELD: Mutex<BTreeMap<u64, (u32, File)>> = Mutex::new(BTreeMap::new());

static NEXT_LOCK: AtomicU64 = AtomicU64::new(0);

/// The lock of a store directory, released on drop and at the end of the process.
///
/// It belongs to the open file, so closing another descriptor of the same file keeps it. A forked child inherits the
/// open file and must call [`release_in_forked_child`].
#[derive(Debug)]
pub struct DirectoryLock(u64);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        let Some((process, file)) = HELD.lock().remove(&self.0) else { return };
        if process == process::id() {
            // A forked child may hold the open file, so closing it here does not release the lock.
            if let Err(error) = platform::unlock(&file) {
                tracing::warn!(%error, "directory lock not released; closing its file releases it");
            }
        }
    }
}

/// Closes the parent's lock files in a forked child; the parent keeps its locks.
///
/// Without this call the store of a killed parent stays locked until the child ends.
pub fn release_in_forked_child() {
    // The fork may have copied a locked mutex; the locks then cannot be closed.
    if let Some(mut held) = HELD.try_lock() {
        held.retain(|_, (process, _)| *process == process::id());
    }
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
            let is_reserved = allocation == Allocation::Reserved && platform::reserve(&file, len)?;
            file.set_len(len)?;
            MappedRegion::new(file, if is_reserved { Access::Map } else { Access::File })
        })();
        if made.is_err() {
            // Removes the partial file and returns the first error.
            let _ = fs::remove_file(path);
        }
        made
    }

    fn open(&self, path: &Path, allocation: Allocation) -> io::Result<Self::Region> {
        if allocation == Allocation::ReadOnly {
            return MappedRegion::new(File::open(path)?, Access::ReadOnly);
        }
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        // A Java broker's files have holes. If the disk cannot fill them, `pwrite` reports it later.
        let is_reserved = allocation == Allocation::Reserved
            && platform::reserve(&file, file.metadata()?.len()).unwrap_or(false);
        if allocation == Allocation::Sparse {
            platform::disable_read_ahead(&file);
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
        platform::space(path)
    }

    fn is_locked(&self, path: &Path) -> io::Result<bool> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        platform::is_locked(&file)
    }

    fn remove_dir(&self, directory: &Path) -> io::Result<()> {
        fs::remove_dir(directory)
    }

    fn lock(&self, path: &Path) -> io::Result<Self::Lock> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        if !platform::lock(&file)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let number = NEXT_LOCK.fetch_add(1, Ordering::Relaxed);
        HELD.lock().insert(number, (process::id(), file));
        Ok(DirectoryLock(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lock_is_held_at_a_time() {
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
        // Closes the only open file. After a fork the parent has another.
        assert!(!RealDisk.is_locked(&of_parent).unwrap());
        assert!(RealDisk.is_locked(&own).unwrap());
        drop((lock, kept));
    }
}
