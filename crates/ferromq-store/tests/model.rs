//! Random operations compared with a plain list: whatever the order of appends, reopens and crashes, the store serves
//! every message that it acknowledged.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use common::{ALL, asynchronous, fake_disk::FakeDisk, message, named, settle, synchronous};
use ferromq_store::{
    MessageStore, StoreConfig,
    filter::MessageFilter,
    log::FlushPolicy,
    read::{Boundary, GetStatus},
    record::MessageView,
    retention::{Decision, FileFacts, RetentionFacts, RetentionPolicy},
    time::Clock,
};
use proptest::prelude::*;

const TOPICS: [&str; 2] = ["one", "two"];
const TAGS: [&str; 3] = ["a", "b", "Aa"];

#[derive(Debug, Clone)]
struct New {
    topic: usize,
    queue_id: i32,
    len: usize,
    key: u8,
    tag: usize,
}

#[derive(Debug, Clone)]
enum Step {
    Append(Vec<New>),
    AppendAsOne(Vec<New>),
    /// Removes files whose messages are all older than this many milliseconds.
    Clean(i64),
    SetFlush(usize),
    Get {
        topic: usize,
        queue_id: u32,
        from: u64,
        count: usize,
        tag: Option<usize>,
    },
    Query {
        topic: usize,
        key: u8,
        count: usize,
    },
    ByTime {
        topic: usize,
        queue_id: u32,
        ago: i64,
    },
    Advance(i64),
    Reopen,
    Crash(u64),
}

fn new() -> impl Strategy<Value = New> {
    let len = prop_oneof![0usize..40, 0usize..2000, Just(20_000usize)];
    (0..2usize, 0..2i32, len, 0..8u8, 0..3usize).prop_map(|(topic, queue_id, len, key, tag)| New {
        topic,
        queue_id,
        len,
        key,
        tag,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let queue = (0..2usize, 0..2u32);
    prop_oneof![
        8 => proptest::collection::vec(new(), 1..6).prop_map(Step::Append),
        3 => proptest::collection::vec(new(), 2..6).prop_map(Step::AppendAsOne),
        2 => (0..4000i64).prop_map(Step::Clean),
        1 => (0..POLICIES.len()).prop_map(Step::SetFlush),
        4 => (queue.clone(), 0..60u64, 1..40usize, proptest::option::of(0..3usize)).prop_map(
            |((topic, queue_id), from, count, tag)| Step::Get { topic, queue_id, from, count, tag }
        ),
        3 => (0..2usize, 0..8u8, 1..20usize).prop_map(|(topic, key, count)| Step::Query { topic, key, count }),
        2 => (queue, 0..20_000i64).prop_map(|((topic, queue_id), ago)| Step::ByTime { topic, queue_id, ago }),
        2 => (0..3000i64).prop_map(Step::Advance),
        1 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(Step::Crash),
    ]
}

const POLICIES: [&str; 4] = ["group", "each", "every 3", "interval 50ms"];

/// A policy that removes files whose messages are all older than its age, only when a caller asks for a cleaning.
#[derive(Default)]
struct WhenAsked(AtomicI64);

impl RetentionPolicy for WhenAsked {
    fn name(&self) -> &str {
        "when asked"
    }

    fn decide(&self, file: &FileFacts<'_>, store: &RetentionFacts) -> Decision {
        let is_old = file.newest_ms() < store.now_ms - self.0.load(Ordering::SeqCst);
        if store.is_asked && is_old { Decision::Remove } else { Decision::Keep { until_ms: None } }
    }
}

/// Shortens each body, but enough remains to tell them apart.
fn short(bodies: &[Vec<u8>]) -> Vec<(usize, Option<u8>)> {
    bodies.iter().map(|body| (body.len(), body.first().copied())).collect()
}

#[derive(Debug, Clone)]
struct Known {
    body: Vec<u8>,
    key: String,
    tag: usize,
    time: i64,
    order: usize,
    /// Messages appended together have the same number.
    group: Option<usize>,
}

type Model = BTreeMap<(usize, u32), Vec<Known>>;

struct Run {
    disk: FakeDisk,
    config: StoreConfig,
    clock: Clock,
    store: Option<MessageStore<FakeDisk>>,
    model: Model,
    /// First offset kept of each queue; a crash may restore removed messages.
    removed: BTreeMap<(usize, u32), usize>,
    retention: Arc<WhenAsked>,
    count: usize,
}

impl Run {
    fn new(is_sync: bool) -> Self {
        let retention = Arc::new(WhenAsked::default());
        let mut config = if is_sync { synchronous() } else { asynchronous() };
        config.retention.age = None;
        config.retention.policies = vec![Arc::clone(&retention) as Arc<dyn RetentionPolicy>];
        let mut run = Self {
            disk: FakeDisk::new(),
            config,
            clock: Clock::manual(1_700_000_000_000),
            store: None,
            model: Model::new(),
            removed: BTreeMap::new(),
            retention,
            count: 0,
        };
        run.open();
        run
    }

    fn open(&mut self) {
        self.store = None;
        let opened = MessageStore::open_on(
            self.disk.clone(),
            Path::new("/m"),
            self.config.clone(),
            self.clock.clone(),
        );
        self.store = Some(opened.unwrap());
    }

    fn store(&self) -> &MessageStore<FakeDisk> {
        self.store.as_ref().unwrap()
    }

    fn known(&self, topic: usize, queue_id: u32) -> &[Known] {
        self.model.get(&(topic, queue_id)).map_or(&[], Vec::as_slice)
    }

    fn min(&self, topic: usize, queue_id: u32) -> usize {
        self.removed.get(&(topic, queue_id)).copied().unwrap_or(0)
    }

    /// The messages kept, with their queue offsets.
    fn kept(&self, topic: usize, queue_id: u32) -> impl Iterator<Item = (u64, &Known)> {
        let min = self.min(topic, queue_id);
        (min as u64..).zip(&self.known(topic, queue_id)[min..])
    }

    /// Removes deleted messages from the model, and checks that they are the beginning of the log.
    fn learn_what_is_gone(&mut self) {
        for (topic, queue_id) in self.model.keys().copied().collect::<Vec<_>>() {
            let min = self.store().queues().min_offset(TOPICS[topic], queue_id) as usize;
            assert!(min <= self.known(topic, queue_id).len());
            self.removed.insert((topic, queue_id), min);
        }
        let queues = || {
            self.model.iter().map(|((topic, queue_id), known)| known.split_at(self.min(*topic, *queue_id)))
        };
        let newest_gone = queues().filter_map(|(gone, _)| gone.iter().map(|known| known.order).max()).max();
        let oldest_kept = queues().filter_map(|(_, kept)| kept.iter().map(|known| known.order).min()).min();
        if let (Some(gone), Some(kept)) = (newest_gone, oldest_kept) {
            assert!(gone < kept, "message {gone} is gone, {kept} before it is kept");
        }
    }

    fn clean(&mut self, age: i64) {
        let before = self.removed.clone();
        self.retention.0.store(age, Ordering::SeqCst);
        self.store().admin().clean(true);
        self.learn_what_is_gone();
        for ((topic, queue_id), min) in &self.removed {
            let was = before.get(&(*topic, *queue_id)).copied().unwrap_or(0);
            assert!(*min >= was, "removed messages are back");
            let newest = self.known(*topic, *queue_id)[was..*min].iter().map(|known| known.time).max();
            assert!(
                newest.is_none_or(|newest| newest < self.clock.now_ms() - age),
                "removed before its time"
            );
        }
    }

    fn set_flush(&mut self, policy: usize) {
        let policy: FlushPolicy = POLICIES[policy].parse().unwrap();
        self.store().admin().set_flush(policy).unwrap();
        self.config.flush = policy;
    }

    fn append(&mut self, batch: &[New], as_one: bool) {
        let bodies: Vec<Vec<u8>> =
            batch.iter().enumerate().map(|(at, new)| vec![(self.count + at) as u8; new.len]).collect();
        let properties: Vec<Vec<u8>> =
            batch.iter().map(|new| named(&format!("k{}", new.key), TAGS[new.tag])).collect();
        let messages: Vec<_> = batch
            .iter()
            .zip(bodies.iter().zip(&properties))
            .map(|(new, (body, properties))| message(TOPICS[new.topic], new.queue_id, body, properties))
            .collect();
        let appended = if as_one {
            self.store().log().append_as_one(&messages)
        } else {
            self.store().log().append(&messages)
        };
        let (appended, first) = (appended.unwrap(), self.count);
        self.store().log().wait_durable(appended.end).unwrap();
        for ((new, body), location) in batch.iter().zip(bodies).zip(appended.locations) {
            let queue = self.model.entry((new.topic, new.queue_id as u32)).or_default();
            assert_eq!(location.queue_offset, queue.len() as u64);
            queue.push(Known {
                body,
                key: format!("k{}", new.key),
                tag: new.tag,
                time: appended.store_timestamp,
                order: self.count,
                group: as_one.then_some(first),
            });
            self.count += 1;
        }
        settle(self.store());
    }

    fn get(&self, topic: usize, queue_id: u32, from: u64, count: usize, tag: Option<usize>) {
        let filter = tag.map_or(MessageFilter::All, |tag| MessageFilter::tags(TAGS[tag]));
        let found = self.store().queues().get(TOPICS[topic], queue_id, from, count, usize::MAX, &filter);
        let end = self.known(topic, queue_id).len() as u64;
        let min = self.min(topic, queue_id) as u64;
        let expected: Vec<(u64, &Known)> = self
            .kept(topic, queue_id)
            .filter(|(queue_offset, _)| from >= min && *queue_offset >= from)
            .filter(|(_, known)| tag.is_none_or(|tag| known.tag == tag))
            .take(count)
            .collect();
        let status = match from {
            // Whether an empty queue is known depends on what a crash left of it.
            _ if end == 0 => match found.status {
                GetStatus::NoMatchedLogicQueue => GetStatus::NoMatchedLogicQueue,
                _ => GetStatus::NoMessageInQueue,
            },
            from if from < min => GetStatus::OffsetTooSmall,
            from if from == end => GetStatus::OffsetOverflowOne,
            from if from > end => GetStatus::OffsetOverflowBadly,
            _ if expected.is_empty() => GetStatus::NoMatchedMessage,
            _ => GetStatus::Found,
        };
        assert_eq!(found.status, status);
        assert!(status != GetStatus::OffsetTooSmall || found.next_offset == min);
        assert_eq!(found.messages.len(), expected.len());
        for ((offset, record), (expected_offset, expected)) in found.messages.iter().zip(expected) {
            let view = MessageView::decode(record.bytes(), true).unwrap();
            assert_eq!((*offset, view.body), (expected_offset, &expected.body[..]));
        }
    }

    fn query(&self, topic: usize, key: u8, count: usize) {
        let key = format!("k{key}");
        let found = self.store().queues().query_by_key(TOPICS[topic], &key, count, 0, i64::MAX).messages;
        let of_topic = (0..2).flat_map(|queue_id| self.kept(topic, queue_id).map(|(_, known)| known));
        let mut expected: Vec<&Known> = of_topic.filter(|known| known.key == key).collect();
        expected.sort_by_key(|known| std::cmp::Reverse(known.order));
        expected.truncate(count);
        let found: Vec<Vec<u8>> =
            found.iter().map(|r| MessageView::decode(r.bytes(), true).unwrap().body.to_vec()).collect();
        let expected: Vec<Vec<u8>> = expected.iter().map(|known| known.body.clone()).collect();
        assert!(found == expected, "key {key}: found {:?}, expected {:?}", short(&found), short(&expected));
    }

    fn by_time(&self, topic: usize, queue_id: u32, ago: i64) {
        let time = self.clock.now_ms() - ago;
        let kept = self.kept(topic, queue_id);
        let older = kept.take_while(|(_, known)| known.time < time).count();
        assert_eq!(
            self.store().queues().offset_by_time(TOPICS[topic], queue_id, time, Boundary::Lower),
            (self.min(topic, queue_id) + older) as u64
        );
    }

    fn crash(&mut self, seed: u64) {
        let left = self.disk.crash(seed);
        // The old store loses its disk and gives up.
        self.store = None;
        self.disk = left;
        self.open();
        if !self.config.flush.is_synchronous() {
            self.forget_what_is_lost();
        }
        self.learn_what_is_gone();
    }

    /// Under asynchronous flush a crash takes the end of the log, and nothing before it.
    fn forget_what_is_lost(&mut self) {
        let mut kept = 0;
        let mut lost_from = usize::MAX;
        let (groups, count) = (self.groups(), self.model.values().map(Vec::len).sum::<usize>());
        for ((topic, queue_id), queue) in &mut self.model {
            let max = self.store.as_ref().unwrap().queues().max_offset(TOPICS[*topic], *queue_id) as usize;
            assert!(max <= queue.len());
            kept = kept.max(queue[..max].iter().map(|known| known.order + 1).max().unwrap_or(0));
            lost_from =
                lost_from.min(queue[max..].iter().map(|known| known.order).min().unwrap_or(usize::MAX));
            queue.truncate(max);
        }
        assert!(kept <= lost_from, "a hole: message {lost_from} is lost, {} is not", kept - 1);
        self.model.retain(|_, queue| !queue.is_empty());
        let lost = count - self.model.values().map(Vec::len).sum::<usize>();
        if let FlushPolicy::EveryN { count: limit, .. } = self.config.flush {
            assert!(lost <= limit as usize, "{lost} acknowledged messages are lost, promised were {limit}");
        }
        for (group, size) in self.groups() {
            assert_eq!(size, groups[&group], "a part of an atomic append is lost");
        }
    }

    /// The number of messages in each group appended together.
    fn groups(&self) -> BTreeMap<usize, usize> {
        let mut groups = BTreeMap::new();
        for group in self.model.values().flatten().filter_map(|known| known.group) {
            *groups.entry(group).or_default() += 1;
        }
        groups
    }

    fn check_all(&self) {
        for (topic, name) in TOPICS.into_iter().enumerate() {
            for queue_id in 0..2 {
                let bodies = common::bodies(self.store(), name, queue_id);
                let expected: Vec<Vec<u8>> =
                    self.kept(topic, queue_id).map(|(_, known)| known.body.clone()).collect();
                assert!(bodies == expected, "found {:?}, expected {:?}", short(&bodies), short(&expected));
            }
            for key in 0..8 {
                self.query(topic, key, 1000);
            }
        }
    }
}

/// The number of cases; `FERROMQ_MODEL_CASES` raises it for a long run.
fn cases() -> u32 {
    std::env::var("FERROMQ_MODEL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_store_answers_like_a_list(is_sync in any::<bool>(), steps in proptest::collection::vec(step(), 1..50)) {
        let mut run = Run::new(is_sync);
        for step in steps {
            match step {
                Step::Append(batch) => run.append(&batch, false),
                Step::AppendAsOne(batch) => run.append(&batch, true),
                Step::Clean(age) => run.clean(age),
                Step::SetFlush(policy) => run.set_flush(policy),
                Step::Get { topic, queue_id, from, count, tag } => run.get(topic, queue_id, from, count, tag),
                Step::Query { topic, key, count } => run.query(topic, key, count),
                Step::ByTime { topic, queue_id, ago } => run.by_time(topic, queue_id, ago),
                Step::Advance(ms) => run.clock.advance(ms),
                Step::Reopen => {
                    run.store().close().unwrap();
                    run.open();
                    run.check_all();
                }
                Step::Crash(seed) => {
                    run.crash(seed);
                    run.check_all();
                }
            }
        }
        run.check_all();
        assert!(run.store().queues().get("none", 0, 0, 1, 1, ALL).messages.is_empty());
    }
}
