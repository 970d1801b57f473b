//! Measures how fast commit log files become columns: `cargo run --release -p ferromq-scan --example scan [FILE…]`.
//!
//! Without files, it writes a log of 2 GiB with bodies of 1 KiB and removes it at the end. Two threads read every
//! second file each. Each run prints GiB and records a second and, on Linux, seconds of CPU a GiB, which do not depend
//! on other load.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::{
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use ferromq_scan::{
    columns::{COLUMN_NAMES, ColumnSet, RowFilter},
    inspect::{LogScan, OnCorrupt, ScanOptions},
};
use ferromq_store::{MessageStore, StoreConfig, files::RealDisk, record::NewMessage, time::Clock};

const THREADS: usize = 2;
const LOG_BYTES: u64 = 2 << 30;
const FILE_BYTES: u64 = 256 << 20;

fn fill(directory: &Path) {
    let config = StoreConfig { commit_log_file_size: FILE_BYTES, disk_reserve: 0, ..StoreConfig::default() };
    let store = MessageStore::open(directory, config, Clock::system()).unwrap();
    let body: Vec<u8> = (0..1024u32).map(|at| (at * 31 % 251) as u8).collect();
    let properties = b"KEYS\x01order-4711\x02UNIQ_KEY\x017F00000100002A9F0000000000000001\x02TAGS\x01paid\x02kind\x01a\x02";
    let message = NewMessage {
        topic: "orders",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: "127.0.0.1:5000".parse().unwrap(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &body,
        properties,
    };
    let batch = [message; 64];
    while store.log().append(&batch).unwrap().end < LOG_BYTES {}
    store.close().unwrap();
}

fn base_of(path: &Path) -> u64 {
    path.file_name().and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}

/// Reads a file and returns its bytes and rows.
fn scan(path: &Path, wanted: ColumnSet, filter: RowFilter) -> (u64, usize) {
    let base = base_of(path);
    let end = base + std::fs::metadata(path).unwrap().len();
    let options =
        ScanOptions { wanted, filter, batch_rows: 8192, batch_bytes: 8 << 20, on_corrupt: OnCorrupt::Fail };
    let mut scan = LogScan::open(RealDisk, path, base, base..end, options).unwrap();
    let mut rows = 0;
    while let Some(found) = scan.next_batch().unwrap() {
        rows += found.batch.read;
    }
    (scan.position() - base, rows)
}

/// CPU time of this process in seconds, with a resolution of 10 ms.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u32>().ok());
    ticks.sum::<Option<u32>>().map(|ticks| f64::from(ticks) / 100.0)
}

fn run(name: &str, files: &[PathBuf], wanted: ColumnSet, filter: &RowFilter) {
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let done: Vec<(u64, usize)> = thread::scope(|scope| {
        let spawn = |first: usize| {
            let mine = files.iter().skip(first).step_by(THREADS);
            scope.spawn(move || {
                mine.map(|path| scan(path, wanted, filter.clone()))
                    .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
            })
        };
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let (bytes, rows) = done.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let gib = bytes as f64 / f64::from(1 << 30);
    let used = cpu.and_then(|before| Some((cpu_seconds()? - before) / gib));
    let used = used.map_or_else(String::new, |used| format!(" {used:5.2} s of CPU a GiB"));
    println!("{name:24} {:6.2} GiB/s {:10.0} records/s{used}", gib / seconds, rows as f64 / seconds);
}

fn main() {
    let mut files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let directory = PathBuf::from(format!("scan-{}", std::process::id()));
    if files.is_empty() {
        fill(&directory);
        let listed = std::fs::read_dir(directory.join("commitlog")).unwrap();
        files = listed.map(|entry| entry.unwrap().path()).collect();
        files.sort();
    }
    let pruned = || COLUMN_NAMES.into_iter().filter(|name| *name != "body");
    let nothing = RowFilter { topics: Some(vec![]), ..RowFilter::default() };
    for _ in 0..2 {
        run("all columns", &files, ColumnSet::ALL, &RowFilter::default());
        run("without the body", &files, ColumnSet::parse(pruned()).unwrap(), &RowFilter::default());
        run(
            "queue_offset and body",
            &files,
            ColumnSet::parse(["queue_offset", "body"]).unwrap(),
            &RowFilter::default(),
        );
        run("all filtered out", &files, ColumnSet::ALL, &nothing);
    }
    // Absent if files were given.
    let _ = std::fs::remove_dir_all(&directory);
}
