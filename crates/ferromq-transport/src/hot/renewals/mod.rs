//! Renews leases as long as their client is connected: `auto_renew` of gRPC's ReceiveMessage.
//!
//! Consecutive messages of one receive form one run. One task renews the runs that are due, and exists while there are
//! any. Code that ends a lease or changes its expiry removes the lease here first. A lease that ends otherwise (a
//! reset, a receiver that is gone) is detected when it is due. A lease that is no longer renewed expires within
//! [`RENEWED_LEASE`].

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

/// Length of a renewed lease, from the receive and from each renewal: RocketMQ's `defaultInvisibleTimeMills`.
pub(crate) const RENEWED_LEASE: Duration = Duration::from_secs(60);
const RENEWED_MS: i64 = 60_000;
/// How long before its expiry a lease is renewed, and how much earlier it may be renewed together with others: one pass
/// serves all leases that are due within that time.
const RENEW_AHEAD_MS: i64 = 20_000;
const RENEW_TOGETHER_MS: i64 = 5_000;
/// RocketMQ's `renewMaxTimeMillis`: a client that holds a message for longer loses it.
const MAX_HELD_MS: i64 = 3 * 3_600_000;
/// Most messages of a run; about how many leases are renewed, and how many runs are visited, before others get their
/// turn.
const MAX_RUN_LEN: u32 = 256;
const TURN_LEASES: u32 = 256;
const TURN_RUNS: usize = 1_024;

/// A queue, and the queue offset of a message.
type QueuePosition = (u32, u64);

/// Consecutive messages whose leases began together.
struct LeaseRun {
    len: u32,
    pop_time: i64,
    due: i64,
    /// Upgrades as long as the client that received them is connected.
    receiver: Weak<()>,
}

impl LeaseRun {
    /// Returns whether the leases are still to be renewed.
    fn is_renewed(&self, now: i64) -> bool {
        self.receiver.strong_count() > 0 && now.saturating_sub(self.pop_time) < MAX_HELD_MS
    }
}

/// The renewed leases of one group in one topic. Runs do not overlap.
#[derive(Default)]
struct LeaseRuns(BTreeMap<QueuePosition, LeaseRun>);

type TopicRuns = Arc<Mutex<LeaseRuns>>;
type GroupRuns = HashMap<Box<str>, TopicRuns>;

/// The renewed leases of a broker.
pub(crate) struct Renewals {
    /// By group and topic. The task visits every entry.
    runs: RwLock<HashMap<Box<str>, GroupRuns>>,
    /// Whether the task runs; changed with `runs` locked.
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

    fn find_runs(&self, group: &str, topic: &str) -> Option<TopicRuns> {
        self.runs.read().get(group)?.get(topic).cloned()
    }

    /// Stops renewing a lease: nothing renews it after this returns. Returns whether it was to be renewed at `now`.
    pub(super) fn forget(&self, group: &str, topic: &str, handle: &ReceiptHandle, now: i64) -> bool {
        self.find_runs_if_any(group, topic).is_some_and(|runs| {
            let mut runs = runs.lock();
            let is_renewed = runs.renews(handle, now);
            runs.remove(handle.queue_id, handle.queue_offset, handle.pop_time);
            is_renewed
        })
    }

    /// Returns whether a lease is to be renewed at `now`, even if it has expired: the task is late after the machine
    /// slept or the clock jumped.
    pub(super) fn renews(&self, group: &str, topic: &str, handle: &ReceiptHandle, now: i64) -> bool {
        self.find_runs_if_any(group, topic).is_some_and(|runs| runs.lock().renews(handle, now))
    }

    /// Returns whether leases may be renewed, of any group.
    pub(super) fn is_any(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }

    /// As [`Self::find_runs`]; cheap if nothing is renewed.
    fn find_runs_if_any(&self, group: &str, topic: &str) -> Option<TopicRuns> {
        self.is_any().then(|| self.find_runs(group, topic))?
    }

    /// All runs, with their group and topic.
    fn all(&self) -> Vec<(Box<str>, Box<str>, TopicRuns)> {
        let runs = self.runs.read();
        let of_groups =
            runs.iter().flat_map(|(group, topics)| topics.iter().map(move |(t, r)| (group, t, r)));
        of_groups.map(|(group, topic, runs)| (group.clone(), topic.clone(), Arc::clone(runs))).collect()
    }

    /// Removes topics without renewed leases. Returns whether none is left, so that the task must end.
    fn end_if_idle(&self) -> bool {
        let mut runs = self.runs.write();
        runs.retain(|_, topics| {
            // A caller that is about to add a lease holds a reference.
            topics.retain(|_, runs| Arc::strong_count(runs) > 1 || !runs.lock().0.is_empty());
            !topics.is_empty()
        });
        let is_idle = runs.is_empty();
        if is_idle {
            self.is_running.store(false, Ordering::Release);
        }
        is_idle
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

impl Hot {
    /// Renews the leases of one receive, of [`RENEWED_LEASE`] each, as long as `receiver` upgrades.
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
        let runs = renewals.find_runs(group, topic).unwrap_or_else(|| {
            let mut all = renewals.runs.write();
            if !renewals.is_running.swap(true, Ordering::AcqRel) {
                tokio::spawn(renew(Arc::downgrade(self), Arc::clone(&renewals.changed)));
            }
            Arc::clone(all.entry(group.into()).or_default().entry(topic.into()).or_default())
        });
        let due = self.clock.now_ms().saturating_add(RENEWED_MS - RENEW_AHEAD_MS);
        let mut runs = runs.lock();
        for handle in handles {
            runs.add(&handle, due, receiver);
        }
    }

    /// Renews the leases that are due. Returns when the next one is due.
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

/// Renews leases until none is left or the broker is gone.
async fn renew(hot: Weak<Hot>, changed: Arc<Notify>) {
    loop {
        let wait = {
            let Some(hot) = hot.upgrade() else { return };
            let next = hot.renew_due().await;
            if hot.progress.renewals.end_if_idle() {
                return;
            }
            // Leases that are added meanwhile are due no earlier than that.
            let left = next.map_or(RENEWED_MS - RENEW_AHEAD_MS, |due| due.saturating_sub(hot.clock.now_ms()));
            // A manual clock notifies when it moves.
            (!hot.clock.is_manual()).then(|| Duration::from_millis(u64::try_from(left).unwrap_or(0)))
        };
        match wait {
            // A timeout means that a lease is due; both outcomes lead to the next pass.
            Some(wait) => _ = timeout(wait, changed.notified()).await,
            None => changed.notified().await,
        }
    }
}

/// The outcome of one turn.
struct TurnOutcome {
    renewed: u32,
    /// When the first remaining run is due.
    next_due: Option<i64>,
    /// Where to continue, if runs are left.
    rest: Option<QueuePosition>,
}

impl LeaseRuns {
    /// Adds a lease. It replaces an older one of the message: a message has one lease.
    fn add(&mut self, handle: &ReceiptHandle, due: i64, receiver: &Weak<()>) {
        let ReceiptHandle { queue_id, queue_offset: offset, pop_time, .. } = *handle;
        if let Some(old) = self.containing(queue_id, offset).map(|(_, run)| run.pop_time) {
            self.remove(queue_id, offset, old);
        }
        let before = self.0.range_mut((queue_id, 0)..(queue_id, offset)).next_back();
        if let Some((&(_, first), run)) = before
            && first.saturating_add(run.len.into()) == offset
            && (run.pop_time, run.due) == (pop_time, due)
            && run.len < MAX_RUN_LEN
            && run.receiver.ptr_eq(receiver)
        {
            run.len += 1;
            return;
        }
        let run = LeaseRun { len: 1, pop_time, due, receiver: receiver.clone() };
        self.0.insert((queue_id, offset), run);
    }

    /// The run that contains a message, with the run's first offset.
    fn containing(&self, queue_id: u32, offset: u64) -> Option<(u64, &LeaseRun)> {
        let (&(_, first), run) = self.0.range((queue_id, 0)..=(queue_id, offset)).next_back()?;
        (offset - first < run.len.into()).then_some((first, run))
    }

    fn renews(&self, handle: &ReceiptHandle, now: i64) -> bool {
        let found = self.containing(handle.queue_id, handle.queue_offset);
        found.is_some_and(|(_, run)| run.pop_time == handle.pop_time && run.is_renewed(now))
    }

    /// Removes a lease from its run, if it is there.
    fn remove(&mut self, queue_id: u32, offset: u64, pop_time: i64) {
        let found = self.containing(queue_id, offset).filter(|(_, run)| run.pop_time == pop_time);
        let Some((first, _)) = found else { return };
        let Some(run) = self.0.remove(&(queue_id, first)) else { return };
        // Both are below the run's length.
        let before = u32::try_from(offset - first).unwrap_or(run.len);
        let after = run.len.saturating_sub(before.saturating_add(1));
        if after > 0 {
            let rest = LeaseRun { len: after, receiver: run.receiver.clone(), ..run };
            self.0.insert((queue_id, offset + 1), rest);
        }
        if before > 0 {
            self.0.insert((queue_id, first), LeaseRun { len: before, ..run });
        }
    }

    /// Renews the due leases of the next runs by `extend`, and drops runs that are over.
    fn turn(
        &mut self,
        from: QueuePosition,
        now: i64,
        extend: impl Fn(&ReceiptHandle) -> Result<()>,
    ) -> TurnOutcome {
        let mut turn = TurnOutcome { renewed: 0, next_due: None, rest: None };
        let mut visited = 0;
        let keys: Vec<QueuePosition> = self.0.range(from..).take(TURN_RUNS).map(|(key, _)| *key).collect();
        let is_all = keys.len() < TURN_RUNS;
        for &(queue_id, first) in &keys {
            if visited >= TURN_LEASES {
                turn.rest = Some((queue_id, first));
                return turn;
            }
            let Some(run) = self.0.get(&(queue_id, first)) else { continue };
            let is_there = run.receiver.strong_count() > 0;
            if is_there && run.due > now.saturating_add(RENEW_TOGETHER_MS) {
                turn.next_due = [turn.next_due, Some(run.due)].into_iter().flatten().min();
                continue;
            }
            let Some(run) = self.0.remove(&(queue_id, first)) else { continue };
            if !run.is_renewed(now) {
                continue;
            }
            visited += run.len;
            let renewed = self.renew((queue_id, first), &run, now, &extend);
            if renewed > 0 {
                turn.renewed += renewed;
                let due = now.saturating_add(RENEWED_MS - RENEW_AHEAD_MS);
                turn.next_due = [turn.next_due, Some(due)].into_iter().flatten().min();
            }
        }
        if let Some(&(queue_id, first)) = keys.last().filter(|_| !is_all) {
            turn.rest = Some((queue_id, first.saturating_add(1)));
        }
        turn
    }

    /// Renews the leases of a removed run, and adds the renewed ones again. Returns their number.
    fn renew(
        &mut self,
        (queue_id, first): QueuePosition,
        run: &LeaseRun,
        now: i64,
        extend: impl Fn(&ReceiptHandle) -> Result<()>,
    ) -> u32 {
        let due = now.saturating_add(RENEWED_MS - RENEW_AHEAD_MS);
        let mut renewed = 0;
        for queue_offset in first..first.saturating_add(run.len.into()) {
            let (pop_time, invisible_ms) = (run.pop_time, RENEWED_MS);
            let handle = ReceiptHandle { queue_id, queue_offset, pop_time, invisible_ms };
            // If it fails, the lease is over or the store is closed.
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
