//! Messages that are not in memory: the response to a reader that must not wait, and what it gets once they were read.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use common::{
    ALL, asynchronous,
    fake_disk::{FakeDisk, FakeRegion, in_memory},
    message, settle,
};
use ferromq_store::{
    MessageStore, StoreConfig,
    filter::MessageFilter,
    progress::{Begin, Cold, Ordered, ReadAhead, ReceiveRequest, Received},
    read::{GetRequest, GetResult, GetStatus, Source, TransferLimits},
    time::Clock,
};

const START: i64 = 1_700_000_000_000;
const LEASE: i64 = 10_000;
const BODY: &[u8] = &[7; 2_000];

/// A store with `count` messages of 2 KB in queue 0, every tenth of them of tag `a` and price 7.
fn filled(count: usize) -> (FakeDisk, Clock, MessageStore<FakeDisk>) {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(START));
    let store = open(&disk, &clock);
    for number in 0..count {
        let properties: &[u8] =
            if number % 10 == 9 { b"TAGS\x01a\x02price\x017\x02" } else { b"TAGS\x01b\x02price\x011\x02" };
        store.log().append(&[message("t", 0, BODY, properties)]).unwrap();
    }
    settle(&store);
    store.close().unwrap();
    drop(store);
    let store = open(&disk, &clock);
    disk.chill();
    (disk, clock, store)
}

fn open(disk: &FakeDisk, clock: &Clock) -> MessageStore<FakeDisk> {
    let config =
        StoreConfig { commit_log_file_size: 1 << 20, consume_queue_file_entries: 2_000, ..asynchronous() };
    MessageStore::open_on(disk.clone(), Path::new("/store"), config, clock.clone()).unwrap()
}

fn ask(offset: u64, filter: &MessageFilter, source: Source) -> GetRequest<'_> {
    GetRequest {
        topic: "t",
        queue_id: 0,
        offset,
        max_count: 32,
        max_bytes: 4 << 20,
        filter,
        source,
        limits: TransferLimits::NONE,
    }
}

fn long() -> Source {
    Source::Disk(Instant::now() + Duration::from_secs(60))
}

fn offsets(found: &GetResult<FakeRegion>) -> Vec<u64> {
    found.messages.iter().map(|(offset, _)| *offset).collect()
}

fn request<'a>(filter: &'a MessageFilter, order: Option<Ordered<'a>>) -> ReceiveRequest<'a> {
    ReceiveRequest {
        group: "g",
        topic: "t",
        queue_count: 1,
        first_queue: 0,
        max_count: 8,
        max_bytes: 4 << 20,
        invisible_ms: LEASE,
        filter,
        begin: Begin::AtMin,
        order,
        max_attempts: 0,
        by_priority: false,
        limits: TransferLimits::NONE,
    }
}

fn receive(
    store: &MessageStore<FakeDisk>,
    request: &ReceiveRequest<'_>,
    ahead: Option<ReadAhead<FakeRegion>>,
) -> Received<FakeRegion> {
    in_memory(|| store.groups().receive_in_memory(request, None, ahead).unwrap())
}

fn read_ahead(
    store: &MessageStore<FakeDisk>,
    cold: Cold,
    filter: &MessageFilter,
) -> Option<ReadAhead<FakeRegion>> {
    let found = store.queues().get_from(&cold.request("t", filter, long()));
    Some(ReadAhead { cold, found })
}

fn seen(received: &Received<FakeRegion>) -> Vec<(u64, u32)> {
    received.messages.iter().map(|leased| (leased.handle.queue_offset, leased.attempt)).collect()
}

#[test]
fn a_read_of_memory_ends_before_messages_on_disk_and_finds_them_once_they_were_read() {
    let (disk, _clock, store) = filled(100);
    let cold = in_memory(|| store.queues().get_from(&ask(40, ALL, Source::Memory)));
    assert!(cold.is_cold && cold.messages.is_empty());
    assert_eq!((cold.status, cold.next_offset), (GetStatus::NoMatchedMessage, 40));
    let from_disk = store.queues().get_from(&ask(40, ALL, long()));
    assert_eq!(offsets(&from_disk), (40..72).collect::<Vec<_>>());
    let warm = in_memory(|| {
        let warm = store.queues().get_from(&ask(40, ALL, Source::Memory));
        warm.messages.iter().for_each(|(_, record)| assert!(record.bytes().len() > BODY.len()));
        warm
    });
    assert_eq!(offsets(&warm), offsets(&from_disk));
    assert!(!warm.is_cold);
    // Messages in memory come, even if more are on disk.
    let rest = in_memory(|| store.queues().get_from(&ask(60, ALL, Source::Memory)));
    assert!(rest.is_cold && rest.messages.len() >= 12 && rest.messages.len() < 32, "{}", rest.messages.len());
    assert_eq!(rest.next_offset, 60 + rest.messages.len() as u64);
    drop(disk);
}

#[test]
fn a_filtered_read_of_memory_reads_no_disk_and_continues_where_it_ended() {
    for filter in [MessageFilter::tags("a"), MessageFilter::parse("SQL92", "price = 7").unwrap()] {
        let (_disk, _clock, store) = filled(100);
        let (mut at, mut found, mut reads) = (0, Vec::new(), 0);
        while at < 100 {
            let mut read = in_memory(|| store.queues().get_from(&ask(at, &filter, Source::Memory)));
            if read.is_cold && read.messages.is_empty() && read.next_offset == at {
                read = store.queues().get_from(&ask(at, &filter, Source::Disk(Instant::now())));
                reads += 1;
            }
            assert!(read.next_offset > at, "at {at}: {:?}", read.status);
            found.extend(offsets(&read));
            at = read.next_offset;
        }
        assert_eq!(found, (0..10).map(|ten| ten * 10 + 9).collect::<Vec<_>>());
        // A read whose time is over makes one step.
        assert!(reads > 4, "{reads}");
    }
}

#[test]
fn one_read_passes_over_a_bounded_number_of_bytes() {
    let (disk, clock) = (FakeDisk::new(), Clock::manual(START));
    let config = StoreConfig { commit_log_file_size: 4 << 20, ..asynchronous() };
    let store = MessageStore::open_on(disk, Path::new("/store"), config, clock).unwrap();
    for _ in 0..20 {
        store.log().append(&[message("t", 0, &[1; 1 << 20], b"price\x011\x02")]).unwrap();
    }
    settle(&store);
    let filter = MessageFilter::parse("SQL92", "price = 7").unwrap();
    let found = store.queues().get_from(&ask(0, &filter, Source::Memory));
    assert_eq!((found.status, found.next_offset, found.is_cold), (GetStatus::NoMatchedMessage, 4, false));
}

#[test]
fn new_messages_are_in_memory() {
    let (_disk, _clock, store) = filled(10);
    for _ in 0..10 {
        store.log().append(&[message("t", 0, BODY, b"")]).unwrap();
    }
    settle(&store);
    let cold = in_memory(|| store.queues().get_from(&ask(9, ALL, Source::Memory)));
    assert!(cold.is_cold);
    store.queues().get_from(&ask(9, ALL, long()));
    let found = in_memory(|| store.queues().get_from(&ask(9, ALL, Source::Memory)));
    assert_eq!(offsets(&found), (9..20).collect::<Vec<_>>());
}

#[test]
fn a_receive_leases_messages_on_disk_after_they_were_read_ahead() {
    for order in [None, Some(Ordered::default())] {
        let (disk, clock, store) = filled(20);
        let request = request(ALL, order);
        let first = receive(&store, &request, None);
        let cold = first.cold.expect("nothing is in memory");
        assert_eq!((cold.queue_id, cold.offset, cold.was_leased), (0, 0, false));
        assert!(first.messages.is_empty() && first.more);
        assert!(store.groups().committed_offset("g", "t", 0) == Some(0));
        let ahead = read_ahead(&store, cold, ALL);
        let leased = receive(&store, &request, ahead);
        assert_eq!(seen(&leased), (0..8).map(|offset| (offset, 1)).collect::<Vec<_>>());
        // Their leases expire and they leave memory: they are redelivered, with one more attempt.
        disk.chill();
        clock.advance(LEASE);
        let cold = receive(&store, &request, None).cold.expect("nothing is in memory");
        assert_eq!((cold.offset, cold.was_leased), (0, true));
        let ahead = read_ahead(&store, cold, ALL);
        let again = receive(&store, &request, ahead);
        assert_eq!(seen(&again), (0..8).map(|offset| (offset, 2)).collect::<Vec<_>>());
        for leased in &again.messages {
            store.groups().ack("g", "t", &leased.handle).unwrap();
        }
        // A plain receive reads from disk itself.
        assert_eq!(seen(&common::receive(&store, &request).unwrap())[0], (8, 1));
    }
}

#[test]
fn messages_read_ahead_are_not_leased_if_another_receive_was_faster() {
    let (_disk, _clock, store) = filled(20);
    let request = request(ALL, None);
    let cold = receive(&store, &request, None).cold.unwrap();
    let (mine, others) = (read_ahead(&store, cold, ALL), read_ahead(&store, cold, ALL));
    assert_eq!(receive(&store, &request, others).messages.len(), 8);
    let mut mine = receive(&store, &request, mine);
    while let Some(cold) = mine.cold.filter(|_| mine.messages.is_empty()) {
        mine = receive(&store, &request, read_ahead(&store, cold, ALL));
    }
    assert!(mine.messages.iter().all(|leased| leased.handle.queue_offset >= 8 && leased.attempt == 1));
}

#[test]
fn a_filtered_receive_skips_rejected_messages_on_disk_for_good() {
    let filter = MessageFilter::parse("SQL92", "price = 7").unwrap();
    let (_disk, _clock, store) = filled(40);
    let request = request(&filter, None);
    let (mut received, mut ahead, mut offsets) = (Vec::new(), None, Vec::new());
    while received.len() < 4 {
        let found = receive(&store, &request, ahead.take());
        ahead = found.cold.and_then(|cold| read_ahead(&store, cold, &filter));
        offsets.extend(store.groups().committed_offset("g", "t", 0));
        received.extend(seen(&found));
    }
    assert_eq!(received, [(9, 1), (19, 1), (29, 1), (39, 1)]);
    assert!(offsets.is_sorted());
}
