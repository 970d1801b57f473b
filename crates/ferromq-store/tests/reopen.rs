//! What a store serves after it was closed and opened again, on the real disk.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use common::{asynchronous, bodies, message, named, settle, synchronous};
use ferromq_store::{Clock, MessageStore, MessageView, StoreError};

fn fill(store: &MessageStore, range: std::ops::Range<u32>) {
    for number in range {
        let body = vec![number as u8; (number as usize * 37) % 3000];
        let named = named(&format!("k{number}"), if number % 3 == 0 { "a" } else { "b" });
        let appended = store.append(&[message("t", (number % 4) as i32, &body, &named)]).unwrap();
        assert_eq!(appended.locations[0].queue_offset, u64::from(number / 4));
    }
}

fn check(store: &MessageStore, count: u32) {
    for queue_id in 0..4u32 {
        let bodies = bodies(store, "t", queue_id);
        let expected: Vec<Vec<u8>> = (0..count)
            .filter(|number| number % 4 == queue_id)
            .map(|number| vec![number as u8; (number as usize * 37) % 3000])
            .collect();
        assert_eq!(bodies.len(), expected.len());
        assert!(bodies == expected);
    }
    for number in 0..count {
        let found = store.query_by_key("t", &format!("k{number}"), 10, 0, i64::MAX);
        assert_eq!(found.len(), 1, "key {number}");
        let view = MessageView::decode(found[0].bytes(), true).unwrap();
        assert_eq!(view.queue_offset, u64::from(number / 4));
    }
}

#[test]
fn messages_and_keys_survive_clean_stops() {
    for config in [asynchronous(), synchronous()] {
        let directory = tempfile::tempdir().unwrap();
        for round in 0..4 {
            let store = MessageStore::open(directory.path(), config.clone(), Clock::system()).unwrap();
            check(&store, round * 300);
            fill(&store, round * 300..(round + 1) * 300);
            let end = store.stats().max_physical_offset;
            store.wait_durable(end).unwrap();
            settle(&store);
            check(&store, (round + 1) * 300);
            store.close().unwrap();
            assert!(!directory.path().join("abort").exists());
        }
    }
}

#[test]
fn a_second_store_on_the_same_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
    let second = MessageStore::open(directory.path(), asynchronous(), Clock::system());
    assert!(matches!(second, Err(StoreError::Locked { .. })));
    store.close().unwrap();
    MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
}
