//! Disk faults at every place where the store uses the disk, once or until repaired: no acknowledged message is lost,
//! no torn one is served, and the store continues or reports why not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use common::{
    asynchronous, bodies,
    fake_disk::{FakeDisk, Op},
    message, named, settle, small, synchronous, wait_until,
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError, files::Disk, log::FlushPolicy, read::GetStatus,
    record::MessageView, time::Clock,
};

const ROOT: &str = "/store";
const EIO: i32 = 5;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Os(i32),
    /// Half of the bytes are written, then the error comes; other operations fail with EIO.
    ShortWrite,
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Self::Os(code) => io::Error::from_raw_os_error(code),
            Self::ShortWrite => io::ErrorKind::WriteZero.into(),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    fault: Fault,
    /// The number of the operation that fails, from 0.
    at: u64,
    /// How many operations fail from there on.
    count: u64,
}

/// Acknowledged messages by queue offset.
type Promised = BTreeMap<u64, Vec<u8>>;
/// Operations, each with the part of the store that called it.
type Sites = BTreeSet<(String, &'static str)>;

fn open(disk: &FakeDisk, config: &StoreConfig) -> Result<MessageStore<FakeDisk>, StoreError> {
    MessageStore::open_on(disk.clone(), Path::new(ROOT), config.clone(), Clock::manual(1_700_000_000_000))
}

fn part_of(path: &Path) -> &'static str {
    let parts = ["commitlog", "consumequeue", "index", "checkpoint", "abort", "ferromq", "config", "lock"];
    let names: Vec<_> =
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    parts.into_iter().find(|part| names.iter().any(|name| name.starts_with(part))).unwrap_or("root")
}

/// Runs a store with one fault: opens, sends, commits an offset, closes. Returns the number of operations.
fn live(disk: &FakeDisk, config: &StoreConfig, plan: Plan, promised: &mut Promised) -> (u64, Sites) {
    let (ops, sites) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Sites::new())));
    let (counted, seen) = (Arc::clone(&ops), Arc::clone(&sites));
    disk.set_hook(move |op, path| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        seen.lock().unwrap().insert((format!("{op:?}"), part_of(path)));
        if (plan.at..plan.at.saturating_add(plan.count)).contains(&number) {
            return Err(plan.fault.error());
        }
        Ok(())
    });
    if let Ok(store) = open(disk, config) {
        send(&store, promised);
        let _ = store.groups().commit_offset("g", "t", 0, promised.len() as u64 / 2);
        serves(&store, promised, &format!("{plan:?}, alive"));
        let _ = store.close();
    }
    disk.clear_hook();
    let seen = sites.lock().unwrap().clone();
    (ops.load(Ordering::SeqCst), seen)
}

/// Sends single messages and batches over several files. Adds the acknowledged ones to `promised`.
fn send(store: &MessageStore<FakeDisk>, promised: &mut Promised) {
    let first = promised.len() as u8;
    for number in 0..24u8 {
        let key = format!("k{}-{number}", first);
        let (body, properties) = (vec![number; 200 + usize::from(number) * 90], named(&key, "tag"));
        let batch = [message("t", 0, &body, &properties), message("t", 0, b"second", b"")];
        let batch = &batch[..1 + usize::from(number % 2)];
        let Ok(appended) = store.log().append(batch) else { continue };
        if store.log().wait_durable(appended.end).is_err() {
            continue;
        }
        for (location, message) in appended.locations.iter().zip(batch) {
            let before = promised.insert(location.queue_offset, message.body.to_vec());
            assert_eq!(before, None, "queue offset {} was assigned twice", location.queue_offset);
        }
    }
}

/// Checks that every message served is whole and in its place, and that readers see the visible promised messages.
fn serves(store: &MessageStore<FakeDisk>, promised: &Promised, what: &str) {
    let end = store.queues().max_offset("t", 0);
    let mut at = store.queues().min_offset("t", 0);
    while at < end {
        let found = store.queues().get("t", 0, at, 32, usize::MAX, common::ALL);
        if found.status == GetStatus::QueueClosed {
            // Its files could not be read.
            return;
        }
        for (queue_offset, record) in &found.messages {
            let view =
                MessageView::decode(record.bytes(), true).unwrap_or_else(|why| panic!("{what}: {why}"));
            assert_eq!(view.queue_offset, *queue_offset, "{what}");
            if let Some(body) = promised.get(queue_offset) {
                assert_eq!(view.body, &body[..], "{what}: at {queue_offset}");
            }
        }
        assert!(found.next_offset > at, "{what}: stands still at {at}");
        at = found.next_offset;
    }
}

fn check(store: &MessageStore<FakeDisk>, promised: &Promised, what: &str) {
    let stored = bodies(store, "t", 0);
    for (queue_offset, body) in promised {
        assert_eq!(stored.get(*queue_offset as usize), Some(body), "{what}: at {queue_offset}");
    }
}

/// Runs the store with a fault at every operation, or at some of them. Returns the places reached.
fn run(config: &StoreConfig, fault: Fault, count: u64, step: u64) -> Sites {
    let mut sites = Sites::new();
    let mut at = 0;
    loop {
        let plan = Plan { fault, at, count };
        let disk = FakeDisk::new();
        let mut promised = Promised::new();
        // The first run writes a store, so that the second one also recovers.
        live(&disk, config, Plan { at: u64::MAX, ..plan }, &mut promised);
        let sound = promised.len();
        assert!(sound > 30, "a repaired disk stores everything");
        let (ops, seen) = live(&disk, config, plan, &mut promised);
        sites.extend(seen);
        let what = format!("{config:?} {plan:?}");
        let store = open(&disk, config).unwrap_or_else(|error| panic!("repaired, {what}: {error}"));
        check(&store, &promised, &what);
        let before = promised.len();
        send(&store, &mut promised);
        assert!(promised.len() > before + 30, "{what}: a repaired store takes everything");
        settle(&store);
        check(&store, &promised, &what);
        // A power loss takes no acknowledged message.
        let is_synchronous = config.flush.is_synchronous();
        let left = disk.crash(at);
        drop(store);
        if is_synchronous {
            let store = open(&left, config).unwrap_or_else(|error| panic!("after a crash, {what}: {error}"));
            check(&store, &promised, &format!("crashed, {what}"));
        }
        if at > ops {
            return sites;
        }
        at += step;
    }
}

/// Distance between faults: 1 tries every operation (`FERROMQ_FAULT_STEP=1` in a long run).
fn step() -> u64 {
    std::env::var("FERROMQ_FAULT_STEP").ok().and_then(|step| step.parse().ok()).unwrap_or(3)
}

#[test]
fn an_operation_that_fails_once_loses_no_acknowledged_message() {
    let each = small(FlushPolicy::Each);
    for (config, fault) in [
        (synchronous(), Fault::Os(EIO)),
        (synchronous(), Fault::ShortWrite),
        (asynchronous(), Fault::Os(EIO)),
        (asynchronous(), Fault::Os(ENOSPC)),
        (each, Fault::Os(ENOSPC)),
    ] {
        run(&config, fault, 1, step());
    }
}

#[test]
fn a_disk_that_fails_until_repaired_loses_no_acknowledged_message() {
    for (config, fault) in [(synchronous(), Fault::Os(ENOSPC)), (asynchronous(), Fault::Os(EIO))] {
        run(&config, fault, u64::MAX, step() * 2);
    }
}

#[test]
fn faults_reach_every_part_of_the_store() {
    let config = synchronous();
    let disk = FakeDisk::new();
    let plan = Plan { fault: Fault::Os(EIO), at: u64::MAX, count: 0 };
    let mut promised = Promised::new();
    let mut sites = Sites::new();
    for _ in 0..2 {
        sites.extend(live(&disk, &config, plan, &mut promised).1);
    }
    for (op, part) in [
        ("Create", "commitlog"),
        ("Rename", "commitlog"),
        ("Open", "commitlog"),
        ("Write", "commitlog"),
        ("Flush", "commitlog"),
        ("SyncDir", "commitlog"),
        ("List", "commitlog"),
        ("Write", "consumequeue"),
        ("Flush", "consumequeue"),
        ("SyncDir", "consumequeue"),
        ("Write", "index"),
        ("Flush", "index"),
        ("Write", "checkpoint"),
        ("Flush", "checkpoint"),
        ("Replace", "abort"),
        ("Remove", "abort"),
        ("Replace", "ferromq"),
        ("Replace", "config"),
        ("ReadFile", "config"),
        ("ReadAt", "checkpoint"),
        ("FreeSpace", "commitlog"),
        ("Lock", "lock"),
    ] {
        assert!(sites.contains(&(op.to_owned(), part)), "no {op} in {part}: {sites:?}");
    }
}

#[test]
fn a_file_that_cannot_be_opened_fails_the_open_and_does_not_count_as_missing() {
    for (is_closed, abort) in [(false, None), (false, Some("4711")), (true, None), (true, Some("4711"))] {
        let (disk, config) = (FakeDisk::new(), synchronous());
        let mut promised = Promised::new();
        let store = open(&disk, &config).unwrap();
        (0..8).for_each(|_| send(&store, &mut promised));
        settle(&store);
        if is_closed {
            store.close().unwrap();
        }
        let base = disk.crash(7);
        if let Some(abort) = abort {
            base.replace_file(&Path::new(ROOT).join("abort"), abort.as_bytes()).unwrap();
            base.sync_dir(Path::new(ROOT)).unwrap();
        }
        let sound = base.after_crash(0);
        drop(open(&sound, &config).unwrap());
        let paths: BTreeSet<_> = sound.opened().into_iter().map(|(path, _)| path).collect();
        assert!(
            paths.iter().filter(|path| part_of(path) == "commitlog").count() > usize::from(!is_closed) * 2
        );
        for (path, number) in paths.iter().flat_map(|path| (0..4).map(move |number| (path, number))) {
            let left = base.after_crash(0);
            let (failing, opened) = (path.clone(), AtomicU64::new(0));
            left.set_hook(move |op, path| {
                let fails =
                    op == Op::Open && *path == failing && opened.fetch_add(1, Ordering::SeqCst) == number;
                if fails { Err(io::Error::from_raw_os_error(EMFILE)) } else { Ok(()) }
            });
            let what = format!("{}, its opening {number}, closed: {is_closed}, {abort:?}", path.display());
            let opened = open(&left, &config);
            left.clear_hook();
            if let Ok(store) = opened {
                wait_until("the queues set aside are rebuilt", || {
                    store.admin().stats().set_aside_queues == 0
                });
                wait_until("the index is back", || store.admin().damages().is_empty());
                assert_eq!(store.admin().damages(), [], "{what}");
                assert_eq!(store.admin().recovery().cut_messages, 0, "{what}");
                check(&store, &promised, &what);
                continue;
            }
            let store = open(&left, &config).unwrap();
            assert_eq!(store.admin().damages(), [], "again: {what}");
            check(&store, &promised, &format!("again: {what}"));
        }
    }
}
