//! The directories of a file queue: where a new file goes, and which directory entries are not durable yet.
//!
//! It knows paths only; `mapped_file_queue` knows the files.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    config::StoreConfig,
    error::{IoResult, Result, StoreError},
    files::disk::Disk,
};

/// The directories of a store whose entries may not be durable. File queues share their parent directories.
pub(crate) struct DirectoryNames<D: Disk> {
    root: PathBuf,
    changed: Mutex<UnsyncedDirectories>,
    /// Directories kept open, so that a flush of the log needs no descriptor.
    kept: Mutex<BTreeMap<PathBuf, Arc<D::Directory>>>,
}

/// Directories by the number of their last change; each number is used once.
#[derive(Default)]
struct UnsyncedDirectories {
    last: u64,
    of: BTreeMap<PathBuf, u64>,
}

impl<D: Disk> DirectoryNames<D> {
    pub(crate) fn of(root: &Path) -> Arc<Self> {
        Arc::new(Self { root: root.to_path_buf(), changed: Mutex::default(), kept: Mutex::default() })
    }

    /// The directory and its parents up to the root, because topic and queue directories may be new too.
    fn with_parents<'a>(&'a self, directory: &'a Path) -> impl Iterator<Item = &'a Path> {
        let is_inside = directory.starts_with(&self.root);
        let levels = if is_inside { usize::MAX } else { 1 };
        let parents = directory.ancestors().take(levels);
        parents.take_while(move |parent| !is_inside || parent.starts_with(&self.root))
    }

    /// Keeps the directory and its parents open.
    fn keep(&self, disk: &D, directory: &Path) -> Result<()> {
        for directory in self.with_parents(directory) {
            let open = disk.open_dir(directory).or_io("open", directory)?;
            self.kept.lock().insert(directory.to_path_buf(), Arc::new(open));
        }
        Ok(())
    }

    fn set_changed(&self, directory: &Path) {
        let mut changed = self.changed.lock();
        changed.last += 1;
        let last = changed.last;
        for directory in self.with_parents(directory) {
            match changed.of.get_mut(directory) {
                Some(number) => *number = last,
                None => drop(changed.of.insert(directory.to_path_buf(), last)),
            }
        }
    }

    /// Waits for a sync that began after the last change of each directory, on this or another thread.
    fn sync(&self, disk: &D, directory: &Path) -> Result<()> {
        for directory in self.with_parents(directory) {
            let Some(number) = self.changed.lock().of.get(directory).copied() else { continue };
            let kept = self.kept.lock().get(directory).cloned();
            let synced = kept.map_or_else(|| disk.sync_dir(directory), |kept| disk.sync_open_dir(&kept));
            synced.or_io("flush", directory)?;
            let mut changed = self.changed.lock();
            // A later change may not be covered.
            if changed.of.get(directory) == Some(&number) {
                changed.of.remove(directory);
            }
        }
        Ok(())
    }
}

/// The directories of a file queue.
pub(crate) struct FileDirectories<D: Disk> {
    names: Arc<DirectoryNames<D>>,
    /// Writable directories first, ordered by name.
    directories: Vec<PathBuf>,
    writable: usize,
    /// Bytes to keep free in a directory while another has more space.
    reserve: u64,
    /// Changes of each directory, in the same order.
    changes: Vec<Changes>,
}

/// Number of changes to a directory's entries, and how many of them are durable.
#[derive(Default)]
struct Changes {
    made: AtomicU64,
    durable: AtomicU64,
}

impl<D: Disk> FileDirectories<D> {
    /// A single directory of the store.
    pub(crate) fn one(names: &Arc<DirectoryNames<D>>, directory: PathBuf) -> Self {
        Self {
            names: Arc::clone(names),
            directories: vec![directory],
            writable: 1,
            reserve: 0,
            changes: vec![Changes::default()],
        }
    }

    /// The directories of a commit log: the store's own, or the configured ones. Creates the writable ones. Errors:
    /// `Io` if a directory cannot be created, or if a read-only one is missing: its disk may not be mounted.
    pub(crate) fn of_log(disk: &D, names: &Arc<DirectoryNames<D>>, config: &StoreConfig) -> Result<Self> {
        let root = &names.root;
        let own = [root.join("commitlog")];
        let wanted = if config.commit_log_paths.is_empty() { &own[..] } else { &config.commit_log_paths[..] };
        let read_only = absolute(disk, &config.read_only_commit_log_paths)?;
        for directory in wanted {
            disk.create_dir(directory).or_io("create", directory)?;
        }
        let mut directories = absolute(disk, wanted)?;
        directories.retain(|directory| !read_only.contains(directory));
        let writable = directories.len();
        if writable == 0 {
            return Err(StoreError::Invalid {
                what: "commit_log_paths",
                reason: "all of them are read-only",
            });
        }
        for directory in directories.iter().filter(|directory| !directory.starts_with(root)) {
            sync_parent(disk, directory)?;
        }
        for directory in &directories {
            names.keep(disk, directory)?;
        }
        directories.extend(read_only);
        let (names, reserve) = (Arc::clone(names), config.disk_reserve);
        let changes = directories.iter().map(|_| Changes::default()).collect();
        Ok(Self { names, directories, writable, reserve, changes })
    }

    pub(crate) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.directories.iter().map(PathBuf::as_path)
    }

    /// Directories for new files.
    pub(crate) fn writable(&self) -> impl Iterator<Item = &Path> {
        self.directories().take(self.writable)
    }

    pub(crate) fn first(&self) -> &Path {
        self.directories.first().map_or(&self.names.root, PathBuf::as_path)
    }

    fn directory(&self, number: usize) -> &Path {
        self.directories.get(number).map_or(&self.names.root, PathBuf::as_path)
    }

    pub(crate) fn path(&self, number: usize, base: u64) -> PathBuf {
        self.directory(number).join(file_name(base))
    }

    /// Number of the directory for a new file: by turns, as in RocketMQ, skipping full disks.
    pub(crate) fn for_new(&self, disk: &D, base: u64, len: u64) -> usize {
        let turn = |among: usize| (base / len.max(1) % among.max(1) as u64) as usize;
        if self.writable < 2 {
            return 0;
        }
        let has_space = |number: &usize| {
            let free = disk.free_space(self.directory(*number)).unwrap_or(0);
            free >= len.saturating_add(self.reserve)
        };
        let with_space: Vec<usize> = (0..self.writable).filter(has_space).collect();
        with_space.get(turn(with_space.len())).copied().unwrap_or_else(|| turn(self.writable))
    }

    /// Directory in which a new file is created before it is renamed, so that a crash leaves no partial file. It is on
    /// the same file system; a Java broker skips directories among its files.
    pub(crate) fn staging(&self, number: usize) -> PathBuf {
        let directory = self.directory(number);
        let parent = if directory.starts_with(&self.names.root) { &self.names.root } else { directory };
        parent.join("ferromq")
    }

    /// Notes that a directory has entries that are not durable.
    pub(crate) fn set_changed(&self, number: usize) {
        self.names.set_changed(self.directory(number));
        if let Some(changes) = self.changes.get(number) {
            changes.made.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Makes all entries durable.
    pub(crate) fn sync(&self, disk: &D) -> Result<()> {
        self.sync_but(disk, None)
    }

    /// Makes the entries of all directories but one durable.
    pub(crate) fn sync_others(&self, disk: &D, number: usize) -> Result<()> {
        self.sync_but(disk, Some(number))
    }

    /// Two threads may sync the same change; each waits for a sync that covers it.
    fn sync_but(&self, disk: &D, except: Option<usize>) -> Result<()> {
        for (number, changes) in self.changes.iter().enumerate() {
            let made = changes.made.load(Ordering::Acquire);
            if Some(number) != except && changes.durable.load(Ordering::Acquire) < made {
                self.names.sync(disk, self.directory(number))?;
                changes.durable.fetch_max(made, Ordering::AcqRel);
            }
        }
        Ok(())
    }
}

/// Absolute paths without duplicates, ordered by name.
fn absolute<D: Disk>(disk: &D, paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let find = |path: &PathBuf| {
        disk.absolute(path).map_err(|source| {
            StoreError::io(
                "finding a directory of the commit log (commit_log_paths, read_only_commit_log_paths)",
                path,
                source,
            )
        })
    };
    let mut found = paths.iter().map(find).collect::<Result<Vec<_>>>()?;
    found.sort();
    found.dedup();
    Ok(found)
}

/// Makes the name of a directory durable, if its parent is readable.
pub(crate) fn sync_parent<D: Disk>(disk: &D, directory: &Path) -> Result<()> {
    let Some(parent) = directory.parent() else { return Ok(()) };
    match disk.sync_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        done => done.or_io("flush", parent),
    }
}

/// RocketMQ's name for the file that begins at `base`.
pub(crate) fn file_name(base: u64) -> String {
    format!("{base:020}")
}
