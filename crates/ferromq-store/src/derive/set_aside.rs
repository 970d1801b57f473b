//! Sets aside consume queues, and the index, that cannot be written or read now, so that dispatch continues.
//!
//! Sends to such a queue are refused. Once it can be written, `catch_up` derives its missing entries from the log.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    derive::{arrival::Arrivals, dispatched::Dispatched},
    error::StoreError,
    files::{disk::Disk, store_directory::StoreDirectory},
    log::{
        commit_log::CommitLog,
        damage::{Damage, DamageReason},
    },
    queues::{consume_queue::ConsumeQueue, dirty_queues::DirtyQueues, known_entries::KnownEntries},
    recovery::checkpoint::Checkpoint,
};

/// Pause before the first retry …
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// … which doubles up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A queue that is set aside.
pub(crate) struct SetAsideQueue<D: Disk> {
    pub(crate) queue: Arc<ConsumeQueue<D>>,
    /// The next queue offset to write.
    pub(crate) next: u64,
    /// The queue has the entries of all records before this offset.
    pub(crate) from: u64,
    /// Its files could not be read at open and must be reloaded.
    is_unread: bool,
    /// A walk is bringing it up to date.
    pub(crate) is_catching_up: bool,
    /// Start of the log before retention removed records that the queue lacks.
    lost_from: Option<u64>,
}

/// A queue to retry.
pub(crate) struct Candidate<D: Disk> {
    pub(crate) queue: Arc<ConsumeQueue<D>>,
    /// The next queue offset to write, and a physical offset at or before its record.
    pub(crate) places: (u64, u64),
    /// The known entries of its files, if they must be reloaded.
    pub(crate) unread: Option<KnownEntries>,
}

/// The index while it is set aside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AsideIndex {
    /// Records before this offset have their keys in the index.
    pub(crate) from: u64,
    pub(crate) repair: IndexRepair,
}

/// How the index is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexRepair {
    /// Add the missing keys.
    Add,
    /// Reload its files, which were unusable at open.
    Reload,
    /// Wait for the next open: after a failed flush the content on disk is unknown.
    Reopen,
}

/// When to retry.
struct Retry {
    at: Instant,
    pause: Duration,
}

impl Retry {
    fn soon() -> Self {
        Self { at: Instant::now() + FIRST_PAUSE, pause: FIRST_PAUSE }
    }
}

struct State<D: Disk> {
    queues: Vec<SetAsideQueue<D>>,
    index: Option<AsideIndex>,
    retry: Option<Retry>,
    /// The first record that any file lacked since the last checkpoint began.
    lowest: Option<u64>,
    /// The known entries of queues whose files could not be read at open.
    known: Option<KnownEntries>,
    /// Messages that retention removed before their queue was written, one damage per queue.
    lost: Vec<Damage>,
}

impl<D: Disk> State<D> {
    fn first_from(&self) -> Option<u64> {
        let queues = self.queues.iter().map(|entry| entry.from);
        queues.chain(self.index.as_ref().map(|index| index.from)).min()
    }

    /// Notes that a file lacks records from `from` on.
    fn note_from(&mut self, from: u64) {
        self.lowest = Some(self.lowest.map_or(from, |lowest| lowest.min(from)));
    }
}

/// Everything that is set aside in a store.
pub(crate) struct SetAside<D: Disk> {
    home: Arc<StoreDirectory<D>>,
    log: Arc<CommitLog<D>>,
    checkpoint: Arc<Checkpoint<D>>,
    dirty: Arc<DirtyQueues<D>>,
    dispatched: Arc<Dispatched>,
    arrivals: Arc<Arrivals>,
    /// Whether the store is being opened.
    is_opening: AtomicBool,
    state: Mutex<State<D>>,
    /// Almost always 0, so that callers skip the lock.
    count: AtomicUsize,
}

impl<D: Disk> SetAside<D> {
    pub(crate) fn new(
        home: Arc<StoreDirectory<D>>,
        log: Arc<CommitLog<D>>,
        checkpoint: Arc<Checkpoint<D>>,
        dirty: Arc<DirtyQueues<D>>,
        dispatched: Arc<Dispatched>,
        arrivals: Arc<Arrivals>,
    ) -> Self {
        let (queues, lost) = (Vec::new(), Vec::new());
        let state = State { queues, index: None, retry: None, lowest: None, known: None, lost };
        let (state, count) = (Mutex::new(state), AtomicUsize::new(0));
        let is_opening = AtomicBool::new(true);
        Self { home, log, checkpoint, dirty, dispatched, arrivals, is_opening, state, count }
    }

    /// Ends opening: queues set aside from now on have a known end.
    pub(crate) fn end_opening(&self) {
        self.is_opening.store(false, Ordering::Release);
    }
}

impl<D: Disk> SetAside<D> {
    /// Whether nothing is set aside.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Number of queues that are set aside.
    pub(crate) fn queues(&self) -> u64 {
        if self.is_empty() { 0 } else { self.state.lock().queues.len() as u64 }
    }

    /// The first record that anything set aside may lack.
    pub(crate) fn first_from(&self) -> Option<u64> {
        if self.is_empty() { None } else { self.state.lock().first_from() }
    }

    /// Begins a checkpoint, which must not count records that any file lacks before the checkpoint ends.
    pub(crate) fn begin_checkpoint(&self) {
        let mut state = self.state.lock();
        state.lowest = state.first_from();
    }

    /// As [`Self::first_from`], but since the checkpoint began: entries caught up meanwhile may not be flushed.
    pub(crate) fn lowest_from(&self) -> Option<u64> {
        self.state.lock().lowest
    }

    pub(crate) fn index(&self) -> Option<AsideIndex> {
        if self.is_empty() { None } else { self.state.lock().index }
    }

    /// Whether the index takes keys: not while it lacks earlier ones.
    pub(crate) fn takes_keys(&self) -> bool {
        self.index().is_none_or(|index| index.repair == IndexRepair::Reopen)
    }

    /// Time until the next retry; `None` if nothing is to be retried.
    pub(crate) fn retry_in(&self) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        let state = self.state.lock();
        let is_curable = state.index.as_ref().is_some_and(|index| index.repair != IndexRepair::Reopen);
        let has_work = is_curable || !state.queues.is_empty();
        let retry = state.retry.as_ref().filter(|_| has_work)?;
        Some(retry.at.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn is_retry_due(&self) -> bool {
        self.retry_in().is_some_and(|left| left.is_zero())
    }

    /// Returns those of `dirty` that are not set aside, and unlists the others until they are complete.
    ///
    /// Holds the lock, so that a queue that becomes complete meanwhile is either returned or listed again.
    pub(crate) fn unlist_aside(&self, dirty: Vec<Arc<ConsumeQueue<D>>>) -> Vec<Arc<ConsumeQueue<D>>> {
        let _state = self.state.lock();
        let (aside, dirty): (Vec<_>, Vec<_>) = dirty.into_iter().partition(|queue| queue.marks.is_aside());
        aside.iter().for_each(|queue| queue.unlist());
        dirty
    }

    /// Sets the known entries of files that could not be read at open, for their reload.
    pub(crate) fn set_known(&self, known: KnownEntries) {
        self.state.lock().known = Some(known);
    }

    fn changed(&self, state: &State<D>) {
        self.count.store(state.queues.len() + usize::from(state.index.is_some()), Ordering::Release);
    }
}

impl<D: Disk> SetAside<D> {
    /// Sets a queue aside that cannot write its entries from queue offset `next` on, of records at or after `from`.
    /// Earlier entries stay readable.
    pub(crate) fn put(&self, queue: &Arc<ConsumeQueue<D>>, next: u64, from: u64, error: &StoreError) {
        // No checkpoint flushes a queue set aside, so its unflushed entries are in doubt too.
        let is_flushed = queue.flushed() >= queue.max_offset();
        let from = if is_flushed { from } else { from.min(self.in_doubt_from(queue)) };
        self.enter(queue, (next, from), false, error);
    }

    /// The first record whose entry may not be on disk.
    pub(crate) fn in_doubt_from(&self, queue: &ConsumeQueue<D>) -> u64 {
        let first = queue.read_entry(queue.flushed()).ok().flatten().filter(|entry| !entry.is_filler());
        // The last checkpoint flushed everything before it.
        let noted = u64::try_from(self.checkpoint.marks().durable_end).unwrap_or(0);
        first.map_or(noted.max(self.log.start()), |entry| entry.physical_offset)
    }

    /// Sets a queue aside whose files cannot be read at open; it is not used until they can.
    pub(crate) fn put_unread(&self, queue: &Arc<ConsumeQueue<D>>, error: &StoreError) {
        queue.marks.set_unread();
        let known = self.state.lock().known;
        let from = known.map_or(0, KnownEntries::whole_below).max(self.log.start());
        self.enter(queue, (0, from), true, error);
    }

    fn enter(
        &self,
        queue: &Arc<ConsumeQueue<D>>,
        (next, from): (u64, u64),
        is_unread: bool,
        error: &StoreError,
    ) {
        let mut state = self.state.lock();
        state.note_from(from);
        let is_same = |known: &&mut SetAsideQueue<D>| Arc::ptr_eq(&known.queue, queue);
        if let Some(known) = state.queues.iter_mut().find(is_same) {
            known.next = known.next.min(next);
            known.from = known.from.min(from);
            known.is_unread |= is_unread;
            known.is_catching_up = false;
        } else {
            tracing::error!(
                %error,
                topic = queue.topic(),
                queue_id = queue.queue_id(),
                physical_offset = from,
                "consume queue set aside: sends to it are refused, other queues continue; the store retries"
            );
            let (is_catching_up, lost_from) = (false, None);
            state.queues.push(SetAsideQueue {
                queue: Arc::clone(queue),
                next,
                from,
                is_unread,
                is_catching_up,
                lost_from,
            });
            queue.marks.set_end_unknown(self.is_opening.load(Ordering::Acquire));
            state.retry = Some(Retry::soon());
        }
        queue.marks.set_aside(Some(error.to_string().into()));
        self.changed(&state);
        drop(state);
        self.log.arrived.ring();
    }

    /// Sets the index aside: it lacks the keys of records at or after `from`.
    pub(crate) fn put_index(&self, from: u64, repair: IndexRepair, error: &StoreError) {
        let mut state = self.state.lock();
        state.note_from(from);
        match &mut state.index {
            Some(index) => {
                index.from = index.from.min(from);
                index.repair = if index.repair == IndexRepair::Add { repair } else { index.repair };
            }
            None => {
                tracing::error!(
                    %error,
                    physical_offset = from,
                    "index set aside: new messages are not found by key until it is rebuilt from the commit log"
                );
                state.index = Some(AsideIndex { from, repair });
                state.retry = Some(Retry::soon());
            }
        }
        self.changed(&state);
        drop(state);
        self.log.arrived.ring();
    }

    /// Everything set aside, and the messages lost meanwhile.
    pub(crate) fn damages(&self) -> Vec<Damage> {
        let end = self.dispatched.end();
        let state = self.state.lock();
        let queues = state.queues.iter().map(|entry| Damage {
            file: entry.queue.directory_in(&self.home.root),
            range: entry.from..end.max(entry.from),
            reason: DamageReason::SetAside,
        });
        let index = state.index.iter().map(|index| Damage {
            file: self.home.root.join("index"),
            range: index.from..end.max(index.from),
            reason: DamageReason::SetAside,
        });
        state.lost.iter().cloned().chain(queues).chain(index).collect()
    }

    /// Records that retention removes the log below `log_start`, which a queue set aside may need.
    pub(crate) fn note_removed_log(&self, log_start: u64) {
        if self.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        if let Some(index) = &mut state.index {
            index.from = index.from.max(log_start);
        }
        for entry in state.queues.iter_mut().filter(|entry| entry.from < log_start) {
            tracing::error!(
                topic = entry.queue.topic(),
                queue_id = entry.queue.queue_id(),
                from = entry.from,
                log_start,
                "retention removes a part of the log that a consume queue set aside still needs"
            );
            entry.lost_from.get_or_insert(entry.from);
            entry.from = log_start;
        }
    }

    /// Moves the begin of the queue to `next`, whose record lies at `place`: records from `first` on left the log.
    pub(crate) fn note_lost(&self, queue: &Arc<ConsumeQueue<D>>, (first, next): (u64, u64), place: u64) {
        let mut state = self.state.lock();
        let lost_from = state.queues.iter().find(|entry| Arc::ptr_eq(&entry.queue, queue));
        // Otherwise retention had removed them before the queue was set aside.
        let Some(lost_from) = lost_from.and_then(|entry| entry.lost_from) else { return };
        let (topic, queue_id, file) = (queue.topic(), queue.queue_id(), queue.directory_in(&self.home.root));
        tracing::error!(
            topic,
            queue_id,
            first,
            next,
            "messages of a consume queue that was set aside are lost"
        );
        let reason = DamageReason::Removed { first, count: next - first };
        state.lost.push(Damage { file, range: lost_from..place, reason });
    }

    /// Returns the queues to retry, and counts the attempt.
    pub(crate) fn begin_retry(&self) -> Vec<Candidate<D>> {
        let mut state = self.state.lock();
        if let Some(retry) = &mut state.retry {
            retry.pause = (retry.pause * 2).min(LONGEST_PAUSE);
            retry.at = Instant::now() + retry.pause;
        }
        let known = state.known;
        let wanted = |entry: &SetAsideQueue<D>| Candidate {
            queue: Arc::clone(&entry.queue),
            places: (entry.next, entry.from),
            unread: known.filter(|_| entry.is_unread),
        };
        state.queues.iter().map(wanted).collect()
    }

    /// Begins a walk from `places` for the queue `old`, replaced by `new` if it was reloaded.
    pub(crate) fn begin_catch_up(
        &self,
        old: &Arc<ConsumeQueue<D>>,
        new: &Arc<ConsumeQueue<D>>,
        (next, from): (u64, u64),
    ) {
        let mut state = self.state.lock();
        if let Some(entry) = state.queues.iter_mut().find(|entry| Arc::ptr_eq(&entry.queue, old)) {
            (entry.queue, entry.next, entry.from, entry.is_unread) = (Arc::clone(new), next, from, false);
            entry.is_catching_up = true;
        }
    }

    /// Makes a complete queue accept messages again, unless it failed meanwhile.
    pub(crate) fn reinstate(&self, queue: &Arc<ConsumeQueue<D>>) {
        let appends = self.log.tail.lock();
        let mut state = self.state.lock();
        // List it for a flush first: from then on each checkpoint includes it. The lock keeps others from unlisting it
        // while it counts as set aside.
        if queue.list() {
            self.dirty.add(Arc::clone(queue));
        }
        let is_it = |entry: &SetAsideQueue<D>| Arc::ptr_eq(&entry.queue, queue) && entry.is_catching_up;
        let Some(number) = state.queues.iter().position(is_it) else { return };
        state.queues.swap_remove(number);
        let was_end_unknown = queue.marks.is_end_unknown();
        if was_end_unknown {
            queue.continue_after_entries();
            queue.marks.set_end_unknown(false);
        }
        queue.marks.set_aside(None);
        self.changed(&state);
        drop((state, appends));
        if was_end_unknown {
            // Wakes readers that wait at the end of the queue.
            self.arrivals.notify(&queue.arrival());
        }
        tracing::info!(topic = queue.topic(), queue_id = queue.queue_id(), "consume queue is complete again");
    }

    /// Ends the repair of the index, which has all keys up to the dispatched end.
    pub(crate) fn reinstate_index(&self) {
        let mut state = self.state.lock();
        if state.index.take_if(|index| index.repair != IndexRepair::Reopen).is_some() {
            tracing::info!("index is complete again");
        }
        self.changed(&state);
    }

    /// Notes that keys can be added to the index from this offset on.
    pub(crate) fn set_index_reloaded(&self, from: u64) {
        if let Some(index) = &mut self.state.lock().index {
            (index.from, index.repair) = (from, IndexRepair::Add);
        }
    }
}
