//! Lookups compared with a plain list: by queue offset, place, time, key, unique key and id. Timestamps may be equal,
//! tags may share a hash, many messages may have one key, and a unique key may equal another message's key.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{ALL, asynchronous, message, settle};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    filter::MessageFilter,
    read::{Boundary, GetStatus},
    record::{MessageView, NewMessage, properties},
    time::Clock,
};
use proptest::prelude::*;

const START: i64 = 1_700_000_000_000;
const TOPICS: [&str; 2] = ["one", "two"];
/// "Aa" and "BB" have the same hash in Java.
const TAGS: [&str; 3] = ["Aa", "BB", "c"];
/// The first two have the same hash, so an index cannot tell them apart; the others differ.
const KEYS: [&str; 4] = ["Aa", "BB", "x", "unique-1"];

#[derive(Debug, Clone)]
struct New {
    /// Milliseconds since the previous message: usually 0.
    pause: i64,
    topic: usize,
    queue_id: u32,
    len: usize,
    tag: Option<usize>,
    keys: Vec<usize>,
    /// `unique-N`, where N may be 1: then it equals a key.
    unique: Option<u8>,
}

fn new() -> impl Strategy<Value = New> {
    let pause = prop_oneof![6 => Just(0i64), 3 => 1..4i64, 1 => 500..3000i64];
    (
        (pause, 0..2usize, 0..2u32, prop_oneof![9 => 0..60usize, 1 => 3000..9000usize]),
        (
            proptest::option::of(0..3usize),
            proptest::collection::vec(0..4usize, 0..4),
            proptest::option::of(0..4u8),
        ),
    )
        .prop_map(|((pause, topic, queue_id, len), (tag, keys, unique))| New {
            pause,
            topic,
            queue_id,
            len,
            tag,
            keys,
            unique,
        })
}

#[derive(Debug)]
struct Known {
    new: New,
    time: i64,
    queue_offset: u64,
    physical_offset: u64,
}

impl Known {
    fn has_unique_key(&self, key: &str) -> bool {
        self.new.unique.is_some_and(|number| format!("unique-{number}") == key)
    }

    fn has_key(&self, key: &str) -> bool {
        self.has_unique_key(key) || self.new.keys.iter().any(|number| KEYS[*number] == key)
    }
}

struct Run {
    store: MessageStore,
    list: Vec<Known>,
    _directory: tempfile::TempDir,
}

fn run(news: Vec<New>) -> Run {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(START);
    let config = StoreConfig { index_entries: 40, index_slots: 7, ..asynchronous() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    let mut list = Vec::new();
    for (number, new) in news.into_iter().enumerate() {
        clock.advance(new.pause);
        let mut named = Vec::new();
        if let Some(tag) = new.tag {
            properties::push(&mut named, "TAGS", TAGS[tag]);
        }
        if !new.keys.is_empty() {
            let keys: Vec<&str> = new.keys.iter().map(|key| KEYS[*key]).collect();
            properties::push(&mut named, "KEYS", &keys.join(" "));
        }
        if let Some(unique) = new.unique {
            properties::push(&mut named, "UNIQ_KEY", &format!("unique-{unique}"));
        }
        let body = vec![number as u8; new.len];
        let appended =
            store.log().append(&[message(TOPICS[new.topic], new.queue_id as i32, &body, &named)]).unwrap();
        let location = appended.locations[0];
        list.push(Known {
            new,
            time: appended.store_timestamp,
            queue_offset: location.queue_offset,
            physical_offset: location.physical_offset,
        });
    }
    settle(&store);
    Run { store, list, _directory: directory }
}

impl Run {
    fn queue(&self, topic: usize, queue_id: u32) -> Vec<&Known> {
        self.list.iter().filter(|known| known.new.topic == topic && known.new.queue_id == queue_id).collect()
    }

    fn check_time(&self, topic: usize, queue_id: u32, time: i64) {
        let queue = self.queue(topic, queue_id);
        let lower = queue.iter().filter(|known| known.time < time).count() as u64;
        let upper = queue.iter().filter(|known| known.time <= time).count() as u64;
        let found = |boundary| self.store.queues().offset_by_time(TOPICS[topic], queue_id, time, boundary);
        assert_eq!(found(Boundary::Lower), lower, "lower {time}");
        assert_eq!(found(Boundary::Upper), upper.saturating_sub(1), "upper {time}");
        let earliest = queue.first().map(|known| known.time);
        assert_eq!(self.store.queues().earliest_time(TOPICS[topic], queue_id), earliest);
    }

    fn check_get(&self, topic: usize, queue_id: u32, from: u64, count: usize, tag: Option<usize>) {
        let queue = self.queue(topic, queue_id);
        let filter = tag.map_or(MessageFilter::All, |tag| MessageFilter::tags(TAGS[tag]));
        let found = self.store.queues().get(TOPICS[topic], queue_id, from, count, usize::MAX, &filter);
        let end = queue.len() as u64;
        let is_wanted = |known: &&&Known| tag.is_none() || known.new.tag == tag;
        let wanted: Vec<u64> = queue
            .iter()
            .skip(from as usize)
            .filter(is_wanted)
            .take(count)
            .map(|known| known.queue_offset)
            .collect();
        let offsets: Vec<u64> = found.messages.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, wanted);
        let (status, next) = match from {
            _ if end == 0 => (GetStatus::NoMatchedLogicQueue, 0),
            from if from == end => (GetStatus::OffsetOverflowOne, end),
            from if from > end => (GetStatus::OffsetOverflowBadly, end),
            _ if wanted.is_empty() => (GetStatus::NoMatchedMessage, end),
            // A full read ends after its last message.
            _ if wanted.len() == count => (GetStatus::Found, wanted[count - 1] + 1),
            _ => (GetStatus::Found, end),
        };
        assert_eq!((found.status, found.next_offset), (status, next));
    }

    fn check_key(&self, topic: usize, key: &str, count: usize, begin: i64, end: i64) {
        let wanted = |has_key: fn(&Known, &str) -> bool| -> Vec<u64> {
            let all = self.list.iter().rev().filter(|known| known.new.topic == topic && has_key(known, key));
            all.filter(|known| (begin..=end).contains(&known.time))
                .take(count)
                .map(|known| known.physical_offset)
                .collect()
        };
        let by_key = self.store.queues().query_by_key(TOPICS[topic], key, count, begin, end);
        assert!(by_key.is_complete);
        assert_eq!(places(&by_key.messages), wanted(Known::has_key), "key {key}");
        let by_unique = self.store.queues().query_by_unique_key(TOPICS[topic], key, count, begin, end);
        assert_eq!(places(&by_unique.messages), wanted(Known::has_unique_key), "unique key {key}");
    }

    fn check_place(&self, physical_offset: u64) {
        let before = self.list.iter().rfind(|known| known.physical_offset <= physical_offset);
        match self.store.queues().message_at(physical_offset) {
            Ok(record) => assert_eq!(place(&record), physical_offset),
            Err(StoreError::NoRecord { physical_offset: told, nearest }) => {
                assert_eq!(told, physical_offset);
                assert_eq!(nearest, before.map(|known| known.physical_offset));
                assert_ne!(nearest, Some(physical_offset), "it is there");
            }
            Err(error) => panic!("{error}"),
        }
        if let Some(known) = before {
            assert_eq!(
                place(&self.store.queues().message_at(known.physical_offset).unwrap()),
                known.physical_offset
            );
        }
    }
}

fn place(record: &ferromq_store::record::Record) -> u64 {
    MessageView::decode(record.bytes(), true).unwrap().physical_offset
}

fn places(records: &[ferromq_store::record::Record]) -> Vec<u64> {
    records.iter().map(place).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: common::cases(24), ..ProptestConfig::default() })]

    #[test]
    fn every_lookup_answers_like_a_plain_list(
        news in proptest::collection::vec(new(), 0..120),
        looks in proptest::collection::vec((any::<u64>(), any::<u64>(), 1..50usize), 12),
    ) {
        let run = run(news);
        let span = run.list.last().map_or(0, |known| known.time - START) + 10;
        let log_end = run.store.admin().stats().max_physical_offset + 300;
        for (a, b, count) in looks {
            let (topic, queue_id) = ((a % 2) as usize, (a / 2 % 2) as u32);
            let time = START - 5 + (b % span as u64) as i64;
            run.check_time(topic, queue_id, time);
            let tag = [None, Some(0), Some(1), Some(2)][(a / 4 % 4) as usize];
            run.check_get(topic, queue_id, b % 70, count, tag);
            let key = ["Aa", "BB", "x", "unique-1", "unique-2", "none"][(b % 6) as usize];
            run.check_key(topic, key, count, time, time + (a % 3000) as i64);
            run.check_key(topic, key, count, i64::MIN, i64::MAX);
            run.check_place(b % log_end);
        }
        for time in [i64::MIN, 0, START - 1, START, i64::MAX] {
            run.check_time(0, 0, time);
        }
    }
}

#[test]
fn a_time_between_two_messages_gives_rocketmqs_answer_at_both_boundaries() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(START);
    let store = MessageStore::open(directory.path(), asynchronous(), clock.clone()).unwrap();
    // Three messages at one time, two at a later one.
    for number in 0..5 {
        store.log().append(&[message("t", 0, &[number], b"")]).unwrap();
        if number == 2 {
            clock.advance(10);
        }
    }
    settle(&store);
    let found = |time| {
        let at = |boundary| store.queues().offset_by_time("t", 0, time, boundary);
        (at(Boundary::Lower), at(Boundary::Upper))
    };
    assert_eq!(found(START - 1), (0, 0), "before the first");
    assert_eq!(found(START), (0, 2), "equal");
    assert_eq!(found(START + 5), (3, 2), "between");
    assert_eq!(found(START + 10), (3, 4), "equal");
    assert_eq!(found(START + 11), (5, 4), "after the last");
    assert_eq!(store.queues().offset_by_time("unknown", 0, START, Boundary::Upper), 0);
    assert_eq!(store.queues().earliest_time("unknown", 0), None);
}

#[test]
fn a_body_that_looks_like_a_record_is_not_served_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::manual(START)).unwrap();
    let first = store.log().append(&[message("t", 0, b"first", b"")]).unwrap();
    settle(&store);
    let mut forged = store.queues().message_at(0).unwrap().bytes().to_vec();
    // Where the body of the next record will lie: after its head of 88 bytes.
    let place = first.end + 88;
    forged[28..36].copy_from_slice(&place.to_be_bytes());
    store.log().append(&[message("t", 0, &forged, b"")]).unwrap();
    settle(&store);
    match store.queues().message_at(place) {
        Err(StoreError::NoRecord { nearest, .. }) => assert_eq!(nearest, Some(first.end)),
        other => panic!("{other:?}"),
    }
    let text = store.queues().message_at(place).unwrap_err().to_string();
    assert!(text.contains(&format!("nearest one begins at {}", first.end)), "{text}");
}

#[test]
fn a_query_that_meets_too_many_other_messages_reports_that_it_gave_up() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(START);
    let config = StoreConfig { index_entries: 50_000, commit_log_file_size: 16 << 20, ..asynchronous() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    let mut named = Vec::new();
    properties::push(&mut named, "KEYS", "same");
    let one = message("t", 0, b"", &named);
    store.log().append(&[one]).unwrap();
    clock.advance(1);
    let many: Vec<NewMessage<'_>> = vec![one; 1000];
    for _ in 0..20 {
        store.log().append(&many).unwrap();
    }
    settle(&store);
    // All lie in the same second, the resolution of the index.
    let found = store.queues().query_by_key("t", "same", 5, START, START);
    assert!(!found.is_complete && found.messages.is_empty());
    let mut enough = store.queues().query_by_key("t", "same", 5, START, START + 1);
    assert!(enough.is_complete);
    assert_eq!(enough.messages.len(), 5);
    let size = enough.messages.iter().map(|record| record.bytes().len()).max().unwrap();
    for (max_bytes, left) in [(5 * size, 5), (3 * size, 3), (3 * size - 1, 2), (1, 1), (0, 1)] {
        enough.limit_bytes(max_bytes);
        assert_eq!((enough.messages.len(), enough.is_complete), (left, left == 5), "{max_bytes}");
    }
}

#[test]
fn failed_and_missed_reads_are_counted_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let config = StoreConfig { max_message_size: 100, ..asynchronous() };
    let store = MessageStore::open(directory.path(), config, Clock::manual(START)).unwrap();
    for _ in 0..3 {
        store.log().append(&[message("t", 0, &[0; 101], b"")]).unwrap_err();
    }
    store.log().append(&[message("", 0, b"", b"")]).unwrap_err();
    store.log().append(&[message("t", 0, b"", b"")]).unwrap();
    settle(&store);
    store.queues().get("nowhere", 0, 0, 1, 1, ALL);
    for _ in 0..2 {
        store.queues().get("t", 0, 1, 1, 1, ALL);
    }
    store.queues().get("t", 0, 0, 1, 1, ALL);
    let stats = store.admin().stats();
    assert_eq!(stats.failed_puts, [("invalid", 1), ("too_large", 3)].into());
    let misses = [(GetStatus::OffsetOverflowOne, 2), (GetStatus::NoMatchedLogicQueue, 1)];
    assert_eq!(stats.missed_gets, misses.into());
    store.close().unwrap();
    store.log().append(&[message("t", 0, b"", b"")]).unwrap_err();
    assert_eq!(store.admin().stats().failed_puts.get("closed"), Some(&1));
}
