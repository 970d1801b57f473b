//! Leases on a real store: receive, acknowledge, change, commit, and which of them survive a restart.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{
    collections::HashSet,
    fs,
    path::Path,
    sync::{Mutex, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use common::{ALL, asynchronous, copy_as_killed, message, named, settle};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    filter::MessageFilter,
    progress::{Ahead, Begin, Leased, ReceiptHandle, ReceiveRequest, Received},
    read::TransferLimits,
    record::MessageView,
    time::Clock,
};
use proptest::prelude::*;
use tempfile::TempDir;

const START: i64 = 1_700_000_000_000;

/// Writes progress at close only, so that a test knows what a killed store has on disk.
fn config() -> StoreConfig {
    StoreConfig { progress_interval: Duration::from_secs(3_600), ..asynchronous() }
}

fn open(directory: &Path, clock: &Clock) -> MessageStore {
    MessageStore::open(directory, config(), clock.clone()).unwrap()
}

fn send(store: &MessageStore, queue_id: i32, count: usize) {
    for number in 0..count {
        let body = format!("{number}");
        store.log().append(&[message("t", queue_id, body.as_bytes(), &named("k", "a"))]).unwrap();
    }
    settle(store);
}

fn request(max_count: usize) -> ReceiveRequest<'static> {
    ReceiveRequest {
        group: "g",
        topic: "t",
        queue_count: 1,
        first_queue: 0,
        max_count,
        max_bytes: 4 << 20,
        invisible_ms: 10_000,
        filter: ALL,
        begin: Begin::AtMin,
        order: None,
        max_attempts: 0,
        by_priority: false,
        limits: TransferLimits::NONE,
    }
}

fn receive(store: &MessageStore, max_count: usize) -> Vec<Leased> {
    common::receive(store, &request(max_count)).unwrap().messages
}

fn offsets(messages: &[Leased]) -> Vec<(u64, u32)> {
    messages.iter().map(|leased| (leased.handle.queue_offset, leased.attempt)).collect()
}

fn committed(store: &MessageStore) -> Option<u64> {
    store.groups().committed_offset("g", "t", 0)
}

fn offset_file(directory: &Path) -> std::path::PathBuf {
    directory.join("config/consumerOffset.json")
}

/// The directory as a killed process leaves it: with the page cache's content, not closed.
fn kill(directory: &Path) -> TempDir {
    let left = tempfile::tempdir().unwrap();
    copy_as_killed(directory, left.path());
    left
}

#[test]
fn a_receipt_names_the_lease_and_the_record_is_the_message() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, 0, 3);
    let Received { messages, next_expiry_ms, more, .. } = common::receive(&store, &request(2)).unwrap();
    assert_eq!(offsets(&messages), [(0, 1), (1, 1)]);
    assert_eq!((next_expiry_ms, more), (Some(START + 10_000), true));
    let expected = ReceiptHandle { queue_id: 0, queue_offset: 1, pop_time: START, invisible_ms: 10_000 };
    assert_eq!(messages[1].handle, expected);
    assert_eq!(MessageView::decode(messages[1].record.bytes(), true).unwrap().body, b"1");
    let rest = common::receive(&store, &request(2)).unwrap();
    assert_eq!((offsets(&rest.messages), rest.more), (vec![(2, 1)], false));
}

#[test]
fn a_new_group_begins_where_the_request_says() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, 0, 3);
    let late = ReceiveRequest { group: "late", begin: Begin::AtMax, ..request(10) };
    assert!(common::receive(&store, &late).unwrap().messages.is_empty());
    send(&store, 0, 1);
    assert_eq!(offsets(&common::receive(&store, &late).unwrap().messages), [(3, 1)]);
    assert_eq!(receive(&store, 10).len(), 4);
    assert_eq!(store.groups().committed_offset("nobody", "t", 0), None);
}

#[test]
fn a_group_that_begins_at_the_last_message_misses_nothing_of_a_young_queue() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let config = StoreConfig { commit_log_file_size: 4 << 10, ..config() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    send(&store, 0, 3);
    let begins = |group| {
        let request = ReceiveRequest { group, begin: Begin::AtLast, ..request(100) };
        let seen = store.groups().ahead(group, "t", 0, Begin::AtLast).next_offset;
        let first = common::receive(&store, &request).unwrap().messages[0].handle.queue_offset;
        assert_eq!(seen, first);
        first
    };
    assert_eq!(begins("young"), 0);
    send(&store, 0, 100);
    clock.advance(4 * 86_400_000);
    send(&store, 0, 1);
    store.admin().clean(true);
    assert!(store.queues().min_offset("t", 0) > 0);
    assert_eq!(begins("late"), 103);
}

#[test]
fn the_leases_of_one_receive_begin_together() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, 0, 4);
    send(&store, 1, 1);
    let taken = receive(&store, 2);
    // Returned within the millisecond: its next lease cannot begin now.
    store.groups().change_invisible("g", "t", &taken[0].handle, 0).unwrap();
    let both = ReceiveRequest { queue_count: 2, ..request(10) };
    let from_other = common::receive(&store, &ReceiveRequest { first_queue: 1, ..both }).unwrap();
    assert_eq!(from_other.messages.len(), 1);
    assert!(from_other.more);
    let rest = common::receive(&store, &both).unwrap().messages;
    assert_eq!(offsets(&rest), [(0, 2), (2, 1), (3, 1)]);
    let begins: HashSet<i64> = rest.iter().map(|leased| leased.handle.pop_time).collect();
    assert_eq!(begins, HashSet::from([START + 2]));
    for leased in rest {
        store.groups().ack("g", "t", &leased.handle).unwrap();
    }
}

#[test]
fn a_receive_of_one_queue_leaves_the_others_alone() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, 0, 2);
    send(&store, 1, 3);
    let ahead = |queue_id| store.groups().ahead("g", "t", queue_id, Begin::AtMin);
    let nothing = Ahead {
        next_offset: 0,
        unread: 3,
        next_expiry_ms: None,
        last_expiry_ms: None,
        held_until_ms: None,
        in_flight: 0,
    };
    assert_eq!(ahead(1), nothing);
    let received = common::receive_of(&store, &request(2), Some(1)).unwrap().messages;
    assert!(received.iter().all(|leased| leased.handle.queue_id == 1));
    let ends = Some(START + 10_000);
    let leased = Ahead {
        next_offset: 2,
        unread: 1,
        next_expiry_ms: ends,
        last_expiry_ms: ends,
        held_until_ms: None,
        in_flight: 2,
    };
    assert_eq!(ahead(1), leased);
    assert_eq!(ahead(0).unread, 2);
    assert_eq!(store.groups().committed_offset("g", "t", 0), None);
    assert_eq!(store.groups().ahead("other", "t", 1, Begin::AtMax).unread, 0);
}

#[test]
fn a_filter_passes_over_a_long_backlog_in_one_receive() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, 0, 2_000);
    store.log().append(&[message("t", 0, b"x", &named("k", "rare"))]).unwrap();
    settle(&store);
    let filter = MessageFilter::tags("rare");
    let rare = common::receive(&store, &ReceiveRequest { filter: &filter, ..request(10) }).unwrap().messages;
    assert_eq!(offsets(&rare), [(2_000, 1)]);
    assert_eq!(committed(&store), Some(2_000));
    assert!(receive(&store, 10).is_empty());
}

#[test]
fn a_receive_without_matches_ends_early_and_the_next_one_continues() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    let count = 60_000;
    let unwanted = named("k", "a");
    let batch = vec![message("t", 0, b"x", &unwanted); 1_000];
    for _ in 0..count / 1_000 {
        store.log().append(&batch).unwrap();
    }
    store.log().append(&[message("t", 0, b"x", &named("k", "rare"))]).unwrap();
    settle(&store);
    let filter = MessageFilter::tags("rare");
    let rare = || common::receive(&store, &ReceiveRequest { filter: &filter, ..request(10) }).unwrap();
    let first = rare();
    assert_eq!((first.messages.len(), first.more), (0, true));
    assert!(committed(&store).unwrap() < count);
    let mut last = first;
    while last.messages.is_empty() {
        let before = committed(&store).unwrap();
        last = rare();
        assert!(last.more || !last.messages.is_empty());
        assert!(committed(&store).unwrap() > before, "it stays at {before}");
    }
    assert_eq!((offsets(&last.messages), last.more), (vec![(count, 1)], false));
}

#[test]
fn bytes_limit_a_receive_but_one_message_always_comes() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    for _ in 0..6 {
        store.log().append(&[message("t", 0, &[7; 1_000], b"")]).unwrap();
    }
    settle(&store);
    let limited = |max_bytes| common::receive(&store, &ReceiveRequest { max_bytes, ..request(10) }).unwrap();
    let first = limited(1);
    assert_eq!((first.messages.len(), first.more), (1, true));
    assert_eq!(limited(2_500).messages.len(), 2);
    clock.advance(10_000);
    assert_eq!(limited(2_500).messages.len(), 2);
}

#[test]
fn leases_and_offsets_survive_a_clean_restart() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, 0, 5);
    let first = receive(&store, 3);
    clock.advance(4_000);
    store.groups().ack("g", "t", &first[0].handle).unwrap();
    store.groups().ack("g", "t", &first[2].handle).unwrap();
    let changed = store.groups().change_invisible("g", "t", &first[1].handle, 20_000).unwrap();
    store.close().unwrap();
    drop(store);
    let text = fs::read_to_string(offset_file(directory.path())).unwrap();
    assert!(text.contains("\"t@g\":{0:1}"), "{text}");

    let store = open(directory.path(), &clock);
    assert_eq!(committed(&store), Some(1));
    assert_eq!(offsets(&receive(&store, 10)), [(3, 1), (4, 1)]);
    assert!(matches!(store.groups().ack("g", "t", &first[1].handle), Err(StoreError::StaleReceipt)));
    clock.advance(19_999);
    assert!(offsets(&receive(&store, 10)).iter().all(|(offset, _)| *offset > 1));
    clock.advance(1);
    assert_eq!(offsets(&receive(&store, 10)), [(1, 2)]);
    assert!(matches!(store.groups().ack("g", "t", &changed), Err(StoreError::StaleReceipt)));
}

#[test]
fn acknowledgements_that_come_together_have_their_own_outcomes() {
    let directory = TempDir::new().unwrap();
    let clock = Clock::manual(START);
    let store = open(directory.path(), &clock);
    send(&store, 0, 600);
    let late = receive(&store, 1);
    clock.advance(10_001);
    let leased = receive(&store, 600);
    assert_eq!(leased.len(), 600);
    let of_no_queue = ReceiptHandle { queue_id: 9, ..leased[0].handle };
    let mut handles = vec![late[0].handle, of_no_queue];
    handles.extend(leased.iter().map(|leased| leased.handle));
    let mut outcomes = Vec::new();
    store.groups().ack_all_in_time("g", "t", &handles, |handle, outcome| outcomes.push((*handle, outcome)));
    assert!(outcomes.iter().map(|(handle, _)| handle).eq(&handles));
    let stale = |at: usize| matches!(outcomes[at].1, Err(StoreError::StaleReceipt));
    assert!(stale(0) && stale(1), "{:?}", &outcomes[..2]);
    assert!(outcomes[2..].iter().all(|(_, outcome)| matches!(outcome, Ok(None))));
    assert_eq!(committed(&store), Some(600));
}

#[test]
fn an_extended_lease_keeps_its_handle_and_attempt_and_its_new_end_survives_a_restart() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, 0, 3);
    let first = receive(&store, 3);
    let extend =
        |store: &MessageStore, index: usize| store.groups().extend("g", "t", &first[index].handle, 20_000);
    clock.advance(4_000);
    extend(&store, 0).unwrap();
    extend(&store, 1).unwrap();
    store.groups().ack("g", "t", &first[2].handle).unwrap();
    assert!(matches!(extend(&store, 2), Err(StoreError::StaleReceipt)));
    store.close().unwrap();
    assert!(matches!(extend(&store, 0), Err(StoreError::Closed)));
    drop(store);

    let store = open(directory.path(), &clock);
    clock.advance(19_999);
    assert!(offsets(&receive(&store, 10)).is_empty());
    assert!(store.groups().holds("g", "t", &first[0].handle));
    store.groups().ack("g", "t", &first[0].handle).unwrap();
    clock.advance(1);
    assert_eq!(offsets(&receive(&store, 10)), [(1, 2)]);
    assert!(matches!(extend(&store, 1), Err(StoreError::StaleReceipt)));
}

#[test]
fn progress_is_written_while_the_store_is_open_and_only_for_flushed_messages() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let config = StoreConfig { progress_interval: Duration::from_millis(5), ..asynchronous() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    send(&store, 0, 5);
    for leased in receive(&store, 3) {
        store.groups().ack("g", "t", &leased.handle).unwrap();
    }
    let began = std::time::Instant::now();
    while !fs::read_to_string(offset_file(directory.path())).is_ok_and(|text| text.contains("{0:3}")) {
        assert!(began.elapsed() < Duration::from_secs(60), "the progress is not written");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(store.admin().stats().flushed_offset, store.admin().stats().max_physical_offset);
    let left = kill(directory.path());
    let store = open(left.path(), &clock);
    assert_eq!(offsets(&receive(&store, 10)), [(3, 1), (4, 1)]);
}

#[test]
fn an_offset_moved_by_another_broker_overrides_the_snapshot() {
    for (moved_to, expected) in [(0, vec![(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]), (4, vec![(4, 1)])] {
        let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
        let store = open(directory.path(), &clock);
        send(&store, 0, 5);
        let first = receive(&store, 3);
        store.groups().ack("g", "t", &first[0].handle).unwrap();
        store.close().unwrap();
        drop(store);
        let java = format!(
            "{{\n\t\"note\":\"kept\",\"offsetTable\":{{\n\t\t\"t@g\":{{0:{moved_to}\n\t\t}}\n\t}}\n}}"
        );
        fs::write(offset_file(directory.path()), java).unwrap();
        let store = open(directory.path(), &clock);
        assert_eq!(offsets(&receive(&store, 10)), expected);
        store.close().unwrap();
        let text = fs::read_to_string(offset_file(directory.path())).unwrap();
        assert!(text.contains("\"note\":\"kept\""), "{text}");
    }
}

#[test]
fn an_offset_past_the_end_of_the_log_is_cut_to_it() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, 0, 2);
    store.close().unwrap();
    drop(store);
    fs::create_dir_all(directory.path().join("config")).unwrap();
    fs::write(offset_file(directory.path()), "{\"offsetTable\":{\"t@g\":{0:1000},\"unknown@g\":{0:7}}}")
        .unwrap();
    let store = open(directory.path(), &clock);
    assert_eq!(committed(&store), Some(2));
    assert_eq!(store.groups().committed_offset("g", "unknown", 0), Some(7));
    send(&store, 0, 1);
    assert_eq!(offsets(&receive(&store, 10)), [(2, 1)]);
    store.groups().commit_offset("g", "t", 0, 9_999).unwrap();
    assert_eq!(committed(&store), Some(3));
}

#[test]
fn a_reset_ends_all_leases_and_redelivers_acknowledged_messages_above_it() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, 0, 6);
    let leased = receive(&store, 5);
    leased
        .iter()
        .skip(1)
        .for_each(|leased| assert_eq!(store.groups().ack("g", "t", &leased.handle).unwrap(), None));
    assert_eq!(committed(&store), Some(0));
    store.groups().reset_offset("g", "t", 0, 3).unwrap();
    assert_eq!(committed(&store), Some(3));
    assert_eq!(offsets(&receive(&store, 10)), [(3, 1), (4, 1), (5, 1)]);
    assert!(store.groups().ack("g", "t", &leased[0].handle).is_err());
    store.groups().reset_offset("g", "t", 0, 9_999).unwrap();
    assert_eq!(committed(&store), Some(6));
    assert!(receive(&store, 10).is_empty());
}

#[test]
fn a_broken_offset_file_is_named_and_its_backup_is_tried() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, 0, 3);
    store.groups().commit_offset("g", "t", 0, 2).unwrap();
    store.close().unwrap();
    drop(store);
    let file = offset_file(directory.path());
    let good = fs::read(&file).unwrap();
    fs::write(&file, b"{\"offsetTable\":{\"t@g\":{0:").unwrap();
    fs::remove_file(directory.path().join("ferromq/leases")).unwrap();
    match MessageStore::open(directory.path(), config(), clock.clone()).map(|_| ()) {
        Err(StoreError::Corrupt { file: named, .. }) => assert_eq!(named, file),
        other => panic!("{other:?}"),
    }
    fs::write(directory.path().join("config/consumerOffset.json.bak"), good).unwrap();
    let store = open(directory.path(), &clock);
    assert_eq!(committed(&store), Some(2));
}

#[test]
fn a_damaged_snapshot_costs_early_redelivery_and_no_message() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, 0, 3);
    receive(&store, 2);
    store.close().unwrap();
    drop(store);
    let file = directory.path().join("ferromq/leases");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    let store = open(directory.path(), &clock);
    assert_eq!(offsets(&receive(&store, 10)), [(0, 1), (1, 1), (2, 1)]);
}

#[test]
fn many_consumers_of_a_group_share_the_messages_without_overlap() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    for queue_id in 0..4 {
        send(&store, queue_id, 250);
    }
    let (seen, done) = (Mutex::new(HashSet::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for first_queue in 0..4 {
            let (store, seen, done) = (&store, &seen, &done);
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    let received =
                        common::receive(store, &ReceiveRequest { queue_count: 4, first_queue, ..request(7) })
                            .unwrap();
                    for leased in received.messages {
                        assert!(
                            seen.lock().unwrap().insert((leased.handle.queue_id, leased.handle.queue_offset))
                        );
                        store.groups().ack("g", "t", &leased.handle).unwrap();
                    }
                    done.fetch_or(seen.lock().unwrap().len() == 1_000, Ordering::SeqCst);
                }
            });
        }
    });
    for queue_id in 0..4 {
        assert_eq!(store.groups().committed_offset("g", "t", queue_id), Some(250));
    }
}

/// The model of one queue as a group reads it.
#[derive(Debug, Clone, Default)]
struct Model {
    sent: u64,
    next: u64,
    /// Offset, pop time, end, attempt.
    leases: Vec<(u64, i64, i64, u32)>,
}

impl Model {
    fn committed(&self) -> u64 {
        self.leases.iter().map(|lease| lease.0).min().unwrap_or(self.next)
    }

    /// The messages of a receive: expired leases by expiry and offset, then new messages.
    fn receive(&self, now: i64, count: usize) -> Vec<(u64, u32)> {
        let mut expired: Vec<_> = self.leases.iter().filter(|lease| lease.2 <= now).collect();
        expired.sort_by_key(|lease| lease.2);
        let old = expired.into_iter().map(|lease| (lease.0, lease.3 + 1));
        old.chain((self.next..self.sent).map(|offset| (offset, 1))).take(count).collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(usize),
    Receive(usize),
    Ack(prop::sample::Index, bool),
    Change(prop::sample::Index, i64),
    Advance(i64),
    Commit(u64),
    Restart,
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..4usize).prop_map(Step::Send),
        6 => (1..5usize).prop_map(Step::Receive),
        6 => (any::<prop::sample::Index>(), prop::bool::weighted(0.1)).prop_map(|(pick, stale)| Step::Ack(pick, stale)),
        2 => (any::<prop::sample::Index>(), 0..20_000i64).prop_map(|(pick, ms)| Step::Change(pick, ms)),
        4 => (0..9_000i64).prop_map(Step::Advance),
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
            Step::Receive(count) => self.receive(now, *count),
            Step::Ack(pick, stale) if !self.model.leases.is_empty() => {
                let at = pick.index(self.model.leases.len());
                let (offset, pop_time, ..) = self.model.leases[at];
                let handle = handle(offset, pop_time - i64::from(*stale));
                assert_eq!(self.store().groups().ack("g", "t", &handle).is_err(), *stale);
                if !stale {
                    self.model.leases.swap_remove(at);
                }
            }
            Step::Change(pick, ms) if !self.model.leases.is_empty() => {
                let at = pick.index(self.model.leases.len());
                let lease = self.model.leases[at];
                let new =
                    self.store().groups().change_invisible("g", "t", &handle(lease.0, lease.1), *ms).unwrap();
                assert!(new.pop_time > lease.1);
                self.model.leases[at] = (lease.0, new.pop_time, now + ms, lease.3);
            }
            Step::Ack(..) | Step::Change(..) => {}
            Step::Advance(ms) => self.clock.advance(*ms),
            Step::Commit(offset) => {
                self.store().groups().commit_offset("g", "t", 0, *offset).unwrap();
                let offset = (*offset).min(self.model.sent);
                if offset < self.model.committed() {
                    self.model.leases.clear();
                    self.model.next = offset;
                } else {
                    self.model.leases.retain(|lease| lease.0 >= offset);
                    self.model.next = self.model.next.max(offset);
                }
            }
            Step::Restart => {
                self.store().close().unwrap();
                self.store = None;
                self.persisted = self.model.clone();
                self.store = Some(open(self.directory.path(), &self.clock));
            }
            Step::Kill => {
                let left = kill(self.directory.path());
                self.store = None;
                self.directory = left;
                // Messages survive; acknowledgements and leases since the last clean close do not.
                self.model = Model { sent: self.model.sent, ..self.persisted.clone() };
                self.store = Some(open(self.directory.path(), &self.clock));
            }
        }
        let seen = committed(self.store()).unwrap_or(0);
        assert_eq!(seen, self.model.committed(), "after {step:?}");
    }

    fn receive(&mut self, now: i64, count: usize) {
        let got = receive(self.store(), count);
        let (mut seen, mut expected) = (offsets(&got), self.model.receive(now, count));
        if seen != expected {
            // Leases that expire in the same millisecond may come in any order.
            seen.sort_unstable();
            expected.sort_unstable();
            let ends: Vec<_> = self.model.leases.iter().map(|lease| lease.2).collect();
            assert!(ends.iter().collect::<HashSet<_>>().len() < ends.len(), "{seen:?} {expected:?}");
            assert_eq!(seen.len(), expected.len());
        }
        for leased in got {
            let ReceiptHandle { queue_offset, pop_time, .. } = leased.handle;
            let old = self.model.leases.iter().position(|lease| lease.0 == queue_offset);
            if let Some(at) = old {
                let old = self.model.leases.swap_remove(at);
                assert!(old.2 <= now && pop_time > old.1 && leased.attempt == old.3 + 1);
            } else {
                assert_eq!((queue_offset, leased.attempt), (self.model.next, 1));
                self.model.next += 1;
            }
            self.model.leases.push((queue_offset, pop_time, now + 10_000, leased.attempt));
        }
    }
}

fn handle(queue_offset: u64, pop_time: i64) -> ReceiptHandle {
    ReceiptHandle { queue_id: 0, queue_offset, pop_time, invisible_ms: 0 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: common::cases(48), ..ProptestConfig::default() })]
    #[test]
    fn a_group_matches_the_model_through_restarts_and_kills(steps in prop::collection::vec(step(), 1..40)) {
        let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
        let store = Some(open(directory.path(), &clock));
        let mut run = Run { directory, clock, store, model: Model::default(), persisted: Model::default() };
        for step in &steps {
            run.apply(step);
        }
    }
}

#[test]
fn a_close_in_the_middle_of_a_receive_forgets_no_message() {
    const COUNT: usize = 3_000;
    let all = ReceiveRequest { invisible_ms: 10, max_bytes: usize::MAX, ..request(COUNT) };
    for round in 0..12u64 {
        let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
        let store = open(directory.path(), &clock);
        for _ in 0..COUNT / 100 {
            store.log().append(&vec![message("t", 0, b"x", b""); 100]).unwrap();
        }
        settle(&store);
        assert_eq!(common::receive(&store, &all).unwrap().messages.len(), COUNT);
        clock.advance(1_000);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(common::receive(&store, &all)));
            scope.spawn(|| {
                // Each round closes at another point of the receive.
                std::thread::sleep(Duration::from_micros(round * 300));
                store.close().unwrap();
            });
        });
        drop(store);
        let store = open(directory.path(), &clock);
        clock.advance(100_000);
        // Messages that are not in memory come with the next receive.
        let mut received = 0;
        while received < COUNT {
            let more = common::receive(&store, &all).unwrap().messages.len();
            assert!(more > 0, "round {round}: {received} of {COUNT}");
            received += more;
        }
    }
}

#[test]
fn an_idle_receive_writes_nothing_but_where_a_group_begins_is_kept() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let config = StoreConfig { progress_interval: Duration::from_millis(20), ..asynchronous() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    send(&store, 0, 3);
    let late = ReceiveRequest { begin: Begin::AtMax, ..request(10) };
    assert!(common::receive(&store, &late).unwrap().messages.is_empty());
    let is_kept = || fs::read_to_string(offset_file(directory.path())).is_ok_and(|text| text.contains("0:3"));
    let began = std::time::Instant::now();
    while !is_kept() {
        assert!(began.elapsed() < Duration::from_secs(60), "the group's beginning is not written");
        std::thread::sleep(Duration::from_millis(5));
    }
    let snapshot = directory.path().join("ferromq/leases");
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&snapshot).unwrap());
    std::thread::sleep(Duration::from_millis(200));
    let written = inode();
    for _ in 0..30 {
        assert!(common::receive(&store, &late).unwrap().messages.is_empty());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(inode(), written, "an idle receive made the store write");
}
