//! Large appends, which are written by few system calls: their records follow those of small ones, through several files,
//! and all of them go if one cannot be written.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use common::{
    append_durable, asynchronous, bodies, fake_disk::FakeDisk, fake_disk::Op, message, settle, small,
    synchronous,
};
use ferromq_store::{MessageStore, StoreConfig, StoreError, log::FlushPolicy, time::Clock};

/// Records with more parts than one system call takes.
const COUNT: usize = 500;

fn payloads(from: usize, count: usize) -> Vec<Vec<u8>> {
    (from..from + count).map(|number| format!("{number} ").repeat(4).into_bytes()).collect()
}

#[test]
fn records_of_large_and_small_appends_follow_each_other_through_several_files() {
    for config in [asynchronous(), synchronous(), small(FlushPolicy::Each)] {
        let directory = tempfile::tempdir().unwrap();
        let open = || MessageStore::open(directory.path(), config.clone(), Clock::system()).unwrap();
        let store = open();
        let mut sent = Vec::new();
        for count in [1, COUNT, 3, COUNT, 1, COUNT] {
            let given = payloads(sent.len(), count);
            let messages: Vec<_> = given.iter().map(|body| message("t", 0, body, b"")).collect();
            let appended = append_durable(&store, &messages).unwrap();
            let offsets = appended.locations.iter().map(|location| location.queue_offset);
            assert!(offsets.eq(sent.len() as u64..(sent.len() + count) as u64));
            let ends = appended.locations.iter().map(|at| at.physical_offset + u64::from(at.len));
            assert_eq!(ends.max(), Some(appended.end));
            sent.extend(given);
        }
        settle(&store);
        assert_eq!(bodies(&store, "t", 0), sent);
        assert!(store.admin().stats().max_physical_offset > 2 * config.commit_log_file_size);
        store.close().unwrap();
        drop(store);
        let store = open();
        assert_eq!(store.admin().recovery().cut_bytes, 0);
        assert_eq!(bodies(&store, "t", 0), sent);
    }
}

#[test]
fn a_large_append_that_cannot_be_written_leaves_nothing_and_its_offsets_are_assigned_again() {
    let disk = FakeDisk::new();
    let config = StoreConfig { disk_reserve: 0, ..asynchronous() };
    let open = |disk: &FakeDisk| {
        MessageStore::open_on(disk.clone(), Path::new("/store"), config.clone(), Clock::manual(1_000))
            .unwrap()
    };
    let store = open(&disk);
    let first = payloads(0, 2);
    let append = |bodies: &[Vec<u8>]| {
        let messages: Vec<_> = bodies.iter().map(|body| message("t", 0, body, b"")).collect();
        store.log().append(&messages)
    };
    append(&first).unwrap();
    // Half of the bytes are written before the error.
    let failed = AtomicBool::new(false);
    disk.set_hook(move |op, path| {
        let is_log = path.to_string_lossy().contains("/commitlog");
        if op == Op::Write && is_log && !failed.swap(true, Ordering::SeqCst) {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    });
    let refused = append(&payloads(2, COUNT));
    assert!(matches!(refused, Err(StoreError::Io { .. })), "{}", refused.is_ok());
    disk.clear_hook();
    let later = payloads(900, COUNT);
    let appended = append(&later).unwrap();
    assert_eq!(appended.locations[0].queue_offset, 2);
    settle(&store);
    let kept = [first, later].concat();
    assert_eq!(bodies(&store, "t", 0), kept);
    drop(store);
    assert_eq!(bodies(&open(&disk), "t", 0), kept);
}
