//! Timed messages where the timer log cannot be written or read, or a message that waits cannot be read: what can come comes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use common::{
    fake_disk::{FakeDisk, Op},
    message,
    timers::{START, came, config, put, wait_for, wait_until},
};
use ferromq_store::{Clock, DamageReason, MessageStore, StoreConfig};

type Store = MessageStore<FakeDisk>;

fn open(disk: &FakeDisk, config: &StoreConfig) -> (Clock, Store) {
    let clock = Clock::manual(START);
    let store =
        MessageStore::open_on(disk.clone(), Path::new("/store"), config.clone(), clock.clone()).unwrap();
    (clock, store)
}

/// Operations of one kind on files with a name in their path fail until the flag is cleared.
fn fail(disk: &FakeDisk, op: Op, name: &str) -> Arc<AtomicBool> {
    let (is_on, name) = (Arc::new(AtomicBool::new(true)), name.to_owned());
    let on = Arc::clone(&is_on);
    disk.set_hook(move |asked, path| {
        match asked == op && path.to_string_lossy().contains(&name) && on.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => Ok(()),
        }
    });
    is_on
}

fn bodies(store: &Store) -> Vec<String> {
    came(store, "orders").into_iter().map(|(body, _)| body).collect()
}

#[test]
fn a_timer_log_that_cannot_be_written_holds_nothing_that_is_in_the_wheel() {
    let disk = FakeDisk::new();
    let (clock, store) = open(&disk, &config());
    store.start_schedule().unwrap();
    for (body, due) in [("a", 3_000), ("b", 4_000), ("takenback", 5_000), ("c", 6_000)] {
        put(&store, "orders", body, START + due, false);
    }
    wait_until(|| store.stats().timer.queue_offset == 4);
    let trouble = fail(&disk, Op::Write, "timerlog");
    put(&store, "orders", "held", START + 4_000, false);
    put(&store, "orders", "takenback", START + 5_000, true);
    wait_until(|| !store.damages().is_empty());
    let damages = store.damages();
    assert_eq!((damages.len(), &damages[0].reason), (1, &DamageReason::Unwritten), "{damages:?}");
    assert!(damages[0].file.starts_with("/store/timerlog"), "{damages:?}");
    clock.advance(10_000);
    wait_for(&store, "orders", 3);
    assert_eq!(bodies(&store), ["a", "b", "c"]);
    assert_eq!(store.stats().timer.recalled, 1);
    // What came meanwhile comes once it can be put into the wheel.
    trouble.store(false, Ordering::SeqCst);
    wait_for(&store, "orders", 4);
    assert_eq!(bodies(&store), ["a", "b", "c", "held"]);
    wait_until(|| store.damages().is_empty());
    assert_eq!(store.stats().timer.lost, 0);
}

#[test]
fn a_timer_log_that_cannot_be_read_loses_nothing() {
    let disk = FakeDisk::new();
    let (clock, store) = open(&disk, &config());
    store.start_schedule().unwrap();
    for body in ["a", "b", "c", "d", "e"] {
        put(&store, "orders", body, START + 3_000, false);
    }
    wait_until(|| store.stats().timer.queue_offset == 5);
    let trouble = fail(&disk, Op::ReadAt, "timerlog");
    clock.advance(10_000);
    wait_until(|| !store.damages().is_empty());
    assert_eq!(store.max_offset("orders", 0), 0);
    trouble.store(false, Ordering::SeqCst);
    wait_for(&store, "orders", 5);
    assert_eq!(store.stats().timer.lost, 0);
    wait_until(|| store.damages().is_empty());
}

#[test]
fn a_message_that_waits_and_cannot_be_read_holds_no_other_and_comes_once_it_can_be() {
    let disk = FakeDisk::new();
    let config = StoreConfig { mapped_bytes: 0, ..config() };
    let (clock, store) = open(&disk, &config);
    store.start_schedule().unwrap();
    put(&store, "orders", "first", START + 3_000, false);
    put(&store, "orders", "takenback", START + 3_000, false);
    for _ in 0..200 {
        store.append(&[message("others", 0, &[7; 1_000], b"")]).unwrap();
    }
    put(&store, "orders", "second", START + 3_000, false);
    put(&store, "orders", "takenback", START + 3_000, true);
    put(&store, "orders", "third", START + 4_000, false);
    wait_until(|| store.stats().timer.queue_offset == 5);
    // Files that were looked at are closed for the others.
    let file = format!("/store/commitlog/{:020}", 0);
    let trouble = fail(&disk, Op::Open, &file);
    wait_until(|| came(&store, "others").len() == 200 && store.message_at(0).is_err());
    clock.advance(5_000);
    wait_for(&store, "orders", 2);
    assert_eq!(bodies(&store), ["second", "third"]);
    assert!(store.damages().iter().any(|damage| damage.file == Path::new(&file)), "{:?}", store.damages());
    trouble.store(false, Ordering::SeqCst);
    clock.advance(20_000);
    wait_for(&store, "orders", 3);
    assert_eq!(bodies(&store), ["second", "third", "first"]);
    wait_until(|| store.stats().timer.recalled == 1);
    let timer = store.stats().timer;
    assert_eq!((timer.delivered, timer.lost), (3, 0));
}
