//! A store without an index: queries still read older index files, nothing is rebuilt, and verification finds no fault.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

#[path = "../../ferromq-store/tests/common/mod.rs"]
mod common;

use std::{io, ops::Range, path::Path, sync::Mutex};

use common::{
    asynchronous,
    fake_disk::{FakeDisk, Op},
    message, named, settle, wait_until,
};
use ferromq_scan::inspect::{FindingKind, InspectOptions, VerifyEvent, VerifyReport, verify_on};
use ferromq_store::{MessageStore, StoreConfig, files::Disk, time::Clock};

const ROOT: &str = "/store";

fn open(disk: &FakeDisk, is_indexed: bool) -> MessageStore<FakeDisk> {
    let config = StoreConfig { index_enabled: is_indexed, ..asynchronous() };
    MessageStore::open_on(disk.clone(), Path::new(ROOT), config, Clock::manual(1_700_000_000_000)).unwrap()
}

fn send(store: &MessageStore<FakeDisk>, numbers: Range<u32>) {
    for number in numbers {
        let properties = named(&format!("k{number}"), "a");
        store.log().append(&[message("t", 0, &number.to_be_bytes(), &properties)]).unwrap();
    }
    settle(store);
}

/// Closes or kills the store. Before a kill, the checkpoint covers everything.
fn stop(disk: FakeDisk, store: MessageStore<FakeDisk>, is_clean: bool) -> FakeDisk {
    if is_clean {
        store.close().unwrap();
        return disk;
    }
    let end = store.admin().stats().max_physical_offset;
    wait_until("the checkpoint has all", || marks(&disk)[4] == end);
    disk.crash(7)
}

fn marks(disk: &FakeDisk) -> Vec<u64> {
    let bytes = disk.read_file(&Path::new(ROOT).join("checkpoint")).unwrap();
    bytes[..40].as_chunks::<8>().0.iter().map(|field| u64::from_be_bytes(*field)).collect()
}

/// The messages that a query by key finds.
fn found(store: &MessageStore<FakeDisk>, numbers: Range<u32>) -> Vec<u32> {
    let is_found = |number: &u32| {
        !store.queues().query_by_key("t", &format!("k{number}"), 9, 0, i64::MAX).messages.is_empty()
    };
    numbers.filter(is_found).collect()
}

fn index_files(disk: &FakeDisk) -> Vec<(String, Vec<u8>)> {
    let paths = disk.list(&Path::new(ROOT).join("index")).unwrap();
    paths.iter().map(|path| (path.display().to_string(), disk.read_file(path).unwrap())).collect()
}

fn look(disk: &FakeDisk) -> (VerifyReport, Vec<FindingKind>) {
    let kinds = Mutex::new(Vec::new());
    let options = InspectOptions { threads: 1, index_slots: Some(50), ..InspectOptions::default() };
    let report = verify_on(disk.clone(), Path::new(ROOT), &options, &|event| {
        if let VerifyEvent::Finding(finding) = event {
            kinds.lock().unwrap().push(finding.kind);
        }
        true
    })
    .unwrap();
    (report, kinds.into_inner().unwrap())
}

#[test]
fn no_index_file_is_made_and_nothing_is_redone() {
    for is_clean in [true, false] {
        let disk = FakeDisk::new();
        let store = open(&disk, false);
        send(&store, 0..300);
        assert!(found(&store, 0..300).is_empty());
        assert_eq!(store.queues().query_by_unique_key("t", "k1", 9, 0, i64::MAX).messages.len(), 0);
        let disk = stop(disk, store, is_clean);
        assert_eq!(index_files(&disk), []);
        let (report, findings) = look(&disk);
        assert_eq!(findings, []);
        assert!(report.notes.iter().any(|note| note.contains("index_enabled")), "{:?}", report.notes);
        let store = open(&disk, false);
        assert_eq!((store.admin().recovery().is_clean, store.admin().recovery().walked_bytes), (is_clean, 0));
        assert_eq!((store.queues().max_offset("t", 0), store.admin().damages()), (300, vec![]));
        assert_eq!(index_files(&disk), []);
    }
}

#[test]
fn what_was_indexed_before_is_found_and_its_files_stay() {
    for is_clean in [true, false] {
        let disk = FakeDisk::new();
        let store = open(&disk, true);
        send(&store, 0..300);
        let disk = stop(disk, store, is_clean);
        let store = open(&disk, false);
        assert_eq!(store.admin().recovery().walked_bytes, 0);
        let files = index_files(&disk);
        assert_eq!(files.len(), 2);
        send(&store, 300..600);
        assert_eq!(found(&store, 0..600), (0..300).collect::<Vec<_>>());
        let disk = stop(disk, store, is_clean);
        assert_eq!(index_files(&disk), files);
        assert_eq!(look(&disk).1, []);
        let store = open(&disk, false);
        assert_eq!(store.admin().recovery().walked_bytes, 0);
        assert_eq!(found(&store, 0..600), (0..300).collect::<Vec<_>>());
    }
}

#[test]
fn with_the_index_on_again_new_messages_are_found_and_the_log_is_not_walked() {
    for is_clean in [true, false] {
        let disk = FakeDisk::new();
        let store = open(&disk, true);
        send(&store, 0..100);
        let disk = stop(disk, store, is_clean);
        let store = open(&disk, false);
        send(&store, 100..200);
        let disk = stop(disk, store, is_clean);
        let store = open(&disk, true);
        assert_eq!(store.admin().recovery().walked_bytes, 0);
        send(&store, 200..250);
        let expected: Vec<u32> = (0..100).chain(200..250).collect();
        assert_eq!(found(&store, 0..250), expected);
        let disk = stop(disk, store, is_clean);
        assert_eq!(look(&disk).1, []);
        // Later messages are indexed again, so a lost key is a finding.
        let last = disk.list(&Path::new(ROOT).join("index")).unwrap().pop().unwrap();
        disk.forget(&last);
        assert_eq!(look(&disk).1, [FindingKind::KeyNotIndexed; 2]);
        let store = open(&disk, true);
        assert_eq!(found(&store, 0..250), (0..250).collect::<Vec<_>>(), "redone, with what was left out");
        store.close().unwrap();
        let (report, findings) = look(&disk);
        assert_eq!((findings, report.notes), (vec![], vec![]));
    }
}

#[test]
fn another_broker_need_not_go_back_to_where_the_index_ends() {
    let disk = FakeDisk::new();
    let clock = Clock::manual(1_700_000_000_000);
    let config = |index_enabled| StoreConfig { index_enabled, ..asynchronous() };
    let open = |disk: &FakeDisk, is_indexed| {
        MessageStore::open_on(disk.clone(), Path::new(ROOT), config(is_indexed), clock.clone()).unwrap()
    };
    let store = open(&disk, true);
    send(&store, 0..10);
    let disk = stop(disk, store, false);
    let indexed_at = clock.now_ms() as u64;
    clock.advance(60_000);
    let store = open(&disk, false);
    send(&store, 10..20);
    let disk = stop(disk, store, false);
    // The index file is complete and trusted; the queues are durable up to the last message.
    assert_eq!(marks(&disk)[..3], [indexed_at + 60_000, indexed_at + 60_000, indexed_at]);
}

#[test]
fn an_index_that_cannot_be_read_comes_back_and_is_not_added_to() {
    let disk = FakeDisk::new();
    let store = open(&disk, true);
    send(&store, 0..100);
    let disk = stop(disk, store, true);
    disk.set_hook(|op, path| {
        let is_index = path.starts_with(Path::new(ROOT).join("index"));
        if op == Op::Open && is_index { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    });
    let store = open(&disk, false);
    assert_eq!(store.admin().damages().len(), 1);
    assert!(found(&store, 0..100).is_empty());
    send(&store, 100..200);
    disk.clear_hook();
    wait_until("the index is back", || store.admin().damages().is_empty());
    send(&store, 200..300);
    assert_eq!(found(&store, 0..300), (0..100).collect::<Vec<_>>());
    store.close().unwrap();
    assert_eq!(look(&disk).1, []);
}
