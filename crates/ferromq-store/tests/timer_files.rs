//! Timed messages if the timer log or a waiting message cannot be written or read: they wait, none is lost, and
//! recalled ones are never delivered.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use common::{
    fake_disk::{FakeDisk, Op},
    message, settle,
    timers::{START, came, config, put, wait_for, wait_until},
};
use ferromq_store::{
    MessageStore, StoreConfig,
    log::{Damage, DamageReason},
    time::Clock,
};

type Store = MessageStore<FakeDisk>;

fn open(disk: &FakeDisk, config: &StoreConfig) -> (Clock, Store) {
    let clock = Clock::manual(START);
    let store =
        MessageStore::open_on(disk.clone(), Path::new("/store"), config.clone(), clock.clone()).unwrap();
    (clock, store)
}

/// Failing operations on some files, until it ends.
#[derive(Default)]
struct Trouble {
    is_over: AtomicBool,
    failures: AtomicU64,
}

impl Trouble {
    fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// Makes operations of one kind fail on files with a name in their path.
fn fail(disk: &FakeDisk, op: Op, name: &str) -> Arc<Trouble> {
    let (trouble, name) = (Arc::new(Trouble::default()), name.to_owned());
    let kept = Arc::clone(&trouble);
    disk.set_hook(move |asked, path| {
        if asked != op || !path.to_string_lossy().contains(&name) || trouble.is_over.load(Ordering::SeqCst) {
            return Ok(());
        }
        trouble.failures.fetch_add(1, Ordering::SeqCst);
        Err(io::Error::from_raw_os_error(5))
    });
    kept
}

fn bodies(store: &Store) -> Vec<String> {
    came(store, "orders").into_iter().map(|(body, _)| body).collect()
}

/// Waits until this many damages are known, each of a file whose path begins like this.
fn wait_for_damages(store: &Store, count: usize, path: &str, reason: &DamageReason) {
    wait_until(|| store.admin().damages().len() == count);
    let damages = store.admin().damages();
    let is_right = |damage: &Damage| damage.file.starts_with(path) && damage.reason == *reason;
    assert!(damages.iter().all(is_right), "{damages:?}");
}

#[test]
fn nothing_is_delivered_while_the_timer_log_cannot_be_written_and_then_all_but_recalled_messages() {
    let disk = FakeDisk::new();
    let (clock, store) = open(&disk, &config());
    store.delayed().start_schedule().unwrap();
    for (body, due) in [("a", 3_000), ("b", 4_000), ("takenback", 5_000), ("c", 6_000)] {
        put(&store, "orders", body, START + due, false);
    }
    wait_until(|| store.admin().stats().timer.queue_offset == 4);
    let trouble = fail(&disk, Op::Write, "timerlog");
    put(&store, "orders", "held", START + 4_000, false);
    put(&store, "orders", "takenback", START + 5_000, true);
    wait_for_damages(&store, 1, "/store/timerlog", &DamageReason::Unwritten);
    clock.advance(10_000);
    let tries = trouble.failures();
    wait_until(|| trouble.failures() >= tries + 2);
    assert_eq!(store.queues().max_offset("orders", 0), 0);
    trouble.end();
    wait_for(&store, "orders", 4);
    let mut all = bodies(&store);
    all.sort();
    assert_eq!(all, ["a", "b", "c", "held"]);
    wait_until(|| store.admin().damages().is_empty());
    let timer = store.admin().stats().timer;
    assert_eq!((timer.delivered, timer.recalled, timer.lost), (4, 1, 0));
}

#[test]
fn a_timer_log_that_cannot_be_read_loses_nothing() {
    let disk = FakeDisk::new();
    let (clock, store) = open(&disk, &config());
    store.delayed().start_schedule().unwrap();
    for body in ["a", "b", "c", "d", "e"] {
        put(&store, "orders", body, START + 3_000, false);
    }
    wait_until(|| store.admin().stats().timer.queue_offset == 5);
    let trouble = fail(&disk, Op::ReadAt, "timerlog");
    clock.advance(10_000);
    wait_until(|| !store.admin().damages().is_empty());
    assert_eq!(store.queues().max_offset("orders", 0), 0);
    trouble.end();
    wait_for(&store, "orders", 5);
    assert_eq!(store.admin().stats().timer.lost, 0);
    wait_until(|| store.admin().damages().is_empty());
}

/// A configuration that closes files of the log soon after they are read.
fn config_of_closed_files() -> StoreConfig {
    StoreConfig { mapped_bytes: 0, ..config() }
}

/// Fills the file of the log, so that the next message lies in another one. Returns where the filled one begins.
fn fill_file(store: &Store) -> u64 {
    let size = config().commit_log_file_size;
    let begin = || store.admin().stats().max_physical_offset / size * size;
    let filled = begin();
    while begin() == filled {
        store.log().append(&[message("others", 0, &[7; 1_000], b"")]).unwrap();
    }
    filled
}

/// Makes opening the log's file at `begin` fail, and has the file closed.
fn lose(disk: &FakeDisk, store: &Store, begin: u64) -> (String, Arc<Trouble>) {
    let others: Vec<u64> = (0..6).map(|_| fill_file(store) + config().commit_log_file_size).collect();
    settle(store);
    let file = format!("/store/commitlog/{begin:020}");
    let trouble = fail(disk, Op::Open, &file);
    // Reading other files closes it.
    wait_until(|| {
        others.iter().for_each(|other| drop(store.queues().message_at(*other).unwrap()));
        store.queues().message_at(begin).is_err()
    });
    (file, trouble)
}

#[test]
fn a_recalled_message_stays_recalled_if_both_are_unreadable_for_a_while() {
    let disk = FakeDisk::new();
    let (clock, store) = open(&disk, &config_of_closed_files());
    store.delayed().start_schedule().unwrap();
    put(&store, "orders", "first", START + 3_000, false);
    put(&store, "orders", "takenback", START + 3_000, false);
    put(&store, "orders", "takenback", START + 3_000, true);
    let begin = fill_file(&store);
    put(&store, "orders", "second", START + 3_000, false);
    put(&store, "orders", "third", START + 4_000, false);
    wait_until(|| store.admin().stats().timer.queue_offset == 5);
    let (file, trouble) = lose(&disk, &store, begin);
    clock.advance(5_000);
    wait_for_damages(&store, 1, &file, &DamageReason::Unreadable);
    let tries = trouble.failures();
    wait_until(|| trouble.failures() >= tries + 4);
    assert_eq!(store.queues().max_offset("orders", 0), 0);
    trouble.end();
    wait_for(&store, "orders", 3);
    assert_eq!(bodies(&store), ["first", "second", "third"]);
    wait_until(|| store.admin().damages().is_empty());
    let timer = store.admin().stats().timer;
    assert_eq!((timer.delivered, timer.recalled, timer.lost), (3, 1, 0));
}

#[test]
fn a_message_waits_while_a_possible_recall_cannot_be_read() {
    let disk = FakeDisk::new();
    let (clock, store) = open(&disk, &config_of_closed_files());
    store.delayed().start_schedule().unwrap();
    put(&store, "orders", "takenback", START + 3_000, false);
    put(&store, "orders", "first", START + 3_000, false);
    fill_file(&store);
    put(&store, "orders", "takenback", START + 3_000, true);
    let begin = fill_file(&store);
    wait_until(|| store.admin().stats().timer.queue_offset == 3);
    let (file, trouble) = lose(&disk, &store, begin);
    clock.advance(5_000);
    wait_for_damages(&store, 1, &file, &DamageReason::Unreadable);
    assert_eq!(store.queues().max_offset("orders", 0), 0);
    trouble.end();
    wait_for(&store, "orders", 1);
    assert_eq!(bodies(&store), ["first"]);
    wait_until(|| store.admin().stats().timer.recalled == 1);
    wait_until(|| store.admin().damages().is_empty());
}
