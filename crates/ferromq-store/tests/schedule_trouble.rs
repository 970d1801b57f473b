//! Lost records, clocks set back, closed topics and failing disks: no delayed message is early, and each lost one is
//! logged.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{
    ALL,
    delays::{START, config, delivered, open, send, texts},
    fake_disk::{FakeDisk, Op},
    settle,
    timers::wait_until,
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    queues::QueueAccess,
    read::GetStatus,
    record::{MessageView, names::SCHEDULE_TOPIC},
    time::Clock,
};

/// Advances the clock in small steps until a level is delivered up to `offset`. Returns how long that took.
fn waited(store: &MessageStore, clock: &Clock, level: u32, offset: u64) -> i64 {
    let begin = clock.now_ms();
    for _ in 0..60_000 {
        if store.delayed().delay_offsets().unwrap().get(&level) == Some(&offset) {
            settle(store);
            return clock.now_ms() - begin;
        }
        clock.advance(1);
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("level {level} never reached {offset}: {:?}", store.delayed().delay_offsets());
}

#[test]
fn a_clock_set_back_makes_no_message_early_or_late() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START + 86_400_000));
    let store = open(directory.path(), &clock);
    send(&store, "orders", 0, "one", 1);
    store.close().unwrap();
    // The machine's clock was a day ahead, and so is the log's time.
    let clock = Clock::manual(START);
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    let first = waited(&store, &clock, 1, 1);
    assert!(first >= 1_000, "delivered {first} ms after it was seen");
    send(&store, "orders", 0, "two", 1);
    let second = waited(&store, &clock, 1, 2);
    assert!(second >= 1_000, "delivered {second} ms after it was sent");
    assert_eq!(texts(&store, "orders", 0), ["one", "two"]);
}

#[test]
fn a_lost_record_makes_no_later_message_early() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, "orders", 0, "lost", 1);
    clock.advance(900);
    send(&store, "orders", 0, "later", 1);
    // The head of the first record names another place.
    let lost = store.queues().get(SCHEDULE_TOPIC, 0, 0, 1, 1 << 20, ALL);
    let at = MessageView::decode(lost.messages[0].1.bytes(), true).unwrap().physical_offset;
    let log = directory.path().join("commitlog/00000000000000000000");
    let file = fs::OpenOptions::new().write(true).open(log).unwrap();
    file.write_all_at(&77u64.to_be_bytes(), at + 28).unwrap();
    clock.advance(100);
    store.delayed().start_schedule().unwrap();
    delivered(&store, 1, 1);
    assert_eq!(store.queues().max_offset("orders", 0), 0, "due in 900 ms");
    clock.advance(900);
    delivered(&store, 1, 2);
    assert_eq!(texts(&store, "orders", 0), ["later"]);
    let stats = store.admin().stats().schedule;
    assert_eq!((stats.delivered, stats.undeliverable), (1, 1));
}

#[test]
fn a_message_that_can_neither_be_delivered_nor_wait_is_given_up_and_counted_once() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.admin().set_queue_access("shut", 0, QueueAccess::Closed).unwrap();
    send(&store, "shut", 0, &"large".repeat(200), 1);
    store.close().unwrap();
    clock.advance(1_000);
    let config = StoreConfig { max_message_size: 500, ..config() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    store.delayed().start_schedule().unwrap();
    delivered(&store, 1, 1);
    let stats = store.admin().stats().schedule;
    assert_eq!((stats.delivered, stats.put_back, stats.undeliverable), (0, 0, 1));
}

#[test]
fn a_message_whose_topic_stays_closed_is_stored_again_until_its_retention_ends() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let mut config = StoreConfig { delay_levels: "1s 10s".parse().unwrap(), ..config() };
    config.retention.age = Some(Duration::from_secs(25));
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    store.delayed().start_schedule().unwrap();
    store.admin().set_queue_access("shut", 0, QueueAccess::Closed).unwrap();
    send(&store, "shut", 0, "old", 1);
    clock.advance(1_000);
    delivered(&store, 1, 1);
    for rounds in 1..=3 {
        clock.advance(10_000);
        delivered(&store, 2, rounds);
    }
    assert_eq!(store.queues().max_offset(SCHEDULE_TOPIC, 1), 3, "given up 31 s after it was born");
    let stats = store.admin().stats().schedule;
    assert_eq!((stats.put_back, stats.undeliverable), (3, 1));
}

#[test]
fn level_offsets_are_written_even_if_group_offsets_cannot_be() {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(START));
    let store = MessageStore::open_on(disk.clone(), Path::new("/store"), config(), clock.clone()).unwrap();
    store.delayed().start_schedule().unwrap();
    send(&store, "orders", 0, "one", 1);
    clock.advance(1_000);
    delivered(&store, 1, 1);
    store.groups().commit_offset("group", "orders", 0, 1).unwrap();
    disk.set_hook(|_, path| match path.to_str() {
        Some(path) if path.contains("consumerOffset") => Err(std::io::Error::from_raw_os_error(5)),
        _ => Ok(()),
    });
    assert!(matches!(store.close(), Err(StoreError::Io { .. })));
    disk.clear_hook();
    let store = MessageStore::open_on(disk, Path::new("/store"), config(), clock).unwrap();
    assert_eq!(store.delayed().delay_offsets().unwrap().get(&1), Some(&1));
}

#[test]
fn a_listener_is_called_for_delivered_messages_only() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let teller = std::sync::Arc::clone(&told);
    store.delayed().on_delivery(move |topic, bytes| teller.lock().unwrap().push((topic.to_owned(), bytes)));
    store.admin().set_queue_access("shut", 0, QueueAccess::Closed).unwrap();
    store.delayed().start_schedule().unwrap();
    send(&store, "shut", 0, "patient", 1);
    send(&store, "orders", 0, "one", 1);
    clock.advance(1_000);
    delivered(&store, 1, 2);
    let size = store.queues().get("orders", 0, 0, 1, 1 << 20, ALL).messages[0].1.bytes().len();
    assert_eq!(*told.lock().unwrap(), [("orders".to_owned(), size as u32)]);
}

#[test]
fn messages_of_a_level_whose_queue_was_unreadable_for_a_while_come_without_a_new_arrival() {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(START));
    let config = StoreConfig { mapped_bytes: 0, open_files: 1, ..config() };
    let open = || MessageStore::open_on(disk.clone(), Path::new("/store"), config.clone(), clock.clone());
    let store = open().unwrap();
    let count = config.consume_queue_file_entries + 10;
    (0..count).for_each(|_| send(&store, "orders", 0, "one", 1));
    store.close().unwrap();
    drop(store);
    clock.advance(1_000);
    let store = open().unwrap();
    let failures = Arc::new(AtomicU64::new(0));
    let (seen, file) = (Arc::clone(&failures), format!("consumequeue/{SCHEDULE_TOPIC}/0/{:020}", 0));
    disk.set_hook(move |op, path| match op == Op::Open && path.ends_with(&file) {
        true => {
            seen.fetch_add(1, Ordering::SeqCst);
            Err(std::io::Error::from_raw_os_error(5))
        }
        false => Ok(()),
    });
    let status = |offset| store.queues().get(SCHEDULE_TOPIC, 0, offset, 1, 1 << 20, ALL).status;
    // Reading the other file closes the first one.
    wait_until(|| status(count - 1) == GetStatus::Found && status(0) == GetStatus::MessageUnreadable);
    let before = failures.load(Ordering::SeqCst);
    store.delayed().start_schedule().unwrap();
    wait_until(|| failures.load(Ordering::SeqCst) > before);
    assert_eq!(store.queues().max_offset("orders", 0), 0);
    disk.clear_hook();
    delivered(&store, 1, count);
    assert_eq!(texts(&store, "orders", 0).len() as u64, count);
}
