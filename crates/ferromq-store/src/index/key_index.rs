//! All index files, which find messages by key.
//!
//! One dispatching thread adds keys; any thread queries. The caller checks that a found message has the key.

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use jiff::{Timestamp, tz::TimeZone};
use parking_lot::{Mutex, RwLock};

use crate::{
    config::StoreConfig,
    error::{IoResult, Result, StoreError},
    files::disk::{Allocation, Disk, Region},
    index::index_file::{HEADER_LEN, IndexFile, IndexKey, IndexShape},
    recovery::last_shutdown::Left,
};

/// All index files.
pub(crate) struct Index<D: Disk> {
    disk: D,
    directory: PathBuf,
    /// Keys are added. Otherwise the files are read only, and flushed like those of a closed store.
    is_enabled: bool,
    shape: Mutex<IndexShape>,
    files: RwLock<Vec<Arc<IndexFile<D::Region>>>>,
    /// Files before it are full and durable; Java may trust them after a crash.
    durable_timestamp: AtomicU64,
    is_directory_dirty: AtomicBool,
    was_missing: bool,
    /// Files of a wrong length or form.
    unfit: Vec<PathBuf>,
    /// Why the files cannot be used.
    unusable: Mutex<Option<StoreError>>,
}

impl<D: Disk> Index<D> {
    /// Opens the files in `index`. [`Self::recover`] checks their content; [`Self::check_usable`] reports a failure.
    pub(crate) fn load(disk: &D, root: &Path, config: &StoreConfig) -> Self {
        let mut index = Self {
            disk: disk.clone(),
            directory: root.join("index"),
            is_enabled: config.index_enabled,
            shape: Mutex::new(IndexShape {
                slots: config.index_slots.max(1),
                entries: config.index_entries.max(2),
            }),
            files: RwLock::new(Vec::new()),
            durable_timestamp: AtomicU64::new(0),
            is_directory_dirty: AtomicBool::new(false),
            was_missing: false,
            unfit: Vec::new(),
            unusable: Mutex::default(),
        };
        if let Err(error) = index.open_files(root) {
            index.files.get_mut().clear();
            *index.unusable.get_mut() = Some(error);
        }
        index
    }

    fn open_files(&mut self, root: &Path) -> Result<()> {
        let (disk, index) = (self.disk.clone(), self);
        let entries = disk.list(root).or_io("list", root)?;
        index.was_missing = !entries.contains(&index.directory);
        disk.create_dir(&index.directory).or_io("create", &index.directory)?;
        let found = disk.list(&index.directory).or_io("list", &index.directory)?;
        for path in found {
            let is_ours = path
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.len() == 17 && name.bytes().all(|byte| byte.is_ascii_digit()));
            if is_ours {
                index.open_file(path)?;
            }
        }
        // New files get the same shape: Java assumes one shape for all.
        let found = index.files.get_mut().last().map(|file| file.shape());
        if let Some(found) = found {
            *index.shape.get_mut() = found;
        }
        Ok(())
    }

    /// Whether keys are added.
    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// The error that opening the files met.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.unusable.lock().take().map_or(Ok(()), Err)
    }

    /// Reopens files that could not be used. Returns the same as [`Self::recover`].
    pub(crate) fn reload(
        &self,
        root: &Path,
        config: &StoreConfig,
        (log_start, limit): (u64, u64),
        trusted_timestamp: i64,
    ) -> Result<Option<u64>> {
        let index = Self::load(&self.disk, root, config);
        index.check_usable()?;
        index.remove_unfit(None, log_start)?;
        let last = index.recover(limit, trusted_timestamp, Left::Killed)?;
        *self.shape.lock() = index.shape.into_inner();
        *self.files.write() = index.files.into_inner();
        self.is_directory_dirty.store(true, Ordering::Release);
        Ok(last)
    }

    /// Opens or creates the file for the next keys.
    pub(crate) fn prepare(&self, now_ms: i64) -> Result<()> {
        self.file_with_room(now_ms).map(drop)
    }

    fn open_file(&mut self, path: PathBuf) -> Result<()> {
        let region = self.disk.open(&path, Allocation::Sparse).or_io("open", &path)?;
        let len = region.len();
        let shape = *self.shape.get_mut();
        match IndexFile::open(path.clone(), region, shape)? {
            Some(file) => self.files.write().push(Arc::new(file)),
            None => {
                tracing::warn!(file = %path.display(), len, "index file of unknown shape: rebuilding it from the log");
                self.unfit.push(path);
            }
        }
        Ok(())
    }

    /// Recovers the files after a stop and prepares the last one for more keys.
    ///
    /// `limit` is the end of the log, `trusted_timestamp` the checkpoint's. After a crash, slots and headers of
    /// unfinished files are derived from their entries. Returns the physical offset of the last indexed record, where
    /// indexing continues.
    pub(crate) fn recover(&self, limit: u64, trusted_timestamp: i64, left: Left) -> Result<Option<u64>> {
        let mut files = self.files.write();
        let mut is_cut = false;
        let mut kept: Vec<Arc<IndexFile<D::Region>>> = Vec::new();
        for (number, file) in files.iter().enumerate() {
            let is_last = number + 1 == files.len();
            let header = file.header();
            // ferromq counts a full file only after its slots are durable. For other brokers only the checkpoint
            // decides, and it may not mean a file that ends in the same millisecond.
            let is_whole = file.is_full();
            let is_trusted =
                left.is_clean() || is_whole && (left.is_ours() || header.end_timestamp < trusted_timestamp);
            if is_cut {
                self.disk.remove(file.path()).or_io("remove", file.path())?;
                continue;
            }
            if !is_trusted || (header.count > 1 && header.end_physical_offset >= limit) {
                file.rebuild(limit)?;
                is_cut = !is_last && !file.is_full();
            } else if !is_whole && self.is_enabled {
                file.load_slots()?;
            }
            kept.push(Arc::clone(file));
        }
        *files = kept;
        drop(files);
        Ok(self.last_physical_offset())
    }

    /// Whether the last file has keys and is not full.
    pub(crate) fn is_filling(&self) -> bool {
        let is_last_filling = |file: &Arc<IndexFile<_>>| file.header().count > 1 && !file.is_full();
        self.is_enabled && self.files.read().last().is_some_and(is_last_filling)
    }

    /// Removes the first unsound file and all later ones; the log is indexed again from there.
    ///
    /// `listed` names the files that existed, if known. Returns whether all files are sound. A disabled index keeps its
    /// files.
    pub(crate) fn remove_unfit(&self, listed: Option<&BTreeMap<u64, u64>>, log_start: u64) -> Result<bool> {
        if !self.is_enabled {
            return Ok(true);
        }
        let unfit = self.unfit.iter().filter_map(|path| name_of(path));
        let files = self.files.read().clone();
        let mut before = None;
        let unsound = files.iter().find(|file| !file.is_sound_after(before.replace(file.header())));
        let is_there = |name: u64| files.iter().any(|file| name_of(file.path()) == Some(name));
        // Retention may have removed files without messages.
        let missing =
            listed.into_iter().flatten().filter(|(name, end)| **end >= log_start && !is_there(**name));
        let first = unfit
            .chain(unsound.and_then(|file| name_of(file.path())))
            .chain(missing.map(|(name, _)| *name))
            .min();
        let Some(first) = first else { return Ok(!self.was_missing) };
        tracing::warn!(first, "index files are missing or damaged: rebuilding them from the log");
        let is_kept = |path: &Path| name_of(path).is_none_or(|name| name < first);
        let gone = files.iter().map(|file| file.path()).chain(self.unfit.iter().map(PathBuf::as_path));
        for path in gone.filter(|path| !is_kept(path)) {
            self.disk.remove(path).or_io("remove", path)?;
            self.is_directory_dirty.store(true, Ordering::Release);
        }
        self.files.write().retain(|file| is_kept(file.path()));
        Ok(false)
    }

    /// File names with the physical offset of each last record.
    pub(crate) fn names(&self) -> BTreeMap<u64, u64> {
        let files = self.files.read();
        let named = files.iter().filter_map(|file| Some((name_of(file.path())?, file.header())));
        named
            .filter(|(_, header)| header.count > 1)
            .map(|(name, header)| (name, header.end_physical_offset))
            .collect()
    }

    /// Adds keys in the order of the log.
    pub(crate) fn add(&self, mut keys: &[IndexKey], now_ms: i64, buffer: &mut Vec<u8>) -> Result<()> {
        while !keys.is_empty() {
            let file = self.file_with_room(now_ms)?;
            let added = file.add(keys, buffer)?;
            keys = keys.get(added..).unwrap_or_default();
        }
        Ok(())
    }

    /// Physical offset of the last record whose keys are wholly or partly indexed.
    pub(crate) fn last_physical_offset(&self) -> Option<u64> {
        let files = self.files.read();
        files
            .iter()
            .rev()
            .map(|file| file.header())
            .find(|header| header.count > 1)
            .map(|h| h.end_physical_offset)
    }

    /// Whether the last indexed record already has this key: a crash may have cut a record's keys.
    pub(crate) fn has_last(&self, key: &IndexKey) -> bool {
        self.files.read().iter().rev().find_map(|file| file.has_newest(key)).unwrap_or(false)
    }

    fn file_with_room(&self, now_ms: i64) -> Result<Arc<IndexFile<D::Region>>> {
        let last = self.files.read().last().map(Arc::clone);
        match last {
            Some(file) if !file.is_full() => Ok(file),
            last => {
                let file = Arc::new(self.make(last.as_deref(), now_ms)?);
                self.files.write().push(Arc::clone(&file));
                Ok(file)
            }
        }
    }

    fn make(&self, last: Option<&IndexFile<D::Region>>, now_ms: i64) -> Result<IndexFile<D::Region>> {
        let directory = &self.directory;
        // Java takes the last name as the newest file, so the name must sort last whatever the clock says.
        let after = last.and_then(|file| name_of(file.path())).map_or(0, |name| name + 1);
        let path = directory.join(format!("{:017}", file_name(now_ms).max(after)));
        let shape = *self.shape.lock();
        let region = self.disk.create(&path, shape.file_len(), Allocation::Sparse).map_err(|source| {
            if StoreError::is_full(&source) {
                let free = self.disk.free_space(directory).unwrap_or(0);
                return StoreError::Full { path: directory.clone(), free, needed: HEADER_LEN, reserve: 0 };
            }
            StoreError::io("create", &path, source)
        })?;
        self.is_directory_dirty.store(true, Ordering::Release);
        Ok(IndexFile::new(path, region, shape, last.map(IndexFile::header)))
    }

    /// Calls `visit` with the physical offsets of records that may have the key, newest first, until it returns `false`
    /// or `entries_left`, which counts every entry read, is 0. See [`IndexFile::find`].
    pub(crate) fn find(
        &self,
        hash: u32,
        times: RangeInclusive<i64>,
        entries_left: &mut u64,
        mut visit: impl FnMut(u64) -> bool,
    ) {
        let mut next = self.before(None);
        while let Some(file) = next.filter(|file| file.find(hash, &times, entries_left, &mut visit)) {
            next = self.before(Some(&file));
        }
    }

    /// The file before `file`; the newest one for `None`.
    fn before(&self, file: Option<&Arc<IndexFile<D::Region>>>) -> Option<Arc<IndexFile<D::Region>>> {
        let files = self.files.read();
        let after = match file {
            Some(file) => files.iter().rposition(|known| Arc::ptr_eq(known, file))?,
            None => files.len(),
        };
        files.get(after.checked_sub(1)?).map(Arc::clone)
    }

    /// Physical offset and store timestamp of the last indexed record.
    pub(crate) fn end(&self) -> (u64, i64) {
        let last = self.files.read().last().map(|file| file.header());
        last.map_or((0, 0), |header| (header.end_physical_offset, header.end_timestamp))
    }

    /// Removes files whose messages all lie below `log_start`, oldest first, except the last. Returns their bytes.
    pub(crate) fn remove_below(&self, log_start: u64) -> Result<u64> {
        let mut removed = 0;
        loop {
            let oldest = {
                let files = self.files.read();
                let [oldest, _, ..] = &files[..] else { break };
                if oldest.header().end_physical_offset >= log_start || !oldest.is_full() {
                    break;
                }
                Arc::clone(oldest)
            };
            self.disk.remove(oldest.path()).if_found().or_io("remove", oldest.path())?;
            self.is_directory_dirty.store(true, Ordering::Release);
            self.files.write().retain(|file| !Arc::ptr_eq(file, &oldest));
            removed += oldest.len();
        }
        Ok(removed)
    }

    /// Makes the added keys durable. `is_closing` also writes the slots of the last file.
    ///
    /// Returns the time up to which full files are durable, for the checkpoint.
    pub(crate) fn flush(&self, is_closing: bool) -> Result<i64> {
        let is_closing = is_closing || !self.is_enabled;
        let files = self.files.read().clone();
        for file in &files {
            if file.is_pending() {
                file.flush(is_closing)?;
            }
            let header = file.header();
            if file.is_full() || is_closing {
                self.durable_timestamp.fetch_max(header.end_timestamp.max(0) as u64, Ordering::AcqRel);
            }
        }
        if self.is_directory_dirty.swap(false, Ordering::AcqRel) {
            let synced = self.disk.sync_dir(&self.directory).and_then(|()| match self.directory.parent() {
                Some(root) => self.disk.sync_dir(root),
                None => Ok(()),
            });
            if let Err(source) = synced {
                self.is_directory_dirty.store(true, Ordering::Release);
                return Err(StoreError::io("flush", &self.directory, source));
            }
        }
        Ok(self.durable_timestamp.load(Ordering::Acquire) as i64)
    }
}

/// The number in a file name.
fn name_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}

/// Java's name for a file created at this time, `yyyyMMddHHmmssSSS` in UTC, as a number.
fn file_name(now_ms: i64) -> u64 {
    let time = Timestamp::from_millisecond(now_ms.max(0)).unwrap_or(Timestamp::MAX);
    let time = TimeZone::UTC.to_datetime(time);
    let parts = [time.month(), time.day(), time.hour(), time.minute(), time.second()];
    let seconds = parts.iter().fold(time.year() as u64, |name, part| name * 100 + *part as u64);
    seconds * 1000 + time.millisecond() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_calendar_times() {
        assert_eq!(file_name(0), 19_700_101_000_000_000);
        assert_eq!(file_name(951_782_399_999), 20_000_228_235_959_999);
        assert_eq!(file_name(951_782_400_000), 20_000_229_000_000_000);
        assert_eq!(file_name(1_793_232_000_123), 20_261_029_000_000_123);
    }
}
