//! `MessageStore`: opens and closes a store, and provides its handles.

use std::{
    path::Path,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    config::StoreConfig,
    delayed::delivery::DelayedDelivery,
    derive::{
        dispatch::{self, Dispatcher},
        dispatching::Dispatching,
    },
    error::Result,
    files::{disk::Disk, real_disk::RealDisk},
    log::{appender::Log, commit_log::CommitLog},
    progress::receive::Groups,
    read::reader::Reader,
    recovery::{
        checkpointer::Checkpointer,
        last_shutdown::{mark_closed, take_over},
        progress_log::RecoveryProgress,
        recovery_report::RecoveryReport,
    },
    store::{
        admin::Admin,
        backup,
        storage::{Opened, Storage, lock_directory, wants_space},
    },
    sync::{
        thread::{is_current, join, spawn},
        wake::Wake,
    },
    time::clock::Clock,
};

/// Longest time between two looks for a backup that waits.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// The message store, used through its handles. All methods take `&self` and may be called from any thread.
pub struct MessageStore<D: Disk = RealDisk> {
    log: Arc<Log<D>>,
    reader: Arc<Reader<D>>,
    groups: Arc<Groups<D>>,
    delayed: Arc<DelayedDelivery<D>>,
    admin: Admin<D>,
    dispatching: Arc<Dispatching<D>>,
    checkpointer: Arc<Checkpointer<D>>,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    dispatcher: Option<JoinHandle<()>>,
    flusher: Option<JoinHandle<()>>,
    preparer: Option<JoinHandle<()>>,
    checkpoints: Option<JoinHandle<()>>,
    space: Option<JoinHandle<()>>,
    retention: Option<JoinHandle<()>>,
    progress: Option<JoinHandle<()>>,
}

impl MessageStore<RealDisk> {
    /// Opens the store in `directory` on the real disk, and recovers it if needed.
    ///
    /// Missing or damaged files are no error: see [`Admin::damages`]. Errors: `Locked` if another store has it open,
    /// `Corrupt` if files contradict each other, `Io` if one cannot be read.
    pub fn open(directory: &Path, config: StoreConfig, clock: Clock) -> Result<Self> {
        Self::open_on(RealDisk, directory, config, clock)
    }

    /// As [`Self::open`]; another thread can watch the recovery, which then logs no progress.
    pub fn open_watched(
        directory: &Path,
        config: StoreConfig,
        clock: Clock,
        watched: Arc<RecoveryProgress>,
    ) -> Result<Self> {
        Self::open_with(RealDisk, directory, config, clock, Some(watched))
    }
}

impl<D: Disk> MessageStore<D> {
    /// Opens the store in `directory` on `disk`, and recovers it if needed.
    ///
    /// The order of the steps is a crash promise: lock the directory, load the files, leave an abort file, recover the
    /// log and what is derived from it, then timers and progress, claim the store, start threads.
    pub fn open_on(disk: D, directory: &Path, config: StoreConfig, clock: Clock) -> Result<Self> {
        Self::open_with(disk, directory, config, clock, None)
    }

    fn open_with(
        disk: D,
        directory: &Path,
        config: StoreConfig,
        clock: Clock,
        watched: Option<Arc<RecoveryProgress>>,
    ) -> Result<Self> {
        config.check()?;
        let opened = Storage::open(lock_directory(disk, directory)?, config, clock)?;
        let (report, dispatcher) = opened.storage.recover(watched)?;
        let store = Self::assemble(opened, report)?;
        store.start(dispatcher)?;
        Ok(store)
    }

    /// Recovers what is not derived from the log, and assembles the store.
    fn assemble(opened: Opened<D>, report: RecoveryReport) -> Result<Self> {
        let Opened { storage, mut timer, archive } = opened;
        let cleaning = Arc::new(Wake::default());
        let (stall, levels) = (storage.stall(), storage.levels());
        let log = storage.appender(&stall, &levels, &cleaning);
        let sources = storage.timer_sources();
        timer.recover(&sources)?;
        let (progress, is_taken_over) = storage.load_progress()?;
        let progress_writer = storage.progress_writer(&progress);
        if is_taken_over {
            // Before this, a kill must read as one of the other broker, so that its leases are taken over again.
            progress_writer.persist()?;
        }
        take_over(&storage.home, storage.left)?;
        let delayed = storage.delayed(&log, levels, sources, timer);
        let space = storage.space(&cleaning);
        // Before the first append, which a full disk must refuse.
        space.watch();
        let cleaner = storage.cleaner(&space, &cleaning, archive);
        let dispatching = storage.dispatching(&stall, &progress);
        let queues = storage.queue_admin(&dispatching, &progress_writer, &cleaner);
        let admin = Admin {
            home: Arc::clone(&storage.home),
            config: Arc::clone(&storage.config),
            files: Arc::clone(&storage.files),
            dispatched: Arc::clone(&storage.dispatched),
            stall,
            sequences: Arc::clone(&storage.sequences),
            unreadable: Arc::clone(&storage.reader.unreadable),
            counters: Arc::clone(&storage.reader.counters),
            delayed: Arc::clone(&delayed),
            cleaner,
            cleaning,
            space,
            queues,
            recovered: report,
        };
        let groups = Arc::new(Groups {
            reader: Arc::clone(&storage.reader),
            clock: storage.clock.clone(),
            aside: Arc::clone(&storage.files.aside),
            progress,
            progress_writer,
        });
        let Storage { reader, checkpointer, .. } = storage;
        let threads = Mutex::default();
        Ok(Self { log, reader, groups, delayed, admin, dispatching, checkpointer, threads })
    }

    /// Appends messages, and reports when they are durable.
    #[must_use]
    pub fn log(&self) -> &Log<D> {
        &self.log
    }

    /// Reads messages and positions of queues.
    #[must_use]
    pub fn queues(&self) -> &Reader<D> {
        &self.reader
    }

    /// Receives, acknowledges and commits for consumer groups.
    #[must_use]
    pub fn groups(&self) -> &Groups<D> {
        &self.groups
    }

    /// Delivers messages that wait for a delay level or a time.
    #[must_use]
    pub fn delayed(&self) -> &DelayedDelivery<D> {
        &self.delayed
    }

    /// Administers the store.
    #[must_use]
    pub fn admin(&self) -> &Admin<D> {
        &self.admin
    }

    fn start(&self, dispatcher: Dispatcher<D>) -> Result<()> {
        let mut threads = self.threads.lock();
        let (root, log) = (&*self.reader.home.root, &self.reader.log);
        let clock = self.dispatching.files.clock.clone();
        let dispatching = Arc::clone(&self.dispatching);
        threads.dispatcher =
            Some(spawn("ferromq-dispatch", root, move || dispatch::run(&dispatching, dispatcher))?);
        self.ring_on_advance(&clock);
        let (flushed, flush_clock) = (Arc::clone(log), clock.clone());
        threads.flusher = Some(spawn("ferromq-flush", root, move || flushed.run_flushes(&flush_clock))?);
        let prepared = Arc::clone(log);
        threads.preparer = Some(spawn("ferromq-prepare", root, move || prepare(&prepared))?);
        let checkpointer = Arc::clone(&self.checkpointer);
        threads.checkpoints = Some(spawn("ferromq-checkpoint", root, move || checkpointer.run())?);
        let (space, stall) = (Arc::clone(&self.admin.space), Arc::clone(&self.admin.stall));
        threads.space = Some(spawn("ferromq-space", root, move || {
            space.run(|| {
                stall.watch();
                clock.look();
            });
        })?);
        let cleaner = Arc::clone(&self.admin.cleaner);
        threads.retention = Some(spawn("ferromq-retention", root, move || cleaner.run())?);
        let (groups, delayed) = (Arc::clone(&self.groups), Arc::clone(&self.delayed));
        let interval = self.admin.config.progress_interval;
        let log = Arc::clone(log);
        let write = move || write_progress(&groups, &delayed, &log, interval);
        threads.progress = Some(spawn("ferromq-progress", root, write)?);
        Ok(())
    }

    /// Wakes all threads that wait for a time when a manual clock advances.
    fn ring_on_advance(&self, clock: &Clock) {
        let log = Arc::downgrade(&self.reader.log);
        let arrivals = Arc::clone(&self.reader.arrivals);
        let (cleaning, space) = (Arc::clone(&self.admin.cleaning), Arc::clone(&self.admin.space.due));
        let (levels, timer) = (Arc::clone(&arrivals.levels), Arc::clone(&arrivals.timer));
        clock.on_advance(move || {
            if let Some(log) = log.upgrade() {
                log.flushing.due.ring();
                levels.ask();
                timer.ask();
            }
            cleaning.due.ring();
            space.ring();
        });
    }

    /// Flushes everything, writes the checkpoint, removes the abort file and releases the lock.
    ///
    /// The order of the steps is a crash promise: refuse appends, stop cleaning, flush, dispatch what was flushed,
    /// write checkpoint and progress, record the clean close, release the lock. If a write fails the abort file stays,
    /// so that the next open recovers. Also done on drop. Later calls of any method return `Closed` or nothing.
    pub fn close(&self) -> Result<()> {
        let (home, log) = (&self.reader.home, &self.reader.log);
        if !home.close() {
            return Ok(());
        }
        self.delayed.end();
        log.close();
        let mut threads = std::mem::take(&mut *self.threads.lock());
        self.admin.space.due.stop();
        join(threads.space.take());
        self.admin.cleaning.due.stop();
        join(threads.retention.take());
        self.admin.cleaner.wait_idle();
        log.flushing.due.stop();
        join(threads.flusher.take());
        let flushed = log.flush();
        log.end_flushes();
        log.arrived.stop();
        let is_listener = threads.dispatcher.as_ref().is_some_and(is_current);
        join(threads.dispatcher.take());
        log.ahead.due.stop();
        join(threads.preparer.take());
        self.checkpointer.due.stop();
        join(threads.checkpoints.take());
        self.groups.progress_writer.due.stop();
        join(threads.progress.take());
        drop(threads);
        // Wait for a change of queues under way, unless it waits for the dispatch round whose listener called this
        // close: that change then fails because the store is closed.
        let changing = &self.admin.queues.changing;
        let changing = if is_listener { changing.try_lock() } else { Some(changing.lock()) };
        let closed = flushed.and_then(|end| self.end_cleanly(end));
        self.reader.arrivals.set_listener(None);
        self.admin.cleaner.archive.set_hook(None);
        home.release();
        drop(changing);
        closed
    }

    /// Saves what the next open would have to recover, and records the clean close.
    ///
    /// Without disk space nothing is lost: the next open recovers as after a kill.
    fn end_cleanly(&self, end: u64) -> Result<()> {
        let (aside, dispatched) = (&self.dispatching.files.aside, &self.dispatching.dispatched);
        let no_checkpoint = wants_space(self.checkpointer.write(true))?;
        let no_offsets = wants_space(persist_offsets(&self.groups, &self.delayed))?;
        let unsaid = no_checkpoint.or(no_offsets);
        if !aside.is_empty() {
            tracing::warn!(
                "store closed with a queue or the index set aside: the next open rebuilds it from the commit log"
            );
        }
        let is_whole = unsaid.is_none() && dispatched.end() == end && aside.is_empty();
        let mark = || mark_closed(&self.reader.home, dispatched.anchor(), end);
        let unmarked = if is_whole { wants_space(mark())? } else { None };
        if let Some(error) = unsaid.or(unmarked) {
            tracing::warn!(%error, "no space for a clean close: the next open recovers as after a kill");
        }
        Ok(())
    }
}

impl<D: Disk> Drop for MessageStore<D> {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "store not closed cleanly");
        }
    }
}

/// Prepares files and memory ahead of the appender until stopped.
fn prepare<D: Disk>(log: &CommitLog<D>) {
    while !log.ahead.due.is_stopped() {
        if !log.prepare() {
            log.ahead.due.wait(|| log.ahead.was_asked(), None);
        }
    }
}

/// Saves progress every `interval`, or less often so that it takes at most a tenth of the time, until stopped.
///
/// A backup that waits for it does not wait for a long pause.
fn write_progress<D: Disk>(
    groups: &Groups<D>,
    delayed: &DelayedDelivery<D>,
    log: &CommitLog<D>,
    interval: Duration,
) {
    let (due, home) = (&groups.progress_writer.due, &groups.progress_writer.home);
    let (mut pause, mut is_failing) = (interval, false);
    loop {
        let mut is_asked = false;
        while !is_asked && !pause.is_zero() && !due.is_stopped() {
            let step = pause.min(interval).min(ASK_INTERVAL);
            due.pause(step);
            pause -= step;
            is_asked = backup::is_asked(home);
        }
        if due.is_stopped() {
            return;
        }
        let began = Instant::now();
        let mut written = persist_offsets(groups, delayed);
        if is_asked && written.is_ok() {
            written = backup::answer(home, log);
        }
        pause = interval.max(began.elapsed() * 10);
        if let Err(error) = &written
            && !is_failing
        {
            tracing::warn!(%error, "progress not written, retrying");
        }
        is_failing = written.is_err();
    }
}

/// Saves the progress of groups, delay levels and timers, each even if another fails; returns the first error.
fn persist_offsets<D: Disk>(groups: &Groups<D>, delayed: &DelayedDelivery<D>) -> Result<()> {
    let progress = groups.progress_writer.persist();
    let schedule = delayed.levels.persist();
    let timers = delayed.timer.persist();
    progress.and(schedule).and(timers)
}
