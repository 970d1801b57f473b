//! The bytes on disk match RocketMQ's format: the tests build them from the layout and compare the files.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use common::{asynchronous, bodies, message, settle};
use ferromq_store::{
    MessageStore, StoreConfig,
    filter::MessageFilter,
    record::{MessageView, NewMessage, properties},
    time::Clock,
};

const NOW: i64 = 1_700_000_000_123;

fn open(directory: &Path) -> MessageStore {
    MessageStore::open(directory, asynchronous(), Clock::manual(NOW)).unwrap()
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn commit_log(directory: &Path) -> Vec<u8> {
    fs::read(directory.join("commitlog/00000000000000000000")).unwrap()
}

fn the_message<'a>(properties: &'a [u8]) -> NewMessage<'a> {
    NewMessage {
        topic: "TopicA",
        queue_id: 3,
        flag: 0x0102_0304,
        sys_flag: 8,
        born_timestamp: NOW - 5,
        born_host: SocketAddr::from(([10, 1, 2, 3], 54321)),
        reconsume_times: 2,
        prepared_transaction_offset: 77,
        body: b"hello",
        properties,
    }
}

#[test]
fn a_record_lies_on_disk_as_rocketmq_writes_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let named = b"KEYS\x01k1\x02TAGS\x01TagA\x02";
    let appended = store.log().append(&[the_message(named)]).unwrap();
    store.close().unwrap();
    let expected = [
        hex("00000078"),                  // total size: 88 + 5 + 1 + 6 + 2 + 18
        hex("DAA320A7"),                  // magic code
        hex("3610A686"),                  // CRC32 of "hello", top bit cleared
        hex("00000003"),                  // queue id
        hex("01020304"),                  // flag
        hex("0000000000000000"),          // queue offset
        hex("0000000000000000"),          // physical offset
        hex("00000008"),                  // system flag
        (NOW - 5).to_be_bytes().to_vec(), // born timestamp
        hex("0A010203 0000D431"),         // born host
        NOW.to_be_bytes().to_vec(),       // store timestamp
        hex("7F000001 00002A9F"),         // store host
        hex("00000002"),                  // reconsume times
        hex("000000000000004D"),          // prepared transaction offset
        hex("00000005"),                  // body length
        b"hello".to_vec(),                // body
        hex("06"),                        // topic length
        b"TopicA".to_vec(),               // topic
        hex("0012"),                      // properties length
        named.to_vec(),                   // properties
    ]
    .concat();
    let log = commit_log(directory.path());
    assert_eq!(log[..expected.len()], expected[..]);
    assert!(log[expected.len()..].iter().all(|byte| *byte == 0));
    assert_eq!(appended.end, expected.len() as u64);
}

#[test]
fn hosts_of_ipv6_and_long_topics_widen_the_record() {
    let directory = tempfile::tempdir().unwrap();
    let config = StoreConfig { store_host: "[2001:db8::1]:10911".parse().unwrap(), ..asynchronous() };
    let store = MessageStore::open(directory.path(), config, Clock::manual(NOW)).unwrap();
    let topic = "t".repeat(200);
    let born_host: SocketAddr = "[::1]:7".parse().unwrap();
    store.log().append(&[NewMessage { topic: &topic, born_host, ..the_message(b"") }]).unwrap();
    store.close().unwrap();
    let log = commit_log(directory.path());
    assert_eq!(log[4..8], hex("DAA320AB"));
    assert_eq!(log[36..40], hex("00000038"), "the host bits 16 and 32 beside 8");
    assert_eq!(log[48..68], hex("00000000000000000000000000000001 00000007"));
    assert_eq!(log[68..76], NOW.to_be_bytes());
    assert_eq!(log[76..96], hex("20010DB8000000000000000000000001 00002A9F"));
    assert_eq!(log[117..119], hex("00C8"), "a topic length of two bytes");
    let view = MessageView::decode(&log, true).unwrap();
    assert_eq!((view.topic, view.born_host), (topic.as_str(), born_host));
}

#[test]
fn the_end_of_a_file_is_filled_with_a_blank_record() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let body = vec![9; 30_000];
    let ends: Vec<u64> =
        (0..3).map(|_| store.log().append(&[message("t", 0, &body, b"")]).unwrap().end).collect();
    store.close().unwrap();
    let log = commit_log(directory.path());
    assert_eq!(log.len(), 64 << 10);
    let at = ends[1] as usize;
    let room = (log.len() - at) as u32;
    assert_eq!(log[at..at + 8], [room.to_be_bytes(), 0xCBD4_3194_u32.to_be_bytes()].concat());
    let next = fs::read(directory.path().join("commitlog/00000000000000065536")).unwrap();
    assert_eq!(MessageView::decode(&next, true).unwrap().physical_offset, 65_536);
}

#[test]
fn a_consume_queue_entry_leads_to_the_record() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let named = b"TAGS\x01TagA\x02";
    store.log().append(&[the_message(named), the_message(b""), the_message(named)]).unwrap();
    settle(&store);
    store.close().unwrap();
    let entries = fs::read(directory.path().join("consumequeue/TopicA/3/00000000000000000000")).unwrap();
    assert_eq!(entries.len(), 50 * 20);
    let expected = [
        hex("0000000000000000 00000070 000000000027A807"), // "TagA".hashCode() is 2598919
        hex("0000000000000070 00000066 0000000000000000"),
        hex("00000000000000D6 00000070 000000000027A807"),
    ]
    .concat();
    assert_eq!(entries[..60], expected[..]);
    assert!(entries[60..].iter().all(|byte| *byte == 0));
}

fn index_file(directory: &Path) -> PathBuf {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory.join("index")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 1);
    files.remove(0)
}

#[test]
fn an_index_file_chains_the_keys_of_a_slot() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::manual(NOW);
    let store = MessageStore::open(directory.path(), asynchronous(), clock.clone()).unwrap();
    let keys = b"KEYS\x01k1 k2\x02UNIQ_KEY\x01u1\x02";
    let first = store.log().append(&[the_message(keys)]).unwrap();
    settle(&store);
    clock.advance(2500);
    store.log().append(&[the_message(b"KEYS\x01k1\x02")]).unwrap();
    settle(&store);
    store.close().unwrap();

    let path = index_file(directory.path());
    assert_eq!(path.file_name().unwrap().to_str().unwrap(), "20231114221320123");
    let bytes = fs::read(path).unwrap();
    assert_eq!(bytes.len(), 40 + 50 * 4 + 200 * 20);
    let header = [
        NOW.to_be_bytes().to_vec(),
        (NOW + 2500).to_be_bytes().to_vec(),
        0u64.to_be_bytes().to_vec(),
        first.end.to_be_bytes().to_vec(),
        3u32.to_be_bytes().to_vec(), // slots in use
        5u32.to_be_bytes().to_vec(), // four entries; the first place is never used
    ]
    .concat();
    assert_eq!(bytes[..40], header[..]);

    // Java's hash of "TopicA#u1", computed from its definition.
    let hash = |key: &str| {
        format!("TopicA#{key}")
            .bytes()
            .fold(0i32, |h, b| h.wrapping_mul(31).wrapping_add(i32::from(b)))
            .unsigned_abs()
    };
    let slot = |key: &str| {
        let at = 40 + (hash(key) % 50) as usize * 4;
        u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
    };
    assert_eq!((slot("u1"), slot("k2"), slot("k1")), (1, 3, 4));
    let entry = |number: usize| bytes[240 + number * 20..][..20].to_vec();
    let expected = |key: &str, offset: u64, seconds: u32, before: u32| {
        [
            hash(key).to_be_bytes().to_vec(),
            offset.to_be_bytes().to_vec(),
            seconds.to_be_bytes().to_vec(),
            before.to_be_bytes().to_vec(),
        ]
        .concat()
    };
    assert_eq!(entry(0), [0; 20]);
    assert_eq!(entry(1), expected("u1", 0, 0, 0));
    assert_eq!(entry(2), expected("k1", 0, 0, 0));
    assert_eq!(entry(3), expected("k2", 0, 0, 0));
    assert_eq!(entry(4), expected("k1", first.end, 2, 2));
}

#[test]
fn the_checkpoint_holds_timestamps_and_the_durable_end() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let end = store.log().append(&[the_message(b"KEYS\x01k\x02")]).unwrap().end;
    settle(&store);
    assert!(directory.path().join("abort").exists());
    store.close().unwrap();
    assert!(!directory.path().join("abort").exists());
    let bytes = fs::read(directory.path().join("checkpoint")).unwrap();
    assert_eq!(bytes.len(), 4096);
    let expected =
        [NOW.to_be_bytes(), NOW.to_be_bytes(), NOW.to_be_bytes(), [0; 8], end.to_be_bytes()].concat();
    assert_eq!(bytes[..40], expected[..]);
}

#[test]
fn half_and_rolled_back_messages_take_no_queue_offset() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let keyed = |key: &str| {
        let mut out = Vec::new();
        properties::push(&mut out, "KEYS", key);
        out
    };
    let (half, committed, rolled_back, plain) =
        (keyed("half"), keyed("committed"), keyed("back"), keyed("plain"));
    let mut batch = [message("t", 0, b"half", &half); 4];
    batch[0].sys_flag = 4;
    batch[1] = NewMessage { sys_flag: 8, ..message("t", 0, b"committed", &committed) };
    batch[2] = NewMessage { sys_flag: 12, ..message("t", 0, b"back", &rolled_back) };
    batch[3] = message("t", 0, b"plain", &plain);
    let appended = store.log().append(&batch).unwrap();
    settle(&store);
    assert_eq!(bodies(&store, "t", 0), [b"committed".to_vec(), b"plain".to_vec()]);
    assert_eq!(appended.locations.iter().map(|l| l.queue_offset).collect::<Vec<_>>(), [0, 0, 0, 1]);
    let count = |key: &str| store.queues().query_by_key("t", key, 10, 0, i64::MAX).messages.len();
    assert_eq!((count("half"), count("committed"), count("back"), count("plain")), (1, 1, 0, 1));
}

// Directories written by Apache RocketMQ: see tests/fixtures/store/README.md.

/// A copy of a fixture, and the lines of its expected content.
fn golden(name: &str) -> (tempfile::TempDir, Vec<Vec<String>>) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/store");
    let copy = tempfile::tempdir().unwrap();
    copy_tree(&fixtures.join(name), copy.path());
    let lines = fs::read_to_string(fixtures.join(format!("{name}.txt"))).unwrap();
    let words = |line: &str| line.split('\t').map(str::to_owned).collect();
    (copy, lines.lines().map(words).collect())
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// A record in the form of the fixtures' lines.
fn described(record: &[u8], kind: &str) -> Vec<String> {
    let view = MessageView::decode(record, true).unwrap();
    let host = |host: SocketAddr| {
        let address = match host.ip() {
            std::net::IpAddr::V4(ip) => format!("{:08x}", ip.to_bits()),
            std::net::IpAddr::V6(ip) => format!("{:032x}", ip.to_bits()),
        };
        format!("{address}:{}", host.port())
    };
    let mut sorted: Vec<(&str, &str)> = properties::iter(view.properties).collect();
    sorted.sort_unstable();
    let mut text = Vec::new();
    sorted.into_iter().for_each(|(name, value)| properties::push(&mut text, name, value));
    vec![
        kind.to_owned(),
        view.physical_offset.to_string(),
        crc32fast::hash(record).to_string(),
        view.topic.to_owned(),
        view.queue_id.to_string(),
        view.queue_offset.to_string(),
        view.total_size.to_string(),
        view.flag.to_string(),
        view.sys_flag.to_string(),
        view.born_timestamp.to_string(),
        host(view.born_host),
        view.store_timestamp.to_string(),
        host(view.store_host),
        view.reconsume_times.to_string(),
        view.prepared_transaction_offset.to_string(),
        view.body.len().to_string(),
        crc32fast::hash(view.body).to_string(),
        crc32fast::hash(&text).to_string(),
    ]
}

fn assert_holds(store: &MessageStore, lines: &[Vec<String>]) {
    for line in lines {
        match line[0].as_str() {
            "queued" | "kept" => {
                let place: u64 = line[1].parse().unwrap();
                assert_eq!(described(store.queues().message_at(place).unwrap().bytes(), &line[0]), *line);
            }
            "key" => {
                let found = store.queues().query_by_key(&line[1], &line[2], 100, 0, i64::MAX);
                let place = |record: &[u8]| MessageView::decode(record, true).unwrap().physical_offset;
                let mut places: Vec<u64> =
                    found.messages.iter().map(|record| place(record.bytes())).collect();
                places.sort_unstable();
                let places: Vec<String> = places.iter().map(u64::to_string).collect();
                assert_eq!(places.join(" "), line[3], "{} {}", line[1], line[2]);
            }
            _ => {}
        }
    }
    // In the order of their queues, and nothing else.
    let mut queued: Vec<&Vec<String>> = lines.iter().filter(|line| line[0] == "queued").collect();
    queued.sort_by_key(|line| (&line[3], line[4].parse::<u32>().unwrap(), line[5].parse::<u64>().unwrap()));
    let mut found = Vec::new();
    for (topic, ids) in store.queues().list() {
        for queue_id in ids {
            let got = store.queues().get(&topic, queue_id, 0, 1000, usize::MAX, &MessageFilter::All);
            found.extend(got.messages.iter().map(|(_, record)| described(record.bytes(), "queued")));
        }
    }
    found.sort_by_key(|line| {
        (line[3].clone(), line[4].parse::<u32>().unwrap(), line[5].parse::<u64>().unwrap())
    });
    assert!(found.iter().eq(queued), "by queue offset");
}

#[test]
fn a_directory_of_apache_rocketmq_is_read_completely_and_continued() {
    for (name, is_clean) in [("stopped", true), ("killed", false), ("property-crc", true)] {
        let (directory, mut lines) = golden(name);
        assert!(lines.len() > 200, "{name}");
        assert_eq!(directory.path().join("abort").exists(), !is_clean);
        for round in 0..2 {
            // The sizes found count; the options have others.
            let store = MessageStore::open(directory.path(), asynchronous(), Clock::system()).unwrap();
            assert_holds(&store, &lines);
            let keys = format!("KEYS\x01ours{round}\x02");
            let end = store.log().append(&[message("bulk", 1, b"ours", keys.as_bytes())]).unwrap();
            store.log().append(&[message("ours", 0, b"ours", b"")]).unwrap();
            settle(&store);
            let place = end.locations[0].physical_offset;
            lines.push(described(store.queues().message_at(place).unwrap().bytes(), "queued"));
            lines.push(described(store.queues().message_at(end.end).unwrap().bytes(), "queued"));
            lines.push(
                ["key", "bulk", &format!("ours{round}"), &place.to_string()].map(str::to_owned).to_vec(),
            );
            assert_holds(&store, &lines);
            store.close().unwrap();
        }
        let size = |path: &str| fs::metadata(directory.path().join(path)).unwrap().len();
        assert_eq!(size("consumequeue/ours/0/00000000000000000000"), 20 * 20, "as the files found");
        assert_eq!(size("commitlog/00000000000000016384"), 16 << 10);
    }
}

#[test]
fn a_property_crc_made_by_apache_rocketmq_shows_a_changed_byte() {
    let (directory, lines) = golden("property-crc");
    let line = lines.iter().find(|line| line[0] == "queued").unwrap();
    let (place, size): (usize, usize) = (line[1].parse().unwrap(), line[6].parse().unwrap());
    let mut record = commit_log(directory.path())[place..place + size].to_vec();
    assert!(MessageView::decode(&record, true).is_ok());
    // A letter of the properties, which the body's checksum does not cover.
    record[size - 30] ^= 1;
    assert!(MessageView::decode(&record, true).is_err());
    assert!(MessageView::decode(&record, false).is_ok());
}
