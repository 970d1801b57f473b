//! Messages that the log holds but that cannot be read now: they wait, are reported, and come once they can be read.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use common::{
    ALL, asynchronous,
    fake_disk::{FakeDisk, Op},
    message, settle,
};
use ferromq_store::{
    MessageStore, StoreConfig,
    files::Region,
    filter::MessageFilter,
    log::DamageReason,
    progress::{Begin, Ordered, ReceiveRequest, Received},
    read::{GetRequest, GetResult, GetStatus, Source, TransferLimits},
    time::Clock,
};
use tracing::{Event, Metadata, Subscriber, span};

const START: i64 = 1_700_000_000_000;
const COUNT: usize = 200;

type Store = MessageStore<FakeDisk>;

/// A disk on which one operation on one file fails on demand.
struct Trouble {
    disk: FakeDisk,
    is_on: Arc<AtomicBool>,
    tries: Arc<AtomicUsize>,
}

impl Trouble {
    fn with(disk: &FakeDisk, op: Op, path: PathBuf) -> Self {
        let (is_on, tries) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let (on, tried) = (Arc::clone(&is_on), Arc::clone(&tries));
        disk.set_hook(move |asked, at| {
            if asked != op || at != path || !on.load(Ordering::SeqCst) {
                return Ok(());
            }
            tried.fetch_add(1, Ordering::SeqCst);
            Err(io::Error::from_raw_os_error(5))
        });
        Self { disk: disk.clone(), is_on, tries }
    }

    fn tries(&self) -> usize {
        self.tries.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.is_on.store(false, Ordering::SeqCst);
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        self.disk.clear_hook();
    }
}

fn log_file() -> PathBuf {
    Path::new("/store/commitlog").join(format!("{:020}", 0))
}

fn queue_file() -> PathBuf {
    Path::new("/store/consumequeue/t/0").join(format!("{:020}", 0))
}

/// A store with messages of 1 KB in queue 0, just opened: it has read none of the old files.
fn filled() -> (FakeDisk, Clock, Store) {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(START));
    let config = StoreConfig { mapped_bytes: 0, open_files: 1, ..asynchronous() };
    let open = || MessageStore::open_on(disk.clone(), Path::new("/store"), config.clone(), clock.clone());
    let store = open().unwrap();
    for _ in 0..COUNT {
        store.log().append(&[message("t", 0, &[7; 1_000], b"")]).unwrap();
    }
    settle(&store);
    store.close().unwrap();
    drop(store);
    let store = open().unwrap();
    // Reading other files closes the first ones.
    for offset in [70, 120, 190] {
        drop(read(&store, offset, Source::Anywhere));
    }
    disk.chill();
    (disk, clock, store)
}

fn disk_source() -> Source {
    Source::Disk(Instant::now() + Duration::from_secs(60))
}

fn read(store: &Store, offset: u64, source: Source) -> GetResult<impl Region + use<>> {
    let (topic, queue_id, max_count, max_bytes, filter) = ("t", 0, 4, 1 << 20, ALL);
    store.queues().get_from(&GetRequest {
        topic,
        queue_id,
        offset,
        max_count,
        max_bytes,
        filter,
        source,
        limits: TransferLimits::NONE,
    })
}

fn receive(store: &Store, order: Option<Ordered<'_>>) -> Received<impl Region + use<>> {
    let request = ReceiveRequest {
        group: "g",
        topic: "t",
        queue_count: 1,
        first_queue: 0,
        max_count: 1,
        max_bytes: 1 << 20,
        invisible_ms: 5_000,
        filter: ALL,
        begin: Begin::AtMin,
        order,
        max_attempts: 0,
        by_priority: false,
        limits: TransferLimits::NONE,
    };
    common::receive(store, &request).unwrap()
}

fn offsets(received: &Received<impl Region>) -> Vec<(u64, u32)> {
    received.messages.iter().map(|leased| (leased.handle.queue_offset, leased.attempt)).collect()
}

#[test]
fn a_read_ends_before_an_unreadable_message_and_the_file_counts_as_damaged_until_it_is_readable() {
    for (op, file) in [(Op::Open, log_file()), (Op::ReadAt, log_file()), (Op::Open, queue_file())] {
        let (disk, _clock, store) = filled();
        let trouble = Trouble::with(&disk, op, file.clone());
        for _ in 0..3 {
            let found = read(&store, 3, disk_source());
            assert_eq!(
                (found.status, found.next_offset),
                (GetStatus::MessageUnreadable, 3),
                "{op:?} {file:?}"
            );
            assert!(found.messages.is_empty() && !found.is_cold);
        }
        let damages = store.admin().damages();
        assert_eq!(damages.len(), 1, "{damages:?}");
        assert_eq!(damages[0].reason, DamageReason::Unreadable);
        assert!(file.starts_with(&damages[0].file), "{damages:?}");
        assert!(damages[0].reason.to_string().contains("cannot be read now"), "{:?}", damages[0]);
        assert_eq!(store.admin().stats().missed_gets.get(&GetStatus::MessageUnreadable), Some(&3));
        // The others are there.
        assert_eq!(read(&store, 190, disk_source()).messages.len(), 4);
        trouble.end();
        assert_eq!(read(&store, 3, disk_source()).messages.len(), 4);
        assert_eq!(store.admin().damages(), []);
    }
}

#[derive(Clone, Default)]
struct Lines(Arc<AtomicUsize>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().ends_with("unreadable_files")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_partly_readable_message_is_logged_once_by_a_filtered_read() {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(START));
    let open = || MessageStore::open_on(disk.clone(), Path::new("/store"), asynchronous(), clock.clone());
    let store = open().unwrap();
    store.log().append(&[message("t", 0, &[7; 100], b"TAGS\x01a\x02")]).unwrap();
    settle(&store);
    let filter = &MessageFilter::tags("a");
    let (topic, queue_id, offset, max_count, max_bytes) = ("t", 0, 0, 4, 1 << 20);
    let get = || {
        let source = disk_source();
        store
            .queues()
            .get_from(&GetRequest {
                topic,
                queue_id,
                offset,
                max_count,
                max_bytes,
                filter,
                source,
                limits: TransferLimits::NONE,
            })
            .status
    };
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        for _ in 0..3 {
            // Reads its head and its tail, and then all of it.
            let reads = AtomicUsize::new(0);
            disk.set_hook(move |op, _| {
                let is_third = op == Op::ReadAt && reads.fetch_add(1, Ordering::SeqCst) == 2;
                if is_third { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
            });
            assert_eq!(get(), GetStatus::MessageUnreadable);
        }
        assert_eq!(lines.0.load(Ordering::SeqCst), 1);
        disk.clear_hook();
        assert_eq!(get(), GetStatus::Found);
        assert_eq!(lines.0.load(Ordering::SeqCst), 2, "it can be read again");
    });
    assert_eq!(store.admin().damages(), []);
}

#[test]
fn a_damage_ends_even_without_another_read() {
    let (disk, _clock, store) = filled();
    let trouble = Trouble::with(&disk, Op::Open, log_file());
    drop(read(&store, 3, disk_source()));
    assert_eq!(store.admin().damages().len(), 1);
    trouble.end();
    assert_eq!(store.admin().damages(), []);
}

#[test]
fn a_group_waits_before_an_unreadable_message_and_retries_once_a_second() {
    for order in [None, Some(Ordered::default())] {
        let (disk, clock, store) = filled();
        let trouble = Trouble::with(&disk, Op::Open, log_file());
        assert_eq!(offsets(&receive(&store, order)), []);
        let tries = trouble.tries();
        assert!(tries > 0);
        for _ in 0..10 {
            let received = receive(&store, order);
            assert_eq!((offsets(&received), received.next_expiry_ms), (vec![], Some(START + 1_000)));
        }
        assert_eq!(trouble.tries(), tries, "the disk is asked again at once");
        assert_eq!(store.groups().ahead("g", "t", 0, Begin::AtMin).held_until_ms, Some(START + 1_000));
        assert_eq!(store.groups().committed_offset("g", "t", 0), Some(0));
        clock.advance(1_000);
        assert_eq!(offsets(&receive(&store, order)), []);
        assert!(trouble.tries() > tries);
        trouble.end();
        clock.advance(1_000);
        assert_eq!(offsets(&receive(&store, order)), [(0, 1)]);
        assert_eq!(store.admin().damages(), []);
    }
}

#[test]
fn a_received_message_that_becomes_unreadable_keeps_its_lease_and_attempts() {
    let (disk, clock, store) = filled();
    assert_eq!(offsets(&receive(&store, None)), [(0, 1)]);
    // Another file is opened, which closes this one.
    drop(read(&store, 70, Source::Anywhere));
    let trouble = Trouble::with(&disk, Op::Open, log_file());
    for _ in 0..3 {
        clock.advance(5_000);
        assert_eq!(offsets(&receive(&store, None)), []);
    }
    assert_eq!(store.admin().stats().gone_leases, 0);
    trouble.end();
    clock.advance(5_000);
    assert_eq!(offsets(&receive(&store, None)), [(0, 2)]);
}
