//! A sequence of mapped files, addressed as one byte range (RocketMQ's `MappedFileQueue`).
//!
//! Callers use offsets only. This module knows which file holds a byte, where it lies and whether it is open. It does
//! not interpret the bytes.

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    error::{IoResult, Result, StoreError},
    files::{
        directories::{FileDirectories, file_name},
        disk::{Allocation, Disk, Region},
        mapped_file::MappedFile,
        open_files::{FileKind, FileRow, FileSlot, OpenFiles, slot_at},
    },
};

type File<D> = Arc<MappedFile<<D as Disk>::Region>>;

/// Properties of the files of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileFormat {
    /// Size of new files, in bytes, if none exist.
    pub(crate) size: u64,
    pub(crate) allocation: Allocation,
    pub(crate) kind: FileKind,
}

/// A queue of files. Each begins at the end of the previous one, or after a gap if files are missing.
///
/// A file is opened on demand and closed when the store has too many open.
pub(crate) struct MappedFileQueue<D: Disk> {
    pub(super) disk: D,
    pub(super) places: FileDirectories<D>,
    form: FileFormat,
    pub(super) row: Arc<FileRow<D::Region>>,
    pub(super) open_files: Arc<OpenFiles<D::Region>>,
    /// Held while files are created or removed.
    pub(super) changing: Mutex<()>,
    /// Held while files are removed; taken before `changing`. Removing a large old file takes long, and creating a file
    /// must not wait for it.
    pub(super) removing: Mutex<()>,
    /// Held while a file is opened, so that no file is opened twice at once.
    opening: Mutex<()>,
    /// A file could not be opened. Logged once until an open succeeds.
    is_failing: AtomicBool,
}

impl<D: Disk> MappedFileQueue<D> {
    /// A queue without files; the disk is not touched.
    pub(crate) fn new(
        disk: D,
        places: FileDirectories<D>,
        form: FileFormat,
        open_files: Arc<OpenFiles<D::Region>>,
    ) -> Self {
        Self {
            disk,
            places,
            form,
            row: FileRow::new(form.kind),
            open_files,
            changing: Mutex::new(()),
            removing: Mutex::new(()),
            opening: Mutex::new(()),
            is_failing: AtomicBool::new(false),
        }
    }

    /// Finds the files in the directories without opening them. New files get the size of the last file, or of the one
    /// before if the last was cut short.
    ///
    /// Other names and empty files are ignored. Missing files become [`Self::gaps`]. Errors: `Corrupt` if two files
    /// claim the same bytes.
    pub(crate) fn load(&mut self) -> Result<()> {
        let mut slots: Vec<FileSlot<D::Region>> = Vec::new();
        for (number, directory) in self.places.directories().enumerate() {
            let paths = self.disk.list(directory).or_io("list", directory)?;
            for path in paths {
                let Some(base) = parse_name(&path) else { continue };
                let len = self.disk.len(&path).or_io("look at", &path)?;
                if len == 0 || base.checked_add(len).is_none() {
                    tracing::warn!(file = %path.display(), len, "file of invalid size ignored");
                    continue;
                }
                slots.push(FileSlot::closed(base, len, number));
            }
        }
        slots.sort_by_key(|slot| slot.base);
        for pair in slots.windows(2) {
            if let [before, slot] = pair
                && before.end() > slot.base
            {
                return Err(StoreError::Corrupt {
                    file: self.places.path(slot.directory, slot.base),
                    offset: 0,
                    reason: "the previous file holds the same bytes",
                });
            }
        }
        if let Some(last) = slots.last() {
            let before = slots.len().checked_sub(2).and_then(|number| slots.get(number));
            self.form.size = before.map_or(last.len, |before| before.len.max(last.len));
        }
        if self.form.kind == FileKind::Log {
            // A killed process may not have synced their names.
            slots.iter().map(|slot| slot.directory).collect::<BTreeSet<_>>().into_iter().for_each(|number| {
                self.places.set_changed(number);
            });
        }
        *self.row.slots.write() = slots;
        Ok(())
    }

    /// Sets the size of new files if the existing files do not determine it.
    pub(crate) fn set_file_size(&mut self, size: u64) {
        self.form.size = size;
    }

    /// Size of new files, in bytes.
    pub(crate) fn file_size(&self) -> u64 {
        self.form.size
    }

    /// Directories for new files.
    pub(crate) fn writable_directories(&self) -> impl Iterator<Item = &Path> {
        self.places.writable()
    }

    /// The directory for messages about the whole queue.
    pub(crate) fn directory(&self) -> &Path {
        self.places.first()
    }

    /// The file that holds the byte at `offset`, opened if necessary.
    ///
    /// Returns `None` for a missing file and, with a log line, for one that cannot be opened. [`Self::open`]
    /// distinguishes them.
    pub(crate) fn find(&self, offset: u64) -> Option<File<D>> {
        if let Some(found) = self.row.find_open(offset, false) {
            return found;
        }
        match self.open_closed(offset, false) {
            Ok(file) => {
                self.is_failing.store(false, Ordering::Relaxed);
                file
            }
            Err(error) => {
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    tracing::error!(%error, offset, "file cannot be opened");
                }
                None
            }
        }
    }

    /// The file that holds the byte at `offset`, or `Some(None)` if no file does. `None` if the file is not open.
    pub(crate) fn find_open(&self, offset: u64) -> Option<Option<File<D>>> {
        self.row.find_open(offset, false)
    }

    /// As [`Self::find`], but a file that cannot be opened is an error.
    pub(crate) fn open(&self, offset: u64) -> Result<Option<File<D>>> {
        self.open_as(offset, false)
    }

    /// As [`Self::open`], for writing to a file that may be an old one.
    pub(crate) fn open_writable(&self, offset: u64) -> Result<Option<File<D>>> {
        self.open_as(offset, true)
    }

    fn open_as(&self, offset: u64, is_writable: bool) -> Result<Option<File<D>>> {
        match self.row.find_open(offset, is_writable) {
            Some(found) => Ok(found),
            None => self.open_closed(offset, is_writable),
        }
    }

    #[cold]
    fn open_closed(&self, offset: u64, is_writable: bool) -> Result<Option<File<D>>> {
        let _opening = self.opening.lock();
        if let Some(file) = self.row.reuse(offset, is_writable) {
            self.open_files.readmit(&self.row);
            return Ok(Some(file));
        }
        let (base, len, directory) = {
            let slots = self.row.slots.read();
            let Some(slot) = slot_at(&slots, offset).and_then(|number| slots.get(number)) else {
                return Ok(None);
            };
            (slot.base, slot.len, slot.directory)
        };
        let path = self.places.path(directory, base);
        // The map of a sparse file is read-only anyway, so one open serves both.
        let is_writable = is_writable || self.form.allocation == Allocation::Sparse;
        let allocation = if is_writable { self.form.allocation } else { Allocation::ReadOnly };
        let region = match self.disk.open(&path, allocation) {
            Ok(region) => region,
            // The file was removed after the lookup.
            Err(source) if source.kind() == io::ErrorKind::NotFound && self.path_at(offset).is_none() => {
                return Ok(None);
            }
            Err(source) => return Err(StoreError::io("open", &path, source)),
        };
        if region.len() != len {
            return Err(StoreError::Corrupt {
                file: path,
                offset: region.len().min(len),
                reason: "the file size changed while the store was open",
            });
        }
        let file = Arc::new(MappedFile::new(base, path, region));
        self.set_open(base, &file, is_writable);
        Ok(Some(file))
    }

    /// Stores an open file in its slot, if the slot still exists.
    fn set_open(&self, base: u64, file: &File<D>, is_writable: bool) {
        let replaced = {
            let mut slots = self.row.slots.write();
            let slot = slot_at(&slots, base).and_then(|number| slots.get_mut(number));
            let Some(slot) = slot.filter(|slot| slot.base == base) else { return };
            let replaced = slot.file.take();
            slot.set_open(Arc::clone(file), is_writable);
            replaced
        };
        if replaced.is_none() {
            self.open_files.admit(&self.row, base);
        }
    }

    /// The path of the file that holds the byte at `offset`.
    pub(crate) fn path_at(&self, offset: u64) -> Option<PathBuf> {
        let slots = self.row.slots.read();
        let slot = slots.get(slot_at(&slots, offset)?)?;
        Some(self.places.path(slot.directory, slot.base))
    }

    /// The path of the file that holds the byte at `offset`, else that of the directory.
    pub(crate) fn path_for(&self, offset: u64) -> PathBuf {
        self.path_at(offset).unwrap_or_else(|| self.directory().to_path_buf())
    }

    /// Byte range of each file, oldest first.
    pub(crate) fn spans(&self) -> Vec<Range<u64>> {
        self.row.slots.read().iter().map(|slot| slot.base..slot.end()).collect()
    }

    /// Ranges between existing files that no file holds.
    pub(crate) fn gaps(&self) -> Vec<Range<u64>> {
        let slots = self.row.slots.read();
        let pairs = slots.iter().zip(slots.iter().skip(1));
        pairs.map(|(before, after)| before.end()..after.base).filter(|gap| !gap.is_empty()).collect()
    }

    /// The range from the first file's start to the last file's end.
    pub(crate) fn span(&self) -> Option<Range<u64>> {
        let slots = self.row.slots.read();
        Some(slots.first()?.base..slots.last()?.end())
    }

    /// The end of the last file; 0 without files.
    pub(crate) fn end(&self) -> u64 {
        self.span().map_or(0, |span| span.end)
    }

    /// The end of the last file that ends at or before `offset`.
    pub(crate) fn end_before(&self, offset: u64) -> Option<u64> {
        let slots = self.row.slots.read();
        let after = slots.partition_point(|slot| slot.end() <= offset);
        Some(slots.get(after.checked_sub(1)?)?.end())
    }

    /// The start of the first file that begins after `offset`.
    pub(crate) fn begin_after(&self, offset: u64) -> Option<u64> {
        let slots = self.row.slots.read();
        slots.get(slots.partition_point(|slot| slot.base <= offset)).map(|slot| slot.base)
    }

    /// Whether a file, open or not, holds the byte at `offset`.
    pub(crate) fn contains(&self, offset: u64) -> bool {
        slot_at(&self.row.slots.read(), offset).is_some()
    }

    /// Keeps files open that end after `offset`, because their bytes from there on are not flushed.
    pub(crate) fn keep_open_from(&self, offset: u64) {
        self.row.keep_open_from(offset);
    }

    /// The file that holds `offset`, for writing. Creates it and the missing files before it. Errors: `Full` or `Io` if
    /// a file cannot be created or opened; nothing is left behind. `Corrupt` if files exist behind `offset` but its own
    /// does not.
    pub(crate) fn ensure(&self, offset: u64) -> Result<File<D>> {
        if let Some(file) = self.open_writable(offset)? {
            return Ok(file);
        }
        let _changing = self.changing.lock();
        loop {
            if let Some(file) = self.open_writable(offset)? {
                return Ok(file);
            }
            let base = match self.span() {
                Some(span) if offset < span.end => {
                    let file = self.directory().join(file_name(offset / self.form.size * self.form.size));
                    return Err(StoreError::Corrupt { file, offset: 0, reason: "the file is missing" });
                }
                Some(span) => span.end,
                None => offset / self.form.size * self.form.size,
            };
            self.make(base)?;
        }
    }

    fn make(&self, base: u64) -> Result<()> {
        let place = self.places.for_new(&self.disk, base, self.form.size);
        let path = self.places.path(place, base);
        let staging = self.places.staging(place);
        for needed in [path.parent().unwrap_or(&path), staging.as_path()] {
            self.disk.create_dir(needed).or_io("create", needed)?;
        }
        let staged = staging.join(staged_name(self.form.kind));
        self.disk.remove(&staged).if_found().or_io("remove", &staged)?;
        let region = self
            .disk
            .create(&staged, self.form.size, self.form.allocation)
            .map_err(|source| self.full_or_io(&path, source))?;
        self.disk.rename(&staged, &path).or_io("create", &path)?;
        self.places.set_changed(place);
        let file = Arc::new(MappedFile::new(base, path, region));
        let mut slot = FileSlot::closed(base, self.form.size, place);
        slot.set_open(file, true);
        self.row.slots.write().push(slot);
        self.open_files.admit(&self.row, base);
        Ok(())
    }

    /// `Full` with the current numbers if the disk is full, `Io` otherwise.
    fn full_or_io(&self, path: &Path, source: io::Error) -> StoreError {
        if !StoreError::is_full(&source) {
            return StoreError::io("create", path, source);
        }
        let directory = path.parent().unwrap_or(path);
        StoreError::Full {
            path: directory.to_path_buf(),
            free: self.disk.free_space(directory).unwrap_or(0),
            needed: self.form.size,
            reserve: 0,
        }
    }

    /// Writes `bytes` at `offset`, across files if necessary.
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

    /// Starts writing a range to disk; only [`Self::flush`] makes it durable.
    pub(crate) fn begin_flush(&self, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while let Some(span) = self.span_from(at).filter(|span| span.start < range.end) {
            if let Some(file) = self.open(span.start)? {
                file.begin_flush(at.max(span.start)..range.end.min(span.end));
            }
            at = span.end;
        }
        Ok(())
    }

    /// Makes a range durable, with the directory entries of new files.
    pub(crate) fn flush(&self, range: Range<u64>) -> Result<()> {
        self.sync_directory()?;
        let mut at = range.start;
        while let Some(span) = self.span_from(at).filter(|span| span.start < range.end) {
            // A removed file needs no flush.
            if let Some(file) = self.open(span.start)? {
                file.flush(at.max(span.start)..range.end.min(span.end))?;
            }
            at = span.end;
        }
        Ok(())
    }

    /// The first file that ends after `offset`.
    fn span_from(&self, offset: u64) -> Option<Range<u64>> {
        let slots = self.row.slots.read();
        let slot = slots.get(slots.partition_point(|slot| slot.end() <= offset))?;
        Some(slot.base..slot.end())
    }

    /// Makes the names of new and removed files durable, with their directories up to the store's root.
    pub(crate) fn sync_directory(&self) -> Result<()> {
        self.places.sync(&self.disk)
    }
}

/// Name of a new file in the staging directory; each kind has one creator at a time.
fn staged_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Log => "commitlog.new",
        FileKind::Derived => "consumequeue.new",
        FileKind::Timer => "timerlog.new",
    }
}

/// The offset in a file name of RocketMQ's 20 digits.
pub(super) fn parse_name(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    (name.len() == 20 && name.bytes().all(|b| b.is_ascii_digit())).then(|| name.parse().ok())?
}
