//! Cleaning: expired files are removed, oldest first, and the kept messages are served as before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    collections::BTreeSet,
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use common::{
    ALL, asynchronous, bodies,
    fake_disk::{FakeDisk, Op, Random},
    flush_now, message, named, settle,
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    filter::MessageFilter,
    progress::{Begin, ReceiveRequest},
    read::{GetStatus, TransferLimits},
    record::MessageView,
    retention::{
        CleanReport, Decision, DiskUsage, ExpiredFile, FileFacts, OnExpiry, Retention, RetentionFacts,
        RetentionPolicy,
    },
    time::Clock,
};

const ROOT: &str = "/store";
const START_MS: i64 = 1_700_000_000_000;
const HOUR: i64 = 3_600_000;
const FILE: u64 = 64 << 10;

type Store = MessageStore<FakeDisk>;

fn open(disk: &FakeDisk, retention: Retention, clock: &Clock) -> Result<Store, StoreError> {
    let config = StoreConfig { retention, disk_reserve: FILE, ..asynchronous() };
    MessageStore::open_on(disk.clone(), Path::new(ROOT), config, clock.clone())
}

fn new(retention: Retention) -> (FakeDisk, Clock, Store) {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(START_MS));
    let store = open(&disk, retention, &clock).unwrap();
    (disk, clock, store)
}

/// Advances the clock and cleans. Returns what was cleaned since, also by the store's thread.
fn clean_after(store: &Store, clock: &Clock, ms: i64) -> CleanReport {
    let before = store.admin().stats().cleaning.total;
    clock.advance(ms);
    let last = store.admin().clean(false);
    let after = store.admin().stats().cleaning.total;
    CleanReport {
        removed_files: after.removed_files - before.removed_files,
        removed_bytes: after.removed_bytes - before.removed_bytes,
        derived_bytes: after.derived_bytes - before.derived_bytes,
        ..last
    }
}

#[test]
fn retention_changes_while_the_store_is_open() {
    let (_, clock, store) = new(Retention { age: None, ..Retention::default() });
    fill(&store, "t", 0, 200);
    assert_eq!(clean_after(&store, &clock, 100 * HOUR).removed_files, 0);
    let hours = vec![24];
    let refused = store.admin().set_retention(&Retention { hours, ..Retention::default() });
    assert!(matches!(refused, Err(StoreError::Invalid { what: "retention_hours", .. })));
    store.admin().set_retention(&Retention::default()).unwrap();
    store.admin().clean(false);
    assert!(store.admin().stats().cleaning.total.removed_files > 0, "here or by the store's own thread");
}

/// Appends `count` messages of 1,500 bytes with a key each: 39 of them fill a file.
fn fill(store: &Store, topic: &str, queue_id: i32, count: u64) {
    for _ in 0..count {
        let number = store.queues().max_offset(topic, queue_id as u32);
        let body = [&number.to_be_bytes()[..], &[7; 1492]].concat();
        store.log().append(&[message(topic, queue_id, &body, &named(&format!("k{number}"), "a"))]).unwrap();
        settle(store);
    }
}

/// Checks that messages from the min offset on have no gap, and that each is at its place and under its key.
fn check(store: &Store, topic: &str, queue_id: u32, max_offset: u64) {
    assert_eq!(store.queues().max_offset(topic, queue_id), max_offset);
    let min_offset = store.queues().min_offset(topic, queue_id);
    for (offset, body) in (min_offset..).zip(bodies(store, topic, queue_id)) {
        assert_eq!(body[..8], offset.to_be_bytes());
        let found = store.queues().query_by_key(topic, &format!("k{offset}"), 10, 0, i64::MAX);
        assert!(
            found.messages.iter().any(|r| MessageView::decode(r.bytes(), true).unwrap().body == body),
            "{offset}"
        );
    }
    for offset in [0, min_offset.saturating_sub(1)] {
        if offset < min_offset {
            let found = store.queues().get(topic, queue_id, offset, 32, 1 << 20, ALL);
            assert_eq!((found.status, found.next_offset), (GetStatus::OffsetTooSmall, min_offset));
            assert_eq!(found.min_offset, min_offset);
        }
    }
}

fn log_files(disk: &FakeDisk) -> Vec<u64> {
    files(disk, "commitlog")
}

fn files(disk: &FakeDisk, directory: &str) -> Vec<u64> {
    let directory = Path::new(ROOT).join(directory);
    let paths = disk.paths();
    let inside = paths.iter().filter(|path| path.parent() == Some(&directory));
    // A file being created has a temporary name.
    inside.filter_map(|path| path.file_name().unwrap().to_str().unwrap().parse().ok()).collect()
}

/// Waits for another thread.
fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("never: {what}");
}

#[test]
fn files_go_oldest_first_when_their_newest_message_is_72_hours_old() {
    let (disk, clock, store) = new(Retention::default());
    fill(&store, "t", 0, 60);
    clock.advance(10 * HOUR);
    fill(&store, "t", 0, 80);
    let report = clean_after(&store, &clock, 62 * HOUR - 1);
    assert_eq!((report.removed_files, report.next_due_ms), (0, Some(START_MS + 72 * HOUR)));
    let report = clean_after(&store, &clock, 1);
    assert_eq!(
        (report.removed_files, report.removed_bytes),
        (1, FILE),
        "the second file has younger messages"
    );
    assert_eq!(report.next_due_ms, Some(START_MS + 82 * HOUR));
    assert_eq!((report.min_physical_offset, store.admin().stats().min_physical_offset), (FILE, FILE));
    assert_eq!(report.failure, None);
    assert!(!log_files(&disk).contains(&0));
    assert_eq!(store.queues().min_offset("t", 0), 40);
    check(&store, "t", 0, 140);
    let report = clean_after(&store, &clock, 1000 * HOUR);
    assert_eq!(report.removed_files, 2);
    assert!(report.derived_bytes > 0, "queue files and index files follow");
    assert_eq!(log_files(&disk)[0], 3 * FILE, "the active file stays");
    assert!(files(&disk, "consumequeue/t/0")[0] > 0 && files(&disk, "index").len() == 1);
    check(&store, "t", 0, 140);
    fill(&store, "t", 0, 5);
    check(&store, "t", 0, 145);
    let stats = store.admin().stats().cleaning;
    assert_eq!((stats.total.removed_files, stats.total.removed_bytes), (3, 3 * FILE));
    assert_eq!(stats.last_ms, Some(clock.now_ms()));
    store.close().unwrap();
    drop(store);
    let store = open(&disk, Retention::default(), &clock).unwrap();
    check(&store, "t", 0, 145);
}

#[test]
fn the_cleaning_thread_cleans_as_time_goes_by() {
    let (_disk, clock, store) = new(Retention::default());
    fill(&store, "t", 0, 100);
    clock.advance(72 * HOUR);
    until("the old files are gone", || store.admin().stats().min_physical_offset == 2 * FILE);
    check(&store, "t", 0, 100);
}

#[test]
fn a_file_goes_when_every_topic_in_it_allows_it() {
    let by_topic =
        [("brief".to_owned(), Duration::from_hours(1)), ("long".to_owned(), Duration::from_hours(200))];
    let (_disk, clock, store) = new(Retention { age_by_topic: by_topic.into(), ..Retention::default() });
    fill(&store, "brief", 0, 50);
    fill(&store, "other", 0, 1);
    fill(&store, "brief", 1, 50);
    fill(&store, "long", 0, 1);
    fill(&store, "brief", 0, 50);
    assert_eq!(
        (clean_after(&store, &clock, HOUR).removed_files, store.admin().stats().min_physical_offset),
        (1, FILE)
    );
    let report = clean_after(&store, &clock, 70 * HOUR);
    assert_eq!((report.removed_files, report.next_due_ms), (0, Some(START_MS + 72 * HOUR)));
    let report = clean_after(&store, &clock, HOUR);
    assert_eq!((report.removed_files, report.next_due_ms), (1, Some(START_MS + 200 * HOUR)));
    assert_eq!(clean_after(&store, &clock, 128 * HOUR).removed_files, 1);
    for (topic, queue_id, max_offset) in
        [("brief", 0, 100), ("brief", 1, 50), ("other", 0, 1), ("long", 0, 1)]
    {
        check(&store, topic, queue_id, max_offset);
    }
}

/// The hour of the day, in the test's time zone, this long after the start.
fn hour_after(ms: i64) -> u8 {
    let is_it = |hour: &u8| {
        let (_disk, clock, store) = new(Retention { hours: vec![*hour], ..Retention::default() });
        fill(&store, "t", 0, 50);
        clean_after(&store, &clock, ms).removed_files == 1
    };
    (0..24).find(is_it).unwrap()
}

#[test]
fn expired_files_wait_for_their_hour_of_the_day() {
    let mut hours = Vec::new();
    for hour in 0..24 {
        let (_disk, clock, store) = new(Retention { hours: vec![hour], ..Retention::default() });
        fill(&store, "t", 0, 50);
        let mut ms = 100 * HOUR;
        let wait = (0..24)
            .find(|_| clean_after(&store, &clock, std::mem::replace(&mut ms, HOUR)).removed_files == 1);
        hours.push(wait.expect("some hour of the day"));
    }
    assert_eq!(hours.iter().collect::<BTreeSet<_>>().len(), 24, "each at its own hour: {hours:?}");
    let now = hour_after(100 * HOUR);
    let hours = (0..24).filter(|hour| *hour != now).collect();
    let (_disk, clock, store) = new(Retention { hours, ..Retention::default() });
    fill(&store, "t", 0, 50);
    assert_eq!(clean_after(&store, &clock, 100 * HOUR).removed_files, 0);
    assert_eq!(store.admin().clean(true).removed_files, 1, "unless a caller asks");
}

#[test]
fn the_oldest_files_are_removed_while_the_log_exceeds_its_size() {
    let (disk, _clock, store) = new(Retention { total_bytes: Some(3 * FILE), ..Retention::default() });
    fill(&store, "t", 0, 300);
    store.admin().clean(false);
    assert!(log_files(&disk).len() <= 3, "{:?}", log_files(&disk));
    assert!(store.queues().min_offset("t", 0) >= 200);
    check(&store, "t", 0, 300);
}

#[test]
fn disk_usage_counts_only_if_configured_and_removes_unexpired_files_above_85_percent() {
    let usage = Some(DiskUsage::default());
    for (disk_usage, used, removes_young, removes_expired, is_refused) in [
        (None, 95, false, false, false),
        (usage, 74, false, false, false),
        (usage, 76, false, true, false),
        (usage, 86, true, true, false),
        (usage, 91, true, true, true),
    ] {
        let what = format!("{disk_usage:?} {used}");
        // Hours that never come: only lack of space removes expired files.
        let now = hour_after(100 * HOUR);
        let hours = (0..24).filter(|hour| *hour != now).collect();
        let (disk, clock) = (FakeDisk::new(), Clock::manual(START_MS));
        // Set before the store opens: the reserve is a share of the size, which the store's thread measures.
        disk.set_capacity(100 << 30);
        let set_used = |percent: u64| disk.set_free((100 - percent) << 30);
        set_used(10);
        let retention = Retention { disk_usage, hours, ..Retention::default() };
        let store = open(&disk, retention, &clock).unwrap();
        fill(&store, "t", 0, 120);
        set_used(used);
        // This thread or the store's may clean first; only the removed files count.
        let is_anything_gone_after = |ms| {
            clock.advance(ms);
            store.admin().clean(false);
            store.admin().stats().cleaning.total.removed_files > 0
        };
        assert_eq!(is_anything_gone_after(10), removes_young, "young, {what}");
        assert_eq!(is_anything_gone_after(100 * HOUR - 10), removes_expired, "expired, {what}");
        until("sends are refused or accepted as expected", || store.admin().stats().is_full == is_refused);
        let sent = store.log().append(&[message("t", 0, b"", b"")]);
        match sent {
            Err(StoreError::Full { free, needed, reserve, .. }) => {
                assert!(is_refused, "{what}");
                assert_eq!(reserve, 10 << 30, "{what}");
                assert!(free + needed < reserve, "{what}");
            }
            sent => assert_eq!(sent.is_err(), is_refused, "{what}"),
        }
        set_used(10);
        clock.advance(1000);
        until("sends are accepted again", || !store.admin().stats().is_full);
        store.log().append(&[message("t", 0, b"", b"")]).unwrap();
    }
}

#[test]
fn disk_usage_removes_no_more_than_the_measured_excess_and_a_few_files_at_once() {
    let usage = Retention { disk_usage: Some(DiskUsage::default()), ..Retention::default() };
    // Two and a half files are too many, or thousands. The disk frees their space late, as if another process still
    // read them.
    for (capacity, too_much, removed) in [(100 * FILE, 2 * FILE + FILE / 2, 3), (1 << 40, 1 << 36, 10)] {
        let (disk, clock, store) = new(usage.clone());
        fill(&store, "t", 0, 15 * 39);
        // It takes space as well.
        until("the next file is made", || log_files(&disk).len() == 16);
        disk.set_capacity(capacity);
        disk.set_free(capacity * 15 / 100 - too_much);
        let is_removed = |wanted| {
            store.admin().clean(false);
            store.admin().clean(true);
            assert_eq!(store.admin().stats().cleaning.total.removed_files, wanted, "of {too_much} bytes");
        };
        is_removed(removed);
        clock.advance(9_999);
        is_removed(removed);
        disk.set_free(if removed == 3 { capacity * 15 / 100 } else { disk.free() });
        clock.advance(1);
        is_removed(if removed == 3 { 3 } else { 14 });
        check(&store, "t", 0, 15 * 39);
    }
}

#[test]
fn readers_always_learn_where_to_continue_and_keep_their_records() {
    let (disk, clock, store) = new(Retention::default());
    let store = Arc::new(store);
    fill(&store, "t", 0, 100);
    fill(&store, "u", 0, 1);
    let held = store.queues().get("t", 0, 3, 1, 1 << 20, ALL).messages.remove(0).1;
    clock.advance(71 * HOUR);
    fill(&store, "t", 0, 60);
    let (weak, seen) = (Arc::downgrade(&store), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&seen);
    disk.set_hook(move |op, path| {
        let is_log = path.parent().unwrap().ends_with("commitlog");
        if op == Op::Remove && is_log && counted.load(Ordering::SeqCst) < 10 {
            counted.fetch_add(1, Ordering::SeqCst);
            let store = weak.upgrade().unwrap();
            let found = store.queues().get("t", 0, 0, 32, 1 << 20, ALL);
            assert_eq!(found.status, GetStatus::OffsetTooSmall, "told before the file is gone");
            let next = store.queues().get("t", 0, found.next_offset, 1, 1 << 20, ALL);
            assert_eq!((next.status, next.messages[0].0), (GetStatus::Found, found.next_offset));
        }
        Ok(())
    });
    clean_after(&store, &clock, HOUR);
    disk.clear_hook();
    assert!(seen.load(Ordering::SeqCst) >= 2);
    assert_eq!(MessageView::decode(held.bytes(), true).unwrap().body[..8], 3u64.to_be_bytes());
    assert!(store.queues().message_at(0).is_err());
    check(&store, "t", 0, 160);
}

#[test]
fn a_queue_whose_messages_are_all_deleted_continues_at_its_offset() {
    for (is_clean, lost) in
        [(true, None), (false, None), (true, Some("consumequeue/t/0")), (false, Some("consumequeue/t/0"))]
    {
        let what = format!("clean {is_clean}, lost {lost:?}");
        let (disk, clock, store) = new(Retention::default());
        // More than a queue file, and exactly two of them.
        fill(&store, "t", 0, 100);
        fill(&store, "other", 0, 50);
        clock.advance(73 * HOUR);
        fill(&store, "other", 0, 50);
        store.admin().clean(false);
        assert!(store.admin().stats().min_physical_offset >= 3 * FILE, "{what}");
        assert_eq!(
            (store.queues().min_offset("t", 0), store.queues().max_offset("t", 0)),
            (100, 100),
            "{what}"
        );
        assert_eq!(
            files(&disk, "consumequeue/t/0"),
            [50 * 20],
            "the last file tells readers where to continue: {what}"
        );
        let found = store.queues().get("t", 0, 99, 32, 1 << 20, ALL);
        assert_eq!((found.status, found.next_offset), (GetStatus::OffsetTooSmall, 100), "{what}");
        assert_eq!(
            store.queues().get("t", 0, 100, 32, 1 << 20, ALL).status,
            GetStatus::OffsetOverflowOne,
            "{what}"
        );
        let disk = if is_clean {
            store.close().unwrap();
            disk
        } else {
            // The background thread flushes as time goes by.
            until("all is flushed", || {
                clock.advance(100);
                store.admin().stats().flushed_offset == store.admin().stats().max_physical_offset
            });
            disk.crash(7)
        };
        drop(store);
        for path in disk
            .paths()
            .iter()
            .filter(|path| lost.is_some_and(|lost| path.starts_with(Path::new(ROOT).join(lost))))
        {
            disk.forget(path);
        }
        let store = open(&disk, Retention::default(), &clock).unwrap();
        check(&store, "t", 0, 100);
        check(&store, "other", 0, 100);
        fill(&store, "t", 0, 3);
        assert_eq!(store.queues().min_offset("t", 0), 100, "{what}");
        check(&store, "t", 0, 103);
    }
}

#[test]
fn groups_below_the_new_begin_move_up_at_their_next_receive() {
    let (_disk, clock, store) = new(Retention::default());
    fill(&store, "t", 0, 60);
    let all = MessageFilter::All;
    let request = |group| ReceiveRequest {
        group,
        topic: "t",
        queue_count: 1,
        first_queue: 0,
        max_count: 10,
        max_bytes: 1 << 20,
        invisible_ms: 1000,
        filter: &all,
        begin: Begin::AtMin,
        order: None,
        max_attempts: 0,
        by_priority: false,
        limits: TransferLimits::NONE,
    };
    let leased = common::receive(&store, &request("g")).unwrap();
    assert_eq!(leased.messages.len(), 10);
    store.groups().commit_offset("late", "t", 0, 5).unwrap();
    clock.advance(73 * HOUR);
    fill(&store, "t", 0, 60);
    store.admin().clean(false);
    let min = store.queues().min_offset("t", 0);
    assert!(min > 30);
    for group in ["g", "late", "new"] {
        // More than one receive may be needed to skip leases of deleted messages.
        let mut received = common::receive(&store, &request(group)).unwrap();
        while received.messages.is_empty() && received.more {
            received = common::receive(&store, &request(group)).unwrap();
        }
        let offsets: Vec<u64> = received.messages.iter().map(|leased| leased.handle.queue_offset).collect();
        assert_eq!(offsets, (min..min + 10).collect::<Vec<_>>(), "{group}");
        assert_eq!(store.groups().committed_offset(group, "t", 0), Some(min), "{group}");
    }
    assert!(matches!(
        store.groups().ack("g", "t", &leased.messages[0].handle),
        Err(StoreError::StaleReceipt)
    ));
}

#[test]
fn a_custom_policy_is_one_small_type() {
    /// Keeps at most one file besides the active one.
    struct OneFile;
    impl RetentionPolicy for OneFile {
        fn name(&self) -> &str {
            "one file"
        }
        fn decide(&self, file: &FileFacts<'_>, store: &RetentionFacts) -> Decision {
            assert_eq!(file.range().end - file.range().start, FILE);
            assert!(file.topics().contains_key("t") && file.newest_ms() >= file.oldest_ms());
            if store.total_bytes > 3 * FILE { Decision::Remove } else { Decision::Keep { until_ms: None } }
        }
    }
    let policies: Vec<Arc<dyn RetentionPolicy>> = vec![Arc::new(OneFile)];
    let (_disk, _clock, store) = new(Retention { policies, ..Retention::default() });
    fill(&store, "t", 0, 200);
    store.admin().clean(false);
    assert!(store.admin().stats().cleaning.total.removed_files >= 2, "here or by the store's own thread");
    check(&store, "t", 0, 200);
}

fn archiving() -> Retention {
    Retention { on_expiry: OnExpiry::Archive, ..Retention::default() }
}

#[test]
fn a_file_whose_archive_hook_has_not_succeeded_is_never_deleted() {
    let (disk, clock, store) = new(archiving());
    fill(&store, "t", 0, 100);
    clock.advance(72 * HOUR);
    let report = store.admin().clean(true);
    assert_eq!((report.removed_files, report.refused_files, report.refused_bytes), (0, 1, FILE));
    assert!(report.failure.unwrap().contains("no archive hook"));

    let calls = Arc::new(Mutex::new(Vec::<(i64, ExpiredFile)>::new()));
    let is_broken = Arc::new(AtomicBool::new(true));
    let (noted, broken, time) = (Arc::clone(&calls), Arc::clone(&is_broken), clock.clone());
    store.admin().set_archive(move |file| {
        noted.lock().unwrap().push((time.now_ms(), file.clone()));
        if broken.load(Ordering::SeqCst) { Err("the archive is unavailable".to_owned()) } else { Ok(()) }
    });
    until("tried as soon as there is a hook", || calls.lock().unwrap().len() == 1);
    for _ in 0..50 {
        clock.advance(1000);
        store.admin().clean(false);
    }
    let began = calls.lock().unwrap()[0].0;
    let tried: Vec<i64> = calls.lock().unwrap().iter().map(|(at, _)| (at - began) / 1000).collect();
    assert_eq!(tried, [0, 10, 30], "with growing pauses");
    let report = store.admin().clean(false);
    assert!(report.failure.unwrap().ends_with("the archive is unavailable"));
    assert_eq!(report.next_due_ms, Some(began + 70_000));
    assert_eq!(log_files(&disk)[0], 0);

    is_broken.store(false, Ordering::SeqCst);
    let report = store.admin().clean(true);
    assert_eq!((report.archived_files, report.archived_bytes, report.removed_files), (2, 2 * FILE, 2));
    assert_eq!((report.refused_files, report.failure), (0, None));
    let last = calls.lock().unwrap().last().unwrap().1.clone();
    assert_eq!(
        (last.range, last.path),
        (FILE..2 * FILE, Path::new(ROOT).join(format!("commitlog/{FILE:020}")))
    );
    assert_eq!((last.oldest_ms, last.newest_ms), (START_MS, START_MS));
    check(&store, "t", 0, 100);
}

#[test]
fn disk_pressure_refuses_sends_and_deletes_no_file_that_is_not_archived() {
    let retention = Retention { disk_usage: Some(DiskUsage::default()), total_bytes: Some(0), ..archiving() };
    let (disk, clock, store) = new(retention);
    fill(&store, "t", 0, 100);
    store.admin().set_archive(|_| panic!("broken"));
    disk.set_capacity(1 << 30);
    disk.set_free(1 << 20);
    clock.advance(1000 * HOUR);
    until("sends are refused", || store.admin().stats().is_full);
    assert!(store.admin().clean(true).failure.unwrap().contains("panicked"));
    assert!(matches!(store.log().append(&[message("t", 0, b"", b"")]), Err(StoreError::Full { .. })));
    assert_eq!(log_files(&disk)[0], 0);
    check(&store, "t", 0, 100);
}

#[test]
fn the_last_archived_file_is_remembered_through_a_crash_and_not_mistaken_for_another() {
    let (disk, clock, store) = new(archiving());
    fill(&store, "t", 0, 100);
    flush_now(&store);
    clock.advance(72 * HOUR);
    disk.set_hook(|op, path| {
        let is_log = path.parent().unwrap().ends_with("commitlog");
        if op == Op::Remove && is_log { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    });
    store.admin().set_archive(|_| Ok(()));
    until("archived", || store.admin().stats().cleaning.total.archived_files == 1);
    let report = store.admin().clean(true);
    assert_eq!((report.removed_files, report.archived_files), (0, 0), "handed over once only");
    assert!(report.failure.unwrap().contains("remove failed"));
    check(&store, "t", 0, 100);
    // The hook stays set: the store's thread may be about to retry.
    let left = disk.crash(3);
    drop(store);

    let store = open(&left, archiving(), &clock).unwrap();
    let ranges = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&ranges);
    store.admin().set_archive(move |file| {
        noted.lock().unwrap().push(file.range.clone());
        Ok(())
    });
    store.admin().clean(true);
    assert_eq!(store.admin().stats().cleaning.total.removed_files, 2);
    assert_eq!(*ranges.lock().unwrap(), vec![FILE..2 * FILE; 1], "the first was taken before the crash");
    drop(store);

    // Another log in the same place, with files of the same names.
    for path in left.paths().iter().filter(|path| !path.starts_with("/store/ferromq/archived")) {
        left.forget(path);
    }
    let store = open(&left, archiving(), &clock).unwrap();
    fill(&store, "t", 0, 100);
    clock.advance(72 * HOUR);
    let report = store.admin().clean(true);
    assert_eq!(report.removed_files, 0);
    assert!(report.failure.unwrap().contains("no archive hook"));
}

#[test]
fn disk_checks_and_appends_do_not_wait_for_a_hook_or_a_removal() {
    let (disk, clock, store) = new(archiving());
    fill(&store, "t", 0, 100);
    clock.advance(72 * HOUR);
    let (gate, opened) = mpsc::channel::<()>();
    let (began, begins) = mpsc::channel::<()>();
    let opened = Mutex::new(opened);
    let (at_hook, at_removal) = (began.clone(), began);
    store.admin().set_archive(move |_| {
        at_hook.send(()).unwrap();
        opened.lock().unwrap().recv().map_err(|error| error.to_string())
    });
    begins.recv().unwrap();
    disk.set_free(0);
    clock.advance(1000);
    until("sends are refused while the hook runs", || store.admin().stats().is_full);
    disk.set_free(1 << 40);
    clock.advance(1000);
    until("and opens", || !store.admin().stats().is_full);
    fill(&store, "t", 0, 1);
    let (removal, may_end) = mpsc::channel::<()>();
    let may_end = Mutex::new(may_end);
    disk.set_hook(move |op, path| {
        if op == Op::Remove && path.parent().unwrap().ends_with("commitlog") {
            at_removal.send(()).ok();
            may_end.lock().unwrap().recv().ok();
        }
        Ok(())
    });
    gate.send(()).unwrap();
    begins.recv().unwrap();
    disk.set_free(0);
    clock.advance(1000);
    until("sends are refused while a file is being removed", || store.admin().stats().is_full);
    disk.set_free(1 << 40);
    clock.advance(1000);
    until("and opens", || !store.admin().stats().is_full);
    fill(&store, "t", 0, 60);
    drop((removal, gate));
    disk.clear_hook();
    until("one is gone", || store.admin().stats().cleaning.total.removed_files == 1);
    store.close().unwrap();
}

#[test]
fn closing_waits_for_a_hook_that_runs_and_a_hook_may_close() {
    let (disk, clock, store) = new(archiving());
    let store = Arc::new(store);
    fill(&store, "t", 0, 50);
    let weak = Arc::downgrade(&store);
    store.admin().set_archive(move |_| weak.upgrade().unwrap().close().map_err(|error| error.to_string()));
    clock.advance(72 * HOUR);
    until("closed", || store.log().append(&[message("t", 0, b"", b"")]).is_err());
    until("the hook has ended", || Arc::strong_count(&store) == 1);
    drop(store);
    let store = Arc::new(open(&disk, archiving(), &clock).unwrap());
    assert_eq!(log_files(&disk)[0], 0, "a closed store removes nothing");
    let weak = Arc::downgrade(&store);
    store.admin().clear_archive();
    clock.advance(10);
    store.admin().set_archive(move |_| weak.upgrade().unwrap().close().map_err(|error| error.to_string()));
    store.admin().clean(true);
    assert!(matches!(store.log().append(&[message("t", 0, b"", b"")]), Err(StoreError::Closed)));
}

#[test]
fn a_hook_that_requests_a_cleaning_gets_an_error() {
    let (_disk, clock, store) = new(archiving());
    let store = Arc::new(store);
    fill(&store, "t", 0, 100);
    clock.advance(72 * HOUR);
    let weak = Arc::downgrade(&store);
    let (told, hears) = mpsc::channel();
    store.admin().set_archive(move |_| {
        let report = weak.upgrade().unwrap().admin().clean(true);
        told.send((report.removed_files, report.failure)).map_err(|error| error.to_string())
    });
    for _ in 0..2 {
        let (removed, failure) = hears.recv_timeout(Duration::from_secs(20)).expect("an answer at once");
        assert_eq!(removed, 0);
        assert!(failure.unwrap().contains("a cleaning is under way"));
    }
    until("both files are removed", || store.admin().stats().cleaning.total.removed_files == 2);
    assert_eq!(store.admin().clean(true).failure, None);
    check(&store, "t", 0, 100);
}

#[test]
fn expired_files_make_room_before_sends_are_refused() {
    let now = hour_after(100 * HOUR);
    let hours = (0..24).filter(|hour| *hour != now).collect();
    let (disk, clock, store) = new(Retention { hours, ..Retention::default() });
    fill(&store, "t", 0, 130);
    assert_eq!(clean_after(&store, &clock, 100 * HOUR).removed_files, 0, "not their hour");
    disk.set_free(3 * FILE - 1);
    clock.advance(1000);
    until("there is room for two files again", || store.admin().stats().min_physical_offset == FILE);
    assert!(!store.admin().stats().is_full);
    check(&store, "t", 0, 130);
}

#[test]
fn a_crash_at_any_moment_of_a_cleaning_leaves_a_consistent_store() {
    let rounds = std::env::var("FERROMQ_CRASH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for seed in 0..rounds {
        let mut has_ended = false;
        for op in 1.. {
            let mut random = Random(seed * 1000 + op);
            let (disk, clock, store) = new(archiving());
            store.admin().set_archive(|_| Ok(()));
            fill(&store, "t", 0, 110);
            fill(&store, "gone", 0, 60);
            fill(&store, "t", 1, 10);
            flush_now(&store);
            disk.crash_at(op, random.next());
            // The threads that flush and write progress run in between.
            clock.advance(72 * HOUR);
            store.admin().clean(true);
            until("done or crashed", || {
                disk.has_crashed() || store.admin().stats().min_physical_offset == 4 * FILE
            });
            has_ended = !disk.has_crashed();
            let left = disk.crash(random.next());
            drop(store);
            let what = format!("seed {seed}, op {op}");
            let store = open(&left, archiving(), &clock).unwrap_or_else(|error| panic!("{what}: {error}"));
            let all = [("t", 0, 110), ("gone", 0, 60), ("t", 1, 10)];
            all.iter().for_each(|(topic, queue_id, max)| check(&store, topic, *queue_id, *max));
            store.admin().set_archive(|_| Ok(()));
            store.admin().clean(true);
            until("all gone", || store.admin().stats().min_physical_offset == 4 * FILE);
            all.iter().for_each(|(topic, queue_id, max)| check(&store, topic, *queue_id, *max));
            fill(&store, "gone", 0, 1);
            check(&store, "gone", 0, 61);
            store.close().unwrap();
            drop(store);
            let store = open(&left, archiving(), &clock).unwrap();
            all[..1].iter().for_each(|(topic, queue_id, max)| check(&store, topic, *queue_id, *max));
            check(&store, "gone", 0, 61);
            if has_ended {
                break;
            }
        }
        assert!(has_ended);
    }
}
