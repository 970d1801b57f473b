//! How many messages per second can the engine store and read on this machine?
//!
//! `benches/peers/store.sh` compares it with Apache RocketMQ's own store.
#![allow(missing_docs, clippy::unwrap_used)]

use std::{hint::black_box, path::Path};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ferromq_store::{
    MessageStore, StoreConfig,
    filter::{MessageFilter, SqlFilter},
    log::FlushPolicy,
    read::Boundary,
    record::{MessageView, NewMessage},
    time::Clock,
};

const TOPIC: &str = "bench";
const BODY: &[u8] = &[b'x'; 1024];

fn config(flush: FlushPolicy) -> StoreConfig {
    StoreConfig {
        commit_log_file_size: 256 << 20,
        index_slots: 500_000,
        index_entries: 2_000_000,
        flush,
        ..StoreConfig::default()
    }
}

fn open(directory: &Path, flush: FlushPolicy) -> MessageStore {
    MessageStore::open(directory, config(flush), Clock::system()).unwrap()
}

fn asynchronous() -> FlushPolicy {
    FlushPolicy::default()
}

fn append(store: &MessageStore, number: u64) -> u64 {
    let properties = format!("KEYS\u{1}k{number}\u{2}TAGS\u{1}TAG1\u{2}");
    let message = NewMessage {
        topic: TOPIC,
        queue_id: (number % 4) as i32,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 1_700_000_000_000,
        born_host: ([127, 0, 0, 1], 8123).into(),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: BODY,
        properties: properties.as_bytes(),
    };
    store.log().append(&[message]).unwrap().end
}

fn append_all(store: &MessageStore, count: u64) {
    for number in 0..count {
        append(store, number);
    }
}

fn wait_dispatched(store: &MessageStore) {
    while store.admin().stats().dispatched_offset < store.admin().stats().max_physical_offset {
        std::thread::yield_now();
    }
}

fn appends(criterion: &mut Criterion) {
    const BATCH: u64 = 10_000;
    let mut group = criterion.benchmark_group("append");
    group.throughput(Throughput::Elements(BATCH)).sample_size(20);
    for threads in [1, 4] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path(), asynchronous());
        group.bench_function(format!("1 KiB with a key, until dispatched, {threads} threads"), |bencher| {
            bencher.iter(|| {
                std::thread::scope(|scope| {
                    for _ in 0..threads {
                        scope.spawn(|| append_all(&store, BATCH / threads));
                    }
                });
                wait_dispatched(&store);
            });
        });
    }
    group.finish();
}

fn synchronous_appends(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("append_sync");
    group.sample_size(10);
    for waiters in [1, 64] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path(), FlushPolicy::Group);
        group.throughput(Throughput::Elements(waiters * 20));
        group.bench_function(format!("1 KiB, until durable, {waiters} waiting"), |bencher| {
            bencher.iter(|| {
                std::thread::scope(|scope| {
                    for _ in 0..waiters {
                        scope.spawn(|| {
                            for number in 0..20 {
                                store.log().wait_durable(append(&store, number)).unwrap();
                            }
                        });
                    }
                });
            });
        });
    }
    group.finish();
}

const READ: u64 = 400_000;

/// A store with [`READ`] messages in four queues.
fn filled(directory: &Path) -> MessageStore {
    let store = open(directory, asynchronous());
    append_all(&store, READ);
    wait_dispatched(&store);
    store
}

fn gets(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let store = filled(directory.path());
    let mut group = criterion.benchmark_group("get");
    for count in [1, 32] {
        let mut at = 0;
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(format!("{count} at once"), |bencher| {
            bencher.iter(|| {
                at = (at + count as u64) % (READ / 4 - 32);
                black_box(
                    store.queues().get(TOPIC, 0, at, count, 1 << 20, &MessageFilter::All).messages.len(),
                )
            });
        });
    }
    group.throughput(Throughput::Elements(1));
    group.bench_function("decoded and checked", |bencher| {
        let record = store.queues().message_at(0).unwrap();
        bencher.iter(|| MessageView::decode(black_box(record.bytes()), true).map(|view| view.queue_offset));
    });
    group.finish();
}

/// Evaluates an expression of three clauses on a message of a RocketMQ producer.
fn filters(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("filter");
    let properties = [
        ("UNIQ_KEY", "7F0000010001073D16E9A1B2C3D40000"),
        ("CLUSTER", "DefaultCluster"),
        ("MSG_REGION", "DefaultRegion"),
        ("TRACE_ON", "true"),
        ("WAIT", "true"),
        ("KEYS", "order-4711"),
        ("TAGS", "new"),
        ("region", "eu"),
        ("price", "42"),
    ];
    let properties: String =
        properties.iter().map(|(name, value)| format!("{name}\x01{value}\x02")).collect();
    group.throughput(Throughput::Elements(1));
    for (name, expression) in [
        ("three clauses", "region = 'eu' AND price BETWEEN 10 AND 50 AND TAGS IN ('new', 'paid')"),
        ("a double", "price > 41.5"),
    ] {
        let filter = SqlFilter::parse(expression).unwrap();
        group.bench_function(name, |bencher| {
            bencher.iter(|| filter.matches(black_box(properties.as_bytes())))
        });
    }
    group.finish();
}

fn lookups(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    let store = filled(directory.path());
    let mut number = 0;
    criterion.bench_function("query", |bencher| {
        bencher.iter(|| {
            number = (number + 7919) % READ;
            black_box(
                store.queues().query_by_key(TOPIC, &format!("k{number}"), 1, 0, i64::MAX).messages.len(),
            )
        });
    });
    let first = store.queues().earliest_time(TOPIC, 0).unwrap();
    let last =
        store.queues().get(TOPIC, 0, READ / 4 - 1, 1, 1 << 20, &MessageFilter::All).messages.pop().unwrap().1;
    let span = MessageView::decode(last.bytes(), false).unwrap().store_timestamp - first + 1;
    criterion.bench_function("offset_by_time", |bencher| {
        bencher.iter(|| {
            number += 7919;
            let time = first + (number % span as u64) as i64;
            black_box(store.queues().offset_by_time(TOPIC, (number % 4) as u32, time, Boundary::Lower))
        });
    });
}

/// Opens the store of a killed process repeatedly; recovery walks the whole log.
fn recoveries(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path()).close().unwrap();
    let mut group = criterion.benchmark_group("recover");
    group.sample_size(10).throughput(Throughput::Elements(READ));
    group.bench_function("all walked", |bencher| {
        bencher.iter_batched(
            || {
                std::fs::remove_file(directory.path().join("checkpoint")).unwrap();
                std::fs::write(directory.path().join("abort"), b"").unwrap();
            },
            |()| open(directory.path(), asynchronous()),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, appends, synchronous_appends, gets, filters, lookups, recoveries);
criterion_main!(benches);
