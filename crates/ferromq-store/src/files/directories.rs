//! The directories a row of files lies in: where a new file goes, and which names are not durable yet.
//!
//! It knows paths only; what is in the files, and which there are, is `mapped_file_queue`'s business.

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
    error::{Result, StoreError},
    files::disk::Disk,
};

/// Directories of a store that have entries a crash may still forget; rows share those above them.
pub(crate) struct DirectoryNames<D: Disk> {
    /// The store's directory.
    root: PathBuf,
    changed: Mutex<Changed>,
    /// Directories that stay open: those a flush of the log needs, which must not want a descriptor.
    kept: Mutex<BTreeMap<PathBuf, Arc<D::Directory>>>,
}

/// Directories with the number of their last change; a number is given once.
#[derive(Default)]
struct Changed {
    last: u64,
    of: BTreeMap<PathBuf, u64>,
}

impl<D: Disk> DirectoryNames<D> {
    pub(crate) fn of(root: &Path) -> Arc<Self> {
        Arc::new(Self { root: root.to_path_buf(), changed: Mutex::default(), kept: Mutex::default() })
    }

    /// The directory and those above it up to the root, because topic and queue directories may be new too.
    fn with_parents<'a>(&'a self, directory: &'a Path) -> impl Iterator<Item = &'a Path> {
        let is_inside = directory.starts_with(&self.root);
        let levels = if is_inside { usize::MAX } else { 1 };
        let parents = directory.ancestors().take(levels);
        parents.take_while(move |parent| !is_inside || parent.starts_with(&self.root))
    }

    /// Keeps the directory open, and those above it.
    fn keep(&self, disk: &D, directory: &Path) -> Result<()> {
        for directory in self.with_parents(directory) {
            let open =
                disk.open_dir(directory).map_err(|source| StoreError::io("open", directory, source))?;
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

    /// Returns when a sync that began after the last change of each directory has ended, whoever did it.
    fn sync(&self, disk: &D, directory: &Path) -> Result<()> {
        for directory in self.with_parents(directory) {
            let Some(number) = self.changed.lock().of.get(directory).copied() else { continue };
            let kept = self.kept.lock().get(directory).cloned();
            let synced = kept.map_or_else(|| disk.sync_dir(directory), |kept| disk.sync_open_dir(&kept));
            synced.map_err(|source| StoreError::io("flush", directory, source))?;
            let mut changed = self.changed.lock();
            // What came meanwhile may not be covered.
            if changed.of.get(directory) == Some(&number) {
                changed.of.remove(directory);
            }
        }
        Ok(())
    }
}

/// The directories of a row.
pub(crate) struct FilePlaces<D: Disk> {
    names: Arc<DirectoryNames<D>>,
    /// First those new files are made in, in the order of their names.
    directories: Vec<PathBuf>,
    writable: usize,
    /// Bytes that stay free in a directory while another one has more.
    reserve: u64,
    /// By directory, in the same order.
    changes: Vec<Changes>,
}

/// How often the row changed a directory's entries, and how many of these changes no crash forgets.
#[derive(Default)]
struct Changes {
    made: AtomicU64,
    durable: AtomicU64,
}

impl<D: Disk> FilePlaces<D> {
    /// One directory of the store.
    pub(crate) fn one(names: &Arc<DirectoryNames<D>>, directory: PathBuf) -> Self {
        Self {
            names: Arc::clone(names),
            directories: vec![directory],
            writable: 1,
            reserve: 0,
            changes: vec![Changes::default()],
        }
    }

    /// The directories of a commit log, made where new files may go to them: the store's own or those configured, on
    /// other disks perhaps.
    ///
    /// Errors: `Io` where one cannot be made, or one that only is read is not there: its disk may not be mounted.
    pub(crate) fn of_log(disk: &D, names: &Arc<DirectoryNames<D>>, config: &StoreConfig) -> Result<Self> {
        let root = &names.root;
        let own = [root.join("commitlog")];
        let wanted = if config.commit_log_paths.is_empty() { &own[..] } else { &config.commit_log_paths[..] };
        let read_only = absolute(disk, &config.read_only_commit_log_paths)?;
        for directory in wanted {
            disk.create_dir(directory).map_err(|source| StoreError::io("create", directory, source))?;
        }
        let mut directories = absolute(disk, wanted)?;
        directories.retain(|directory| !read_only.contains(directory));
        let writable = directories.len();
        if writable == 0 {
            return Err(StoreError::Invalid {
                what: "commit_log_paths",
                reason: "all of them are read only",
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

    /// Those new files are made in.
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

    /// Which directory a new file goes to: in turn, by the file's number, those without space left out, as RocketMQ.
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

    /// Where a new file is made before it is renamed into its directory, so that a crash leaves no file of half its
    /// size there. On the same file system; a Java broker skips directories among its files.
    pub(crate) fn staging(&self, number: usize) -> PathBuf {
        let directory = self.directory(number);
        let parent = if directory.starts_with(&self.names.root) { &self.names.root } else { directory };
        parent.join("ferromq")
    }

    /// A directory has entries that a crash may forget, or still have.
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

    /// Two threads may both sync what changed: neither may go on before a sync has ended that covers it.
    fn sync_but(&self, disk: &D, left_out: Option<usize>) -> Result<()> {
        for (number, changes) in self.changes.iter().enumerate() {
            let made = changes.made.load(Ordering::Acquire);
            if Some(number) != left_out && changes.durable.load(Ordering::Acquire) < made {
                self.names.sync(disk, self.directory(number))?;
                changes.durable.fetch_max(made, Ordering::AcqRel);
            }
        }
        Ok(())
    }
}

/// The paths from the root on, each once, in the order of their names.
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

/// Makes the name of a directory durable, where the directory above may be read at all.
pub(crate) fn sync_parent<D: Disk>(disk: &D, directory: &Path) -> Result<()> {
    let Some(parent) = directory.parent() else { return Ok(()) };
    match disk.sync_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        done => done.map_err(|source| StoreError::io("flush", parent, source)),
    }
}

/// RocketMQ's name of the file that begins at `base`.
pub(crate) fn file_name(base: u64) -> String {
    format!("{base:020}")
}
