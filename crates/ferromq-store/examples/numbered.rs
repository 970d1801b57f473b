//! How long does a send wait during the snapshot of many numbered messages, and when many are forgotten at once?
//!
//! `numbered DIR IDS COUNT` remembers IDS numbers and stores COUNT messages of 1 KB, with a snapshot every 64 MiB. It
//! prints how long an append took. Compare it with 0 IDS on the same machine.
#![allow(clippy::print_stdout)]

use std::{
    error::Error,
    path::Path,
    time::{Duration, Instant},
};

use ferromq_store::{
    MessageStore, StoreConfig,
    dedup::SEQUENCE,
    record::{NewMessage, properties},
    time::Clock,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const START: i64 = 1_700_000_000_000;
const WINDOW: Duration = Duration::from_secs(3_600);
/// Partitions of each writer.
const PARTITIONS: u64 = 1_000;
const BATCH: u64 = 100;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [directory, ids, count] = &args[..] else { return Err("usage: numbered DIR IDS COUNT".into()) };
    let (ids, count): (u64, u64) = (ids.parse()?, count.parse()?);
    let config = StoreConfig {
        commit_log_file_size: 256 << 20,
        dedup_writers: u32::try_from(ids)?.saturating_add(10),
        dedup_window: WINDOW,
        ..StoreConfig::default()
    };
    let clock = Clock::manual(START);
    let store = MessageStore::open(Path::new(directory), config, clock.clone())?;
    for first in (0..ids).step_by(usize::try_from(BATCH)?) {
        let texts: Vec<Vec<u8>> = (first..ids.min(first + BATCH)).map(number).collect();
        let messages: Vec<_> = texts.iter().map(|text| message(b"x", text)).collect();
        store.log().append_once(&messages)?;
    }
    let mut waits = Vec::with_capacity(usize::try_from(count)?);
    for _ in 0..count {
        let began = Instant::now();
        store.log().append(&[message(&[b'x'; 1024], b"")])?;
        waits.push(began.elapsed());
    }
    waits.sort_unstable();
    let at = |share: f64| waits.get((waits.len() as f64 * share) as usize).or(waits.last());
    let [p50, p99, p999, longest] =
        [0.5, 0.99, 0.999, 1.0].map(|share| at(share).copied().unwrap_or_default());
    println!("{ids} numbers: p50 {p50:.1?}  p99 {p99:.1?}  p99.9 {p999:.1?}  longest {longest:.1?}");
    if ids == 0 {
        return Ok(store.close()?);
    }
    clock.advance(i64::try_from(WINDOW.as_millis())? + 1);
    let texts: Vec<Vec<u8>> = (ids..ids + 11).map(number).collect();
    let longest = texts.iter().map(|text| {
        let began = Instant::now();
        store.log().append_once(&[message(b"x", text)]).map(|_| began.elapsed())
    });
    let longest = longest.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or_default();
    println!("{ids} numbers out of the window: the longest of 11 numbered sends took {longest:.1?}");
    Ok(store.close()?)
}

fn number(id: u64) -> Vec<u8> {
    let mut text = Vec::new();
    let sequence = format!("writer-{}/{}/0/0", id / PARTITIONS, id % PARTITIONS);
    properties::push(&mut text, SEQUENCE, &sequence);
    text
}

fn message<'a>(body: &'a [u8], properties: &'a [u8]) -> NewMessage<'a> {
    NewMessage {
        topic: "bench",
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: START,
        born_host: ([127, 0, 0, 1], 8123).into(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties,
    }
}
