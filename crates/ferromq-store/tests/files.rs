//! The files of a whole store: how many are open, which are written, and where they lie.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use common::{
    ALL, append_durable, asynchronous, bodies,
    fake_disk::{FakeDisk, Op},
    message, named, settle, synchronous, wait_until,
};
use ferromq_store::{
    MessageStore, StoreConfig,
    files::{Allocation, Disk},
    record::MessageView,
    retention::Retention,
    time::Clock,
};

const ROOT: &str = "/store";

fn open(disk: &FakeDisk, config: &StoreConfig) -> MessageStore<FakeDisk> {
    MessageStore::open_on(disk.clone(), Path::new(ROOT), config.clone(), Clock::system()).unwrap()
}

fn fill<D: Disk>(store: &MessageStore<D>, count: u64) -> Vec<Vec<u8>> {
    let bodies: Vec<Vec<u8>> = (0..count).map(|number| vec![number as u8; 3000]).collect();
    for (number, body) in bodies.iter().enumerate() {
        store.log().append(&[message("t", 0, body, &named(&format!("k{number}"), "a"))]).unwrap();
    }
    settle(store);
    bodies
}

#[test]
fn ten_thousand_queues_are_served_with_a_few_descriptors() {
    const QUEUES: i32 = 10_000;
    let disk = FakeDisk::new();
    let config = StoreConfig { open_files: 32, commit_log_file_size: 8 << 20, ..asynchronous() };
    let check = |store: &MessageStore<FakeDisk>| {
        for queue_id in 0..QUEUES {
            let found = store.queues().get("t", queue_id as u32, 0, 32, usize::MAX, ALL);
            assert_eq!(found.messages.len(), 1, "queue {queue_id}: {:?}", found.status);
            for (_, record) in found.messages {
                let view = MessageView::decode(record.bytes(), true).unwrap();
                assert_eq!(view.body, queue_id.to_be_bytes());
            }
        }
    };
    let store = open(&disk, &config);
    for queue_id in 0..QUEUES {
        store.log().append(&[message("t", queue_id, &queue_id.to_be_bytes(), b"")]).unwrap();
    }
    settle(&store);
    check(&store);
    store.close().unwrap();
    drop(store);
    let store = open(&disk, &config);
    check(&store);
    store.close().unwrap();
    // Besides the budget: the checkpoint, index files, and one file that each of the sixteen threads has just opened.
    let (_, most) = disk.open_files();
    assert!(most <= 32 + 8 + 16, "{most} files open at once");
}

#[test]
fn many_queues_on_a_real_disk_need_no_more_descriptors_than_configured() {
    const QUEUES: i32 = 300;
    let directory = tempfile::tempdir().unwrap();
    let config = StoreConfig { open_files: 20, ..asynchronous() };
    let store = MessageStore::open(directory.path(), config, Clock::system()).unwrap();
    for queue_id in 0..QUEUES {
        store.log().append(&[message("t", queue_id, b"x", b"")]).unwrap();
    }
    settle(&store);
    let is_queue = |path: PathBuf| path.starts_with(directory.path().join("consumequeue"));
    let open = || {
        let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter_map(|entry| fs::read_link(entry.path()).ok()).filter(|path| is_queue(path.clone())).count()
    };
    // A thread that has just opened a file closes another one for it.
    wait_until("1 to 20 queues are open", || (1..=20).contains(&open()));
    for queue_id in 0..QUEUES as u32 {
        assert_eq!(bodies(&store, "t", queue_id), [b"x".to_vec()]);
    }
    store.close().unwrap();
}

#[test]
fn old_log_files_are_opened_only_to_be_read() {
    let disk = FakeDisk::new();
    let config = StoreConfig { mapped_bytes: 0, ..synchronous() };
    let store = open(&disk, &config);
    let written = fill(&store, 200);
    store.close().unwrap();
    drop(store);
    let (before, files) = (disk.opened().len(), disk.paths());
    let store = open(&disk, &config);
    assert_eq!(bodies(&store, "t", 0), written);
    let logs: Vec<PathBuf> = files.into_iter().filter(|path| path.starts_with("/store/commitlog")).collect();
    assert!(logs.len() > 8);
    let opened = disk.opened().split_off(before);
    for old in &logs[..logs.len() - 2] {
        let of_old: Vec<_> = opened.iter().filter(|(path, _)| path == old).collect();
        assert!(
            !of_old.is_empty() && of_old.iter().all(|(_, how)| *how == Allocation::ReadOnly),
            "{of_old:?}"
        );
    }
    store.close().unwrap();
}

#[test]
fn reading_a_log_with_holes_gives_them_no_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let config = StoreConfig { mapped_bytes: 0, ..synchronous() };
    let store = MessageStore::open(directory.path(), config.clone(), Clock::system()).unwrap();
    let written = fill(&store, 100);
    store.close().unwrap();
    drop(store);
    // As a Java broker leaves it: unwritten blocks are holes.
    let first = directory.path().join("commitlog").join("0".repeat(20));
    let bytes = fs::read(&first).unwrap();
    fs::remove_file(&first).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    fs::write(&first, &bytes[..end]).unwrap();
    fs::File::options().write(true).open(&first).unwrap().set_len(bytes.len() as u64).unwrap();
    let blocks = fs::metadata(&first).unwrap().blocks();
    let store = MessageStore::open(directory.path(), config, Clock::system()).unwrap();
    assert_eq!(bodies(&store, "t", 0), written);
    store.close().unwrap();
    assert_eq!(fs::metadata(&first).unwrap().blocks(), blocks, "an old file was written or reserved");
}

#[test]
fn readers_of_old_files_and_an_appender_share_a_budget_smaller_than_one_file() {
    let disk = FakeDisk::new();
    let config = StoreConfig { mapped_bytes: 1, open_files: 4, ..asynchronous() };
    let store = open(&disk, &config);
    let written = fill(&store, 150);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    assert_eq!(bodies(&store, "t", 0)[..written.len()], written);
                }
            });
        }
        for number in 0..300u64 {
            store.log().append(&[message("u", 0, &vec![number as u8; 2000], b"")]).unwrap();
        }
        is_done.store(true, Ordering::Release);
    });
    settle(&store);
    assert_eq!(bodies(&store, "u", 0).len(), 300);
    store.close().unwrap();
}

#[test]
fn a_record_held_outlives_its_open_file_and_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let config = StoreConfig { mapped_bytes: 0, ..asynchronous() };
    let store = MessageStore::open(directory.path(), config, Clock::system()).unwrap();
    let written = fill(&store, 10);
    let (_, held) = store.queues().get("t", 0, 3, 1, usize::MAX, ALL).messages.swap_remove(0);
    fill(&store, 200);
    store.close().unwrap();
    drop(store);
    directory.close().unwrap();
    assert_eq!(MessageView::decode(held.bytes(), true).unwrap().body, written[3]);
}

#[test]
fn a_log_on_several_disks_is_written_in_turn_and_read_as_one() {
    let disk = FakeDisk::new();
    let paths = ["/a/log", "/b/log"].map(PathBuf::from).to_vec();
    let config = StoreConfig { commit_log_paths: paths, ..synchronous() };
    let store = open(&disk, &config);
    let mut written = fill(&store, 100);
    store.close().unwrap();
    drop(store);
    let of = |directory: &str| {
        let is_file = |path: &&PathBuf| path.parent() == Some(Path::new(directory));
        disk.paths().iter().filter(is_file).count()
    };
    assert!(of("/a/log") > 1 && of("/a/log").abs_diff(of("/b/log")) <= 1, "{:?}", disk.paths());
    assert_eq!(of("/store/commitlog"), 0);
    let before = of("/b/log");
    let moved = StoreConfig {
        commit_log_paths: vec!["/a/log".into()],
        read_only_commit_log_paths: vec!["/b/log".into()],
        ..config
    };
    let store = open(&disk, &moved);
    assert_eq!(bodies(&store, "t", 0), written);
    written.extend(fill(&store, 100));
    assert_eq!(bodies(&store, "t", 0), written);
    store.close().unwrap();
    drop(store);
    assert!(of("/b/log") <= before, "a new file in a read-only directory");
    // And after a crash.
    let store = open(&disk.crash(7), &moved);
    assert_eq!(bodies(&store, "t", 0), written);
}

#[test]
fn a_truncated_file_is_an_error_and_no_signal_when_it_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let config = StoreConfig { mapped_bytes: 0, ..synchronous() };
    let store = MessageStore::open(directory.path(), config, Clock::system()).unwrap();
    let written = fill(&store, 300);
    // Reading closed all but the newest files.
    assert_eq!(bodies(&store, "t", 0), written);
    let first = directory.path().join("commitlog").join("0".repeat(20));
    fs::File::options().write(true).open(&first).unwrap().set_len(100).unwrap();
    let found = store.queues().get("t", 0, 0, 32, usize::MAX, ALL);
    assert!(found.messages.is_empty());
    assert_eq!(found.next_offset, 0, "an unreadable message is not skipped");
    assert_eq!(store.queues().get("t", 0, 200, 1, usize::MAX, ALL).messages.len(), 1);
    let _ = store.close();
}

/// Gates at which the first thread waits until the gate is opened.
#[derive(Default)]
struct Holds {
    /// The gates that were reached, and those that are open.
    come_and_open: Mutex<[Vec<&'static str>; 2]>,
    changed: Condvar,
}

impl Holds {
    fn pass(&self, place: &'static str) {
        let mut places = self.come_and_open.lock().unwrap();
        if !places[0].contains(&place) {
            places[0].push(place);
            self.changed.notify_all();
            drop(self.changed.wait_while(places, |places| !places[1].contains(&place)).unwrap());
        }
    }

    fn wait_for(&self, place: &'static str) {
        let places = self.come_and_open.lock().unwrap();
        drop(self.changed.wait_while(places, |places| !places[0].contains(&place)).unwrap());
    }

    fn is_open(&self, place: &'static str) -> bool {
        self.come_and_open.lock().unwrap()[1].contains(&place)
    }

    fn let_go(&self, place: &'static str) {
        self.come_and_open.lock().unwrap()[1].push(place);
        self.changed.notify_all();
    }
}

#[test]
fn an_acknowledged_message_in_a_new_file_survives_a_crash_while_another_thread_syncs_the_directory() {
    (0..8).for_each(crash_while_the_directory_is_synced);
}

#[test]
fn names_of_found_log_files_become_durable_before_more_messages_in_them_are_acknowledged() {
    let disk = FakeDisk::new();
    let open =
        || MessageStore::open_on(disk.clone(), Path::new(ROOT), synchronous(), Clock::manual(1)).unwrap();
    let store = open();
    append_durable(&store, &[message("t", 0, b"first", b"")]).unwrap();
    store.close().unwrap();
    let synced = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&synced);
    disk.set_hook(move |op, path| {
        if op == Op::SyncDir && path.ends_with("commitlog") {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    });
    let store = open();
    append_durable(&store, &[message("t", 0, b"second", b"")]).unwrap();
    assert!(synced.load(Ordering::SeqCst) > 0, "the previous broker may have been killed before it did so");
}

fn crash_while_the_directory_is_synced(seed: u64) {
    const FILE: u64 = 64 << 10;
    let disk = FakeDisk::new();
    let open = |disk: &FakeDisk| {
        let clock = Clock::manual(1_000_000);
        MessageStore::open_on(disk.clone(), Path::new(ROOT), synchronous(), clock).unwrap()
    };
    let store = open(&disk);
    let fill_to = |goal: u64| loop {
        let end = append_durable(&store, &[message("t", 0, &[1; 1000], b"")]).unwrap().end;
        if end > goal {
            return end;
        }
    };
    fill_to(2 * FILE + FILE / 4);
    settle(&store);
    let holds = Arc::new(Holds::default());
    let held = Arc::clone(&holds);
    let newest = format!("commitlog/{:020}", 3 * FILE);
    disk.set_hook(move |op, path| {
        let is_preparing = std::thread::current().name() == Some("ferromq-prepare");
        match op {
            Op::Remove if path.ends_with(format!("commitlog/{:020}", 0)) => held.pass("removal"),
            Op::Rename if path.ends_with(&newest) => held.pass("rename"),
            Op::Flush if is_preparing && held.is_open("rename") => held.pass("use of the new file"),
            Op::SyncDir if path.ends_with("commitlog") => held.pass("sync"),
            _ => {}
        }
        Ok(())
    });
    let retention = Retention { total_bytes: Some(1), policies: Vec::new(), ..Retention::default() };
    store.admin().set_retention(&retention).unwrap();
    let end = std::thread::scope(|scope| {
        scope.spawn(|| store.admin().clean(true));
        holds.wait_for("removal");
        // The next file is created, and no flush comes after it yet.
        fill_to(2 * FILE + FILE * 3 / 4);
        holds.wait_for("rename");
        holds.let_go("rename");
        holds.wait_for("use of the new file");
        holds.let_go("removal");
        holds.wait_for("sync");
        holds.let_go("use of the new file");
        let end = fill_to(3 * FILE + 2000);
        disk.crash(seed);
        holds.let_go("sync");
        end
    });
    drop(store);
    let store = open(&disk.crash(seed));
    assert!(store.admin().stats().max_physical_offset >= end, "{:?} of {end}", store.admin().recovery());
}

#[test]
fn a_last_file_truncated_after_its_last_record_is_closed_and_the_log_continues_in_the_next() {
    for (rest, is_killed) in (0..9).flat_map(|rest| [(rest, false), (rest, true)]) {
        let disk = FakeDisk::new();
        let store = open(&disk, &synchronous());
        let end = (0..10).map(|_| append_durable(&store, &[message("t", 0, b"one", b"")]).unwrap().end).max();
        settle(&store);
        store.close().unwrap();
        drop(store);
        let log = Path::new(ROOT).join(format!("commitlog/{:020}", 0));
        disk.put(&log, &disk.bytes(&log).unwrap()[..end.unwrap() as usize + rest]);
        let store = open(&disk, &synchronous());
        for _ in 0..2 {
            append_durable(&store, &[message("t", 0, b"two", b"")]).unwrap();
            settle(&store);
        }
        let disk = if is_killed { disk.crash(rest as u64) } else { disk };
        drop(store);
        let queues = disk.paths().into_iter().filter(|path| path.starts_with("/store/consumequeue"));
        queues.for_each(|path| disk.forget(&path));
        let store = open(&disk, &synchronous());
        assert_eq!(bodies(&store, "t", 0).len(), 12, "{rest} bytes left: {:?}", store.admin().recovery());
        assert!(store.admin().damages().is_empty(), "{:?}", store.admin().damages());
    }
}
