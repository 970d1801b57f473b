//! `MessageStore`: open, append, get, receive, look up, close. The only door.
//!
//! Here the parts are put together, started and stopped; lookups are in `lookup`, leases in `receive`.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use crate::{
    config::StoreConfig,
    dedup::writers::Dedup,
    delayed::{
        schedule::Schedule,
        timer::{delivery::Timer, state::TimerState},
    },
    derive::{
        arrival::Arrival,
        dispatch,
        dispatch_stall::Stall,
        set_aside::{Cure, SetAside},
    },
    error::{Result, StoreError},
    files::{
        anchor::Anchor,
        directories::{FilePlaces, Names, sync_parent},
        disk::{Allocation, Disk},
        mapped_file_queue::{FileForm, MappedFileQueue},
        open_files::{Budget, OpenFiles, RowKind},
        real_disk::RealDisk,
    },
    index::key_index::Index,
    log::{
        commit_log::CommitLog,
        damage::{Damage, DamageReason},
        flush_mark::FlushMark,
    },
    progress::{
        group_progress::{Progress, ProgressThread},
        java_pops,
    },
    queues::{consume_queue::ConsumeQueue, queue_list::QueueList, queue_table::ConsumeQueues},
    read::{counters::Counters, unreadable_files::Unreadable},
    recovery::{
        checkpoint::Checkpoint,
        last_shutdown::{Left, mark_closed, mark_open, read_left, remove_abort, take_over},
        progress_log::RecoveryListener,
        recover,
        recovery_report::RecoveryReport,
        torn_tail,
    },
    retention::{archive::Archive, cleaner::Cleaner},
    store::stats::StoreStats,
    sync::signal::Signal,
    time::clock::Clock,
};

type Listener = Arc<dyn Fn(&Arrival<'_>) + Send + Sync>;

/// How often derived files are flushed and the checkpoint advanced while messages come …
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// … or less often: pauses last so many times as long as the last checkpoint took, which with thousands of queues is long.
const CHECKPOINT_PAUSE: u32 = 9;

/// The parts of an open store, shared with its threads.
pub(crate) struct Inner<D: Disk> {
    pub(crate) disk: D,
    pub(crate) root: PathBuf,
    pub(crate) clock: Clock,
    pub(crate) config: StoreConfig,
    pub(crate) log: CommitLog<D>,
    pub(crate) queues: ConsumeQueues<D>,
    pub(crate) index: Index<D>,
    pub(crate) checkpoint: Checkpoint<D>,
    progress: OnceLock<Progress>,
    /// Rung when there is something to dispatch.
    pub(crate) arrived: Arc<Signal>,
    checkpoint_due: Signal,
    /// One checkpoint at a time: what one claims, another may not have flushed yet.
    pub(crate) checkpointing: Mutex<()>,
    /// Held through each round of the dispatcher.
    pub(crate) dispatching: Mutex<()>,
    /// One change of queues at a time.
    pub(crate) changing_queues: Mutex<()>,
    /// Queues, and the index, that cannot be written now.
    pub(crate) aside: SetAside<D>,
    pub(crate) stall: Stall,
    /// Messages that cannot be read now.
    pub(crate) unreadable: Unreadable,
    pub(crate) cleaner: Cleaner,
    pub(crate) schedule: Schedule,
    pub(crate) timer: Timer<D>,
    /// Wakes the thread that looks at the disk.
    pub(crate) space_due: Arc<Signal>,
    dispatched: AtomicU64,
    /// End of what is dispatched, the newest store timestamp below it, and the last record.
    dispatched_mark: Mutex<(u64, i64, Anchor)>,
    dirty_queues: Mutex<Vec<Arc<ConsumeQueue<D>>>>,
    /// The queues as last noted on disk.
    listed: Mutex<Option<QueueList>>,
    listener: RwLock<Option<Listener>>,
    pub(crate) appended: AtomicU64,
    pub(crate) counters: Counters,
    pub(crate) dedup: Dedup,
    recovered: OnceLock<RecoveryReport>,
    is_closed: AtomicBool,
    lock: Mutex<Option<D::Lock>>,
    /// Set before the lock goes, which waits for who holds it to write.
    is_let_go: RwLock<bool>,
    left: Left,
}

impl<D: Disk> Inner<D> {
    pub(crate) fn dispatched(&self) -> u64 {
        self.dispatched.load(Ordering::Acquire)
    }

    /// Everything below `end` is dispatched; `last` is the last record, where there was a new one.
    pub(crate) fn set_dispatched(&self, end: u64, timestamp: i64, last: Option<Anchor>) {
        let mut mark = self.dispatched_mark.lock();
        *mark = (end, timestamp.max(mark.1), last.unwrap_or(mark.2));
        self.dispatched.store(end, Ordering::Release);
    }

    /// The last record dispatched: what our own files are derived from, once the log is flushed.
    pub(crate) fn anchor(&self) -> Anchor {
        self.dispatched_mark.lock().2
    }

    /// Says whether the store is still being opened.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovered.get().is_none()
    }

    /// How the store was left before this open.
    pub(crate) fn left(&self) -> Left {
        self.left
    }

    /// Says whether a file of ours with this anchor still tells the truth: nobody else had the store since, and the log
    /// is the one it was derived from.
    pub(crate) fn is_trusted(&self, anchor: Anchor) -> bool {
        self.left.is_ours() && anchor.is_held_by(self.log.files())
    }

    /// No record lies where a consume queue tells of one. Says whether the log is damaged there: otherwise the consume
    /// queue is.
    #[cold]
    pub(crate) fn note_damage_at(&self, physical_offset: u64) -> bool {
        // What cannot be read now is not noted for good.
        let found = torn_tail::damage_at(self.log.files(), physical_offset, self.log.written());
        let Ok(Some(range)) = found else { return false };
        self.note_damage(range);
        true
    }

    /// A record was read that is damaged.
    #[cold]
    pub(crate) fn note_damage(&self, range: Range<u64>) {
        let files = self.log.files();
        let file = files.path_at(range.start).unwrap_or_else(|| files.directory().to_path_buf());
        self.log.damages.add(Damage { file, range, reason: DamageReason::Corrupt });
    }

    pub(crate) fn is_fast_boot(&self) -> bool {
        self.config.fast_boot
    }

    pub(crate) fn on_recovery(&self) -> Option<RecoveryListener> {
        self.config.on_recovery.clone()
    }

    pub(crate) fn mark_dirty(&self, queue: Arc<ConsumeQueue<D>>) {
        self.dirty_queues.lock().push(queue);
    }

    fn has_dirty_queues(&self) -> bool {
        !self.dirty_queues.lock().is_empty()
    }

    pub(crate) fn listener(&self) -> Option<Listener> {
        self.listener.read().clone()
    }

    /// Makes everything dispatched so far durable, log first, and says so in the checkpoint.
    pub(crate) fn write_checkpoint(&self, is_closing: bool) -> Result<()> {
        let _held = self.hold()?;
        let _checkpointing = self.checkpointing.lock();
        // Taken before the flushes: what they cover is at least this.
        let (end, timestamp, anchor) = *self.dispatched_mark.lock();
        self.aside.begin_checkpoint();
        if self.log.flushed() < end {
            self.log.flush()?;
        }
        // What stands for itself: one that cannot be written keeps neither the others nor the checkpoint back.
        let noted = self.log.flush_mark.note(self.log.flushed(), anchor);
        let noted = noted.and(self.log.damages.save(&self.disk, &self.root, anchor));
        let noted = noted.and(self.save_sequences(anchor, is_closing));
        let dirty = std::mem::take(&mut *self.dirty_queues.lock());
        let has_flushed = self.flush_queues(dirty);
        if let Some(list) = self.due_list(is_closing) {
            // What the list tells must be durable, also what came after the mark above.
            self.log.flush()?;
            list.save(&self.disk, &self.root, anchor)?;
            *self.listed.lock() = Some(list);
        }
        let is_filling = !is_closing && self.index.is_filling();
        let index_timestamp = self.flush_index(is_closing)?;
        has_flushed?;
        // What is set aside lacks what lies behind this: after a kill the walk brings it.
        let aside = self.aside.lowest_from();
        let durable_end = aside.map_or(end, |from| from.min(end));
        // Another broker goes by the time: it begins at the first record that something lacks.
        let queues_timestamp = match aside.and_then(|from| self.stored_at(from)) {
            Some(stored_at) => timestamp.min(stored_at - 1),
            None => timestamp,
        };
        // After an unclean stop Java drops the index file that is being filled. It finds the keys again where it walks
        // from before that file's first; we walk from `durable_end`.
        self.checkpoint.update(|marks| {
            marks.log_timestamp = timestamp;
            marks.queues_timestamp =
                if is_filling { queues_timestamp.min(index_timestamp - 1) } else { queues_timestamp };
            marks.index_timestamp = index_timestamp;
            marks.durable_end = durable_end as i64;
        })?;
        noted
    }

    /// Makes what was written to the queues durable. One that fails is set aside: what the disk has of it is unknown.
    /// Where only a descriptor or memory was short, the queue is flushed at the next checkpoint.
    fn flush_queues(&self, dirty: Vec<Arc<ConsumeQueue<D>>>) -> Result<()> {
        let mut outcome = Ok(());
        let dirty = self.aside.unlist_aside(dirty);
        for queue in dirty.iter().filter(|_| dirty.len() > 1) {
            // Only a hint: the flush below reports what is wrong.
            let _ = queue.begin_flush();
        }
        for queue in &dirty {
            if let Err(error) = queue.flush() {
                if error.is_shortage() {
                    self.mark_dirty(Arc::clone(queue));
                    outcome = outcome.and(Err(error));
                    continue;
                }
                queue.unlist();
                self.set_aside(queue, queue.flushed(), self.in_doubt_from(queue), &error);
            }
        }
        outcome
    }

    /// Makes the index durable and returns up to which time it is. Where that fails the next open redoes what may be lost.
    fn flush_index(&self, is_closing: bool) -> Result<i64> {
        let durable = self.checkpoint.marks();
        if self.aside.index().is_some_and(|index| index.cure == Cure::Reload) {
            return Ok(durable.index_timestamp);
        }
        self.index.flush(is_closing).or_else(|error| {
            if error.is_shortage() {
                return Err(error);
            }
            let from = u64::try_from(durable.durable_end).unwrap_or(0).max(self.log.start());
            self.set_index_aside(from, Cure::Reopen, &error);
            Ok(durable.index_timestamp)
        })
    }

    /// Reads the list of queues, and says whether there was one at all, true or not.
    pub(crate) fn load_list(&self) -> Result<(Option<QueueList>, bool)> {
        let loaded = QueueList::load(&self.disk, &self.root)?;
        let was_there = loaded.is_some();
        let mut list = loaded.filter(|(anchor, _)| self.is_trusted(*anchor)).map(|(_, list)| list);
        if let Some(list) = &mut list {
            // What was deleted since is not lost.
            list.queues.retain(|(topic, queue_id), extent| {
                let floor =
                    self.queues.find_any(topic, *queue_id).map_or(0, |queue| queue.marks.floor().offset);
                extent.min_offset = extent.min_offset.max(floor);
                extent.max_offset > floor
            });
        }
        (*self.listed.lock()).clone_from(&list);
        Ok((list, was_there))
    }

    /// The list of queues where it must be written: a queue is new, or the store closes and ends have moved.
    fn due_list(&self, is_closing: bool) -> Option<QueueList> {
        let listed = self.listed.lock();
        let listed_count = listed.as_ref().map(|listed| listed.queues.len());
        let indexes = self.index.names();
        let is_same = |listed: &QueueList| listed.indexes.keys().eq(indexes.keys());
        if !is_closing && listed_count == Some(self.queues.count()) && listed.as_ref().is_some_and(is_same) {
            return None;
        }
        let mut list = QueueList { log_start: self.log.start(), indexes, queues: self.queues.extents() };
        if let Some(listed) = listed.as_ref().filter(|_| !is_closing) {
            // The dispatcher may be at work: only what was flushed counts.
            list.queues.retain(|(topic, queue_id), extent| {
                let flushed = self.queues.find(topic, *queue_id).map_or(0, |queue| queue.flushed());
                let known =
                    listed.queues.get(&(topic.clone(), *queue_id)).map_or(0, |known| known.max_offset);
                extent.max_offset = flushed.max(known);
                extent.max_offset > 0
            });
        }
        // Where a queue ends is not known: it ends no earlier than was noted.
        for (name, known) in listed.iter().flat_map(|listed| &listed.queues) {
            let queue = self.queues.find(&name.0, name.1);
            if queue.is_some_and(|queue| queue.marks.is_end_unknown()) {
                let extent = list.queues.entry(name.clone()).or_insert(*known);
                extent.max_offset = extent.max_offset.max(known.max_offset);
            }
        }
        (listed.as_ref() != Some(&list)).then_some(list)
    }

    fn run_checkpoints(&self) {
        // Where the policy leaves a few pages dirty the checkpoint waits until it has flushed them.
        let (mut awaited, mut is_failing) = (None, false);
        let mut pause = CHECKPOINT_INTERVAL;
        while !self.checkpoint_due.is_stopped() {
            self.checkpoint_due.wait(|| false, Some(pause));
            self.log.freshness.tick(self.log.written());
            let end = self.dispatched();
            let end = self.aside.first_from().map_or(end, |from| from.min(end));
            let has_more = end as i64 != self.checkpoint.marks().durable_end
                || self.has_dirty_queues()
                || self.dedup.is_stepped(self.clock.stepped_ms())
                || self.dedup.trouble.is_on();
            let is_due = has_more && !self.log.is_poisoned() && !self.checkpoint_due.is_stopped();
            if is_due && self.log.policy().leaves_pages() {
                let goal = *awaited.get_or_insert(self.dispatched());
                if self.log.flushed() < goal {
                    continue;
                }
                awaited = None;
            }
            let began = Instant::now();
            if is_due {
                let written = self.write_checkpoint(false);
                let was_failing = std::mem::replace(&mut is_failing, written.is_err());
                if let Err(error) = written
                    && !was_failing
                {
                    tracing::warn!(%error, "checkpoint not written, trying again");
                }
            }
            pause = pause_after(began.elapsed());
        }
    }

    /// Says whether the directory's lock is let go: nothing may be written any more.
    pub(crate) fn is_let_go(&self) -> bool {
        *self.is_let_go.read()
    }

    /// Keeps the directory's lock until the guard goes; not to be held twice. `Closed` where it was let go.
    pub(crate) fn hold(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let is_let_go = self.is_let_go.read();
        if *is_let_go { Err(StoreError::Closed) } else { Ok(is_let_go) }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn persist_progress(&self) -> Result<()> {
        let _held = self.hold()?;
        self.progress().persist(&self.disk, &self.root, self.anchor(), || self.log.flush())
    }

    /// Writes how far groups, delay levels and timers are, each whether or not the others can be written; the first error.
    fn persist_offsets(&self) -> Result<()> {
        let progress = self.persist_progress();
        let schedule = self.persist_schedule();
        let timers = self.persist_timers();
        progress.and(schedule).and(timers)
    }

    /// Writes down what the next open would have to recover, and marks the stop as clean.
    ///
    /// Where there is no space for it nothing is lost: the next open recovers as after a kill.
    fn end_cleanly(&self, end: u64) -> Result<()> {
        let no_checkpoint = wants_space(self.write_checkpoint(true))?;
        let no_offsets = wants_space(self.persist_offsets())?;
        let unsaid = no_checkpoint.or(no_offsets);
        if !self.aside.is_empty() {
            tracing::warn!(
                "store closed with something set aside: the next open redoes it from the commit log"
            );
        }
        let is_whole = unsaid.is_none() && self.dispatched() == end && self.aside.is_empty();
        let unmarked = if is_whole { wants_space(mark_closed(self, end))? } else { None };
        if let Some(error) = unsaid.or(unmarked) {
            tracing::warn!(%error, "no space for a clean stop: the next start recovers as after a kill");
        }
        Ok(())
    }

    pub(crate) fn progress(&self) -> &Progress {
        self.progress.get_or_init(Progress::default)
    }
}

/// The error, where only space is missing: what could not be written can be written later, or recovered.
fn wants_space(done: Result<()>) -> Result<Option<StoreError>> {
    match done {
        Err(error) if error.is_of_full_disk() => Ok(Some(error)),
        done => done.map(|()| None),
    }
}

/// The message store. All methods take `&self` and may be called from any thread.
pub struct MessageStore<D: Disk = RealDisk> {
    pub(crate) inner: Arc<Inner<D>>,
    threads: Mutex<Threads>,
    schedule_threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Threads {
    dispatcher: Option<JoinHandle<()>>,
    flusher: Option<JoinHandle<()>>,
    preparer: Option<JoinHandle<()>>,
    checkpoints: Option<JoinHandle<()>>,
    space: Option<JoinHandle<()>>,
    retention: Option<JoinHandle<()>>,
    progress: Option<ProgressThread>,
}

impl MessageStore<RealDisk> {
    /// Opens the store in `directory` on the real disk, recovering it where needed.
    ///
    /// Files that are missing or damaged are no error: see [`Self::damages`]. Errors: `Locked` where another store has
    /// it open, `Corrupt` where files contradict each other, `Io` where one cannot be read.
    pub fn open(directory: &Path, config: StoreConfig, clock: Clock) -> Result<Self> {
        Self::open_on(RealDisk, directory, config, clock)
    }
}

impl<D: Disk> MessageStore<D> {
    /// Opens the store in `directory` on `disk`, recovering it where needed.
    pub fn open_on(disk: D, directory: &Path, config: StoreConfig, clock: Clock) -> Result<Self> {
        config.check()?;
        disk.create_dir(directory).map_err(|source| StoreError::io("create", directory, source))?;
        let directory = &disk
            .absolute(directory)
            .map_err(|source| StoreError::io("find the absolute path of", directory, source))?;
        sync_parent(&disk, directory)?;
        let staging = directory.join("ferromq");
        for needed in [&staging, &directory.join("config")] {
            disk.create_dir(needed).map_err(|source| StoreError::io("create", needed, source))?;
        }
        let lock_path = directory.join("lock");
        let lock = disk.lock(&lock_path).map_err(|source| match source.kind() {
            std::io::ErrorKind::WouldBlock => StoreError::Locked { path: lock_path.clone() },
            _ => StoreError::io("lock", &lock_path, source),
        })?;
        let inner = Arc::new(open_parts(disk, directory, config, clock, lock)?);
        let left = inner.left();
        mark_open(&inner, left)?;
        let (recovered, dispatcher) = recover::recover(&inner).inspect_err(|error| {
            if left.is_clean() && matches!(error, StoreError::Corrupt { .. }) {
                // Nothing was written yet: whoever repairs the files finds them as they were closed.
                remove_abort(&inner).unwrap_or_else(|error| tracing::warn!(%error, "abort file stays"));
            }
        })?;
        // A set value would mean a second recovery, which cannot be.
        let _ = inner.recovered.set(recovered);
        inner.load_sequences()?;
        if let Some(error) = wants_space(inner.write_checkpoint(false))? {
            tracing::warn!(%error, "no space for the checkpoint: written once there is");
        }
        inner.timer.state.lock().recover(&inner)?;
        let max_offset = |topic: &str, queue_id| inner.offset_limit(topic, queue_id);
        let progress = Progress::load(
            &inner.disk,
            directory,
            max_offset,
            |anchor| inner.is_trusted(anchor),
            inner.clock.now_ms(),
        )?;
        let is_taken_over = !left.is_ours() && java_pops::take_over(&inner, &progress)?;
        let _ = inner.progress.set(progress);
        if is_taken_over {
            // Until it is written, a kill must read as one of the other broker, whose consumers are looked for again.
            inner.persist_progress()?;
        }
        take_over(&inner, left)?;
        // Before the first append, which a full disk refuses.
        inner.watch_space();
        let store = Self { inner, threads: Mutex::default(), schedule_threads: Mutex::default() };
        store.start(dispatcher)?;
        Ok(store)
    }

    fn start(&self, dispatcher: dispatch::Dispatcher<D>) -> Result<()> {
        let mut threads = self.threads.lock();
        let inner = &self.inner;
        threads.dispatcher =
            Some(spawn(inner, "ferromq-dispatch", move |inner| dispatch::run(inner, dispatcher))?);
        let log = Arc::downgrade(inner);
        inner.clock.on_advance(move || {
            if let Some(inner) = log.upgrade() {
                inner.log.flushing.due.ring();
                inner.schedule.ask();
                inner.timer.ask();
            }
        });
        threads.flusher = Some(spawn(inner, "ferromq-flush", |inner| inner.log.run_flushes(&inner.clock))?);
        threads.preparer = Some(spawn(inner, "ferromq-prepare", |inner| {
            while !inner.log.ahead.due.is_stopped() {
                if !inner.log.prepare() {
                    inner.log.ahead.due.wait(|| inner.log.ahead.was_asked(), None);
                }
            }
        })?);
        threads.checkpoints = Some(spawn(inner, "ferromq-checkpoint", |inner| inner.run_checkpoints())?);
        threads.space = Some(spawn(inner, "ferromq-space", |inner| inner.run_space_watch())?);
        threads.retention = Some(spawn(inner, "ferromq-retention", |inner| inner.run_cleaning())?);
        let signals = [Arc::clone(&inner.cleaner.due), Arc::clone(&inner.space_due)];
        inner.clock.on_advance(move || signals.iter().for_each(|signal| signal.ring()));
        let persisted = Arc::clone(inner);
        let is_failing = AtomicBool::new(false);
        let progress = ProgressThread::start(inner.config.progress_interval, move || {
            let written = persisted.persist_offsets();
            let was_failing = is_failing.swap(written.is_err(), Ordering::Relaxed);
            if let Err(error) = written
                && !was_failing
            {
                tracing::warn!(%error, "progress not written, trying again");
            }
        });
        threads.progress =
            Some(progress.map_err(|source| StoreError::io("start a thread for", &inner.root, source))?);
        Ok(())
    }

    /// Sets the listener told of new messages by the dispatching thread; it must return quickly.
    pub fn on_arrival(&self, listener: impl Fn(&Arrival<'_>) + Send + Sync + 'static) {
        *self.inner.listener.write() = Some(Arc::new(listener));
    }

    /// Counters and positions.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let inner = &self.inner;
        let recovered = self.recovery();
        let (indexed_offset, indexed_timestamp) = inner.index.end();
        StoreStats {
            min_physical_offset: inner.log.start(),
            max_physical_offset: inner.log.written(),
            flushed_offset: inner.log.flushed(),
            dispatched_offset: inner.dispatched(),
            indexed_offset,
            indexed_timestamp,
            appended: inner.appended.load(Ordering::Relaxed),
            flushes: inner.log.flushes(),
            recovered_cut_bytes: recovered.cut_bytes,
            recovered_messages: recovered.messages,
            longest_put_ms: inner.log.put_times().longest_ms(),
            append_lock_ms: inner.log.locked_ms(&inner.clock),
            found_gets: inner.counters.found_gets.load(Ordering::Relaxed),
            fruitless_gets: inner.counters.fruitless_gets.load(Ordering::Relaxed),
            longest_get_ms: inner.counters.longest_get_ms(),
            failed_puts: inner.counters.failed_puts(),
            missed_gets: inner.counters.missed_gets(),
            mismatches: inner.counters.mismatches.load(Ordering::Relaxed),
            gone_leases: inner.counters.gone_leases.load(Ordering::Relaxed),
            is_full: inner.log.is_full(),
            set_aside_queues: inner.aside.queues(),
            dispatch_stalled_ms: inner.stalled_ms(),
            duplicates: inner.dedup.duplicates(),
            remembered_sequences: inner.dedup.entries(),
            schedule: inner.schedule.stats(),
            timer: inner.timer.stats(),
            cleaning: inner.cleaner.stats(),
        }
    }

    /// How long puts took since open: the last millisecond of each bucket, and how many puts ended in it. Under a
    /// synchronous flush policy a put takes until its flush; one whose flush failed is not counted.
    #[must_use]
    pub fn put_times(&self) -> Vec<(u64, u64)> {
        self.inner.log.put_times().snapshot()
    }

    /// Ranges of the commit log that are damaged or missing, whose messages are never served; files that cannot be
    /// written or read now; and consume queues that lost messages to retention meanwhile.
    ///
    /// Tries again to read what a reader could not, and waits for the disk.
    #[must_use]
    pub fn damages(&self) -> Vec<Damage> {
        self.inner.all_damages()
    }

    /// What the recovery at open did.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.inner.recovered.get().cloned().unwrap_or_default()
    }

    /// Flushes everything, writes the checkpoint, removes the abort file and lets the lock go.
    ///
    /// Also done on drop; further calls of any method answer `Closed` or nothing. Where something cannot be
    /// written the abort file stays, so that the next open recovers.
    pub fn close(&self) -> Result<()> {
        let inner = &self.inner;
        if inner.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.end_schedule(&mut self.schedule_threads());
        inner.log.close();
        let mut threads = std::mem::take(&mut *self.threads.lock());
        inner.space_due.stop();
        join(threads.space.take());
        inner.cleaner.due.stop();
        join(threads.retention.take());
        inner.cleaner.wait_idle();
        inner.log.flushing.due.stop();
        join(threads.flusher.take());
        let flushed = inner.log.flush();
        inner.log.end_flushes();
        inner.arrived.stop();
        let is_listener = threads.dispatcher.as_ref().is_some_and(is_current);
        join(threads.dispatcher.take());
        inner.log.ahead.due.stop();
        join(threads.preparer.take());
        inner.checkpoint_due.stop();
        join(threads.checkpoints.take());
        drop(threads);
        // A change of queues under way ends first, unless it waits for the round of the dispatcher whose listener closes
        // the store: that one will find the lock gone.
        let changing =
            if is_listener { inner.changing_queues.try_lock() } else { Some(inner.changing_queues.lock()) };
        let closed = flushed.and_then(|end| inner.end_cleanly(end));
        *inner.listener.write() = None;
        inner.cleaner.archive.set_hook(None);
        *inner.is_let_go.write() = true;
        *inner.lock.lock() = None;
        drop(changing);
        closed
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.inner.is_closed() { Err(StoreError::Closed) } else { Ok(()) }
    }

    pub(crate) fn open_inner(&self) -> Option<&Inner<D>> {
        self.check_open().ok().map(|()| &*self.inner)
    }

    pub(crate) fn inner(&self) -> &Inner<D> {
        &self.inner
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    pub(crate) fn progress(&self) -> &Progress {
        self.inner.progress()
    }

    /// The parts, to be shared with a thread.
    pub(crate) fn shared(&self) -> &Arc<Inner<D>> {
        &self.inner
    }

    pub(crate) fn schedule_threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.schedule_threads.lock()
    }
}

impl<D: Disk> Drop for MessageStore<D> {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "store not closed cleanly");
        }
    }
}

fn open_parts<D: Disk>(
    disk: D,
    root: &Path,
    config: StoreConfig,
    clock: Clock,
    lock: D::Lock,
) -> Result<Inner<D>> {
    let open_files = OpenFiles::new(Budget::of(&config));
    let names = Names::of(root);
    let mut files = MappedFileQueue::new(
        disk.clone(),
        FilePlaces::of_log(&disk, &names, &config)?,
        FileForm { size: config.commit_log_file_size, allocation: Allocation::Reserved, kind: RowKind::Log },
        Arc::clone(&open_files),
    );
    files.load()?;
    let cleaner = Cleaner::new(&config, Archive::load(&disk, root, &files)?);
    let left = read_left(&disk, root, &files)?;
    let flush_mark = FlushMark::open(&disk, root, files.span().is_none())?;
    let log = CommitLog::new(disk.clone(), files, flush_mark, &config);
    let timer = Timer::new(TimerState::load(&disk, root, &names, &open_files, &config)?);
    Ok(Inner {
        left,
        arrived: Arc::clone(&log.arrived),
        log,
        queues: ConsumeQueues::load(&disk, root, &names, &open_files, &config)?,
        index: Index::load(&disk, root, &config),
        checkpoint: Checkpoint::open(&disk, root)?,
        listed: Mutex::new(None),
        dedup: Dedup::new(&config),
        disk,
        root: root.to_path_buf(),
        clock,
        config,
        progress: OnceLock::new(),
        checkpoint_due: Signal::default(),
        checkpointing: Mutex::default(),
        dispatching: Mutex::default(),
        changing_queues: Mutex::default(),
        aside: SetAside::default(),
        stall: Stall::default(),
        unreadable: Unreadable::default(),
        cleaner,
        schedule: Schedule::default(),
        timer,
        space_due: Arc::default(),
        dispatched: AtomicU64::new(0),
        dispatched_mark: Mutex::new((0, 0, Anchor::NONE)),
        dirty_queues: Mutex::new(Vec::new()),
        listener: RwLock::new(None),
        appended: AtomicU64::new(0),
        counters: Counters::default(),
        recovered: OnceLock::new(),
        is_closed: AtomicBool::new(false),
        lock: Mutex::new(Some(lock)),
        is_let_go: RwLock::new(false),
    })
}

pub(crate) fn spawn<D: Disk>(
    inner: &Arc<Inner<D>>,
    name: &str,
    work: impl FnOnce(&Inner<D>) + Send + 'static,
) -> Result<JoinHandle<()>> {
    let shared = Arc::clone(inner);
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || work(&shared))
        .map_err(|source| StoreError::io("start a thread for", &inner.root, source))
}

/// Waits for a thread, unless it is the one that asks: a listener may hold the last reference to the store.
pub(crate) fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread
        && !is_current(&thread)
    {
        // A panic of the thread was printed where it happened.
        let _ = thread.join();
    }
}

fn is_current(thread: &JoinHandle<()>) -> bool {
    thread.thread().id() == std::thread::current().id()
}

/// The pause after a checkpoint that took so long: at most a tenth of the time goes into checkpoints.
fn pause_after(took: Duration) -> Duration {
    CHECKPOINT_INTERVAL.max(took.saturating_mul(CHECKPOINT_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_take_at_most_a_tenth_of_the_time() {
        for (took_ms, pause_ms) in [(0, 1000), (100, 1000), (112, 1008), (1300, 11_700)] {
            assert_eq!(pause_after(Duration::from_millis(took_ms)), Duration::from_millis(pause_ms));
        }
    }
}
