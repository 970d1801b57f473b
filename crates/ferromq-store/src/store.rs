//! `MessageStore`: open, append, get, receive, look up, close. The only door.
//!
//! Here the parts are put together, started and stopped; lookups are in `lookup`, leases in `receive`.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};

use crate::{
    Allocation, Appended, Arrival, Clock, Disk, FlushMode, NewMessage, RealDisk, Result, StoreConfig,
    StoreError, StoreStats,
    checkpoint::Checkpoint,
    commit_log::{self, CommitLog, Pending},
    consume_queue::{ConsumeQueue, ConsumeQueues, check_name},
    dispatch,
    flush::Flusher,
    index::Index,
    mapped_file_queue::MappedFileQueue,
    message,
    progress::{Progress, ProgressThread},
    queue_list::QueueList,
    recovery::{self, Recovered},
    signal::Signal,
    stop::{mark_closed, mark_open, read_last_stop, remove_abort},
};

type Listener = Arc<dyn Fn(&Arrival<'_>) + Send + Sync>;

/// How often derived files are flushed and the checkpoint advanced while messages come.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// A buffer for records grows with the largest batch; above this it is not kept.
const MAX_SCRATCH: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The parts of an open store, shared with its threads.
pub(crate) struct Inner<D: Disk> {
    pub(crate) disk: D,
    pub(crate) root: PathBuf,
    pub(crate) clock: Clock,
    config: StoreConfig,
    pub(crate) log: CommitLog<D>,
    pub(crate) queues: ConsumeQueues<D>,
    pub(crate) index: Index<D>,
    pub(crate) checkpoint: Checkpoint<D>,
    flusher: Flusher,
    progress: OnceLock<Progress>,
    /// Rung when there is something to dispatch.
    pub(crate) arrived: Signal,
    checkpoint_due: Signal,
    dispatched: AtomicU64,
    /// End of what is dispatched and the newest store timestamp below it.
    dispatched_mark: Mutex<(u64, i64)>,
    dirty_queues: Mutex<Vec<Arc<ConsumeQueue<D>>>>,
    /// The queues as last noted on disk.
    listed: Mutex<Option<QueueList>>,
    listener: RwLock<Option<Listener>>,
    appended: AtomicU64,
    recovered: OnceLock<Recovered>,
    is_closed: AtomicBool,
    lock: Mutex<Option<D::Lock>>,
}

impl<D: Disk> Inner<D> {
    pub(crate) fn dispatched(&self) -> u64 {
        self.dispatched.load(Ordering::Acquire)
    }

    pub(crate) fn set_dispatched(&self, end: u64, timestamp: i64) {
        let mut mark = self.dispatched_mark.lock();
        *mark = (end, timestamp.max(mark.1));
        self.dispatched.store(end, Ordering::Release);
    }

    pub(crate) fn mark_dirty(&self, queue: Arc<ConsumeQueue<D>>) {
        self.dirty_queues.lock().push(queue);
    }

    pub(crate) fn listener(&self) -> Option<Listener> {
        self.listener.read().clone()
    }

    fn is_sync(&self) -> bool {
        self.config.flush == FlushMode::Sync
    }

    /// Makes everything dispatched so far durable, log first, and says so in the checkpoint.
    fn write_checkpoint(&self, is_closing: bool) -> Result<()> {
        // Taken before the flushes: what they cover is at least this.
        let (end, timestamp) = *self.dispatched_mark.lock();
        if self.log.flushed() < end {
            self.log.flush()?;
        }
        let dirty = std::mem::take(&mut *self.dirty_queues.lock());
        for (number, queue) in dirty.iter().enumerate() {
            if let Err(error) = queue.flush() {
                self.dirty_queues.lock().extend(dirty.iter().skip(number).map(Arc::clone));
                return Err(error);
            }
        }
        if let Some(list) = self.due_list(is_closing) {
            // What the list tells must be durable, also what came after the mark above.
            self.log.flush()?;
            list.save(&self.disk, &self.root)?;
            *self.listed.lock() = Some(list);
        }
        let index_timestamp = self.index.flush(is_closing)?;
        self.checkpoint.update(|marks| {
            marks.log_timestamp = timestamp;
            marks.queues_timestamp = timestamp;
            marks.index_timestamp = index_timestamp;
            marks.durable_end = end as i64;
        })
    }

    /// The queues as last noted on disk.
    pub(crate) fn listed(&self) -> Option<QueueList> {
        self.listed.lock().clone()
    }

    /// The list of queues where it must be written: a queue is new, or the store closes and ends have moved.
    fn due_list(&self, is_closing: bool) -> Option<QueueList> {
        let listed = self.listed.lock();
        let listed_count = listed.as_ref().map(|listed| listed.queues.len());
        if !is_closing && listed_count == Some(self.queues.count()) {
            return None;
        }
        let mut list = QueueList { log_start: self.log.start(), queues: self.queues.extents() };
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
        (listed.as_ref() != Some(&list)).then_some(list)
    }

    fn run_checkpoints(&self) {
        while !self.checkpoint_due.is_stopped() {
            self.checkpoint_due.wait(|| false, Some(CHECKPOINT_INTERVAL));
            self.log.watch_space();
            let has_more = self.dispatched() as i64 != self.checkpoint.marks().durable_end;
            let is_due = has_more && !self.log.is_poisoned() && !self.checkpoint_due.is_stopped();
            if is_due && let Err(error) = self.write_checkpoint(false) {
                tracing::warn!(%error, "checkpoint not written, trying again");
            }
        }
    }

    fn persist_progress(&self) -> Result<()> {
        self.progress().persist(&self.disk, &self.root, || self.log.flush())
    }

    pub(crate) fn progress(&self) -> &Progress {
        self.progress.get_or_init(Progress::default)
    }
}

/// The message store. All methods take `&self` and may be called from any thread.
pub struct MessageStore<D: Disk = RealDisk> {
    inner: Arc<Inner<D>>,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    dispatcher: Option<JoinHandle<()>>,
    flusher: Option<JoinHandle<()>>,
    preparer: Option<JoinHandle<()>>,
    checkpoints: Option<JoinHandle<()>>,
    progress: Option<ProgressThread>,
}

impl MessageStore<RealDisk> {
    /// Opens the store in `directory` on the real disk, recovering it where needed.
    ///
    /// Errors: `Locked` where another store has it open, `Corrupt` where files are missing or damaged that
    /// were known to be on disk.
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
        for needed in [&staging, &commit_log::directory(directory), &directory.join("config")] {
            disk.create_dir(needed).map_err(|source| StoreError::io("create", needed, source))?;
        }
        let lock_path = directory.join("lock");
        let lock = disk.lock(&lock_path).map_err(|source| match source.kind() {
            std::io::ErrorKind::WouldBlock => StoreError::Locked { path: lock_path.clone() },
            _ => StoreError::io("lock", &lock_path, source),
        })?;
        let last_stop = read_last_stop(&disk, directory)?;
        let inner = Arc::new(open_parts(disk, directory, staging, config, clock, lock)?);
        mark_open(&inner)?;
        let (recovered, dispatcher) = recovery::recover(&inner, last_stop).inspect_err(|error| {
            if last_stop.is_clean() && matches!(error, StoreError::Corrupt { .. }) {
                // Nothing was written yet: whoever repairs the files finds them as they were closed.
                remove_abort(&inner).unwrap_or_else(|error| tracing::warn!(%error, "abort file stays"));
            }
        })?;
        // A set value would mean a second recovery, which cannot be.
        let _ = inner.recovered.set(recovered);
        inner.write_checkpoint(false)?;
        let progress = Progress::load(&inner.disk, directory, |topic, queue_id| {
            inner.queues.find(topic, queue_id).map_or(0, |queue| queue.max_offset())
        })?;
        let _ = inner.progress.set(progress);
        let store = Self { inner, threads: Mutex::new(Threads::default()) };
        store.start(dispatcher)?;
        Ok(store)
    }

    fn start(&self, dispatcher: dispatch::Dispatcher<D>) -> Result<()> {
        let mut threads = self.threads.lock();
        let inner = &self.inner;
        threads.dispatcher =
            Some(spawn(inner, "ferromq-dispatch", move |inner| dispatch::run(inner, dispatcher))?);
        let interval = match inner.config.flush {
            FlushMode::Async { interval } => Some(interval),
            FlushMode::Sync => None,
        };
        threads.flusher = Some(spawn(inner, "ferromq-flush", move |inner| {
            inner.flusher.run(&inner.log, interval, || inner.arrived.ring());
        })?);
        threads.preparer = Some(spawn(inner, "ferromq-prepare", |inner| {
            while !inner.log.ahead.due.is_stopped() {
                if !inner.log.prepare() {
                    inner.log.ahead.due.wait(|| false, None);
                }
            }
        })?);
        threads.checkpoints = Some(spawn(inner, "ferromq-checkpoint", |inner| inner.run_checkpoints())?);
        let persisted = Arc::clone(inner);
        let progress = ProgressThread::start(inner.config.progress_interval, move || {
            if let Err(error) = persisted.persist_progress() {
                tracing::warn!(%error, "progress not written, trying again");
            }
        });
        threads.progress =
            Some(progress.map_err(|source| StoreError::io("start a thread for", &inner.root, source))?);
        Ok(())
    }

    /// Appends `messages` in order, each its own record. Limits are checked before anything is written.
    ///
    /// The promise of the flush mode holds once [`Self::when_durable`] of `Appended::end` says so.
    /// Errors: `TooLarge`, `Invalid`, `Full`, `Poisoned`, `Closed`, `Io`: nothing was stored.
    pub fn append(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        self.check_open()?;
        let appended = SCRATCH.with_borrow_mut(|bytes| {
            bytes.clear();
            bytes.shrink_to(MAX_SCRATCH);
            if let [message] = messages {
                let pending = [self.encode(message, None, bytes)?];
                return self.inner.log.append(&self.inner.clock, messages, &pending, bytes);
            }
            let mut pending: Vec<Pending<D>> = Vec::with_capacity(messages.len());
            for message in messages {
                let before = pending.last().and_then(|pending| pending.queue.as_ref());
                let next = self.encode(message, before, bytes)?;
                pending.push(next);
            }
            self.inner.log.append(&self.inner.clock, messages, &pending, bytes)
        })?;
        self.inner.appended.fetch_add(messages.len() as u64, Ordering::Relaxed);
        if self.inner.is_sync() {
            self.inner.log.flush_due.ring();
        } else {
            self.inner.arrived.ring();
        }
        Ok(appended)
    }

    /// Checks a message and encodes it; `before` is the queue of the message before it, most often the same.
    fn encode(
        &self,
        message: &NewMessage<'_>,
        before: Option<&Arc<ConsumeQueue<D>>>,
        bytes: &mut Vec<u8>,
    ) -> Result<Pending<D>> {
        let config = &self.inner.config;
        let queue_id = check_name(message.topic, message.queue_id)?;
        let max_record = self.inner.log.max_record_len();
        commit_log::check_limits(message, u64::from(config.max_message_size), max_record, config.store_host)?;
        let encoded = message::encode(message, config.store_host, bytes);
        if !message::is_consumable(encoded.sys_flag) {
            return Ok(Pending { encoded, queue: None });
        }
        let queue = match before {
            Some(queue) if queue.queue_id() == queue_id && queue.topic() == message.topic => {
                Arc::clone(queue)
            }
            _ => self.inner.queues.find_or_make(message.topic, queue_id),
        };
        Ok(Pending { encoded, queue: Some(queue) })
    }

    /// Calls `done` once everything below `end` is as durable as the flush mode promises: at once under
    /// asynchronous flush, after the covering flush under synchronous, with an error when it failed.
    ///
    /// `done` may run on the flushing thread, so it must return quickly.
    pub fn when_durable(&self, end: u64, done: impl FnOnce(Result<()>) + Send + 'static) {
        if self.inner.is_sync() {
            self.inner.flusher.when_durable(&self.inner.log, end, Box::new(done));
        } else {
            done(self.check_sound());
        }
    }

    /// As [`Self::when_durable`], waiting for it.
    pub fn wait_durable(&self, end: u64) -> Result<()> {
        if self.inner.is_sync() {
            self.inner.flusher.wait_durable(&self.inner.log, end)
        } else {
            self.check_sound()
        }
    }

    fn check_sound(&self) -> Result<()> {
        if self.inner.log.is_poisoned() { Err(StoreError::Poisoned) } else { Ok(()) }
    }

    /// Sets the listener told of new messages by the dispatching thread; it must return quickly.
    pub fn on_arrival(&self, listener: impl Fn(&Arrival<'_>) + Send + Sync + 'static) {
        *self.inner.listener.write() = Some(Arc::new(listener));
    }

    /// Counters and positions.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let inner = &self.inner;
        let recovered = inner.recovered.get().copied().unwrap_or_default();
        StoreStats {
            min_physical_offset: inner.log.start(),
            max_physical_offset: inner.log.written(),
            flushed_offset: inner.log.flushed(),
            dispatched_offset: inner.dispatched(),
            appended: inner.appended.load(Ordering::Relaxed),
            flushes: inner.log.flushes(),
            recovered_cut_bytes: recovered.cut_bytes,
            recovered_messages: recovered.messages,
        }
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
        inner.log.close();
        let mut threads = std::mem::take(&mut *self.threads.lock());
        inner.log.flush_due.stop();
        join(threads.flusher.take());
        let flushed = inner.log.flush();
        inner.flusher.end(&inner.log);
        inner.arrived.stop();
        join(threads.dispatcher.take());
        inner.log.ahead.due.stop();
        join(threads.preparer.take());
        inner.checkpoint_due.stop();
        join(threads.checkpoints.take());
        drop(threads);
        let closed = flushed.and_then(|end| {
            inner.write_checkpoint(true)?;
            inner.persist_progress()?;
            if inner.dispatched() == end { mark_closed(inner, end) } else { Ok(()) }
        });
        *inner.listener.write() = None;
        *inner.lock.lock() = None;
        closed
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.inner.is_closed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }

    pub(crate) fn open_inner(&self) -> Option<&Inner<D>> {
        self.check_open().ok().map(|()| &*self.inner)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    pub(crate) fn progress(&self) -> &Progress {
        self.inner.progress()
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
    staging: PathBuf,
    config: StoreConfig,
    clock: Clock,
    lock: D::Lock,
) -> Result<Inner<D>> {
    let mut files = MappedFileQueue::new(
        disk.clone(),
        commit_log::directory(root),
        staging.clone(),
        config.commit_log_file_size,
        Allocation::Reserved,
    );
    files.load()?;
    let is_sync = config.flush == FlushMode::Sync;
    Ok(Inner {
        log: CommitLog::new(disk.clone(), files, &config, is_sync),
        queues: ConsumeQueues::load(&disk, root, staging, &config)?,
        index: Index::load(&disk, root, &config)?,
        checkpoint: Checkpoint::open(&disk, root)?,
        listed: Mutex::new(QueueList::load(&disk, root)?),
        disk,
        root: root.to_path_buf(),
        clock,
        config,
        flusher: Flusher::default(),
        progress: OnceLock::new(),
        arrived: Signal::default(),
        checkpoint_due: Signal::default(),
        dispatched: AtomicU64::new(0),
        dispatched_mark: Mutex::new((0, 0)),
        dirty_queues: Mutex::new(Vec::new()),
        listener: RwLock::new(None),
        appended: AtomicU64::new(0),
        recovered: OnceLock::new(),
        is_closed: AtomicBool::new(false),
        lock: Mutex::new(Some(lock)),
    })
}

/// Makes the name of the store's directory durable, where the directory above may be read at all.
fn sync_parent<D: Disk>(disk: &D, root: &Path) -> Result<()> {
    let Some(parent) = root.parent() else { return Ok(()) };
    match disk.sync_dir(parent) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        done => done.map_err(|source| StoreError::io("flush", parent, source)),
    }
}

fn spawn<D: Disk>(
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
fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread
        && thread.thread().id() != std::thread::current().id()
    {
        // A panic of the thread was printed where it happened.
        let _ = thread.join();
    }
}
