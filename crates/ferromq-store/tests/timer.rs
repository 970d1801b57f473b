//! Messages with a delivery time are delivered at their millisecond, at least once, in all circumstances.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use common::{
    ALL, copy_as_killed,
    fake_disk::FakeDisk,
    message, settle, synchronous,
    timers::{START, came, deliver_all, open, put, small, wait_for, wait_until},
};
use ferromq_store::{
    MessageStore, StoreConfig,
    delayed::TimerConfig,
    record::{MessageView, names::TIMER_TOPIC, properties},
    time::Clock,
};
use proptest::prelude::*;

#[test]
fn a_timed_message_is_delivered_at_its_millisecond_as_it_was_sent() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    for (body, due) in [("late", START + 5_300), ("soon", START + 5_299), ("whole", START + 5_000)] {
        put(&store, "orders", body, due, false);
    }
    // The time of entry into the wheel is read below.
    wait_until(|| store.admin().stats().timer.queue_offset == 3);
    clock.advance(5_298);
    wait_for(&store, "orders", 1);
    clock.advance(1);
    wait_for(&store, "orders", 2);
    clock.advance(1);
    wait_for(&store, "orders", 3);
    let wanted = [("whole", START + 5_298), ("soon", START + 5_299), ("late", START + 5_300)];
    assert_eq!(came(&store, "orders"), wanted.map(|(body, at)| (body.to_owned(), at)));
    let found = store.queues().get("orders", 0, 1, 1, 1 << 20, ALL);
    let view = MessageView::decode(found.messages[0].1.bytes(), true).unwrap();
    let get = |name| properties::get(view.properties, name);
    assert_eq!((get("UNIQ_KEY"), get("TIMER_OUT_MS")), (Some("soon"), Some("1700000045000")));
    assert_eq!(
        (get("TIMER_ENQUEUE_MS"), get("TIMER_DEQUEUE_MS")),
        (Some("1700000040000"), Some("1700000045299"))
    );
}

#[test]
fn a_recalled_message_is_never_delivered_also_after_a_restart() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    // Far enough to be stored again, and near; one of another topic has the same key.
    for (topic, body, due) in
        [("orders", "far", 250_500), ("orders", "near", 3_000), ("flights", "near", 3_000)]
    {
        put(&store, topic, body, START + due, false);
    }
    put(&store, "orders", "far", START + 250_500, true);
    store.close().unwrap();
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    put(&store, "orders", "near", START + 3_000, true);
    drop(store);
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    deliver_all(&store, &clock, START + 260_000);
    assert_eq!(came(&store, "orders"), []);
    assert_eq!(came(&store, "flights").len(), 1);
}

#[test]
fn a_clean_stop_in_the_middle_of_a_second_delivers_nothing_twice_and_loses_nothing() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    let sent: Vec<String> = (0..200).map(|number| format!("{number}")).collect();
    sent.iter().zip(0..).for_each(|(body, ms)| put(&store, "orders", body, START + 2_001 + 5 * ms, false));
    clock.advance(2_500);
    wait_for(&store, "orders", 100);
    store.close().unwrap();
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    clock.advance(600);
    wait_for(&store, "orders", 200);
    let bodies: Vec<String> = came(&store, "orders").into_iter().map(|(body, _)| body).collect();
    assert_eq!(bodies, sent);
}

#[test]
fn without_its_files_the_wheel_is_rebuilt_and_delivered_messages_stay_delivered() {
    for lost in ["timerwheel", "timerlog", "both", "torn"] {
        let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
        let root = directory.path();
        let store = open(root, &clock);
        store.delayed().start_schedule().unwrap();
        for (body, due) in [("done", 1_000), ("waits", 50_000), ("rolls", 250_000)] {
            put(&store, "orders", body, START + due, false);
        }
        put(&store, "orders", "gone", START + 50_000, false);
        put(&store, "orders", "gone", START + 50_000, true);
        clock.advance(1_000);
        wait_for(&store, "orders", 1);
        clock.advance(1_000);
        store.close().unwrap();
        if lost == "timerwheel" || lost == "both" {
            fs::remove_file(root.join("timerwheel")).unwrap();
        }
        if lost == "timerlog" || lost == "both" {
            fs::remove_dir_all(root.join("timerlog")).unwrap();
        }
        if lost == "torn" {
            fs::write(root.join("timerwheel"), b"torn").unwrap();
            fs::write(root.join("timerlog").join(format!("{:020}", 0)), vec![7; 4096]).unwrap();
        }
        let store = open(root, &clock);
        store.delayed().start_schedule().unwrap();
        deliver_all(&store, &clock, START + 260_000);
        let bodies: Vec<String> = came(&store, "orders").into_iter().map(|(body, _)| body).collect();
        assert_eq!(bodies, ["done", "waits", "rolls"], "{lost}");
    }
}

#[test]
fn cutting_the_log_removes_its_lost_messages_from_the_wheel() {
    let (directory, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let clock = Clock::manual(START);
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    (0..100).for_each(|number| put(&store, "orders", &format!("kept {number}"), START + 9_000, false));
    let end = store.admin().stats().max_physical_offset;
    (0..100).for_each(|number| put(&store, "orders", &format!("cut {number}"), START + 9_000, false));
    wait_until(|| store.delayed().timed_waiting() == (200, 0));
    // The wheel's files hold all messages, the log the first half.
    store.delayed().stop_schedule().unwrap();
    copy_as_killed(directory.path(), copy.path());
    drop(store);
    let log = copy.path().join("commitlog").join(format!("{:020}", 0));
    let mut bytes = fs::read(&log).unwrap();
    bytes[end as usize..].fill(0);
    fs::write(&log, bytes).unwrap();
    // As a Java broker leaves it after a power loss: without a record of a later durable end.
    fs::remove_dir_all(copy.path().join("ferromq")).unwrap();
    fs::write(copy.path().join("abort"), "1234").unwrap();
    let store = open(copy.path(), &clock);
    assert_eq!(store.queues().max_offset(TIMER_TOPIC, 0), 100);
    assert_eq!(store.admin().stats().timer.queue_offset, 100, "not ahead of its queue");
    assert_eq!(store.delayed().timed_waiting(), (100, 0));
    // Messages that replace the lost end enter the wheel, and only they.
    (0..30).for_each(|number| put(&store, "orders", &format!("new {number}"), START + 9_000, false));
    store.delayed().start_schedule().unwrap();
    clock.advance(9_000);
    wait_for(&store, "orders", 130);
    let bodies: Vec<String> = came(&store, "orders").into_iter().map(|(body, _)| body).collect();
    assert!(bodies.iter().all(|body| !body.starts_with("cut")), "{bodies:?}");
    assert_eq!((store.queues().max_offset("orders", 0), store.admin().stats().timer.lost), (130, 0));
}

/// `FERROMQ_TIMED_MESSAGES=1000000` runs it with a million.
#[test]
fn messages_due_in_one_second_come_in_order_even_if_they_do_not_fit_in_memory() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let given = std::env::var("FERROMQ_TIMED_MESSAGES").ok().and_then(|text| text.parse().ok());
    let (count, most): (i64, usize) = (given.unwrap_or(10_000), 700);
    let timer = TimerConfig { in_memory: most, ..TimerConfig::default() };
    let config = StoreConfig { timer, commit_log_file_size: 64 << 20, ..StoreConfig::default() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    store.delayed().start_schedule().unwrap();
    for number in 0..count / 100 {
        // Spread over the milliseconds of the second.
        let due = START + 60_000 - number * 37 % 1_000;
        let (text, body) = (waiting_text(due), due.to_string());
        let one = message(TIMER_TOPIC, 0, body.as_bytes(), &text);
        store.log().append(&vec![one; 100]).unwrap();
    }
    settle(&store);
    wait_until(|| store.admin().stats().timer.queue_offset == count as u64);
    clock.advance(60_000);
    wait_until(|| store.queues().max_offset("orders", 0) == count as u64);
    settle(&store);
    let due: Vec<i64> = came(&store, "orders").iter().map(|(due, _)| due.parse().unwrap()).collect();
    assert_eq!(due.len() as i64, count);
    assert!(due.is_sorted());
}

fn waiting_text(due: i64) -> Vec<u8> {
    let (due_text, out) = (due.to_string(), ((due - 1) / 1000 * 1000).to_string());
    let pairs = [
        ("TIMER_DELIVER_MS", due_text.as_str()),
        ("TIMER_OUT_MS", out.as_str()),
        ("REAL_TOPIC", "orders"),
        ("REAL_QID", "0"),
    ];
    let mut text = Vec::new();
    pairs.iter().for_each(|(name, value)| properties::push(&mut text, name, value));
    text
}

#[test]
fn the_files_are_those_of_rocketmq() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    put(&store, "orders", "a", START + 5_300, false);
    put(&store, "orders", "b", START + 5_000, false);
    put(&store, "orders", "c", START + 6_000, true);
    wait_until(|| store.admin().stats().timer.queue_offset == 3);
    store.close().unwrap();
    let read = |name: &str| fs::read(directory.path().join(name)).unwrap();
    let number = |bytes: &[u8], at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let wheel = read("timerwheel");
    assert_eq!(wheel.len(), 4_000 * 32);
    let slot = |time: i64| {
        let at = (time / 1000 % 4_000) as usize * 32;
        let count = i32::from_be_bytes(wheel[at + 24..at + 28].try_into().unwrap());
        (number(&wheel, at), number(&wheel, at + 8), number(&wheel, at + 16), count)
    };
    assert_eq!(slot(START + 5_000), ((START + 5_000) / 1000, 0, 104, 0), "one message, and one recall");
    assert_eq!(slot(START + 4_000), ((START + 4_000) / 1000, 52, 52, 1));
    let log = read("timerlog/00000000000000000000");
    let unit = &log[104..156];
    assert_eq!(&unit[..4], &52i32.to_be_bytes());
    assert_eq!((number(unit, 4), i32::from_be_bytes(unit[12..16].try_into().unwrap())), (0, 1 | 4));
    assert_eq!((number(unit, 16), i32::from_be_bytes(unit[24..28].try_into().unwrap())), (START, 5_000));
    assert_eq!(&unit[40..44], &(-1_008_770_331i32).to_be_bytes(), "\"orders\".hashCode()");
    assert_eq!(number(&log, 4), -1);
    let check = read("config/timercheck");
    assert_eq!(check.len(), 4096);
    let numbers: Vec<i64> = (0..4).map(|place| number(&check, place * 8)).collect();
    assert_eq!(numbers, [START, 156, 3, 3]);
    let metrics = String::from_utf8(read("config/timermetrics")).unwrap();
    assert!(metrics.contains(r#""orders":{"count":1,"#), "{metrics}");
}

#[derive(Debug, Clone)]
enum Step {
    Send { ahead: i64 },
    TakeBack { which: prop::sample::Index },
    Advance(i64),
    Reopen,
    Crash(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..20_000i64).prop_map(|ahead| Step::Send { ahead }),
        2 => (1..300i64).prop_map(|seconds| Step::Send { ahead: seconds * 1000 }),
        2 => any::<prop::sample::Index>().prop_map(|which| Step::TakeBack { which }),
        4 => (0..8_000i64).prop_map(Step::Advance),
        1 => (0..100_000i64).prop_map(Step::Advance),
        1 => Just(Step::Reopen),
        2 => any::<u64>().prop_map(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: common::cases(50), ..ProptestConfig::default() })]

    /// On a disk that loses unflushed data: no acknowledged message is lost, none is early or delivered after its
    /// recall, and without a crash none is repeated.
    #[test]
    fn each_timed_message_is_delivered_and_none_before_its_time_in_all_circumstances(steps in prop::collection::vec(step(), 1..25)) {
        let clock = Clock::manual(START);
        let mut disk = FakeDisk::new();
        let config = || StoreConfig { timer: small(), progress_interval: Duration::from_millis(20), ..synchronous() };
        let open = |disk: &FakeDisk| {
            let store = MessageStore::open_on(disk.clone(), Path::new("/store"), config(), clock.clone()).unwrap();
            store.delayed().start_schedule().unwrap();
            store
        };
        let mut store = open(&disk);
        let (mut sent, mut has_crashed) = (BTreeMap::<String, (i64, bool)>::new(), false);
        for step in steps {
            match step {
                Step::Send { ahead } => {
                    let (body, due) = (format!("{}", sent.len()), clock.now_ms() + ahead);
                    put(&store, "orders", &body, due, false);
                    sent.insert(body, (due, false));
                }
                Step::TakeBack { which } => {
                    let now = clock.now_ms();
                    let open: Vec<_> = sent.iter_mut().filter(|(_, (due, _))| *due > now).collect();
                    if !open.is_empty() {
                        let at = which.index(open.len());
                        let (body, state) = open.into_iter().nth(at).unwrap();
                        put(&store, "orders", body, state.0, true);
                        state.1 = true;
                    }
                }
                Step::Advance(ms) => clock.advance(ms),
                Step::Reopen => {
                    store.close().unwrap();
                    store = open(&disk);
                }
                Step::Crash(seed) => {
                    disk = disk.crash(seed);
                    drop(store);
                    store = open(&disk);
                    has_crashed = true;
                }
            }
        }
        deliver_all(&store, &clock, clock.now_ms() + 301_000);
        settle(&store);
        let mut times = BTreeMap::<String, u64>::new();
        for (body, at) in came(&store, "orders") {
            let (due, is_taken_back) = sent[&body];
            prop_assert!(at >= due, "{body} came at {at}, due at {due}");
            prop_assert!(!is_taken_back, "{body} was taken back");
            *times.entry(body).or_default() += 1;
        }
        let wanted = sent.iter().filter(|(_, (_, is_taken_back))| !is_taken_back);
        prop_assert!(times.keys().eq(wanted.map(|(body, _)| body)), "lost: {sent:?} {times:?}");
        prop_assert!(has_crashed || times.values().all(|times| *times == 1), "{times:?}");
    }
}
