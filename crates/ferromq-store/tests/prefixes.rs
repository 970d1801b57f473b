//! A crash after every prefix of a scripted workload: whichever unflushed blocks survive, acknowledged messages are
//! there, none is torn, and no queue has a gap.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{collections::BTreeMap, path::Path};

use common::{
    asynchronous, bodies, fake_disk::FakeDisk, message, named, settle, small, synchronous, wait_until,
};
use ferromq_store::{MessageStore, StoreConfig, StoreError, log::FlushPolicy, time::Clock};

const TOPICS: [&str; 2] = ["one", "two"];

type Promised = BTreeMap<(&'static str, u64), Vec<u8>>;

fn open(disk: &FakeDisk, config: &StoreConfig) -> Result<MessageStore<FakeDisk>, StoreError> {
    MessageStore::open_on(disk.clone(), Path::new("/store"), config.clone(), Clock::manual(1_700_000_000_000))
}

/// Appends single messages and batches over several files, commits an offset, closes. Adds to `promised` at once,
/// because any operation may crash.
fn workload(disk: &FakeDisk, config: &StoreConfig, round: u8, promised: &mut Promised) {
    let Ok(store) = open(disk, config) else { return };
    for number in 0..16u8 {
        let (body, properties) = (
            vec![round ^ number; 100 + usize::from(number % 5) * 1500],
            named(&format!("{round}-{number}"), "tag"),
        );
        let batch: Vec<_> = TOPICS.iter().map(|topic| message(topic, 0, &body, &properties)).collect();
        let Ok(appended) = store.log().append(&batch[..1 + usize::from(number % 2)]) else { return };
        if number % 4 == 0 {
            settle_or_crash(&store, disk);
        }
        if store.log().wait_durable(appended.end).is_ok() {
            for (topic, location) in TOPICS.iter().zip(appended.locations) {
                promised.insert((topic, location.queue_offset), body.clone());
            }
        }
    }
    let _ = store.groups().commit_offset("g", "one", 0, 3);
    let _ = store.close();
}

fn settle_or_crash(store: &MessageStore<FakeDisk>, disk: &FakeDisk) {
    if !disk.has_crashed() {
        let at = store.admin().stats().flushed_offset;
        wait_until("all that is flushed is dispatched, or the disk has crashed", || {
            store.admin().stats().dispatched_offset >= at || disk.has_crashed()
        });
    }
}

fn check(store: &MessageStore<FakeDisk>, promised: &Promised, what: &str) {
    for topic in TOPICS {
        let stored = bodies(store, topic, 0);
        for ((_, queue_offset), body) in promised.iter().filter(|((of, _), _)| *of == topic) {
            assert_eq!(stored.get(*queue_offset as usize), Some(body), "{what}: {topic} at {queue_offset}");
        }
    }
}

fn crash_after_every_operation(config: &StoreConfig) {
    let keeps_promises = config.flush.is_synchronous();
    for at in 1.. {
        let what = format!("{}, operation {at}", config.flush);
        let disk = FakeDisk::new();
        let mut promised = Promised::new();
        workload(&disk, config, 0, &mut promised);
        let closed = promised.clone();
        disk.crash_at(at, at);
        workload(&disk, config, 1, &mut promised);
        let is_over = !disk.has_crashed();
        let left = disk.crash(at);
        let store = open(&left, config).unwrap_or_else(|error| panic!("{what}: {error}"));
        if !keeps_promises {
            // Messages before the close are promised; the rest has no gap, which `bodies` checks.
            promised = closed;
        }
        check(&store, &promised, &what);
        drop(store);
        workload(&left, config, 2, &mut promised);
        let store = open(&left, config).unwrap();
        settle(&store);
        check(&store, &promised, &format!("{what}, used again"));
        if is_over {
            return;
        }
    }
}

#[test]
fn group_commit_loses_no_acknowledged_message_in_a_crash_at_any_operation() {
    crash_after_every_operation(&synchronous());
}

#[test]
fn a_flush_for_each_append_loses_no_acknowledged_message_in_a_crash_at_any_operation() {
    crash_after_every_operation(&small(FlushPolicy::Each));
}

#[test]
fn asynchronous_flush_leaves_no_gap_after_a_crash_at_any_operation() {
    crash_after_every_operation(&asynchronous());
}
