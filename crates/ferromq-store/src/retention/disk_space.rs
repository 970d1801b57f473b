//! Free space: what is left, when sends are refused, and when cleaning is called before that.
//!
//! It has a thread of its own, which also looks whether dispatch moves (`dispatch_stall`): a look at the disk waits for no flush, no file being removed and no archive hook.

use std::time::Duration;

use crate::{files::disk::Disk, store::message_store::Inner};

/// How often the disk is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// Cleaning begins when less than so many new files would fit.
const FILES_AHEAD: u64 = 2;

/// The space of a file system at one moment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What a writer may still use.
    pub free: u64,
    /// What is in use, by anybody.
    pub used: u64,
}

impl Space {
    /// As RocketMQ counts it: of what is used and what may still be.
    pub(crate) fn used_percent(&self) -> f64 {
        self.used as f64 * 100.0 / (self.used as f64 + self.free as f64).max(1.0)
    }

    /// What it will be once the file system has given back `bytes` that were removed.
    pub(crate) fn after_removal(&self, bytes: u64) -> Self {
        Self { free: self.free.saturating_add(bytes), used: self.used.saturating_sub(bytes) }
    }

    /// The bytes that are free when `percent` of the space is used.
    fn free_at(&self, percent: f64) -> u64 {
        ((self.used as f64 + self.free as f64) * (100.0 - percent) / 100.0) as u64
    }
}

impl<D: Disk> Inner<D> {
    /// Looks at the disk until stopped.
    pub(crate) fn run_space_watch(&self) {
        while !self.space_due.is_stopped() {
            self.watch_space();
            self.watch_dispatch();
            self.clock.look();
            self.space_due.wait(|| false, Some(INTERVAL));
        }
    }

    /// Closes the gate where too little is free, opens it where enough is, and calls the cleaning before.
    pub(crate) fn watch_space(&self) {
        let Some(space) = self.space() else { return };
        let refused = self.cleaner.disk_usage().map_or(0, |usage| space.free_at(usage.refuse));
        self.log.set_reserve(self.config.disk_reserve.max(refused));
        self.log.watch_space();
        if self.is_short(&space) {
            self.cleaner.ask();
        }
    }

    pub(crate) fn space(&self) -> Option<Space> {
        let spaces = self.log.files().writable_directories().filter_map(|path| {
            self.disk
                .space(path)
                .inspect_err(|error| tracing::debug!(%error, file = %path.display(), "free space unknown"))
                .ok()
        });
        // Where the log lies on several disks, sends go on while one has space.
        spaces.max_by_key(|space| space.free)
    }

    /// Says whether sends are refused, or will be after a few more files.
    pub(crate) fn is_short(&self, space: &Space) -> bool {
        let ahead = self.log.files().file_size().saturating_mul(FILES_AHEAD);
        let is_over = self.cleaner.disk_usage().is_some_and(|usage| space.used_percent() > usage.expired);
        is_over || space.free < self.log.reserve().saturating_add(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_counted_of_what_may_be_used_at_all() {
        let space = Space { free: 15, used: 85 };
        assert_eq!((space.used_percent(), space.free_at(90.0), space.free_at(85.0)), (85.0, 10, 15));
        assert_eq!(Space { free: 0, used: 0 }.used_percent(), 0.0);
    }
}
