//! Which files of a store are open: a budget of descriptors and mapped bytes that all its rows of files share.
//!
//! A file that nobody holds and nobody has looked for lately is closed; whoever holds one keeps its bytes. How a
//! file is opened, and which there are, is `mapped_file_queue`'s business.

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

/// The place of one file in a row, open or not.
pub(crate) struct FileSlot<R: Region> {
    /// Offset of the first byte.
    pub(crate) base: u64,
    /// Size of the file.
    pub(crate) len: u64,
    /// Which of the row's directories holds it.
    pub(crate) directory: usize,
    pub(crate) file: Option<Arc<MappedFile<R>>>,
    /// The open file may be written.
    pub(crate) is_writable: bool,
    /// Looked for since the budget was last short.
    is_used: AtomicBool,
    /// It had to stay open, but takes no memory until it is looked for again.
    is_released: bool,
}

impl<R: Region> FileSlot<R> {
    /// A file that is not open.
    pub(crate) fn closed(base: u64, len: u64, directory: usize) -> Self {
        let is_used = AtomicBool::new(false);
        Self { base, len, directory, file: None, is_writable: false, is_used, is_released: false }
    }

    /// Offset after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.len
    }

    pub(crate) fn set_open(&mut self, file: Arc<MappedFile<R>>, is_writable: bool) {
        self.file = Some(file);
        self.is_writable = is_writable;
        self.is_released = false;
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// The file where it is open as wanted and counted.
    pub(crate) fn open(&self, is_writable: bool) -> Option<&Arc<MappedFile<R>>> {
        let file = self.file.as_ref().filter(|_| !self.is_released && (self.is_writable || !is_writable))?;
        // Looked at first: storing each time would take the line from the other readers.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        Some(file)
    }
}

/// The files of a row in order, as the budget sees them.
pub(crate) struct Row<R: Region> {
    pub(crate) slots: RwLock<Vec<FileSlot<R>>>,
    /// Files that end after it are never closed.
    kept_from: AtomicU64,
    kind: RowKind,
}

/// What a row's files are to the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowKind {
    /// Large files, whose bytes count; the two newest are never closed and do not count.
    Log,
    /// Many small ones, of which little is ever touched: only their number counts.
    Derived,
    /// The timer log: as those.
    Timer,
}

/// The file that is appended to, and the one prepared to follow it.
const NEWEST_KEPT: usize = 2;

impl<R: Region> Row<R> {
    pub(crate) fn new(kind: RowKind) -> Arc<Self> {
        Arc::new(Self { slots: RwLock::new(Vec::new()), kept_from: AtomicU64::new(u64::MAX), kind })
    }

    /// Files that end after `offset` stay open: what they hold is not flushed yet, and a failure of the disk is told
    /// only to those who had the file open.
    pub(crate) fn keep_open_from(&self, offset: u64) {
        self.kept_from.store(offset, Ordering::Release);
    }

    /// The file that holds the byte at `offset`, `Some(None)` where none does; `None` where it is not open as wanted.
    #[inline]
    pub(crate) fn find_open(&self, offset: u64, is_writable: bool) -> Option<Option<Arc<MappedFile<R>>>> {
        let slots = self.slots.read();
        // Most of what is read is new.
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

    /// The file as [`Self::find_open`], also where it has no memory: it counts again then, and is to be admitted again.
    pub(crate) fn reuse(&self, offset: u64, is_writable: bool) -> Option<Arc<MappedFile<R>>> {
        let mut slots = self.slots.write();
        let number = slot_at(&slots, offset)?;
        let slot = slots.get_mut(number)?;
        slot.is_released = false;
        slot.open(is_writable).map(Arc::clone)
    }

    fn is_newest(&self, slots: &[FileSlot<R>], number: usize) -> bool {
        self.kind == RowKind::Log && number + NEWEST_KEPT >= slots.len()
    }
}

/// Which slot holds the byte at `offset`.
pub(crate) fn slot_at<R: Region>(slots: &[FileSlot<R>], offset: u64) -> Option<usize> {
    let number = slots.partition_point(|slot| slot.base <= offset).checked_sub(1)?;
    (offset < slots.get(number)?.end()).then_some(number)
}

/// How much may be open at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Files, each with a descriptor and a map.
    pub(crate) files: usize,
    /// Bytes of log files beside the newest.
    pub(crate) log_bytes: u64,
}

impl Budget {
    pub(crate) fn of(config: &StoreConfig) -> Self {
        Self { files: config.open_files, log_bytes: config.mapped_bytes }
    }
}

/// The open files of a store.
pub(crate) struct OpenFiles<R: Region> {
    budget: Budget,
    open: Mutex<Open<R>>,
}

/// In the order of a clock: what is looked at next is in front.
struct Open<R: Region> {
    logs: VecDeque<OpenEntry<R>>,
    derived: VecDeque<OpenEntry<R>>,
}

struct OpenEntry<R: Region> {
    row: Weak<Row<R>>,
    base: u64,
}

enum Looked<R: Region> {
    /// Closed now.
    Closed(Arc<MappedFile<R>>),
    /// Still open, but its memory is to be released.
    Released(Arc<MappedFile<R>>),
    /// It was closed or removed before.
    Gone,
    Kept,
}

/// What there is too much of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Descriptor,
    Memory,
}

/// What is to be done with files without a lock held, because unmapping takes its time.
struct Rest<R: Region> {
    closed: Vec<Arc<MappedFile<R>>>,
    released: Vec<Arc<MappedFile<R>>>,
}

impl<R: Region> OpenEntry<R> {
    /// Closes the file unless it was used since it was last looked at. One that is not flushed, or that somebody
    /// holds, can only do without its memory.
    fn try_close(&self, wanted: Wanted) -> Looked<R> {
        let Some(row) = self.row.upgrade() else { return Looked::Gone };
        let mut slots = row.slots.write();
        let Some(number) = slot_at(&slots, self.base) else { return Looked::Gone };
        let is_newest = row.is_newest(&slots, number);
        let Some(slot) = slots.get_mut(number).filter(|slot| slot.base == self.base) else {
            return Looked::Gone;
        };
        let Some(file) = slot.file.take() else { return Looked::Gone };
        let is_unflushed = slot.end() > row.kept_from.load(Ordering::Acquire);
        let looked = if is_newest || std::mem::take(slot.is_used.get_mut()) {
            Looked::Kept
        } else if !is_unflushed && Arc::strong_count(&file) == 1 {
            // Under the lock nobody can begin to hold it.
            return Looked::Closed(file);
        } else if wanted == Wanted::Descriptor || std::mem::replace(&mut slot.is_released, true) {
            Looked::Kept
        } else {
            Looked::Released(Arc::clone(&file))
        };
        slot.file = Some(file);
        looked
    }

    /// Bytes that count.
    fn counted_bytes(&self) -> u64 {
        let Some(row) = self.row.upgrade() else { return 0 };
        let slots = row.slots.read();
        let number = slot_at(&slots, self.base).filter(|number| !row.is_newest(&slots, *number));
        let slot = number.and_then(|number| slots.get(number));
        slot.filter(|slot| !slot.is_released).map_or(0, |slot| slot.len)
    }
}

/// Closes a file, or releases the memory of one. `None` where each one is needed as it is: then the budget is
/// exceeded by what is held.
fn close_one<R: Region>(
    entries: &mut VecDeque<OpenEntry<R>>,
    wanted: Wanted,
    rest: &mut Rest<R>,
) -> Option<()> {
    // In the first turn those used lately are let off.
    for _ in 0..2 * entries.len() {
        let entry = entries.pop_front()?;
        match entry.try_close(wanted) {
            Looked::Closed(file) => {
                rest.closed.push(file);
                return Some(());
            }
            Looked::Released(file) => {
                rest.released.push(file);
                entries.push_back(entry);
                return Some(());
            }
            Looked::Gone => return Some(()),
            Looked::Kept => entries.push_back(entry),
        }
    }
    None
}

impl<R: Region> OpenFiles<R> {
    pub(crate) fn new(budget: Budget) -> Arc<Self> {
        Arc::new(Self { budget, open: Mutex::new(Open { logs: VecDeque::new(), derived: VecDeque::new() }) })
    }

    /// Takes note of a file just opened, and closes others where too much is open now.
    pub(crate) fn admit(&self, row: &Arc<Row<R>>, base: u64) {
        let mut open = self.open.lock();
        let entry = OpenEntry { row: Arc::downgrade(row), base };
        match row.kind {
            RowKind::Log => open.logs.push_back(entry),
            RowKind::Derived | RowKind::Timer => open.derived.push_back(entry),
        }
        self.shrink(open, row.kind);
    }

    /// Takes note of a file that was open without memory and is used again.
    pub(crate) fn readmit(&self, row: &Arc<Row<R>>) {
        self.shrink(self.open.lock(), row.kind);
    }

    fn shrink(&self, mut open: MutexGuard<'_, Open<R>>, grown: RowKind) {
        let mut rest = Rest { closed: Vec::new(), released: Vec::new() };
        let Open { logs, derived } = &mut *open;
        if grown == RowKind::Log {
            // At most once for each, however busy readers are meanwhile.
            for _ in 0..logs.len() {
                let counted: u64 = logs.iter().map(OpenEntry::counted_bytes).sum();
                if counted <= self.budget.log_bytes || close_one(logs, Wanted::Memory, &mut rest).is_none() {
                    break;
                }
            }
        }
        while logs.len() + derived.len() > self.budget.files
            && close_one(derived, Wanted::Descriptor, &mut rest)
                .or_else(|| close_one(logs, Wanted::Descriptor, &mut rest))
                .is_some()
        {}
        drop(open);
        rest.released.iter().for_each(|file| file.release());
        drop(rest);
    }

    /// Forgets files of a row that are no longer there.
    pub(crate) fn forget(&self, row: &Arc<Row<R>>, is_gone: impl Fn(u64) -> bool) {
        let mut open = self.open.lock();
        let Open { logs, derived } = &mut *open;
        let entries = if row.kind == RowKind::Log { logs } else { derived };
        entries.retain(|entry| !(std::ptr::eq(entry.row.as_ptr(), Arc::as_ptr(row)) && is_gone(entry.base)));
    }
}
