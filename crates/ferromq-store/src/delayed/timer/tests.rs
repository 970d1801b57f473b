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

/// Stores this many messages due at a time.
fn put(store: &MessageStore, due: i64, count: usize) {
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
    store.log().append(&vec![waiting; count]).unwrap();
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
    put(&store, START + 1_000, 1);
    clock.advance(1_000);
    let mut delivery = TimerDelivery::new(&store.delayed().timer);
    let delivered = (0..20).any(|_| {
        put(&store, START + 900_000, 1);
        delivery.turn(&mut store.delayed().timer.state.lock());
        store.admin().stats().timer.delivered == 1
    });
    assert!(delivered, "{:?}", store.admin().stats().timer);
}

#[test]
fn waiting_messages_are_in_files_and_memory_holds_a_limited_number_of_those_due() {
    const MOST: usize = 100;
    let (directory, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
    let timer = TimerConfig { in_memory: MOST, ..TimerConfig::default() };
    let config =
        StoreConfig { timer, disk_reserve: 0, commit_log_file_size: 1 << 20, ..StoreConfig::default() };
    let store = MessageStore::open(directory.path(), config, clock.clone()).unwrap();
    let mut delivery = TimerDelivery::new(&store.delayed().timer);
    // Takes a turn. Returns the number of messages in memory.
    let mut turn = || {
        let mut state = store.delayed().timer.state.lock();
        delivery.turn(&mut state);
        state.active.as_ref().map_or(0, |active| active.waiting.len())
    };
    let delivered = || store.admin().stats().timer.delivered;
    put(&store, START + 5_000, 1_500);
    put(&store, START + 9_000, 500);
    while store.admin().stats().timer.queue_offset < 2_000 {
        assert_eq!(turn(), 0, "none is due");
    }
    assert_eq!(turn(), 0, "none is due");
    clock.advance(4_500);
    let mut most = 0;
    for number in 0..1_000 {
        // More arrive for the slot while it is delivered, those due first included.
        if number % 10 == 0 && number < 50 {
            put(&store, START + 5_000 - number % 20, 300);
        }
        most = most.max(turn());
        assert!(most <= 2 * MOST, "{most} are in memory");
    }
    assert_eq!((delivered(), most >= MOST), (0, true), "the slot is being delivered: {most}");
    clock.advance(500);
    let is_delivered = (0..10_000).any(|_| {
        let in_memory = turn();
        assert!(in_memory <= 2 * MOST, "{in_memory} are in memory");
        delivered() == 3_000
    });
    assert!(is_delivered, "{:?}", store.admin().stats().timer);
    assert_eq!((0..10).map(|_| turn()).last(), Some(0), "nothing else is due in that second");
}
