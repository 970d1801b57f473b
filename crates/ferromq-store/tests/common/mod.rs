//! Helpers for the tests of the store: small files, numbered messages, waiting for the dispatcher.
#![allow(dead_code, missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

pub mod delays;
pub mod fake_disk;
pub mod fuzz_targets;
pub mod timers;

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use ferromq_store::{
    MessageStore, Result, StoreConfig,
    files::Disk,
    filter::MessageFilter,
    log::{Appended, FlushPolicy},
    progress::{ReadAhead, ReceiveRequest, Received},
    read::Source,
    record::{MessageView, NewMessage, properties},
};

pub const ALL: &MessageFilter = &MessageFilter::All;

/// The number of cases of a property test that opens stores: `usual`, or `PROPTEST_CASES` in a long run.
pub fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

/// Small files, so that a test fills several.
pub fn small(flush: FlushPolicy) -> StoreConfig {
    StoreConfig {
        commit_log_file_size: 64 << 10,
        consume_queue_file_entries: 50,
        index_slots: 50,
        index_entries: 200,
        flush,
        disk_reserve: 0,
        store_host: SocketAddr::from(([127, 0, 0, 1], 10911)),
        ..StoreConfig::default()
    }
}

pub fn asynchronous() -> StoreConfig {
    small(FlushPolicy::every(Duration::from_millis(50)))
}

pub fn synchronous() -> StoreConfig {
    small(FlushPolicy::Group)
}

pub fn message<'a>(topic: &'a str, queue_id: i32, body: &'a [u8], properties: &'a [u8]) -> NewMessage<'a> {
    NewMessage {
        topic,
        queue_id,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: SocketAddr::from(([127, 0, 0, 1], 5000)),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties,
    }
}

/// Properties with a key and a tag.
pub fn named(key: &str, tag: &str) -> Vec<u8> {
    let mut out = Vec::new();
    properties::push(&mut out, "KEYS", key);
    properties::push(&mut out, "TAGS", tag);
    out
}

/// Waits for a condition without an event. Fails after a minute and names it.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("not true after a minute: {what}");
}

/// Waits until everything written is dispatched.
pub fn settle<D: Disk>(store: &MessageStore<D>) {
    for _ in 0..60_000 {
        let stats = store.admin().stats();
        if stats.dispatched_offset == stats.max_physical_offset {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the dispatcher did not reach the end: {:?}", store.admin().stats());
}

/// Waits until everything written is on disk.
pub fn wait_flushed<D: Disk>(store: &MessageStore<D>) {
    for _ in 0..60_000 {
        let stats = store.admin().stats();
        if stats.flushed_offset == stats.max_physical_offset {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the flush did not reach the end: {:?}", store.admin().stats());
}

/// Appends messages and waits until they may be acknowledged.
pub fn append_durable<D: Disk>(store: &MessageStore<D>, messages: &[NewMessage<'_>]) -> Result<Appended> {
    let appended = store.log().append(messages)?;
    store.log().wait_durable(appended.end).map(|()| appended)
}

/// Receives as a server does: reads messages that are not in memory from the disk, and goes on.
pub fn receive<D: Disk>(
    store: &MessageStore<D>,
    request: &ReceiveRequest<'_>,
) -> Result<Received<D::Region>> {
    receive_of(store, request, None)
}

/// As [`receive`], from one queue if `queue` names it.
pub fn receive_of<D: Disk>(
    store: &MessageStore<D>,
    request: &ReceiveRequest<'_>,
    queue: Option<u32>,
) -> Result<Received<D::Region>> {
    let mut ahead = None;
    loop {
        let received = store.groups().receive_in_memory(request, queue, ahead.take())?;
        let is_empty = received.messages.is_empty() && received.dead.is_empty();
        let Some(cold) = received.cold.filter(|_| is_empty) else { return Ok(received) };
        let request = cold.request(request.topic, request.filter, Source::Anywhere);
        ahead = Some(ReadAhead { cold, found: store.queues().get_from(&request) });
    }
}

/// Puts everything written so far on disk: a change of a limit does that, whatever the store's threads did.
pub fn flush_now<D: Disk>(store: &MessageStore<D>) {
    store.admin().set_flush_every("a topic without a limit", None).unwrap();
    assert_eq!(store.admin().stats().flushed_offset, store.admin().stats().max_physical_offset);
}

/// All bodies of a queue in order. Checks each record, and that queue offsets have no gap.
pub fn bodies<D: Disk>(store: &MessageStore<D>, topic: &str, queue_id: u32) -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    let mut at = store.queues().min_offset(topic, queue_id);
    let end = store.queues().max_offset(topic, queue_id);
    while at < end {
        let found = store.queues().get(topic, queue_id, at, 32, usize::MAX, ALL);
        assert!(!found.messages.is_empty(), "no message at {at} of {end}: {:?}", found.status);
        for (queue_offset, record) in found.messages {
            assert_eq!(queue_offset, at, "a gap");
            let view = MessageView::decode(record.bytes(), true).expect("a sound record");
            assert_eq!((view.topic, view.queue_id as u32, view.queue_offset), (topic, queue_id, at));
            bodies.push(view.body.to_vec());
            at += 1;
        }
        assert_eq!(found.next_offset, at);
    }
    bodies
}

/// Copies what a kill leaves while the machine runs on: the files as they are, including the abort file.
pub fn copy_as_killed(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_as_killed(&path, &target);
        } else if path.file_name().unwrap() != "lock"
            && let Err(error) = fs::copy(&path, target)
        {
            // A file with a temporary name may be gone by now.
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
    }
}
