//! Limits the descriptors and mapped bytes of a store's open files.
//!
//! Files that no reader holds and that were not used lately are closed. `mapped_file_queue` finds and opens them.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::{
    config::StoreConfig,
    files::{disk::Region, mapped_file::MappedFile},
};

/// A file of a queue, open or not.
pub(crate) struct FileSlot<R: Region> {
    pub(crate) base: u64,
    /// Size in bytes.
    pub(crate) len: u64,
    /// Number of the directory that holds the file.
    pub(crate) directory: usize,
    pub(crate) file: Option<Arc<MappedFile<R>>>,
    /// The open file is writable.
    pub(crate) is_writable: bool,
    /// Used since the limit was last exceeded.
    is_used: AtomicBool,
    /// The file stays open, but its memory is released until the next use.
    is_released: bool,
}

impl<R: Region> FileSlot<R> {
    /// A file that is not open.
    pub(crate) fn closed(base: u64, len: u64, directory: usize) -> Self {
        let is_used = AtomicBool::new(false);
        Self { base, len, directory, file: None, is_writable: false, is_used, is_released: false }
    }

    pub(crate) fn end(&self) -> u64 {
        self.base + self.len
    }

    pub(crate) fn set_open(&mut self, file: Arc<MappedFile<R>>, is_writable: bool) {
        self.file = Some(file);
        self.is_writable = is_writable;
        self.is_released = false;
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// The file, if it is open with the requested access and counted.
    pub(crate) fn open(&self, is_writable: bool) -> Option<&Arc<MappedFile<R>>> {
        let file = self.file.as_ref().filter(|_| !self.is_released && (self.is_writable || !is_writable))?;
        // Read first: an unconditional store would take the cache line from other readers.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        Some(file)
    }
}

/// The files of one queue, in order.
pub(crate) struct FileRow<R: Region> {
    pub(crate) slots: RwLock<Vec<FileSlot<R>>>,
    /// Files that end after this offset are never closed.
    kept_from: AtomicU64,
    kind: FileKind,
}

/// How the limit treats the files of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// Large files whose bytes count. The two newest stay open and do not count.
    Log,
    /// Many small files; only their number counts.
    Derived,
    /// The timer log's files; only their number counts.
    Timer,
}

/// The active file and the prepared next one.
const NEWEST_KEPT: usize = 2;

impl<R: Region> FileRow<R> {
    pub(crate) fn new(kind: FileKind) -> Arc<Self> {
        Arc::new(Self { slots: RwLock::new(Vec::new()), kept_from: AtomicU64::new(u64::MAX), kind })
    }

    /// Keeps files open that end after `offset`: their bytes are not flushed, and the system reports a write error only
    /// to an open descriptor.
    pub(crate) fn keep_open_from(&self, offset: u64) {
        self.kept_from.store(offset, Ordering::Release);
    }

    /// The file that holds the byte at `offset`, or `Some(None)` if no file does. `None` if it is not open with the
    /// requested access.
    #[inline]
    pub(crate) fn find_open(&self, offset: u64, is_writable: bool) -> Option<Option<Arc<MappedFile<R>>>> {
        let slots = self.slots.read();
        // Most reads are near the end.
        let slot = match slots.last() {
            Some(last) if last.base <= offset => last,
            _ => match slots.partition_point(|slot| slot.base <= offset).checked_sub(1) {
                Some(number) => slots.get(number)?,
                None => return Some(None),
            },
        };
        if offset >= slot.end() {
            return Some(None);
        }
        slot.open(is_writable).map(|file| Some(Arc::clone(file)))
    }

    /// As [`Self::find_open`], but also finds a file whose memory was released. It counts again and must be admitted
    /// again.
    pub(crate) fn reuse(&self, offset: u64, is_writable: bool) -> Option<Arc<MappedFile<R>>> {
        let mut slots = self.slots.write();
        let number = slot_at(&slots, offset)?;
        let slot = slots.get_mut(number)?;
        slot.is_released = false;
        slot.open(is_writable).map(Arc::clone)
    }

    fn is_newest(&self, slots: &[FileSlot<R>], number: usize) -> bool {
        self.kind == FileKind::Log && number + NEWEST_KEPT >= slots.len()
    }
}

/// Index of the slot that holds the byte at `offset`.
pub(crate) fn slot_at<R: Region>(slots: &[FileSlot<R>], offset: u64) -> Option<usize> {
    let number = slots.partition_point(|slot| slot.base <= offset).checked_sub(1)?;
    (offset < slots.get(number)?.end()).then_some(number)
}

/// Limits on open files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenFileLimits {
    /// Number of files, each with a descriptor and a map.
    pub(crate) files: usize,
    /// Bytes of log files, without the newest ones.
    pub(crate) log_bytes: u64,
}

impl OpenFileLimits {
    pub(crate) fn of(config: &StoreConfig) -> Self {
        Self { files: config.open_files, log_bytes: config.mapped_bytes }
    }
}

/// The open files of a store.
pub(crate) struct OpenFiles<R: Region> {
    budget: OpenFileLimits,
    open: Mutex<OpenFileClock<R>>,
}

/// In clock order: the front is examined next.
struct OpenFileClock<R: Region> {
    logs: VecDeque<OpenEntry<R>>,
    derived: VecDeque<OpenEntry<R>>,
}

struct OpenEntry<R: Region> {
    row: Weak<FileRow<R>>,
    base: u64,
}

enum CloseOutcome<R: Region> {
    /// The file was closed.
    Closed(Arc<MappedFile<R>>),
    /// The file stays open, but its memory must be released.
    Released(Arc<MappedFile<R>>),
    /// The file was closed or removed before.
    Gone,
    Kept,
}

/// The exceeded limit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExceededLimit {
    Descriptor,
    Memory,
}

/// Files to unmap or release after the lock is dropped, because that takes time.
struct DeferredRelease<R: Region> {
    closed: Vec<Arc<MappedFile<R>>>,
    released: Vec<Arc<MappedFile<R>>>,
}

impl<R: Region> OpenEntry<R> {
    /// Closes the file unless it was used recently. If it is unflushed or held, only its memory is released.
    fn try_close(&self, wanted: ExceededLimit) -> CloseOutcome<R> {
        let Some(row) = self.row.upgrade() else { return CloseOutcome::Gone };
        let mut slots = row.slots.write();
        let Some(number) = slot_at(&slots, self.base) else { return CloseOutcome::Gone };
        let is_newest = row.is_newest(&slots, number);
        let Some(slot) = slots.get_mut(number).filter(|slot| slot.base == self.base) else {
            return CloseOutcome::Gone;
        };
        let Some(file) = slot.file.take() else { return CloseOutcome::Gone };
        let is_unflushed = slot.end() > row.kept_from.load(Ordering::Acquire);
        let looked = if is_newest || std::mem::take(slot.is_used.get_mut()) {
            CloseOutcome::Kept
        } else if !is_unflushed && Arc::strong_count(&file) == 1 {
            // New holders need the lock, so there are none.
            return CloseOutcome::Closed(file);
        } else if wanted == ExceededLimit::Descriptor || std::mem::replace(&mut slot.is_released, true) {
            CloseOutcome::Kept
        } else {
            CloseOutcome::Released(Arc::clone(&file))
        };
        slot.file = Some(file);
        looked
    }

    /// Bytes that count toward the limit.
    fn counted_bytes(&self) -> u64 {
        let Some(row) = self.row.upgrade() else { return 0 };
        let slots = row.slots.read();
        let number = slot_at(&slots, self.base).filter(|number| !row.is_newest(&slots, *number));
        let slot = number.and_then(|number| slots.get(number));
        slot.filter(|slot| !slot.is_released).map_or(0, |slot| slot.len)
    }
}

/// Closes one file or releases its memory. `None` if every file is in use; the limit is then exceeded.
fn close_one<R: Region>(
    entries: &mut VecDeque<OpenEntry<R>>,
    wanted: ExceededLimit,
    rest: &mut DeferredRelease<R>,
) -> Option<()> {
    // The first round spares files used recently.
    for _ in 0..2 * entries.len() {
        let entry = entries.pop_front()?;
        match entry.try_close(wanted) {
            CloseOutcome::Closed(file) => {
                rest.closed.push(file);
                return Some(());
            }
            CloseOutcome::Released(file) => {
                rest.released.push(file);
                entries.push_back(entry);
                return Some(());
            }
            CloseOutcome::Gone => return Some(()),
            CloseOutcome::Kept => entries.push_back(entry),
        }
    }
    None
}

impl<R: Region> OpenFiles<R> {
    pub(crate) fn new(budget: OpenFileLimits) -> Arc<Self> {
        Arc::new(Self {
            budget,
            open: Mutex::new(OpenFileClock { logs: VecDeque::new(), derived: VecDeque::new() }),
        })
    }

    /// Counts a file just opened, and closes others over the limit.
    pub(crate) fn admit(&self, row: &Arc<FileRow<R>>, base: u64) {
        let mut open = self.open.lock();
        let entry = OpenEntry { row: Arc::downgrade(row), base };
        match row.kind {
            FileKind::Log => open.logs.push_back(entry),
            FileKind::Derived | FileKind::Timer => open.derived.push_back(entry),
        }
        self.shrink(open, row.kind);
    }

    /// Counts a file again whose memory was released.
    pub(crate) fn readmit(&self, row: &Arc<FileRow<R>>) {
        self.shrink(self.open.lock(), row.kind);
    }

    fn shrink(&self, mut open: MutexGuard<'_, OpenFileClock<R>>, grown: FileKind) {
        let mut rest = DeferredRelease { closed: Vec::new(), released: Vec::new() };
        let OpenFileClock { logs, derived } = &mut *open;
        if grown == FileKind::Log {
            // Once for each file, however busy the readers.
            for _ in 0..logs.len() {
                let counted: u64 = logs.iter().map(OpenEntry::counted_bytes).sum();
                if counted <= self.budget.log_bytes
                    || close_one(logs, ExceededLimit::Memory, &mut rest).is_none()
                {
                    break;
                }
            }
        }
        while logs.len() + derived.len() > self.budget.files
            && close_one(derived, ExceededLimit::Descriptor, &mut rest)
                .or_else(|| close_one(logs, ExceededLimit::Descriptor, &mut rest))
                .is_some()
        {}
        drop(open);
        rest.released.iter().for_each(|file| file.release());
        drop(rest);
    }

    /// Forgets removed files of a queue.
    pub(crate) fn forget(&self, row: &Arc<FileRow<R>>, is_gone: impl Fn(u64) -> bool) {
        let mut open = self.open.lock();
        let OpenFileClock { logs, derived } = &mut *open;
        let entries = if row.kind == FileKind::Log { logs } else { derived };
        entries.retain(|entry| !(std::ptr::eq(entry.row.as_ptr(), Arc::as_ptr(row)) && is_gone(entry.base)));
    }
}
