//! Ordered receives as in RocketMQ: all messages are redelivered from the first unacknowledged one on.
//!
//! The model is RocketMQ's `OrderInfo`: the offsets of the last receive, an acknowledgement bit for each, and how often
//! each was consumed before.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use common::{ALL, asynchronous, copy_as_killed, message, settle};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    progress::{Begin, Leased, Ordered, ReceiptHandle, ReceiveRequest},
    read::TransferLimits,
    time::Clock,
};
use proptest::prelude::*;
use tempfile::TempDir;

const START: i64 = 1_700_000_000_000;
const LEASE: i64 = 10_000;

/// Writes progress at close only, so that a test knows what a killed store has on disk.
fn open(directory: &Path, clock: &Clock) -> MessageStore {
    let config = StoreConfig { progress_interval: Duration::from_secs(3_600), ..asynchronous() };
    MessageStore::open(directory, config, clock.clone()).unwrap()
}

fn fresh(count: usize) -> (TempDir, Clock, MessageStore) {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, count);
    (directory, clock, store)
}

fn send(store: &MessageStore, count: usize) {
    (0..count).for_each(|_| drop(store.log().append(&[message("t", 0, b"x", b"")]).unwrap()));
    settle(store);
}

fn request(max_count: usize, attempt_id: Option<&'static str>, from_first: bool) -> ReceiveRequest<'static> {
    ReceiveRequest {
        group: "g",
        topic: "t",
        queue_count: 1,
        first_queue: 0,
        max_count,
        max_bytes: 4 << 20,
        invisible_ms: LEASE,
        filter: ALL,
        begin: Begin::AtMin,
        order: Some(Ordered { attempt_id, from_first }),
        max_attempts: 0,
        by_priority: false,
        limits: TransferLimits::NONE,
    }
}

fn receive(store: &MessageStore, max_count: usize, attempt_id: Option<&'static str>) -> Vec<Leased> {
    common::receive(store, &request(max_count, attempt_id, true)).unwrap().messages
}

fn seen(messages: &[Leased]) -> Vec<(u64, u32)> {
    messages.iter().map(|leased| (leased.handle.queue_offset, leased.attempt)).collect()
}

fn ack(store: &MessageStore, leased: &Leased) {
    store.groups().ack("g", "t", &leased.handle).unwrap();
}

#[test]
fn an_ordered_queue_delivers_like_a_proxy_of_rocketmq() {
    // Measured with RocketMQ 5.5.0: a queue of six messages, receives by attempt id.
    let (_directory, clock, store) = fresh(6);
    let first = receive(&store, 4, Some("a"));
    assert_eq!(seen(&first), [(0, 1), (1, 1), (2, 1), (3, 1)]);
    ack(&store, &first[1]);
    ack(&store, &first[2]);
    assert_eq!(seen(&receive(&store, 2, Some("a"))), [(0, 1), (1, 1)], "the same attempt does not wait");
    assert!(receive(&store, 4, Some("b")).is_empty());
    clock.advance(LEASE + 1);
    let third = receive(&store, 6, Some("c"));
    assert_eq!(seen(&third), [(0, 2), (1, 2), (2, 1), (3, 1), (4, 1), (5, 1)]);
    assert!(matches!(store.groups().ack("g", "t", &first[3].handle), Err(StoreError::StaleReceipt)));
    third[1..].iter().for_each(|leased| ack(&store, leased));
    assert!(receive(&store, 6, Some("d")).is_empty(), "the first one is still leased");
    clock.advance(LEASE);
    let fourth = receive(&store, 2, Some("d"));
    assert_eq!(seen(&fourth), [(0, 3), (1, 3)], "an acknowledged delivery counts as an attempt, too");
    fourth.iter().for_each(|leased| ack(&store, leased));
    let fifth = receive(&store, 6, Some("e"));
    assert_eq!(seen(&fifth), [(2, 1), (3, 1), (4, 1), (5, 1)]);
    fifth.iter().for_each(|leased| ack(&store, leased));
    assert_eq!(store.groups().committed_offset("g", "t", 0), Some(6));
    assert!(receive(&store, 6, Some("f")).is_empty());
}

#[test]
fn messages_delivered_too_often_are_dead_acknowledged_or_not() {
    // As measured: if the first message of a batch fails, the others are redelivered and die with it.
    let (_directory, clock, store) = fresh(4);
    for attempt in 1..=2 {
        let batch =
            common::receive(&store, &ReceiveRequest { max_attempts: 2, ..request(3, None, true) }).unwrap();
        assert_eq!(seen(&batch.messages), [(0, attempt), (1, attempt), (2, attempt)]);
        batch.messages[1..].iter().for_each(|leased| ack(&store, leased));
        clock.advance(LEASE);
    }
    for offset in 0..3 {
        let found =
            common::receive(&store, &ReceiveRequest { max_attempts: 2, ..request(3, None, true) }).unwrap();
        assert_eq!((seen(&found.dead), found.messages.len(), found.more), (vec![(offset, 2)], 0, true));
        ack(&store, &found.dead[0]);
    }
    let left =
        common::receive(&store, &ReceiveRequest { max_attempts: 2, ..request(3, None, true) }).unwrap();
    assert_eq!(seen(&left.messages), [(3, 1)]);
}

#[test]
fn dead_messages_that_were_not_copied_are_dead_again() {
    let (_directory, clock, store) = fresh(2);
    ack(&store, &receive(&store, 2, None)[1]);
    clock.advance(LEASE);
    let last = ReceiveRequest { max_attempts: 1, ..request(2, None, true) };
    assert_eq!(seen(&common::receive(&store, &last).unwrap().dead), [(0, 1)]);
    assert!(common::receive(&store, &last).unwrap().dead.is_empty(), "they are being copied");
    clock.advance(30_000);
    assert_eq!(seen(&common::receive(&store, &last).unwrap().dead), [(0, 1)]);
}

#[test]
fn a_receive_that_is_full_leaves_the_leases_of_the_other_queues() {
    let (directory, clock, store) = fresh(2);
    store.log().append(&[message("t", 1, b"x", b"")]).unwrap();
    settle(&store);
    let of_both = |count, store: &MessageStore| {
        let both = ReceiveRequest { queue_count: 2, ..request(count, None, true) };
        common::receive(store, &both).unwrap().messages
    };
    let first = of_both(9, &store);
    assert_eq!(seen(&first), [(0, 1), (1, 1), (0, 1)]);
    clock.advance(LEASE);
    let second = of_both(2, &store);
    assert_eq!(seen(&second), [(0, 2), (1, 2)]);
    assert!(store.groups().holds("g", "t", &first[2].handle));
    second.iter().for_each(|leased| ack(&store, leased));
    store.close().unwrap();
    drop(store);
    let store = open(directory.path(), &clock);
    assert_eq!(seen(&of_both(9, &store)), [(0, 2)]);
}

#[test]
fn messages_acknowledged_before_the_group_was_ordered_are_not_redelivered() {
    let (directory, clock, store) = fresh(6);
    let before =
        common::receive(&store, &ReceiveRequest { order: None, ..request(3, None, true) }).unwrap().messages;
    ack(&store, &before[1]);
    ack(&store, &before[2]);
    clock.advance(LEASE);
    let first = receive(&store, 3, None);
    assert_eq!(seen(&first), [(0, 2), (3, 1), (4, 1)]);
    ack(&store, &first[2]);
    clock.advance(LEASE);
    store.close().unwrap();
    drop(store);
    let store = open(directory.path(), &clock);
    assert_eq!(seen(&receive(&store, 9, None)), [(0, 3), (3, 2), (4, 2), (5, 1)]);
}

#[test]
fn each_kind_of_receive_continues_where_the_other_left_the_queue() {
    let (_directory, clock, store) = fresh(5);
    let generous = |count| common::receive(&store, &request(count, None, false)).unwrap().messages;
    let first = generous(3);
    ack(&store, &first[1]);
    clock.advance(LEASE);
    let second = receive(&store, 3, None);
    assert_eq!(seen(&second), [(0, 2), (1, 2), (2, 2)]);
    ack(&store, &second[1]);
    ack(&store, &second[2]);
    clock.advance(LEASE);
    let third = generous(9);
    assert_eq!(seen(&third), [(0, 3), (3, 1), (4, 1)], "acknowledged once more, and done");
    third.iter().for_each(|leased| ack(&store, leased));
    assert_eq!(store.groups().committed_offset("g", "t", 0), Some(5));
    assert!(receive(&store, 3, None).is_empty());
}

#[test]
fn acknowledgements_survive_a_restart_and_are_in_javas_file() {
    let (directory, clock, store) = fresh(5);
    let first = receive(&store, 4, Some("a"));
    ack(&store, &first[1]);
    ack(&store, &first[2]);
    store.close().unwrap();
    let info = fs::read_to_string(directory.path().join("config/consumerOrderInfo.json")).unwrap();
    assert!(info.contains(r#""cm":6,"#) && info.contains(r#""o":[0,1,2,3]"#), "{info}");
    drop(store);
    let store = open(directory.path(), &clock);
    assert!(receive(&store, 4, Some("b")).is_empty());
    clock.advance(LEASE);
    assert_eq!(seen(&receive(&store, 9, Some("b"))), [(0, 2), (1, 2), (2, 2), (3, 2), (4, 1)]);
}

/// RocketMQ's `OrderInfo` of a queue.
#[derive(Debug, Clone, Default)]
struct Model {
    sent: u64,
    committed: u64,
    attempt_id: Option<&'static str>,
    pop_time: i64,
    /// By offset: whether it is acknowledged, when it is visible, how often it was delivered.
    batch: BTreeMap<u64, (bool, i64, u32)>,
}

impl Model {
    fn receive(&self, now: i64, count: usize, name: Option<&'static str>) -> Vec<(u64, u32)> {
        let is_same = name.is_some() && name == self.attempt_id;
        if !is_same && self.batch.values().any(|(is_done, visible, _)| !is_done && *visible > now) {
            return Vec::new();
        }
        let attempt = |offset| match self.batch.get(&offset) {
            Some((_, _, times)) => times + u32::from(!is_same),
            None => 1,
        };
        (self.committed..self.sent).take(count).map(|offset| (offset, attempt(offset))).collect()
    }

    fn took(&mut self, got: &[Leased], name: Option<&'static str>) {
        let Some(first) = got.first() else { return };
        (self.attempt_id, self.pop_time) = (name, first.handle.pop_time);
        let lease = |leased: &Leased| (false, leased.handle.pop_time + LEASE, leased.attempt);
        self.batch = got.iter().map(|leased| (leased.handle.queue_offset, lease(leased))).collect();
    }

    fn ack(&mut self, handle: &ReceiptHandle) -> bool {
        let held = self.batch.get_mut(&handle.queue_offset).filter(|(is_done, ..)| !*is_done);
        let Some(message) = held.filter(|_| handle.pop_time == self.pop_time) else { return false };
        message.0 = true;
        let open = self.batch.iter().find(|(_, (is_done, ..))| !is_done).map(|(offset, _)| *offset);
        self.committed = open.unwrap_or_else(|| self.batch.last_key_value().unwrap().0 + 1);
        true
    }

    /// The state after a restart: a lease that begins after `now`, as in a second receive within a millisecond, lasts
    /// from `now` on.
    fn reopened(mut self, now: i64) -> Self {
        if self.pop_time > now {
            for (_, visible, _) in self.batch.values_mut() {
                *visible = now + (*visible - self.pop_time).max(0);
            }
        }
        self
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(usize),
    Receive(usize, usize),
    Ack(prop::sample::Index),
    Change(prop::sample::Index, i64),
    Advance(i64),
    Restart,
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..4usize).prop_map(Step::Send),
        8 => (1..6usize, 0..4usize).prop_map(|(count, name)| Step::Receive(count, name)),
        12 => any::<prop::sample::Index>().prop_map(Step::Ack),
        3 => (any::<prop::sample::Index>(), 0..20_000i64).prop_map(|(pick, ms)| Step::Change(pick, ms)),
        6 => (0..12_000i64).prop_map(Step::Advance),
        1 => Just(Step::Restart),
        1 => Just(Step::Kill),
    ]
}

struct Run {
    directory: TempDir,
    clock: Clock,
    store: Option<MessageStore>,
    model: Model,
    /// The state at the last clean close.
    persisted: Model,
    /// The newest handles are the most likely.
    handles: Vec<ReceiptHandle>,
}

impl Run {
    fn store(&self) -> &MessageStore {
        self.store.as_ref().unwrap()
    }

    fn pick(&self, index: &prop::sample::Index) -> ReceiptHandle {
        let recent = self.handles.len().saturating_sub(8);
        self.handles[recent + index.index(self.handles.len() - recent)]
    }

    fn apply(&mut self, step: &Step) {
        let now = self.clock.now_ms();
        match step {
            Step::Send(count) => {
                send(self.store(), *count);
                self.model.sent += *count as u64;
            }
            Step::Receive(count, name) => {
                let name = [None, Some("a"), Some("b"), Some("c")][*name];
                let got = receive(self.store(), *count, name);
                assert_eq!(seen(&got), self.model.receive(now, *count, name));
                self.model.took(&got, name);
                self.handles.extend(got.iter().map(|leased| leased.handle));
            }
            Step::Ack(_) | Step::Change(..) if self.handles.is_empty() => {}
            Step::Ack(pick) => {
                let handle = self.pick(pick);
                let is_ended = self.store().groups().ack("g", "t", &handle).is_ok();
                assert_eq!(is_ended, self.model.ack(&handle), "{handle:?}");
            }
            Step::Change(pick, ms) => {
                let handle = self.pick(pick);
                let done = self.store().groups().change_invisible("g", "t", &handle, *ms);
                let open = self.model.batch.get_mut(&handle.queue_offset).filter(|(is_done, ..)| !*is_done);
                match open.filter(|_| handle.pop_time == self.model.pop_time) {
                    Some(message) => {
                        assert_eq!(done.unwrap().pop_time, handle.pop_time);
                        message.1 = now + ms;
                    }
                    None => assert!(done.is_err()),
                }
            }
            Step::Advance(ms) => self.clock.advance(*ms),
            Step::Restart => {
                self.store().close().unwrap();
                self.store = None;
                self.persisted = self.model.clone();
                self.model = self.model.clone().reopened(now);
                self.store = Some(open(self.directory.path(), &self.clock));
            }
            Step::Kill => {
                let left = tempfile::tempdir().unwrap();
                copy_as_killed(self.directory.path(), left.path());
                self.store = None;
                self.directory = left;
                self.model = Model { sent: self.model.sent, ..self.persisted.clone() }.reopened(now);
                self.store = Some(open(self.directory.path(), &self.clock));
            }
        }
        let committed = self.store().groups().committed_offset("g", "t", 0).unwrap_or(0);
        assert_eq!(committed, self.model.committed, "after {step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: common::cases(24), ..ProptestConfig::default() })]
    #[test]
    fn a_group_matches_rocketmq_through_restarts_and_kills(
        steps in prop::collection::vec(step(), 1..50),
    ) {
        let (directory, clock, store) = fresh(0);
        let (model, persisted, handles) = Default::default();
        let mut run = Run { directory, clock, store: Some(store), model, persisted, handles };
        for step in &steps {
            run.apply(step);
        }
    }
}
