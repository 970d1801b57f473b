//! Free space: what is left, when sends are refused, and when cleaning is called before that.
//!
//! It has a thread of its own, which also looks whether dispatch moves (`dispatch_stall`): a look at the disk waits for no flush, no file being removed and no archive hook.

use std::time::Duration;

use crate::{
    files::{disk::Disk, space::Space},
    store::message_store::Inner,
};

/// How often the disk is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// Cleaning begins when less than so many new files would fit.
const FILES_AHEAD: u64 = 2;

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
