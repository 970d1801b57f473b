//! A directory of a Java broker whose pop consumers have messages in flight: check-points and acknowledgements become
//! leases.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{fs, path::Path, time::Duration};

use common::{ALL, asynchronous, message, named, settle};
use ferromq_store::{
    MessageStore, StoreConfig,
    progress::{Begin, ReceiveRequest},
    read::TransferLimits,
    record::properties,
    time::Clock,
};
use tempfile::TempDir;

const START: i64 = 1_700_000_000_000;
const LOG: &str = "rmq_sys_REVIVE_LOG_DefaultCluster";
const REVIVERS: &str = "CID_RMQ_SYS_REVIVE_GROUP";
/// The Java broker's timer has delivered messages due before this.
const READ_UNTIL: i64 = START + 5_000;

fn open(directory: &Path, clock: &Clock) -> MessageStore {
    let config = StoreConfig { progress_interval: Duration::from_secs(3_600), ..asynchronous() };
    MessageStore::open(directory, config, clock.clone()).unwrap()
}

/// A pop of queue 0 of the topic `t` by the group `g`, `start` and `at` milliseconds after [`START`].
fn check_point(start: u64, distances: &str, at: i64, invisible_ms: i64, bits: u32) -> String {
    let count = distances.split(',').count();
    let pop_time = START + at;
    format!(
        r#"{{"bm":{bits},"bn":"broker-a","c":"g","d":[{distances}],"it":{invisible_ms},"n":{count},"pt":{pop_time},"q":0,"ro":0,"so":{start},"t":"t"}}"#
    )
}

fn ack(start: u64, offset: u64, at: i64) -> String {
    let pop_time = START + at;
    format!(r#"{{"ao":{offset},"bn":"broker-a","c":"g","pt":{pop_time},"q":0,"so":{start},"t":"t"}}"#)
}

fn acks(start: u64, offsets: &str, at: i64) -> String {
    let pop_time = START + at;
    format!(
        r#"{{"ackOffsetList":[{offsets}],"consumerGroup":"g","popTime":{pop_time},"queueId":0,"startOffset":{start},"topic":"t"}}"#
    )
}

/// Stores a message of the revive log.
fn put(store: &MessageStore, tag: &str, body: &str) {
    store.log().append(&[message(LOG, 3, body.as_bytes(), &named("k", tag))]).unwrap();
}

/// Stores a message of the revive log that still waits for its time.
fn put_waiting(store: &MessageStore, tag: &str, body: &str, until: i64) {
    let mut all = named("k", tag);
    for (name, value) in [("REAL_TOPIC", LOG), ("REAL_QID", "3"), ("TIMER_OUT_MS", &until.to_string())] {
        properties::push(&mut all, name, value);
    }
    store.log().append(&[message("rmq_sys_wheel_timer", 0, body.as_bytes(), &all)]).unwrap();
}

/// Ten messages, eight of them popped, as a Java broker leaves them.
fn left_by_java(clock: &Clock) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), clock);
    for number in 0..10 {
        store.log().append(&[message("t", 0, format!("{number}").as_bytes(), &named("k", "a"))]).unwrap();
    }
    // Already processed: the log was read to offset 1.
    put(&store, "ck", &check_point(6, "0,1", -90_000, 10_000, 0));
    put(&store, "ack", &ack(6, 6, -90_000));
    // 0 is in flight; 1 is acknowledged in the log, 2 by a message that still waits.
    put(&store, "ck", &check_point(0, "0,1,2", 0, 60_000, 0));
    put(&store, "ack", &ack(0, 1, 0));
    put_waiting(&store, "bAck", &acks(0, "2", 0), START + 60_000);
    // 3 is in flight; 4 was acknowledged before the check-point was written; 5 got another expiry.
    put_waiting(&store, "ck", &check_point(3, "0,1,2", 1_000, 60_000, 0b10), START + 60_000);
    put_waiting(&store, "ck", &check_point(5, "0", 2_000, 120_000, 0), START + 121_000);
    put_waiting(&store, "ack", &ack(3, 5, 1_000), START + 61_000);
    // Delivered before, so the log should hold it, but no longer does.
    put_waiting(&store, "ck", &check_point(7, "0", -9_000, 10_000, 0), START);
    for nonsense in ["", "{}", "[1]", r#"{"c":"g","t":"t","q":-1,"so":0,"pt":1,"it":1,"d":[0]}"#] {
        put(&store, "ck", nonsense);
    }
    put_waiting(&store, "other", "no matter", START + 60_000);
    settle(&store);
    store.groups().commit_offset("g", "t", 0, 8).unwrap();
    store.groups().commit_offset(REVIVERS, LOG, 3, 1).unwrap();
    store.close().unwrap();
    fs::remove_dir_all(directory.path().join("ferromq")).unwrap();
    let mut check = READ_UNTIL.to_be_bytes().to_vec();
    check.resize(4_096, 0);
    fs::write(directory.path().join("config/timercheck"), check).unwrap();
    directory
}

fn receive(store: &MessageStore) -> Vec<u64> {
    let request = ReceiveRequest {
        group: "g",
        topic: "t",
        queue_count: 1,
        first_queue: 0,
        max_count: 32,
        max_bytes: 4 << 20,
        invisible_ms: 3_600_000,
        filter: ALL,
        begin: Begin::AtMin,
        order: None,
        max_attempts: 0,
        by_priority: false,
        limits: TransferLimits::NONE,
    };
    common::receive(store, &request)
        .unwrap()
        .messages
        .iter()
        .map(|leased| leased.handle.queue_offset)
        .collect()
}

#[test]
fn javas_messages_in_flight_are_redelivered_at_expiry_and_acknowledged_ones_never() {
    let clock = Clock::manual(START + 10_000);
    let directory = left_by_java(&clock);
    let store = open(directory.path(), &clock);
    assert_eq!(store.groups().committed_offset("g", "t", 0), Some(0));
    assert_eq!(receive(&store), [8, 9]);
    clock.advance(49_999);
    assert_eq!(receive(&store), [0; 0]);
    clock.advance(1);
    assert_eq!(receive(&store), [0]);
    clock.advance(1_000);
    assert_eq!(receive(&store), [3]);
    clock.advance(61_000);
    assert_eq!(receive(&store), [5]);
}

#[test]
fn the_revive_log_is_read_once_and_no_broker_reads_it_again() {
    let clock = Clock::manual(START + 10_000);
    let directory = left_by_java(&clock);
    let store = open(directory.path(), &clock);
    let end = store.queues().max_offset(LOG, 3);
    assert_eq!(store.groups().committed_offset(REVIVERS, LOG, 3), Some(end - 1));
    clock.advance(50_000);
    assert_eq!(receive(&store), [0, 8, 9]);
    store.close().unwrap();
    let store = open(directory.path(), &clock);
    assert_eq!(store.groups().committed_offset("g", "t", 0), Some(0));
    clock.advance(1_000);
    assert_eq!(receive(&store), [3]);
    store.close().unwrap();
    let json = fs::read_to_string(directory.path().join("config/consumerOffset.json")).unwrap();
    assert!(json.contains(&format!("\"{LOG}@{REVIVERS}\":{{3:{}}}", end - 1)), "{json}");
}

#[test]
fn a_kill_right_after_the_take_over_loses_no_lease() {
    let clock = Clock::manual(START + 10_000);
    let directory = left_by_java(&clock);
    let killed = tempfile::tempdir().unwrap();
    let store = open(directory.path(), &clock);
    for part in ["config", "ferromq"] {
        fs::create_dir_all(killed.path().join(part)).unwrap();
        for entry in fs::read_dir(directory.path().join(part)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), killed.path().join(part).join(entry.file_name())).unwrap();
        }
    }
    let abort = fs::read(directory.path().join("abort")).unwrap();
    store.close().unwrap();
    for part in ["config", "ferromq"] {
        fs::remove_dir_all(directory.path().join(part)).unwrap();
        fs::rename(killed.path().join(part), directory.path().join(part)).unwrap();
    }
    fs::write(directory.path().join("abort"), abort).unwrap();
    let store = open(directory.path(), &clock);
    assert_eq!(receive(&store), [8, 9]);
    clock.advance(51_000);
    assert_eq!(receive(&store), [0, 3]);
}

#[test]
fn a_group_without_an_offset_begins_at_its_first_popped_message() {
    let clock = Clock::manual(START + 10_000);
    let directory = left_by_java(&clock);
    let path = directory.path().join("config/consumerOffset.json");
    fs::remove_file(path.with_extension("json.bak")).ok();
    fs::write(&path, format!("{{\"offsetTable\":{{\"{LOG}@{REVIVERS}\":{{3:1}}}}}}")).unwrap();
    let store = open(directory.path(), &clock);
    assert_eq!(receive(&store), (0..10).collect::<Vec<u64>>());
}

/// Puts a file in place of a queue's directory, until the returned function is called.
fn hide(directory: &Path, queue: &str) -> impl Fn() {
    let path = directory.join("consumequeue").join(queue);
    let hidden = directory.join("hidden");
    fs::rename(&path, &hidden).unwrap();
    fs::write(&path, "no directory").unwrap();
    move || {
        fs::remove_file(&path).unwrap();
        fs::rename(&hidden, &path).unwrap();
    }
}

#[test]
fn a_directory_is_taken_over_once_all_state_of_messages_in_flight_can_be_read() {
    for queue in [format!("{LOG}/3"), "rmq_sys_wheel_timer/0".to_owned()] {
        let clock = Clock::manual(START + 10_000);
        let directory = left_by_java(&clock);
        let show = hide(directory.path(), &queue);
        let config = StoreConfig { progress_interval: Duration::from_secs(3_600), ..asynchronous() };
        for _ in 0..2 {
            let refused = MessageStore::open(directory.path(), config.clone(), clock.clone());
            let refused = refused.err().expect("it is not taken over").to_string();
            assert!(refused.contains(&queue) && refused.contains("open the store again"), "{refused}");
        }
        show();
        let store = open(directory.path(), &clock);
        assert_eq!(store.groups().committed_offset("g", "t", 0), Some(0), "{queue}");
        clock.advance(200_000);
        assert_eq!(receive(&store), [0, 3, 5, 8, 9], "{queue}");
    }
}

#[test]
fn messages_in_flight_of_an_unreadable_queue_are_redelivered_once_it_can_be_read() {
    let clock = Clock::manual(START + 10_000);
    let directory = left_by_java(&clock);
    let show = hide(directory.path(), "t/0");
    let store = open(directory.path(), &clock);
    assert_eq!(receive(&store), [0; 0]);
    assert_eq!(store.groups().committed_offset("g", "t", 0), Some(0));
    show();
    common::wait_until("the queue is complete", || store.admin().stats().set_aside_queues == 0);
    clock.advance(200_000);
    assert_eq!(receive(&store), [0, 3, 5, 8, 9]);
}
