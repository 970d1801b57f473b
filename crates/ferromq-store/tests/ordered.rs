//! Ordered receives, attempts and priorities on a real store, and which of them survive a restart, a kill, or a Java
//! broker.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{fs, path::Path, time::Duration};

use common::{ALL, asynchronous, copy_as_killed, message, settle};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    progress::{Begin, Leased, Ordered, ReceiptHandle, ReceiveRequest, Received},
    read::TransferLimits,
    record::NewMessage,
    time::Clock,
};
use proptest::prelude::*;
use tempfile::TempDir;

const START: i64 = 1_700_000_000_000;
const LEASE: i64 = 10_000;

/// Writes progress at close only, so that a test knows what a killed store has on disk.
fn config() -> StoreConfig {
    StoreConfig { progress_interval: Duration::from_secs(3_600), ..asynchronous() }
}

fn open(directory: &Path, clock: &Clock) -> MessageStore {
    MessageStore::open(directory, config(), clock.clone()).unwrap()
}

fn send(store: &MessageStore, queue_id: i32, count: usize) {
    (0..count).for_each(|_| drop(store.log().append(&[message("t", queue_id, b"x", b"")]).unwrap()));
    settle(store);
}

fn request(max_count: usize, attempt_id: Option<&'static str>) -> ReceiveRequest<'static> {
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
        order: Some(Ordered { attempt_id, from_first: false }),
        max_attempts: 0,
        by_priority: false,
        limits: TransferLimits::NONE,
    }
}

fn receive(store: &MessageStore, max_count: usize, attempt_id: Option<&'static str>) -> Vec<Leased> {
    common::receive(store, &request(max_count, attempt_id)).unwrap().messages
}

fn seen(messages: &[Leased]) -> Vec<(u64, u32)> {
    messages.iter().map(|leased| (leased.handle.queue_offset, leased.attempt)).collect()
}

/// Acknowledges a message. Returns when its queue may continue, relative to the begin of its lease.
fn ack(store: &MessageStore, leased: &Leased) -> Option<i64> {
    store.groups().ack("g", "t", &leased.handle).unwrap().map(|at| at - leased.handle.pop_time)
}

/// The directory as a killed process leaves it: with the page cache's content, not closed.
fn kill(directory: &Path) -> TempDir {
    let left = tempfile::tempdir().unwrap();
    copy_as_killed(directory, left.path());
    left
}

fn fresh() -> (TempDir, Clock, MessageStore) {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    (directory, clock, store)
}

#[test]
fn a_group_that_becomes_ordered_is_woken_when_earlier_leases_expire() {
    let (_directory, _clock, store) = fresh();
    send(&store, 0, 3);
    let before =
        common::receive(&store, &ReceiveRequest { order: None, ..request(2, None) }).unwrap().messages;
    assert_eq!(seen(&before), [(0, 1), (1, 1)]);
    assert!(receive(&store, 3, None).is_empty());
    assert_eq!(ack(&store, &before[1]), Some(LEASE), "the first one is still leased");
    assert_eq!(ack(&store, &before[0]), Some(0), "the queue may continue");
    assert_eq!(seen(&receive(&store, 3, None)), [(2, 1)]);
}

#[test]
fn a_queue_has_one_receiver_at_a_time_and_other_queues_do_not_wait() {
    let (_directory, _clock, store) = fresh();
    send(&store, 0, 3);
    send(&store, 1, 1);
    let first = receive(&store, 2, None);
    assert_eq!(seen(&first), [(0, 1), (1, 1)]);
    let both = ReceiveRequest { queue_count: 2, ..request(10, None) };
    let Received { messages, next_expiry_ms, .. } = common::receive(&store, &both).unwrap();
    assert_eq!((messages[0].handle.queue_id, messages.len()), (1, 1));
    assert_eq!(next_expiry_ms, Some(START + LEASE));
    assert_eq!(ack(&store, &first[1]), Some(LEASE), "the first one is still leased");
    assert!(seen(&receive(&store, 10, None)).is_empty());
    assert_eq!(ack(&store, &first[0]), Some(0), "the queue may continue");
    assert_eq!(seen(&receive(&store, 10, None)), [(2, 1)]);
}

#[test]
fn redelivery_begins_at_the_first_unacknowledged_message_and_keeps_the_order() {
    let (_directory, clock, store) = fresh();
    send(&store, 0, 6);
    let first = receive(&store, 4, None);
    ack(&store, &first[0]);
    ack(&store, &first[2]);
    assert_eq!(store.groups().committed_offset("g", "t", 0), Some(1));
    clock.advance(LEASE);
    let again = receive(&store, 3, None);
    assert_eq!(seen(&again), [(1, 2), (3, 2), (4, 1)]);
    assert!(matches!(store.groups().ack("g", "t", &first[1].handle), Err(StoreError::StaleReceipt)));
    clock.advance(LEASE);
    // Fewer than last time: the remaining ones come next, before new messages.
    let one = receive(&store, 1, None);
    assert_eq!(seen(&one), [(1, 3)]);
    ack(&store, &one[0]);
    assert_eq!(seen(&receive(&store, 9, None)), [(3, 3), (4, 2), (5, 1)]);
}

#[test]
fn a_receive_repeated_with_its_attempt_id_gets_the_same_messages_at_once() {
    let (_directory, clock, store) = fresh();
    send(&store, 0, 4);
    let lost = receive(&store, 2, Some("a"));
    assert!(receive(&store, 2, Some("b")).is_empty());
    assert!(receive(&store, 2, None).is_empty());
    let again = receive(&store, 3, Some("a"));
    assert_eq!(seen(&again), [(0, 1), (1, 1), (2, 1)], "it is the same attempt");
    assert!(matches!(store.groups().ack("g", "t", &lost[0].handle), Err(StoreError::StaleReceipt)));
    clock.advance(LEASE);
    assert!(receive(&store, 2, Some("b")).is_empty(), "a lease of the same millisecond begins one later");
    clock.advance(1);
    assert_eq!(seen(&receive(&store, 2, Some("b"))), [(0, 2), (1, 2)]);
    assert!(receive(&store, 2, Some("a")).is_empty());
    // An empty attempt id counts as none.
    clock.advance(LEASE);
    assert_eq!(receive(&store, 2, Some("")).len(), 2);
    assert!(receive(&store, 2, Some("")).is_empty());
}

#[test]
fn a_changed_lease_blocks_its_queue_until_its_new_expiry_and_keeps_its_handle() {
    let (_directory, clock, store) = fresh();
    send(&store, 0, 3);
    let first = receive(&store, 2, None);
    let longer = store.groups().change_invisible("g", "t", &first[0].handle, 4 * LEASE).unwrap();
    assert_eq!((longer.pop_time, longer.invisible_ms), (first[0].handle.pop_time, 4 * LEASE));
    ack(&store, &first[1]);
    clock.advance(3 * LEASE);
    assert!(receive(&store, 9, None).is_empty());
    store.groups().change_invisible("g", "t", &first[0].handle, 0).unwrap();
    assert_eq!(seen(&receive(&store, 9, None)), [(0, 2), (2, 1)]);
}

#[test]
fn an_extended_lease_blocks_its_queue_and_belongs_to_its_receive_after_a_restart() {
    let (directory, clock, store) = fresh();
    send(&store, 0, 3);
    let first = receive(&store, 2, Some("a"));
    clock.advance(LEASE - 1);
    for leased in &first {
        store.groups().extend("g", "t", &leased.handle, 2 * LEASE).unwrap();
    }
    store.close().unwrap();
    drop(store);
    let store = open(directory.path(), &clock);
    clock.advance(2 * LEASE - 1);
    assert!(receive(&store, 9, Some("b")).is_empty());
    assert_eq!(seen(&receive(&store, 2, Some("a"))), [(0, 1), (1, 1)], "the same attempt id");
    clock.advance(LEASE);
    assert_eq!(seen(&receive(&store, 9, Some("b"))), [(0, 2), (1, 2), (2, 1)]);
}

#[test]
fn order_lock_and_attempt_id_survive_a_restart_and_a_kill() {
    for is_killed in [false, true] {
        let (mut directory, clock, store) = fresh();
        send(&store, 0, 4);
        let first = receive(&store, 3, Some("a"));
        ack(&store, &first[1]);
        store.close().unwrap();
        drop(store);
        if is_killed {
            let store = open(directory.path(), &clock);
            directory = kill(directory.path());
            drop(store);
        }
        let store = open(directory.path(), &clock);
        assert!(receive(&store, 9, Some("b")).is_empty());
        assert_eq!(ack(&store, &first[2]), Some(LEASE));
        assert_eq!(seen(&receive(&store, 9, Some("a"))), [(0, 1), (3, 1)]);
    }
}

#[test]
fn dead_messages_come_alone_and_the_queue_continues_after_them() {
    let (_directory, clock, store) = fresh();
    send(&store, 0, 3);
    let limited = |max_count| ReceiveRequest { max_attempts: 2, ..request(max_count, None) };
    for attempt in 1..=2 {
        let received = common::receive(&store, &limited(2)).unwrap();
        assert_eq!(seen(&received.messages), [(0, attempt), (1, attempt)]);
        clock.advance(LEASE);
    }
    let Received { messages, dead, more, .. } = common::receive(&store, &limited(2)).unwrap();
    assert!(messages.is_empty() && more);
    assert_eq!(seen(&dead), [(0, 2), (1, 2)]);
    // Meanwhile, another receiver gets neither them nor later messages.
    let meanwhile = common::receive(&store, &limited(9)).unwrap();
    assert!(meanwhile.messages.is_empty() && meanwhile.dead.is_empty());
    dead.iter().for_each(|leased| assert!(ack(&store, leased).is_some()));
    assert_eq!(seen(&common::receive(&store, &limited(9)).unwrap().messages), [(2, 1)]);
}

#[test]
fn dead_messages_that_were_not_copied_are_dead_again() {
    let (_directory, clock, store) = fresh();
    send(&store, 0, 1);
    let limited = || {
        common::receive(&store, &ReceiveRequest { max_attempts: 1, order: None, ..request(9, None) }).unwrap()
    };
    assert_eq!(limited().messages.len(), 1);
    clock.advance(LEASE);
    assert_eq!(seen(&limited().dead), [(0, 1)]);
    assert!(limited().dead.is_empty());
    clock.advance(30_000);
    let dead = limited().dead;
    assert_eq!(seen(&dead), [(0, 1)]);
    ack(&store, &dead[0]);
    assert_eq!(store.groups().committed_offset("g", "t", 0), Some(1));
}

#[test]
fn a_returned_message_comes_to_the_same_attempt_id_as_the_same_attempt_and_never_as_attempt_zero() {
    let (_directory, clock, store) = fresh();
    send(&store, 0, 2);
    for name in [Some("a"), None] {
        let first = receive(&store, 2, name);
        assert_eq!(seen(&first), [(0, 1), (1, 1)]);
        for leased in &first {
            store.groups().give_back("g", "t", &leased.handle, 0).unwrap();
        }
        assert!(matches!(store.groups().ack("g", "t", &first[0].handle), Err(StoreError::StaleReceipt)));
        clock.advance(5);
        let again = receive(&store, 2, name);
        assert_eq!(seen(&again), [(0, 1), (1, 1)], "{name:?}");
        for leased in &again {
            store.groups().give_back("g", "t", &leased.handle, 0).unwrap();
        }
        clock.advance(5);
    }
}

#[test]
fn a_receive_repeated_while_its_dead_messages_are_copied_gets_neither_them_nor_later_ones() {
    let (_directory, clock, store) = fresh();
    send(&store, 0, 2);
    let limited = |max_count| {
        common::receive(&store, &ReceiveRequest { max_attempts: 1, ..request(max_count, Some("a")) }).unwrap()
    };
    assert_eq!(seen(&limited(1).messages), [(0, 1)]);
    // It was not returned: another attempt finds it dead while its first call is still running.
    clock.advance(LEASE);
    let other = ReceiveRequest { max_attempts: 1, ..request(1, Some("b")) };
    assert_eq!(seen(&common::receive(&store, &other).unwrap().dead), [(0, 1)]);
    clock.advance(1);
    let again = limited(2);
    assert!(again.messages.is_empty() && again.dead.is_empty());
    clock.advance(30_000);
    assert_eq!(seen(&limited(2).dead), [(0, 1)], "it was not copied");
}

#[test]
fn a_redelivered_message_does_not_count_as_a_read_of_a_queue() {
    let (_directory, clock, store) = fresh();
    send(&store, 0, 1);
    assert_eq!(receive(&store, 1, None).len(), 1);
    let found = store.admin().stats().found_gets;
    clock.advance(LEASE);
    assert_eq!(receive(&store, 1, None).len(), 1);
    assert_eq!(store.admin().stats().found_gets, found);
}

#[test]
fn deliveries_counted_in_a_record_are_attempts() {
    let (_directory, clock, store) = fresh();
    let again = |reconsume_times| NewMessage { reconsume_times, ..message("t", 0, b"x", b"") };
    store.log().append(&[again(1), again(5)]).unwrap();
    settle(&store);
    let limited = || {
        common::receive(&store, &ReceiveRequest { max_attempts: 3, order: None, ..request(9, None) }).unwrap()
    };
    let first = limited();
    assert_eq!(seen(&first.messages), [(0, 1)]);
    let dead = limited().dead;
    assert_eq!(seen(&dead), [(1, 1)], "it was delivered five times before");
    ack(&store, &dead[0]);
    clock.advance(LEASE);
    assert_eq!(seen(&limited().messages), [(0, 2)]);
    clock.advance(LEASE);
    assert_eq!(seen(&limited().dead), [(0, 2)]);
}

#[test]
fn queues_with_higher_numbers_come_first_by_priority_redelivered_messages_too() {
    let (_directory, clock, store) = fresh();
    (0..4).for_each(|queue| send(&store, queue, 2));
    let next = |max_count| {
        let by_priority = ReceiveRequest {
            queue_count: 4,
            first_queue: 1,
            order: None,
            by_priority: true,
            ..request(max_count, None)
        };
        let messages = common::receive(&store, &by_priority).unwrap().messages;
        messages.iter().map(|leased| leased.handle.queue_id).collect::<Vec<_>>()
    };
    assert_eq!(next(3), [3, 3, 2]);
    send(&store, 3, 1);
    assert_eq!(next(3), [3, 2, 1]);
    clock.advance(LEASE);
    assert_eq!(next(9), [3, 3, 3, 2, 2, 1, 1, 0, 0]);
}

fn order_info(directory: &Path) -> std::path::PathBuf {
    directory.join("config/consumerOrderInfo.json")
}

#[test]
fn javas_file_of_ordered_receives_counts_if_our_leases_do_not_match() {
    let (directory, clock, store) = fresh();
    send(&store, 0, 6);
    store.close().unwrap();
    drop(store);
    fs::remove_file(directory.path().join("ferromq/leases")).unwrap();
    fs::create_dir_all(directory.path().join("config")).unwrap();
    fs::write(directory.path().join("config/consumerOffset.json"), "{\"offsetTable\":{\"t@g\":{0:1}}}")
        .unwrap();
    // Offsets 1 to 4, of which 2 is acknowledged and 1 was delivered twice before.
    let java = format!(
        "{{\"orderInfoCount\":1,\"table\":{{\"t@g\":{{0:{{\"a\":\"try\",\"cm\":2,\"i\":{LEASE},\"l\":{START},\"o\":[1,1,2,3],\"oc\":{{1:2}},\"popTime\":{START}}}}}}}}}"
    );
    fs::write(order_info(directory.path()), java).unwrap();
    let store = open(directory.path(), &clock);
    assert!(receive(&store, 9, None).is_empty());
    // The handle from Java is valid.
    store.groups().ack("g", "t", &handle(3, START)).unwrap();
    assert_eq!(seen(&receive(&store, 9, Some("try"))), [(1, 3), (4, 1), (5, 1)]);
    store.close().unwrap();
    let text = fs::read_to_string(order_info(directory.path())).unwrap();
    assert!(text.contains("\"a\":\"try\",\"cm\":0,\"i\":10000,"), "{text}");
    assert!(text.contains("\"o\":[1,3,4],\"oc\":{1:2}") && text.contains("orderInfoCount"), "{text}");
}

#[test]
fn javas_file_loses_an_ordered_receive_with_its_last_acknowledgement_and_with_its_group() {
    let (directory, clock, store) = fresh();
    send(&store, 0, 2);
    let told = |store: MessageStore| {
        store.close().unwrap();
        drop(store);
        fs::read_to_string(order_info(directory.path())).unwrap().contains("t@g")
    };
    let again = || open(directory.path(), &clock);
    let first = receive(&store, 1, None);
    assert!(told(store));
    let store = again();
    ack(&store, &first[0]);
    assert!(!told(store));
    let store = again();
    receive(&store, 1, None);
    assert!(told(store));
    let store = again();
    assert_eq!(store.groups().forget_group("g", None).unwrap(), 1);
    assert!(!told(store));
}

fn handle(queue_offset: u64, pop_time: i64) -> ReceiptHandle {
    ReceiptHandle { queue_id: 0, queue_offset, pop_time, invisible_ms: 0 }
}

/// The model of a queue received in order.
#[derive(Debug, Clone, Default)]
struct Model {
    sent: u64,
    next: u64,
    /// Offset, pop time, expiry, attempt; sorted by offset.
    leases: Vec<(u64, i64, i64, u32)>,
    /// The last receive: its attempt id and pop time.
    last: (Option<&'static str>, i64),
}

impl Model {
    fn committed(&self) -> u64 {
        self.leases.first().map_or(self.next, |lease| lease.0)
    }

    fn receive(&self, now: i64, count: usize, name: Option<&'static str>) -> Vec<(u64, u32)> {
        let is_same = name.is_some() && name == self.last.0;
        if !is_same && self.leases.iter().any(|lease| lease.2 > now) {
            return Vec::new();
        }
        let is_again = |pop_time| is_same && pop_time == self.last.1;
        let is_free = |lease: &&(u64, i64, i64, u32)| lease.2 <= now || is_again(lease.1);
        let again: Vec<_> = self.leases.iter().take_while(is_free).collect();
        let new = if again.len() == self.leases.len() { self.next..self.sent } else { 0..0 };
        let again = again
            .iter()
            .map(|&&(offset, pop_time, _, attempt)| (offset, attempt + u32::from(!is_again(pop_time))));
        again.chain(new.map(|offset| (offset, 1))).take(count).collect()
    }

    /// The state after a restart: a lease that begins after `now`, as in a second receive within a millisecond, lasts
    /// from `now` on.
    fn reopened(mut self, now: i64) -> Self {
        for (_, pop_time, end, _) in self.leases.iter_mut().filter(|lease| lease.1 > now) {
            *end = now + (*end - *pop_time).max(0);
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
    Commit(u64),
    Restart,
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..4usize).prop_map(Step::Send),
        8 => (1..5usize, 0..4usize).prop_map(|(count, name)| Step::Receive(count, name)),
        8 => any::<prop::sample::Index>().prop_map(Step::Ack),
        3 => (any::<prop::sample::Index>(), 0..20_000i64).prop_map(|(pick, ms)| Step::Change(pick, ms)),
        5 => (0..9_000i64).prop_map(Step::Advance),
        1 => (0..12u64).prop_map(Step::Commit),
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
}

impl Run {
    fn store(&self) -> &MessageStore {
        self.store.as_ref().unwrap()
    }

    fn apply(&mut self, step: &Step) {
        let now = self.clock.now_ms();
        match step {
            Step::Send(count) => {
                send(self.store(), 0, *count);
                self.model.sent += *count as u64;
            }
            Step::Receive(count, name) => {
                self.receive(now, *count, [None, Some("a"), Some("b"), Some("c")][*name])
            }
            Step::Ack(pick) if !self.model.leases.is_empty() => {
                let (offset, pop_time, ..) = self.model.leases.remove(pick.index(self.model.leases.len()));
                let goes_on = self.store().groups().ack("g", "t", &handle(offset, pop_time)).unwrap();
                let last = self.model.leases.iter().map(|lease| lease.2).max();
                assert!(goes_on.is_none() || goes_on == Some(last.unwrap_or(pop_time)));
            }
            Step::Change(pick, ms) if !self.model.leases.is_empty() => {
                let at = pick.index(self.model.leases.len());
                let lease = self.model.leases[at];
                let new =
                    self.store().groups().change_invisible("g", "t", &handle(lease.0, lease.1), *ms).unwrap();
                assert_eq!(new.pop_time == lease.1, lease.1 == self.model.last.1);
                self.model.leases[at] = (lease.0, new.pop_time, now + ms, lease.3);
            }
            Step::Ack(..) | Step::Change(..) => {}
            Step::Advance(ms) => self.clock.advance(*ms),
            Step::Commit(offset) => self.commit(*offset),
            Step::Restart => {
                self.store().close().unwrap();
                self.store = None;
                self.persisted = self.model.clone();
                self.model = self.model.clone().reopened(now);
                self.store = Some(open(self.directory.path(), &self.clock));
            }
            Step::Kill => {
                let left = kill(self.directory.path());
                self.store = None;
                self.directory = left;
                self.model = Model { sent: self.model.sent, ..self.persisted.clone() }.reopened(now);
                self.store = Some(open(self.directory.path(), &self.clock));
            }
        }
        let committed = self.store().groups().committed_offset("g", "t", 0).unwrap_or(0);
        assert_eq!(committed, self.model.committed(), "after {step:?}");
    }

    fn commit(&mut self, offset: u64) {
        self.store().groups().commit_offset("g", "t", 0, offset).unwrap();
        let offset = offset.min(self.model.sent);
        if offset < self.model.committed() {
            self.model = Model { next: offset, sent: self.model.sent, ..Model::default() };
        } else {
            self.model.leases.retain(|lease| lease.0 >= offset);
            self.model.next = self.model.next.max(offset);
        }
    }

    fn receive(&mut self, now: i64, count: usize, name: Option<&'static str>) {
        let got = receive(self.store(), count, name);
        let mut expected = self.model.receive(now, count, name);
        // Messages leased later in this millisecond end a receive, because its leases begin together.
        expected.truncate(got.len().max(1));
        assert_eq!(seen(&got), expected);
        let Some(pop_time) = got.first().map(|leased| leased.handle.pop_time) else { return };
        for leased in &got {
            assert_eq!(leased.handle.pop_time, pop_time);
            let offset = leased.handle.queue_offset;
            self.model.leases.retain(|lease| lease.0 != offset);
            self.model.leases.push((offset, pop_time, pop_time + LEASE, leased.attempt));
            self.model.next = self.model.next.max(offset + 1);
        }
        self.model.leases.sort_unstable();
        self.model.last = (name, pop_time);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: common::cases(24), ..ProptestConfig::default() })]
    #[test]
    fn a_group_sees_each_queue_in_order_through_restarts_and_kills(steps in prop::collection::vec(step(), 1..40)) {
        let (directory, clock, store) = fresh();
        let mut run =
            Run { directory, clock, store: Some(store), model: Model::default(), persisted: Model::default() };
        for step in &steps {
            run.apply(step);
        }
    }
}
