//! A consume queue or index file that cannot be written or read: the others continue, and it is rebuilt from the log.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::{
    ALL, asynchronous, bodies, delays,
    fake_disk::{FakeDisk, Op},
    message, named, settle, wait_until,
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError, log::DamageReason, read::GetStatus, retention::Retention,
    time::Clock,
};

/// A flag set once, by the test or by the disk.
type Signal = Arc<AtomicBool>;

const ROOT: &str = "/store";
const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EISDIR: i32 = 21;
const EMFILE: i32 = 24;
/// Entries in a file of a queue.
const IN_FILE: u64 = 50;

fn open_with(disk: &FakeDisk, config: &StoreConfig) -> Result<MessageStore<FakeDisk>, StoreError> {
    MessageStore::open_on(disk.clone(), Path::new(ROOT), config.clone(), Clock::manual(1_700_000_000_000))
}

fn open(disk: &FakeDisk) -> MessageStore<FakeDisk> {
    open_with(disk, &asynchronous()).unwrap()
}

/// Makes operations under a directory of the store fail until the returned flag is cleared.
fn break_directory(disk: &FakeDisk, directory: &str, ops: &'static [Op], code: i32) -> Arc<AtomicBool> {
    let (is_broken, directory) = (Arc::new(AtomicBool::new(true)), Path::new(ROOT).join(directory));
    let broken = Arc::clone(&is_broken);
    disk.set_hook(move |op, path| {
        // A new file of any queue has a common temporary name; its rename shows where it belongs.
        let fails = broken.load(Ordering::SeqCst) && ops.contains(&op) && path.starts_with(&directory);
        if fails { Err(io::Error::from_raw_os_error(code)) } else { Ok(()) }
    });
    is_broken
}

fn send(store: &MessageStore<FakeDisk>, topic: &str, queue_id: i32, count: u64) -> Result<(), StoreError> {
    for number in 0..count {
        let properties = named(&format!("{topic}-{number}"), "tag");
        store.log().append(&[message(topic, queue_id, number.to_string().as_bytes(), &properties)])?;
    }
    Ok(())
}

fn is_set_aside(error: &StoreError) -> bool {
    matches!(error, StoreError::QueueSetAside { topic, queue_id: 3, .. } if topic == "t")
}

/// The damages, as directory and reason.
fn wrong(store: &MessageStore<FakeDisk>) -> Vec<(PathBuf, DamageReason)> {
    store.admin().damages().into_iter().map(|damage| (damage.file, damage.reason)).collect()
}

fn queue_of_t() -> Vec<(PathBuf, DamageReason)> {
    vec![(Path::new(ROOT).join("consumequeue/t/3"), DamageReason::SetAside)]
}

const WRITING: &[Op] = &[Op::Create, Op::Open, Op::Rename, Op::Write, Op::CreateDir];

#[test]
fn a_queue_that_cannot_be_written_stops_no_other_and_is_complete_later() {
    for code in [EACCES, EISDIR, EMFILE, ENOMEM, EIO] {
        let disk = FakeDisk::new();
        let store = open(&disk);
        send(&store, "t", 3, IN_FILE - 2).unwrap();
        settle(&store);
        let is_broken = break_directory(&disk, "consumequeue/t/3", WRITING, code);
        let taken = 5 + IN_FILE;
        let batch: Vec<_> = (0..taken).map(|_| message("t", 3, b"more", b"")).collect();
        store.log().append(&batch).unwrap();
        send(&store, "u", 0, 10).unwrap();
        settle(&store);
        assert_eq!(bodies(&store, "u", 0).len(), 10, "the other topic continues: {code}");
        assert_eq!(
            bodies(&store, "t", 3).len() as u64,
            IN_FILE - 2,
            "earlier messages stay readable: {code}"
        );
        let refused = store.log().append(&[message("t", 3, b"refused", b"")]).unwrap_err();
        assert!(is_set_aside(&refused), "{refused}");
        assert!(refused.to_string().contains(&io::Error::from_raw_os_error(code).to_string()), "{refused}");
        assert_eq!(wrong(&store), queue_of_t(), "{code}");
        assert_eq!(store.admin().stats().set_aside_queues, 1);
        assert_eq!(store.admin().stats().failed_puts["queue_set_aside"], 1);

        is_broken.store(false, Ordering::SeqCst);
        wait_until("the queue is complete", || store.admin().damages().is_empty());
        send(&store, "t", 3, 1).unwrap();
        settle(&store);
        assert_eq!(bodies(&store, "t", 3).len() as u64, IN_FILE - 2 + taken + 1, "{code}");
        assert_eq!(store.admin().stats().set_aside_queues, 0);
        store.close().unwrap();
        let store = open(&disk);
        assert_eq!(bodies(&store, "t", 3).len() as u64, IN_FILE - 2 + taken + 1, "opened again: {code}");
        assert!(store.admin().recovery().is_clean);
    }
}

#[test]
fn a_store_with_an_unusable_queue_opens_and_rebuilds_it_once_it_can() {
    for (is_closed, ops) in [(true, WRITING), (false, WRITING), (true, &[Op::List]), (false, &[Op::List])] {
        let disk = FakeDisk::new();
        let store = open(&disk);
        send(&store, "t", 3, 2 * IN_FILE + 7).unwrap();
        send(&store, "u", 0, 10).unwrap();
        settle(&store);
        store.groups().commit_offset("g", "t", 3, IN_FILE).unwrap();
        if is_closed {
            store.close().unwrap();
        } else {
            common::flush_now(&store);
        }
        // After a kill, offsets committed in the last second may be lost.
        let place = is_closed.then_some(IN_FILE);
        let disk = disk.after_crash(3);
        drop(store);

        let is_broken = break_directory(&disk, "consumequeue/t/3", ops, EACCES);
        let store = open(&disk);
        assert_eq!(wrong(&store), queue_of_t(), "closed: {is_closed}");
        send(&store, "u", 0, 10).unwrap();
        settle(&store);
        assert_eq!(bodies(&store, "u", 0).len(), 20);
        assert!(is_set_aside(&send(&store, "t", 3, 1).unwrap_err()));
        let found = store.queues().get("t", 3, IN_FILE, 32, 1 << 20, ALL);
        assert_eq!(found.next_offset, IN_FILE, "consumers keep their place: {:?}", found.status);
        assert_eq!(store.groups().committed_offset("g", "t", 3), place);
        // A further run of the store with the fault changes nothing.
        store.close().unwrap();
        drop(store);
        let store = open(&disk);
        assert_eq!(wrong(&store), queue_of_t());
        let walked = store.admin().recovery().walked_bytes;
        let all = store.admin().stats().max_physical_offset;
        assert!(
            !is_closed || walked < all / 4,
            "walked {walked} of {all}: only newer messages are derived again"
        );

        is_broken.store(false, Ordering::SeqCst);
        wait_until("the queue is complete", || store.admin().damages().is_empty());
        assert_eq!(store.groups().committed_offset("g", "t", 3), place);
        let appended = store.log().append(&[message("t", 3, b"next", b"")]).unwrap();
        assert_eq!(appended.locations[0].queue_offset, 2 * IN_FILE + 7, "no offset is assigned twice");
        settle(&store);
        assert_eq!(bodies(&store, "t", 3).len() as u64, 2 * IN_FILE + 8);
        store.close().unwrap();
        assert!(open(&disk).admin().recovery().is_clean);
    }
}

#[test]
fn a_topic_whose_directory_cannot_be_listed_opens_with_its_queues_set_aside() {
    for is_closed in [true, false] {
        let disk = FakeDisk::new();
        let store = open(&disk);
        send(&store, "t", 3, 2 * IN_FILE).unwrap();
        send(&store, "u", 0, 10).unwrap();
        settle(&store);
        let listed = Path::new(ROOT).join("ferromq/queues");
        wait_until("the queues are listed", || {
            disk.bytes(&listed).is_some_and(|bytes| bytes.contains(&b't'))
        });
        if is_closed {
            store.close().unwrap();
        }
        let disk = disk.after_crash(3);
        drop(store);
        let is_broken = break_directory(&disk, "consumequeue/t", &[Op::List, Op::Create, Op::Rename], EACCES);
        let store = open(&disk);
        assert_eq!(wrong(&store), queue_of_t(), "closed: {is_closed}");
        assert!(is_set_aside(&send(&store, "t", 3, 1).unwrap_err()));
        assert_eq!(bodies(&store, "u", 0).len(), 10);
        is_broken.store(false, Ordering::SeqCst);
        wait_until("the queue is complete", || store.admin().damages().is_empty());
        assert_eq!(bodies(&store, "t", 3).len() as u64, 2 * IN_FILE);
        let appended = store.log().append(&[message("t", 3, b"next", b"")]).unwrap();
        assert_eq!(appended.locations[0].queue_offset, 2 * IN_FILE);
    }
}

#[test]
fn a_small_file_that_cannot_be_written_blocks_neither_checkpoint_nor_retention() {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(1_700_000_000_000));
    let config = StoreConfig { commit_log_file_size: 8 << 10, ..asynchronous() };
    let store = MessageStore::open_on(disk.clone(), Path::new(ROOT), config, clock.clone()).unwrap();
    let _broken = break_directory(&disk, "ferromq/flushed", &[Op::Write], EACCES);
    let body = [1; 500];
    let batch: Vec<_> = (0..40).map(|_| message("t", 3, &body, b"")).collect();
    store.log().append(&batch).unwrap();
    settle(&store);
    let listed = Path::new(ROOT).join("ferromq/queues");
    wait_until("the queues are listed", || disk.bytes(&listed).is_some_and(|bytes| bytes.contains(&b't')));
    clock.advance(4 * 24 * 3_600_000);
    store.admin().clean(true);
    assert!(store.admin().stats().cleaning.total.removed_files > 1, "{:?}", store.admin().stats().cleaning);
}

#[test]
fn a_queue_set_aside_is_rebuilt_at_the_next_open_also_after_a_crash() {
    for seed in 0..6 {
        let disk = FakeDisk::new();
        let store = open(&disk);
        send(&store, "t", 3, 10).unwrap();
        settle(&store);
        let is_broken = break_directory(&disk, "consumequeue/t/3", WRITING, EACCES);
        let batch: Vec<_> = (0..2 * IN_FILE).map(|_| message("t", 3, b"more", b"")).collect();
        store.log().append(&batch).unwrap();
        settle(&store);
        assert_eq!(wrong(&store), queue_of_t());
        send(&store, "u", 0, 5).unwrap();
        settle(&store);
        let left = if seed % 2 == 0 {
            store.close().unwrap();
            disk.clone()
        } else {
            common::flush_now(&store);
            disk.crash(seed)
        };
        is_broken.store(false, Ordering::SeqCst);
        drop(store);
        let store = open(&left);
        assert_eq!(store.admin().damages(), []);
        assert_eq!(bodies(&store, "t", 3).len() as u64, 10 + 2 * IN_FILE, "seed {seed}");
        assert_eq!(bodies(&store, "u", 0).len(), 5);
    }
}

#[test]
fn entries_not_flushed_when_their_queue_was_set_aside_are_rebuilt_after_a_power_loss() {
    for seed in 0..6 {
        let disk = FakeDisk::new();
        let store = open(&disk);
        send(&store, "t", 3, IN_FILE / 2).unwrap();
        store.close().unwrap();
        drop(store);
        let store = open(&disk);
        send(&store, "t", 3, IN_FILE / 2).unwrap();
        settle(&store);
        let is_broken = break_directory(&disk, "consumequeue/t/3", WRITING, EACCES);
        send(&store, "t", 3, 1).unwrap();
        settle(&store);
        assert_eq!(wrong(&store), queue_of_t());
        // Its checkpoint counts only entries on disk, and so does the next open.
        store.close().unwrap();
        drop(store);
        is_broken.store(false, Ordering::SeqCst);
        let store = open(&disk);
        assert_eq!(bodies(&store, "t", 3).len() as u64, IN_FILE + 1);
        let left = disk.crash(seed);
        drop(store);
        assert_eq!(bodies(&open(&left), "t", 3).len() as u64, IN_FILE + 1, "seed {seed}");
    }
}

#[test]
fn a_queue_with_a_failed_flush_is_rewritten_before_a_checkpoint_counts_it() {
    let disk = FakeDisk::new();
    let store = open(&disk);
    send(&store, "t", 3, 10).unwrap();
    store.close().unwrap();
    drop(store);
    let store = open(&disk);
    let is_broken = break_directory(&disk, "consumequeue/t/3", &[Op::Flush], EIO);
    send(&store, "t", 3, 10).unwrap();
    settle(&store);
    wait_until("the checkpoint meets it", || store.admin().stats().set_aside_queues == 1);
    is_broken.store(false, Ordering::SeqCst);
    wait_until("the queue is complete", || store.admin().damages().is_empty());
    send(&store, "t", 3, 1).unwrap();
    settle(&store);
    store.close().unwrap();
    let left = disk.crash(1);
    assert_eq!(bodies(&open(&left), "t", 3).len(), 21);
}

#[test]
fn a_queue_restored_during_a_checkpoint_is_not_counted_before_it_is_flushed() {
    let disk = FakeDisk::new();
    let store = open(&disk);
    send(&store, "t", 3, 10).unwrap();
    store.close().unwrap();
    drop(store);
    let store = open(&disk);
    // Queue t fails its first flush and is never flushed again. Queue u is new: the list of queues, which is held back,
    // is written later in the same checkpoint.
    let (failed, seen, released, again) = <(Signal, Signal, Signal, Signal)>::default();
    let hooked = [&failed, &seen, &released, &again].map(Arc::clone);
    disk.set_hook(move |op, path| {
        let [failed, seen, released, again] = &hooked;
        let is_aside = failed.load(Ordering::SeqCst) && !seen.load(Ordering::SeqCst);
        if op == Op::Write && path.starts_with("/store/consumequeue/t") && is_aside {
            return Err(io::Error::from_raw_os_error(EACCES));
        }
        if op == Op::Flush && path.starts_with("/store/consumequeue/t") {
            if !failed.swap(true, Ordering::SeqCst) {
                return Err(io::Error::from_raw_os_error(EIO));
            }
            again.store(true, Ordering::SeqCst);
            return Err(io::Error::from_raw_os_error(EMFILE));
        }
        if op == Op::Replace && path == Path::new("/store/ferromq/queues") {
            wait_until("the checkpoint may end", || released.load(Ordering::SeqCst));
        }
        Ok(())
    });
    let batch: Vec<_> =
        (0..10).map(|_| message("t", 3, b"more", b"")).chain([message("u", 0, b"u", b"")]).collect();
    store.log().append(&batch).unwrap();
    wait_until("a flush failed", || {
        failed.load(Ordering::SeqCst) && store.admin().stats().set_aside_queues == 1
    });
    seen.store(true, Ordering::SeqCst);
    wait_until("the queue is complete", || store.admin().damages().is_empty());
    released.store(true, Ordering::SeqCst);
    wait_until("the next checkpoint begins", || again.load(Ordering::SeqCst));
    for seed in 0..20 {
        let left = open(&disk.after_crash(seed));
        assert_eq!(bodies(&left, "t", 3).len(), 20, "seed {seed}");
        assert_eq!(bodies(&left, "u", 0).len(), 1, "seed {seed}");
    }
}

#[test]
fn an_index_that_cannot_be_written_or_opened_stops_nothing_and_is_complete_later() {
    let disk = FakeDisk::new();
    let store = open(&disk);
    send(&store, "u", 0, 5).unwrap();
    settle(&store);
    let is_broken = break_directory(&disk, "index", &[Op::Create, Op::Write], EACCES);
    send(&store, "t", 3, 5).unwrap();
    settle(&store);
    assert_eq!(bodies(&store, "t", 3).len(), 5);
    assert_eq!(wrong(&store), [(Path::new(ROOT).join("index"), DamageReason::SetAside)]);
    let found = |store: &MessageStore<FakeDisk>, key: &str| {
        store.queues().query_by_key(key.split('-').next().unwrap(), key, 10, 0, i64::MAX).messages.len()
    };
    assert_eq!((found(&store, "u-4"), found(&store, "t-4")), (1, 0));
    is_broken.store(false, Ordering::SeqCst);
    wait_until("the index is complete", || store.admin().damages().is_empty());
    assert_eq!((found(&store, "u-4"), found(&store, "t-0"), found(&store, "t-4")), (1, 1, 1));
    store.close().unwrap();
    drop(store);

    let is_broken = break_directory(&disk, "index", &[Op::Open], EACCES);
    let store = open(&disk);
    assert_eq!(wrong(&store), [(Path::new(ROOT).join("index"), DamageReason::SetAside)]);
    send(&store, "v", 0, 5).unwrap();
    settle(&store);
    assert_eq!(bodies(&store, "v", 0).len(), 5);
    is_broken.store(false, Ordering::SeqCst);
    wait_until("the index is complete", || store.admin().damages().is_empty());
    assert_eq!((found(&store, "u-4"), found(&store, "t-0"), found(&store, "v-4")), (1, 1, 1));
    store.close().unwrap();
    assert!(open(&disk).admin().recovery().is_clean);
}

#[test]
fn messages_that_retention_deletes_from_a_queue_set_aside_are_reported_by_queue_offset() {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(1_700_000_000_000));
    let config =
        StoreConfig { commit_log_file_size: 8 << 10, retention: Retention::default(), ..asynchronous() };
    let store = MessageStore::open_on(disk.clone(), Path::new(ROOT), config, clock.clone()).unwrap();
    send(&store, "t", 3, 45).unwrap();
    settle(&store);
    let is_broken = break_directory(&disk, "consumequeue/t/3", WRITING, EACCES);
    let body = [1; 500];
    let batch: Vec<_> = (0..40).map(|_| message("t", 3, &body, b"")).collect();
    store.log().append(&batch).unwrap();
    settle(&store);
    assert_eq!(store.admin().stats().set_aside_queues, 1);
    common::flush_now(&store);
    clock.advance(4 * 24 * 3_600_000);
    store.admin().clean(true);
    assert!(store.admin().stats().cleaning.total.removed_files > 1);
    is_broken.store(false, Ordering::SeqCst);
    wait_until("the queue continues", || store.admin().stats().set_aside_queues == 0);
    let first = store.queues().min_offset("t", 3);
    assert!(first > 45, "{first}");
    assert_eq!(store.queues().max_offset("t", 3), 85);
    assert_eq!(bodies(&store, "t", 3).len() as u64, 85 - first);
    let reason = DamageReason::Removed { first: 45, count: first - 45 };
    assert_eq!(wrong(&store), [(Path::new(ROOT).join("consumequeue/t/3"), reason)]);
}

#[test]
fn a_due_message_whose_queue_is_set_aside_blocks_no_other_and_is_delivered_later() {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(1_700_000_000_000));
    let store = MessageStore::open_on(disk.clone(), Path::new(ROOT), asynchronous(), clock.clone()).unwrap();
    store.delayed().start_schedule().unwrap();
    delays::send(&store, "t", 3, "broken", 1);
    delays::send(&store, "u", 0, "sound", 1);
    let is_broken = break_directory(&disk, "consumequeue/t/3", WRITING, EACCES);
    send(&store, "t", 3, 1).unwrap();
    settle(&store);
    assert_eq!(wrong(&store), queue_of_t());
    clock.advance(1_000);
    delays::delivered(&store, 1, 2);
    assert_eq!(delays::texts(&store, "u", 0), ["sound"]);
    is_broken.store(false, Ordering::SeqCst);
    wait_until("the queue is complete", || store.admin().damages().is_empty());
    // It waits again, as with a closed queue.
    clock.advance(5_000);
    delays::delivered(&store, 2, 1);
    assert_eq!(delays::texts(&store, "t", 3), ["0", "broken"]);
}

#[test]
fn a_due_message_is_not_given_up_at_any_age_while_its_queue_is_set_aside() {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(common::timers::START));
    let mut config = StoreConfig { delay_levels: "1s".parse().unwrap(), ..common::timers::config() };
    config.retention.age = Some(Duration::from_millis(1));
    let store = MessageStore::open_on(disk.clone(), Path::new(ROOT), config, clock.clone()).unwrap();
    store.delayed().start_schedule().unwrap();
    delays::send(&store, "t", 3, "delayed", 1);
    let is_broken = break_directory(&disk, "consumequeue/t", WRITING, EACCES);
    send(&store, "t", 3, 1).unwrap();
    send(&store, "t", 0, 1).unwrap();
    settle(&store);
    common::timers::put(&store, "t", "timed", common::timers::START + 1_000, false);
    clock.advance(2_000);
    delays::delivered(&store, 1, 1);
    wait_until("the timed message is put back", || {
        let timer = store.admin().stats().timer;
        timer.put_back + timer.undeliverable > 0
    });
    assert_eq!(
        (store.admin().stats().schedule.undeliverable, store.admin().stats().timer.undeliverable),
        (0, 0)
    );
    is_broken.store(false, Ordering::SeqCst);
    wait_until("the queues are complete", || store.admin().damages().is_empty());
    common::timers::deliver_all(&store, &clock, common::timers::START + 120_000);
    wait_until("the delayed message is delivered", || delays::texts(&store, "t", 3).len() > 1);
    assert_eq!(delays::texts(&store, "t", 3), ["0", "delayed"]);
    assert_eq!(delays::texts(&store, "t", 0), ["0", "timed"]);
}

#[test]
fn a_topic_that_is_deleted_while_a_queue_is_set_aside_stays_deleted() {
    let disk = FakeDisk::new();
    let store = open(&disk);
    send(&store, "t", 3, IN_FILE).unwrap();
    settle(&store);
    let is_broken = break_directory(&disk, "consumequeue/t/3", WRITING, EACCES);
    let batch: Vec<_> = (0..5).map(|_| message("t", 3, b"more", b"")).collect();
    store.log().append(&batch).unwrap();
    settle(&store);
    assert_eq!(wrong(&store), queue_of_t());
    store.admin().delete_topic("t").unwrap();
    is_broken.store(false, Ordering::SeqCst);
    wait_until("the queue is complete", || store.admin().damages().is_empty());
    assert_eq!(store.queues().get("t", 3, 0, 1, 1 << 20, ALL).status, GetStatus::NoMatchedLogicQueue);
    let appended = store.log().append(&[message("t", 3, b"anew", b"")]).unwrap();
    assert_eq!(appended.locations[0].queue_offset, IN_FILE + 5);
    settle(&store);
    assert_eq!(bodies(&store, "t", 3), [b"anew"]);
    store.close().unwrap();
    assert_eq!(bodies(&open(&disk), "t", 3), [b"anew"]);
}

#[test]
fn a_stalled_dispatch_refuses_messages_until_it_continues() {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(1_700_000_000_000));
    let store =
        Arc::new(MessageStore::open_on(disk, Path::new(ROOT), asynchronous(), clock.clone()).unwrap());
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    store.queues().on_arrival(move |_| {
        let _ = held.lock().unwrap().recv();
    });
    send(&store, "t", 0, 1).unwrap();
    wait_until("the first is dispatched", || store.queues().max_offset("t", 0) == 1);
    send(&store, "t", 0, 1).unwrap();
    assert_eq!(store.admin().stats().dispatch_stalled_ms, 0);
    wait_until("messages are refused", || {
        clock.advance(4_000);
        matches!(
            store.log().append(&[message("t", 0, b"x", b"")]),
            Err(StoreError::DispatchStalled { stalled_ms: 10_000.., .. })
        )
    });
    assert!(store.admin().stats().dispatch_stalled_ms >= 10_000);
    drop(release);
    wait_until("messages are accepted again", || send(&store, "t", 0, 1).is_ok());
    settle(&store);
    assert_eq!(store.admin().stats().dispatch_stalled_ms, 0);
    assert_ne!(store.queues().get("t", 0, 0, 32, 1 << 20, ALL).status, GetStatus::NoMessageInQueue);
}
