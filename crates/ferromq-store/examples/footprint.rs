//! What an open store costs: memory during many writes, and memory, descriptors and disk space of many queues.
//!
//! `footprint flat DIR GIB` writes GIB GiB into log files of 64 MiB and prints the memory at every GiB. `footprint
//! queues DIR COUNT ROUNDS` writes to COUNT queues in turn and prints the cost of each.
#![allow(clippy::print_stdout, clippy::indexing_slicing)]

use std::{
    error::Error,
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use ferromq_store::{MessageStore, StoreConfig, filter::MessageFilter, record::NewMessage, time::Clock};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["flat", directory, gib] => flat(Path::new(directory), gib.parse()?),
        ["queues", directory, count, rounds] => queues(Path::new(directory), count.parse()?, rounds.parse()?),
        _ => Err("usage: footprint flat DIR GIB | footprint queues DIR COUNT ROUNDS".into()),
    }
}

/// A line of `/proc/self/status`, in KiB.
fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn entries(directory: &str) -> u64 {
    fs::read_dir(directory).map_or(0, |entries| entries.count() as u64)
}

fn maps() -> u64 {
    fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count() as u64)
}

/// Bytes of the blocks below a directory.
fn blocks(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => found.blocks() * 512 + blocks(&entry.path()),
            Ok(found) => found.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

fn message<'a>(topic: &'a str, queue_id: i32, body: &'a [u8]) -> NewMessage<'a> {
    NewMessage {
        topic,
        queue_id,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: ([127, 0, 0, 1], 8123).into(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: b"",
    }
}

fn wait_dispatched(store: &MessageStore) {
    while store.admin().stats().dispatched_offset < store.admin().stats().max_physical_offset {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn flat(directory: &Path, gib: u64) -> Outcome<()> {
    fs::remove_dir_all(directory).ok();
    let config = StoreConfig {
        commit_log_file_size: 64 << 20,
        mapped_bytes: 256 << 20,
        index_slots: 50_000,
        index_entries: 200_000,
        ..StoreConfig::default()
    };
    let store = MessageStore::open(directory, config, Clock::system())?;
    let body = vec![b'x'; 64 << 10];
    let began = Instant::now();
    let mut read_at = 0;
    for gib in 1..=gib {
        while store.admin().stats().max_physical_offset < gib << 30 {
            for queue_id in 0..4 {
                store.log().append(&[message("flat", queue_id, &body)])?;
            }
        }
        wait_dispatched(&store);
        // Read all of it as well, so that old files are mapped again.
        while read_at < store.queues().max_offset("flat", 0) {
            let found = store.queues().get("flat", 0, read_at, 32, 4 << 20, &MessageFilter::All);
            assert!(found.messages.iter().all(|(_, record)| record.bytes().len() > body.len()));
            read_at = found.next_offset;
        }
        println!(
            "{gib:3} GiB\trss {:5} MiB\tpeak {:5} MiB\tanonymous {:4} MiB\tmaps {:4}\tdescriptors {:3}\t{:.0} s",
            status("VmRSS") >> 10,
            status("VmHWM") >> 10,
            status("RssAnon") >> 10,
            maps(),
            entries("/proc/self/fd"),
            began.elapsed().as_secs_f64()
        );
    }
    store.close()?;
    fs::remove_dir_all(directory)?;
    Ok(())
}

fn queues(directory: &Path, count: u64, rounds: u64) -> Outcome<()> {
    const QUEUES_A_TOPIC: u64 = 8;
    fs::remove_dir_all(directory).ok();
    let config = || StoreConfig {
        commit_log_file_size: 64 << 20,
        index_slots: 1000,
        index_entries: 4000,
        ..StoreConfig::default()
    };
    let store = MessageStore::open(directory, config(), Clock::system())?;
    let topics: Vec<String> =
        (0..count.div_ceil(QUEUES_A_TOPIC)).map(|number| format!("topic-{number}")).collect();
    let queue =
        |number: u64| (&*topics[(number / QUEUES_A_TOPIC) as usize], (number % QUEUES_A_TOPIC) as u32);
    store.log().append(&[message("warm", 0, b"")])?;
    wait_dispatched(&store);
    let before = Cost::now(directory);
    println!("before\t{before:?}");
    for round in 1..=rounds {
        let began = Instant::now();
        for number in 0..count {
            let (topic, queue_id) = queue(number);
            store.log().append(&[message(topic, queue_id as i32, b"x")])?;
        }
        wait_dispatched(&store);
        before.print(&format!("round {round}, written"), directory, count, began);
        let began = Instant::now();
        for number in 0..count {
            let (topic, queue_id) = queue(number);
            let found = store.queues().get(topic, queue_id, round - 1, 32, 4 << 20, &MessageFilter::All);
            assert_eq!(found.messages.len(), 1, "{topic} {queue_id}: {:?}", found.status);
        }
        before.print(&format!("round {round}, read"), directory, count, began);
    }
    let began = Instant::now();
    store.close()?;
    drop(store);
    before.print("closed", directory, count, began);
    let began = Instant::now();
    let store = MessageStore::open(directory, config(), Clock::system())?;
    before.print("opened again", directory, count, began);
    store.close()?;
    fs::remove_dir_all(directory)?;
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Cost {
    rss_kib: u64,
    anonymous_kib: u64,
    page_tables_kib: u64,
    descriptors: u64,
    maps: u64,
    disk: u64,
}

impl Cost {
    fn now(directory: &Path) -> Self {
        Self {
            rss_kib: status("VmRSS"),
            anonymous_kib: status("RssAnon"),
            page_tables_kib: status("VmPTE"),
            descriptors: entries("/proc/self/fd"),
            maps: maps(),
            disk: blocks(directory),
        }
    }

    fn print(&self, what: &str, directory: &Path, count: u64, began: Instant) {
        let seconds = began.elapsed().as_secs_f64();
        let now = Self::now(directory);
        let each = |now: u64, before: u64| (now as f64 - before as f64) / count as f64;
        println!(
            "{what:20}\ta queue: rss {:.2} KiB (anonymous {:.2}), page tables {:.2} KiB, disk {:.2} KiB; in all {} descriptors, {} maps, {seconds:.2} s",
            each(now.rss_kib, self.rss_kib),
            each(now.anonymous_kib, self.anonymous_kib),
            each(now.page_tables_kib, self.page_tables_kib),
            each(now.disk, self.disk) / 1024.0,
            now.descriptors,
            now.maps,
        );
    }
}
