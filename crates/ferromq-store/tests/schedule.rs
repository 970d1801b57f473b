//! Messages with a delay level are delivered at their time, at least once, in all circumstances.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use common::{
    ALL, append_durable, copy_as_killed,
    delays::{START, config, delivered, open, send, texts, with_level},
    fake_disk::FakeDisk,
    message, settle, synchronous,
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    delayed::DelayLevels,
    files::Disk,
    queues::QueueAccess,
    record::{MessageView, NewMessage, names::SCHEDULE_TOPIC, properties},
    time::Clock,
};
use proptest::prelude::*;

#[test]
fn a_message_is_delivered_at_its_time_as_it_was_sent() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    send(&store, "orders", 3, "late", 3);
    send(&store, "orders", 3, "soon", 1);
    assert_eq!(store.queues().max_offset("orders", 3), 0);
    clock.advance(999);
    clock.advance(1);
    delivered(&store, 1, 1);
    assert_eq!(texts(&store, "orders", 3), ["soon"], "level 3 takes 10 seconds");
    clock.advance(9_000);
    delivered(&store, 3, 1);
    assert_eq!(texts(&store, "orders", 3), ["soon", "late"]);
    let found = store.queues().get("orders", 3, 1, 1, 1 << 20, ALL);
    let view = MessageView::decode(found.messages[0].1.bytes(), true).unwrap();
    assert_eq!((view.born_timestamp, view.store_timestamp), (1_700_000_000_000, START + 10_000));
    let get = |name| properties::get(view.properties, name);
    assert_eq!((get("DELAY"), get("TAGS")), (Some("3"), Some("a")));
    assert_eq!((get("REAL_TOPIC"), get("REAL_QID")), (Some("orders"), Some("3")), "as RocketMQ leaves them");
    let wanted = ferromq_store::filter::MessageFilter::tags("a");
    assert_eq!(
        store.queues().get("orders", 3, 0, 9, 1 << 20, &wanted).messages.len(),
        2,
        "the tag hash is the tag's"
    );
    assert_eq!(store.admin().stats().schedule.delivered, 2);
}

#[test]
fn no_message_is_early_and_none_is_delivered_while_the_schedule_is_stopped() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, "orders", 0, "one", 1);
    clock.advance(60_000);
    send(&store, "orders", 0, "two", 1);
    store.delayed().start_schedule().unwrap();
    delivered(&store, 1, 1);
    assert_eq!(texts(&store, "orders", 0), ["one"]);
    store.delayed().stop_schedule().unwrap();
    clock.advance(60_000);
    assert_eq!(store.delayed().delay_offsets().unwrap()[&1], 1, "read from the file");
    store.delayed().start_schedule().unwrap();
    delivered(&store, 1, 2);
    assert_eq!(texts(&store, "orders", 0), ["one", "two"]);
}

#[test]
fn the_levels_follow_the_option_and_a_higher_one_counts_as_the_highest() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let config = StoreConfig { delay_levels: "2s 1m".parse::<DelayLevels>().unwrap(), ..config() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    store.delayed().start_schedule().unwrap();
    send(&store, "orders", 0, "two seconds", 1);
    send(&store, "orders", 0, "a minute", 17);
    clock.advance(2_000);
    delivered(&store, 1, 1);
    assert_eq!(texts(&store, "orders", 0), ["two seconds"]);
    clock.advance(58_000);
    delivered(&store, 2, 1);
    assert_eq!(texts(&store, "orders", 0), ["two seconds", "a minute"]);
}

#[test]
fn a_closed_store_continues_where_it_stopped() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    for number in 0..200 {
        send(&store, "orders", 0, &number.to_string(), 1);
    }
    clock.advance(1_000);
    delivered(&store, 1, 200);
    send(&store, "orders", 0, "200", 1);
    store.close().unwrap();
    let file = fs::read_to_string(directory.path().join("config/delayOffset.json")).unwrap();
    assert!(file.contains("1:200"), "{file}");
    clock.advance(1_000);
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    delivered(&store, 1, 201);
    let expected: Vec<String> = (0..201).map(|number| number.to_string()).collect();
    assert_eq!(texts(&store, "orders", 0), expected);
}

#[test]
fn after_a_kill_all_messages_come_and_those_since_the_last_written_offsets_come_again() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    send(&store, "orders", 0, "one", 1);
    clock.advance(1_000);
    delivered(&store, 1, 1);
    store.delayed().stop_schedule().unwrap();
    store.delayed().start_schedule().unwrap();
    send(&store, "orders", 0, "two", 1);
    clock.advance(1_000);
    delivered(&store, 1, 2);
    let killed = tempfile::tempdir().unwrap();
    copy_as_killed(directory.path(), killed.path());
    drop(store);
    let store = open(killed.path(), &clock);
    store.delayed().start_schedule().unwrap();
    delivered(&store, 1, 2);
    assert_eq!(texts(&store, "orders", 0), ["one", "two", "two"]);
}

#[test]
fn offsets_past_the_end_of_a_cut_log_skip_no_later_message() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, "orders", 0, "one", 1);
    store.close().unwrap();
    fs::write(directory.path().join("config/delayOffset.json"), "{\"offsetTable\":{1:50,2:9}}").unwrap();
    clock.advance(1_000);
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    assert_eq!(store.delayed().delay_offsets().unwrap()[&1], 1, "the max offset, as RocketMQ corrects it");
    assert_eq!(store.delayed().delay_offsets().unwrap()[&2], 0);
    send(&store, "orders", 0, "two", 1);
    send(&store, "orders", 0, "three", 2);
    clock.advance(5_000);
    delivered(&store, 1, 2);
    delivered(&store, 2, 1);
    assert_eq!(texts(&store, "orders", 0), ["two", "three"]);
}

#[test]
fn corrected_offsets_are_on_disk_before_a_new_message_waits() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.close().unwrap();
    // As if from a master that delivered many messages of another log.
    fs::write(directory.path().join("config/delayOffset.json"), "{\"offsetTable\":{1:50}}").unwrap();
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    send(&store, "orders", 0, "one", 1);
    let killed = tempfile::tempdir().unwrap();
    copy_as_killed(directory.path(), killed.path());
    drop(store);
    let store = open(killed.path(), &clock);
    store.delayed().start_schedule().unwrap();
    clock.advance(1_000);
    delivered(&store, 1, 1);
    assert_eq!(texts(&store, "orders", 0), ["one"]);
}

#[test]
fn a_broken_offset_file_is_named_and_its_backup_serves() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let path = directory.path().join("config/delayOffset.json");
    let store = open(directory.path(), &clock);
    send(&store, "orders", 0, "one", 1);
    fs::write(&path, "{\"offsetTable\":{1:").unwrap();
    match store.delayed().start_schedule() {
        Err(StoreError::Corrupt { file, .. }) => assert!(file.ends_with("config/delayOffset.json")),
        other => panic!("{other:?}"),
    }
    fs::write(path.with_extension("json.bak"), "{\"offsetTable\":{1:1}}").unwrap();
    store.delayed().start_schedule().unwrap();
    assert_eq!(store.delayed().delay_offsets().unwrap()[&1], 1);
}

#[test]
fn a_closed_queue_gets_no_message_and_an_open_one_of_the_topic_does() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    store.log().append(&[message("orders", 1, b"there", b"")]).unwrap();
    store.admin().set_queue_access("orders", 0, QueueAccess::ReadOnly).unwrap();
    send(&store, "orders", 0, "one", 1);
    clock.advance(1_000);
    delivered(&store, 1, 1);
    assert_eq!(store.queues().max_offset("orders", 0), 0);
    assert_eq!(texts(&store, "orders", 1), ["there", "one"]);
}

#[test]
fn a_message_for_a_topic_with_only_closed_queues_waits_again_and_blocks_no_other() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    store.admin().set_queue_access("shut", 0, QueueAccess::Closed).unwrap();
    send(&store, "shut", 0, "patient", 1);
    send(&store, "orders", 0, "one", 1);
    clock.advance(1_000);
    delivered(&store, 1, 2);
    assert_eq!(texts(&store, "orders", 0), ["one"]);
    assert_eq!(store.admin().stats().schedule.put_back, 1);
    store.admin().set_queue_access("shut", 0, QueueAccess::Open).unwrap();
    clock.advance(5_000);
    delivered(&store, 2, 1);
    assert_eq!(texts(&store, "shut", 0), ["patient"]);
}

#[test]
fn waiting_messages_of_a_deleted_topic_are_given_up_and_counted() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    store.delayed().start_schedule().unwrap();
    store.log().append(&[message("orders", 0, b"there", b"")]).unwrap();
    send(&store, "orders", 1, "one", 1);
    store.admin().delete_topic("orders").unwrap();
    send(&store, "orders", 1, "of the new topic", 1);
    clock.advance(1_000);
    delivered(&store, 1, 2);
    assert_eq!(texts(&store, "orders", 1), ["of the new topic"]);
    assert_eq!(store.admin().stats().schedule.undeliverable, 1);
}

#[test]
fn messages_that_cannot_be_stored_or_have_no_destination_block_no_other() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, "orders", 0, &"large".repeat(200), 1);
    let level_only = with_level(1);
    store.log().append(&[message(SCHEDULE_TOPIC, 0, b"no destination", &level_only)]).unwrap();
    send(&store, SCHEDULE_TOPIC, 0, "in circles", 1);
    send(&store, "RMQ_SYS_TRANS_HALF_TOPIC", 0, "half", 1);
    send(&store, "orders", -4, "no queue", 1);
    send(&store, "orders", 0, "small", 1);
    store.close().unwrap();
    clock.advance(1_000);
    let config = StoreConfig { max_message_size: 500, ..config() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    store.delayed().start_schedule().unwrap();
    delivered(&store, 1, 6);
    assert_eq!(texts(&store, "orders", 0), ["small"]);
    let stats = store.admin().stats().schedule;
    assert_eq!((stats.delivered, stats.undeliverable), (1, 5));
}

#[test]
fn messages_at_a_level_that_is_no_longer_configured_are_still_delivered() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let store = open(directory.path(), &clock);
    send(&store, "orders", 0, "one", 3);
    store.close().unwrap();
    clock.advance(10_000);
    let config = StoreConfig { delay_levels: "1s".parse().unwrap(), ..config() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    store.delayed().start_schedule().unwrap();
    delivered(&store, 3, 1);
    assert_eq!(texts(&store, "orders", 0), ["one"]);
}

#[test]
fn messages_are_delivered_as_real_time_passes() {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), config(), Clock::system()).unwrap();
    store.delayed().start_schedule().unwrap();
    send(&store, "orders", 0, "one", 1);
    delivered(&store, 1, 1);
    let (waited, came) = {
        let at = |topic| {
            let found = store.queues().get(topic, 0, 0, 1, 1 << 20, ALL);
            MessageView::decode(found.messages[0].1.bytes(), true).unwrap().store_timestamp
        };
        (at(SCHEDULE_TOPIC), at("orders"))
    };
    assert!(came - waited >= 1_000, "{came} is {} ms after {waited}", came - waited);
}

#[derive(Debug, Clone)]
enum Step {
    Send { level: u32, queue_id: i32 },
    Advance(i64),
    Reopen,
    Crash(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..4u32, 0..3i32).prop_map(|(level, queue_id)| Step::Send { level, queue_id }),
        4 => (0..8_000i64).prop_map(Step::Advance),
        1 => Just(Step::Reopen),
        2 => any::<u64>().prop_map(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: common::cases(60), ..ProptestConfig::default() })]

    /// On a disk that loses unflushed data: no acknowledged message is lost, none is early, and without a crash none is
    /// repeated.
    #[test]
    fn each_message_is_delivered_and_none_before_its_time_in_all_circumstances(steps in prop::collection::vec(step(), 1..25)) {
        let clock = Clock::manual(START);
        let mut disk = FakeDisk::new();
        let root = Path::new("/store");
        let config = || StoreConfig { progress_interval: Duration::from_millis(20), ..synchronous() };
        let open = |disk: &FakeDisk| {
            let store = MessageStore::open_on(disk.clone(), root, config(), clock.clone()).unwrap();
            store.delayed().start_schedule().unwrap();
            store
        };
        let mut store = open(&disk);
        let (mut sent, mut has_crashed) = (BTreeMap::new(), false);
        for step in steps {
            match step {
                Step::Send { level, queue_id } => {
                    let body = format!("{}", sent.len());
                    let at = clock.now_ms();
                    send_durable(&store, queue_id, &body, level);
                    sent.insert(body, at + [1_000, 5_000, 10_000][level as usize - 1]);
                }
                Step::Advance(ms) => clock.advance(ms),
                Step::Reopen => {
                    store.close().unwrap();
                    store = open(&disk);
                }
                Step::Crash(seed) => {
                    disk = disk.crash(seed);
                    drop(store);
                    store = open(&disk);
                    has_crashed = true;
                }
            }
        }
        clock.advance(10_000);
        settle(&store);
        let count = |level: u32| store.queues().max_offset(SCHEDULE_TOPIC, level - 1);
        (1..4).filter(|level| count(*level) > 0).for_each(|level| delivered(&store, level, count(level)));
        let mut came = BTreeMap::<String, u64>::new();
        for queue_id in 0..3 {
            for (body, at) in timed(&store, queue_id) {
                prop_assert!(at >= sent[&body], "{body} came at {at}, due at {}", sent[&body]);
                *came.entry(body).or_default() += 1;
            }
        }
        prop_assert!(came.keys().eq(sent.keys()), "lost: {sent:?} {came:?}");
        prop_assert!(has_crashed || came.values().all(|times| *times == 1), "{came:?}");
    }
}

fn send_durable<D: Disk>(store: &MessageStore<D>, queue_id: i32, body: &str, level: u32) {
    let properties = with_level(level);
    let given = message("orders", queue_id, body.as_bytes(), &properties);
    let delayed = store.log().delayed(&given).unwrap().unwrap();
    let waiting = NewMessage {
        topic: SCHEDULE_TOPIC,
        queue_id: delayed.queue_id,
        properties: &delayed.properties,
        ..given
    };
    append_durable(store, &[waiting]).unwrap();
    settle(store);
}

fn timed<D: Disk>(store: &MessageStore<D>, queue_id: u32) -> Vec<(String, i64)> {
    let end = store.queues().max_offset("orders", queue_id);
    (0..end)
        .map(|offset| {
            let found = store.queues().get("orders", queue_id, offset, 1, 1 << 20, ALL);
            let view = MessageView::decode(found.messages[0].1.bytes(), true).unwrap();
            (String::from_utf8(view.body.to_vec()).unwrap(), view.store_timestamp)
        })
        .collect()
}
