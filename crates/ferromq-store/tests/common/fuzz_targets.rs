//! Fuzz targets: arbitrary bytes cause no panic and no wrong message.
//!
//! `crates/fuzz` generates the bytes, `tests/corpus.rs` replays the kept ones.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    read::GetStatus,
    record::{MessageView, properties},
    time::Clock,
};

use super::{ALL, asynchronous, fake_disk::FakeDisk, message, named, settle};

const ROOT: &str = "/store";
const TOPICS: [&str; 2] = ["one", "two"];
const MESSAGES: u32 = 60;

/// Decodes arbitrary bytes as a record and reads all of it.
pub fn record(data: &[u8]) {
    for check_crc in [true, false] {
        let Ok(view) = MessageView::decode(data, check_crc) else { continue };
        assert!(view.total_size as usize <= data.len());
        assert!(view.body.len() + view.topic.len() + view.properties.len() < view.total_size as usize);
        for (name, value) in properties::iter(view.properties) {
            assert!(name.len() + value.len() <= view.properties.len());
        }
    }
}

/// Opens a store with one changed file, reads everything, appends, and opens it again.
///
/// The first byte chooses the file, the second how the store was closed. Then come changes: place (2 bytes, in
/// sixteenths of the file and bytes), length (1 byte), and the bytes themselves.
pub fn recovery(data: &[u8]) {
    change_and_open(data, |path| path.components().any(|part| part.as_os_str() != "index"));
}

/// Like [`recovery`], with a changed index file.
pub fn index(data: &[u8]) {
    change_and_open(data, |path| path.components().any(|part| part.as_os_str() == "index"));
}

fn config() -> StoreConfig {
    StoreConfig { commit_log_file_size: 8 << 10, ..asynchronous() }
}

fn open(disk: &FakeDisk) -> Result<MessageStore<FakeDisk>, StoreError> {
    MessageStore::open_on(disk.clone(), Path::new(ROOT), config(), Clock::manual(1_700_000_000_000))
}

/// A store with some files, and the bodies it holds by topic and queue offset.
fn written(is_closed: bool) -> (FakeDisk, BTreeMap<(&'static str, u64), Vec<u8>>) {
    let disk = FakeDisk::new();
    let store = open(&disk).expect("an empty disk opens");
    let mut bodies = BTreeMap::new();
    for number in 0..MESSAGES {
        let topic = TOPICS[number as usize % 2];
        let body = vec![number as u8; number as usize * 7];
        let properties = named(&format!("k{number}"), "tag");
        let appended = store.log().append(&[message(topic, 0, &body, &properties)]).expect("it appends");
        bodies.insert((topic, appended.locations[0].queue_offset), body);
    }
    settle(&store);
    if is_closed {
        store.close().expect("it closes");
        return (disk, bodies);
    }
    let left = disk.crash(u64::from(MESSAGES));
    (left, bodies)
}

fn change_and_open(data: &[u8], is_wanted: impl Fn(&Path) -> bool) {
    let Some((&[choice, left], changes)) = data.split_first_chunk::<2>() else { return };
    let (disk, bodies) = written(left.is_multiple_of(2));
    let paths: Vec<PathBuf> = disk.paths().into_iter().filter(|path| is_wanted(path)).collect();
    let Some(path) = paths.get(choice as usize % paths.len().max(1)) else { return };
    let Some(mut bytes) = disk.bytes(path) else { return };
    let mut rest = changes;
    while let Some((&[part, at, count], after)) = rest.split_first_chunk::<3>() {
        let (new, after) = after.split_at(usize::from(count).min(after.len()));
        let start = bytes.len() / 16 * usize::from(part % 16) + usize::from(at);
        for (place, byte) in bytes.iter_mut().skip(start).zip(new) {
            *place = *byte;
        }
        rest = after;
    }
    disk.put(path, &bytes);
    for _ in 0..2 {
        let Ok(store) = open(&disk) else { return };
        read_all(&store, &bodies);
        let added = store.log().append(&[message("added", 0, b"more", &named("added", "tag"))]);
        if added.is_ok() {
            settle(&store);
            let end = store.queues().max_offset("added", 0);
            let found = store.queues().get("added", 0, end - 1, 1, 1 << 20, ALL);
            assert_eq!(found.status, GetStatus::Found, "the message appended after it");
        }
        let _ = store.close();
    }
}

/// Every message read is one that was written: a body keeps its queue offset, whatever happened to the files.
fn read_all(store: &MessageStore<FakeDisk>, bodies: &BTreeMap<(&'static str, u64), Vec<u8>>) {
    for (topic, queues) in store.queues().list() {
        for queue_id in queues {
            let (mut at, end) =
                (store.queues().min_offset(&topic, queue_id), store.queues().max_offset(&topic, queue_id));
            for _ in 0..1000 {
                if at >= end {
                    break;
                }
                let found = store.queues().get(&topic, queue_id, at, 32, 1 << 20, ALL);
                for (_, record) in &found.messages {
                    // Open does not read old files completely: a changed record may not decode.
                    let Ok(view) = MessageView::decode(record.bytes(), false) else { continue };
                    assert_eq!(view.total_size as usize, record.bytes().len());
                }
                assert!(found.next_offset > at, "a reader never stands still: {:?}", found.status);
                at = found.next_offset;
            }
        }
    }
    for number in 0..MESSAGES {
        let topic = TOPICS[number as usize % 2];
        for record in store.queues().query_by_key(topic, &format!("k{number}"), 10, 0, i64::MAX).messages {
            let view = MessageView::decode(record.bytes(), true).expect("a record found by key is sound");
            let written = bodies.values().any(|body| body == view.body);
            assert!(written || view.topic != topic || view.body.len() != number as usize * 7);
        }
    }
}
