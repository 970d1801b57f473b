//! Verification finds nothing in a sound store and finds each planted corruption.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

#[path = "../../ferromq-store/tests/common/mod.rs"]
mod common;

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Mutex,
};

use common::{asynchronous, copy_as_killed, message, named, settle, synchronous, timers};
use ferromq_scan::inspect::{
    DumpItem, DumpQuery, Finding, FindingKind as Kind, InspectOptions, LogFile, Scanned, StoreState,
    VerifyEvent, VerifyReport, dump, inspect, verify,
};
use ferromq_store::{MessageStore, StoreConfig, StoreError, record::MessageView, time::Clock};
use proptest::prelude::*;

const LOG_FILE: u64 = 64 << 10;

fn fill(store: &MessageStore, range: std::ops::Range<u32>) {
    for number in range {
        let body = vec![number as u8; (number as usize * 37) % 900 + 1];
        let topic = if number % 3 == 0 { "one" } else { "two" };
        let named = named(&format!("k{number} of{}", number / 10), if number % 2 == 0 { "a" } else { "b" });
        store.log().append(&[message(topic, (number % 2) as i32, &body, &named)]).unwrap();
    }
    settle(store);
}

/// A closed store of 600 messages in nine files.
fn closed(config: StoreConfig) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), config, Clock::system()).unwrap();
    fill(&store, 0..600);
    store.close().unwrap();
    directory
}

fn look(directory: &Path) -> (VerifyReport, Vec<Finding>) {
    let findings = Mutex::new(Vec::new());
    let options = InspectOptions { threads: 2, ..InspectOptions::default() };
    let report = verify(directory, &options, &|event| {
        if let VerifyEvent::Finding(finding) = event {
            findings.lock().unwrap().push(finding.clone());
        }
        true
    })
    .unwrap();
    let findings = findings.into_inner().unwrap();
    assert_eq!(report.findings.values().sum::<u64>(), findings.len() as u64);
    (report, findings)
}

fn kinds(findings: &[Finding]) -> BTreeSet<Kind> {
    findings.iter().map(|finding| finding.kind).collect()
}

/// The findings after `change` in a sound store.
fn after(change: impl FnOnce(&Path)) -> Vec<Finding> {
    let directory = closed(asynchronous());
    assert_eq!(look(directory.path()).1, []);
    change(directory.path());
    look(directory.path()).1
}

fn log_file(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("commitlog/{:020}", number * LOG_FILE))
}

fn queue_file(directory: &Path, topic: &str, queue_id: u32, number: u64) -> PathBuf {
    directory.join(format!("consumequeue/{topic}/{queue_id}/{:020}", number * 1000))
}

fn index_file(directory: &Path, number: usize) -> PathBuf {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory.join("index")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files[number].clone()
}

fn write(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

fn read<const N: usize>(path: &Path, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    fs::File::open(path).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

/// Position and length of each record in a file.
fn records(path: &Path) -> Vec<(u64, u64)> {
    let bytes = fs::read(path).unwrap();
    let (mut at, mut found) = (0, Vec::new());
    while let Ok(view) = MessageView::decode(&bytes[at..], true) {
        found.push((at as u64, u64::from(view.total_size)));
        at += view.total_size as usize;
    }
    found
}

/// Changes a byte of the fifth record of the second file and returns the record's position.
fn change_record(directory: &Path, place: u64, change: impl Fn(u8) -> u8) -> (PathBuf, u64, u64) {
    let path = log_file(directory, 1);
    let (at, size) = records(&path)[4];
    let [byte] = read::<1>(&path, at + place);
    write(&path, at + place, &[change(byte)]);
    (path, at, size)
}

#[test]
fn a_sound_store_has_no_findings_however_it_was_closed() {
    for config in [asynchronous(), synchronous(), StoreConfig { property_crc: true, ..asynchronous() }] {
        let directory = closed(config.clone());
        let (report, findings) = look(directory.path());
        assert_eq!(findings, []);
        assert!(report.is_sound());
        assert_eq!((report.state, report.records, report.queue_entries), (StoreState::Closed, 600, 600));
        assert_eq!(report.index_entries, 1200);
        assert_eq!((report.not_dispatched, report.of_deleted, report.queues), (0, 0, 4));
        let store = MessageStore::open(directory.path(), config, Clock::system()).unwrap();
        assert_eq!(report.looked_to, store.admin().stats().max_physical_offset);
        fill(&store, 600..700);
        store.close().unwrap();
        assert_eq!(look(directory.path()).1, []);
    }
}

#[test]
fn a_file_that_is_just_being_made_is_no_finding_in_an_open_store() {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    fill(&store, 0..50);
    let made = directory.path().join("index").join("99991231235959999");
    std::fs::write(&made, b"").unwrap();
    assert_eq!(look(directory.path()).1, []);
    store.close().unwrap();
    std::fs::write(&made, b"").unwrap();
    assert_eq!(look(directory.path()).1.len(), 1);
}

#[test]
fn a_store_that_is_being_written_has_no_findings_and_says_up_to_where_it_was_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    fill(&store, 0..50);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 50;
            while number < 1500 && !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                fill(&store, number..number + 50);
                number += 50;
            }
        });
        let mut seen = 0;
        for _ in 0..8 {
            let (report, findings) = look(directory.path());
            assert_eq!(findings, []);
            assert_eq!(report.state, StoreState::Open);
            assert!(report.looked_to >= seen && report.promised_to <= report.looked_to);
            assert!(report.notes[0].contains(&report.looked_to.to_string()), "{:?}", report.notes);
            seen = report.looked_to;
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    // Verification released no lock of the store.
    assert!(matches!(
        MessageStore::open(directory.path(), asynchronous(), Clock::system()),
        Err(StoreError::Locked { .. })
    ));
    assert_eq!(inspect(directory.path(), &InspectOptions::default()).unwrap().state, StoreState::Open);
    store.close().unwrap();
    assert_eq!(look(directory.path()).1, []);
}

#[test]
fn of_a_store_another_broker_has_open_what_it_has_dispatched_is_compared() {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    fs::write(directory.path().join("abort"), "4711").unwrap();
    fill(&store, 0..300);
    let (report, findings) = look(directory.path());
    assert_eq!((findings, report.state), (vec![], StoreState::Open));
    assert!(report.promised_to > 0 && report.promised_to < report.looked_to);
    // A missing entry in the middle of a queue is a fault in every state of the store.
    write(&queue_file(directory.path(), "two", 0, 0), 200, &[0; 20]);
    assert_eq!(kinds(&look(directory.path()).1), [Kind::QueueGap, Kind::RecordWithoutEntry].into());
}

#[test]
fn nothing_is_written_and_no_lock_is_taken() {
    let directory = closed(asynchronous());
    let list = |directory: &Path| {
        let mut seen = Vec::new();
        let mut left = vec![directory.to_path_buf()];
        while let Some(path) = left.pop() {
            if path.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            let found = fs::metadata(&path).unwrap();
            seen.push((path, found.modified().unwrap(), found.len()));
        }
        seen.sort();
        seen
    };
    fs::remove_file(directory.path().join("lock")).unwrap();
    let before = list(directory.path());
    assert_eq!(look(directory.path()).1, []);
    inspect(directory.path(), &InspectOptions::default()).unwrap();
    let query = DumpQuery { topic: "one".into(), ..DumpQuery::default() };
    assert_eq!(dump(directory.path(), &query, &InspectOptions::default()).unwrap().count(), 200);
    assert_eq!(list(directory.path()), before);
}

#[test]
fn every_kind_of_finding_is_in_the_documentation() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/storage-format.md");
    let docs = fs::read_to_string(docs).unwrap();
    for kind in Kind::ALL {
        assert!(docs.contains(&format!("| `{kind}` | ")), "{kind}");
    }
}

#[test]
fn what_is_no_store_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let options = InspectOptions::default();
    let error = inspect(directory.path(), &options).unwrap_err();
    assert!(matches!(error, StoreError::NoStore { .. }), "{error}");
    assert!(error.to_string().contains("commitlog"), "{error}");
    let error = verify(&directory.path().join("nowhere"), &options, &|_| true).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn a_changed_body_is_found_with_its_file_and_range() {
    let mut place = None;
    let findings = after(|directory| place = Some(change_record(directory, 90, |byte| byte ^ 1)));
    let (path, at, size) = place.unwrap();
    assert_eq!(kinds(&findings), [Kind::BodyChecksum].into());
    assert_eq!(findings[0].file.file_name(), path.file_name());
    assert_eq!(findings[0].range, at..at + size);
}

#[test]
fn a_changed_property_is_found_where_records_have_a_property_crc() {
    let directory = closed(StoreConfig { property_crc: true, ..asynchronous() });
    // A digit of the born timestamp, which only the property CRC covers.
    let (_, at, size) = change_record(directory.path(), 47, |byte| byte ^ 1);
    let (_, findings) = look(directory.path());
    assert_eq!(kinds(&findings), [Kind::PropertyChecksum].into());
    assert_eq!(findings[0].range, at..at + size);
}

#[test]
fn a_record_without_magic_code_or_with_wrong_lengths_or_place_is_found_up_to_the_next_one() {
    type Change = fn(u8) -> u8;
    let cases: [(u64, Change, Kind); 5] = [
        (4, |_| 0, Kind::NoRecord),
        (3, |size| size.wrapping_add(1), Kind::RecordLengths),
        (0, |_| 0x7F, Kind::RecordLengths),
        (87, |len| len.wrapping_add(1), Kind::RecordLengths),
        (35, |byte| byte ^ 1, Kind::RecordOffset),
    ];
    for (place, change, kind) in cases {
        let mut changed = None;
        let findings = after(|directory| changed = Some(change_record(directory, place, change)));
        let (_, at, size) = changed.unwrap();
        let record =
            findings.iter().find(|finding| finding.kind == kind).unwrap_or_else(|| panic!("{findings:#?}"));
        assert_eq!(record.range, at..at + size, "{kind}");
        // The entries for it lead to no record.
        let expected = [kind, Kind::EntryWithoutRecord, Kind::IndexEntryWithoutRecord];
        assert_eq!(kinds(&findings), expected.into(), "{findings:#?}");
    }
}

#[test]
fn zeros_in_the_middle_of_the_log_are_found_with_all_records_they_took() {
    let findings = after(|directory| {
        let path = log_file(directory, 2);
        let records = records(&path);
        let (from, to) = (records[3].0, records[9].0);
        write(&path, from, &vec![0; (to - from) as usize]);
    });
    let lost = findings.iter().find(|finding| finding.kind == Kind::NoRecord).unwrap();
    assert!(lost.found.contains("zeros"), "{lost:?}");
    let entries: u64 = findings.iter().filter(|f| f.kind == Kind::EntryWithoutRecord).map(|f| f.count).sum();
    let keys: u64 =
        findings.iter().filter(|f| f.kind == Kind::IndexEntryWithoutRecord).map(|f| f.count).sum();
    assert_eq!((entries, keys), (6, 12));
}

#[test]
fn the_end_of_a_file_that_was_lost_is_found() {
    let mut lost = 0..0;
    let findings = after(|directory| {
        let path = log_file(directory, 3);
        lost = records(&path)[20].0..LOG_FILE;
        write(&path, lost.start, &vec![0; (lost.end - lost.start) as usize]);
    });
    let found = findings.iter().find(|finding| finding.kind == Kind::NoRecord).unwrap();
    assert_eq!(found.range, lost);
}

#[test]
fn a_missing_file_of_the_log_is_found() {
    let findings = after(|directory| fs::remove_file(log_file(directory, 2)).unwrap());
    let missing = findings.iter().find(|finding| finding.kind == Kind::MissingFile).unwrap();
    assert_eq!(missing.file.file_name(), log_file(Path::new(""), 2).file_name());
    assert_eq!(missing.range, 0..LOG_FILE);
    assert!(kinds(&findings).contains(&Kind::EntryWithoutRecord));
}

#[test]
fn a_file_of_another_size_is_found() {
    let findings = after(|directory| {
        let file = OpenOptions::new().write(true).open(log_file(directory, 1)).unwrap();
        file.set_len(LOG_FILE / 2).unwrap();
    });
    assert!(kinds(&findings).contains(&Kind::MissingFile), "{findings:#?}");
    let findings = after(|directory| fs::write(queue_file(directory, "one", 0, 0), [0; 33]).unwrap());
    assert!(kinds(&findings).contains(&Kind::FileSize), "{findings:#?}");
}

#[test]
fn bytes_behind_the_last_record_are_a_torn_tail() {
    let mut end = 0;
    let findings = after(|directory| {
        let path =
            fs::read_dir(directory.join("commitlog")).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
        let last = path.iter().filter(|path| !records(path).is_empty()).max().unwrap();
        end = records(last).last().map(|(at, size)| at + size).unwrap();
        write(last, end, &[1, 2, 3]);
    });
    assert_eq!(kinds(&findings), [Kind::TornTail].into());
    assert_eq!(findings[0].range, end..end + 3);
}

#[test]
fn flags_of_transactions_that_cannot_be_are_found() {
    // A half message is in no queue: its queue offset is 0.
    let findings = after(|directory| drop(change_record(directory, 39, |_| 4)));
    assert!(kinds(&findings).contains(&Kind::TransactionFlag), "{findings:#?}");
    let findings = after(|directory| {
        let (path, at, _) = change_record(directory, 39, |_| 8);
        write(&path, at + 76, &u64::MAX.to_be_bytes());
    });
    assert_eq!(kinds(&findings), [Kind::TransactionFlag].into(), "{findings:#?}");
}

#[test]
fn records_appended_as_one_without_their_last_are_found() {
    let findings = after(|directory| {
        let files: Vec<PathBuf> = (0..20).map(|number| log_file(directory, number)).collect();
        let last = files.iter().rfind(|path| path.exists() && !records(path).is_empty()).unwrap();
        for (at, _) in records(last).into_iter().rev().take(3) {
            write(last, at + 36, &[1]);
        }
    });
    assert_eq!(kinds(&findings), [Kind::Unfinished].into());
    assert_eq!(findings[0].count, 3);
}

#[test]
fn an_entry_that_leads_elsewhere_is_found() {
    // Points the entry at no record.
    let findings = after(|directory| write(&queue_file(directory, "two", 0, 1), 7, &[1]));
    assert!(kinds(&findings).contains(&Kind::EntryWithoutRecord), "{findings:#?}");
    assert!(kinds(&findings).contains(&Kind::RecordWithoutEntry), "{findings:#?}");
    let entry = findings.iter().find(|finding| finding.kind == Kind::EntryWithoutRecord).unwrap();
    assert_eq!(entry.range, 0..20);
    assert!(entry.found.contains("queue offset 50"), "{}", entry.found);
    // Points the entry at the record of another queue offset.
    let findings = after(|directory| {
        let path = queue_file(directory, "two", 0, 1);
        write(&path, 0, &read::<20>(&path, 40));
    });
    assert_eq!(kinds(&findings), [Kind::EntryOfOtherRecord, Kind::RecordWithoutEntry].into());
}

#[test]
fn an_entry_with_a_wrong_size_or_tag_hash_is_found() {
    let findings = after(|directory| write(&queue_file(directory, "two", 0, 1), 31, &[0xFF]));
    assert_eq!(kinds(&findings), [Kind::EntrySize].into());
    assert_eq!(findings[0].range, 20..40);
    let findings = after(|directory| write(&queue_file(directory, "two", 0, 1), 39, &[0xFF]));
    assert_eq!(kinds(&findings), [Kind::EntryTagHash].into());
}

#[test]
fn a_gap_a_filler_and_a_lost_end_of_a_queue_are_found_with_the_records_that_lost_their_entries() {
    let findings = after(|directory| write(&queue_file(directory, "two", 1, 0), 200, &[0; 60]));
    assert_eq!(kinds(&findings), [Kind::QueueGap, Kind::RecordWithoutEntry].into());
    let gap = findings.iter().find(|finding| finding.kind == Kind::QueueGap).unwrap();
    assert_eq!((gap.range.clone(), gap.count), (200..260, 3));
    let records = findings.iter().find(|finding| finding.kind == Kind::RecordWithoutEntry).unwrap();
    assert_eq!(records.count, 3);

    let filler = [&[0; 8][..], &i32::MAX.to_be_bytes(), &[0; 8]].concat();
    let findings = after(|directory| write(&queue_file(directory, "two", 1, 0), 200, &filler));
    assert_eq!(kinds(&findings), [Kind::FillerInside, Kind::RecordWithoutEntry].into());

    let findings = after(|directory| fs::remove_file(queue_file(directory, "one", 0, 1)).unwrap());
    assert_eq!(kinds(&findings), [Kind::RecordWithoutEntry, Kind::QueueShort].into());
    let lost: u64 = findings.iter().filter(|f| f.kind == Kind::RecordWithoutEntry).map(|f| f.count).sum();
    assert_eq!(lost, 50);
}

#[test]
fn a_lost_queue_is_found_unless_its_topic_was_deleted() {
    let lose = |directory: &Path| fs::remove_dir_all(directory.join("consumequeue/one")).unwrap();
    let findings = after(lose);
    let lost: u64 = findings.iter().filter(|f| f.kind == Kind::RecordWithoutEntry).map(|f| f.count).sum();
    assert_eq!(lost, 200);

    let directory = closed(asynchronous());
    lose(directory.path());
    fs::remove_file(directory.path().join("ferromq/queues")).unwrap();
    fs::write(directory.path().join("config/topics.json"), r#"{"topicConfigTable":{"two":{}}}"#).unwrap();
    let (report, findings) = look(directory.path());
    assert_eq!((findings, report.of_deleted), (vec![], 200));
}

#[test]
fn two_records_of_one_queue_offset_are_found() {
    let findings = after(|directory| {
        let path = log_file(directory, 1);
        let offsets: Vec<(u64, [u8; 8])> = records(&path)
            .into_iter()
            .filter(|(at, _)| {
                MessageView::decode(&fs::read(&path).unwrap()[*at as usize..], true).unwrap().topic == "one"
            })
            .filter(|(at, _)| read::<4>(&path, at + 12) == [0; 4])
            .map(|(at, _)| (at, read::<8>(&path, at + 20)))
            .collect();
        write(&path, offsets[1].0 + 20, &offsets[0].1);
    });
    // The second record's entry still leads to it.
    assert_eq!(
        kinds(&findings),
        [Kind::DuplicateQueueOffset, Kind::EntryOfOtherRecord].into(),
        "{findings:#?}"
    );
}

/// Position of an entry in an index file of 50 slots.
fn index_entry(number: u64) -> u64 {
    40 + 50 * 4 + number * 20
}

#[test]
fn an_index_entry_that_leads_elsewhere_or_has_another_hash_is_found() {
    let findings = after(|directory| write(&index_file(directory, 1), index_entry(7) + 11, &[0xFF]));
    assert!(kinds(&findings).contains(&Kind::IndexEntryWithoutRecord), "{findings:#?}");
    assert!(kinds(&findings).contains(&Kind::KeyNotIndexed), "{findings:#?}");
    // The same slot, another key.
    let findings = after(|directory| {
        let path = index_file(directory, 1);
        let hash = u32::from_be_bytes(read(&path, index_entry(7)));
        write(
            &path,
            index_entry(7),
            &(hash ^ 0x100).wrapping_sub((hash ^ 0x100) % 50).wrapping_add(hash % 50).to_be_bytes(),
        );
    });
    assert_eq!(kinds(&findings), [Kind::IndexOtherKey, Kind::KeyNotIndexed].into(), "{findings:#?}");
    let entry = findings.iter().find(|finding| finding.kind == Kind::IndexOtherKey).unwrap();
    assert_eq!(entry.range, index_entry(7)..index_entry(8));
    // An entry out of order, at the record of another key.
    let findings = after(|directory| write(&index_file(directory, 1), index_entry(7) + 4, &[0; 8]));
    assert_eq!(kinds(&findings), [Kind::IndexOtherKey, Kind::KeyNotIndexed].into(), "{findings:#?}");
}

#[test]
fn an_index_file_that_is_gone_leaves_keys_that_are_not_indexed() {
    let findings = after(|directory| fs::remove_file(index_file(directory, 2)).unwrap());
    assert_eq!(kinds(&findings), [Kind::KeyNotIndexed].into());
    let count: u64 = findings.iter().map(|finding| finding.count).sum();
    assert!((99..=101).contains(&count), "{count}");
}

#[test]
fn chains_that_loop_slots_that_mislead_and_wrong_headers_are_found() {
    let findings =
        after(|directory| write(&index_file(directory, 0), index_entry(30) + 16, &30u32.to_be_bytes()));
    assert_eq!(kinds(&findings), [Kind::IndexChain].into());
    assert!(findings[0].found.contains("loops"), "{}", findings[0].found);
    assert_eq!(findings[0].range, index_entry(30)..index_entry(31));

    let findings = after(|directory| write(&index_file(directory, 0), 40 + 5 * 4, &[0; 4]));
    assert_eq!(kinds(&findings), [Kind::IndexChain].into());

    for (at, bytes) in
        [(36, &100u32.to_be_bytes()[..]), (32, &[0; 4]), (16, &[1; 8]), (36, &[0x7F; 4]), (0, &[0x7F; 8])]
    {
        let findings = after(|directory| write(&index_file(directory, 0), at, bytes));
        assert!(kinds(&findings).contains(&Kind::IndexHeader), "{at}: {findings:#?}");
    }
    let findings = after(|directory| fs::write(index_file(directory, 0), [0; 100]).unwrap());
    assert!(kinds(&findings).contains(&Kind::FileSize), "{findings:#?}");
}

#[test]
fn a_checkpoint_beyond_the_log_is_found() {
    for at in [0, 8, 16, 32] {
        let findings =
            after(|directory| write(&directory.join("checkpoint"), at, &(i64::MAX / 2).to_be_bytes()));
        assert_eq!(kinds(&findings), [Kind::CheckpointBeyondLog].into(), "field at {at}");
        assert_eq!(findings[0].range, at..at + 8);
    }
    let findings = after(|directory| fs::remove_file(directory.join("checkpoint")).unwrap());
    assert_eq!(kinds(&findings), [Kind::MissingFile].into());
}

#[test]
fn offsets_beyond_their_queue_and_files_that_cannot_be_read_are_found() {
    let findings = after(|directory| {
        let config = directory.join("config");
        // Java writes integers as keys.
        fs::write(
            config.join("consumerOffset.json"),
            r#"{"offsetTable":{"one@g":{0:100,1:101},"none@g":{0:0}}}"#,
        )
        .unwrap();
        fs::write(config.join("delayOffset.json"), r#"{"offsetTable":{3:1}}"#).unwrap();
    });
    assert_eq!(kinds(&findings), [Kind::OffsetBeyondQueue].into());
    assert_eq!(findings.len(), 2, "{findings:#?}");
    assert!(findings.iter().any(|finding| finding.found.contains("group g")), "{findings:#?}");

    for name in ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "other.json"] {
        let findings =
            after(|directory| fs::write(directory.join("config").join(name), "{\"half\":").unwrap());
        assert_eq!(kinds(&findings), [Kind::Config].into(), "{name}");
    }
    for name in ["closed", "queues", "leases"] {
        let findings = after(|directory| fs::write(directory.join("ferromq").join(name), "x").unwrap());
        assert!(kinds(&findings).contains(&Kind::OwnFile), "{name}: {findings:#?}");
    }
}

#[test]
fn a_killed_store_is_sound_up_to_its_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let killed = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    fill(&store, 0..300);
    copy_as_killed(directory.path(), killed.path());
    let (report, findings) = look(killed.path());
    assert_eq!((findings, report.state, report.records), (vec![], StoreState::Killed, 300));
    assert!(report.notes.iter().any(|note| note.contains("not closed")), "{:?}", report.notes);
    store.close().unwrap();
}

#[test]
fn directories_of_java_brokers_are_sound() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/store");
    for (name, state) in [
        ("stopped", StoreState::Closed),
        ("property-crc", StoreState::Closed),
        ("killed", StoreState::Killed),
    ] {
        let (report, findings) = look(&fixtures.join(name));
        assert_eq!((findings, report.state), (vec![], state), "{name}");
        let lines = fs::read_to_string(fixtures.join(format!("{name}.txt"))).unwrap();
        let records =
            lines.lines().filter(|line| line.starts_with("queued") || line.starts_with("kept")).count();
        assert_eq!(report.records, records as u64, "{name}");
        let queued = lines.lines().filter(|line| line.starts_with("queued")).count();
        assert_eq!(report.queue_entries, queued as u64, "{name}");
    }
}

#[test]
fn records_appended_as_one_are_sound() {
    let directory = closed(asynchronous());
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    let named = named("k", "a");
    let messages = [message("one", 0, b"first", &named), message("two", 1, b"second", &named)];
    store.log().append_as_one(&messages).unwrap();
    settle(&store);
    store.close().unwrap();
    let (report, findings) = look(directory.path());
    assert_eq!((findings, report.records), (vec![], 602));
}

#[test]
fn whoever_looks_may_end_it() {
    let directory = closed(asynchronous());
    let report = verify(directory.path(), &InspectOptions::default(), &|_| false).unwrap();
    assert!(!report.is_complete && !report.is_sound());
}

#[test]
fn a_summary_tells_what_the_store_holds() {
    let directory = closed(asynchronous());
    fs::write(directory.path().join("config/topics.json"), r#"{"topicConfigTable":{"one":{},"two":{}}}"#)
        .unwrap();
    let summary = inspect(directory.path(), &InspectOptions::default()).unwrap();
    assert_eq!((summary.state, summary.abort), (StoreState::Closed, None));
    assert_eq!(summary.log.end, look(directory.path()).0.looked_to);
    assert_eq!((summary.log.start, summary.log.file_size), (0, LOG_FILE));
    assert!(summary.log.first_time.unwrap() <= summary.log.last_time.unwrap());
    let queues: Vec<(&str, u32, u64, u64)> = summary
        .topics
        .iter()
        .flat_map(|topic| {
            topic.queues.iter().map(move |q| (topic.topic.as_str(), q.queue_id, q.messages, q.max_offset))
        })
        .collect();
    assert_eq!(
        queues,
        [("one", 0, 100, 100), ("one", 1, 100, 100), ("two", 0, 200, 200), ("two", 1, 200, 200)]
    );
    let bytes: u64 = summary.topics.iter().flat_map(|topic| &topic.queues).map(|queue| queue.bytes).sum();
    assert_eq!(bytes, look(directory.path()).0.log_bytes);
    assert_eq!((summary.index.files, summary.index.entries), (7, 1200));
    assert_eq!(summary.checkpoint.unwrap().durable_end as u64, summary.log.end);
    let topics = summary.config.iter().find(|file| file.name == "topics.json").unwrap();
    assert_eq!(topics.entries, Some(2));
    assert!(summary.own_files.iter().any(|file| file.name == "closed"));
}

fn dumped(directory: &Path, query: &DumpQuery) -> Vec<(i32, u64)> {
    let items = dump(directory, query, &InspectOptions::default()).unwrap();
    items
        .map(|item| match item.unwrap() {
            DumpItem::Record { bytes, is_sound } => {
                assert!(is_sound);
                let view = MessageView::decode(&bytes, true).unwrap();
                assert_eq!(view.topic, query.topic);
                (view.queue_id, view.queue_offset)
            }
            DumpItem::Lost { reason, .. } => panic!("{reason}"),
        })
        .collect()
}

#[test]
fn a_dump_reads_what_is_asked_for_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(1_000_000);
    let store = MessageStore::open(directory.path(), asynchronous(), clock.clone()).unwrap();
    for round in 0..6 {
        fill(&store, round * 100..(round + 1) * 100);
        clock.advance(1000);
    }
    store.close().unwrap();
    let all = DumpQuery { topic: "one".into(), ..DumpQuery::default() };
    let expected: Vec<(i32, u64)> =
        (0..2).flat_map(|queue| (0..100).map(move |offset| (queue, offset))).collect();
    assert_eq!(dumped(directory.path(), &all), expected);
    let of_queue = DumpQuery { queue_id: Some(1), from_offset: Some(97), ..all.clone() };
    assert_eq!(dumped(directory.path(), &of_queue), [(1, 97), (1, 98), (1, 99)]);
    let some = DumpQuery { from_offset: Some(40), to_offset: Some(42), ..all.clone() };
    assert_eq!(dumped(directory.path(), &some), [(0, 40), (0, 41), (1, 40), (1, 41)]);
    let limited = DumpQuery { limit: Some(3), ..all.clone() };
    assert_eq!(dumped(directory.path(), &limited).len(), 3);
    let key = DumpQuery { key: Some("k300".into()), ..all.clone() };
    assert_eq!(dumped(directory.path(), &key), [(0, 50)]);
    let tag = DumpQuery { tag: Some("b".into()), ..all.clone() };
    assert_eq!(dumped(directory.path(), &tag).len(), 100);
    let time = DumpQuery { from_time: Some(1_002_000), to_time: Some(1_003_999), ..all.clone() };
    let of_time = dumped(directory.path(), &time);
    assert_eq!(of_time.len(), 67, "{of_time:?}");
    let none = DumpQuery { topic: "none".into(), ..all };
    let error = dump(directory.path(), &none, &InspectOptions::default()).err().unwrap();
    assert!(error.to_string().contains("none") && error.to_string().contains("one, two"), "{error}");
}

#[test]
fn a_dump_tells_of_entries_that_lead_to_no_record_and_goes_on() {
    let directory = closed(asynchronous());
    change_record(directory.path(), 4, |_| 0);
    let count = |topic: &str| {
        let query = DumpQuery { topic: topic.into(), ..DumpQuery::default() };
        let items = dump(directory.path(), &query, &InspectOptions::default()).unwrap();
        items.filter(|item| matches!(item, Ok(DumpItem::Lost { .. }))).count()
    };
    assert_eq!(count("one") + count("two"), 1);
}

#[test]
fn one_file_of_the_log_is_read_alone() {
    let directory = closed(asynchronous());
    let region = ferromq_store::files::Disk::open(
        &ferromq_store::files::RealDisk,
        &log_file(directory.path(), 1),
        ferromq_store::files::Allocation::ReadOnly,
    );
    let mut file = LogFile::new(region.unwrap(), LOG_FILE);
    let mut places = Vec::new();
    while let Some(scanned) = file.next_scanned().unwrap() {
        match scanned {
            Scanned::Record(view) => places.push(view.physical_offset - LOG_FILE),
            Scanned::Full => {}
            other => panic!("{other:?}"),
        }
    }
    let expected: Vec<u64> = records(&log_file(directory.path(), 1)).into_iter().map(|(at, _)| at).collect();
    assert_eq!(places, expected);
}

/// The files of a small store, by path.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut left, mut found) = (vec![directory.to_path_buf()], Vec::new());
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            found.push((path.strip_prefix(directory).unwrap().to_path_buf(), fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

fn small_store() -> &'static Vec<(PathBuf, Vec<u8>)> {
    static FILES: std::sync::OnceLock<Vec<(PathBuf, Vec<u8>)>> = std::sync::OnceLock::new();
    FILES.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig { commit_log_file_size: 8 << 10, ..asynchronous() };
        let store = MessageStore::open(directory.path(), config, Clock::manual(1_700_000_000_000)).unwrap();
        for number in 0..60u8 {
            let named = named(&format!("k{number}"), "tag");
            let body = [number; 200];
            store.log().append(&[message("one", i32::from(number % 2), &body, &named)]).unwrap();
        }
        settle(&store);
        store.close().unwrap();
        files(directory.path())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: common::cases(200), ..ProptestConfig::default() })]

    /// Arbitrary bytes never cause a panic, and a change in a meaningful part is found.
    #[test]
    fn arbitrary_bytes_in_any_file_never_panic(
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..40)), 1..6),
        cut in prop::option::of((any::<prop::sample::Index>(), any::<prop::sample::Index>())),
    ) {
        let mut files = small_store().clone();
        for (file, place, bytes) in changes {
            let number = file.index(files.len());
            let content = &mut files[number].1;
            if !content.is_empty() {
                let at = place.index(content.len());
                for (byte, new) in content[at..].iter_mut().zip(bytes) {
                    *byte = new;
                }
            }
        }
        if let Some((file, len)) = cut {
            let number = file.index(files.len());
            let content = &mut files[number].1;
            content.truncate(len.index(content.len() + 1));
        }
        let directory = tempfile::tempdir().unwrap();
        for (path, bytes) in &files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        look(directory.path());
        inspect(directory.path(), &InspectOptions::default()).unwrap();
        let query = DumpQuery { topic: "one".into(), key: Some("k7".into()), ..DumpQuery::default() };
        let items = dump(directory.path(), &query, &InspectOptions::default());
        items.map(|items| items.count()).ok();
    }
}

#[test]
fn verify_finds_nothing_wrong_after_a_deletion() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(1_700_000_000_000);
    let store = MessageStore::open(directory.path(), asynchronous(), clock).unwrap();
    for number in 0..200 {
        let topic = if number % 3 == 0 { "kept" } else { "gone" };
        store.log().append(&[message(topic, 0, &[7; 500], &named(&format!("k{number}"), "a"))]).unwrap();
    }
    settle(&store);
    store.admin().delete_topic("gone").unwrap();
    let check = |of_deleted| {
        let findings = Mutex::new(Vec::new());
        let report = verify(directory.path(), &InspectOptions::default(), &|event| {
            if let VerifyEvent::Finding(finding) = event {
                findings.lock().unwrap().push(format!("{finding:?}"));
            }
            true
        });
        let (report, findings) = (report.unwrap(), findings.into_inner().unwrap());
        assert_eq!((findings, report.of_deleted), (Vec::<String>::new(), of_deleted));
    };
    check(133);
    store.log().append(&[message("gone", 0, b"again", b"")]).unwrap();
    settle(&store);
    store.close().unwrap();
    check(133);
}

#[test]
fn a_store_with_timed_messages_is_sound_and_a_damaged_precision_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = timers::open(directory.path(), &Clock::manual(timers::START));
    store.delayed().start_schedule().unwrap();
    timers::put(&store, "orders", "later", timers::START + 60_000, false);
    let precision = directory.path().join("ferromq/timerprecision");
    timers::wait_until(|| precision.exists());
    store.close().unwrap();
    assert_eq!(look(directory.path()).1, []);
    for bytes in [&[0xFF; 8][..], &[1; 7]] {
        fs::write(&precision, bytes).unwrap();
        assert_eq!(kinds(&look(directory.path()).1), [Kind::OwnFile].into(), "{bytes:?}");
    }
}
