//! Parks receives and pulls, and wakes them on arrivals.
//!
//! Knows topics, queues and groups by name only; a woken poll looks for messages itself. An arrival wakes one poll of
//! each group; a poll that leaves messages behind wakes the next. So a thousand parked polls cost as many wake-ups as
//! there are batches, not a thousand.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ferromq_store::{derive::Arrival, time::Clock};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, futures::Notified, watch};

use crate::{connections::read_closed, hot::Counters};

/// Longest sleep of the timer: a bound on how late it notices a change of the system clock.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// No expiry is watched.
const NEVER: i64 = i64::MAX;

/// The parked polls of a server; clones share them.
#[derive(Clone)]
pub struct LongPolls(Arc<SharedPolls>);

struct SharedPolls {
    clock: Clock,
    counters: Arc<Counters>,
    /// Topics and groups that were polled, until they are deleted.
    topics: RwLock<HashMap<Box<str>, Arc<TopicPolls>>>,
    timer: OnceLock<()>,
    expiries: Arc<Expiries>,
    closing: watch::Sender<bool>,
}

#[derive(Default)]
struct TopicPolls {
    groups: RwLock<HashMap<Box<str>, GroupReceives>>,
    pulls: RwLock<HashMap<u32, Arc<Notify>>>,
}

/// The receives of one group in one topic: those of any queue, and those of single queues.
#[derive(Default)]
struct GroupReceives {
    any: Arc<GroupPolls>,
    queues: HashMap<u32, Arc<GroupPolls>>,
}

impl GroupReceives {
    fn polls(&self, queue: Option<u32>) -> Option<&Arc<GroupPolls>> {
        queue.map_or(Some(&self.any), |queue| self.queues.get(&queue))
    }

    fn polls_or_new(&mut self, queue: Option<u32>) -> &Arc<GroupPolls> {
        match queue {
            None => &self.any,
            Some(queue) => self.queues.entry(queue).or_default(),
        }
    }
}

/// Receives of one group that wait for the same messages.
struct GroupPolls {
    /// Without a waiting poll it keeps one permit, so that no arrival between a look and a wait is lost.
    work: Notify,
    /// The earliest lease expiry that the timer watches.
    next_expiry: AtomicI64,
    parked: AtomicUsize,
}

impl Default for GroupPolls {
    fn default() -> Self {
        Self { work: Notify::new(), next_expiry: AtomicI64::new(NEVER), parked: AtomicUsize::new(0) }
    }
}

/// Lease expiries that polls wait for, earliest first.
#[derive(Default)]
struct Expiries {
    due: Mutex<BTreeSet<(i64, usize)>>,
    groups: Mutex<HashMap<usize, Weak<GroupPolls>>>,
    changed: Notify,
}

impl LongPolls {
    /// Creates an empty set that follows `clock`.
    #[must_use]
    pub fn new(clock: Clock, counters: Arc<Counters>) -> Self {
        let expiries = Arc::new(Expiries::default());
        let changed = Arc::clone(&expiries);
        clock.on_advance(move || changed.changed.notify_one());
        Self(Arc::new(SharedPolls {
            clock,
            counters,
            topics: RwLock::default(),
            timer: OnceLock::new(),
            expiries,
            closing: watch::Sender::new(false),
        }))
    }

    /// Wakes the polls that new messages can serve; the store's dispatching thread calls it.
    pub fn arrived(&self, arrival: &Arrival<'_>) {
        let Some(topic) = self.0.topics.read().get(arrival.topic).cloned() else { return };
        for group in topic.groups.read().values() {
            group.any.work.notify_one();
            if let Some(polls) = group.queues.get(&arrival.queue_id) {
                polls.work.notify_one();
            }
        }
        if let Some(pulls) = topic.pulls.read().get(&arrival.queue_id) {
            pulls.notify_waiters();
        }
    }

    /// Wakes the pulls of a queue to look again.
    pub(crate) fn wake_pulls(&self, topic: &str, queue_id: u32) {
        let Some(topic) = self.0.topics.read().get(topic).cloned() else { return };
        if let Some(pulls) = topic.pulls.read().get(&queue_id) {
            pulls.notify_waiters();
        }
    }

    /// Wakes the receives of a group in a topic: there may be messages that did not just arrive.
    pub(crate) fn wake_receives(&self, topic: &str, group: &str) {
        let Some(topic) = self.0.topics.read().get(topic).cloned() else { return };
        let groups = topic.groups.read();
        let Some(group) = groups.get(group) else { return };
        // One poll each: a poll that leaves messages behind wakes the next.
        group.any.work.notify_one();
        group.queues.values().for_each(|polls| polls.work.notify_one());
    }

    /// Removes a deleted topic, except groups with waiting polls.
    pub(crate) fn forget_topic(&self, name: &str) {
        let mut topics = self.0.topics.write();
        let Some(topic) = topics.get(name) else { return };
        topic.groups.write().retain(|_, group| !self.0.expiries.forget(group));
        topic.pulls.write().retain(|_, pulls| Arc::strong_count(pulls) > 1);
        // Another holder of the topic is about to wait, which begins under this lock.
        let is_idle = Arc::strong_count(topic) == 1;
        if is_idle && topic.groups.read().is_empty() && topic.pulls.read().is_empty() {
            topics.remove(name);
        }
    }

    /// Removes a deleted group, unless polls wait in it.
    pub(crate) fn forget_group(&self, name: &str) {
        for topic in self.0.topics.read().values() {
            let mut groups = topic.groups.write();
            if groups.get(name).is_some_and(|group| self.0.expiries.forget(group)) {
                groups.remove(name);
            }
        }
    }

    /// Ends all polls, parked now or later: the server stops.
    pub fn close(&self) {
        self.0.closing.send_replace(true);
    }

    /// Resolves once [`Self::close`] was called, or the connection of the request takes no more requests.
    pub(crate) async fn closed(&self) {
        let mut closing = self.0.closing.subscribe();
        tokio::select! {
            // The sender lives in `self`, so the channel cannot be closed.
            _ = closing.wait_for(|closing| *closing) => {}
            () = read_closed::wait() => {}
        }
    }

    /// Returns whether [`Self::closed`] has resolved.
    pub(crate) fn is_closed(&self) -> bool {
        *self.0.closing.borrow() || read_closed::is_closed()
    }

    /// Registers a receive of any queue, or of one, that is about to wait. Look for messages *after* this.
    pub(crate) fn park(&self, topic: &str, group: &str, queue: Option<u32>) -> ParkedReceive {
        self.start_timer();
        let polls = self.topic(topic);
        let found = polls.groups.read().get(group).and_then(|group| group.polls(queue)).cloned();
        let group = found.unwrap_or_else(|| {
            Arc::clone(polls.groups.write().entry(group.into()).or_default().polls_or_new(queue))
        });
        self.0.counters.parked.add(1);
        group.parked.fetch_add(1, Ordering::Relaxed);
        ParkedReceive { polls: self.clone(), group }
    }

    /// Number of receives of a group that wait for messages of any queue, or of the given one.
    pub(crate) fn parked(&self, topic: &str, group: &str, queue: Option<u32>) -> usize {
        let Some(topic) = self.0.topics.read().get(topic).cloned() else { return 0 };
        let groups = topic.groups.read();
        let polls = groups.get(group).and_then(|group| group.polls(queue));
        polls.map_or(0, |polls| polls.parked.load(Ordering::Relaxed))
    }

    /// Registers a pull of one queue that is about to wait. Look for messages *after* waiting has begun.
    pub(crate) fn park_pull(&self, topic: &str, queue_id: u32) -> ParkedPull {
        let polls = self.topic(topic);
        let found = polls.pulls.read().get(&queue_id).cloned();
        let arrivals = found.unwrap_or_else(|| Arc::clone(polls.pulls.write().entry(queue_id).or_default()));
        self.0.counters.parked.add(1);
        ParkedPull { polls: self.clone(), arrivals }
    }

    /// Wakes polls of the group when a lease expires at `expiry_ms`.
    pub(crate) fn lease_ends(&self, topic: &str, group: &str, expiry_ms: i64) {
        let Some(topic) = self.0.topics.read().get(topic).cloned() else { return };
        if let Some(group) = topic.groups.read().get(group) {
            for polls in std::iter::once(&group.any).chain(group.queues.values()) {
                self.0.expiries.watch(polls, expiry_ms);
            }
        }
    }

    fn topic(&self, name: &str) -> Arc<TopicPolls> {
        if let Some(topic) = self.0.topics.read().get(name) {
            return Arc::clone(topic);
        }
        Arc::clone(self.0.topics.write().entry(name.into()).or_default())
    }

    /// Starts the one task for all lease expiries; it ends with the polls. Must be called on a runtime.
    fn start_timer(&self) {
        self.0.timer.get_or_init(|| {
            let (polls, expiries) = (Arc::downgrade(&self.0), Arc::clone(&self.0.expiries));
            tokio::spawn(async move {
                loop {
                    let Some(sleep) = polls.upgrade().map(|inner| expiries.fire(&inner.clock)) else {
                        return;
                    };
                    // An elapsed timeout means that a lease has expired; both outcomes lead to the next pass.
                    let _ = tokio::time::timeout(sleep, expiries.changed.notified()).await;
                }
            });
        });
    }
}

impl Drop for SharedPolls {
    fn drop(&mut self) {
        self.expiries.changed.notify_one();
    }
}

impl Expiries {
    fn watch(&self, group: &Arc<GroupPolls>, expiry_ms: i64) {
        if group.next_expiry.fetch_min(expiry_ms, Ordering::AcqRel) <= expiry_ms {
            return;
        }
        let id = Arc::as_ptr(group) as usize;
        self.groups.lock().entry(id).or_insert_with(|| Arc::downgrade(group));
        let mut due = self.due.lock();
        due.insert((expiry_ms, id));
        if due.first() == Some(&(expiry_ms, id)) {
            drop(due);
            self.changed.notify_one();
        }
    }

    /// Removes a group without waiting polls, and returns whether it did. Polls begin to wait under the caller's lock.
    fn forget(&self, group: &GroupReceives) -> bool {
        let all = || std::iter::once(&group.any).chain(group.queues.values());
        if all().any(|polls| Arc::strong_count(polls) > 1) {
            return false;
        }
        for polls in all() {
            let id = Arc::as_ptr(polls) as usize;
            self.due.lock().retain(|(_, other)| *other != id);
            self.groups.lock().remove(&id);
        }
        true
    }

    /// Wakes one poll of each group with an expired lease. Returns how long to sleep until the next expiry.
    fn fire(&self, clock: &Clock) -> Duration {
        let now = clock.now_ms();
        loop {
            let mut due = self.due.lock();
            let Some(&(at, id)) = due.first() else { return LONGEST_SLEEP };
            if at > now {
                let wait = u64::try_from(at.saturating_sub(now)).unwrap_or(0);
                // A manual clock notifies when it moves.
                return if clock.is_manual() {
                    LONGEST_SLEEP
                } else {
                    Duration::from_millis(wait).min(LONGEST_SLEEP)
                };
            }
            due.pop_first();
            drop(due);
            if let Some(group) = self.groups.lock().get(&id).and_then(Weak::upgrade) {
                // Reset before the poll looks, so that the next expiry it finds is watched.
                group.next_expiry.store(NEVER, Ordering::Release);
                group.work.notify_one();
            }
        }
    }
}

/// A parked receive.
pub(crate) struct ParkedReceive {
    polls: LongPolls,
    group: Arc<GroupPolls>,
}

impl ParkedReceive {
    /// Resolves when there may be messages; a dropped wake-up goes to another receive of the group.
    pub(crate) fn woken(&self) -> Notified<'_> {
        self.group.work.notified()
    }

    /// Wakes the next receive of the group, because messages are left.
    pub(crate) fn pass_on(&self) {
        self.group.work.notify_one();
    }

    /// Wakes a receive of the group when a lease expires at `expiry_ms`.
    pub(crate) fn lease_ends(&self, expiry_ms: i64) {
        self.polls.0.expiries.watch(&self.group, expiry_ms);
    }
}

impl Drop for ParkedReceive {
    fn drop(&mut self) {
        self.group.parked.fetch_sub(1, Ordering::Relaxed);
        self.polls.0.counters.parked.sub(1);
    }
}

/// A parked pull.
pub(crate) struct ParkedPull {
    polls: LongPolls,
    arrivals: Arc<Notify>,
}

impl ParkedPull {
    /// Resolves when messages arrive in the queue after this call.
    pub(crate) fn woken(&self) -> Notified<'_> {
        self.arrivals.notified()
    }
}

impl Drop for ParkedPull {
    fn drop(&mut self) {
        self.polls.0.counters.parked.sub(1);
    }
}

#[cfg(test)]
mod tests;
