//! Administration of groups' progress and of single entries of a queue.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::collections::BTreeMap;

use common::{asynchronous, message, named, settle};
use ferromq_store::{MessageStore, time::Clock};

const START: i64 = 1_700_000_000_000;

fn open(directory: &tempfile::TempDir) -> MessageStore {
    MessageStore::open(directory.path(), asynchronous(), Clock::manual(START)).unwrap()
}

fn filled(directory: &tempfile::TempDir) -> MessageStore {
    let store = open(directory);
    for topic in ["one", "two"] {
        for queue_id in 0..2 {
            for _ in 0..5 {
                store.log().append(&[message(topic, queue_id, b"body", b"")]).unwrap();
            }
        }
    }
    settle(&store);
    store
}

fn offsets(entries: &[(&str, u32, u64)]) -> BTreeMap<String, BTreeMap<u32, u64>> {
    let mut table: BTreeMap<String, BTreeMap<u32, u64>> = BTreeMap::new();
    for (name, queue_id, offset) in entries {
        table.entry((*name).to_owned()).or_default().insert(*queue_id, *offset);
    }
    table
}

#[test]
fn committed_offsets_can_be_limited_to_one_group_or_topic() {
    let directory = tempfile::tempdir().unwrap();
    let store = filled(&directory);
    store.groups().commit_offset("g", "one", 0, 1).unwrap();
    store.groups().commit_offset("g", "two", 1, 2).unwrap();
    store.groups().commit_offset("h", "one", 0, 3).unwrap();
    let all = offsets(&[("one@g", 0, 1), ("two@g", 1, 2), ("one@h", 0, 3)]);
    assert_eq!(store.groups().committed_offsets(None, None), all);
    assert_eq!(
        store.groups().committed_offsets(Some("g"), None),
        offsets(&[("one@g", 0, 1), ("two@g", 1, 2)])
    );
    assert_eq!(
        store.groups().committed_offsets(None, Some("one")),
        offsets(&[("one@g", 0, 1), ("one@h", 0, 3)])
    );
    assert_eq!(store.groups().committed_offsets(Some("h"), Some("two")), BTreeMap::new());
    store.close().unwrap();
    assert_eq!(open(&directory).groups().committed_offsets(None, None), all, "after a restart");
}

#[test]
fn a_forgotten_group_stays_forgotten_after_a_restart_and_others_keep_theirs() {
    let directory = tempfile::tempdir().unwrap();
    let store = filled(&directory);
    for topic in ["one", "two"] {
        store.groups().commit_offset("g", topic, 0, 4).unwrap();
        store.groups().commit_offset("gg", topic, 0, 5).unwrap();
    }
    assert_eq!(store.groups().forget_group("g", Some("one")).unwrap(), 1);
    assert_eq!(store.groups().committed_offset("g", "one", 0), None);
    assert_eq!(store.groups().committed_offset("g", "two", 0), Some(4));
    assert_eq!(store.groups().forget_group("g", None).unwrap(), 1);
    assert_eq!(store.groups().forget_group("g", None).unwrap(), 0);
    // As after a kill: without a close.
    let file = std::fs::read_to_string(directory.path().join("config/consumerOffset.json")).unwrap();
    assert!(!file.contains("@g\""), "{file}");
    store.close().unwrap();
    let store = open(&directory);
    assert_eq!(store.groups().committed_offsets(None, None), offsets(&[("one@gg", 0, 5), ("two@gg", 0, 5)]));
}

#[test]
fn entries_and_times_are_those_of_the_messages() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(START);
    let store = MessageStore::open(directory.path(), asynchronous(), clock.clone()).unwrap();
    let mut wanted = Vec::new();
    for number in 0..120_i64 {
        clock.advance(number % 3);
        let appended = store.log().append(&[message("t", 3, b"body", &named("k", "Aa"))]).unwrap();
        wanted.push((appended.locations[0].physical_offset, clock.now_ms()));
    }
    settle(&store);
    let entries = store.queues().queue_entries("t", 3, 0, 1_000).unwrap();
    assert_eq!(entries.len(), wanted.len());
    for (at, ((physical_offset, time), entry)) in wanted.iter().zip(&entries).enumerate() {
        assert_eq!((entry.0, entry.2), (*physical_offset, 2112), "{at}: the hash of Aa in Java is 2112");
        assert_eq!(store.queues().stored_time("t", 3, at as u64), Some(*time));
    }
    assert_eq!(
        store.queues().queue_entries("t", 3, 49, 3).unwrap(),
        entries[49..52],
        "over the end of a file"
    );
    assert_eq!(store.queues().queue_entries("t", 3, 120, 3).unwrap(), []);
    assert_eq!(store.queues().queue_entries("t", 4, 0, 3), None);
    assert_eq!(store.queues().stored_time("t", 3, 120), None);
    assert_eq!(store.queues().stored_time("t", 4, 0), None);
}

#[test]
fn offsets_of_a_master_are_merged_and_stay_in_the_file_while_the_queue_has_no_messages() {
    let directory = tempfile::tempdir().unwrap();
    let store = filled(&directory);
    store.groups().commit_offset("kept", "one", 0, 2).unwrap();
    store.groups().commit_offset("g", "far", 0, 7).unwrap();
    let told = offsets(&[("one@g", 0, 3), ("one@g", 1, 99), ("far@g", 0, 40), ("far@g", 1, 41)]);
    store.groups().adopt_offsets(&told).unwrap();
    let expected = offsets(&[
        ("one@kept", 0, 2),
        ("one@g", 0, 3),
        // Its end here.
        ("one@g", 1, 5),
        ("far@g", 0, 40),
        ("far@g", 1, 41),
    ]);
    assert_eq!(store.groups().committed_offsets(None, None), expected);
    let text = std::fs::read_to_string(directory.path().join("config/consumerOffset.json")).unwrap();
    assert!(text.contains("far@g") && text.contains("41"), "on disk before a close: {text}");
    store.groups().adopt_offsets(&offsets(&[("one@g", 0, 1)])).unwrap();
    assert_eq!(store.groups().committed_offset("g", "one", 0), Some(1), "back as well");
    store.close().unwrap();
    let again = open(&directory);
    assert_eq!(again.groups().committed_offset("g", "far", 1), Some(41), "after a restart");
    assert!(matches!(store.groups().adopt_offsets(&told), Err(ferromq_store::StoreError::Closed)));
}
