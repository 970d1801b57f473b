//! Numbered messages: a repeated send is not stored again, wherever the store crashes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{collections::BTreeMap, io, path::Path, time::Duration};

use common::{
    ALL, asynchronous,
    delays::{START, delivered},
    fake_disk::{FakeDisk, Op, Random},
    message, settle, synchronous, wait_until,
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    dedup::{SEQUENCE, Sequence},
    log::{Appended, DamageReason, Location},
    record::{MessageView, NewMessage, properties},
    retention::Retention,
    time::Clock,
};
use proptest::prelude::*;

const ROOT: &str = "/store";
const TOPIC: &str = "orders";
const QUEUES: u64 = 2;

fn open(disk: &FakeDisk, config: &StoreConfig, clock: &Clock) -> Result<MessageStore<FakeDisk>, StoreError> {
    MessageStore::open_on(disk.clone(), Path::new(ROOT), config.clone(), clock.clone())
}

fn numbered(writer: &str, partition: u32, epoch: u64, row: u64) -> Vec<u8> {
    let mut out = Vec::new();
    properties::push(&mut out, "KEYS", "k");
    properties::push(&mut out, SEQUENCE, &format!("{writer}/{partition}/{epoch}/{row}"));
    out
}

/// Sends rows of writer `w`, partition 0, epoch 0 to queue 0.
fn send(store: &MessageStore<FakeDisk>, rows: &[u64], as_one: bool) -> Result<Appended, StoreError> {
    let texts: Vec<_> = rows.iter().map(|row| numbered("w", 0, 0, *row)).collect();
    let messages: Vec<_> = texts.iter().map(|text| message(TOPIC, 0, b"body", text)).collect();
    if as_one { store.log().append_once_as_one(&messages) } else { store.log().append_once(&messages) }
}

fn is_new(appended: &Appended) -> Vec<bool> {
    appended.locations.iter().map(|location| *location != Location::THERE_ALREADY).collect()
}

/// The content of a queue: writer, partition, epoch and row of each numbered message, in order.
fn held(store: &MessageStore<FakeDisk>, queue_id: u32) -> Vec<(String, u32, u64, u64)> {
    settle(store);
    let (mut at, end) =
        (store.queues().min_offset(TOPIC, queue_id), store.queues().max_offset(TOPIC, queue_id));
    let mut rows = Vec::new();
    while at < end {
        let found = store.queues().get(TOPIC, queue_id, at, 32, usize::MAX, ALL);
        for (_, record) in &found.messages {
            let view = MessageView::decode(record.bytes(), true).unwrap();
            if let Some(Sequence { writer, partition, epoch, row }) = Sequence::of(view.properties).unwrap() {
                rows.push((writer.to_owned(), partition, epoch, row));
            }
        }
        assert!(found.next_offset > at, "nothing at {at} of {end}");
        at = found.next_offset;
    }
    rows
}

fn rows(store: &MessageStore<FakeDisk>) -> Vec<u64> {
    held(store, 0).into_iter().map(|(_, _, _, row)| row).collect()
}

#[test]
fn a_repeated_send_is_acknowledged_and_not_stored_also_within_a_batch() {
    let disk = FakeDisk::new();
    let store = open(&disk, &asynchronous(), &Clock::manual(START)).unwrap();
    assert_eq!(is_new(&send(&store, &[0, 1, 1, 2], false).unwrap()), [true, true, false, true]);
    let again = send(&store, &[0, 1, 2], false).unwrap();
    assert_eq!(is_new(&again), [false, false, false]);
    assert_eq!(again.end, store.admin().stats().max_physical_offset);
    assert_eq!(is_new(&send(&store, &[1, 2, 3], true).unwrap()), [false, false, true]);
    assert_eq!(rows(&store), [0, 1, 2, 3]);
    let stats = store.admin().stats();
    assert_eq!((stats.appended, stats.duplicates, stats.remembered_sequences), (4, 6, 1));
    // Another writer, partition, queue or a later epoch makes another row; an earlier epoch does not.
    for (text, queue_id, wanted) in [
        (numbered("v", 0, 0, 0), 0, true),
        (numbered("w", 1, 0, 0), 0, true),
        (numbered("w", 0, 0, 0), 1, true),
        (numbered("w", 0, 1, 0), 0, true),
        (numbered("w", 0, 0, 9), 0, false),
    ] {
        let sent = store.log().append_once(&[message(TOPIC, queue_id, b"x", &text)]).unwrap();
        assert_eq!(is_new(&sent), [wanted], "{text:?}");
    }
}

#[test]
fn messages_without_a_number_are_all_stored_and_a_wrong_number_is_refused() {
    let disk = FakeDisk::new();
    let store = open(&disk, &asynchronous(), &Clock::manual(START)).unwrap();
    for _ in 0..2 {
        assert_eq!(is_new(&store.log().append_once(&[message(TOPIC, 0, b"same", b"")]).unwrap()), [true]);
    }
    let wrong =
        store.log().append_once(&[message(TOPIC, 0, b"x", b"FERROMQ_SEQUENCE\x01w/1\x02")]).unwrap_err();
    assert!(wrong.to_string().contains("WRITER/PARTITION/EPOCH/ROW"), "{wrong}");
    assert_eq!(store.admin().stats().appended, 2);
}

#[test]
fn writers_are_restored_after_a_stop_after_a_kill_and_from_the_log_alone() {
    let clock = Clock::manual(START);
    for snapshot in ["kept", "lost", "damaged"] {
        for is_killed in [false, true] {
            let mut disk = FakeDisk::new();
            let store = open(&disk, &synchronous(), &clock).unwrap();
            let end = send(&store, &[0, 1, 2], false).unwrap().end;
            store.log().wait_durable(end).unwrap();
            if is_killed {
                disk = disk.crash(7);
            }
            drop(store);
            let path = Path::new(ROOT).join("ferromq/sequences");
            // A killed store may have reached its first checkpoint.
            assert!(is_killed || disk.bytes(&path).is_some(), "{snapshot}");
            if !is_killed && snapshot == "lost" {
                disk.forget(&path);
            } else if !is_killed && snapshot == "damaged" {
                disk.corrupt(&path, 30);
            }
            let store = open(&disk, &synchronous(), &clock).unwrap();
            assert_eq!(is_new(&send(&store, &[1, 2, 3], false).unwrap()), [false, false, true], "{snapshot}");
            assert_eq!(rows(&store), [0, 1, 2, 3]);
        }
    }
}

#[test]
fn messages_of_another_broker_count_and_a_snapshot_of_another_log_does_not() {
    let clock = Clock::manual(START);
    let disk = FakeDisk::new();
    let store = open(&disk, &synchronous(), &clock).unwrap();
    send(&store, &[0, 1], false).unwrap();
    drop(store);
    let path = Path::new(ROOT).join("ferromq/sequences");
    let older = disk.bytes(&path).unwrap();
    let store = open(&disk, &synchronous(), &clock).unwrap();
    send(&store, &[2], false).unwrap();
    drop(store);
    // As the other broker leaves it, which does not know the snapshot.
    disk.put(&path, &older);
    disk.put(&Path::new(ROOT).join("abort"), b"4711");
    let store = open(&disk, &synchronous(), &clock).unwrap();
    assert_eq!(is_new(&send(&store, &[2, 3], false).unwrap()), [false, true]);
    drop(store);
    let other = FakeDisk::new();
    let store = open(&other, &synchronous(), &clock).unwrap();
    send(&store, &[7], false).unwrap();
    drop(store);
    // Where that log has the record of row 0, this one has row 7.
    other.put(&path, &older);
    let store = open(&other, &synchronous(), &clock).unwrap();
    assert_eq!(is_new(&send(&store, &[7, 8], false).unwrap()), [false, true]);
    drop(store);
}

#[test]
fn new_messages_of_an_atomic_append_survive_whichever_were_duplicates() {
    let clock = Clock::manual(START);
    for (first, then, wanted) in [
        (vec![5], vec![6, 5], vec![5, 6]),
        (vec![5], vec![4, 6, 6], vec![5, 6]),
        (vec![], vec![1, 1], vec![1]),
    ] {
        let disk = FakeDisk::new();
        let store = open(&disk, &synchronous(), &clock).unwrap();
        if !first.is_empty() {
            send(&store, &first, true).unwrap();
        }
        let end = send(&store, &then, true).unwrap().end;
        store.log().wait_durable(end).unwrap();
        let disk = disk.crash(3);
        drop(store);
        assert_eq!(rows(&open(&disk, &synchronous(), &clock).unwrap()), wanted, "{then:?}");
    }
}

#[test]
fn a_failed_append_does_not_count_as_sent() {
    let disk = FakeDisk::new();
    let store = open(&disk, &asynchronous(), &Clock::manual(START)).unwrap();
    send(&store, &[0], false).unwrap();
    disk.set_hook(|op, path| match op {
        Op::Write if path.to_string_lossy().contains("commitlog") => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    });
    let failed = send(&store, &[0, 1, 2], false).unwrap_err();
    assert_eq!(failed.name(), "full", "{failed}");
    disk.clear_hook();
    assert_eq!(store.admin().stats().duplicates, 0);
    assert_eq!(is_new(&send(&store, &[0, 1, 2], false).unwrap()), [false, true, true]);
    assert_eq!(rows(&store), [0, 1, 2]);
}

#[test]
fn a_writer_is_forgotten_after_the_window_and_not_before() {
    let disk = FakeDisk::new();
    let clock = Clock::manual(START);
    let config = StoreConfig { dedup_window: Duration::from_secs(60), ..asynchronous() };
    let store = open(&disk, &config, &clock).unwrap();
    send(&store, &[0, 1], false).unwrap();
    clock.advance(60_000);
    assert_eq!(is_new(&send(&store, &[1], false).unwrap()), [false]);
    clock.advance(1);
    assert_eq!(is_new(&send(&store, &[0], false).unwrap()), [true]);
    drop(store);
    clock.advance(61_000);
    let store = open(&disk, &config, &clock).unwrap();
    assert_eq!(store.admin().stats().remembered_sequences, 0);
}

#[test]
fn a_writer_that_restarts_its_numbers_after_the_window_is_known_by_the_new_ones_after_a_kill() {
    let mut disk = FakeDisk::new();
    let clock = Clock::manual(START);
    let config = StoreConfig { dedup_window: Duration::from_secs(60), ..synchronous() };
    let store = open(&disk, &config, &clock).unwrap();
    send(&store, &[7], false).unwrap();
    clock.advance(61_000);
    let end = send(&store, &[0, 1], false).unwrap().end;
    store.log().wait_durable(end).unwrap();
    disk = disk.crash(1);
    drop(store);
    let store = open(&disk, &config, &clock).unwrap();
    assert_eq!(is_new(&send(&store, &[0, 1, 2], false).unwrap()), [false, false, true]);
}

#[test]
fn a_snapshot_beyond_the_end_of_the_log_does_not_count_for_later_messages() {
    let clock = Clock::manual(START);
    let mut disk = FakeDisk::new();
    let store = open(&disk, &synchronous(), &clock).unwrap();
    send(&store, &[0], false).unwrap();
    drop(store);
    let longer = FakeDisk::new();
    let store = open(&longer, &synchronous(), &clock).unwrap();
    send(&store, &[0], false).unwrap();
    drop(store);
    let store = open(&longer, &synchronous(), &clock).unwrap();
    send(&store, &[50], false).unwrap();
    drop(store);
    // The log lost messages that the snapshot covers.
    let path = Path::new(ROOT).join("ferromq/sequences");
    disk.put(&path, &longer.bytes(&path).unwrap());
    for row in 1..=4 {
        let store = open(&disk, &synchronous(), &clock).unwrap();
        let sent = send(&store, &[row], false).unwrap();
        assert_eq!(is_new(&sent), [true], "row {row}");
        store.log().wait_durable(sent.end).unwrap();
        disk = disk.crash(row);
        drop(store);
    }
    assert_eq!(rows(&open(&disk, &synchronous(), &clock).unwrap()), [0, 1, 2, 3, 4]);
}

#[test]
fn rows_of_a_deleted_topic_are_new_also_after_a_kill_and_without_a_snapshot() {
    let clock = Clock::manual(START);
    for is_lost in [false, true] {
        let mut disk = FakeDisk::new();
        let store = open(&disk, &synchronous(), &clock).unwrap();
        send(&store, &[0, 1], false).unwrap();
        drop(store);
        let store = open(&disk, &synchronous(), &clock).unwrap();
        settle(&store);
        let other = numbered("w", 0, 0, 5);
        store.log().append_once(&[message("others", 0, b"x", &other)]).unwrap();
        assert_eq!(store.admin().delete_topic(TOPIC).unwrap(), 1);
        disk = disk.crash(1);
        drop(store);
        if is_lost {
            disk.forget(&Path::new(ROOT).join("ferromq/sequences"));
        }
        let store = open(&disk, &synchronous(), &clock).unwrap();
        assert_eq!(is_new(&send(&store, &[0, 1, 1], false).unwrap()), [true, true, false], "{is_lost}");
        assert_eq!(is_new(&store.log().append_once(&[message("others", 0, b"x", &other)]).unwrap()), [false]);
        assert_eq!(rows(&store), [0, 1]);
    }
}

#[test]
fn one_writer_too_many_is_refused_by_the_name_of_the_option_until_others_leave_the_window() {
    let disk = FakeDisk::new();
    let clock = Clock::manual(START);
    let config = StoreConfig { dedup_writers: 3, dedup_window: Duration::from_secs(60), ..asynchronous() };
    let store = open(&disk, &config, &clock).unwrap();
    let of = |partition| numbered("w", partition, 0, 0);
    let send = |partitions: &[u32]| {
        let texts: Vec<_> = partitions.iter().map(|partition| of(*partition)).collect();
        let messages: Vec<_> = texts.iter().map(|text| message(TOPIC, 0, b"x", text)).collect();
        store.log().append_once(&messages)
    };
    send(&[0, 1]).unwrap();
    let refused = send(&[2, 3]).unwrap_err();
    assert!(refused.to_string().contains("dedup_writers") && refused.to_string().contains('3'), "{refused}");
    // A refused batch does not count as sent, and known writers continue.
    assert_eq!(is_new(&send(&[0, 2]).unwrap()), [false, true]);
    clock.advance(61_000);
    assert_eq!(is_new(&send(&[3, 0]).unwrap()), [true, true]);
    assert_eq!(store.admin().stats().remembered_sequences, 2);
}

#[test]
fn a_delayed_message_counts_as_sent_at_once_and_is_still_delivered() {
    let disk = FakeDisk::new();
    let clock = Clock::manual(START);
    let send = |store: &MessageStore<FakeDisk>, row: u64, level: u32| {
        let mut text = numbered("w", 0, 0, row);
        properties::push(&mut text, "DELAY", &level.to_string());
        let given = message(TOPIC, 0, b"x", &text);
        match store.log().delayed(&given).unwrap() {
            Some(d) => store.log().append_once(&[NewMessage {
                topic: d.topic,
                queue_id: d.queue_id,
                properties: &d.properties,
                ..given
            }]),
            None => store.log().append_once(&[given]),
        }
        .unwrap()
    };
    let store = open(&disk, &asynchronous(), &clock).unwrap();
    assert_eq!(is_new(&send(&store, 0, 1)), [true]);
    assert_eq!(is_new(&send(&store, 1, 0)), [true]);
    // Whatever level the repeated send has.
    assert_eq!(is_new(&send(&store, 0, 2)), [false]);
    settle(&store);
    store.delayed().start_schedule().unwrap();
    clock.advance(2_000);
    delivered(&store, 1, 1);
    assert_eq!(rows(&store), [1, 0]);
    drop(store);
    let store = open(&disk, &asynchronous(), &clock).unwrap();
    assert_eq!(is_new(&send(&store, 1, 0)), [false]);
    assert_eq!(is_new(&send(&store, 2, 0)), [true]);
}

/// A task: sends the rows of one partition in batches, and stops at the first error.
struct Task {
    writer: &'static str,
    partition: u32,
    epoch: u64,
}

/// Rows of a task, and the queue of each.
const ROWS: u64 = 12;

fn queue_of(partition: u32, row: u64) -> i32 {
    ((u64::from(partition) + row / 3) % QUEUES) as i32
}

fn run(store: &MessageStore<FakeDisk>, task: &Task, seed: u64) -> bool {
    let mut random = Random(seed);
    let mut row = 0;
    while row < ROWS {
        let count = (1 + random.below(4)).min(ROWS - row);
        let texts: Vec<_> =
            (row..row + count).map(|row| numbered(task.writer, task.partition, task.epoch, row)).collect();
        let body = vec![b'x'; random.below(2_000) as usize];
        let mut messages: Vec<_> = texts
            .iter()
            .zip(row..)
            .map(|(text, row)| message(TOPIC, queue_of(task.partition, row), &body, text))
            .collect();
        messages.push(message(TOPIC, 0, b"plain", b""));
        let sent = if random.below(3) == 0 {
            store.log().append_once_as_one(&messages)
        } else {
            store.log().append_once(&messages)
        };
        if sent.and_then(|sent| store.log().wait_durable(sent.end)).is_err() {
            return false;
        }
        // The response was lost: send the same again.
        if random.below(4) > 0 {
            row += count;
        }
    }
    true
}

/// Runs an epoch of all writers until each task succeeded once; a speculated task runs twice at once.
fn run_epoch(mut disk: FakeDisk, config: &StoreConfig, clock: &Clock, epoch: u64, seed: u64) -> FakeDisk {
    let mut random = Random(seed);
    loop {
        let limit = random.one_of([60, 400, 2_000, 100_000]);
        disk.crash_at(1 + random.below(limit), random.next());
        let mut has_ended = false;
        if let Ok(store) = open(&disk, config, clock) {
            let tasks: Vec<Task> = ["a", "b"]
                .into_iter()
                .flat_map(|writer| (0..2).map(move |partition| Task { writer, partition, epoch }))
                .collect();
            let seeds: Vec<_> =
                tasks.iter().map(|_| (random.next(), random.next(), random.below(2))).collect();
            has_ended = std::thread::scope(|scope| {
                let runs: Vec<_> = tasks
                    .iter()
                    .zip(&seeds)
                    .map(|(task, (one, other, is_speculated))| {
                        let store = &store;
                        let second =
                            (*is_speculated == 1).then(|| scope.spawn(move || run(store, task, *other)));
                        (scope.spawn(move || run(store, task, *one)), second)
                    })
                    .collect();
                // One successful attempt is enough.
                runs.into_iter().fold(true, |all, (first, second)| {
                    let first = first.join().unwrap();
                    let second = second.is_some_and(|second| second.join().unwrap());
                    all && (first || second)
                })
            });
        }
        disk = disk.crash(random.next());
        if random.below(4) == 0 {
            disk.forget(&Path::new(ROOT).join("ferromq/sequences"));
        }
        if has_ended {
            return disk;
        }
    }
}

fn rounds() -> u64 {
    std::env::var("FERROMQ_DEDUP_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(25)
}

#[test]
fn each_row_is_in_the_log_once_despite_repeated_sends_and_crashes_anywhere() {
    for seed in 1..=rounds() {
        let clock = Clock::manual(START);
        // Acknowledged messages must survive under these policies.
        let config = StoreConfig { commit_log_file_size: 16 << 10, ..synchronous() };
        let mut disk = FakeDisk::new();
        for epoch in 0..3 {
            disk = run_epoch(disk, &config, &clock, epoch, seed * 100 + epoch);
        }
        let store = open(&disk, &config, &clock).unwrap();
        let mut counts: BTreeMap<(String, u32, u64, u64), u32> = BTreeMap::new();
        for queue_id in 0..QUEUES as u32 {
            let rows = held(&store, queue_id);
            for row in &rows {
                assert_eq!(queue_of(row.1, row.3), queue_id as i32);
                *counts.entry(row.clone()).or_default() += 1;
            }
            for writer in ["a", "b"] {
                for partition in 0..2 {
                    let of = rows.iter().filter(|row| (row.0.as_str(), row.1) == (writer, partition));
                    assert!(of.map(|row| (row.2, row.3)).is_sorted(), "seed {seed}: out of order");
                }
            }
        }
        assert_eq!(counts.len() as u64, 2 * 2 * 3 * ROWS, "seed {seed}: rows are missing");
        assert!(counts.values().all(|count| *count == 1), "seed {seed}: {counts:?}");
    }
}

/// One step of a store whose only promise is checked: rows ascend.
#[derive(Debug, Clone)]
enum Step {
    Send { partition: u32, epoch: u64, row: u64, queue_id: i32 },
    Stop,
    Kill,
    ForgetSnapshot,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..2u32, 0..3u64, 0..6u64, 0..2i32)
            .prop_map(|(partition, epoch, row, queue_id)| Step::Send { partition, epoch, row, queue_id }),
        1 => Just(Step::Stop),
        1 => Just(Step::Kill),
        1 => Just(Step::ForgetSnapshot),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: common::cases(60), max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_row_is_stored_if_it_is_higher_than_all_before(steps in prop::collection::vec(step(), 1..60)) {
        let clock = Clock::manual(START);
        let mut disk = FakeDisk::new();
        let mut store = open(&disk, &synchronous(), &clock).unwrap();
        let mut highest: BTreeMap<(u32, i32), (u64, u64)> = BTreeMap::new();
        let mut stored: [Vec<(u32, u64, u64)>; 2] = Default::default();
        let mut is_forgotten = false;
        for step in steps {
            match step {
                Step::Send { partition, epoch, row, queue_id } => {
                    let text = numbered("w", partition, epoch, row);
                    let sent = store.log().append_once(&[message(TOPIC, queue_id, b"x", &text)]).unwrap();
                    store.log().wait_durable(sent.end).unwrap();
                    let key = (partition, queue_id);
                    let wanted = highest.get(&key).is_none_or(|known| (epoch, row) > *known);
                    prop_assert_eq!(is_new(&sent), vec![wanted]);
                    if wanted {
                        highest.insert(key, (epoch, row));
                        stored[queue_id as usize].push((partition, epoch, row));
                    }
                    continue;
                }
                Step::Stop => drop(store),
                Step::Kill => {
                    disk = disk.crash(1);
                    drop(store);
                }
                Step::ForgetSnapshot => {
                    is_forgotten = true;
                    continue;
                }
            }
            if std::mem::take(&mut is_forgotten) {
                disk.forget(&Path::new(ROOT).join("ferromq/sequences"));
            }
            store = open(&disk, &synchronous(), &clock).unwrap();
        }
        for (queue_id, wanted) in stored.iter().enumerate() {
            let rows: Vec<_> = held(&store, queue_id as u32).into_iter().map(|row| (row.1, row.2, row.3)).collect();
            prop_assert_eq!(&rows, wanted);
        }
    }
}

/// A store whose snapshot of numbered messages cannot be written, with a retention of `age`.
fn unsaved(age: Duration) -> (FakeDisk, Clock, MessageStore<FakeDisk>) {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(START));
    let retention = Retention { age: Some(age), ..Retention::default() };
    let config = StoreConfig { retention, disk_reserve: 64 << 10, ..asynchronous() };
    let store = open(&disk, &config, &clock).unwrap();
    disk.set_hook(|op, path| match op == Op::Replace && path.ends_with("sequences") {
        true => Err(io::Error::from_raw_os_error(28)),
        false => Ok(()),
    });
    for row in 0..200 {
        let text = numbered("w", 0, 0, row);
        store.log().append_once(&[message(TOPIC, 0, &[7; 1_000], &text)]).unwrap();
    }
    settle(&store);
    (disk, clock, store)
}

fn is_unwritten(store: &MessageStore<FakeDisk>) -> bool {
    let file = Path::new(ROOT).join("ferromq/sequences");
    store
        .admin()
        .damages()
        .iter()
        .any(|damage| damage.file == file && damage.reason == DamageReason::Unwritten)
}

#[test]
fn a_snapshot_that_cannot_be_written_keeps_no_file_that_is_older_than_the_window() {
    let (_disk, clock, store) = unsaved(Duration::from_secs(72 * 3600));
    clock.advance(71 * 3_600_000);
    assert_eq!(store.admin().clean(true).removed_files, 0);
    clock.advance(2 * 3_600_000);
    store.admin().clean(true);
    let total = store.admin().stats().cleaning.total;
    assert!(total.removed_files >= 2, "{total:?}");
}

#[test]
fn a_snapshot_that_cannot_be_written_keeps_younger_files_until_space_is_short_and_recovers() {
    let (disk, clock, store) = unsaved(Duration::from_secs(3600));
    clock.advance(2 * 3_600_000);
    let held = store.admin().clean(true);
    assert_eq!(store.admin().stats().cleaning.total.removed_files, 0, "{held:?}");
    assert!(held.failure.is_some_and(|reason| reason.contains("sequences")));
    assert!(is_unwritten(&store), "{:?}", store.admin().damages());
    disk.set_free(1_000);
    store.admin().clean(true);
    let total = store.admin().stats().cleaning.total;
    assert!(total.removed_files >= 2, "{total:?}");
    assert!(is_unwritten(&store));
    disk.set_free(1 << 40);
    wait_until("there is space again", || !store.admin().stats().is_full);
    // The numbers stay known while the store is open.
    assert_eq!(is_new(&send(&store, &[0, 199, 200], false).unwrap()), [false, false, true]);
    disk.clear_hook();
    wait_until("the snapshot is written", || !is_unwritten(&store));
    store.close().unwrap();
    drop(store);
    let store = open(&disk, &asynchronous(), &clock).unwrap();
    assert_eq!(is_new(&send(&store, &[0, 200, 201], false).unwrap()), [false, false, true]);
}
