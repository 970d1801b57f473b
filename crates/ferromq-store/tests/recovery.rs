//! Whatever happens to its files, a store opens, reports the damage, and serves exactly the rest.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, missing_docs)]

mod common;

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use common::{
    ALL, asynchronous, copy_as_killed,
    fake_disk::{FakeDisk, Op},
    message, named, settle, synchronous,
};
use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    files::Disk,
    log::{DamageReason, FlushPolicy},
    record::MessageView,
    time::Clock,
};
use proptest::prelude::*;

const QUEUES: u32 = 3;
const FILE: u64 = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    queue_id: u32,
    queue_offset: u64,
    body: Vec<u8>,
    start: u64,
    end: u64,
}

fn config() -> StoreConfig {
    // Without the property CRC, nothing covers a record's head, topic and properties.
    StoreConfig { property_crc: true, ..asynchronous() }
}

fn open(directory: &Path) -> MessageStore {
    MessageStore::open(directory, config(), Clock::manual(1_700_000_000_000)).unwrap()
}

fn body_of(number: u32) -> Vec<u8> {
    (0..(number as usize * 97) % 1500).map(|at| (at as u32 * 31 + number) as u8).collect()
}

fn fill(store: &MessageStore, numbers: std::ops::Range<u32>) -> Vec<Written> {
    let mut written = Vec::new();
    for number in numbers {
        let body = body_of(number);
        let queue_id = number % QUEUES;
        let properties = named(&format!("k{number}"), "a");
        let appended = store.log().append(&[message("t", queue_id as i32, &body, &properties)]).unwrap();
        let location = appended.locations[0];
        written.push(Written {
            queue_id,
            queue_offset: location.queue_offset,
            body,
            start: location.physical_offset,
            end: appended.end,
        });
    }
    settle(store);
    written
}

/// All messages that readers get, by queue and queue offset.
fn served<D: Disk>(store: &MessageStore<D>) -> BTreeMap<(u32, u64), Vec<u8>> {
    let mut served = BTreeMap::new();
    for queue_id in 0..QUEUES {
        let mut at = store.queues().min_offset("t", queue_id);
        while at < store.queues().max_offset("t", queue_id) {
            let found = store.queues().get("t", queue_id, at, 32, usize::MAX, ALL);
            assert!(found.next_offset > at, "no way past {at}: {:?}", found.status);
            for (queue_offset, record) in found.messages {
                let view = MessageView::decode(record.bytes(), true).expect("a sound record");
                assert_eq!(
                    (view.topic, view.queue_id as u32, view.queue_offset),
                    ("t", queue_id, queue_offset)
                );
                served.insert((queue_id, queue_offset), view.body.to_vec());
            }
            at = found.next_offset;
        }
    }
    served
}

/// The written messages, except those that overlap a damage or lie past the end.
fn expected(store: &MessageStore, written: &[Written]) -> BTreeMap<(u32, u64), Vec<u8>> {
    let damages = store.admin().damages();
    let is_left = |written: &&Written| {
        let is_hit = damages.iter().any(|d| d.range.start < written.end && written.start < d.range.end);
        let kept = store.admin().stats().min_physical_offset..=store.admin().stats().max_physical_offset;
        !is_hit && kept.contains(&written.start) && kept.contains(&written.end)
    };
    let left = written.iter().filter(is_left);
    left.map(|written| ((written.queue_id, written.queue_offset), written.body.clone())).collect()
}

fn files_under(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files_under(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[derive(Debug, Clone)]
enum Harm {
    Flip { at: u64, bit: u8 },
    Zero { at: u64, len: u64 },
    Noise { at: u64, len: u64, seed: u8 },
    Shorten { to: u64 },
    Remove,
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        4 => (any::<u64>(), 0..8u8).prop_map(|(at, bit)| Harm::Flip { at, bit }),
        2 => (any::<u64>(), 1..6000u64).prop_map(|(at, len)| Harm::Zero { at, len }),
        2 => (any::<u64>(), 1..6000u64, any::<u8>()).prop_map(|(at, len, seed)| Harm::Noise { at, len, seed }),
        1 => any::<u64>().prop_map(|to| Harm::Shorten { to }),
        1 => Just(Harm::Remove),
    ]
}

fn apply(harm: &Harm, path: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    if len == 0 {
        return;
    }
    let overwrite = |at: u64, count: u64, byte: &dyn Fn(u64) -> u8| {
        let at = at % len;
        let bytes: Vec<u8> = (0..count.min(len - at)).map(byte).collect();
        file.write_all_at(&bytes, at).unwrap();
    };
    match *harm {
        Harm::Flip { at, bit } => {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at % len).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << bit], at % len).unwrap();
        }
        Harm::Zero { at, len } => overwrite(at, len, &|_| 0),
        Harm::Noise { at, len, seed } => overwrite(at, len, &|n| (n as u8).wrapping_mul(167) ^ seed),
        Harm::Shorten { to } => file.set_len(to % len).unwrap(),
        Harm::Remove => fs::remove_file(path).unwrap(),
    }
}

/// The number of cases; `FERROMQ_RECOVERY_CASES` raises it for a long run.
fn cases() -> u32 {
    std::env::var("FERROMQ_RECOVERY_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(16)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_log_serves_exactly_the_written_messages_minus_the_reported_damage(
        is_clean in any::<bool>(),
        count in 30u32..260,
        harms in prop::collection::vec((any::<prop::sample::Index>(), harm()), 1..4),
    ) {
        let (directory, harmed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = open(directory.path());
        let mut written = fill(&store, 0..count * 2 / 3);
        // Everything so far is flushed: a change of the policy does that.
        store.admin().set_flush(FlushPolicy::Group).unwrap();
        store.admin().set_flush(config().flush).unwrap();
        written.extend(fill(&store, count * 2 / 3..count));
        if is_clean {
            store.close().unwrap();
        }
        // Recovery never cuts below the last flush.
        let flushed = store.admin().stats().flushed_offset;
        copy_as_killed(directory.path(), harmed.path());
        for (which, harm) in &harms {
            let files = files_under(&harmed.path().join("commitlog"));
            if !files.is_empty() {
                apply(harm, &files[which.index(files.len())]);
            }
        }
        for _ in 0..2 {
            let store = open(harmed.path());
            prop_assert!(store.admin().stats().max_physical_offset >= flushed);
            // The first round of reads finds damage that recovery does not check for.
            served(&store);
            prop_assert_eq!(served(&store), expected(&store, &written));
            for written in &written {
                let found = store.queues().message_at(written.start).ok();
                prop_assert!(found.is_none_or(|r| MessageView::decode(r.bytes(), true).unwrap().body == written.body));
            }
            // If the durable end was known, each offset is assigned only once.
            if is_clean {
                for queue_id in 0..QUEUES {
                    let given = written.iter().filter(|w| w.queue_id == queue_id).count() as u64;
                    prop_assert!(store.queues().max_offset("t", queue_id) >= given);
                }
            }
            store.close().unwrap();
        }
    }

    #[test]
    fn a_damaged_log_that_another_broker_closed_assigns_no_offset_again(
        is_killed in any::<bool>(),
        count in 30u32..260,
        harms in prop::collection::vec((any::<prop::sample::Index>(), harm()), 1..4),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let written = fill(&store, 0..count);
        store.close().unwrap();
        put_notes_back(directory.path(), &[]);
        for (which, harm) in &harms {
            let files = files_under(&directory.path().join("commitlog"));
            if !matches!(harm, Harm::Shorten { .. } | Harm::Remove) {
                apply(harm, &files[which.index(files.len())]);
            }
        }
        if is_killed {
            kill_at_takeover(directory.path());
        }
        for round in 0..2 {
            let store = open(directory.path());
            prop_assert!(store.admin().stats().max_physical_offset >= written.last().unwrap().end);
            served(&store);
            prop_assert_eq!(served(&store), expected(&store, &written));
            for queue_id in 0..QUEUES {
                let given = written.iter().filter(|w| w.queue_id == queue_id).count() as u64;
                prop_assert_eq!(store.queues().max_offset("t", queue_id), given, "round {}", round);
            }
            store.close().unwrap();
        }
    }

    #[test]
    fn damaged_derived_files_are_rebuilt_and_everything_is_served(
        is_clean in any::<bool>(),
        count in 30u32..260,
        harms in prop::collection::vec((any::<prop::sample::Index>(), harm()), 1..3),
    ) {
        let (directory, harmed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = open(directory.path());
        let written = fill(&store, 0..count);
        store.close().unwrap();
        copy_as_killed(directory.path(), harmed.path());
        if !is_clean {
            fs::write(harmed.path().join("abort"), "4711").unwrap();
        }
        for (which, harm) in &harms {
            let mut files = files_under(&harmed.path().join("consumequeue"));
            files.extend(files_under(&harmed.path().join("index")));
            // `verify` finds bytes changed within a closed file; no wrong message is served for them.
            if !files.is_empty() && matches!(harm, Harm::Shorten { .. } | Harm::Remove) {
                apply(harm, &files[which.index(files.len())]);
            }
        }
        let store = open(harmed.path());
        prop_assert_eq!(store.admin().damages(), []);
        prop_assert_eq!(served(&store), expected(&store, &written));
        for number in 0..count {
            let found = store.queues().query_by_key("t", &format!("k{number}"), 10, 0, i64::MAX).messages;
            prop_assert_eq!(found.len(), 1, "key {}", number);
        }
    }

    #[test]
    fn noise_in_derived_files_never_serves_a_wrong_message(
        is_clean in any::<bool>(),
        harms in prop::collection::vec((any::<prop::sample::Index>(), harm()), 1..5),
    ) {
        let (directory, harmed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = open(directory.path());
        let written = fill(&store, 0..150);
        if is_clean {
            store.close().unwrap();
        }
        copy_as_killed(directory.path(), harmed.path());
        for (which, harm) in &harms {
            let mut files = files_under(&harmed.path().join("consumequeue"));
            files.extend(files_under(&harmed.path().join("index")));
            files.extend(files_under(&harmed.path().join("ferromq")));
            files.push(harmed.path().join("checkpoint"));
            files.retain(|path| path.exists());
            apply(harm, &files[which.index(files.len())]);
        }
        let store = match MessageStore::open(harmed.path(), config(), Clock::manual(1_700_000_000_000)) {
            Ok(store) => store,
            Err(StoreError::Corrupt { .. } | StoreError::Io { .. }) => return Ok(()),
            Err(error) => panic!("{error}"),
        };
        let all: BTreeMap<_, _> =
            written.iter().map(|w| ((w.queue_id, w.queue_offset), w.body.clone())).collect();
        for (place, body) in served(&store) {
            prop_assert_eq!(Some(&body), all.get(&place));
        }
    }
}

#[test]
fn a_missing_first_file_is_only_a_later_start() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let written = fill(&store, 0..300);
    store.close().unwrap();
    fs::remove_file(directory.path().join("commitlog").join(format!("{:020}", 0))).unwrap();
    let store = open(directory.path());
    assert_eq!(store.admin().damages(), []);
    let left: BTreeMap<_, _> = written
        .iter()
        .filter(|written| written.start >= FILE)
        .map(|written| ((written.queue_id, written.queue_offset), written.body.clone()))
        .collect();
    assert!(served(&store) == left);
    for queue_id in 0..QUEUES {
        let first = left.keys().find(|(id, _)| *id == queue_id).unwrap().1;
        assert_eq!(store.queues().min_offset("t", queue_id), first);
    }
}

#[test]
fn a_missing_last_file_is_reported_and_no_offset_is_assigned_twice() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let written = fill(&store, 0..300);
    store.close().unwrap();
    let end = written.last().unwrap().end;
    let base = end / FILE * FILE;
    fs::read_dir(directory.path().join("commitlog"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().parse::<u64>().unwrap() >= base)
        .for_each(|path| fs::remove_file(path).unwrap());
    for round in 0..2u64 {
        let store = open(directory.path());
        let damages = store.admin().damages();
        assert_eq!(damages.len(), 1, "{damages:?}");
        assert_eq!((damages[0].range.start, damages[0].reason), (base, DamageReason::Missing));
        assert!(damages[0].range.end >= end);
        let next = store.log().append(&[message("t", 0, b"next", b"")]).unwrap();
        assert_eq!(next.locations[0].queue_offset, 100 + round);
        assert!(next.locations[0].physical_offset >= end);
        settle(&store);
        assert_eq!(store.queues().get("t", 0, 100, 32, usize::MAX, ALL).messages.len() as u64, round + 1);
        store.close().unwrap();
    }
}

#[test]
fn a_torn_tail_is_cut_and_its_bytes_and_messages_are_reported() {
    let (directory, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(directory.path());
    let flushed_at_first = fs::read(directory.path().join("ferromq/flushed")).unwrap();
    let written = fill(&store, 0..20);
    copy_as_killed(directory.path(), killed.path());
    store.close().unwrap();
    // As if nothing was flushed and no checkpoint written, and the eleventh record never reached the disk.
    fs::remove_file(killed.path().join("checkpoint")).unwrap();
    fs::write(killed.path().join("ferromq/flushed"), flushed_at_first).unwrap();
    let log = killed.path().join("commitlog").join(format!("{:020}", 0));
    let file = OpenOptions::new().write(true).open(log).unwrap();
    file.write_all_at(&[0; 8], written[10].start).unwrap();
    let store = open(killed.path());
    let report = store.admin().recovery();
    assert!(!report.is_clean);
    assert_eq!(store.admin().stats().max_physical_offset, written[10].start);
    assert_eq!((report.messages, report.cut_messages), (10, 9));
    assert!(report.cut_bytes > 0 && report.cut_bytes <= written[19].end - written[10].start);
    assert_eq!((report.walked_bytes, report.rewritten_bytes), (written[10].start, written[10].start));
    assert_eq!(store.admin().damages(), []);
    assert_eq!(served(&store), expected(&store, &written));
}

#[test]
fn a_clean_stop_opens_without_a_walk_and_a_kill_walks_only_the_log_after_the_checkpoint() {
    let (directory, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(directory.path());
    fill(&store, 0..300);
    store.close().unwrap();
    let store = open(directory.path());
    let report = store.admin().recovery();
    assert!(report.is_clean);
    assert_eq!((report.walked_bytes, report.messages, report.redone, report.rewritten_bytes), (0, 0, 0, 0));
    // Killed before the next checkpoint.
    let before = store.admin().stats().max_physical_offset;
    let checkpoint = fs::read(directory.path().join("checkpoint")).unwrap();
    let flushed = fs::read(directory.path().join("ferromq/flushed")).unwrap();
    fill(&store, 300..310);
    copy_as_killed(directory.path(), killed.path());
    fs::write(killed.path().join("checkpoint"), checkpoint).unwrap();
    fs::write(killed.path().join("ferromq/flushed"), flushed).unwrap();
    let end = store.admin().stats().max_physical_offset;
    let store = open(killed.path());
    let report = store.admin().recovery();
    assert_eq!((report.messages, report.redone), (10, 10));
    assert!(report.walked_bytes <= end - before);
    assert_eq!(report.rewritten_bytes, end - before);
}

#[test]
fn fast_boot_checks_no_checksum_and_still_never_serves_a_damaged_message() {
    let (directory, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(directory.path());
    let written = fill(&store, 0..20);
    copy_as_killed(directory.path(), killed.path());
    store.close().unwrap();
    fs::remove_file(killed.path().join("checkpoint")).unwrap();
    let log = killed.path().join("commitlog").join(format!("{:020}", 0));
    let file = OpenOptions::new().read(true).write(true).open(log).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, written[10].start + 100).unwrap();
    file.write_all_at(&[!byte[0]], written[10].start + 100).unwrap();
    let checked = tempfile::tempdir().unwrap();
    copy_as_killed(killed.path(), checked.path());

    let store = open(checked.path());
    assert_eq!(store.admin().stats().max_physical_offset, written[10].start, "cut");
    let config = StoreConfig { fast_boot: true, ..config() };
    let store = MessageStore::open(killed.path(), config, Clock::system()).unwrap();
    assert_eq!(store.admin().stats().max_physical_offset, written[19].end, "not checked");
    let mut left = served(&store);
    assert_eq!(left.len(), 19, "not served");
    assert_eq!(store.admin().damages()[0].range, written[10].start..written[10].end);
    left.insert((10 % QUEUES, 10 / u64::from(QUEUES)), written[10].body.clone());
    let all: BTreeMap<_, _> =
        written.iter().map(|w| ((w.queue_id, w.queue_offset), w.body.clone())).collect();
    assert_eq!(left, all);
}

#[test]
fn our_own_files_are_ignored_once_another_broker_had_the_store() {
    // Another broker appends after our end, is closed or killed, and does not know `ferromq/`.
    for is_killed in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let written = fill(&store, 0..20);
        store.close().unwrap();
        let end = written[19].end;
        let log = directory.path().join("commitlog").join(format!("{:020}", 0));
        let file = OpenOptions::new().read(true).write(true).open(log).unwrap();
        // Its record: one of ours without property CRC, at another place of queue 1.
        let other = tempfile::tempdir().unwrap();
        let theirs =
            MessageStore::open(other.path(), asynchronous(), Clock::manual(1_700_000_000_000)).unwrap();
        theirs.log().append(&[message("t", 2, b"theirs", b"")]).unwrap();
        let mut record = theirs.queues().message_at(0).unwrap().bytes().to_vec();
        record[20..28].copy_from_slice(&6u64.to_be_bytes());
        record[28..36].copy_from_slice(&end.to_be_bytes());
        file.write_all_at(&record, end).unwrap();
        if is_killed {
            fs::write(directory.path().join("abort"), "4711").unwrap();
        }
        // Wrong content for all of our files.
        let ours = directory.path().join("ferromq");
        let before: Vec<(PathBuf, Vec<u8>)> =
            files_under(&ours).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        assert!(before.iter().any(|(path, _)| path.ends_with("closed")));
        assert!(before.iter().any(|(path, _)| path.ends_with("queues")));
        assert!(before.iter().any(|(path, _)| path.ends_with("flushed")));
        let store = open(directory.path());
        assert_eq!(store.admin().stats().max_physical_offset, end + record.len() as u64, "the log continued");
        let found = store.queues().get("t", 2, 6, 1, usize::MAX, ALL);
        let body = |record: &[u8]| MessageView::decode(record, true).unwrap().body.to_vec();
        assert_eq!(found.messages.iter().map(|(_, r)| body(r.bytes())).collect::<Vec<_>>(), [b"theirs"]);
        assert_eq!(store.admin().damages(), []);
    }
}

#[test]
fn an_atomic_append_is_cut_completely_when_its_last_record_is_missing() {
    let (directory, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(directory.path());
    let written = fill(&store, 0..9);
    let parts = [message("t", 0, b"1", b""), message("t", 1, b"2", b""), message("t", 2, b"3", b"")];
    let appended = store.log().append_as_one(&parts).unwrap();
    settle(&store);
    copy_as_killed(directory.path(), killed.path());
    store.close().unwrap();
    for name in ["checkpoint", "ferromq/flushed"] {
        fs::remove_file(killed.path().join(name)).unwrap();
    }
    let whole = tempfile::tempdir().unwrap();
    copy_as_killed(killed.path(), whole.path());
    let log = killed.path().join("commitlog").join(format!("{:020}", 0));
    let file = OpenOptions::new().write(true).open(log).unwrap();
    file.write_all_at(&[0; 8], appended.locations[2].physical_offset).unwrap();

    let store = open(whole.path());
    assert_eq!(store.admin().stats().max_physical_offset, appended.end);
    assert_eq!(served(&store).len(), 12);
    let store = open(killed.path());
    assert_eq!(store.admin().stats().max_physical_offset, written[8].end);
    assert_eq!(served(&store), expected(&store, &written));
}

#[test]
fn a_kill_while_another_brokers_closed_store_is_taken_over_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let written = fill(&store, 0..300);
    store.close().unwrap();
    // As a Java broker leaves it after a start on an empty store, with one corrupt byte.
    fs::remove_dir_all(directory.path().join("ferromq")).unwrap();
    let checkpoint = OpenOptions::new().write(true).open(directory.path().join("checkpoint")).unwrap();
    checkpoint.write_all_at(&[0; 8], 32).unwrap();
    flip(directory.path(), &written[100], 100);

    let left = disks_at_kills_of_takeover(directory.path());
    let taken = MessageStore::open(directory.path(), config(), Clock::manual(1_700_000_000_000)).unwrap();
    served(&taken);
    assert_eq!(served(&taken).len(), 299);
    assert!(fs::read(directory.path().join("abort")).unwrap().starts_with(b"ferromq "), "ours from now on");
    // Served once, so that the damage is known.
    let expected = served(&taken);
    for (number, disk) in left.iter().enumerate() {
        let again = open_on(disk, directory.path()).unwrap();
        served(&again);
        assert_eq!(served(&again), expected, "killed before write {number}");
        assert_eq!(again.admin().recovery().cut_messages, 0, "killed before write {number}");
    }
}

fn open_on(disk: &FakeDisk, directory: &Path) -> Result<MessageStore<FakeDisk>, StoreError> {
    MessageStore::open_on(disk.clone(), directory, config(), Clock::manual(1_700_000_000_000))
}

/// Opens a copy of a store that another broker closed. Returns what a kill before each write leaves: from the first one
/// after the abort file to the one that makes the store this broker's.
fn disks_at_kills_of_takeover(directory: &Path) -> Vec<FakeDisk> {
    let (disk, abort) = (FakeDisk::new(), directory.join("abort"));
    for path in files_under(directory) {
        disk.put(&path, &fs::read(&path).unwrap());
    }
    assert_eq!(disk.bytes(&abort), None, "the other broker closed the store");
    let writes = Arc::new(Mutex::new(Vec::new()));
    let (noted, watched) = (Arc::clone(&writes), disk.clone());
    disk.set_hook(move |op, path| {
        use Op::{Create, Remove, Rename, Replace, Write};
        if matches!(op, Create | Remove | Rename | Replace | Write) {
            noted.lock().unwrap().push((op, path.to_owned(), watched.after_kill()));
        }
        Ok(())
    });
    let opened = open_on(&disk, directory);
    // The closure holds the disk.
    disk.clear_hook();
    drop(opened.unwrap());
    let mut writes = std::mem::take(&mut *writes.lock().unwrap());
    let marked = writes.iter().position(|(op, path, _)| (*op, path) == (Op::Replace, &abort)).unwrap();
    let before: Vec<_> =
        writes.drain(..=marked).map(|(_, path, _)| path).filter(|path| *path != abort).collect();
    let flush_mark = directory.join("ferromq").join("flushed");
    assert!(before.iter().all(|path| *path == flush_mark), "written before the abort file: {before:?}");
    let is_ours = |disk: &FakeDisk| disk.bytes(&abort).unwrap().starts_with(b"ferromq ");
    let taken = writes.iter().position(|(_, _, disk)| is_ours(disk)).unwrap_or(writes.len());
    writes.truncate(taken);
    let places: Vec<_> = writes.iter().map(|(op, path, _)| (*op, path.as_path())).collect();
    assert_eq!(places.last(), Some(&(Op::Replace, abort.as_path())), "{places:?}");
    assert!(
        places.contains(&(Op::Write, &directory.join("checkpoint"))),
        "saved before it is ours: {places:?}"
    );
    let mark = format!("taking over {}\n", std::process::id());
    for (op, path, disk) in &writes {
        assert_eq!(disk.bytes(&abort).unwrap(), mark.as_bytes(), "{op:?} {path:?}");
    }
    writes.into_iter().map(|(_, _, disk)| disk).collect()
}

/// Adds the abort file that a kill leaves at the first write of a takeover.
fn kill_at_takeover(directory: &Path) {
    let left = disks_at_kills_of_takeover(directory);
    let abort = directory.join("abort");
    fs::write(&abort, left[0].bytes(&abort).unwrap()).unwrap();
}

fn flip(directory: &Path, record: &Written, at: u64) {
    let place = record.start + at;
    let log = directory.join("commitlog").join(format!("{:020}", place / FILE * FILE));
    let file = OpenOptions::new().read(true).write(true).open(log).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, place % FILE).unwrap();
    file.write_all_at(&[!byte[0]], place % FILE).unwrap();
}

/// 600 acknowledged messages, each flushed, and then a kill.
fn killed_with_receipts(to: &Path) -> Vec<Written> {
    let directory = tempfile::tempdir().unwrap();
    let config = StoreConfig { property_crc: true, ..synchronous() };
    let store = MessageStore::open(directory.path(), config, Clock::manual(1_700_000_000_000)).unwrap();
    let written = fill(&store, 0..600);
    store.log().wait_durable(written[599].end).unwrap();
    settle(&store);
    copy_as_killed(directory.path(), to);
    written
}

#[test]
fn damage_below_the_last_flush_is_reported_and_acknowledged_messages_after_it_are_served() {
    for gone in [&[][..], &["checkpoint"], &["ferromq/flushed", "checkpoint"]] {
        let killed = tempfile::tempdir().unwrap();
        let written = killed_with_receipts(killed.path());
        gone.iter().for_each(|name| fs::remove_file(killed.path().join(name)).unwrap());
        flip(killed.path(), &written[60], 100);
        for _ in 0..2 {
            let store = open(killed.path());
            served(&store);
            assert_eq!(store.admin().stats().max_physical_offset, written[599].end, "{gone:?}");
            let damages: Vec<_> = store.admin().damages().into_iter().map(|damage| damage.range).collect();
            assert_eq!(damages, vec![written[60].start..written[60].end; 1], "{gone:?}");
            assert!(served(&store) == expected(&store, &written) && served(&store).len() == 599, "{gone:?}");
            assert_eq!(store.admin().recovery().cut_messages, 0);
            store.close().unwrap();
        }
    }
}

#[test]
fn a_checkpoint_of_another_length_is_ignored_and_rewritten() {
    for len in [0, 39, 4095, 5000] {
        let killed = tempfile::tempdir().unwrap();
        let written = killed_with_receipts(killed.path());
        let checkpoint = OpenOptions::new().write(true).open(killed.path().join("checkpoint")).unwrap();
        checkpoint.set_len(len).unwrap();
        let store = open(killed.path());
        assert!(served(&store) == expected(&store, &written) && served(&store).len() == 600, "{len}");
        assert_eq!((store.admin().damages(), store.admin().recovery().cut_messages), (vec![], 0));
        store.close().unwrap();
        assert_eq!(fs::metadata(killed.path().join("checkpoint")).unwrap().len(), 4096);
        assert!(open(killed.path()).admin().recovery().is_clean);
    }
}

#[test]
fn zeros_over_many_pages_of_another_brokers_closed_log_are_damage_and_not_its_end() {
    for is_clean in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let config = StoreConfig { commit_log_file_size: 1 << 20, ..config() };
        let open = || MessageStore::open(directory.path(), config.clone(), Clock::system()).unwrap();
        let store = open();
        let written = fill(&store, 0..600);
        if is_clean {
            store.close().unwrap();
            fs::remove_dir_all(directory.path().join("ferromq")).unwrap();
        }
        let killed = tempfile::tempdir().unwrap();
        copy_as_killed(directory.path(), killed.path());
        let log = killed.path().join("commitlog").join("0".repeat(20));
        let log = OpenOptions::new().write(true).open(log).unwrap();
        let (from, to) = (written[100].start, written[400].start);
        assert!(to - from > 128 << 10);
        log.write_all_at(&vec![0; (to - from) as usize], from).unwrap();
        if !is_clean {
            // No durable end is known: the log ends here, and the cut is reported.
            fs::remove_file(killed.path().join("checkpoint")).unwrap();
            fs::write(killed.path().join("abort"), "4711").unwrap();
            store.close().unwrap();
        }
        let store = MessageStore::open(killed.path(), config.clone(), Clock::system()).unwrap();
        if is_clean {
            assert_eq!(store.admin().stats().max_physical_offset, written[599].end);
            assert_eq!(store.admin().damages().len(), 1);
            assert_eq!(store.admin().damages()[0].range, from..to);
            assert_eq!(served(&store).len(), 300);
        } else {
            assert_eq!(store.admin().stats().max_physical_offset, from);
            assert_eq!(store.admin().recovery().cut_messages, 200);
        }
    }
}

#[test]
fn noise_across_the_end_of_a_closed_log_loses_only_the_overwritten_messages() {
    // Opened for the first time, and after a kill during that open.
    for is_killed in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let written = fill(&store, 0..62);
        store.close().unwrap();
        let last = &written[61];
        let log = directory.path().join("commitlog").join(format!("{:020}", 0));
        let noise = vec![0xa7; (last.end - last.start + 100) as usize];
        OpenOptions::new().write(true).open(log).unwrap().write_all_at(&noise, last.start).unwrap();
        if is_killed {
            kill_at_takeover(directory.path());
        }
        for _ in 0..2 {
            let store = open(directory.path());
            assert_eq!(store.admin().stats().max_physical_offset, last.end);
            let damages: Vec<_> = store.admin().damages().into_iter().map(|damage| damage.range).collect();
            assert_eq!(damages, vec![last.start..last.end; 1]);
            assert_eq!(served(&store), expected(&store, &written));
            assert_eq!(
                store.queues().max_offset("t", last.queue_id),
                last.queue_offset + 1,
                "killed {is_killed}"
            );
            store.close().unwrap();
        }
    }
}

/// Restores our own files from before another broker had the store, which leaves no checkpoint of ours.
fn put_notes_back(directory: &Path, notes: &[(PathBuf, Vec<u8>)]) {
    fs::remove_dir_all(directory.join("ferromq")).unwrap();
    for (path, bytes) in notes {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let checkpoint = OpenOptions::new().write(true).open(directory.join("checkpoint")).unwrap();
    checkpoint.write_all_at(&[0; 8], 32).unwrap();
}

fn notes(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    files_under(&directory.join("ferromq"))
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn a_log_whose_file_with_our_end_was_removed_continues_after_the_other_brokers_messages() {
    for is_killed in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let mut written = fill(&store, 0..60);
        store.close().unwrap();
        assert!(written[59].end < FILE, "our end lies in the first file");
        let notes = notes(directory.path());
        // The other broker appends, its retention removes the first file, and it stops.
        let store = open(directory.path());
        written.extend(fill(&store, 60..300));
        store.close().unwrap();
        fs::remove_file(directory.path().join("commitlog").join(format!("{:020}", 0))).unwrap();
        put_notes_back(directory.path(), &notes);
        if is_killed {
            fs::write(directory.path().join("abort"), "4711").unwrap();
        }
        written.retain(|written| written.start >= FILE);
        let end = written.last().unwrap().end;
        for round in 0..2u32 {
            let store = open(directory.path());
            assert_eq!(store.admin().damages(), []);
            assert_eq!(store.admin().stats().max_physical_offset, end.max(written.last().unwrap().end));
            assert_eq!(served(&store), expected(&store, &written));
            assert_eq!(served(&store).len(), written.len(), "nothing is lost: killed {is_killed}, {round}");
            for number in 0..QUEUES {
                written.extend(fill(&store, 300 + number..301 + number));
                let last = written.last().unwrap();
                assert_eq!(last.queue_offset, 100 + u64::from(round), "no offset is assigned twice");
            }
            assert_eq!(served(&store), expected(&store, &written));
            store.close().unwrap();
        }
    }
}

#[test]
fn a_damaged_last_record_of_another_brokers_closed_log_keeps_its_offsets() {
    // Opened, opened after a kill during that open, and both with noise after the record's first bytes.
    for (is_killed, noise_at) in [(false, 0), (true, 0), (false, 100), (true, 100)] {
        let what = format!("killed {is_killed}, noise at {noise_at}");
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let written = fill(&store, 0..62);
        store.groups().commit_offset("g", "t", written[61].queue_id, written[61].queue_offset + 1).unwrap();
        store.close().unwrap();
        // As a Java broker leaves it after a start on an empty store.
        put_notes_back(directory.path(), &[]);
        let last = &written[61];
        let log = directory.path().join("commitlog").join(format!("{:020}", 0));
        let noise = vec![0xa7; (last.end - last.start - noise_at) as usize];
        OpenOptions::new()
            .write(true)
            .open(log)
            .unwrap()
            .write_all_at(&noise, last.start + noise_at)
            .unwrap();
        if is_killed {
            kill_at_takeover(directory.path());
        }
        let store = open(directory.path());
        assert_eq!(store.admin().stats().max_physical_offset, last.end, "{what}");
        assert_eq!(served(&store), expected(&store, &written), "{what}");
        assert_eq!(served(&store).len(), 61, "{what}");
        assert_eq!(
            store.groups().committed_offset("g", "t", last.queue_id),
            Some(last.queue_offset + 1),
            "{what}"
        );
        let next = store.log().append(&[message("t", last.queue_id as i32, b"next", b"")]).unwrap();
        assert_eq!(next.locations[0].queue_offset, last.queue_offset + 1, "{what}");
        store.close().unwrap();
    }
}
