//! Reads while files of the log or of a queue are gone or wrong.

use std::{net::SocketAddr, path::Path};

use crate::{
    config::StoreConfig,
    files::mapped_file::MappedRegion,
    filter::message_filter::MessageFilter,
    read::types::{Boundary, GetResult, GetStatus},
    record::encode::NewMessage,
    store::message_store::MessageStore,
    time::clock::Clock,
};

fn filled(directory: &Path) -> MessageStore {
    let config = StoreConfig {
        commit_log_file_size: 4 << 10,
        consume_queue_file_entries: 10,
        index_slots: 50,
        index_entries: 200,
        disk_reserve: 0,
        ..StoreConfig::default()
    };
    let clock = Clock::manual(1000);
    let store = MessageStore::open(directory, config, clock.clone()).unwrap();
    for number in 0..60u8 {
        let message = NewMessage {
            topic: "t",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: SocketAddr::from(([127, 0, 0, 1], 1)),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &[number; 500],
            properties: b"",
        };
        store.log().append(&[message]).unwrap();
        clock.advance(1);
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while store.admin().stats().dispatched_offset < store.admin().stats().max_physical_offset {
        assert!(std::time::Instant::now() < deadline, "not dispatched: {:?}", store.admin().stats());
        std::thread::yield_now();
    }
    store
}

fn offsets(found: &GetResult<MappedRegion>) -> Vec<u64> {
    found.messages.iter().map(|(offset, _)| *offset).collect()
}

#[test]
fn messages_whose_file_is_gone_are_passed_over_in_one_read() {
    let directory = tempfile::tempdir().unwrap();
    let store = filled(directory.path());
    let log = &store.queues().log;
    // The queue does not know it yet, as while files are being deleted.
    log.files().remove_below(5 * (4 << 10)).unwrap();
    let first = (0..60).find(|at| {
        let entry = store.queues().queues.find("t", 0).unwrap().entry(*at).unwrap();
        entry.physical_offset >= log.start()
    });
    let first = first.unwrap();
    assert!(first > 20, "{first}");
    let found = store.queues().get("t", 0, 0, 3, usize::MAX, &MessageFilter::All);
    assert_eq!((found.status, offsets(&found)), (GetStatus::Found, vec![first, first + 1, first + 2]));
    assert_eq!(found.next_offset, first + 3);
    let filtered = store.queues().get("t", 0, 0, 3, usize::MAX, &MessageFilter::tags("none"));
    assert_eq!((filtered.status, filtered.next_offset), (GetStatus::NoMatchedMessage, 60));
    // Removed messages have no time.
    let kept_time = 1000 + first as i64;
    assert_eq!(store.queues().earliest_time("t", 0), Some(kept_time));
    for (time, lower, upper) in
        [(0, first, 0), (1005, first, 0), (kept_time, first, first), (kept_time + 1, first + 1, first + 1)]
    {
        assert_eq!(store.queues().offset_by_time("t", 0, time, Boundary::Lower), lower, "{time}");
        assert_eq!(store.queues().offset_by_time("t", 0, time, Boundary::Upper), upper, "{time}");
    }
}

#[test]
fn a_read_that_finds_only_what_is_gone_says_so_and_goes_on_behind_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = filled(directory.path());
    let reader = store.queues();
    let queue = reader.queues.find("t", 0).unwrap();
    let last = queue.entry(59).unwrap();
    let file = reader.log.files().open(last.physical_offset).unwrap().unwrap();
    // Its head states another offset.
    file.write(last.physical_offset + 28, &[&7u64.to_be_bytes()]).unwrap();
    let found = store.queues().get("t", 0, 59, 3, usize::MAX, &MessageFilter::All);
    assert_eq!((found.status, found.next_offset), (GetStatus::MessageWasRemoving, 60));
    assert!(found.messages.is_empty());
    assert_eq!(store.admin().stats().mismatches, 1);
    let before = store.queues().get("t", 0, 57, 3, usize::MAX, &MessageFilter::All);
    assert_eq!((before.status, offsets(&before)), (GetStatus::Found, vec![57, 58]));
    assert_eq!(before.next_offset, 60);
    // A wrong size is rejected too.
    let size = queue.entry(30).unwrap();
    let file = reader.log.files().open(size.physical_offset).unwrap().unwrap();
    file.write(size.physical_offset, &[&(size.size - 1).to_be_bytes()]).unwrap();
    assert_eq!(offsets(&store.queues().get("t", 0, 30, 2, usize::MAX, &MessageFilter::All)), vec![31, 32]);
}

#[test]
fn where_a_file_of_the_queue_is_missing_a_read_goes_on_at_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = filled(directory.path());
    let queue = store.queues().queues.find("t", 0).unwrap();
    queue.files().remove_below(20 * 20).unwrap();
    let found = store.queues().get("t", 0, 3, 5, usize::MAX, &MessageFilter::All);
    assert_eq!((found.status, found.next_offset), (GetStatus::OffsetFoundNull, 20));
    let next = store.queues().get("t", 0, found.next_offset, 2, usize::MAX, &MessageFilter::All);
    assert_eq!((next.status, offsets(&next)), (GetStatus::Found, vec![20, 21]));
    assert_eq!(store.admin().stats().missed_gets.get(&GetStatus::OffsetFoundNull), Some(&1));
}
