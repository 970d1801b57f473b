//! Consume queues, and the index, that cannot be written or read now: dispatch goes on without them.
//!
//! What they lack is in the commit log: `catch_up` derives it again once they can be written. Sends to such a queue are
//! refused meanwhile.

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

/// The pause before the first new try …
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// … which doubles up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// One queue that is set aside.
pub(crate) struct SetAsideQueue<D: Disk> {
    pub(crate) queue: Arc<ConsumeQueue<D>>,
    /// The queue offset that must be written next.
    pub(crate) next: u64,
    /// No record before this place of the log is missing in the queue.
    pub(crate) from: u64,
    /// Its files could not be read at open: they are looked at anew.
    is_unread: bool,
    /// A walk is under way that brings what it lacks.
    pub(crate) is_tried: bool,
    /// Where the log began that retention has removed since.
    lost_from: Option<u64>,
}

/// A queue that is to be tried.
pub(crate) struct Candidate<D: Disk> {
    pub(crate) queue: Arc<ConsumeQueue<D>>,
    /// The queue offset that must be written next, and where its record lies or before.
    pub(crate) places: (u64, u64),
    /// What is known of its files where they are to be read anew.
    pub(crate) unread: Option<KnownEntries>,
}

/// The index while it is set aside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AsideIndex {
    /// Keys of no record before this place are missing.
    pub(crate) from: u64,
    pub(crate) cure: Cure,
}

/// What gives the index back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cure {
    /// The missing keys are added.
    Add,
    /// Its files are opened anew, because they could not be used at open.
    Reload,
    /// Only the next open: what is on the disk is unknown after a failed flush.
    Reopen,
}

/// When to try again.
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
    /// Where the first record lay that something lacked at any moment since the last checkpoint began.
    lowest: Option<u64>,
    /// What is known of the files of queues that could not be read at open.
    known: Option<KnownEntries>,
    /// Messages that retention removed before their queue was written, of each queue that lost some.
    lost: Vec<Damage>,
}

impl<D: Disk> State<D> {
    fn first_from(&self) -> Option<u64> {
        let queues = self.queues.iter().map(|entry| entry.from);
        queues.chain(self.index.as_ref().map(|index| index.from)).min()
    }

    /// Records at or after `from` are missing in something from now on.
    fn note_from(&mut self, from: u64) {
        self.lowest = Some(self.lowest.map_or(from, |lowest| lowest.min(from)));
    }
}

/// What is set aside in a store.
pub(crate) struct SetAside<D: Disk> {
    home: Arc<StoreDirectory<D>>,
    log: Arc<CommitLog<D>>,
    checkpoint: Arc<Checkpoint<D>>,
    dirty: Arc<DirtyQueues<D>>,
    dispatched: Arc<Dispatched>,
    arrivals: Arc<Arrivals>,
    /// The store is being opened.
    is_opening: AtomicBool,
    state: Mutex<State<D>>,
    /// Almost always 0: then nothing else is looked at.
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

    /// The store is open: a queue that is set aside from now on has a known end.
    pub(crate) fn end_opening(&self) {
        self.is_opening.store(false, Ordering::Release);
    }
}

impl<D: Disk> SetAside<D> {
    /// Says whether nothing is set aside.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// How many queues are set aside.
    pub(crate) fn queues(&self) -> u64 {
        if self.is_empty() { 0 } else { self.state.lock().queues.len() as u64 }
    }

    /// Records before this place of the log are missing in nothing that is set aside.
    pub(crate) fn first_from(&self) -> Option<u64> {
        if self.is_empty() { None } else { self.state.lock().first_from() }
    }

    /// A checkpoint begins: it counts no record that something lacks now, or lacks at any moment until its end.
    pub(crate) fn begin_checkpoint(&self) {
        let mut state = self.state.lock();
        state.lowest = state.first_from();
    }

    /// As [`Self::first_from`], at any moment since the checkpoint began: what came back meanwhile may not be flushed.
    pub(crate) fn lowest_from(&self) -> Option<u64> {
        self.state.lock().lowest
    }

    pub(crate) fn index(&self) -> Option<AsideIndex> {
        if self.is_empty() { None } else { self.state.lock().index }
    }

    /// Says whether the index takes keys: not while it lacks some that come before them.
    pub(crate) fn takes_keys(&self) -> bool {
        self.index().is_none_or(|index| index.cure == Cure::Reopen)
    }

    /// How long to wait before the next try; `None` where nothing is to be tried.
    pub(crate) fn retry_in(&self) -> Option<Duration> {
        if self.is_empty() {
            return None;
        }
        let state = self.state.lock();
        let is_curable = state.index.as_ref().is_some_and(|index| index.cure != Cure::Reopen);
        let has_work = is_curable || !state.queues.is_empty();
        let retry = state.retry.as_ref().filter(|_| has_work)?;
        Some(retry.at.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn is_retry_due(&self) -> bool {
        self.retry_in().is_some_and(|left| left.is_zero())
    }

    /// Those of `dirty` that are not set aside; the others are listed again when they are back.
    ///
    /// With the lock of what is set aside: a queue that comes back meanwhile is in the answer, or is listed again.
    pub(crate) fn unlist_aside(&self, dirty: Vec<Arc<ConsumeQueue<D>>>) -> Vec<Arc<ConsumeQueue<D>>> {
        let _state = self.state.lock();
        let (aside, dirty): (Vec<_>, Vec<_>) = dirty.into_iter().partition(|queue| queue.marks.is_aside());
        aside.iter().for_each(|queue| queue.unlist());
        dirty
    }

    /// Says what is known of files that could not be read at open, for when they can be.
    pub(crate) fn set_known(&self, known: KnownEntries) {
        self.state.lock().known = Some(known);
    }

    fn changed(&self, state: &State<D>) {
        self.count.store(state.queues.len() + usize::from(state.index.is_some()), Ordering::Release);
    }
}

impl<D: Disk> SetAside<D> {
    /// Sets a queue aside whose entries from the queue offset `next` on, of records at or after `from`, cannot be
    /// written. Entries below stay readable.
    pub(crate) fn put(&self, queue: &Arc<ConsumeQueue<D>>, next: u64, from: u64, error: &StoreError) {
        // While it is set aside no checkpoint flushes it: entries that were written and not flushed are in doubt, too.
        let is_flushed = queue.flushed() >= queue.max_offset();
        let from = if is_flushed { from } else { from.min(self.in_doubt_from(queue)) };
        self.enter(queue, (next, from), false, error);
    }

    /// Where the first record lies whose entry may not be on the disk.
    pub(crate) fn in_doubt_from(&self, queue: &ConsumeQueue<D>) -> u64 {
        let first = queue.read_entry(queue.flushed()).ok().flatten().filter(|entry| !entry.is_filler());
        // Before the last checkpoint nothing is in doubt.
        let noted = u64::try_from(self.checkpoint.marks().durable_end).unwrap_or(0);
        first.map_or(noted.max(self.log.start()), |entry| entry.physical_offset)
    }

    /// Sets a queue aside whose files cannot be read at open; it is neither read nor written until they can.
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
            known.is_tried = false;
        } else {
            tracing::error!(
                %error,
                topic = queue.topic(),
                queue_id = queue.queue_id(),
                physical_offset = from,
                "consume queue set aside: sends to it are refused, other queues go on; it is tried again"
            );
            let (is_tried, lost_from) = (false, None);
            state.queues.push(SetAsideQueue {
                queue: Arc::clone(queue),
                next,
                from,
                is_unread,
                is_tried,
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

    /// Sets the index aside: keys of records at or after `from` are not in it.
    pub(crate) fn put_index(&self, from: u64, cure: Cure, error: &StoreError) {
        let mut state = self.state.lock();
        state.note_from(from);
        match &mut state.index {
            Some(index) => {
                index.from = index.from.min(from);
                index.cure = if index.cure == Cure::Add { cure } else { index.cure };
            }
            None => {
                tracing::error!(
                    %error,
                    physical_offset = from,
                    "index set aside: new messages are not found by key; it is redone from the commit log"
                );
                state.index = Some(AsideIndex { from, cure });
                state.retry = Some(Retry::soon());
            }
        }
        self.changed(&state);
        drop(state);
        self.log.arrived.ring();
    }

    /// What is set aside, and what was lost meanwhile.
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

    /// Retention removes the log below `log_start`, which something that is set aside may still need.
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
                "retention removes a part of the log that a consume queue set aside is not derived from yet"
            );
            entry.lost_from.get_or_insert(entry.from);
            entry.from = log_start;
        }
    }

    /// The queue begins at `next`, whose record lies at `place`: what it had from `first` on is not in the log any more.
    pub(crate) fn note_lost(&self, queue: &Arc<ConsumeQueue<D>>, (first, next): (u64, u64), place: u64) {
        let mut state = self.state.lock();
        let lost_from = state.queues.iter().find(|entry| Arc::ptr_eq(&entry.queue, queue));
        // Without it retention had taken them before.
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

    /// The queues that are to be brought up to date, and counts the try.
    pub(crate) fn begin_try(&self) -> Vec<Candidate<D>> {
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

    /// A walk begins that brings the queue `old` up to date, as `new` where it was read anew, from these places on.
    pub(crate) fn set_tried(
        &self,
        old: &Arc<ConsumeQueue<D>>,
        new: &Arc<ConsumeQueue<D>>,
        (next, from): (u64, u64),
    ) {
        let mut state = self.state.lock();
        if let Some(entry) = state.queues.iter_mut().find(|entry| Arc::ptr_eq(&entry.queue, old)) {
            (entry.queue, entry.next, entry.from, entry.is_unread) = (Arc::clone(new), next, from, false);
            entry.is_tried = true;
        }
    }

    /// The queue has all that was dispatched: it takes messages again, unless something failed meanwhile.
    pub(crate) fn bring_back(&self, queue: &Arc<ConsumeQueue<D>>) {
        let appends = self.log.tail.lock();
        let mut state = self.state.lock();
        // First listed for a flush: from then on no checkpoint counts without it. With the lock, so that none drops it
        // from the list meanwhile because it is set aside still.
        if queue.list() {
            self.dirty.add(Arc::clone(queue));
        }
        let is_it = |entry: &SetAsideQueue<D>| Arc::ptr_eq(&entry.queue, queue) && entry.is_tried;
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
            // What waits for the end looks again.
            self.arrivals.tell(&queue.arrival());
        }
        tracing::info!(topic = queue.topic(), queue_id = queue.queue_id(), "consume queue is complete again");
    }

    /// The index has the keys of all that was dispatched.
    pub(crate) fn bring_index_back(&self) {
        let mut state = self.state.lock();
        if state.index.take_if(|index| index.cure != Cure::Reopen).is_some() {
            tracing::info!("index is complete again");
        }
        self.changed(&state);
    }

    /// The index can be added to again from this place on.
    pub(crate) fn set_index_reloaded(&self, from: u64) {
        if let Some(index) = &mut self.state.lock().index {
            (index.from, index.cure) = (from, Cure::Add);
        }
    }
}
