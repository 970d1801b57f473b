//! Refuses appends while the disk has too little free space.

use std::sync::atomic::Ordering;

use crate::{
    error::{Result, StoreError},
    files::disk::Disk,
    log::commit_log::CommitLog,
};

impl<D: Disk> CommitLog<D> {
    /// Refuses appends until there is space: another write met a full disk.
    pub(crate) fn set_full(&self) {
        self.is_full.store(true, Ordering::Release);
    }

    /// Turns an I/O error of a full disk into `Full`: the file's blocks were not reserved.
    pub(crate) fn full_or(&self, error: StoreError, needed: u64) -> StoreError {
        match error {
            StoreError::Io { source, .. } if StoreError::is_full(&source) => {
                let path = self.files.directory().to_path_buf();
                let free = self.disk.free_space(&path).unwrap_or(0);
                StoreError::Full { path, free, needed, reserve: self.reserve() }
            }
            other => other,
        }
    }

    /// Returns `Full` if writing `needed` bytes would leave less than the reserve free on the directory with the most
    /// room. Directories whose system cannot report free space do not count; without others there is no reserve.
    pub(super) fn check_space(&self, needed: u64) -> Result<()> {
        let (mut roomiest, mut known, mut unknown) = ((0, self.files.directory()), 0, 0);
        for path in self.files.writable_directories() {
            match self.disk.free_space(path) {
                Err(error) if error.kind() == std::io::ErrorKind::Unsupported => unknown += 1,
                Err(source) => return Err(StoreError::io("look at", path, source)),
                Ok(free) => (roomiest, known) = (roomiest.max((free, path)), known + 1),
            }
        }
        let (free, path) = roomiest;
        let reserve = self.reserve();
        let is_unknown = known == 0 && unknown > 0;
        if !is_unknown && free < reserve.saturating_add(needed) {
            return Err(StoreError::Full { path: path.to_path_buf(), free, needed, reserve });
        }
        Ok(())
    }

    /// Refuses appends while less than the reserve is free. Called periodically.
    pub(crate) fn watch_space(&self) {
        match self.check_space(0) {
            Ok(()) => self.is_full.store(false, Ordering::Release),
            Err(StoreError::Full { .. }) => self.set_full(),
            // The next new file checks again.
            Err(error) => tracing::debug!(%error, "free space unknown"),
        }
    }

    /// Bytes that must stay free.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve.load(Ordering::Acquire)
    }

    pub(crate) fn set_reserve(&self, bytes: u64) {
        self.reserve.store(bytes, Ordering::Release);
    }

    /// Whether appends are refused for lack of space.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }
}
