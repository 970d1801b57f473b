//! A full disk: the store opens, serves its messages, refuses sends, closes, and continues once there is space.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    ops::{Range, RangeInclusive},
    path::Path,
};

use common::{append_durable, asynchronous, bodies, fake_disk::FakeDisk, message, named, settle};
use ferromq_store::{MessageStore, StoreConfig, StoreError, time::Clock};

const ROOT: &str = "/store";

fn open(disk: &FakeDisk, config: &StoreConfig) -> MessageStore<FakeDisk> {
    MessageStore::open_on(disk.clone(), Path::new(ROOT), config.clone(), Clock::manual(1_700_000_000_000))
        .unwrap_or_else(|error| panic!("not opened: {error}"))
}

fn send(store: &MessageStore<FakeDisk>, numbers: Range<u32>) -> Result<(), StoreError> {
    for number in numbers {
        let properties = named(&format!("k{number}"), "tag");
        let appended = store.log().append(&[message("t", 0, format!("{number}").as_bytes(), &properties)])?;
        store.log().wait_durable(appended.end)?;
    }
    Ok(())
}

fn assert_serves(store: &MessageStore<FakeDisk>, count: RangeInclusive<usize>) {
    let served = bodies(store, "t", 0).len();
    assert!(count.contains(&served), "{served} are served");
    assert!(
        matches!(send(store, 99..100), Err(StoreError::Full { .. })),
        "a send is refused for lack of space"
    );
}

#[test]
fn a_store_closed_cleanly_opens_and_closes_on_a_full_disk() {
    let (disk, config) = (FakeDisk::new(), StoreConfig { disk_reserve: 1 << 20, ..asynchronous() });
    let store = open(&disk, &config);
    send(&store, 0..40).unwrap();
    settle(&store);
    store.groups().commit_offset("g", "t", 0, 7).unwrap();
    store.close().unwrap();
    drop(store);
    for _ in 0..2 {
        disk.set_out_of_space(true);
        let store = open(&disk, &config);
        assert_serves(&store, 40..=40);
        assert_eq!(store.groups().committed_offset("g", "t", 0), Some(7));
        store.close().expect("nothing is lost");
    }
    assert!(disk.bytes(Path::new("/store/abort")).is_some(), "the stop was not a clean one");
    disk.set_out_of_space(false);
    let store = open(&disk, &config);
    assert_eq!(store.admin().recovery().cut_bytes, 0);
    send(&store, 40..50).unwrap();
    settle(&store);
    assert_eq!(bodies(&store, "t", 0).len(), 50);
    store.close().unwrap();
    assert!(disk.bytes(Path::new("/store/abort")).is_none());
}

#[test]
fn entries_missing_after_a_kill_are_derived_once_there_is_space_and_no_offset_is_assigned_twice() {
    let config = StoreConfig { consume_queue_file_entries: 1000, ..asynchronous() };
    let disk = FakeDisk::new();
    let store = open(&disk, &config);
    send(&store, 0..30).unwrap();
    settle(&store);
    // The log has space in its file; queue and index have none for their entries.
    disk.set_out_of_space(true);
    send(&store, 30..90).unwrap();
    let left = disk.after_kill();
    disk.set_out_of_space(false);
    drop(store);

    let config = StoreConfig { disk_reserve: 1 << 20, ..config };
    left.set_out_of_space(true);
    let store = open(&left, &config);
    assert_serves(&store, 30..=89);
    store.close().expect("nothing is lost");
    drop(store);
    let store = open(&left, &config);
    left.set_out_of_space(false);
    // As soon as a send succeeds: it must not get an offset of the entries that are derived only now.
    common::wait_until("a send is accepted", || send(&store, 90..91).is_ok());
    settle(&store);
    let expected: Vec<_> = (0..91).map(|number: u32| number.to_string().into_bytes()).collect();
    assert_eq!(bodies(&store, "t", 0), expected);
    for number in [0, 29, 30, 90] {
        let found = store.queues().query_by_key("t", &format!("k{number}"), 10, 0, i64::MAX);
        assert_eq!(found.messages.len(), 1, "key k{number}");
    }
    store.close().unwrap();
    assert!(left.bytes(Path::new("/store/abort")).is_none());
}

#[test]
fn delay_offsets_past_the_end_of_their_queues_are_corrected_once_there_is_space() {
    let config = StoreConfig { disk_reserve: 1 << 20, ..common::delays::config() };
    let (disk, clock) = (FakeDisk::new(), Clock::manual(common::delays::START));
    let open_at = |disk: &FakeDisk| {
        MessageStore::open_on(disk.clone(), Path::new(ROOT), config.clone(), clock.clone()).unwrap()
    };
    let store = open_at(&disk);
    common::delays::send(&store, "u", 0, "lost", 1);
    send(&store, 0..5).unwrap();
    settle(&store);
    store.close().unwrap();
    drop(store);
    disk.put(&Path::new(ROOT).join("config/delayOffset.json"), br#"{"offsetTable":{"1":999}}"#);

    disk.set_out_of_space(true);
    let store = open_at(&disk);
    store.delayed().start_schedule().expect("it delivers once there is space");
    assert_eq!(store.delayed().delay_offsets().unwrap()[&1], 1);
    assert_serves(&store, 5..=5);
    let properties = common::delays::with_level(1);
    let given = message("u", 0, b"delayed", &properties);
    let delayed = store.log().delayed(&given).unwrap().unwrap();
    let waiting = ferromq_store::record::NewMessage {
        topic: ferromq_store::record::names::SCHEDULE_TOPIC,
        queue_id: delayed.queue_id,
        properties: &delayed.properties,
        ..given
    };
    assert!(matches!(store.log().append(&[waiting]), Err(StoreError::Full { .. })));
    assert!(store.delayed().stop_schedule().is_err(), "its progress cannot be written");
    store.delayed().start_schedule().unwrap();
    // The log accepts messages again; the correction still has no space.
    disk.set_free(u64::MAX / 2);
    common::wait_until("other messages are accepted", || send(&store, 5..6).is_ok());
    assert!(matches!(store.log().append(&[waiting]), Err(StoreError::Full { .. })));
    disk.set_out_of_space(false);
    let appended = append_durable(&store, &[waiting]).unwrap();
    assert_eq!(appended.locations[0].queue_offset, 1);
    // After a kill it does not count as delivered.
    let left = disk.after_kill();
    drop(store);
    let store = open_at(&left);
    store.delayed().start_schedule().unwrap();
    clock.advance(1_000);
    common::delays::delivered(&store, 1, 2);
    assert_eq!(common::delays::texts(&store, "u", 0), ["delayed"]);
}
