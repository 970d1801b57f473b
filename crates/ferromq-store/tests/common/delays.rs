//! Helpers for the tests of delay levels.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::{path::Path, time::Duration};

use ferromq_store::{
    MessageStore, StoreConfig,
    files::Disk,
    record::{NewMessage, names::SCHEDULE_TOPIC, properties},
    time::Clock,
};

use super::{asynchronous, bodies, message, settle};

pub const START: i64 = 1_700_000_000_000;

/// Writes offsets at close only, so that a test knows what a killed store has on disk.
pub fn config() -> StoreConfig {
    StoreConfig { progress_interval: Duration::from_secs(3_600), ..asynchronous() }
}

pub fn open(directory: &Path, clock: &Clock) -> MessageStore {
    MessageStore::open(directory, config(), clock.clone()).unwrap()
}

pub fn with_level(level: u32) -> Vec<u8> {
    let mut out = Vec::new();
    properties::push(&mut out, "TAGS", "a");
    properties::push(&mut out, "DELAY", &level.to_string());
    out
}

/// Sends like a producer: rewrites the message if it must wait.
pub fn send<D: Disk>(store: &MessageStore<D>, topic: &str, queue_id: i32, body: &str, level: u32) {
    let properties = with_level(level);
    let given = message(topic, queue_id, body.as_bytes(), &properties);
    let delayed = store.log().delayed(&given).unwrap().expect("a level");
    store
        .log()
        .append(&[NewMessage {
            topic: SCHEDULE_TOPIC,
            queue_id: delayed.queue_id,
            properties: &delayed.properties,
            ..given
        }])
        .unwrap();
    settle(store);
}

/// Waits until the delivery thread has no due message left, and readers see the delivered ones.
pub fn delivered<D: Disk>(store: &MessageStore<D>, level: u32, offset: u64) {
    for _ in 0..60_000 {
        if store.delayed().delay_offsets().unwrap().get(&level) == Some(&offset) {
            settle(store);
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("level {level} never reached {offset}: {:?}", store.delayed().delay_offsets());
}

pub fn texts<D: Disk>(store: &MessageStore<D>, topic: &str, queue_id: u32) -> Vec<String> {
    bodies(store, topic, queue_id).into_iter().map(|body| String::from_utf8(body).unwrap()).collect()
}
