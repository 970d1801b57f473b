//! The machine's clock: which threads sleep and clock steps wake, what they delete, and what they leave to the next
//! start.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use common::{asynchronous, fake_disk::FakeDisk, message, settle, wait_until};
use ferromq_store::{
    MessageStore, StoreConfig,
    log::Location,
    progress::{Begin, ReceiveRequest},
    read::TransferLimits,
    record::MessageView,
    retention::Retention,
    time::{Clock, Reading},
};

const START_US: i64 = 1_700_000_000_000_000;
const SECOND_US: i64 = 1_000_000;
const HOUR_US: i64 = 3600 * SECOND_US;
const YEARS_US: i64 = 3650 * 24 * HOUR_US;

/// The clocks of a machine, moved by the test.
#[derive(Clone)]
struct Machine(Arc<Mutex<Reading>>);

impl Machine {
    fn new() -> (Self, Clock) {
        let machine = Self(Arc::new(Mutex::new(Reading { wall_us: START_US, boot_us: 5 * SECOND_US })));
        let read = machine.clone();
        (machine, Clock::of_machine(move || *read.0.lock().unwrap()))
    }

    fn pass(&self, us: i64) {
        let mut reading = self.0.lock().unwrap();
        reading.wall_us += us;
        reading.boot_us += us;
    }

    fn step(&self, us: i64) {
        self.0.lock().unwrap().wall_us += us;
    }
}

/// Milliseconds since the machine was started.
fn since(ms: i64) -> i64 {
    ms - START_US / 1000
}

#[test]
fn sleep_and_clock_steps_wake_waiting_threads_and_ordinary_time_does_not() {
    let (machine, clock) = Machine::new();
    let woken = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&woken);
    clock.on_advance(move || {
        seen.fetch_add(1, Ordering::SeqCst);
    });
    clock.look();
    assert_eq!((since(clock.now_ms()), woken.load(Ordering::SeqCst)), (0, 0));
    machine.pass(8 * HOUR_US);
    clock.look();
    assert_eq!((since(clock.now_ms()), woken.load(Ordering::SeqCst)), (8 * 3_600_000, 1));
    clock.look();
    assert_eq!(woken.load(Ordering::SeqCst), 1);
    machine.step(HOUR_US);
    clock.look();
    assert_eq!((since(clock.now_ms()), woken.load(Ordering::SeqCst)), (9 * 3_600_000, 2));
    machine.step(-3 * HOUR_US);
    machine.pass(50_000);
    clock.look();
    assert_eq!((since(clock.now_ms()), woken.load(Ordering::SeqCst)), (9 * 3_600_000 + 50, 2));
    clock.advance(1000);
    assert_eq!((since(clock.now_ms()), woken.load(Ordering::SeqCst)), (9 * 3_600_000 + 1050, 3));
}

fn open(disk: &FakeDisk, clock: &Clock) -> MessageStore<FakeDisk> {
    let age = Some(Duration::from_secs(3600));
    let retention = Retention { age, ..Retention::default() };
    let config = StoreConfig { retention, ..asynchronous() };
    MessageStore::open_on(disk.clone(), Path::new("/store"), config, clock.clone()).unwrap()
}

fn removed(store: &MessageStore<FakeDisk>) -> u64 {
    store.admin().clean(false);
    store.admin().stats().cleaning.total.removed_files
}

/// Two and a half files.
fn fill(store: &MessageStore<FakeDisk>) {
    for _ in 0..100 {
        store.log().append(&[message("t", 0, &[7; 1500], b"")]).unwrap();
    }
    settle(store);
}

#[test]
fn a_step_deletes_nothing_before_it_has_lasted_an_hour() {
    let (machine, clock) = Machine::new();
    let disk = FakeDisk::new();
    let store = open(&disk, &clock);
    fill(&store);
    machine.step(8 * HOUR_US);
    clock.look();
    assert_eq!((since(clock.now_ms()), removed(&store)), (8 * 3_600_000, 0));
    // The step was taken back: nothing was deleted, and time continues.
    machine.step(-8 * HOUR_US);
    machine.pass(HOUR_US / 2);
    clock.look();
    assert_eq!((since(clock.now_ms()), removed(&store)), (8 * 3_600_000 + 1_800_000, 0));
    machine.step(8 * HOUR_US);
    clock.look();
    machine.pass(HOUR_US - SECOND_US);
    clock.look();
    // Without the step, the files are older than an hour by now as well.
    assert!(removed(&store) > 0);
}

#[test]
fn a_machine_that_slept_deletes_old_files() {
    let (machine, clock) = Machine::new();
    let store = open(&FakeDisk::new(), &clock);
    fill(&store);
    machine.pass(2 * HOUR_US);
    assert!(removed(&store) > 0);
}

#[test]
fn a_start_after_a_clock_that_was_years_ahead_has_the_right_time() {
    let (machine, clock) = Machine::new();
    let disk = FakeDisk::new();
    machine.step(YEARS_US);
    clock.look();
    machine.pass(61 * SECOND_US);
    clock.look();
    assert!(since(clock.now_ms()) > YEARS_US / 1000);
    let store = open(&disk, &clock);
    fill(&store);
    store.close().unwrap();
    drop(store);
    let (_, clock) = Machine::new();
    let store = open(&disk, &clock);
    fill(&store);
    let max_offset = store.queues().max_offset("t", 0);
    let found = store.queues().get("t", 0, max_offset - 1, 1, usize::MAX, common::ALL);
    let stored_at = MessageView::decode(found.messages[0].1.bytes(), true).unwrap().store_timestamp;
    assert_eq!(since(stored_at), 0, "new messages are stored at the right time");
}

#[test]
fn a_lease_given_by_a_clock_that_was_years_ahead_ends_after_a_restart() {
    let (machine, ahead) = Machine::new();
    let disk = FakeDisk::new();
    let store = open(&disk, &ahead);
    fill(&store);
    machine.step(YEARS_US);
    ahead.look();
    machine.pass(61 * SECOND_US);
    ahead.look();
    let received = |store: &MessageStore<FakeDisk>| {
        let request = ReceiveRequest {
            group: "g",
            topic: "t",
            queue_count: 1,
            first_queue: 0,
            max_count: 1,
            max_bytes: 4 << 20,
            invisible_ms: 30_000,
            filter: common::ALL,
            begin: Begin::AtMin,
            order: None,
            max_attempts: 0,
            by_priority: false,
            limits: TransferLimits::NONE,
        };
        common::receive(store, &request).unwrap().messages[0].handle.queue_offset
    };
    assert_eq!(received(&store), 0);
    store.close().unwrap();
    drop(store);
    let (machine, clock) = Machine::new();
    let store = open(&disk, &clock);
    assert_eq!(received(&store), 1, "the first is leased");
    machine.pass(31 * SECOND_US);
    let again = BTreeSet::from([received(&store), received(&store)]);
    assert_eq!(again, BTreeSet::from([0, 1]), "both leases have ended");
}

#[test]
fn a_clock_step_forgets_no_number_within_its_window_even_after_a_kill() {
    const NUMBER: &[u8] = b"FERROMQ_SEQUENCE\x01w/0/0/7\x02";
    let config = StoreConfig { dedup_window: Duration::from_secs(24 * 3600), ..asynchronous() };
    let open = |disk: &FakeDisk, clock: &Clock| {
        MessageStore::open_on(disk.clone(), Path::new("/store"), config.clone(), clock.clone()).unwrap()
    };
    let is_new = |store: &MessageStore<FakeDisk>| {
        let sent = store.log().append_once(&[message("t", 0, b"x", NUMBER)]).unwrap();
        sent.locations[0] != Location::THERE_ALREADY
    };
    for step_us in [20 * HOUR_US, 48 * HOUR_US, YEARS_US] {
        let (disk, (machine, clock)) = (FakeDisk::new(), Machine::new());
        let store = open(&disk, &clock);
        assert!(is_new(&store));
        machine.pass(HOUR_US);
        let before = clock.now_ms();
        machine.step(step_us);
        // A step of more than a day is followed once it has lasted.
        let _ = clock.now_ms();
        machine.pass(61 * SECOND_US);
        assert_eq!(clock.now_ms() - before, (step_us + 61 * SECOND_US) / 1000);
        assert_eq!(clock.stepped_ms(), step_us / 1000);
        assert!(!is_new(&store), "{step_us}");
        machine.pass(22 * HOUR_US);
        assert!(!is_new(&store), "{step_us}");
        // The checkpoint after a step records the ages for the next start.
        let path = Path::new("/store/ferromq/sequences");
        wait_until("the snapshot is written", || disk.bytes(path).is_some());
        let read = machine.clone();
        let restarted = Clock::of_machine(move || *read.0.lock().unwrap());
        let second = open(&disk.after_kill(), &restarted);
        assert!(!is_new(&second), "{step_us}");
        machine.pass(HOUR_US);
        assert!(is_new(&second), "{step_us}");
        assert!(is_new(&store), "{step_us}");
    }
}

#[test]
fn numbers_stored_while_the_clock_was_ahead_are_forgotten_a_window_after_the_next_start() {
    const NUMBER: &[u8] = b"FERROMQ_SEQUENCE\x01w/0/0/7\x02";
    let config = StoreConfig { dedup_window: Duration::from_secs(60), ..asynchronous() };
    let disk = FakeDisk::new();
    for (start_ms, remembered) in [(YEARS_US / 1000, 1), (0, 1), (61_000, 0)] {
        let clock = Clock::manual(START_US / 1000 + start_ms);
        let store =
            MessageStore::open_on(disk.clone(), Path::new("/store"), config.clone(), clock.clone()).unwrap();
        if start_ms > 61_000 {
            store.log().append_once(&[message("t", 0, b"x", NUMBER)]).unwrap();
        }
        assert_eq!(store.admin().stats().remembered_sequences, remembered, "{start_ms}");
        // Closing the store after this append takes a snapshot.
        store.log().append(&[message("t", 0, b"y", b"")]).unwrap();
        settle(&store);
        store.close().unwrap();
    }
}
