//! Free disk space: refuses sends when too little is left, and starts cleaning before that.
//!
//! It has its own thread, so that checking the disk waits for no flush, file removal or archive hook. The thread also
//! checks whether dispatch moves (`dispatch_stall`).

use std::{sync::Arc, time::Duration};

use crate::{
    config::StoreConfig,
    files::{disk::Disk, space::Space, store_directory::StoreDirectory},
    log::commit_log::CommitLog,
    retention::{policy::DiskUsage, rules::CurrentRules},
    sync::{signal::Signal, wake::Wake},
};

/// How often the disk is checked.
const INTERVAL: Duration = Duration::from_secs(1);
/// Cleaning begins when fewer new files than this would fit.
const FILES_AHEAD: u64 = 2;

pub(crate) struct DiskSpace<D: Disk> {
    home: Arc<StoreDirectory<D>>,
    log: Arc<CommitLog<D>>,
    /// Bytes that always stay free.
    reserve: u64,
    pub(crate) rules: CurrentRules,
    /// Requests a cleaning.
    cleaning: Arc<Wake>,
    pub(crate) due: Arc<Signal>,
}

impl<D: Disk> DiskSpace<D> {
    pub(crate) fn new(
        home: Arc<StoreDirectory<D>>,
        log: Arc<CommitLog<D>>,
        config: &StoreConfig,
        cleaning: Arc<Wake>,
    ) -> Self {
        let (reserve, rules) = (config.disk_reserve, CurrentRules::new(&config.retention));
        Self { home, log, reserve, rules, cleaning, due: Arc::default() }
    }

    /// Checks the disk until stopped, and calls `also` each time.
    pub(crate) fn run(&self, also: impl Fn()) {
        while !self.due.is_stopped() {
            self.watch();
            also();
            self.due.wait(|| false, Some(INTERVAL));
        }
    }

    fn usage(&self) -> Option<DiskUsage> {
        self.rules.get().usage
    }

    /// Refuses sends when too little space is free, allows them when enough is, and requests a cleaning before that.
    pub(crate) fn watch(&self) {
        let Some(space) = self.space() else { return };
        let refused = self.usage().map_or(0, |usage| space.free_at(usage.refuse));
        self.log.set_reserve(self.reserve.max(refused));
        self.log.watch_space();
        if self.is_short(&space) {
            self.cleaning.ask();
        }
    }

    pub(crate) fn space(&self) -> Option<Space> {
        let spaces = self.log.files().writable_directories().filter_map(|path| {
            self.home
                .disk
                .space(path)
                .inspect_err(|error| tracing::debug!(%error, file = %path.display(), "free space unknown"))
                .ok()
        });
        // A log on several disks takes sends while one disk has space.
        spaces.max_by_key(|space| space.free)
    }

    /// Whether sends are refused, or will be after a few more files.
    pub(crate) fn is_short(&self, space: &Space) -> bool {
        let ahead = self.log.files().file_size().saturating_mul(FILES_AHEAD);
        let is_over = self.usage().is_some_and(|usage| space.used_percent() > usage.expired);
        is_over || space.free < self.log.reserve().saturating_add(ahead)
    }
}
