//! Tests of single turns of the delivery thread. `tests/timer.rs` tests their outcome.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::{
    config::StoreConfig,
    delayed::timer::{delivery::TimerDelivery, timed_message::TimerConfig},
    record::encode::NewMessage,
    store::message_store::MessageStore,
    time::clock::Clock,
};

const START: i64 = 1_700_000_040_000;

fn put(store: &MessageStore, due: i64) {
    let text = format!("TIMER_DELIVER_MS\u{1}{due}\u{2}");
    let given = NewMessage {
        topic: "orders",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: START,
        born_host: ([127, 0, 0, 1], 1).into(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"m",
        properties: text.as_bytes(),
    };
    let delayed = store.log().delayed(&given).unwrap().unwrap();
    let waiting = NewMessage { topic: delayed.topic, queue_id: 0, properties: &delayed.properties, ..given };
    store.log().append(&[waiting]).unwrap();
    let end = store.queues().log.written();
    (0..60_000).find(|_| {
        std::thread::sleep(Duration::from_millis(1));
        store.delayed().timer.dispatched.end() >= end
    });
    assert!(store.delayed().timer.dispatched.end() >= end);
}

#[test]
fn due_messages_are_delivered_while_new_ones_arrive_before_every_turn() {
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let timer = TimerConfig { wheel_slots: 2_000, log_file_size: 4096, ..TimerConfig::default() };
    let config =
        StoreConfig { timer, disk_reserve: 0, commit_log_file_size: 1 << 20, ..StoreConfig::default() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    put(&store, START + 1_000);
    clock.advance(1_000);
    let mut delivery = TimerDelivery::new(&store.delayed().timer);
    let delivered = (0..20).any(|_| {
        put(&store, START + 900_000);
        delivery.turn(&mut store.delayed().timer.state.lock());
        store.admin().stats().timer.delivered == 1
    });
    assert!(delivered, "{:?}", store.admin().stats().timer);
}
