//! The directory of an open store: its lock, and whether the store still may write.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::{
    error::{Result, StoreError},
    files::disk::Disk,
};

/// The directory of an open store.
pub(crate) struct StoreDirectory<D: Disk> {
    pub(crate) disk: D,
    pub(crate) root: PathBuf,
    is_closed: AtomicBool,
    lock: Mutex<Option<D::Lock>>,
    /// Set before the lock is released, after all holders have written.
    is_released: RwLock<bool>,
}

impl<D: Disk> StoreDirectory<D> {
    pub(crate) fn new(disk: D, root: &Path, lock: D::Lock) -> Self {
        Self {
            disk,
            root: root.to_path_buf(),
            is_closed: AtomicBool::new(false),
            lock: Mutex::new(Some(lock)),
            is_released: RwLock::new(false),
        }
    }

    /// Marks the store as closed; `false` if it was closed before.
    pub(crate) fn close(&self) -> bool {
        !self.is_closed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Fails with `Closed` after the store was closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Whether the directory's lock is released, so that nothing may be written.
    pub(crate) fn is_released(&self) -> bool {
        *self.is_released.read()
    }

    /// Keeps the directory's lock until the guard is dropped; not reentrant. Errors: `Closed` if the lock is released.
    pub(crate) fn hold(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let is_released = self.is_released.read();
        if *is_released { Err(StoreError::Closed) } else { Ok(is_released) }
    }

    /// Releases the directory's lock after all holders have written.
    pub(crate) fn release(&self) {
        *self.is_released.write() = true;
        *self.lock.lock() = None;
    }
}
