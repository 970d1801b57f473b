//! The handle for administration: statistics, damages, flush and retention policies, deletion and access of queues.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    config::StoreConfig,
    dedup::sequences_file::SequencesFile,
    delayed::delivery::DelayedDelivery,
    derive::{derived_files::DerivedFiles, dispatch_stall::DispatchStall, dispatched::Dispatched},
    error::Result,
    files::{disk::Disk, store_directory::StoreDirectory},
    log::{damage::Damage, flush_policy::FlushPolicy},
    queues::queue_marks::QueueAccess,
    read::{counters::Counters, unreadable_files::Unreadable},
    recovery::recovery_report::RecoveryReport,
    retention::{
        archive::ExpiredFile,
        cleaner::{CleanReport, Cleaner},
        disk_space::DiskSpace,
        policy::Retention,
    },
    store::{queue_admin::QueueAdmin, stats::StoreStats, storage::all_damages},
    sync::wake::Wake,
};

/// Administers a store: the handle [`MessageStore::admin`](crate::MessageStore::admin).
pub struct Admin<D: Disk> {
    pub(super) home: Arc<StoreDirectory<D>>,
    pub(super) config: Arc<StoreConfig>,
    pub(super) files: Arc<DerivedFiles<D>>,
    pub(super) dispatched: Arc<Dispatched>,
    pub(super) stall: Arc<DispatchStall<D>>,
    pub(super) sequences: Arc<SequencesFile<D>>,
    pub(super) unreadable: Arc<Unreadable<D>>,
    pub(super) counters: Arc<Counters>,
    pub(super) delayed: Arc<DelayedDelivery<D>>,
    pub(super) cleaner: Arc<Cleaner<D>>,
    pub(super) cleaning: Arc<Wake>,
    pub(super) space: Arc<DiskSpace<D>>,
    pub(super) queues: QueueAdmin<D>,
    pub(super) recovered: RecoveryReport,
}

impl<D: Disk> Admin<D> {
    /// Returns why the store would refuse any message now.
    ///
    /// # Errors
    /// `Full`, `Poisoned`, `Closed`, and `Io` if the free space cannot be read.
    pub fn check_writes(&self) -> Result<()> {
        self.files.log.check_writes()
    }

    /// Counters and positions.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let (log, counters) = (&self.files.log, &self.counters);
        let (indexed_offset, indexed_timestamp) = self.files.index.end();
        StoreStats {
            min_physical_offset: log.start(),
            max_physical_offset: log.written(),
            flushed_offset: log.flushed(),
            dispatched_offset: self.dispatched.end(),
            indexed_offset,
            indexed_timestamp,
            appended: counters.appended.load(Ordering::Relaxed),
            flushes: log.flushes(),
            recovered_cut_bytes: self.recovered.cut_bytes,
            recovered_messages: self.recovered.messages,
            longest_put_ms: log.put_times().longest_ms(),
            append_lock_ms: log.locked_ms(&self.files.clock),
            found_gets: counters.found_gets.load(Ordering::Relaxed),
            fruitless_gets: counters.fruitless_gets.load(Ordering::Relaxed),
            longest_get_ms: counters.longest_get_ms(),
            failed_puts: counters.failed_puts(),
            missed_gets: counters.missed_gets(),
            mismatches: counters.mismatches.load(Ordering::Relaxed),
            gone_leases: counters.gone_leases.load(Ordering::Relaxed),
            is_full: log.is_full(),
            set_aside_queues: self.files.aside.queues(),
            dispatch_stalled_ms: self.stall.stalled_ms(),
            duplicates: self.sequences.dedup.duplicates(),
            remembered_sequences: self.sequences.dedup.entries(),
            schedule: self.delayed.schedule.stats(),
            timer: self.delayed.timer.stats(),
            cleaning: self.cleaner.stats(),
        }
    }

    /// A histogram of put times since open: the last millisecond and the count of each bucket. Under a synchronous
    /// flush policy a put ends with its flush; failed flushes are not counted.
    #[must_use]
    pub fn put_times(&self) -> Vec<(u64, u64)> {
        self.files.log.put_times().snapshot()
    }

    /// A histogram of how long flushes of the log took since open: the count of each bucket of
    /// [`FLUSH_BOUNDS_MS`](crate::log::FLUSH_BOUNDS_MS), that of longer ones, and the sum.
    #[must_use]
    pub fn flush_times(&self) -> (Vec<u64>, Duration) {
        let (counts, sum) = self.files.log.flush_times().snapshot();
        (counts.to_vec(), sum)
    }

    /// Damaged or missing ranges of the commit log, whose messages are never served; files that cannot be written or
    /// read now; and consume queues that lost messages to retention meanwhile.
    ///
    /// Retries failed reads, and waits for the disk.
    #[must_use]
    pub fn damages(&self) -> Vec<Damage> {
        let log = &self.files.log;
        let timer = self.delayed.timer.damage(log.start()..log.written());
        all_damages(&self.files, &self.unreadable, &self.sequences, timer)
    }

    /// The report of the recovery at open.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.recovered.clone()
    }

    /// The broker's own address, as stored in every record.
    #[must_use]
    pub fn store_host(&self) -> std::net::SocketAddr {
        self.config.store_host
    }

    /// Most files it keeps open, besides the newest of the log.
    #[must_use]
    pub fn open_files(&self) -> usize {
        self.config.open_files
    }

    /// Changes the flush policy. Everything appended before is durable when this returns, and readers keep seeing what
    /// they saw.
    ///
    /// Errors: `Invalid`, which keeps the old policy; those of a flush, after the change.
    pub fn set_flush(&self, policy: FlushPolicy) -> Result<()> {
        self.home.check_open()?;
        self.files.log.change_flush(Some(policy), None)
    }

    /// Limits the unflushed acknowledged messages of a topic to `count`, whatever the policy; `None` removes the limit.
    ///
    /// Everything appended before is durable when this returns. Errors: `Invalid` for 0, those of a flush.
    pub fn set_flush_every(&self, topic: &str, count: Option<u32>) -> Result<()> {
        self.home.check_open()?;
        self.files.log.change_flush(None, Some((topic, count)))
    }

    /// Lets the next flush of the log fail, for tests of what comes after it: writing stops until the store is opened
    /// again.
    pub fn fail_next_flush(&self) {
        self.files.log.fail_next_flush();
    }

    /// Removes expired and excess files on the calling thread. `now` removes expired files at any hour of the day, and
    /// retries a failed archive hook at once.
    ///
    /// Waits for a cleaning under way. A call from an archive hook or a policy does nothing and reports a failure.
    /// After a close nothing is done.
    pub fn clean(&self, now: bool) -> CleanReport {
        if self.home.is_closed() { CleanReport::default() } else { self.cleaner.clean(now) }
    }

    /// Changes retention. A file that is being archived or removed is still removed.
    ///
    /// Errors: `Invalid`, which names the option and its limits; `Closed`.
    pub fn set_retention(&self, retention: &Retention) -> Result<()> {
        self.home.check_open()?;
        retention.check()?;
        self.space.rules.set(retention);
        self.space.watch();
        self.cleaning.ask();
        Ok(())
    }

    /// Sets the hook that receives files before they are deleted, for [`OnExpiry::Archive`]. Called for one file at a
    /// time under the cleaning lock only; it may be slow, but closing the store waits for it.
    pub fn set_archive(
        &self,
        hook: impl Fn(&ExpiredFile) -> std::result::Result<(), String> + Send + Sync + 'static,
    ) {
        self.cleaner.archive.set_hook(Some(Arc::new(hook)));
        self.cleaning.ask();
    }

    /// Removes the archive hook. Files to be archived stay.
    pub fn clear_archive(&self) {
        self.cleaner.archive.set_hook(None);
    }

    /// Deletes a topic: its queues, their access settings, and the offsets of groups. Returns the number of queues.
    ///
    /// Messages appended later continue after the deleted offsets. Errors: `Closed`, `Poisoned`, `Io`, `QueueSetAside`
    /// for a queue set aside at open; nothing is deleted unless the deletion was recorded durably.
    pub fn delete_topic(&self, topic: &str) -> Result<usize> {
        self.queues.delete_topic(topic)
    }

    /// Deletes all topics except `keep`, which must include system topics. Returns the deleted ones. A queue set aside
    /// at open stays until it is complete.
    pub fn clean_unused(&self, keep: &BTreeSet<&str>) -> Result<Vec<String>> {
        self.queues.clean_unused(keep)
    }

    /// Closes a queue for sends or for sends and reads, or reopens it. The setting survives restarts.
    ///
    /// When this returns, no send to a closed queue is under way.
    pub fn set_queue_access(&self, topic: &str, queue_id: u32, access: QueueAccess) -> Result<()> {
        self.queues.set_queue_access(topic, queue_id, access)
    }

    /// Whether a queue is open or closed.
    #[must_use]
    pub fn queue_access(&self, topic: &str, queue_id: u32) -> QueueAccess {
        self.queues.queue_access(topic, queue_id)
    }
}
