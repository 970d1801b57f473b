//! Leases that the broker renews as long as their client is connected: `auto_renew` of gRPC's ReceiveMessage.
//!
//! Messages one after the other of one receive are one entry. One task renews those that are due and is there while
//! there are any. What ends a lease, or gives it another end, takes it out first; what ends otherwise (a reset, a
//! receiver that is gone) is found out when it is due, and a lease that is no longer renewed ends within
//! [`RENEWED`].

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ferromq_store::{Result, progress::ReceiptHandle};
use parking_lot::{Mutex, RwLock};
use tokio::{sync::Notify, task::yield_now, time::timeout};

use super::Hot;

/// How long such a lease lasts, from the receive and from each renewal: RocketMQ's `defaultInvisibleTimeMills`.
pub(crate) const RENEWED: Duration = Duration::from_secs(60);
const RENEWED_MS: i64 = 60_000;
/// How long before its end a lease is renewed, and how much earlier it may be where others are: one look serves all
/// that are due within that time.
const AHEAD_MS: i64 = 20_000;
const TOGETHER_MS: i64 = 5_000;
/// RocketMQ's `renewMaxTimeMillis`: a client that holds a message longer loses it.
const MAX_HELD_MS: i64 = 3 * 3_600_000;
/// Messages of one entry, and about how many are renewed, and entries looked at, before others have their turn.
const MAX_RUN: u32 = 256;
const TURN: u32 = 256;
const TURN_RUNS: usize = 1_024;

/// Queue and offset of the first message.
type Key = (u32, u64);

/// Messages one after the other whose leases began together.
struct Run {
    len: u32,
    pop_time: i64,
    due: i64,
    /// The client that received them is connected as long as this upgrades.
    receiver: Weak<()>,
}

impl Run {
    /// Says whether its leases are still to be renewed.
    fn goes_on(&self, now: i64) -> bool {
        self.receiver.strong_count() > 0 && now.saturating_sub(self.pop_time) < MAX_HELD_MS
    }
}

/// The renewed leases of one group in one topic. Runs do not overlap.
#[derive(Default)]
struct Runs(BTreeMap<Key, Run>);

type OfTopic = Arc<Mutex<Runs>>;
type OfGroup = HashMap<Box<str>, OfTopic>;

/// The renewed leases of a broker.
pub(crate) struct Renewals {
    /// By group and topic; one that is there has the task look at it.
    runs: RwLock<HashMap<Box<str>, OfGroup>>,
    /// Whether the task is there; changed with `runs` locked.
    is_running: AtomicBool,
    changed: Arc<Notify>,
}

impl Renewals {
    pub(super) fn new(clock: &ferromq_store::time::Clock) -> Self {
        let changed = Arc::<Notify>::default();
        let listener = Arc::clone(&changed);
        clock.on_advance(move || listener.notify_one());
        Self { runs: RwLock::default(), is_running: AtomicBool::new(false), changed }
    }

    fn of_topic(&self, group: &str, topic: &str) -> Option<OfTopic> {
        self.runs.read().get(group)?.get(topic).cloned()
    }

    /// Stops renewing a lease; nothing renews it once this returned. Says whether it was to be renewed at `now`.
    pub(super) fn forget(&self, group: &str, topic: &str, handle: &ReceiptHandle, now: i64) -> bool {
        self.runs_of(group, topic).is_some_and(|runs| {
            let mut runs = runs.lock();
            let is_renewed = runs.renews(handle, now);
            runs.remove(handle.queue_id, handle.queue_offset, handle.pop_time);
            is_renewed
        })
    }

    /// Says whether a lease is to be renewed at `now`, though its end may have passed: the task is late after the machine
    /// slept, or the clock jumped.
    pub(super) fn renews(&self, group: &str, topic: &str, handle: &ReceiptHandle, now: i64) -> bool {
        self.runs_of(group, topic).is_some_and(|runs| runs.lock().renews(handle, now))
    }

    /// As [`Self::of_topic`]; cheap where nothing is renewed.
    fn runs_of(&self, group: &str, topic: &str) -> Option<OfTopic> {
        self.is_running.load(Ordering::Acquire).then(|| self.of_topic(group, topic))?
    }

    /// All there are, with their group and topic.
    fn all(&self) -> Vec<(Box<str>, Box<str>, OfTopic)> {
        let runs = self.runs.read();
        let of_groups =
            runs.iter().flat_map(|(group, topics)| topics.iter().map(move |(t, r)| (group, t, r)));
        of_groups.map(|(group, topic, runs)| (group.clone(), topic.clone(), Arc::clone(runs))).collect()
    }

    /// Forgets the topics nothing is renewed of; says whether there are none, and the task is to end.
    fn is_over(&self) -> bool {
        let mut runs = self.runs.write();
        runs.retain(|_, topics| {
            // A caller that is about to add to one holds it.
            topics.retain(|_, runs| Arc::strong_count(runs) > 1 || !runs.lock().0.is_empty());
            !topics.is_empty()
        });
        let is_over = runs.is_empty();
        if is_over {
            self.is_running.store(false, Ordering::Release);
        }
        is_over
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

impl Hot {
    /// Renews these leases of one receive, of [`RENEWED`] each, as long as `receiver` upgrades.
    ///
    /// Must be called on a runtime.
    pub(crate) fn renew_while_there(
        self: &Arc<Self>,
        group: &str,
        topic: &str,
        handles: impl Iterator<Item = ReceiptHandle>,
        receiver: &Weak<()>,
    ) {
        let renewals = &self.progress.renewals;
        let runs = renewals.of_topic(group, topic).unwrap_or_else(|| {
            let mut all = renewals.runs.write();
            if !renewals.is_running.swap(true, Ordering::AcqRel) {
                tokio::spawn(renew(Arc::downgrade(self), Arc::clone(&renewals.changed)));
            }
            Arc::clone(all.entry(group.into()).or_default().entry(topic.into()).or_default())
        });
        let due = self.clock.now_ms().saturating_add(RENEWED_MS - AHEAD_MS);
        let mut runs = runs.lock();
        for handle in handles {
            runs.add(&handle, due, receiver);
        }
    }

    /// Renews what is due; says when the next is.
    async fn renew_due(&self) -> Option<i64> {
        let (now, mut next) = (self.clock.now_ms(), None::<i64>);
        for (group, topic, runs) in self.progress.renewals.all() {
            let mut from = Some((0, 0));
            while let Some(start) = from {
                let extend =
                    |handle: &ReceiptHandle| self.store.groups().extend(&group, &topic, handle, RENEWED_MS);
                let turn = runs.lock().turn(start, now, extend);
                self.counters.renewed.add(turn.renewed.into());
                next = [next, turn.next_due].into_iter().flatten().min();
                from = turn.rest;
                yield_now().await;
            }
        }
        next
    }
}

/// Renews what is due until there is nothing to renew, or no broker.
async fn renew(hot: Weak<Hot>, changed: Arc<Notify>) {
    loop {
        let wait = {
            let Some(hot) = hot.upgrade() else { return };
            let next = hot.renew_due().await;
            if hot.progress.renewals.is_over() {
                return;
            }
            // Nothing that is added meanwhile is due earlier than one lease after now.
            let left = next.map_or(RENEWED_MS - AHEAD_MS, |due| due.saturating_sub(hot.clock.now_ms()));
            // A manual clock says by itself when it moves.
            (!hot.clock.is_manual()).then(|| Duration::from_millis(u64::try_from(left).unwrap_or(0)))
        };
        match wait {
            // A timeout means that something is due; both outcomes lead to the next look.
            Some(wait) => _ = timeout(wait, changed.notified()).await,
            None => changed.notified().await,
        }
    }
}

/// What became of some runs.
struct Turn {
    renewed: u32,
    /// When the first of those that are left is due.
    next_due: Option<i64>,
    /// Where to go on, if that is not all.
    rest: Option<Key>,
}

impl Runs {
    /// Adds a lease. An older one of the message is over: a message has one lease.
    fn add(&mut self, handle: &ReceiptHandle, due: i64, receiver: &Weak<()>) {
        let ReceiptHandle { queue_id, queue_offset: offset, pop_time, .. } = *handle;
        if let Some(old) = self.containing(queue_id, offset).map(|(_, run)| run.pop_time) {
            self.remove(queue_id, offset, old);
        }
        let before = self.0.range_mut((queue_id, 0)..(queue_id, offset)).next_back();
        if let Some((&(_, first), run)) = before
            && first.saturating_add(run.len.into()) == offset
            && (run.pop_time, run.due) == (pop_time, due)
            && run.len < MAX_RUN
            && run.receiver.ptr_eq(receiver)
        {
            run.len += 1;
            return;
        }
        let run = Run { len: 1, pop_time, due, receiver: receiver.clone() };
        self.0.insert((queue_id, offset), run);
    }

    /// The run a message is of, with its first offset.
    fn containing(&self, queue_id: u32, offset: u64) -> Option<(u64, &Run)> {
        let (&(_, first), run) = self.0.range((queue_id, 0)..=(queue_id, offset)).next_back()?;
        (offset - first < run.len.into()).then_some((first, run))
    }

    fn renews(&self, handle: &ReceiptHandle, now: i64) -> bool {
        let found = self.containing(handle.queue_id, handle.queue_offset);
        found.is_some_and(|(_, run)| run.pop_time == handle.pop_time && run.goes_on(now))
    }

    /// Takes a lease out of its run, if it is there.
    fn remove(&mut self, queue_id: u32, offset: u64, pop_time: i64) {
        let found = self.containing(queue_id, offset).filter(|(_, run)| run.pop_time == pop_time);
        let Some((first, _)) = found else { return };
        let Some(run) = self.0.remove(&(queue_id, first)) else { return };
        // Both are below the run's length.
        let before = u32::try_from(offset - first).unwrap_or(run.len);
        let after = run.len.saturating_sub(before.saturating_add(1));
        if after > 0 {
            let rest = Run { len: after, receiver: run.receiver.clone(), ..run };
            self.0.insert((queue_id, offset + 1), rest);
        }
        if before > 0 {
            self.0.insert((queue_id, first), Run { len: before, ..run });
        }
    }

    /// Renews by `extend` what is due of the next runs, and drops what is over.
    fn turn(&mut self, from: Key, now: i64, extend: impl Fn(&ReceiptHandle) -> Result<()>) -> Turn {
        let mut turn = Turn { renewed: 0, next_due: None, rest: None };
        let mut asked = 0;
        let keys: Vec<Key> = self.0.range(from..).take(TURN_RUNS).map(|(key, _)| *key).collect();
        let is_all = keys.len() < TURN_RUNS;
        for &(queue_id, first) in &keys {
            if asked >= TURN {
                turn.rest = Some((queue_id, first));
                return turn;
            }
            let Some(run) = self.0.get(&(queue_id, first)) else { continue };
            let is_there = run.receiver.strong_count() > 0;
            if is_there && run.due > now.saturating_add(TOGETHER_MS) {
                turn.next_due = [turn.next_due, Some(run.due)].into_iter().flatten().min();
                continue;
            }
            let Some(run) = self.0.remove(&(queue_id, first)) else { continue };
            if !run.goes_on(now) {
                continue;
            }
            asked += run.len;
            let renewed = self.renew((queue_id, first), &run, now, &extend);
            if renewed > 0 {
                turn.renewed += renewed;
                let due = now.saturating_add(RENEWED_MS - AHEAD_MS);
                turn.next_due = [turn.next_due, Some(due)].into_iter().flatten().min();
            }
        }
        if let Some(&(queue_id, first)) = keys.last().filter(|_| !is_all) {
            turn.rest = Some((queue_id, first.saturating_add(1)));
        }
        turn
    }

    /// Renews the leases of a run that was taken out and adds those that are held; says how many.
    fn renew(
        &mut self,
        (queue_id, first): Key,
        run: &Run,
        now: i64,
        extend: impl Fn(&ReceiptHandle) -> Result<()>,
    ) -> u32 {
        let due = now.saturating_add(RENEWED_MS - AHEAD_MS);
        let mut renewed = 0;
        for queue_offset in first..first.saturating_add(run.len.into()) {
            let (pop_time, invisible_ms) = (run.pop_time, RENEWED_MS);
            let handle = ReceiptHandle { queue_id, queue_offset, pop_time, invisible_ms };
            // Where it fails the lease is over, or the store is closed.
            if extend(&handle).is_ok() {
                self.add(&handle, due, &run.receiver);
                renewed += 1;
            }
        }
        renewed
    }
}

#[cfg(test)]
mod tests;
