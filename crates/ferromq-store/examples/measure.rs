//! Measures the engine alone and prints `engine load<TAB>value<TAB>unit`, to compare it with other engines.
//!
//! `benches/peers/store.sh` runs it in turn with `benches/peers/java/StorePeer.java`, which measures Apache RocketMQ's
//! store in the same way. The script explains each command.
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    hint::black_box,
    io::Write as _,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use ferromq_store::{
    MessageStore, StoreConfig,
    files::{Allocation, Disk, RealDisk, Region},
    filter::MessageFilter,
    log::FlushPolicy,
    read::Boundary,
    record::{MessageView, NewMessage},
    time::Clock,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const USAGE: &str = "usage: measure put DIR THREADS BODY async|sync COUNT | fill DIR COUNT | settle DIR | recover DIR COUNT HOW \
                     | read DIR COUNT | loop DIR COUNT";
const TOPIC: &str = "bench";
const QUEUES: u64 = 4;
const LOOKUPS: u64 = 200_000;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["put", directory, threads, body, mode, count] => {
            let is_sync = match mode {
                "sync" => true,
                "async" => false,
                _ => return Err(format!("{mode} is no mode: say async or sync").into()),
            };
            put(Path::new(directory), threads.parse()?, body.parse()?, is_sync, count.parse()?)
        }
        ["fill", directory, count] => fill(Path::new(directory), count.parse()?),
        ["settle", directory] => {
            let store = open(Path::new(directory), false)?;
            wait_dispatched(&store);
            Ok(store.close()?)
        }
        ["recover", directory, count, how] => recover(Path::new(directory), count.parse()?, how),
        ["read", directory, count] => read(Path::new(directory), count.parse()?),
        ["loop", directory, count] => bare_loop(Path::new(directory), count.parse()?),
        _ => Err(USAGE.into()),
    }
}

fn tell(load: &str, value: f64, unit: &str) {
    println!("ferromq-store {load}\t{value:.4}\t{unit}");
}

/// Calls per second.
fn rate(count: u64, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64()
}

fn open(directory: &Path, is_sync: bool) -> Outcome<MessageStore> {
    let flush = if is_sync { FlushPolicy::Group } else { FlushPolicy::default() };
    Ok(MessageStore::open(directory, StoreConfig { flush, ..StoreConfig::default() }, Clock::system())?)
}

fn wait_dispatched(store: &MessageStore) {
    while store.admin().stats().dispatched_offset < store.admin().stats().max_physical_offset {
        std::thread::yield_now();
    }
}

fn body(len: usize) -> Vec<u8> {
    (0..len).map(|at| b'a' + (at % 26) as u8).collect()
}

fn append_one(
    store: &MessageStore,
    queue: u64,
    key: u64,
    body: &[u8],
    properties: &mut Vec<u8>,
) -> Outcome<()> {
    properties.clear();
    // The same properties as the Java client writes.
    write!(properties, "KEYS\u{1}k{key}\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TAG1\u{2}")?;
    let message = NewMessage {
        topic: TOPIC,
        queue_id: (queue % QUEUES) as i32,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: ([127, 0, 0, 1], 8123).into(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties,
    };
    let appended = store.log().append(&[message])?;
    Ok(store.log().wait_durable(appended.end)?)
}

/// Appends messages one by one in each thread. With `is_timed`, returns the time of each in nanoseconds.
fn append(store: &MessageStore, threads: u64, body: &[u8], count: u64, is_timed: bool) -> Outcome<Vec<u64>> {
    let failed = AtomicU64::new(0);
    let per_thread = count / threads;
    let run = |thread: u64| {
        let mut times = Vec::with_capacity(if is_timed { per_thread as usize } else { 0 });
        let mut properties = Vec::new();
        for number in 0..per_thread {
            let began = is_timed.then(Instant::now);
            if append_one(store, number + thread, number * 64 + thread, body, &mut properties).is_err() {
                failed.fetch_add(1, Ordering::Relaxed);
            }
            times.extend(began.map(|began| began.elapsed().as_nanos() as u64));
        }
        times
    };
    let times = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    match failed.load(Ordering::Relaxed) {
        0 => Ok(times),
        failed => Err(format!("{failed} appends failed").into()),
    }
}

fn put(directory: &Path, threads: u64, len: usize, is_sync: bool, count: u64) -> Outcome<()> {
    std::fs::remove_dir_all(directory).ok();
    let body = body(len);
    let store = open(directory, is_sync)?;
    append(&store, threads, &body, (count / 5).max(1000), is_sync)?;
    wait_dispatched(&store);
    let flushes = store.admin().stats().flushes;
    let began = Instant::now();
    let mut times = append(&store, threads, &body, count, is_sync)?;
    let put = began.elapsed().as_secs_f64();
    wait_dispatched(&store);
    let dispatched = began.elapsed().as_secs_f64();
    let done = (count / threads * threads) as f64;
    if is_sync {
        let load = format!("append sync, {threads} waiting");
        tell(&load, done / put, "msg/s");
        times.sort_unstable();
        for percent in [50, 99] {
            let time = times.get(times.len() * percent / 100).copied().unwrap_or_default();
            tell(&format!("{load}, p{percent}"), time as f64 / 1e3, "us");
        }
        tell(
            &format!("{load}, flushes"),
            (store.admin().stats().flushes - flushes) as f64 / done,
            "per message",
        );
    } else {
        let load = format!("append async, {threads} threads");
        tell(&format!("{load}, put"), done / put, "msg/s");
        tell(&format!("{load}, until dispatched"), done / dispatched, "msg/s");
    }
    store.close()?;
    std::fs::remove_dir_all(directory)?;
    Ok(())
}

/// Fills a store and leaves it unclosed, like a killed process.
fn fill(directory: &Path, count: u64) -> Outcome<()> {
    std::fs::remove_dir_all(directory).ok();
    let store = open(directory, false)?;
    let (body, mut properties) = (body(1024), Vec::new());
    for number in 0..count {
        append_one(&store, number, number, &body, &mut properties)?;
    }
    wait_dispatched(&store);
    while store.admin().stats().flushed_offset < store.admin().stats().max_physical_offset {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(1500));
    std::process::exit(0);
}

/// Opens the store of [`fill`] and looks up every key.
fn recover(directory: &Path, count: u64, how: &str) -> Outcome<()> {
    let began = Instant::now();
    let store = open(directory, false)?;
    wait_dispatched(&store);
    let elapsed = began.elapsed().as_secs_f64();
    let load = format!("recover, {how}");
    tell(&load, elapsed * 1e3, "ms");
    tell(&format!("{load}, walked"), store.admin().recovery().walked_bytes as f64 / 1e9, "GB");
    let found = (0..count).filter(|number| has_key(&store, *number)).count();
    tell(&format!("{load}, keys found"), found as f64 * 100.0 / count as f64, "%");
    std::process::exit(0);
}

fn has_key(store: &MessageStore, number: u64) -> bool {
    let mut key = Vec::with_capacity(24);
    let _ = write!(key, "k{number}");
    let key = std::str::from_utf8(&key).unwrap_or_default();
    !store.queues().query_by_key(TOPIC, key, 32, 0, i64::MAX).messages.is_empty()
}

fn read(directory: &Path, count: u64) -> Outcome<()> {
    let store = open(directory, false)?;
    wait_dispatched(&store);
    // The first round warms up, which Java needs.
    for is_told in [false, true] {
        let tell = |load: &str, value: f64, unit: &str| {
            if is_told {
                tell(load, value, unit);
            }
        };
        for batch in [32, 1] {
            let began = Instant::now();
            let got: u64 = (0..QUEUES as u32).map(|queue_id| read_queue(&store, queue_id, batch)).sum();
            if got != count {
                return Err(format!("read {got} messages of {count}").into());
            }
            tell(&format!("get, {batch} at once"), rate(got, began), "msg/s");
        }
        let mut random = Random(count | 1);
        let began = Instant::now();
        let found = (0..LOOKUPS).filter(|_| has_key(&store, random.below(count))).count() as u64;
        tell("query by key", rate(LOOKUPS, began), "op/s");
        tell("query by key, found", found as f64 * 100.0 / LOOKUPS as f64, "%");
        let (first, last) = times(&store)?;
        let began = Instant::now();
        for number in 0..LOOKUPS {
            let time = first + random.below((last - first + 1) as u64) as i64;
            black_box(store.queues().offset_by_time(TOPIC, (number % QUEUES) as u32, time, Boundary::Lower));
        }
        tell("offset by time", rate(LOOKUPS, began), "op/s");
    }
    store.close()?;
    Ok(())
}

fn read_queue(store: &MessageStore, queue_id: u32, batch: usize) -> u64 {
    let (mut got, mut at) = (0, 0);
    loop {
        let found = store.queues().get(TOPIC, queue_id, at, batch, 1 << 20, &MessageFilter::All);
        if found.messages.is_empty() {
            return got;
        }
        got += found.messages.len() as u64;
        at = found.next_offset;
    }
}

/// Store time of the first and the last message of the first queue.
fn times(store: &MessageStore) -> Outcome<(i64, i64)> {
    let last = store.queues().max_offset(TOPIC, 0).saturating_sub(1);
    let found = store.queues().get(TOPIC, 0, last, 1, 1 << 20, &MessageFilter::All);
    let (_, record) = found.messages.first().ok_or("the queue is empty")?;
    let first = store.queues().earliest_time(TOPIC, 0).ok_or("the queue has no first message")?;
    Ok((first, MessageView::decode(record.bytes(), false)?.store_timestamp))
}

/// The machine's limit: copies a body into a new file and computes its checksum.
fn bare_loop(directory: &Path, count: u64) -> Outcome<()> {
    std::fs::create_dir_all(directory)?;
    let path = directory.join("loop");
    std::fs::remove_file(&path).ok();
    let body = body(1024);
    let file = RealDisk.create(&path, count * body.len() as u64, Allocation::Reserved)?;
    let began = Instant::now();
    for number in 0..count {
        black_box(crc32fast::hash(black_box(&body)));
        file.write_at(number * body.len() as u64, &[&body])?;
    }
    tell("bare loop, copy and CRC32", rate(count, began), "msg/s");
    std::fs::remove_file(&path)?;
    Ok(())
}

/// A small generator, the same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}
