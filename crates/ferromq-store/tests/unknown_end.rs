//! A queue that is set aside at open and readable only in part: where that part ends decides nothing permanently.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use common::{
    ALL, asynchronous, bodies, delays,
    fake_disk::{FakeDisk, Op},
    message, settle, timers, wait_until,
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    progress::{Begin, ReceiveRequest},
    read::{GetStatus, TransferLimits},
    record::names::{SCHEDULE_TOPIC, TIMER_TOPIC},
    retention::Retention,
    time::Clock,
};

const ROOT: &str = "/store";
const EACCES: i32 = 13;
const START: i64 = timers::START;
/// Entries in one file of a queue, which is the readable part.
const IN_FILE: u64 = 50;
const COUNT: u64 = 2 * IN_FILE + 30;

type Store = MessageStore<FakeDisk>;

fn open(disk: &FakeDisk, config: &StoreConfig, clock: &Clock) -> Store {
    MessageStore::open_on(disk.clone(), Path::new(ROOT), config.clone(), clock.clone()).unwrap()
}

/// Removes all files of a queue but the first, and makes creating others fail until the returned flag is cleared.
fn break_queue(disk: &FakeDisk, topic: &str, queue_id: u32) -> Arc<AtomicBool> {
    let directory = Path::new(ROOT).join("consumequeue").join(topic).join(queue_id.to_string());
    for path in disk.paths().iter().filter(|path| path.starts_with(&directory)) {
        if !path.ends_with(format!("{:020}", 0)) {
            disk.forget(path);
        }
    }
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken = Arc::clone(&is_broken);
    disk.set_hook(move |op, path| {
        let is_making = matches!(op, Op::Create | Op::Rename) && path.starts_with(&directory);
        let fails = is_making && broken.load(Ordering::SeqCst);
        if fails { Err(io::Error::from_raw_os_error(EACCES)) } else { Ok(()) }
    });
    is_broken
}

fn mend(store: &Store, is_broken: &AtomicBool) {
    is_broken.store(false, Ordering::SeqCst);
    wait_until("the queue is complete", || store.admin().stats().set_aside_queues == 0);
}

fn send(store: &Store, topic: &str, count: u64) {
    let batch: Vec<_> = (0..count).map(|_| message(topic, 0, b"body", b"")).collect();
    store.log().append(&batch).unwrap();
    settle(store);
}

/// Offsets that a group receives from queue 0, in order.
fn receive(store: &Store, group: &str, begin: Begin) -> Vec<u64> {
    let request = ReceiveRequest {
        group,
        topic: "t",
        queue_count: 1,
        first_queue: 0,
        max_count: 1000,
        max_bytes: 4 << 20,
        invisible_ms: 1000,
        filter: ALL,
        begin,
        order: None,
        max_attempts: 0,
        by_priority: false,
        limits: TransferLimits::NONE,
    };
    let mut offsets: Vec<u64> = common::receive(store, &request)
        .unwrap()
        .messages
        .iter()
        .map(|leased| leased.handle.queue_offset)
        .collect();
    offsets.sort_unstable();
    offsets
}

#[test]
fn groups_keep_their_places_and_leases_and_topics_are_not_deleted_until_the_end_is_known() {
    let (disk, clock, config) = (FakeDisk::new(), Clock::manual(START), asynchronous());
    let store = open(&disk, &config, &clock);
    send(&store, "t", COUNT);
    store.groups().commit_offset("g", "t", 0, COUNT - 10).unwrap();
    assert_eq!(receive(&store, "leases", Begin::AtMin).len() as u64, COUNT);
    store.close().unwrap();
    drop(store);

    let is_broken = break_queue(&disk, "t", 0);
    let store = open(&disk, &config, &clock);
    assert_eq!((store.admin().stats().set_aside_queues, store.queues().max_offset("t", 0)), (1, IN_FILE));
    assert_eq!(bodies(&store, "t", 0).len() as u64, IN_FILE, "the first part is read");
    for offset in [IN_FILE, COUNT - 10] {
        let found = store.queues().get("t", 0, offset, 1, 1 << 20, ALL);
        assert_eq!((found.status, found.next_offset), (GetStatus::QueueClosed, offset));
    }
    let refused = store.admin().delete_topic("t").unwrap_err();
    assert!(matches!(refused, StoreError::QueueSetAside { .. }), "{refused}");
    assert_eq!(store.admin().clean_unused(&BTreeSet::new()).unwrap(), Vec::<String>::new());
    assert_eq!(receive(&store, "g", Begin::AtMin), Vec::<u64>::new());
    assert_eq!(store.groups().committed_offset("g", "t", 0), Some(COUNT - 10));
    store.groups().commit_offset("g", "t", 0, COUNT - 5).unwrap();
    assert_eq!(store.groups().committed_offset("g", "t", 0), Some(COUNT - 5));
    for begin in [Begin::AtMax, Begin::AtLast] {
        assert_eq!(receive(&store, "new", begin), Vec::<u64>::new());
    }
    assert_eq!(store.groups().committed_offset("new", "t", 0), None, "its beginning is not known yet");
    clock.advance(2_000);
    assert_eq!(receive(&store, "leases", Begin::AtMin), (0..IN_FILE).collect::<Vec<_>>());
    assert_eq!(store.admin().stats().gone_leases, 0);

    mend(&store, &is_broken);
    send(&store, "t", 1);
    assert_eq!(bodies(&store, "t", 0).len() as u64, COUNT + 1, "no offset is assigned again");
    assert_eq!(receive(&store, "g", Begin::AtMin), (COUNT - 5..=COUNT).collect::<Vec<_>>());
    clock.advance(30_000);
    assert_eq!(receive(&store, "leases", Begin::AtMin), (0..=COUNT).collect::<Vec<_>>());
    assert_eq!(store.admin().delete_topic("t").unwrap(), 1);
    store.log().append(&[message("t", 0, b"anew", b"")]).unwrap();
    settle(&store);
    assert_eq!(store.queues().get("t", 0, COUNT + 1, 1, 1 << 20, ALL).messages.len(), 1);
}

#[test]
fn an_offset_past_the_end_is_cut_to_the_end_once_that_is_known() {
    let (disk, clock, config) = (FakeDisk::new(), Clock::manual(START), asynchronous());
    let store = open(&disk, &config, &clock);
    send(&store, "t", COUNT);
    store.close().unwrap();
    drop(store);
    let is_broken = break_queue(&disk, "t", 0);
    let store = open(&disk, &config, &clock);
    store.groups().commit_offset("g", "t", 0, COUNT + 7).unwrap();
    mend(&store, &is_broken);
    assert_eq!(store.groups().committed_offset("g", "t", 0), Some(COUNT));
    send(&store, "t", 1);
    assert_eq!(receive(&store, "g", Begin::AtMin), [COUNT]);
}

#[test]
fn delayed_messages_are_neither_delivered_again_nor_skipped() {
    let clock = Clock::manual(START);
    let disk = FakeDisk::new();
    let store = open(&disk, &delays::config(), &clock);
    store.delayed().start_schedule().unwrap();
    for _ in 0..COUNT {
        delays::send(&store, "u", 0, "delayed", 1);
    }
    clock.advance(1_000);
    delays::delivered(&store, 1, COUNT);
    store.close().unwrap();
    drop(store);

    let is_broken = break_queue(&disk, SCHEDULE_TOPIC, 0);
    let store = open(&disk, &delays::config(), &clock);
    assert_eq!(
        (store.admin().stats().set_aside_queues, store.queues().max_offset(SCHEDULE_TOPIC, 0)),
        (1, IN_FILE)
    );
    store.delayed().start_schedule().unwrap();
    assert_eq!(store.delayed().delay_offsets().unwrap()[&1], COUNT);
    mend(&store, &is_broken);
    delays::send(&store, "u", 0, "last", 1);
    clock.advance(1_000);
    delays::delivered(&store, 1, COUNT + 1);
    let texts = delays::texts(&store, "u", 0);
    assert_eq!((texts.len() as u64, texts.last().unwrap().as_str()), (COUNT + 1, "last"));
    store.close().unwrap();
    drop(store);

    // The log lost messages that were delivered last: their replacements are delivered.
    disk.put(&Path::new(ROOT).join("config/delayOffset.json"), br#"{"offsetTable":{"1":999}}"#);
    disk.forget(&Path::new(ROOT).join("config/delayOffset.json.bak"));
    let is_broken = break_queue(&disk, SCHEDULE_TOPIC, 0);
    let store = open(&disk, &delays::config(), &clock);
    store.delayed().start_schedule().unwrap();
    mend(&store, &is_broken);
    delays::delivered(&store, 1, COUNT + 1);
    delays::send(&store, "u", 0, "after", 1);
    clock.advance(1_000);
    delays::delivered(&store, 1, COUNT + 2);
    assert_eq!(delays::texts(&store, "u", 0).last().unwrap(), "after");
}

#[test]
fn timed_messages_are_delivered_once() {
    // With the timer's files, and without them: then they are rebuilt.
    for has_log in [true, false] {
        let (disk, clock) = (FakeDisk::new(), Clock::manual(START));
        let store = open(&disk, &timers::config(), &clock);
        store.delayed().start_schedule().unwrap();
        for number in 0..IN_FILE + 20 {
            timers::put(&store, "u", &number.to_string(), START + 2_000, false);
        }
        timers::deliver_all(&store, &clock, START + 10_000);
        timers::wait_for(&store, "u", IN_FILE + 20);
        for number in 0..5 {
            timers::put(&store, "u", &format!("later {number}"), START + 60_000, false);
        }
        store.close().unwrap();
        drop(store);

        let is_broken = break_queue(&disk, TIMER_TOPIC, 0);
        if !has_log {
            let is_log = |path: &&std::path::PathBuf| path.starts_with(Path::new(ROOT).join("timerlog"));
            disk.paths().iter().filter(is_log).for_each(|path| disk.forget(path));
        }
        let store = open(&disk, &timers::config(), &clock);
        assert_eq!(
            (store.admin().stats().set_aside_queues, store.queues().max_offset(TIMER_TOPIC, 0)),
            (1, IN_FILE)
        );
        store.delayed().start_schedule().unwrap();
        mend(&store, &is_broken);
        timers::deliver_all(&store, &clock, START + 100_000);
        timers::wait_for(&store, "u", IN_FILE + 25);
        let mut came: Vec<String> = timers::came(&store, "u").into_iter().map(|(body, _)| body).collect();
        let all = came.len();
        came.sort();
        came.dedup();
        assert_eq!((all as u64, came.len() as u64), (IN_FILE + 25, IN_FILE + 25), "log: {has_log}");
    }
}

#[test]
fn offsets_of_messages_deleted_by_retention_meanwhile_are_not_assigned_again() {
    // Also if the queue was not readable at all, and if the store is opened once more before it is.
    for (is_unread, is_reopened) in [(false, false), (true, false), (false, true), (true, true)] {
        let what = format!("unread {is_unread}, reopened {is_reopened}");
        let (disk, clock) = (FakeDisk::new(), Clock::manual(START));
        let config =
            StoreConfig { commit_log_file_size: 8 << 10, retention: Retention::default(), ..asynchronous() };
        let mut store = open(&disk, &config, &clock);
        send(&store, "t", COUNT);
        let body = [1; 500];
        let batch: Vec<_> = (0..40).map(|_| message("u", 0, &body, b"")).collect();
        store.log().append(&batch).unwrap();
        settle(&store);
        store.close().unwrap();
        drop(store);
        let is_broken = break_queue(&disk, "t", 0);
        if is_unread {
            let broken = Arc::clone(&is_broken);
            disk.set_hook(move |op, path| {
                let fails = path.starts_with(Path::new(ROOT).join("consumequeue/t/0"))
                    && op == Op::List
                    && broken.load(Ordering::SeqCst);
                if fails { Err(io::Error::from_raw_os_error(EACCES)) } else { Ok(()) }
            });
        }
        store = open(&disk, &config, &clock);
        assert_eq!(store.admin().stats().set_aside_queues, 1, "{what}");
        clock.advance(4 * 24 * 3_600_000);
        store.admin().clean(true);
        assert!(store.admin().stats().cleaning.total.removed_files > 1, "{what}");
        if is_reopened {
            store.close().unwrap();
            drop(store);
            store = open(&disk, &config, &clock);
        }
        mend(&store, &is_broken);
        let appended = store.log().append(&[message("t", 0, b"next", b"")]).unwrap();
        assert_eq!(appended.locations[0].queue_offset, COUNT, "{what}");
        settle(&store);
        assert_eq!(store.queues().get("t", 0, COUNT, 1, 1 << 20, ALL).messages.len(), 1, "{what}");
    }
}
