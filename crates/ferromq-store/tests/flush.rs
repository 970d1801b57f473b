//! When a send is acknowledged, what a failed flush does, and which messages are stored all or nothing.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::{
    io,
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use common::{
    ALL, append_durable, asynchronous, bodies,
    fake_disk::{FakeDisk, Op},
    message, settle, small, synchronous, wait_flushed, wait_until,
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError, log::FlushPolicy, record::NewMessage, time::Clock,
};

type Store = MessageStore<FakeDisk>;

fn open(disk: &FakeDisk, config: &StoreConfig) -> Store {
    MessageStore::open_on(disk.clone(), Path::new("/store"), config.clone(), Clock::manual(1_000_000))
        .unwrap()
}

fn with(policy: &str) -> StoreConfig {
    small(policy.parse().unwrap())
}

fn is_log(path: &Path) -> bool {
    path.to_string_lossy().contains("commitlog")
}

/// Holds back the flushes of the log while it is closed.
#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn closed_on(disk: &FakeDisk) -> Arc<Self> {
        Self::closed_before(disk, || Ok(()))
    }

    /// Once open, it ends each flush with `outcome`.
    fn closed_before(
        disk: &FakeDisk,
        outcome: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let gate = Arc::new(Self { is_closed: Mutex::new(true), opened: Condvar::new() });
        let held = Arc::clone(&gate);
        disk.set_hook(move |op, path| {
            if op == Op::Flush && is_log(path) {
                drop(held.opened.wait_while(held.is_closed.lock().unwrap(), |closed| *closed).unwrap());
                return outcome();
            }
            Ok(())
        });
        gate
    }

    fn open(&self) {
        *self.is_closed.lock().unwrap() = false;
        self.opened.notify_all();
    }
}

/// Appends a message. The receiver gets a value once it may be acknowledged.
fn answer(store: &Store, topic: &str) -> mpsc::Receiver<bool> {
    let (sender, receiver) = mpsc::channel();
    let appended = store.log().append(&[message(topic, 0, b"body", b"")]).unwrap();
    store.log().when_durable(appended.end, move |outcome| sender.send(outcome.is_ok()).unwrap());
    receiver
}

/// Has the zeros of the first file written and flushed, so that no append waits for them at a gate.
fn write_zeros_ahead(store: &Store) {
    append_durable(store, &[message("zeros", 0, b"", b"")]).unwrap();
    settle(store);
    wait_flushed(store); // `every N` acknowledges it before
}

fn is_answered(answer: &mpsc::Receiver<bool>) -> bool {
    answer.recv_timeout(Duration::from_secs(60)).unwrap()
}

#[test]
fn no_more_acknowledged_messages_are_unflushed_than_the_policy_allows() {
    let disk = FakeDisk::new();
    let store = open(&disk, &with("every 5"));
    let gate = Gate::closed_on(&disk);
    for _ in 0..5 {
        assert!(is_answered(&answer(&store, "t")), "answered once written");
    }
    let sixth = answer(&store, "t");
    let seventh = answer(&store, "t");
    assert!(sixth.recv_timeout(Duration::from_millis(50)).is_err(), "six messages could be lost");
    assert!(store.admin().stats().flushed_offset < store.admin().stats().max_physical_offset);
    gate.open();
    assert!(is_answered(&sixth) && is_answered(&seventh));
    // A batch of more than the threshold waits, whatever came before.
    let batch = [message("t", 0, b"a", b""); 6];
    let appended = append_durable(&store, &batch).unwrap();
    assert!(store.admin().stats().flushed_offset >= appended.end);
    settle(&store);
    assert_eq!(bodies(&store, "t", 0).len(), 13);
}

#[test]
fn a_threshold_holds_for_its_topic_alone_and_changes_while_the_store_runs() {
    let disk = FakeDisk::new();
    let store = open(&disk, &with("interval 3600s"));
    append_durable(&store, &[message("t", 0, b"before", b"")]).unwrap();
    store.admin().set_flush_every("t", Some(2)).unwrap();
    assert_eq!(
        store.admin().stats().flushed_offset,
        store.admin().stats().max_physical_offset,
        "earlier messages are flushed"
    );
    let gate = Gate::closed_on(&disk);
    assert!(is_answered(&answer(&store, "t")) && is_answered(&answer(&store, "t")));
    let third = answer(&store, "t");
    for _ in 0..100 {
        assert!(is_answered(&answer(&store, "other")));
    }
    assert!(third.recv_timeout(Duration::from_millis(50)).is_err());
    gate.open();
    assert!(is_answered(&third));
    store.admin().set_flush_every("t", None).unwrap();
    let gate = Gate::closed_on(&disk);
    for _ in 0..10 {
        assert!(is_answered(&answer(&store, "t")));
    }
    disk.clear_hook();
    assert!(matches!(store.admin().set_flush_every("t", Some(0)), Err(StoreError::Invalid { .. })));
    gate.open();
}

#[test]
fn each_append_has_a_flush_of_its_own() {
    let disk = FakeDisk::new();
    let store = open(&disk, &with("each"));
    let before = store.admin().stats().flushes;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                (0..10).for_each(|_| drop(append_durable(&store, &[message("t", 0, b"b", b"")]).unwrap()))
            });
        }
    });
    assert_eq!(store.admin().stats().flushes - before, 40);
    assert!(is_answered(&answer(&store, "t")), "also without a waiting thread");
}

#[test]
fn every_waiting_append_of_many_threads_is_answered_once_it_is_durable() {
    const THREADS: usize = 4;
    for (policy, count) in [("group", 2_000), ("each", 1_000)] {
        let disk = FakeDisk::new();
        let store = Arc::new(open(&disk, &with(policy)));
        let (sender, ended) = mpsc::channel();
        for queue_id in 0..THREADS {
            let (store, sender) = (Arc::clone(&store), sender.clone());
            std::thread::spawn(move || {
                for _ in 0..count {
                    let appended = store.log().append(&[message("t", queue_id as i32, b"b", b"")]).unwrap();
                    store.log().wait_durable(appended.end).unwrap();
                    assert!(store.admin().stats().flushed_offset >= appended.end);
                }
                sender.send(()).unwrap();
            });
        }
        for _ in 0..THREADS {
            // A thread that hangs does not end this test.
            let ended = ended.recv_timeout(Duration::from_secs(60));
            assert!(ended.is_ok(), "{policy}: an append was never answered");
        }
        settle(&store);
        for queue_id in 0..THREADS {
            assert_eq!(bodies(&store, "t", queue_id as u32).len(), count, "{policy}");
        }
    }
}

#[test]
fn a_close_answers_a_waiting_caller_by_the_last_flush() {
    for (policy, is_short) in [("group", false), ("each", false), ("group", true), ("each", true)] {
        let disk = FakeDisk::new();
        let store = Arc::new(open(&disk, &with(policy)));
        write_zeros_ahead(&store);
        // Out of file descriptors: nothing is flushed, and nothing is lost.
        let gate = Gate::closed_before(&disk, move || match is_short {
            true => Err(io::Error::from_raw_os_error(24)),
            false => Ok(()),
        });
        let end = store.log().append(&[message("t", 0, b"waits", b"")]).unwrap().end;
        let (sender, answer) = mpsc::channel();
        let waiting = Arc::clone(&store);
        std::thread::spawn(move || sender.send(waiting.log().wait_durable(end)).unwrap());
        let (sender, closed) = mpsc::channel();
        let closing = Arc::clone(&store);
        std::thread::spawn(move || sender.send(closing.close()).unwrap());
        wait_until("the close has begun", || {
            matches!(store.groups().commit_offset("g", "t", 0, 0), Err(StoreError::Closed))
        });
        assert!(
            answer.recv_timeout(Duration::from_millis(50)).is_err(),
            "{policy}: answered before its flush"
        );
        gate.open();
        let answer = answer.recv_timeout(Duration::from_secs(60)).unwrap();
        let closed = closed.recv_timeout(Duration::from_secs(60)).unwrap();
        if is_short {
            assert!(matches!(answer, Err(StoreError::Closed)), "{policy}: {answer:?}");
            assert!(closed.is_err(), "{policy}: the last flush was cut short");
        } else {
            answer.unwrap();
            closed.unwrap();
        }
        assert_eq!(store.log().wait_durable(end).is_ok(), !is_short, "{policy}: the same after the close");
    }
}

#[test]
fn a_callback_that_panics_leaves_later_appends_their_answers() {
    for policy in ["group", "each", "every 1"] {
        let disk = FakeDisk::new();
        let store = Arc::new(open(&disk, &with(policy)));
        write_zeros_ahead(&store);
        let gate = Gate::closed_on(&disk);
        if policy == "every 1" {
            assert!(is_answered(&answer(&store, "t")), "the limit is not reached");
        }
        let end = store.log().append(&[message("t", 0, b"panics", b"")]).unwrap().end;
        store.log().when_durable(end, |_| panic!("of this test"));
        let beside = answer(&store, "t");
        gate.open();
        assert!(is_answered(&beside), "{policy}: decided by the same flush");
        let (sender, later) = mpsc::channel();
        let appending = Arc::clone(&store);
        std::thread::spawn(move || {
            sender.send(append_durable(&appending, &[message("t", 0, b"later", b"")]).is_ok()).unwrap();
        });
        assert!(is_answered(&later), "{policy}");
        store.close().unwrap();
    }
}

#[test]
fn a_group_shares_a_flush() {
    let disk = FakeDisk::new();
    let store = open(&disk, &synchronous());
    write_zeros_ahead(&store);
    let gate = Gate::closed_on(&disk);
    let before = store.admin().stats().flushes;
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let appended = store.log().append(&[message("t", 0, b"b", b"")]).unwrap();
                written.fetch_add(1, Ordering::SeqCst);
                store.log().wait_durable(appended.end).unwrap();
            });
        }
        wait_until("all eight are written", || written.load(Ordering::SeqCst) == 8);
        gate.open();
    });
    assert!(
        store.admin().stats().flushes - before <= 2,
        "{} flushes",
        store.admin().stats().flushes - before
    );
}

#[test]
fn readers_keep_visible_messages_when_the_policy_becomes_synchronous_and_see_new_ones_once_flushed() {
    let disk = FakeDisk::new();
    let store = open(&disk, &with("interval 3600s"));
    store.log().append(&[message("t", 0, b"first", b"")]).unwrap();
    settle(&store);
    store.admin().set_flush(FlushPolicy::Group).unwrap();
    assert_eq!(bodies(&store, "t", 0).len(), 1);
    write_zeros_ahead(&store);
    let gate = Gate::closed_on(&disk);
    let second = answer(&store, "t");
    assert!(second.recv_timeout(Duration::from_millis(50)).is_err());
    assert_eq!(store.queues().max_offset("t", 0), 1);
    assert_eq!(store.queues().get("t", 0, 0, 32, usize::MAX, ALL).messages.len(), 1);
    gate.open();
    assert!(is_answered(&second));
    store.admin().set_flush("interval 3600s".parse().unwrap()).unwrap();
    let closed = Gate::closed_on(&disk);
    assert!(is_answered(&answer(&store, "t")), "answered once written again");
    closed.open();
    assert!(matches!(
        store.admin().set_flush(FlushPolicy::EveryN { count: 0, interval: Duration::from_secs(1) }),
        Err(StoreError::Invalid { .. })
    ));
}

#[test]
fn a_failed_flush_fails_waiting_appends_refuses_later_ones_and_reading_continues() {
    for policy in ["group", "each", "every 1"] {
        let disk = FakeDisk::new();
        let store = open(&disk, &with(policy));
        append_durable(&store, &[message("t", 0, b"kept", b"")]).unwrap();
        settle(&store);
        disk.set_hook(|op, path| {
            if op == Op::Flush && is_log(path) { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
        });
        // Large bodies are no exception.
        let body = vec![1; 40 << 10];
        let outcomes: Vec<bool> = std::thread::scope(|scope| {
            let senders: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| append_durable(&store, &[message("t", 0, &body, b"")])))
                .collect();
            senders
                .into_iter()
                .map(|sender| match sender.join().unwrap() {
                    Ok(_) => true,
                    Err(StoreError::NotDurable { cause }) => {
                        assert!(cause.contains("flush"), "{cause}");
                        false
                    }
                    // The zeros ahead could not be flushed: nothing was stored.
                    Err(StoreError::Poisoned | StoreError::Io { .. }) => false,
                    Err(other) => panic!("{policy}: {other}"),
                })
                .collect()
        });
        let answered = outcomes.iter().filter(|is_answered| **is_answered).count();
        assert!(answered <= usize::from(policy == "every 1"), "{policy}: {answered} answered");
        disk.clear_hook();
        assert!(matches!(append_durable(&store, &[message("t", 0, b"x", b"")]), Err(StoreError::Poisoned)));
        assert_eq!(
            store.queues().get("t", 0, 0, 1, usize::MAX, ALL).messages.len(),
            1,
            "{policy}: reading goes on"
        );
        let failed = store.admin().stats().failed_puts;
        assert!(failed.values().sum::<u64>() >= 4, "{policy}: {failed:?}");
        assert!(store.close().is_err());
        drop(store);
        let store = open(&disk, &with(policy));
        assert_eq!(bodies(&store, "t", 0)[0], b"kept");
    }
}

#[test]
fn a_flush_that_lacks_a_descriptor_or_memory_is_tried_again_and_poisons_nothing() {
    for (policy, code) in [("group", 24), ("each", 24), ("group", 23), ("group", 12), ("interval 10ms", 24)] {
        let disk = FakeDisk::new();
        let store = open(&disk, &with(policy));
        let (is_short, tries) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let (short, counted) = (Arc::clone(&is_short), Arc::clone(&tries));
        disk.set_hook(move |op, path| {
            if op == Op::SyncDir && is_log(path) && short.load(Ordering::SeqCst) {
                counted.fetch_add(1, Ordering::SeqCst);
                return Err(io::Error::from_raw_os_error(code));
            }
            Ok(())
        });
        let answers = [answer(&store, "t"), answer(&store, "t")];
        let is_synchronous = !policy.starts_with("interval");
        if is_synchronous {
            wait_until("tried again", || tries.load(Ordering::SeqCst) > 2);
        } else {
            store.admin().set_flush("interval 20ms".parse().unwrap()).unwrap_err();
        }
        assert_eq!(
            answers[0].try_recv().is_ok(),
            !is_synchronous,
            "{policy}: none is answered before its flush"
        );
        is_short.store(false, Ordering::SeqCst);
        let waiting = std::thread::scope(|scope| {
            let waits = scope.spawn(|| append_durable(&store, &[message("t", 0, b"third", b"")]).is_ok());
            waits.join().unwrap()
        });
        assert!(waiting, "{policy}");
        if is_synchronous {
            assert!(answers.iter().all(|answer| answer.recv().unwrap()), "{policy}, {code}");
        }
        settle(&store);
        assert_eq!(bodies(&store, "t", 0).len(), 3);
        store.close().unwrap();
    }
}

#[test]
fn few_dirty_pages_wait_for_the_thorough_flush() {
    let disk = FakeDisk::new();
    let flush = FlushPolicy::Interval {
        interval: Duration::from_millis(500),
        least_pages: 4,
        thorough: Duration::from_secs(10),
    };
    let clock = Clock::manual(1_000_000);
    let store = MessageStore::open_on(disk, Path::new("/store"), small(flush), clock.clone()).unwrap();
    let flushed_is = |goal: u64| {
        for _ in 0..10_000 {
            if store.admin().stats().flushed_offset == goal {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    };
    let begin = store.admin().stats().flushed_offset;
    let few = store.log().append(&[message("t", 0, &[1; 1000], b"")]).unwrap().end;
    clock.advance(600);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(store.admin().stats().flushed_offset, begin, "a page is not enough");
    clock.advance(10_000);
    assert!(flushed_is(few), "the thorough flush takes it");
    let many = store.log().append(&[message("t", 0, &[1; 20_000], b"")]).unwrap().end;
    clock.advance(600);
    assert!(flushed_is(many), "five pages are enough");
}

#[test]
fn an_atomic_append_is_complete_or_absent_after_a_crash_anywhere() {
    // Three records that cross the end of the file of 64 KiB.
    let large = vec![7; 30 << 10];
    let parts: [NewMessage<'_>; 3] =
        [message("t", 0, &large, b""), message("t", 0, &large, b""), message("t", 0, b"last", b"")];
    let mut seen = [false; 2];
    for op in 1..60 {
        for (seed, config) in [(op, asynchronous()), (op + 1000, synchronous())] {
            let disk = FakeDisk::new();
            let store = open(&disk, &config);
            append_durable(&store, &[message("t", 0, b"first", b"")]).unwrap();
            store.admin().set_flush(FlushPolicy::Group).unwrap();
            store.admin().set_flush(config.flush).unwrap();
            disk.crash_at(op, seed);
            let appended =
                store.log().append_as_one(&parts).and_then(|appended| store.log().wait_durable(appended.end));
            let left = disk.crash(seed);
            drop(store);
            let store = open(&left, &config);
            let found = bodies(&store, "t", 0).len();
            assert!(found == 1 || found == 4, "operation {op}: {found} of 1 + 3 messages");
            assert!(
                found == 4 || appended.is_err() || !config.flush.is_synchronous(),
                "operation {op}: lost"
            );
            seen[usize::from(found == 4)] = true;
            append_durable(&store, &[message("t", 0, b"next", b"")]).unwrap();
            settle(&store);
            assert_eq!(bodies(&store, "t", 0).len(), found + 1);
        }
    }
    assert_eq!(seen, [true, true], "both outcomes were met");
}

#[test]
fn invalid_messages_are_refused_before_any_write_and_counted_by_reason() {
    let disk = FakeDisk::new();
    let store = open(&disk, &StoreConfig { max_message_size: 1000, ..asynchronous() });
    let (body, properties, topic) = (vec![1; 1001], vec![b'p'; 40_000], "t".repeat(256));
    // The store's threads make the first file while appends write into it.
    let writes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&writes);
    disk.set_hook(move |op, path| {
        counted.fetch_add(u64::from(op == Op::Write && is_log(path)), Ordering::SeqCst);
        Ok(())
    });
    let fine = message("t", 0, b"fine", b"");
    for (what, refused) in [
        ("message body", message("t", 0, &body, b"")),
        ("properties", message("t", 0, b"", &properties)),
        ("topic", message(&topic, 0, b"", b"")),
    ] {
        match store.log().append(&[fine, refused]) {
            Err(StoreError::TooLarge { what: told, .. }) => assert_eq!(told, what),
            other => panic!("{what}: {other:?}"),
        }
    }
    let batch = NewMessage { sys_flag: 128, ..fine };
    assert!(matches!(
        store.log().append(&[fine, batch]),
        Err(StoreError::Invalid { what: "system flag", .. })
    ));
    assert_eq!(store.admin().stats().max_physical_offset, 0);
    assert_eq!(writes.load(Ordering::SeqCst), 0, "something was written");
    let failed = store.admin().stats().failed_puts;
    assert_eq!((failed["too_large"], failed["invalid"]), (3, 1));
    // Bit 24 is the store's own.
    store.log().append(&[NewMessage { sys_flag: 1 << 24, ..fine }]).unwrap();
    settle(&store);
    let found = store.queues().get("t", 0, 0, 1, usize::MAX, ALL);
    let view = ferromq_store::record::MessageView::decode(found.messages[0].1.bytes(), true).unwrap();
    assert_eq!(view.sys_flag, 0);
}

#[test]
fn an_append_that_waits_for_its_flush_still_does_after_the_policy_changed() {
    for (before, after) in [
        ("group", "interval 3600s"),
        ("each", "every 5"),
        ("every 1", "interval 3600s"),
        ("every 1", "every 5"),
    ] {
        let disk = FakeDisk::new();
        let store = open(&disk, &with(before));
        write_zeros_ahead(&store);
        store.admin().set_flush(before.parse().unwrap()).unwrap();
        let gate = Gate::closed_on(&disk);
        let first = store.log().append(&[message("t", 0, b"first", b"")]).unwrap();
        let held = store.log().append(&[message("t", 0, b"held", b"")]).unwrap();
        assert!(held.end > first.end);
        std::thread::scope(|scope| {
            let change = scope.spawn(|| store.admin().set_flush(after.parse().unwrap()));
            wait_until("the policy has changed", || {
                let probe = store.log().append(&[message("t", 0, b"probe", b"")]).unwrap();
                store.log().durable_now(probe.end).is_some()
            });
            let (sender, answer) = mpsc::channel();
            store.log().when_durable(held.end, move |outcome| sender.send(outcome.is_ok()).unwrap());
            let is_early = answer.recv_timeout(Duration::from_millis(50)).is_ok();
            gate.open();
            assert!(!is_early, "{before} to {after}: answered before its flush");
            assert!(is_answered(&answer));
            change.join().unwrap().unwrap();
        });
        assert!(store.admin().stats().flushed_offset >= held.end);
    }
}

fn counted_puts(store: &Store) -> u64 {
    store.admin().put_times().iter().map(|(_, count)| count).sum()
}

#[test]
fn a_put_without_a_waiting_caller_is_counted_by_its_flush_and_a_failed_one_is_not() {
    let disk = FakeDisk::new();
    let store = open(&disk, &small(FlushPolicy::Group));
    let first = store.log().append(&[message("t", 0, b"x", b"")]).unwrap();
    let second = store.log().append(&[message("t", 0, b"x", b"")]).unwrap();
    let other = &store;
    // A thread other than that of the appends.
    std::thread::scope(|scope| {
        scope.spawn(move || other.log().wait_durable(second.end).unwrap()).join().unwrap()
    });
    assert_eq!((counted_puts(&store), first.end < second.end), (2, true));
    append_durable(&store, &[message("t", 0, b"x", b"")]).unwrap();
    assert_eq!(counted_puts(&store), 3);
    disk.set_hook(|op, path| match op == Op::Flush && is_log(path) {
        true => Err(io::Error::other("broken")),
        false => Ok(()),
    });
    assert!(append_durable(&store, &[message("t", 0, b"x", b"")]).is_err());
    assert_eq!(counted_puts(&store), 3);
}

#[test]
fn only_a_synchronous_policy_promises_the_disk_and_only_after_the_flush() {
    let disk = FakeDisk::new();
    let store = open(&disk, &with("interval 3600s"));
    let first = append_durable(&store, &[message("t", 0, b"a", b"")]).unwrap();
    assert!(!store.log().is_promised_on_disk(first.end));
    store.admin().set_flush("group".parse().unwrap()).unwrap();
    assert!(store.log().is_promised_on_disk(first.end));
    write_zeros_ahead(&store);
    let gate = Gate::closed_on(&disk);
    let second = store.log().append(&[message("t", 0, b"b", b"")]).unwrap();
    assert!(!store.log().is_promised_on_disk(second.end), "it is not on disk yet");
    gate.open();
    store.log().wait_durable(second.end).unwrap();
    assert!(store.log().is_promised_on_disk(second.end));
    store.admin().set_flush("interval 3600s".parse().unwrap()).unwrap();
    assert!(!store.log().is_promised_on_disk(second.end), "on disk, and no longer promised");
}

#[test]
fn a_flush_that_is_to_fail_stops_the_store_once() {
    let disk = FakeDisk::new();
    let store = open(&disk, &with("group"));
    append_durable(&store, &[message("t", 0, b"kept", b"")]).unwrap();
    settle(&store);
    store.admin().fail_next_flush();
    let failed = append_durable(&store, &[message("t", 0, b"lost", b"")]);
    assert!(matches!(failed, Err(StoreError::NotDurable { cause }) if cause.contains("a test made it fail")));
    assert!(matches!(append_durable(&store, &[message("t", 0, b"x", b"")]), Err(StoreError::Poisoned)));
    assert_eq!(bodies(&store, "t", 0), [b"kept".to_vec()]);
    assert!(store.close().is_err());
    drop(store);
    append_durable(&open(&disk, &with("group")), &[message("t", 0, b"again", b"")]).unwrap();
}
