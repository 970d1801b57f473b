//! Leased messages that the log no longer holds, or that cannot be read for a while.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{
    fs, io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use common::{
    ALL, asynchronous,
    fake_disk::{FakeDisk, Op},
    message, settle, synchronous,
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    files::{Disk, Region},
    progress::{Begin, Leased, Ordered, ReceiveRequest},
    read::TransferLimits,
    time::Clock,
};

const START: i64 = 1_700_000_000_000;
const LEASE: i64 = 10_000;

fn receive<D: Disk>(store: &MessageStore<D>, in_order: bool, max_count: usize) -> Vec<Leased<D::Region>> {
    let request = ReceiveRequest {
        group: "g",
        topic: "t",
        queue_count: 1,
        first_queue: 0,
        max_count,
        max_bytes: 4 << 20,
        invisible_ms: LEASE,
        filter: ALL,
        begin: Begin::AtMin,
        order: in_order.then_some(Ordered::default()),
        max_attempts: 0,
        by_priority: false,
        limits: TransferLimits::NONE,
    };
    common::receive(store, &request).unwrap().messages
}

fn seen<R: Region>(messages: &[Leased<R>]) -> Vec<(u64, u32)> {
    messages.iter().map(|leased| (leased.handle.queue_offset, leased.attempt)).collect()
}

#[test]
fn a_leased_message_with_a_damaged_record_loses_its_lease_and_blocks_nothing() {
    for in_order in [false, true] {
        let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
        let store = MessageStore::open(directory.path(), asynchronous(), clock.clone()).unwrap();
        let appended = store.log().append(&vec![message("t", 0, b"x", b""); 4]).unwrap();
        settle(&store);
        assert_eq!(receive(&store, in_order, 2).len(), 2);
        // Its head names another place.
        let file = directory.path().join("commitlog").join("0".repeat(20));
        let file = fs::File::options().write(true).open(file).unwrap();
        file.write_all_at(&7u64.to_be_bytes(), appended.locations[0].physical_offset + 28).unwrap();
        clock.advance(LEASE);
        let again = receive(&store, in_order, 2);
        assert_eq!(seen(&again), [(1, 2), (2, 1)], "in order: {in_order}");
        assert_eq!(store.admin().stats().gone_leases, 1);
        for leased in &again {
            store.groups().ack("g", "t", &leased.handle).unwrap();
        }
        assert_eq!(store.groups().committed_offset("g", "t", 0), Some(3), "in order: {in_order}");
        assert_eq!(seen(&receive(&store, in_order, 2)), [(3, 1)]);
    }
}

#[test]
fn a_leased_message_that_is_unreadable_for_a_while_keeps_its_place_handle_and_attempt() {
    for in_order in [false, true] {
        let (disk, clock) = (FakeDisk::new(), Clock::manual(START));
        let config = StoreConfig { mapped_bytes: 0, ..synchronous() };
        let store = MessageStore::open_on(disk.clone(), Path::new("/store"), config, clock.clone()).unwrap();
        // Two of them in the first file, and enough after them that reading others closes it.
        let body = vec![b'x'; 30_000];
        (0..12).for_each(|_| drop(store.log().append(&[message("t", 0, &body, b"")]).unwrap()));
        settle(&store);
        let first = receive(&store, in_order, 1);
        assert_eq!(seen(&first), [(0, 1)]);
        // A record keeps its file open.
        let old = first[0].handle;
        drop(first);
        (4..12).for_each(|at| drop(store.queues().get("t", 0, at, 1, usize::MAX, ALL)));
        let is_broken = Arc::new(AtomicBool::new(true));
        let broken = Arc::clone(&is_broken);
        disk.set_hook(move |op, path| {
            let is_first = path.ends_with("0".repeat(20)) && path.starts_with("/store/commitlog");
            match op == Op::Open && is_first && broken.load(Ordering::SeqCst) {
                true => Err(io::Error::from_raw_os_error(24)),
                false => Ok(()),
            }
        });
        clock.advance(LEASE);
        // In order, no later message comes before it.
        let meanwhile = receive(&store, in_order, 1);
        assert_eq!(seen(&meanwhile), [], "in order: {in_order}");
        is_broken.store(false, Ordering::SeqCst);
        clock.advance(1_000);
        let again = receive(&store, in_order, 1);
        assert_eq!(seen(&again), [(0, 2)], "in order: {in_order}");
        assert!(matches!(store.groups().ack("g", "t", &old), Err(StoreError::StaleReceipt)));
        store.groups().ack("g", "t", &again[0].handle).unwrap();
        assert_eq!(store.admin().stats().gone_leases, 0);
    }
}
