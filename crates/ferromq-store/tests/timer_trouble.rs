//! Timed messages are delivered at their time despite wrong clocks, files, limits, or traces of another broker.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{fs, path::Path, time::Duration};

use common::{
    message,
    timers::{START, came, config, deliver_all, open, put, small, wait_for},
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    delayed::TimerConfig,
    record::{names::TIMER_TOPIC, properties},
    time::Clock,
};

fn bodies(store: &MessageStore, topic: &str) -> Vec<String> {
    came(store, topic).into_iter().map(|(body, _)| body).collect()
}

/// Properties of a timed message with this many bytes while it waits.
fn waiting_properties(len: usize, due: i64) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in [
        ("TIMER_DELIVER_MS", due.to_string().as_str()),
        ("TIMER_OUT_MS", ((due - 1) / 1000 * 1000).to_string().as_str()),
        ("REAL_TOPIC", "orders"),
        ("REAL_QID", "0"),
    ] {
        properties::push(&mut text, name, value);
    }
    let room = len - text.len() - 3;
    properties::push(&mut text, "a", &"x".repeat(room));
    assert_eq!(text.len(), len);
    text
}

#[test]
fn properties_without_room_for_delivery_are_refused_and_those_on_disk_are_delivered_without_the_additions() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    // `TIMER_OUT_MS`, `REAL_TOPIC` and `REAL_QID` take 56 bytes; delivery adds up to 110.
    let given = |len: usize| {
        let mut text = Vec::new();
        properties::push(&mut text, "TIMER_DELIVER_MS", &(START + 5_000).to_string());
        let room = len - text.len() - 3;
        properties::push(&mut text, "a", &"x".repeat(room));
        store
            .log()
            .delayed(&message("orders", 0, b"m", &text))
            .map(|delayed| delayed.unwrap().properties.len())
    };
    let most = 32_767 - 110;
    let added = given(1_000).unwrap() - 1_000;
    assert_eq!(given(most - added).unwrap(), most);
    let error = given(most - added + 1).unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("delivery time"), "{error}");
    // Near, and so far that it is stored again on its way.
    for (len, due) in [(32_767, START + 5_000), (32_767 - 61, START + 6_000), (32_767, START + 150_000)] {
        let text = waiting_properties(len, due);
        store.log().append(&[message(TIMER_TOPIC, 0, len.to_string().as_bytes(), &text)]).unwrap();
    }
    deliver_all(&store, &clock, START + 160_000);
    assert_eq!(bodies(&store, "orders"), ["32767", "32706", "32767"]);
    assert_eq!(store.admin().stats().timer.undeliverable, 0);
}

#[test]
fn a_stop_while_the_clock_was_ahead_delays_nothing_and_loses_nothing() {
    for ahead in [3_600_000, 40 * 86_400_000i64] {
        let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START + ahead));
        let store = open(directory.path(), &clock);
        store.delayed().start_schedule().unwrap();
        put(&store, "orders", "done", START + ahead + 1_000, false);
        clock.advance(2_000);
        wait_for(&store, "orders", 1);
        store.close().unwrap();
        let clock = Clock::manual(START);
        let store = open(directory.path(), &clock);
        store.delayed().start_schedule().unwrap();
        put(&store, "orders", "soon", START + 3_000, false);
        clock.advance(3_000);
        wait_for(&store, "orders", 2);
        assert_eq!(bodies(&store, "orders"), ["done", "soon"], "{ahead}");
    }
}

/// Changes the timer log's file while the store is closed.
fn change_log(root: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let path = root.join("timerlog").join(format!("{:020}", 0));
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_unit_that_refers_to_a_later_message_delivers_it_at_its_time_and_once() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    for (body, due) in [("a", 5_000), ("b", 60_000), ("c", 6_000)] {
        put(&store, "orders", body, START + due, false);
    }
    common::timers::wait_until(|| store.admin().stats().timer.queue_offset == 3);
    store.close().unwrap();
    // The first unit refers to the second message.
    change_log(directory.path(), |bytes| bytes.copy_within(52 + 28..52 + 44, 28));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    clock.advance(6_000);
    wait_for(&store, "orders", 1);
    deliver_all(&store, &clock, START + 70_000);
    assert_eq!(bodies(&store, "orders"), ["c", "b"]);
    assert_eq!(store.queues().max_offset("orders", 0), 2);
}

/// A store with waiting messages, as a killed Java broker leaves it.
fn killed_as_java(root: &Path) {
    fs::remove_dir_all(root.join("ferromq")).unwrap();
    fs::write(root.join("abort"), "1234").unwrap();
}

#[test]
fn a_message_without_a_unit_from_a_killed_java_broker_is_delivered_although_later_ones_have_units() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    for (body, due) in [("first", 4_000), ("without", 5_000), ("later", 6_000)] {
        put(&store, "orders", body, START + due, false);
    }
    common::timers::wait_until(|| store.admin().stats().timer.queue_offset == 3);
    store.close().unwrap();
    // The second has no unit, and the checkpoint is older than all.
    change_log(directory.path(), |bytes| {
        bytes.copy_within(104..156, 52);
        bytes[104..156].fill(0);
    });
    let check = directory.path().join("config").join("timercheck");
    let mut bytes = fs::read(&check).unwrap();
    bytes[8..32].fill(0);
    fs::write(&check, bytes).unwrap();
    killed_as_java(directory.path());
    let store = open(directory.path(), &clock);
    assert_eq!((store.delayed().timed_waiting(), store.admin().stats().timer.queue_offset), ((3, 0), 3));
    store.delayed().start_schedule().unwrap();
    deliver_all(&store, &clock, START + 20_000);
    let mut came = bodies(&store, "orders");
    came.sort();
    assert_eq!(came, ["first", "later", "without"]);
}

#[test]
fn a_changed_precision_or_an_invalid_wheel_rebuilds_the_wheel() {
    for (precision, is_short) in [(100, false), (2_000, false), (1_000, true)] {
        let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
        let store = open(directory.path(), &clock);
        store.delayed().start_schedule().unwrap();
        put(&store, "orders", "near", START + 5_300, false);
        put(&store, "orders", "rolls", START + 250_000, false);
        common::timers::wait_until(|| store.admin().stats().timer.queue_offset == 2);
        store.close().unwrap();
        if is_short {
            fs::write(directory.path().join("timerwheel"), vec![0; 64 * 62]).unwrap();
        }
        let timer = TimerConfig { precision: Duration::from_millis(precision), ..small() };
        let config = StoreConfig { timer, ..config() };
        let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
        assert_eq!(store.delayed().timed_waiting(), (2, 0), "{precision}");
        store.delayed().start_schedule().unwrap();
        deliver_all(&store, &clock, START + 260_000);
        assert_eq!(bodies(&store, "orders"), ["near", "rolls"], "{precision}");
    }
}

#[test]
fn waiting_messages_are_stored_again_well_before_their_retention_ends() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let mut config = config();
    config.timer.roll_window = 1_000;
    config.retention.age_by_topic.insert(TIMER_TOPIC.to_owned(), Duration::from_mins(5));
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    store.delayed().start_schedule().unwrap();
    put(&store, "orders", "far", START + 900_000, false);
    // A record waits 200 seconds at most.
    for rolled in 0..4 {
        common::timers::wait_until(|| {
            let timer = store.admin().stats().timer;
            (timer.rolled, timer.queue_offset) == (rolled, rolled + 1)
        });
        clock.advance(200_000);
    }
    common::timers::wait_until(|| store.admin().stats().timer.queue_offset == 5);
    clock.advance(100_000);
    wait_for(&store, "orders", 1);
}
