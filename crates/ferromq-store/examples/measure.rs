//! Measures the engine alone and prints `name<TAB>value<TAB>unit`, for runs side by side with other engines.
//!
//! `measure put DIR THREADS BODY async|sync COUNT` appends messages with a key and a tag to four queues,
//! as `benches/peers/java/StorePeer.java` does; `measure get DIR COUNT` also reads them back.
#![allow(clippy::print_stdout, clippy::indexing_slicing)]

use std::{
    error::Error,
    io::Write as _,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use ferromq_store::{Clock, FlushMode, MessageStore, NewMessage, StoreConfig, TagFilter};

type Outcome<T> = Result<T, Box<dyn Error>>;

const TOPIC: &str = "bench";
const QUEUES: u64 = 4;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["put", directory, threads, body, mode, count] => {
            put(Path::new(directory), threads.parse()?, body.parse()?, mode == "sync", count.parse()?)
        }
        ["get", directory, count] => get(Path::new(directory), count.parse()?),
        _ => Err("usage: measure put DIR THREADS BODY async|sync COUNT | measure get DIR COUNT".into()),
    }
}

fn open(directory: &Path, is_sync: bool) -> Outcome<MessageStore> {
    std::fs::remove_dir_all(directory).ok();
    let flush =
        if is_sync { FlushMode::Sync } else { FlushMode::Async { interval: Duration::from_millis(500) } };
    Ok(MessageStore::open(directory, StoreConfig { flush, ..StoreConfig::default() }, Clock::system())?)
}

fn wait_dispatched(store: &MessageStore) {
    while store.stats().dispatched_offset < store.stats().max_physical_offset {
        std::thread::yield_now();
    }
}

/// Appends one message after the other in each thread; returns the time of each append in nanoseconds where asked to.
fn append(store: &MessageStore, threads: u64, body: &[u8], count: u64, is_sync: bool) -> Outcome<Vec<u64>> {
    let failed = AtomicU64::new(0);
    let per_thread = count / threads;
    let mut times: Vec<u64> = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let failed = &failed;
                scope.spawn(move || {
                    let mut times = Vec::with_capacity(if is_sync { per_thread as usize } else { 0 });
                    let mut properties = Vec::new();
                    for number in 0..per_thread {
                        let began = is_sync.then(Instant::now);
                        properties.clear();
                        // The same properties as the Java client writes.
                        let _ = write!(
                            properties,
                            "KEYS\u{1}k{}\u{2}WAIT\u{1}true\u{2}TAGS\u{1}TAG1\u{2}",
                            number * 64 + thread
                        );
                        let message = NewMessage {
                            topic: TOPIC,
                            queue_id: ((number + thread) % QUEUES) as i32,
                            flag: 0,
                            sys_flag: 0,
                            born_timestamp: 1_700_000_000_000,
                            born_host: ([127, 0, 0, 1], 8123).into(),
                            reconsume_times: 0,
                            prepared_transaction_offset: 0,
                            body,
                            properties: &properties,
                        };
                        let done =
                            store.append(&[message]).and_then(|appended| store.wait_durable(appended.end));
                        if done.is_err() {
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                        if let Some(began) = began {
                            times.push(began.elapsed().as_nanos() as u64);
                        }
                    }
                    times
                })
            })
            .collect();
        for thread in threads {
            times.extend(thread.join().unwrap_or_default());
        }
    });
    match failed.load(Ordering::Relaxed) {
        0 => Ok(times),
        failed => Err(format!("{failed} appends failed").into()),
    }
}

fn put(directory: &Path, threads: u64, body: usize, is_sync: bool, count: u64) -> Outcome<()> {
    let body: Vec<u8> = (0..body).map(|at| b'a' + (at % 26) as u8).collect();
    let store = open(directory, is_sync)?;
    append(&store, threads, &body, (count / 5).max(1000), is_sync)?;
    wait_dispatched(&store);
    let before = store.stats();
    let began = Instant::now();
    let mut times = append(&store, threads, &body, count, is_sync)?;
    let put = began.elapsed().as_secs_f64();
    wait_dispatched(&store);
    let dispatched = began.elapsed().as_secs_f64();
    let done = (count / threads * threads) as f64;
    let mode = if is_sync { "sync" } else { "async" };
    let name = format!("ferromq-store put {mode} t={threads} body={} +key", body.len());
    println!("{name}\t{:.1}\tmsg/s", done / put);
    if is_sync {
        times.sort_unstable();
        println!("{name} p50\t{:.1}\tus", times[times.len() / 2] as f64 / 1e3);
        println!("{name} p99\t{:.1}\tus", times[times.len() * 99 / 100] as f64 / 1e3);
        println!(
            "{name} flushes\t{:.4}\tper message",
            (store.stats().flushes - before.flushes) as f64 / done
        );
    } else {
        println!("{name} (until dispatched)\t{:.1}\tmsg/s", done / dispatched);
    }
    store.close()?;
    std::fs::remove_dir_all(directory)?;
    Ok(())
}

fn get(directory: &Path, count: u64) -> Outcome<()> {
    let body = vec![b'x'; 1024];
    let store = open(directory, false)?;
    append(&store, 1, &body, count, false)?;
    wait_dispatched(&store);
    for batch in [32, 1] {
        let began = Instant::now();
        let mut got = 0;
        for queue_id in 0..QUEUES as u32 {
            let mut at = 0;
            loop {
                let found = store.get(TOPIC, queue_id, at, batch, 1 << 20, &TagFilter::All);
                if found.messages.is_empty() {
                    break;
                }
                got += found.messages.len();
                at = found.next_offset;
            }
        }
        println!("ferromq-store get batch={batch}\t{:.1}\tmsg/s", got as f64 / began.elapsed().as_secs_f64());
    }
    let queries = 100_000;
    let began = Instant::now();
    let mut found = 0;
    for number in 0..queries {
        let key = format!("k{}", number * 7919 % count * 64);
        found += store.query_by_key(TOPIC, &key, 32, 0, i64::MAX).len();
    }
    println!(
        "ferromq-store query by key\t{:.1}\tmsg/s",
        f64::from(found as u32) / began.elapsed().as_secs_f64()
    );
    store.close()?;
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
