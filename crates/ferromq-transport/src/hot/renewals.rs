//! Leases the broker renews for whoever received them, while they are there: `auto_renew` of gRPC's ReceiveMessage.
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
/// RocketMQ's `renewMaxTimeMillis`: whoever holds a message longer loses it.
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
    /// Whoever received them is there while somebody else holds it.
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
            // Whoever is about to add to one holds it.
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
    /// Renews these leases of one receive, of [`RENEWED`] each, as long as somebody holds what `receiver` points to.
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
    /// Adds a lease. An older one of the message is over: nobody is leased a message somebody has.
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
mod tests {
    use std::{net::SocketAddr, path::Path};

    use bytes::Bytes;
    use ferromq_store::{
        MessageStore, StoreConfig, StoreError,
        filter::MessageFilter,
        progress::{Begin, ReceiveRequest},
        read::TransferLimits,
        record::NewMessage,
        time::Clock,
    };
    use proptest::prelude::*;
    use tokio::sync::oneshot;

    use super::*;
    use crate::{ColdHandler, ColdRequest, Demoted, Missing, Reply, Verb, remoting::Fields, tables::Tables};

    #[derive(Debug, Clone)]
    enum Step {
        Receive { queue_id: u32, offset: u64, count: u64, pop_time: i64 },
        End { queue_id: u32, offset: u64, pop_time: i64 },
        Pass(i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..2_u32, 0..12_u64, 1..6_u64, 1..4_i64).prop_map(|(queue_id, offset, count, pop_time)| {
                Step::Receive { queue_id, offset, count, pop_time }
            }),
            (0..2_u32, 0..18_u64, 1..4_i64).prop_map(|(queue_id, offset, pop_time)| Step::End {
                queue_id,
                offset,
                pop_time
            }),
            (0..60_000_i64).prop_map(Step::Pass),
        ]
    }

    /// All leases that would be renewed, by queue and offset.
    fn kept(runs: &Runs) -> BTreeMap<Key, i64> {
        let of_run = |((queue_id, first), run): (&Key, &Run)| {
            let (queue_id, pop_time) = (*queue_id, run.pop_time);
            (*first..first + u64::from(run.len)).map(move |offset| ((queue_id, offset), pop_time))
        };
        let all: Vec<_> = runs.0.iter().flat_map(of_run).collect();
        let count = all.len();
        let kept: BTreeMap<_, _> = all.into_iter().collect();
        assert_eq!(kept.len(), count, "runs overlap");
        kept
    }

    proptest! {
        #[test]
        fn a_lease_is_renewed_until_it_ends_or_its_message_is_received_again(
            steps in prop::collection::vec(step(), 1..40),
        ) {
            let (receiver, mut runs, mut now) = (Arc::new(()), Runs::default(), 0);
            let mut expected = BTreeMap::<Key, i64>::new();
            for step in steps {
                match step {
                    Step::Receive { queue_id, offset, count, pop_time } => {
                        for queue_offset in offset..offset + count {
                            let handle = ReceiptHandle { queue_id, queue_offset, pop_time, invisible_ms: RENEWED_MS };
                            runs.add(&handle, now + RENEWED_MS - AHEAD_MS, &Arc::downgrade(&receiver));
                            expected.insert((queue_id, queue_offset), pop_time);
                        }
                    }
                    Step::End { queue_id, offset, pop_time } => {
                        runs.remove(queue_id, offset, pop_time);
                        if expected.get(&(queue_id, offset)) == Some(&pop_time) {
                            expected.remove(&(queue_id, offset));
                        }
                    }
                    Step::Pass(ms) => {
                        now += ms;
                        // The store has ended every lease of offset 7 by itself.
                        let extend = |handle: &ReceiptHandle| match handle.queue_offset {
                            7 => Err(StoreError::StaleReceipt),
                            _ => Ok(()),
                        };
                        let is_due = runs.0.values().any(|run| run.due <= now + TOGETHER_MS);
                        let turn = runs.turn((0, 0), now, extend);
                        prop_assert!(is_due || turn.renewed == 0);
                        prop_assert!(turn.next_due.is_none_or(|due| due > now + TOGETHER_MS));
                        prop_assert_eq!(turn.next_due, runs.0.values().map(|run| run.due).min());
                        for queue_id in 0..2 {
                            if runs.containing(queue_id, 7).is_none() {
                                expected.remove(&(queue_id, 7));
                            }
                        }
                    }
                }
                prop_assert_eq!(kept(&runs), expected.clone());
            }
            drop(receiver);
            runs.turn((0, 0), now, |_| Ok(()));
            prop_assert!(runs.0.is_empty());
        }
    }

    struct Nothing;

    impl ColdHandler for Nothing {
        fn serves(&self, _verb: &Verb) -> bool {
            false
        }
        fn call(&self, _request: ColdRequest, _reply: Reply) {}
        fn demote(&self, _missing: Missing, _peer: SocketAddr, _done: oneshot::Sender<Demoted>) {}
        fn telemetry(&self, _: u64, _: u64, _: SocketAddr, _: &Fields, _: Option<Bytes>) -> bool {
            true
        }
        fn on_close(&self, _connection: u64) {}
    }

    /// A hot path, and a message that is leased to `receiver`. The test's only thread decides when it is renewed.
    async fn held(directory: &Path, receiver: &Arc<()>) -> (Arc<Hot>, Clock, ReceiptHandle) {
        let clock = Clock::manual(1_000);
        let config = StoreConfig { commit_log_file_size: 1 << 20, disk_reserve: 0, ..StoreConfig::default() };
        let store = Arc::new(MessageStore::open(directory, config, clock.clone()).unwrap());
        let (tables, counters, cold) = (Arc::new(Tables::new()), Arc::default(), Arc::new(Nothing));
        let hot = Hot::new(store, tables, clock.clone(), "broker-a".to_owned(), cold, counters);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let message = NewMessage {
            topic: "flights",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: peer,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"x",
            properties: b"",
        };
        hot.store.log().append(&[message]).unwrap();
        while hot.store.queues().max_offset("flights", 0) == 0 {
            yield_now().await;
        }
        let received = hot.store.groups().receive(&ReceiveRequest {
            group: "audit",
            topic: "flights",
            queue_count: 1,
            first_queue: 0,
            max_count: 1,
            max_bytes: 4 << 20,
            invisible_ms: RENEWED_MS,
            filter: &MessageFilter::All,
            begin: Begin::AtMin,
            order: None,
            max_attempts: 0,
            by_priority: false,
            limits: TransferLimits::NONE,
        });
        let handle = received.unwrap().messages[0].handle;
        hot.renew_while_there("audit", "flights", [handle].into_iter(), &Arc::downgrade(receiver));
        (hot, clock, handle)
    }

    #[tokio::test]
    async fn a_lease_that_is_to_be_renewed_is_good_although_the_clock_jumped() {
        let (directory, receiver) = (tempfile::tempdir().unwrap(), Arc::new(()));
        let (hot, clock, handle) = held(directory.path(), &receiver).await;
        clock.advance(10 * RENEWED_MS);
        hot.progress.check_in_time("audit", "flights", &handle).unwrap();
        hot.progress.ack_in_time("audit", "flights", &handle).unwrap();
        assert_eq!(hot.store.groups().committed_offset("audit", "flights", 0), Some(1));
    }

    #[tokio::test]
    async fn a_lease_that_is_renewed_no_longer_ends() {
        for is_there in [false, true] {
            let (directory, mut receiver) = (tempfile::tempdir().unwrap(), Some(Arc::new(())));
            let (hot, clock, handle) = held(directory.path(), receiver.as_ref().unwrap()).await;
            receiver.take_if(|_| !is_there);
            clock.advance(if is_there { MAX_HELD_MS } else { RENEWED_MS });
            let outcomes = [
                hot.progress.check_in_time("audit", "flights", &handle),
                hot.progress.ack_in_time("audit", "flights", &handle),
            ];
            assert!(outcomes.iter().all(|o| matches!(o, Err(StoreError::StaleReceipt))), "{outcomes:?}");
        }
    }

    #[test]
    fn many_leases_are_renewed_in_turns_each_once() {
        let (receiver, mut runs) = (Arc::new(()), Runs::default());
        for queue_offset in (0..9_000).filter(|offset| offset % 9 != 8) {
            let handle = ReceiptHandle { queue_id: 0, queue_offset, pop_time: 1, invisible_ms: RENEWED_MS };
            runs.add(&handle, RENEWED_MS - AHEAD_MS, &Arc::downgrade(&receiver));
        }
        assert_eq!(runs.0.len(), 1_000, "one entry for messages one after the other");
        let asked = Mutex::new(Vec::new());
        let (mut from, mut turns) = (Some((0, 0)), 0);
        while let Some(start) = from {
            let extend = |handle: &ReceiptHandle| {
                asked.lock().push(handle.queue_offset);
                Ok(())
            };
            let turn = runs.turn(start, RENEWED_MS - AHEAD_MS, extend);
            assert!(turn.renewed < TURN + MAX_RUN);
            from = turn.rest;
            turns += 1;
        }
        assert!(turns > 30, "{turns}");
        assert_eq!(asked.into_inner(), (0..9_000).filter(|offset| offset % 9 != 8).collect::<Vec<_>>());
    }
}
