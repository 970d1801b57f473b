//! Messages of a store that was closed and opened again, on the real disk.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
};

use common::{ALL, asynchronous, bodies, copy_as_killed, message, named, settle, synchronous};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    filter::MessageFilter,
    read::{Boundary, GetStatus},
    record::MessageView,
    time::Clock,
};

fn fill(store: &MessageStore, range: std::ops::Range<u32>) {
    for number in range {
        let body = vec![number as u8; (number as usize * 37) % 3000];
        let named = named(&format!("k{number}"), if number % 3 == 0 { "a" } else { "b" });
        let appended = store.log().append(&[message("t", (number % 4) as i32, &body, &named)]).unwrap();
        assert_eq!(appended.locations[0].queue_offset, u64::from(number / 4));
    }
}

fn check(store: &MessageStore, count: u32) {
    for queue_id in 0..4u32 {
        let bodies = bodies(store, "t", queue_id);
        let expected: Vec<Vec<u8>> = (0..count)
            .filter(|number| number % 4 == queue_id)
            .map(|number| vec![number as u8; (number as usize * 37) % 3000])
            .collect();
        assert_eq!(bodies.len(), expected.len());
        assert!(bodies == expected);
    }
    for number in 0..count {
        let found = store.queues().query_by_key("t", &format!("k{number}"), 10, 0, i64::MAX).messages;
        assert_eq!(found.len(), 1, "key {number}");
        let view = MessageView::decode(found[0].bytes(), true).unwrap();
        assert_eq!(view.queue_offset, u64::from(number / 4));
    }
}

#[test]
fn messages_and_keys_survive_clean_stops() {
    for config in [asynchronous(), synchronous()] {
        let directory = tempfile::tempdir().unwrap();
        for round in 0..4 {
            let store = MessageStore::open(directory.path(), config.clone(), Clock::system()).unwrap();
            check(&store, round * 300);
            fill(&store, round * 300..(round + 1) * 300);
            let end = store.admin().stats().max_physical_offset;
            store.log().wait_durable(end).unwrap();
            settle(&store);
            check(&store, (round + 1) * 300);
            store.close().unwrap();
            assert!(!directory.path().join("abort").exists());
        }
    }
}

#[test]
fn a_second_store_on_the_same_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    let second = MessageStore::open(directory.path(), asynchronous(), Clock::system());
    assert!(matches!(second, Err(StoreError::Locked { .. })));
    store.close().unwrap();
    MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
}

#[test]
fn a_killed_store_serves_everything_and_cuts_a_torn_record() {
    for (is_foreign, config) in [(false, asynchronous()), (true, asynchronous()), (false, synchronous())] {
        let (directory, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = MessageStore::open(directory.path(), config.clone(), Clock::system()).unwrap();
        fill(&store, 0..300);
        let end = store.admin().stats().max_physical_offset;
        store.log().wait_durable(end).unwrap();
        settle(&store);
        copy_as_killed(directory.path(), killed.path());
        if is_foreign {
            // A Java broker writes its process id. How far its index was flushed is unknown.
            fs::write(killed.path().join("abort"), "4711").unwrap();
        }
        // A record with only its head.
        let size = 64 << 10;
        let file = killed.path().join(format!("commitlog/{:020}", end / size * size));
        let first = fs::read(killed.path().join("commitlog/00000000000000000000")).unwrap();
        let mut torn = first[..91].to_vec();
        (torn[3], torn[90]) = (200, 1);
        torn[28..36].copy_from_slice(&end.to_be_bytes());
        let log = OpenOptions::new().write(true).open(&file).unwrap();
        log.write_all_at(&torn, end % size).unwrap();
        drop(log);

        let reopened = MessageStore::open(killed.path(), config.clone(), Clock::system()).unwrap();
        assert_eq!(reopened.admin().stats().max_physical_offset, end);
        assert_eq!(reopened.admin().stats().recovered_cut_bytes, 91);
        assert!(reopened.admin().stats().recovered_messages > 0);
        check(&reopened, 300);
        fill(&reopened, 300..400);
        reopened.log().wait_durable(reopened.admin().stats().max_physical_offset).unwrap();
        settle(&reopened);
        check(&reopened, 400);
        drop(reopened);
        check(&MessageStore::open(killed.path(), config, Clock::system()).unwrap(), 400);
    }
}

#[test]
fn reading_answers_with_the_statuses_of_rocketmq() {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    let get = |offset, filter: &MessageFilter| {
        let found = store.queues().get("t", 0, offset, 32, 1 << 20, filter);
        (found.status, found.messages.len(), found.next_offset)
    };
    assert_eq!(get(7, ALL), (GetStatus::NoMatchedLogicQueue, 0, 0));
    for number in 0..10 {
        // "Aa" and "BB" have the same hash.
        let tag = ["Aa", "BB", "c"][number % 3];
        store.log().append(&[message("t", 0, b"x", &named("k", tag))]).unwrap();
    }
    settle(&store);
    assert_eq!(get(0, ALL), (GetStatus::Found, 10, 10));
    assert_eq!(get(10, ALL), (GetStatus::OffsetOverflowOne, 0, 10));
    assert_eq!(get(11, ALL), (GetStatus::OffsetOverflowBadly, 0, 10));
    assert_eq!(get(0, &MessageFilter::tags("Aa")), (GetStatus::Found, 4, 10));
    assert_eq!(get(0, &MessageFilter::tags("Aa || c")), (GetStatus::Found, 7, 10));
    assert_eq!(get(0, &MessageFilter::tags("*")), (GetStatus::Found, 10, 10));
    assert_eq!(get(3, &MessageFilter::tags("none")), (GetStatus::NoMatchedMessage, 0, 10));
    let by_bytes = store.queues().get("t", 0, 0, 32, 1, ALL);
    assert_eq!(
        (by_bytes.messages.len(), by_bytes.next_offset),
        (1, 1),
        "one message comes whatever its size"
    );
    let by_count = store.queues().get("t", 0, 0, 3, 1 << 20, ALL);
    assert_eq!((by_count.messages.len(), by_count.next_offset), (3, 3));
    assert_eq!(store.queues().list(), [("t".to_owned(), vec![0])]);
}

#[test]
fn the_first_offset_at_or_after_a_time_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(1000);
    let store = MessageStore::open(directory.path(), asynchronous(), clock.clone()).unwrap();
    for _ in 0..100 {
        store.log().append(&[message("t", 0, b"x", b""), message("t", 0, b"y", b"")]).unwrap();
        clock.advance(10);
    }
    settle(&store);
    for (time, offset) in [(0, 0), (1000, 0), (1001, 2), (1010, 2), (1011, 4), (1990, 198), (1991, 200)] {
        assert_eq!(store.queues().offset_by_time("t", 0, time, Boundary::Lower), offset, "{time}");
    }
    assert_eq!(store.queues().offset_by_time("unknown", 0, 0, Boundary::Lower), 0);
}

#[test]
fn keys_are_found_within_a_time_range_newest_first() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(1_000_500);
    let store = MessageStore::open(directory.path(), asynchronous(), clock.clone()).unwrap();
    // More entries than an index file holds, so that the chain covers several files.
    for number in 0..500u32 {
        let properties = [named("same", "a"), named(&format!("k{number}"), "a")].concat();
        store.log().append(&[message("t", 0, &number.to_be_bytes(), &properties)]).unwrap();
        store
            .log()
            .append(&[message("t", 0, b"", &named("same", "a")), message("u", 0, b"", &named("same", "a"))])
            .unwrap();
        settle(&store);
        clock.advance(300);
    }
    let times = |begin, end, count| -> Vec<i64> {
        let found = store.queues().query_by_key("t", "same", count, begin, end).messages;
        found.iter().map(|r| MessageView::decode(r.bytes(), true).unwrap().store_timestamp).collect()
    };
    let all: Vec<i64> = (0..500).rev().map(|number| 1_000_500 + number * 300).collect();
    assert_eq!(times(0, i64::MAX, 10_000), all);
    assert_eq!(times(0, i64::MAX, 7), all[..7]);
    let within = |begin, end| all.iter().copied().filter(|t| (begin..=end).contains(t)).collect::<Vec<_>>();
    for (begin, end) in
        [(1_030_000, 1_060_000), (1_000_500, 1_000_500), (0, 1_000_000), (1_100_123, 1_100_999)]
    {
        assert_eq!(times(begin, end, 10_000), within(begin, end), "{begin}..{end}");
    }
    assert!(store.queues().query_by_key("t", "none", 10, 0, i64::MAX).messages.is_empty());
}

#[test]
fn messages_over_a_limit_are_refused_and_nothing_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let config = StoreConfig { max_message_size: 1000, ..asynchronous() };
    let store = MessageStore::open(directory.path(), config, Clock::system()).unwrap();
    let long = vec![b'x'; 40_000];
    let long_text = "x".repeat(300);
    let refused = |message| match store.log().append(&[message]) {
        Err(StoreError::TooLarge { what, len, limit }) => format!("{what} {len} {limit}"),
        Err(StoreError::Invalid { what, .. }) => what.to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(message("t", 0, &long[..1001], b"")), "message body 1001 1000");
    assert_eq!(refused(message("t", 0, b"", &long[..32_768])), "properties 32768 32767");
    assert_eq!(refused(message(&long_text, 0, b"", b"")), "topic 300 255");
    assert_eq!(refused(message("a/b", 0, b"", b"")), "topic");
    assert_eq!(refused(message("..", 0, b"", b"")), "topic");
    assert_eq!(refused(message("t", -1, b"", b"")), "queue id");
    // A batch is refused as a whole.
    let batch = [message("t", 0, b"good", b""), message("t", 0, &long[..1001], b"")];
    assert!(store.log().append(&batch).is_err());
    assert_eq!(store.admin().stats().max_physical_offset, 0);
    let directory = tempfile::tempdir().unwrap();
    let big = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    match big.log().append(&[message("t", 0, &vec![0; 64 << 10], b"")]) {
        Err(StoreError::TooLarge { what: "record", limit, .. }) => assert_eq!(limit, (64 << 10) - 8),
        other => panic!("{other:?}"),
    }
    let fits = (64 << 10) - 8 - 91 - 1;
    big.log().append(&[message("t", 0, &vec![0; fits], b""), message("t", 0, &vec![1; fits], b"")]).unwrap();
    settle(&big);
    assert_eq!(bodies(&big, "t", 0).iter().map(Vec::len).collect::<Vec<_>>(), [fits, fits]);
}

#[test]
fn a_record_is_found_only_at_its_first_byte() {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    // A body that looks like a record, wherever it lies.
    let first = store.log().append(&[message("t", 0, b"inner", b"")]).unwrap();
    let copy = store.queues().message_at(0).unwrap().bytes().to_vec();
    let second = store.log().append(&[message("t", 0, &copy, b"")]).unwrap();
    let found: Vec<u64> = (0..second.end + 100).filter(|at| store.queues().message_at(*at).is_ok()).collect();
    assert_eq!(found, [0, first.end]);
    assert!(store.queues().message_at(u64::MAX).is_err());
    let held = store.queues().message_at(first.end).unwrap();
    store.close().unwrap();
    assert!(store.queues().message_at(0).is_err());
    assert!(matches!(store.log().append(&[message("t", 0, b"", b"")]), Err(StoreError::Closed)));
    drop(store);
    assert_eq!(
        MessageView::decode(held.bytes(), true).unwrap().body,
        copy,
        "a held record outlives its store"
    );
}

#[test]
#[cfg(not(feature = "portable"))] // std cannot tell how much of a disk is free
fn a_reserve_that_is_not_free_refuses_sends_on_the_real_disk() {
    let directory = tempfile::tempdir().unwrap();
    let config = StoreConfig { disk_reserve: 1 << 60, ..asynchronous() };
    let store = MessageStore::open(directory.path(), config, Clock::system()).unwrap();
    match store.log().append(&[message("t", 0, b"", b"")]) {
        Err(StoreError::Full { free, reserve, .. }) => {
            assert_eq!(reserve, 1 << 60);
            assert!(free > 0);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn arrivals_are_reported_once_readers_see_the_messages() {
    let directory = tempfile::tempdir().unwrap();
    let store =
        std::sync::Arc::new(MessageStore::open(directory.path(), synchronous(), Clock::system()).unwrap());
    let (sender, receiver) = std::sync::mpsc::channel();
    let weak = std::sync::Arc::downgrade(&store);
    store.queues().on_arrival(move |arrival| {
        let seen =
            weak.upgrade().map_or(0, |store| store.queues().max_offset(arrival.topic, arrival.queue_id));
        sender.send((arrival.topic.to_owned(), arrival.queue_id, arrival.max_offset, seen)).ok();
    });
    store
        .log()
        .append(&[message("t", 2, b"a", b""), message("t", 2, b"b", b""), message("u", 0, b"c", b"")])
        .unwrap();
    let first = receiver.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    let second = receiver.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    assert_eq!(first, ("t".to_owned(), 2, 2, 2));
    assert_eq!(second, ("u".to_owned(), 0, 1, 1));
}

#[test]
fn several_threads_get_offsets_without_gap() {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), synchronous(), Clock::system()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..200u16 {
                    let body = [&[thread][..], &number.to_be_bytes(), &[7; 400]].concat();
                    let end = store.log().append(&[message("t", 0, &body, b"")]).unwrap().end;
                    if number % 20 == 0 {
                        store.log().wait_durable(end).unwrap();
                    }
                }
            });
        }
    });
    settle(&store);
    let bodies = bodies(&store, "t", 0);
    assert_eq!(bodies.len(), 1600);
    for thread in 0..8u8 {
        let numbers: Vec<&[u8]> = bodies.iter().filter(|b| b[0] == thread).map(|b| &b[1..3]).collect();
        assert!(numbers.is_sorted(), "a thread's messages keep their order");
    }
}

/// A store of several log files whose queues 0 and 1 have messages everywhere, and 2 in the first file only.
fn fill_unevenly(store: &MessageStore) {
    for number in 0..100u8 {
        for queue_id in 0..if number < 5 { 3 } else { 2 } {
            store.log().append(&[message("t", queue_id, &[number; 1500], b"")]).unwrap();
        }
    }
    settle(store);
    assert!(store.admin().stats().max_physical_offset > 4 * (64 << 10));
}

#[test]
fn a_queue_with_lost_files_is_rebuilt_and_its_offsets_continue() {
    for (is_clean, lost) in
        [(true, "0"), (true, "2"), (false, "0"), (false, "2"), (true, "1/00000000000000000000")]
    {
        let what = format!("clean {is_clean}, lost {lost}");
        let (directory, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let clock = Clock::manual(1_700_000_000_000);
        let store = MessageStore::open(directory.path(), asynchronous(), clock.clone()).unwrap();
        fill_unevenly(&store);
        if is_clean {
            store.close().unwrap();
            copy_as_killed(directory.path(), killed.path());
        } else {
            // The last file begins with a message that the checkpoint covers.
            clock.advance(60_000);
            store.log().append(&[message("t", 1, b"last", b"")]).unwrap();
            let is_noted = || {
                let checkpoint = fs::read(directory.path().join("checkpoint")).unwrap();
                checkpoint[..8] >= 1_700_000_060_000u64.to_be_bytes()[..]
            };
            while !is_noted() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            copy_as_killed(directory.path(), killed.path());
            store.close().unwrap();
        }
        let lost = killed.path().join("consumequeue/t").join(lost);
        if lost.is_dir() {
            fs::remove_dir_all(lost).unwrap()
        } else {
            fs::remove_file(lost).unwrap()
        }
        for _ in 0..2 {
            let store = MessageStore::open(killed.path(), asynchronous(), clock.clone()).unwrap();
            for (queue_id, count) in [(0, 100u8), (1, 100), (2, 5)] {
                let mut found = bodies(&store, "t", queue_id);
                found.retain(|body| body != b"last" && body != b"new");
                assert!(found == (0..count).map(|number| vec![number; 1500]).collect::<Vec<_>>(), "{what}");
                let end = store.queues().max_offset("t", queue_id);
                let next = store.log().append(&[message("t", queue_id as i32, b"new", b"")]).unwrap();
                assert_eq!(next.locations[0].queue_offset, end, "{what}");
            }
            settle(&store);
            store.close().unwrap();
        }
    }
}

#[test]
fn a_store_without_a_list_of_its_queues_finds_them_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    fill_unevenly(&store);
    store.close().unwrap();
    fs::remove_file(directory.path().join("ferromq/queues")).unwrap();
    fs::remove_dir_all(directory.path().join("consumequeue/t/2")).unwrap();
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    assert_eq!(bodies(&store, "t", 2).len(), 5);
    assert_eq!(bodies(&store, "t", 0).len(), 100);
}
