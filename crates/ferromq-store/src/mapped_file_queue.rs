//! Ordered mapped files addressed as one endless byte range.
//!
//! Callers see only offsets; which file holds a byte is this module's business.
//! It never interprets what is stored: records belong to `commit_log` and `consume_queue`.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};

use crate::{Allocation, Disk, Region, Result, StoreError, mapped_file::MappedFile};

/// Files in a row; each begins where the one before it ends.
pub(crate) struct MappedFileQueue<D: Disk> {
    disk: D,
    directory: PathBuf,
    /// New files are made here and renamed into place, so that a crash leaves no file of half its size.
    staging: PathBuf,
    file_size: u64,
    allocation: Allocation,
    files: RwLock<Vec<Arc<MappedFile<D::Region>>>>,
    /// Held while a file is made.
    creating: Mutex<()>,
    /// The directory has entries that a crash may still forget.
    is_directory_dirty: AtomicBool,
}

impl<D: Disk> MappedFileQueue<D> {
    /// A row without files; nothing is touched on disk.
    pub(crate) fn new(
        disk: D,
        directory: PathBuf,
        staging: PathBuf,
        file_size: u64,
        allocation: Allocation,
    ) -> Self {
        Self {
            disk,
            directory,
            staging,
            file_size,
            allocation,
            files: RwLock::new(Vec::new()),
            creating: Mutex::new(()),
            is_directory_dirty: AtomicBool::new(false),
        }
    }

    /// Opens the files found in the directory. New files get the size of the last one found.
    ///
    /// Errors: `Corrupt` where a file is missing in the middle or has no bytes; other names are ignored.
    pub(crate) fn load(&mut self) -> Result<()> {
        let paths = self
            .disk
            .list(&self.directory)
            .map_err(|source| StoreError::io("list", &self.directory, source))?;
        let mut files: Vec<Arc<MappedFile<D::Region>>> = Vec::new();
        for path in paths {
            let Some(base) = parse_name(&path) else { continue };
            let region = self
                .disk
                .open(&path, self.allocation)
                .map_err(|source| StoreError::io("open", &path, source))?;
            if region.is_empty() {
                return Err(StoreError::Corrupt { file: path, offset: 0, reason: "the file is empty" });
            }
            if let Some(before) = files.last()
                && before.end() != base
            {
                return Err(StoreError::Corrupt {
                    file: path,
                    offset: 0,
                    reason: "the file before it is missing or has another size",
                });
            }
            self.file_size = region.len();
            files.push(Arc::new(MappedFile::new(base, path, region)));
        }
        *self.files.write() = files;
        Ok(())
    }

    /// Size of new files.
    pub(crate) fn file_size(&self) -> u64 {
        self.file_size
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file that holds the byte at `offset`.
    pub(crate) fn find(&self, offset: u64) -> Option<Arc<MappedFile<D::Region>>> {
        let files = self.files.read();
        let after = files.partition_point(|file| file.base() <= offset);
        let file = files.get(after.checked_sub(1)?)?;
        (offset < file.end()).then(|| Arc::clone(file))
    }

    /// All files, oldest first.
    pub(crate) fn snapshot(&self) -> Vec<Arc<MappedFile<D::Region>>> {
        self.files.read().clone()
    }

    /// First byte kept, and the end of the last file.
    pub(crate) fn span(&self) -> Option<Range<u64>> {
        let files = self.files.read();
        Some(files.first()?.base()..files.last()?.end())
    }

    /// The file that holds `offset`, made where it is not there yet; files between the last one and it are made too.
    ///
    /// Errors: `Full` or `Io` where a file cannot be made; nothing is left behind then.
    pub(crate) fn ensure(&self, offset: u64) -> Result<Arc<MappedFile<D::Region>>> {
        if let Some(file) = self.find(offset) {
            return Ok(file);
        }
        let _creating = self.creating.lock();
        loop {
            if let Some(file) = self.find(offset) {
                return Ok(file);
            }
            let base = match self.span() {
                Some(span) => span.end,
                None => offset / self.file_size * self.file_size,
            };
            let file = Arc::new(self.make(base)?);
            self.files.write().push(file);
        }
    }

    fn make(&self, base: u64) -> Result<MappedFile<D::Region>> {
        let path = self.directory.join(format!("{base:020}"));
        let directory = &self.directory;
        self.disk.create_dir(directory).map_err(|source| StoreError::io("create", directory, source))?;
        let made = format!("{}.new", self.allocation.name());
        let staged = self.staging.join(made);
        match self.disk.remove(&staged) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io("remove", &staged, source));
            }
            _ => {}
        }
        let region = self
            .disk
            .create(&staged, self.file_size, self.allocation)
            .map_err(|source| self.full_or_io("create", &path, source))?;
        self.disk.rename(&staged, &path).map_err(|source| StoreError::io("create", &path, source))?;
        self.is_directory_dirty.store(true, Ordering::Release);
        Ok(MappedFile::new(base, path, region))
    }

    /// `Full` with the numbers of the moment where the disk has no space, `Io` otherwise.
    fn full_or_io(&self, operation: &'static str, path: &Path, source: std::io::Error) -> StoreError {
        if !StoreError::is_full(&source) {
            return StoreError::io(operation, path, source);
        }
        StoreError::Full {
            path: self.directory.clone(),
            free: self.disk.free_space(&self.directory).unwrap_or(0),
            needed: self.file_size,
            reserve: 0,
        }
    }

    /// Writes `bytes` at `offset`, over as many files as it takes.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let file = self.ensure(at)?;
            let room = usize::try_from(file.end() - at).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.min(rest.len()));
            file.write(at, &[now])?;
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Makes a range durable, and the directory's entries where files came new.
    pub(crate) fn flush(&self, range: Range<u64>) -> Result<()> {
        self.sync_directory()?;
        let mut at = range.start.max(self.span().map_or(0, |span| span.start));
        while at < range.end {
            let Some(file) = self.find(at) else { break };
            file.flush(at..range.end.min(file.end()))?;
            at = file.end();
        }
        Ok(())
    }

    /// Makes the names of new files durable, up to the store's root: topic and queue directories may be new too.
    pub(crate) fn sync_directory(&self) -> Result<()> {
        if !self.is_directory_dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        // The staging directory lies in the root.
        let root = self.staging.parent().unwrap_or(&self.staging);
        for directory in self.directory.ancestors().take_while(|directory| directory.starts_with(root)) {
            if let Err(source) = self.disk.sync_dir(directory) {
                self.is_directory_dirty.store(true, Ordering::Release);
                return Err(StoreError::io("flush", directory, source));
            }
        }
        Ok(())
    }

    /// Removes all files.
    pub(crate) fn clear(&self) -> Result<()> {
        let mut files = self.files.write();
        // Newest first: a crash in the middle must leave a contiguous prefix.
        while let Some(file) = files.last() {
            self.disk.remove(file.path()).map_err(|source| StoreError::io("remove", file.path(), source))?;
            self.is_directory_dirty.store(true, Ordering::Release);
            files.pop();
        }
        drop(files);
        self.sync_directory()
    }

    /// Removes the files that lie wholly at or after `offset`.
    ///
    /// Only for recovery: bytes after `offset` in the file that holds it stay as they are.
    pub(crate) fn truncate(&self, offset: u64) -> Result<()> {
        let mut files = self.files.write();
        // Newest first: a crash in the middle must leave a contiguous prefix.
        while let Some(file) = files.last() {
            if file.base() < offset || (file.base() == offset && files.len() == 1) {
                break;
            }
            self.disk.remove(file.path()).map_err(|source| StoreError::io("remove", file.path(), source))?;
            self.is_directory_dirty.store(true, Ordering::Release);
            files.pop();
        }
        Ok(())
    }
}

impl Allocation {
    /// Names the file that is being made in the staging directory; one maker at a time for each kind.
    fn name(self) -> &'static str {
        match self {
            Self::Reserved => "commitlog",
            Self::Sparse => "consumequeue",
        }
    }
}

/// The offset in the name of a file, where it has RocketMQ's 20 digits.
fn parse_name(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    (name.len() == 20 && name.bytes().all(|b| b.is_ascii_digit())).then(|| name.parse().ok())?
}
