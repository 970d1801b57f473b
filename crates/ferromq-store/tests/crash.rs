//! Crashes and faults on the fake disk: acknowledged messages survive, no torn one is served.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
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
    message, named, settle, synchronous, wait_flushed, wait_until,
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError, log::DamageReason, record::MessageView, time::Clock,
};

const ROOT: &str = "/store";
const TOPICS: [&str; 2] = ["one", "two"];
const QUEUES: u64 = 2;

fn open(disk: &FakeDisk, config: &StoreConfig) -> Result<MessageStore<FakeDisk>, StoreError> {
    MessageStore::open_on(disk.clone(), Path::new(ROOT), config.clone(), Clock::manual(1_700_000_000_000))
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Promised {
    topic: &'static str,
    queue_id: u32,
    queue_offset: u64,
    key: String,
    body: Vec<u8>,
}

/// Sends from several threads until the disk fails or everything is sent. Returns the acknowledged messages.
fn send(store: &MessageStore<FakeDisk>, seed: u64, threads: u64, count: u64) -> Vec<Promised> {
    let promised = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let promised = &promised;
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_mul(31).wrapping_add(thread));
                for number in 0..count {
                    let batch: Vec<(usize, i32, Vec<u8>, String)> = (0..1 + random.below(3))
                        .map(|part| {
                            let limit = random.one_of([21, 201, 3001]);
                            let len = random.below(limit) as usize;
                            (
                                random.below(2) as usize,
                                random.below(QUEUES) as i32,
                                vec![random.next() as u8; len],
                                format!("{seed}-{thread}-{number}-{part}"),
                            )
                        })
                        .collect();
                    let properties: Vec<Vec<u8>> =
                        batch.iter().map(|(_, _, _, key)| named(key, "tag")).collect();
                    let messages: Vec<_> = batch
                        .iter()
                        .zip(&properties)
                        .map(|((topic, queue_id, body, _), properties)| {
                            message(TOPICS[*topic], *queue_id, body, properties)
                        })
                        .collect();
                    let Ok(appended) = store.log().append(&messages) else { return };
                    if store.log().wait_durable(appended.end).is_err() {
                        return;
                    }
                    let mut promised = promised.lock().unwrap();
                    for ((topic, queue_id, body, key), location) in batch.into_iter().zip(appended.locations)
                    {
                        promised.push(Promised {
                            topic: TOPICS[topic],
                            queue_id: queue_id as u32,
                            queue_offset: location.queue_offset,
                            key,
                            body,
                        });
                    }
                }
            });
        }
    });
    promised.into_inner().unwrap()
}

fn check(store: &MessageStore<FakeDisk>, promised: &[Promised], what: &str) {
    for topic in TOPICS {
        for queue_id in 0..QUEUES as u32 {
            // `bodies` checks each record, and that there is no gap.
            let bodies = bodies(store, topic, queue_id);
            for promise in promised.iter().filter(|p| p.topic == topic && p.queue_id == queue_id) {
                assert_eq!(
                    bodies.get(promise.queue_offset as usize),
                    Some(&promise.body),
                    "{what}: {promise:?}"
                );
            }
        }
    }
    for promise in promised {
        let found = store.queues().query_by_key(promise.topic, &promise.key, 10, 0, i64::MAX).messages;
        assert_eq!(found.len(), 1, "{what}: key {}", promise.key);
        let view = MessageView::decode(found[0].bytes(), true).unwrap();
        assert_eq!((view.queue_offset, view.body), (promise.queue_offset, &promise.body[..]), "{what}");
        assert_eq!(view.properties, named(&promise.key, "tag"), "{what}: key {}", promise.key);
    }
}

#[test]
fn every_acknowledged_message_survives_a_crash_at_any_operation() {
    let rounds = std::env::var("FERROMQ_CRASH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let first_seed = std::env::var("FERROMQ_CRASH_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for seed in first_seed..first_seed + rounds {
        let mut random = Random(seed);
        let config = if random.below(4) == 0 { asynchronous() } else { synchronous() };
        let is_sync = config.flush.is_synchronous();
        let mut disk = FakeDisk::new();
        let mut promised = Vec::new();
        for life in 0..3 {
            let what = format!("seed {seed}, life {life}");
            let limit = random.one_of([40, 400, 4000]);
            disk.crash_at(1 + random.below(limit), random.next());
            // If the crash comes during the open, there is one more recovery to survive.
            if let Ok(store) = open(&disk, &config) {
                if is_sync {
                    check(&store, &promised, &what);
                }
                let sent = send(&store, seed * 10 + life, 3, 30);
                if is_sync {
                    promised.extend(sent);
                }
            }
            disk = disk.crash(random.next());
        }
        let store = open(&disk, &config).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        check(&store, &promised, &format!("seed {seed}, after the second recovery"));
        let more = send(&store, seed * 10 + 9, 2, 20);
        settle(&store);
        check(&store, &promised, &format!("seed {seed}, appended to"));
        check(&store, &more, &format!("seed {seed}, new ones"));
        store.close().unwrap();
        let store = open(&disk, &config).unwrap();
        check(&store, &promised, &format!("seed {seed}, closed and opened"));
        check(&store, &more, &format!("seed {seed}, closed and opened"));
        store.close().unwrap();
    }
}

#[test]
fn nothing_is_acknowledged_or_read_before_the_flush_returned() {
    let disk = FakeDisk::new();
    let store = open(&disk, &synchronous()).unwrap();
    let gate = Arc::new((Mutex::new(()), AtomicBool::new(false)));
    let first = store.log().append(&[message("t", 0, b"first", b"")]).unwrap();
    store.log().wait_durable(first.end).unwrap();
    settle(&store);

    let inner = Arc::clone(&gate);
    disk.set_hook(move |op, path| {
        if op == Op::Flush && path.to_string_lossy().contains("commitlog") && !inner.1.load(Ordering::SeqCst)
        {
            drop(inner.0.lock().unwrap());
        }
        Ok(())
    });
    let closed = gate.0.lock().unwrap();
    let (sender, receiver) = mpsc::channel();
    let appended = store.log().append(&[message("t", 0, b"second", b"")]).unwrap();
    store.log().when_durable(appended.end, move |outcome| sender.send(outcome.is_ok()).unwrap());
    assert!(
        receiver.recv_timeout(Duration::from_millis(200)).is_err(),
        "acknowledged before the flush returned"
    );
    assert_eq!(store.queues().max_offset("t", 0), 1, "a reader sees a message that may still be lost");
    assert!(store.queues().message_at(first.end).is_err(), "a reader sees a message that may still be lost");
    gate.1.store(true, Ordering::SeqCst);
    drop(closed);
    assert!(receiver.recv_timeout(Duration::from_secs(10)).unwrap());
    settle(&store);
    assert_eq!(bodies(&store, "t", 0), [b"first".to_vec(), b"second".to_vec()]);
}

#[test]
fn a_failed_flush_poisons_the_store_and_reading_goes_on() {
    let disk = FakeDisk::new();
    let store = open(&disk, &synchronous()).unwrap();
    let appended = store.log().append(&[message("t", 0, b"kept", &named("k", "a"))]).unwrap();
    store.log().wait_durable(appended.end).unwrap();
    settle(&store);
    disk.set_hook(|op, path| {
        let is_log = path.to_string_lossy().contains("commitlog");
        if op == Op::Flush && is_log { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    });
    let appended = store.log().append(&[message("t", 0, b"lost", b"")]).unwrap();
    assert!(matches!(store.log().wait_durable(appended.end), Err(StoreError::NotDurable { .. })));
    disk.clear_hook();
    assert!(matches!(store.log().append(&[message("t", 0, b"x", b"")]), Err(StoreError::Poisoned)));
    let (sender, receiver) = mpsc::channel();
    store.log().when_durable(appended.end, move |outcome| sender.send(outcome.is_err()).unwrap());
    assert!(receiver.recv_timeout(Duration::from_secs(10)).unwrap());
    assert_eq!(bodies(&store, "t", 0), [b"kept".to_vec()]);
    assert_eq!(store.queues().query_by_key("t", "k", 10, 0, i64::MAX).messages.len(), 1);
    assert!(store.close().is_err(), "a poisoned store must recover at the next open");
    drop(store);
    let store = open(&disk, &synchronous()).unwrap();
    assert_eq!(bodies(&store, "t", 0)[0], b"kept");
}

#[test]
fn a_full_disk_refuses_sends_with_its_numbers_until_there_is_space() {
    for (free, reserve) in [(192 << 10, 0u64), (10 << 20, 10 << 20)] {
        let disk = FakeDisk::new();
        let config = StoreConfig { disk_reserve: reserve, ..asynchronous() };
        let store = open(&disk, &config).unwrap();
        store.log().append(&[message("t", 0, b"first", b"")]).unwrap();
        settle(&store);
        disk.set_free(free);
        let body = [1; 3000];
        let mut stored = 1;
        let refused = loop {
            match store.log().append(&[message("t", 0, &body, b"")]) {
                Ok(_) => stored += 1,
                Err(error) => break error,
            }
            assert!(stored < 1000, "the disk never became full");
        };
        match refused {
            StoreError::Full { free: told, reserve: of, needed, .. } => {
                assert!(told < of + needed, "{told} {of} {needed}");
                assert_eq!(of, reserve);
            }
            other => panic!("{other}"),
        }
        disk.set_free(u64::MAX / 2);
        assert_eq!(bodies_when_settled(&store).len(), stored);
        store.log().append(&[message("t", 0, &body, b"")]).unwrap();
        assert_eq!(bodies_when_settled(&store).len(), stored + 1);
        store.close().unwrap();
    }
}

fn bodies_when_settled(store: &MessageStore<FakeDisk>) -> Vec<Vec<u8>> {
    settle(store);
    bodies(store, "t", 0)
}

#[test]
fn a_write_that_fails_stores_nothing_and_the_next_one_goes_on_at_its_place() {
    let disk = FakeDisk::new();
    let store = open(&disk, &asynchronous()).unwrap();
    let begin = store.log().append(&[message("t", 0, b"before", b"")]).unwrap().end;
    // The body of the failing message holds a record, exactly where the next record will end.
    let mut inner = store.queues().message_at(0).unwrap().bytes().to_vec();
    let place = begin + begin - 1;
    inner[20..28].copy_from_slice(&2u64.to_be_bytes());
    inner[28..36].copy_from_slice(&place.to_be_bytes());
    let body = [vec![0; (place - begin - 88) as usize], inner].concat();
    let writes = AtomicU64::new(0);
    disk.set_hook(move |op, path| {
        let is_log = path.to_string_lossy().contains("commitlog");
        // The second record of the batch fails; clearing the first one succeeds.
        if op == Op::Write && is_log && writes.fetch_add(1, Ordering::SeqCst) == 1 {
            return Err(io::Error::from_raw_os_error(28));
        }
        Ok(())
    });
    let batch = [message("t", 0, &body, b""), message("t", 0, b"two", b"")];
    assert!(matches!(store.log().append(&batch), Err(StoreError::Full { .. })));
    disk.clear_hook();
    store.log().append(&[message("t", 0, b"after", b"")]).unwrap();
    assert_eq!(bodies_when_settled(&store), [b"before".to_vec(), b"after".to_vec()]);
    drop(store);
    let store = open(&disk, &asynchronous()).unwrap();
    assert_eq!(bodies(&store, "t", 0), [b"before".to_vec(), b"after".to_vec()]);
}

#[test]
fn the_dispatcher_waits_for_space_and_skips_nothing() {
    let disk = FakeDisk::new();
    let store = open(&disk, &asynchronous()).unwrap();
    disk.set_hook(|op, path| {
        let is_derived = ["consumequeue", "index"].iter().any(|part| path.to_string_lossy().contains(part));
        if is_derived && matches!(op, Op::Create | Op::Write) {
            return Err(io::Error::from_raw_os_error(28));
        }
        Ok(())
    });
    for number in 0..10u8 {
        // Refused once the dispatcher met the full disk. The fake disk has space, so sends are allowed again.
        let _ = store.log().append(&[message("t", 0, &[number], &named(&number.to_string(), "a"))]).unwrap();
    }
    assert_eq!(store.queues().max_offset("t", 0), 0);
    disk.clear_hook();
    let bodies = bodies_when_settled(&store);
    assert_eq!(bodies, (0..10u8).map(|number| vec![number]).collect::<Vec<_>>());
    for number in 0..10 {
        assert_eq!(store.queues().query_by_key("t", &number.to_string(), 10, 0, i64::MAX).messages.len(), 1);
    }
}

#[test]
fn damage_before_the_checkpoint_is_reported_with_file_and_range_and_never_served() {
    let disk = FakeDisk::new();
    let store = open(&disk, &asynchronous()).unwrap();
    let bodies: Vec<Vec<u8>> = (0..20u8).map(|number| vec![number; 100]).collect();
    let mut ends = vec![0];
    for body in &bodies {
        ends.push(store.log().append(&[message("t", 0, body, b"")]).unwrap().end);
    }
    settle(&store);
    store.close().unwrap();
    let file = Path::new(ROOT).join("commitlog").join("0".repeat(20));
    // The body of the third message.
    disk.corrupt(&file, ends[2] as usize + 100);
    for round in 0..3u64 {
        let store = open(&disk, &asynchronous()).unwrap();
        let mut found = Vec::new();
        let mut at = 0;
        while at < store.queues().max_offset("t", 0) {
            let read = store.queues().get("t", 0, at, 1, usize::MAX, ALL);
            found.extend(read.messages.iter().map(|(offset, record)| {
                (*offset, MessageView::decode(record.bytes(), true).unwrap().body.to_vec())
            }));
            at = read.next_offset;
        }
        let expected = (0..).zip(bodies.clone()).filter(|(offset, _)| *offset != 2);
        let new = (0..round).map(|number| (20 + number, vec![100 + number as u8]));
        assert_eq!(found, expected.chain(new).collect::<Vec<_>>());
        let damages = store.admin().damages();
        assert_eq!(damages.len(), 1, "{damages:?}");
        assert_eq!((&damages[0].file, damages[0].range.clone()), (&file, ends[2]..ends[3]));
        assert_eq!(damages[0].reason, DamageReason::Corrupt);
        store.log().append(&[message("t", 0, &[100 + round as u8], b"")]).unwrap();
        settle(&store);
        store.close().unwrap();
    }
}

#[test]
fn a_missing_file_in_the_middle_is_reported_and_the_rest_is_served() {
    let disk = FakeDisk::new();
    let store = open(&disk, &asynchronous()).unwrap();
    for number in 0..100u8 {
        store.log().append(&[message("t", 0, &[number; 3000], &named(&number.to_string(), "a"))]).unwrap();
    }
    settle(&store);
    store.close().unwrap();
    let missing = Path::new(ROOT).join("commitlog").join(format!("{:020}", 64 << 10));
    disk.forget(&missing);
    // Also when the consume queue must be rebuilt without the records of that file.
    for is_redone in [false, true] {
        if is_redone {
            for path in disk.paths().into_iter().filter(|path| path.starts_with("/store/consumequeue")) {
                disk.forget(&path);
            }
        }
        let store = open(&disk, &asynchronous()).unwrap();
        let damages = store.admin().damages();
        assert_eq!(damages.len(), 1, "{damages:?}");
        assert_eq!((&damages[0].file, damages[0].range.clone()), (&missing, 64 << 10..128 << 10));
        assert_eq!(damages[0].reason, DamageReason::Missing);
        let mut found = Vec::new();
        let mut at = 0;
        while at < 100 {
            let read = store.queues().get("t", 0, at, 32, usize::MAX, ALL);
            assert!(read.next_offset > at);
            for (offset, record) in read.messages.iter().filter(|(offset, _)| *offset < 100) {
                let view = MessageView::decode(record.bytes(), true).unwrap();
                assert!(view.queue_offset == *offset && view.body == [*offset as u8; 3000]);
                found.push(*offset);
            }
            at = read.next_offset;
        }
        // A file of 64 KiB holds 21 of them.
        let expected: Vec<u64> = (0..100).filter(|offset| !(21..42).contains(offset)).collect();
        assert_eq!(found, expected);
        for number in expected {
            assert_eq!(
                store.queues().query_by_key("t", &number.to_string(), 10, 0, i64::MAX).messages.len(),
                1
            );
        }
        let next = store.log().append(&[message("t", 0, b"next", b"")]).unwrap();
        assert_eq!(next.locations[0].queue_offset, 100 + u64::from(is_redone));
        settle(&store);
        store.close().unwrap();
    }
}

#[test]
fn missing_derived_files_are_rebuilt_from_the_log() {
    for is_clean in [true, false] {
        let disk = FakeDisk::new();
        let store = open(&disk, &asynchronous()).unwrap();
        let promised = send(&store, 7, 1, 200);
        settle(&store);
        let disk = if is_clean {
            store.close().unwrap();
            disk
        } else {
            // Everything had time to reach the disk, but the store was not closed.
            wait_flushed(&store);
            disk.crash(1)
        };
        for path in disk.paths() {
            if ["consumequeue", "index"].iter().any(|part| path.to_string_lossy().contains(part)) {
                disk.forget(&path);
            }
        }
        let store = open(&disk, &asynchronous()).unwrap();
        let kept = store.queues().get("one", 0, 0, 1, 1000, ALL).max_offset;
        assert!(kept > 0);
        for topic in TOPICS {
            for queue_id in 0..QUEUES as u32 {
                let bodies = bodies(&store, topic, queue_id);
                let expected: Vec<_> = promised
                    .iter()
                    .filter(|p| p.topic == topic && p.queue_id == queue_id)
                    .map(|p| p.body.clone())
                    .collect();
                assert_eq!(bodies, expected);
            }
        }
    }
}

#[test]
fn a_failed_dispatcher_keeps_its_pause_whatever_is_appended() {
    let disk = FakeDisk::new();
    let store = open(&disk, &asynchronous()).unwrap();
    let tries = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&tries);
    disk.set_hook(move |op, path| {
        if op == Op::Create && path.to_string_lossy().contains("consumequeue") {
            counted.fetch_add(1, Ordering::SeqCst);
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(())
    });
    let began = std::time::Instant::now();
    let mut taken = 0;
    for _ in 0..100 {
        // Once the queue is set aside, sends may be refused.
        taken += usize::from(store.log().append(&[message("t", 0, b"x", b"")]).is_ok());
        std::thread::sleep(Duration::from_millis(2));
    }
    // Read the counter before the time, so that no pause between the two can add a try.
    let tries = tries.load(Ordering::SeqCst);
    let pauses = began.elapsed().as_millis() as u64 / 100 + 2;
    assert!((1..=pauses).contains(&tries), "{tries} tries in {pauses} pauses");
    disk.clear_hook();
    wait_until("the queue is complete", || store.admin().damages().is_empty());
    assert_eq!(bodies_when_settled(&store).len(), taken);
}

#[test]
fn a_committed_offset_can_be_read_while_progress_is_being_written() {
    let disk = FakeDisk::new();
    let root = Path::new(ROOT);
    let offsets = br#"{"offsetTable":{"gone@g":{0:7}}}"#;
    ferromq_store::files::Disk::replace_file(&disk, &root.join("config/consumerOffset.json"), offsets)
        .unwrap();
    let config = StoreConfig { progress_interval: Duration::from_millis(10), ..asynchronous() };
    let store = open(&disk, &config).unwrap();
    let (entered, writing) = mpsc::channel();
    let (release, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    disk.set_hook(move |op, path| {
        if op == Op::Replace && path.ends_with("ferromq/leases") {
            let _ = entered.send(());
            let _ = gate.lock().unwrap().recv();
        }
        Ok(())
    });
    store.log().append(&[message("t", 0, b"x", b"")]).unwrap();
    settle(&store);
    store.groups().commit_offset("g", "t", 0, 1).unwrap();
    writing.recv_timeout(Duration::from_secs(10)).unwrap();
    std::thread::scope(|scope| {
        let (sender, told) = mpsc::channel();
        let store = &store;
        scope.spawn(move || sender.send(store.groups().committed_offset("g", "gone", 0)).unwrap());
        let told = told.recv_timeout(Duration::from_secs(5));
        drop(release);
        assert_eq!(told, Ok(Some(7)));
    });
}

#[test]
fn zero_bytes_in_names_and_properties_are_refused() {
    let store = open(&FakeDisk::new(), &asynchronous()).unwrap();
    for (topic, properties) in [("a\0b", &b""[..]), ("t", b"KEYS\x01a\0b\x02")] {
        assert!(matches!(
            store.log().append(&[message(topic, 0, b"x", properties)]),
            Err(StoreError::Invalid { .. })
        ));
    }
    assert_eq!(store.admin().stats().max_physical_offset, 0);
}

#[test]
fn zeros_that_find_no_space_refuse_the_append_and_poison_nothing() {
    let disk = FakeDisk::new();
    let store = open(&disk, &synchronous()).unwrap();
    disk.set_hook(|op, path| {
        let is_log = path.to_string_lossy().contains("commitlog");
        if op == Op::Write && is_log { Err(io::Error::from_raw_os_error(28)) } else { Ok(()) }
    });
    assert!(matches!(store.log().append(&[message("t", 0, b"x", b"")]), Err(StoreError::Full { .. })));
    disk.clear_hook();
    let appended = store.log().append(&[message("t", 0, b"x", b"")]).unwrap();
    store.log().wait_durable(appended.end).unwrap();
    assert_eq!(bodies_when_settled(&store), [b"x".to_vec()]);
}

#[test]
fn a_recovery_removes_the_file_prepared_after_the_end_without_reading_it() {
    let disk = FakeDisk::new();
    let store = open(&disk, &asynchronous()).unwrap();
    // Fills more than half of the first file, so that the second one is prepared.
    for _ in 0..15 {
        store.log().append(&[message("t", 0, &[1; 3000], b"")]).unwrap();
    }
    let second = Path::new(ROOT).join("commitlog").join(format!("{:020}", 64 << 10));
    while disk.bytes(&second).is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    settle(&store);
    wait_flushed(&store);
    let killed = disk.crash(1);
    let touched = Arc::new(AtomicBool::new(false));
    let (seen, prepared) = (Arc::clone(&touched), second.clone());
    let is_removed = AtomicBool::new(false);
    killed.set_hook(move |op, path| {
        is_removed.fetch_or(op == Op::Remove && path == prepared, Ordering::SeqCst);
        if path == prepared && op == Op::Flush && !is_removed.load(Ordering::SeqCst) {
            seen.store(true, Ordering::SeqCst);
        }
        Ok(())
    });
    let store = open(&killed, &asynchronous()).unwrap();
    assert!(!touched.load(Ordering::SeqCst), "erased before it was removed");
    assert_eq!((bodies(&store, "t", 0).len(), store.admin().stats().recovered_cut_bytes), (15, 0));
}
