//! Helpers for the tests of timed messages.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::{path::Path, time::Duration};

use ferromq_store::{
    MessageStore, StoreConfig,
    delayed::TimerConfig,
    files::Disk,
    record::{MessageView, NewMessage, properties},
    time::Clock,
};

use super::{ALL, append_durable, asynchronous, message, settle};

/// A whole minute of the wheel's seconds.
pub const START: i64 = 1_700_000_040_000;

/// A wheel of an hour, so that messages 2 minutes ahead are stored again on their way, and small files.
pub fn small() -> TimerConfig {
    TimerConfig {
        roll_window: 100,
        wheel_slots: 2_000,
        log_file_size: 4096,
        in_memory: 3,
        ..TimerConfig::default()
    }
}

/// Writes the progress at close only.
pub fn config() -> StoreConfig {
    let progress_interval = Duration::from_secs(3_600);
    StoreConfig { timer: small(), progress_interval, ..asynchronous() }
}

pub fn open(directory: &Path, clock: &Clock) -> MessageStore {
    MessageStore::open(directory, config(), clock.clone()).unwrap()
}

/// Durably stores a message for `orders` that is due at a time, or a recall.
pub fn put<D: Disk>(store: &MessageStore<D>, topic: &str, body: &str, due: i64, takes_back: bool) {
    let mut text = Vec::new();
    properties::push(&mut text, "UNIQ_KEY", body);
    properties::push(&mut text, "TIMER_DELIVER_MS", &due.to_string());
    if takes_back {
        // The form of RocketMQ 5.5.0, and that of later versions.
        let key = if body.len().is_multiple_of(2) { body.to_owned() } else { format!("{topic}+{body}") };
        properties::push(&mut text, "TIMER_DEL_UNIQKEY", &key);
    }
    let given = message(topic, 0, body.as_bytes(), &text);
    let delayed = store.log().delayed(&given).unwrap().expect("it lies ahead");
    let waiting = NewMessage {
        topic: delayed.topic,
        queue_id: delayed.queue_id,
        properties: &delayed.properties,
        ..given
    };
    append_durable(store, &[waiting]).unwrap();
    settle(store);
}

/// Messages of a topic: body and store time.
pub fn came<D: Disk>(store: &MessageStore<D>, topic: &str) -> Vec<(String, i64)> {
    let (mut all, mut next) = (Vec::new(), 0);
    while next < store.queues().max_offset(topic, 0) {
        let found = store.queues().get(topic, 0, next, 32, 1 << 20, ALL);
        for (_, record) in &found.messages {
            let view = MessageView::decode(record.bytes(), true).unwrap();
            all.push((String::from_utf8(view.body.to_vec()).unwrap(), view.store_timestamp));
        }
        assert!(found.next_offset > next, "{:?}", found.status);
        next = found.next_offset;
    }
    all
}

/// Waits until readers see this many messages of a topic.
pub fn wait_for<D: Disk>(store: &MessageStore<D>, topic: &str, count: u64) {
    for _ in 0..60_000 {
        if store.queues().max_offset(topic, 0) >= count {
            settle(store);
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!(
        "{topic} never had {count} messages: {:?} {:?}",
        store.admin().stats().timer,
        store.delayed().timed_waiting()
    );
}

/// Moves the clock to `due`, which lies ahead, and waits until everything due before is delivered.
pub fn deliver_all<D: Disk>(store: &MessageStore<D>, clock: &Clock, due: i64) {
    let before = store.queues().max_offset("last", 0);
    put(store, "last", "last", due, false);
    // Step by step, because messages may be stored again on their way.
    while clock.now_ms() < due {
        clock.advance(10_000.min(due - clock.now_ms()));
    }
    wait_for(store, "last", before + 1);
}

/// Waits for a condition. Fails if it is never true.
#[allow(dead_code)]
pub fn wait_until(mut holds: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the condition never became true");
}
