//! Topics are deleted, queues closed and opened while the store runs; a restart changes none of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex, mpsc},
    thread,
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
    queues::QueueAccess,
    read::{GetStatus, TransferLimits},
    retention::Retention,
    time::Clock,
};

const ROOT: &str = "/store";
const HOUR: i64 = 3_600_000;

type Store = MessageStore<FakeDisk>;

fn open(disk: &FakeDisk, clock: &Clock) -> Store {
    let config = StoreConfig { retention: Retention::default(), ..asynchronous() };
    MessageStore::open_on(disk.clone(), Path::new(ROOT), config, clock.clone()).unwrap()
}

fn new() -> (FakeDisk, Clock, Store) {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(1_700_000_000_000));
    let store = open(&disk, &clock);
    (disk, clock, store)
}

fn send(store: &Store, topic: &str, queue_id: i32, count: usize) -> Vec<u64> {
    let properties = named(&format!("key-{topic}"), "a");
    let offsets = (0..count).map(|_| {
        let sent = store.log().append(&[message(topic, queue_id, &[7; 500], &properties)]).unwrap();
        sent.locations[0].queue_offset
    });
    let offsets = offsets.collect();
    settle(store);
    offsets
}

fn receive(store: &Store, group: &str, topic: &str) -> Vec<u64> {
    let request = ReceiveRequest {
        group,
        topic,
        queue_count: 2,
        first_queue: 0,
        max_count: 100,
        max_bytes: 1 << 20,
        invisible_ms: 1000,
        filter: &MessageFilter::All,
        begin: Begin::AtMin,
        order: None,
        max_attempts: 0,
        by_priority: false,
        limits: TransferLimits::NONE,
    };
    common::receive(store, &request)
        .unwrap()
        .messages
        .iter()
        .map(|leased| leased.handle.queue_offset)
        .collect()
}

fn has_files(disk: &FakeDisk, topic: &str) -> bool {
    disk.paths().iter().any(|path| path.starts_with(Path::new(ROOT).join("consumequeue").join(topic)))
}

/// Checks that no access finds the topic.
fn check_deleted(store: &Store, disk: &FakeDisk, topic: &str) {
    assert!(!store.queues().list().iter().any(|(name, _)| name == topic));
    assert_eq!(store.queues().get(topic, 0, 0, 32, 1 << 20, ALL).status, GetStatus::NoMatchedLogicQueue);
    assert!(
        store.queues().query_by_key(topic, &format!("key-{topic}"), 100, 0, i64::MAX).messages.is_empty()
    );
    assert!(!has_files(disk, topic));
    assert_eq!((store.queues().min_offset(topic, 0), store.queues().max_offset(topic, 0)), (0, 0));
}

#[test]
fn a_deleted_topic_stays_deleted_and_continues_its_offsets_when_created_again() {
    for is_clean in [true, false] {
        for lost in [None, Some("consumequeue"), Some("ferromq/queues")] {
            let (disk, clock, store) = new();
            send(&store, "gone", 0, 120);
            send(&store, "gone", 1, 7);
            send(&store, "kept", 0, 80);
            assert_eq!(store.admin().delete_topic("gone").unwrap(), 2);
            check_deleted(&store, &disk, "gone");
            assert_eq!(store.admin().delete_topic("gone").unwrap(), 0, "there is nothing left to delete");
            assert_eq!(bodies(&store, "kept", 0).len(), 80);
            let restart = |store: Store, disk: FakeDisk| {
                let disk = if is_clean {
                    store.close().unwrap();
                    disk
                } else {
                    disk.crash(11)
                };
                drop(store);
                for path in disk.paths() {
                    if lost.is_some_and(|lost| path.starts_with(Path::new(ROOT).join(lost))) {
                        disk.forget(&path);
                    }
                }
                (open(&disk, &clock), disk)
            };
            // A crash must find the log flushed.
            flush_now(&store);
            let (store, disk) = restart(store, disk);
            check_deleted(&store, &disk, "gone");
            assert_eq!(send(&store, "gone", 0, 3), [120, 121, 122]);
            assert_eq!((store.queues().min_offset("gone", 0), bodies(&store, "gone", 0).len()), (120, 3));
            let found = store.queues().get("gone", 0, 5, 32, 1 << 20, ALL);
            assert_eq!((found.status, found.next_offset), (GetStatus::OffsetTooSmall, 120));
            store.close().unwrap();
            drop(store);
            let store = open(&disk, &clock);
            let (store, disk) = restart(store, disk);
            assert_eq!(
                (store.queues().min_offset("gone", 0), store.queues().max_offset("gone", 0)),
                (120, 123)
            );
            assert_eq!(bodies(&store, "kept", 0).len(), 80);
            assert_eq!(store.queues().query_by_key("gone", "key-gone", 100, 0, i64::MAX).messages.len(), 3);
            assert_eq!(send(&store, "gone", 1, 1), [7]);
            assert!(has_files(&disk, "gone"));
        }
    }
}

#[test]
fn messages_sent_during_a_deletion_are_deleted_or_stored_after_it() {
    let (disk, clock, store) = new();
    let given = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let sent = store.log().append(&[message("t", 0, &[1; 200], b"")]).unwrap();
                    given.lock().unwrap().push(sent.locations[0].queue_offset);
                }
            });
        }
        for _ in 0..20 {
            store.admin().delete_topic("t").unwrap();
        }
    });
    settle(&store);
    let given: BTreeSet<u64> = given.into_inner().unwrap().into_iter().collect();
    assert_eq!(given.len(), 900, "no offset was assigned twice");
    let (min, max) = (store.queues().min_offset("t", 0), store.queues().max_offset("t", 0));
    assert!(max == 900 || (min, max) == (0, 0));
    assert_eq!(bodies(&store, "t", 0).len() as u64, max - min, "without gap");
    store.close().unwrap();
    drop(store);
    let store = open(&disk, &clock);
    assert_eq!((store.queues().min_offset("t", 0), store.queues().max_offset("t", 0)), (min, max));
    assert_eq!(send(&store, "t", 0, 1), [900]);
}

#[test]
fn offsets_of_groups_and_leases_go_with_the_topic() {
    let (disk, clock, store) = new();
    send(&store, "t", 0, 10);
    send(&store, "kept", 0, 10);
    assert_eq!(receive(&store, "g", "t").len(), 10);
    store.groups().commit_offset("g", "kept", 0, 4).unwrap();
    store.groups().commit_offset("other", "t", 0, 5).unwrap();
    store.admin().delete_topic("t").unwrap();
    let offsets =
        String::from_utf8(disk.bytes(&Path::new(ROOT).join("config/consumerOffset.json")).unwrap()).unwrap();
    assert!(offsets.contains("kept@g") && !offsets.contains("\"t@"), "{offsets}");
    assert_eq!(store.groups().committed_offset("g", "t", 0), None);
    assert_eq!(receive(&store, "g", "t"), [0u64; 0]);
    send(&store, "t", 0, 2);
    clock.advance(5000);
    assert_eq!(receive(&store, "g", "t"), [10, 11]);
    store.close().unwrap();
    drop(store);
    let store = open(&disk, &clock);
    assert_eq!(store.groups().committed_offset("g", "t", 0), Some(10));
    assert_eq!(store.groups().committed_offset("other", "t", 0), None);
}

#[test]
fn unused_topics_are_cleaned_and_keep_no_file() {
    let (disk, clock, store) = new();
    for topic in ["a", "b", "c"] {
        send(&store, topic, 0, 60);
    }
    assert_eq!(store.admin().clean_unused(&BTreeSet::from(["b", "none"])).unwrap(), ["a", "c"]);
    assert_eq!(store.queues().list(), [("b".to_owned(), vec![0])]);
    check_deleted(&store, &disk, "a");
    clock.advance(72 * HOUR);
    store.admin().clean(true);
    assert_eq!(
        bodies(&store, "b", 0).len() as u64,
        store.queues().max_offset("b", 0) - store.queues().min_offset("b", 0)
    );
    assert!(store.admin().stats().min_physical_offset > 0);
    assert_eq!(send(&store, "a", 0, 1), [60]);
}

#[test]
fn a_closed_queue_drains_or_refuses_reads_and_opens_again_also_after_a_restart() {
    let (disk, clock, store) = new();
    send(&store, "t", 0, 5);
    send(&store, "t", 1, 5);
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let refused = |store: &Store, queue_id| match store.log().append(&[message("t", queue_id, b"", b"")]) {
        Err(StoreError::QueueClosed { topic, queue_id: closed }) => topic == "t" && closed as i32 == queue_id,
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    };
    store.admin().set_queue_access("t", 0, QueueAccess::ReadOnly).unwrap();
    assert_eq!(
        (store.admin().queue_access("t", 0), store.admin().queue_access("t", 1)),
        (QueueAccess::ReadOnly, QueueAccess::Open)
    );
    assert!(refused(&store, 0));
    let batch = [message("t", 1, b"", b""), message("t", 0, b"", b"")];
    assert!(matches!(store.log().append(&batch), Err(StoreError::QueueClosed { .. })), "a batch as a whole");
    assert_eq!(store.queues().max_offset("t", 1), 5);
    assert_eq!(bodies(&store, "t", 0).len(), 5, "it drains");
    store.admin().set_queue_access("t", 0, QueueAccess::Closed).unwrap();
    store.admin().set_queue_access("new", 3, QueueAccess::ReadOnly).unwrap();
    assert!(!store.queues().list().iter().any(|(topic, _)| topic == "new"));
    let check_closed = |store: &Store| {
        let found = store.queues().get("t", 0, 2, 32, 1 << 20, ALL);
        assert_eq!((found.status, found.next_offset, found.messages.len()), (GetStatus::QueueClosed, 2, 0));
        assert_eq!((found.min_offset, found.max_offset), (0, 5));
        assert_eq!(store.admin().queue_access("t", 0), QueueAccess::Closed);
        assert!(refused(store, 0));
        assert!(matches!(
            store.log().append(&[message("new", 3, b"", b"")]),
            Err(StoreError::QueueClosed { .. })
        ));
    };
    check_closed(&store);
    store.close().unwrap();
    drop(store);
    let store = open(&disk, &clock);
    check_closed(&store);
    assert_eq!(receive(&store, "g", "t"), [0, 1, 2, 3, 4], "only of the open queue");
    store.queues().on_arrival({
        let told = Arc::clone(&arrivals);
        move |arrival| told.lock().unwrap().push((arrival.queue_id, arrival.max_offset))
    });
    store.admin().set_queue_access("t", 0, QueueAccess::Open).unwrap();
    assert_eq!(*arrivals.lock().unwrap(), [(0, 5)], "waiting receives are woken");
    assert_eq!(receive(&store, "g", "t"), [0, 1, 2, 3, 4]);
    assert_eq!(send(&store, "t", 0, 1), [5]);
    store.admin().delete_topic("t").unwrap();
    assert_eq!(send(&store, "t", 0, 1), [6]);
    assert!(matches!(
        store.admin().set_queue_access("a/b", 0, QueueAccess::Open),
        Err(StoreError::Invalid { .. })
    ));
}

#[test]
fn a_crash_during_a_deletion_keeps_or_deletes_the_topic_and_no_offset_is_assigned_twice() {
    for op in 1.. {
        let mut random = Random(op);
        let (disk, clock, store) = new();
        send(&store, "gone", 0, 120);
        send(&store, "kept", 0, 30);
        // The flushing and writing threads are idle.
        std::thread::sleep(Duration::from_millis(1));
        disk.crash_at(op, random.next());
        let deleted = store.admin().delete_topic("gone");
        let has_ended = !disk.has_crashed();
        let left = disk.crash(random.next());
        drop(store);
        let what = format!("op {op}");
        let store = open(&left, &clock);
        let max = store.queues().max_offset("gone", 0);
        if deleted.is_ok() || max == 0 {
            assert!(store.queues().get("gone", 0, 0, 32, 1 << 20, ALL).messages.is_empty(), "{what}");
        } else {
            assert_eq!(bodies(&store, "gone", 0).len() as u64, max, "{what}");
        }
        let kept = store.queues().max_offset("kept", 0);
        assert_eq!(bodies(&store, "kept", 0).len() as u64, kept, "{what}");
        let next = send(&store, "gone", 0, 1)[0];
        assert!(if deleted.is_ok() { next == 120 } else { next == max || next == 120 }, "{what}: {next}");
        store.close().unwrap();
        drop(store);
        let store = open(&left, &clock);
        assert_eq!(store.queues().max_offset("gone", 0), next + 1, "{what}");
        assert_eq!(
            bodies(&store, "gone", 0).len() as u64,
            next + 1 - store.queues().min_offset("gone", 0),
            "{what}"
        );
        if has_ended {
            break;
        }
    }
}

#[test]
fn a_running_deletion_ends_before_the_store_is_closed_and_none_begins_after() {
    for what in ["ferromq/deleted", "ferromq/access"] {
        let (disk, clock, store) = new();
        let store = Arc::new(store);
        send(&store, "gone", 0, 60);
        send(&store, "kept", 0, 5);
        let (began, begins) = mpsc::channel();
        let (gate, opened) = mpsc::channel::<()>();
        let opened = Mutex::new(opened);
        disk.set_hook(move |op, path| {
            if op == Op::Replace && path.ends_with(what) {
                began.send(()).ok();
                // Blocks until the gate is dropped.
                opened.lock().unwrap().recv().ok();
            }
            Ok(())
        });
        let deleting = thread::spawn({
            let store = Arc::clone(&store);
            move || store.admin().delete_topic("gone")
        });
        begins.recv().unwrap();
        let (has_closed, closed) = mpsc::channel();
        let closing = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                let done = store.close();
                has_closed.send(()).unwrap();
                done
            }
        });
        assert!(closed.recv_timeout(Duration::from_millis(300)).is_err(), "{what} is being written");
        drop(gate);
        assert_eq!(deleting.join().unwrap().unwrap(), 1);
        closing.join().unwrap().unwrap();
        assert!(matches!(store.admin().delete_topic("kept"), Err(StoreError::Closed)));
        assert!(matches!(
            store.admin().set_queue_access("kept", 0, QueueAccess::Closed),
            Err(StoreError::Closed)
        ));
        disk.clear_hook();
        drop(store);
        let store = open(&disk, &clock);
        assert!(store.admin().recovery().is_clean, "{what}");
        check_deleted(&store, &disk, "gone");
        assert_eq!(bodies(&store, "kept", 0).len(), 5);
    }
}

#[test]
fn the_first_checkpoint_after_an_open_flushes_only_new_entries() {
    for is_clean in [true, false] {
        let (disk, clock, store) = new();
        send(&store, "t", 0, 520);
        send(&store, "other", 0, 1);
        // Writes a checkpoint.
        store.admin().delete_topic("other").unwrap();
        let disk = if is_clean {
            store.close().unwrap();
            disk
        } else {
            disk.crash(5)
        };
        drop(store);
        let store = open(&disk, &clock);
        let flushed = Arc::new(Mutex::new(BTreeSet::new()));
        let noted = Arc::clone(&flushed);
        disk.set_hook(move |op, path| {
            if op == Op::Flush && path.starts_with("/store/consumequeue/t") {
                noted.lock().unwrap().insert(path.to_path_buf());
            }
            Ok(())
        });
        send(&store, "t", 0, 1);
        send(&store, "other", 0, 1);
        store.admin().delete_topic("other").unwrap();
        let last = Path::new(ROOT).join(format!("consumequeue/t/0/{:020}", 500 * 20));
        assert_eq!(*flushed.lock().unwrap(), BTreeSet::from([last]), "clean {is_clean}");
    }
}
