//! Scans of a store's log, file by file, give the rows of its queues and never pass the last flush.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

#[path = "../../ferromq-store/tests/common/mod.rs"]
mod common;

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use common::{asynchronous, message, named, settle, small, synchronous};
use ferromq_scan::{
    columns::{Buffers, ColumnSet, RowFilter},
    inspect::{InspectOptions, LogPart, LogScan, OnCorrupt, ScanOptions, log_files, queue_starts},
};
use ferromq_store::{
    MessageStore, Result, StoreConfig, StoreError, files::RealDisk, log::FlushPolicy, time::Clock,
};
use proptest::prelude::*;

const LOG_FILE: u64 = 64 << 10;

/// Topic, queue, queue offset and physical offset.
type Row = (String, i32, i64, i64);

fn rows_of(columns: &[(&'static str, Buffers)]) -> Vec<Row> {
    let data = |name: &str| &columns.iter().find(|(column, _)| *column == name).unwrap().1.data;
    let longs = |name| {
        data(name)[0]
            .chunks_exact(8)
            .map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()))
            .collect::<Vec<_>>()
    };
    let ints = |bytes: &[u8]| -> Vec<i32> {
        bytes.chunks_exact(4).map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    let (ends, text) = (ints(&data("topic")[0]), &data("topic")[1]);
    let topics = ends.windows(2).map(|ends| &text[ends[0] as usize..ends[1] as usize]);
    let queues = ints(&data("queue_id")[0]);
    topics
        .zip(queues)
        .zip(longs("queue_offset").into_iter().zip(longs("physical_offset")))
        .map(|((topic, queue), (offset, at))| (String::from_utf8(topic.to_vec()).unwrap(), queue, offset, at))
        .collect()
}

fn options(on_corrupt: OnCorrupt) -> ScanOptions {
    ScanOptions {
        wanted: ColumnSet::parse(["topic", "queue_id", "queue_offset", "physical_offset"]).unwrap(),
        filter: RowFilter::default(),
        batch_rows: 7,
        batch_bytes: 2_000,
        on_corrupt,
    }
}

type Found = (Vec<Row>, Vec<(u64, String)>);

fn scan(part: &LogPart, begin: u64, end: u64, options: &ScanOptions) -> Result<Found> {
    let mut scan = LogScan::open(RealDisk, &part.path, part.base, begin..end, options.clone())?;
    let (mut rows, mut corrupt) = (Vec::new(), Vec::new());
    while let Some(found) = scan.next_batch()? {
        assert!(found.batch.rows <= options.batch_rows);
        assert!(found.batch.read > 0 || !found.corrupt.is_empty());
        rows.extend(rows_of(&found.batch.columns));
        corrupt.extend(found.corrupt);
    }
    Ok((rows, corrupt))
}

fn parts(directory: &Path) -> Vec<LogPart> {
    log_files(directory, &InspectOptions::default()).unwrap()
}

fn all(directory: &Path, options: &ScanOptions) -> Result<Found> {
    let mut all = Found::default();
    for part in parts(directory) {
        let (rows, corrupt) = scan(&part, part.base, part.end, options)?;
        all.0.extend(rows);
        all.1.extend(corrupt);
    }
    Ok(all)
}

/// The rows that the queues hold.
fn held(directory: &Path) -> Vec<Row> {
    let starts = queue_starts(directory, &InspectOptions::default()).unwrap();
    let filter = RowFilter { starts: Some(Arc::new(starts)), ..RowFilter::default() };
    all(directory, &ScanOptions { filter, ..options(OnCorrupt::Fail) }).unwrap().0
}

fn fill(store: &MessageStore, range: std::ops::Range<u32>) {
    for number in range {
        let body = vec![number as u8; (number as usize * 37) % 900 + 1];
        let topic = if number % 3 == 0 { "one" } else { "two" };
        store.log().append(&[message(topic, (number % 2) as i32, &body, &named("k", "a"))]).unwrap();
    }
    settle(store);
}

fn open(directory: &Path, config: StoreConfig) -> MessageStore {
    MessageStore::open(directory, config, Clock::system()).unwrap()
}

/// A closed store of 600 messages in several files.
fn closed() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), asynchronous());
    fill(&store, 0..600);
    store.close().unwrap();
    directory
}

/// Queue offsets by queue, checked to be contiguous.
fn by_queue(rows: &[Row]) -> BTreeMap<(String, i32), Vec<i64>> {
    let mut queues = BTreeMap::<_, Vec<i64>>::new();
    for (topic, queue, offset, _) in rows {
        queues.entry((topic.clone(), *queue)).or_default().push(*offset);
    }
    queues
}

fn log_file(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("commitlog/{:020}", number * LOG_FILE))
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn every_record_of_a_closed_store_comes_once_and_in_order() {
    let directory = closed();
    let (rows, corrupt) = all(directory.path(), &options(OnCorrupt::Fail)).unwrap();
    assert_eq!((rows.len(), corrupt), (600, vec![]));
    assert!(rows.is_sorted_by_key(|row| row.3));
    for (queue, offsets) in by_queue(&rows) {
        assert_eq!(offsets, (0..offsets.len() as i64).collect::<Vec<_>>(), "{queue:?}");
    }
    let parts = parts(directory.path());
    assert!(parts.len() > 3);
    assert!(
        parts.windows(2).all(|pair| pair[0].end == pair[1].base && pair[0].end - pair[0].base == LOG_FILE)
    );
    assert!(parts.last().unwrap().end > rows.last().unwrap().3 as u64);
    assert_eq!(held(directory.path()), rows);
}

#[test]
fn ranges_of_a_file_that_meet_anywhere_have_each_record_in_one_of_them() {
    let directory = closed();
    let part = &parts(directory.path())[1];
    let (whole, _) = scan(part, part.base, part.end, &options(OnCorrupt::Fail)).unwrap();
    for cut in (0..LOG_FILE).step_by(977) {
        let cut = part.base + cut;
        let (mut rows, _) = scan(part, part.base, cut, &options(OnCorrupt::Fail)).unwrap();
        assert!(rows.iter().all(|row| (row.3 as u64) < cut));
        rows.extend(scan(part, cut, part.end, &options(OnCorrupt::Fail)).unwrap().0);
        assert_eq!(rows, whole, "cut at {cut}");
    }
}

#[test]
fn a_java_brokers_directory_gives_what_its_queues_hold() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/store");
    for name in ["stopped", "property-crc"] {
        let lines = fs::read_to_string(fixtures.join(format!("{name}.txt"))).unwrap();
        let expected: Vec<Row> = lines
            .lines()
            .filter(|line| line.starts_with("queued"))
            .map(|line| {
                let words: Vec<&str> = line.split('\t').collect();
                let number = |at: usize| words[at].parse::<i64>().unwrap();
                (words[3].to_owned(), number(4) as i32, number(5), number(1))
            })
            .collect();
        let mut rows = held(&fixtures.join(name));
        rows.retain(|row| expected.iter().any(|other| other.0 == row.0));
        assert_eq!(rows, expected, "{name}");
    }
}

#[test]
fn of_a_java_broker_that_was_killed_only_what_its_checkpoint_covers_is_read() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/store/killed");
    let directory = tempfile::tempdir().unwrap();
    copy_tree(&fixtures, directory.path());
    let stamped = |ms: i64| {
        overwrite(&directory.path().join("checkpoint"), 0, &ms.to_be_bytes());
        let mut wanted = options(OnCorrupt::Fail);
        wanted.filter.stored = ms - 3_000..i64::MAX;
        let (late, _) = all(directory.path(), &wanted).unwrap();
        assert_eq!(late, [], "none that was stored later");
        all(directory.path(), &options(OnCorrupt::Fail)).unwrap().0.len()
    };
    let lines = fs::read_to_string(fixtures.with_extension("txt")).unwrap();
    let told = lines.lines().filter(|line| line.starts_with("queued") || line.starts_with("kept"));
    let mut stored: Vec<i64> = told.map(|line| line.split('\t').nth(11).unwrap().parse().unwrap()).collect();
    stored.sort_unstable();
    assert_eq!(stamped(0), 0);
    assert_eq!(stamped(stored[0] + 3_000), 0);
    let middle = stamped(stored[stored.len() / 2] + 3_000);
    assert!(middle > 0 && middle <= stored.len() / 2, "{middle}");
    assert!(stamped(stored.last().unwrap() + 3_001) > middle);
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let target = to.join(entry.file_name().unwrap());
        if entry.is_dir() {
            copy_tree(&entry, &target);
        } else {
            fs::copy(&entry, target).unwrap();
        }
    }
}

#[test]
fn of_a_live_store_nothing_comes_that_is_not_flushed() {
    let directory = tempfile::tempdir().unwrap();
    let hour = Duration::from_secs(3_600);
    let held_back = FlushPolicy::Interval { interval: hour, least_pages: 1_000_000, thorough: hour };
    let store = open(directory.path(), small(FlushPolicy::Group));
    fill(&store, 0..200);
    let flushed = store.admin().stats().flushed_offset;
    // The first checkpoint notes it, then every flush.
    while parts(directory.path()).last().is_none_or(|part| part.end < flushed) {
        std::thread::sleep(Duration::from_millis(5));
    }
    store.admin().set_flush(held_back).unwrap();
    fill(&store, 200..400);
    let (rows, _) = all(directory.path(), &options(OnCorrupt::Fail)).unwrap();
    let stats = store.admin().stats();
    assert!(stats.flushed_offset < stats.max_physical_offset, "the flush is held back");
    assert!(rows.len() >= 200, "what is flushed is there: {}", rows.len());
    assert!(rows.len() < 400);
    assert!(rows.iter().all(|row| (row.3 as u64) < stats.flushed_offset));
    assert_eq!(held(directory.path()), rows);
    store.close().unwrap();
    assert_eq!(all(directory.path(), &options(OnCorrupt::Fail)).unwrap().0.len(), 400);
}

#[test]
fn records_of_a_deleted_topic_and_of_files_that_are_gone_are_no_rows() {
    let directory = closed();
    let store = open(directory.path(), synchronous());
    store.admin().delete_topic("one").unwrap();
    fill(&store, 600..606);
    store.close().unwrap();
    fs::remove_file(log_file(directory.path(), 0)).unwrap();
    fs::remove_file(log_file(directory.path(), 1)).unwrap();
    let rows = held(directory.path());
    let queues = by_queue(&rows);
    let store = open(directory.path(), synchronous());
    for (topic, queue) in [("one", 0), ("one", 1), ("two", 0), ("two", 1)] {
        let expected: Vec<i64> = (store.queues().min_offset(topic, queue)
            ..store.queues().max_offset(topic, queue))
            .map(|offset| offset as i64)
            .collect();
        assert_eq!(queues[&(topic.to_owned(), queue as i32)], expected, "{topic} {queue}");
    }
    store.close().unwrap();
}

#[test]
fn damage_is_an_error_that_says_where_or_is_skipped_and_told() {
    let directory = closed();
    let (sound, _) = all(directory.path(), &options(OnCorrupt::Fail)).unwrap();
    let path = log_file(directory.path(), 1);
    let inside: Vec<&Row> =
        sound.iter().filter(|row| (LOG_FILE..2 * LOG_FILE).contains(&(row.3 as u64))).collect();
    let places = [inside[10].3 as u64, inside[20].3 as u64, inside[30].3 as u64];
    overwrite(&path, places[0] - LOG_FILE + 90, &[0xEE]); // a body
    overwrite(&path, places[1] - LOG_FILE, &[0; 60]); // a head
    overwrite(&path, places[2] - LOG_FILE + 28, &7u64.to_be_bytes()); // its own place
    let error = all(directory.path(), &options(OnCorrupt::Fail)).unwrap_err();
    let StoreError::CorruptRecord { file, physical_offset, offset, reason } = &error else {
        panic!("{error}")
    };
    assert_eq!((file, *physical_offset, *offset), (&path, places[0], places[0] - LOG_FILE));
    assert_eq!(reason, "the body does not match its checksum");
    let (rows, corrupt) = all(directory.path(), &options(OnCorrupt::Skip)).unwrap();
    assert_eq!(corrupt.iter().map(|(at, _)| *at).collect::<Vec<_>>(), places);
    let left: Vec<Row> = sound.iter().filter(|row| !places.contains(&(row.3 as u64))).cloned().collect();
    assert_eq!(rows, left);
}

#[test]
fn a_record_of_several_messages_ends_only_scans_that_would_hold_it() {
    let directory = closed();
    let (sound, _) = all(directory.path(), &options(OnCorrupt::Fail)).unwrap();
    let place = sound.iter().find(|row| row.0 == "two").unwrap().3 as u64;
    overwrite(&log_file(directory.path(), 0), place + 36, &128i32.to_be_bytes());
    let error = all(directory.path(), &options(OnCorrupt::Fail)).unwrap_err();
    assert!(error.to_string().contains("several messages in one record"), "{error}");
    let filter = RowFilter { topics: Some(vec!["one".into()]), ..RowFilter::default() };
    let (rows, _) = all(directory.path(), &ScanOptions { filter, ..options(OnCorrupt::Fail) }).unwrap();
    assert_eq!(rows, sound.into_iter().filter(|row| row.0 == "one").collect::<Vec<_>>());
}

#[test]
fn a_file_that_lost_its_end_is_damaged_unless_it_is_the_last_one() {
    let directory = closed();
    let (path, last) = (log_file(directory.path(), 1), parts(directory.path()).pop().unwrap());
    let (rows, _) = all(directory.path(), &options(OnCorrupt::Fail)).unwrap();
    let at = rows.iter().map(|row| row.3 as u64).filter(|at| *at < 2 * LOG_FILE).nth_back(9).unwrap();
    overwrite(&path, at - LOG_FILE, &vec![0; (2 * LOG_FILE - at) as usize]);
    let (_, corrupt) = all(directory.path(), &options(OnCorrupt::Skip)).unwrap();
    assert_eq!(corrupt, [(at, "zeros where a record should begin".to_owned())]);
    // Given alone, as an archived file, it has no successor, so its trailing zeros are no loss.
    let whole = last.base + fs::metadata(&last.path).unwrap().len();
    assert_eq!(scan(&last, last.base, whole, &options(OnCorrupt::Fail)).unwrap().1, []);
    let error = scan(&last, last.base, whole + 1, &options(OnCorrupt::Fail)).unwrap_err();
    assert!(error.to_string().contains("shorter"), "{error}");
}

#[test]
fn a_range_or_batch_that_cannot_be_is_refused() {
    let directory = closed();
    let part = &parts(directory.path())[1];
    for (begin, end) in [(part.base - 1, part.end), (part.base + 9, part.base)] {
        assert!(matches!(
            scan(part, begin, end, &options(OnCorrupt::Fail)),
            Err(StoreError::Invalid { what: "the range of a scan", .. })
        ));
    }
    for (batch_rows, batch_bytes) in [(0, 1), (1, 0), (1, (1 << 30) + 1)] {
        let options = ScanOptions { batch_rows, batch_bytes, ..options(OnCorrupt::Fail) };
        assert!(matches!(scan(part, part.base, part.end, &options), Err(StoreError::Invalid { .. })));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(common::cases(48)))]

    #[test]
    fn any_bytes_as_a_file_end_in_rows_and_places_only(
        bytes in proptest::collection::vec(any::<u8>(), 1..2_000),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        is_log in any::<bool>(),
    ) {
        static LOG: std::sync::LazyLock<Vec<u8>> =
            std::sync::LazyLock::new(|| fs::read(log_file(closed().path(), 1)).unwrap());
        let mut bytes = if is_log { LOG.clone() } else { bytes };
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(format!("{LOG_FILE:020}"));
        fs::write(&path, &bytes).unwrap();
        let end = LOG_FILE + bytes.len() as u64;
        let part = LogPart { path, base: LOG_FILE, end };
        let mut whole = options(OnCorrupt::Skip);
        whole.wanted = ColumnSet::ALL;
        let (rows, corrupt) = scan(&part, LOG_FILE, end, &whole).unwrap();
        prop_assert!(rows.is_sorted_by_key(|row| row.3));
        prop_assert!(corrupt.iter().all(|(at, _)| (LOG_FILE..end).contains(at)));
    }
}
