//! Dead letters are stored once each, even if their requester disconnects, and never in drained topics.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;

use std::{
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use ferromq_store::{
    MessageStore, StoreConfig, StoreError,
    filter::MessageFilter,
    log::FlushPolicy,
    progress::{Begin, ReceiptHandle},
    read::TransferLimits,
    record::NewMessage,
    time::Clock,
};
use ferromq_transport::{
    TransportError,
    hot::{Counters, DeadLetterCause, Hot, receive::Receive},
    tables::{GroupEntry, Tables, TopicEntry},
};
use grpc_support::{
    Broker, GROUP, TOPIC, eventually,
    proto::{message, receive},
};
use tempfile::TempDir;

const DEAD: &str = "%DLQ%audit";
const PEER: ([u8; 4], u16) = ([127, 0, 0, 1], 1);
const ONE_QUEUE: TopicEntry = TopicEntry { read_queues: 1, write_queues: 1, ..TOPIC };

/// Opens a store with the flush policy `group` and a limit of message sizes.
fn open(directory: &TempDir, clock: &Clock, max_message_size: u32) -> Arc<MessageStore> {
    let config = StoreConfig {
        commit_log_file_size: 16 << 20,
        max_message_size,
        flush: FlushPolicy::Group,
        disk_reserve: 0,
        ..StoreConfig::default()
    };
    Arc::new(MessageStore::open(directory.path(), config, clock.clone()).unwrap())
}

fn hot(broker: &Broker, store: &Arc<MessageStore>, clock: &Clock) -> Arc<Hot> {
    let (tables, counters) = (Arc::new(Tables::new()), Arc::new(Counters::default()));
    tables.put_topic("flights", ONE_QUEUE);
    tables.put_topic(DEAD, ONE_QUEUE);
    tables.put_group("audit", GroupEntry { max_attempts: 1, ..GROUP });
    let control = Arc::clone(&broker.control);
    Hot::new(Arc::clone(store), tables, clock.clone(), "broker-a".to_owned(), control, counters)
}

async fn append(store: &MessageStore, bodies: &[&[u8]]) {
    for body in bodies {
        let message = NewMessage {
            topic: "flights",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: SocketAddr::from(PEER),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties: b"",
        };
        drop(store.log().append(&[message]).unwrap());
    }
    eventually(|| store.queues().max_offset("flights", 0) == bodies.len() as u64).await;
}

const RECEIVE: Receive<'_> = Receive {
    group: "audit",
    topic: "flights",
    queue_count: 1,
    queue: None,
    max_count: 32,
    max_bytes: 4 << 20,
    limits: TransferLimits::NONE,
    invisible_duration: Duration::from_secs(30),
    filter: &MessageFilter::All,
    begin: Begin::AtMin,
    order: None,
    max_attempts: 1,
    by_priority: false,
    peer: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1),
    wait: Duration::ZERO,
    patience: Duration::from_secs(600),
};

async fn handles(hot: &Hot) -> Vec<ReceiptHandle> {
    hot.receive(&RECEIVE).await.unwrap().messages.iter().map(|leased| leased.handle).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_cannot_be_stored_does_not_store_the_others_twice() {
    let (broker, directory, clock) = (Broker::start(), tempfile::tempdir().unwrap(), Clock::manual(1_000));
    let store = open(&directory, &clock, 4 << 20);
    append(&store, &[b"0", &[b'x'; 1_000], b"2"]).await;
    assert_eq!(handles(&hot(&broker, &store, &clock)).await.len(), 3);
    store.close().unwrap();
    drop(store);
    // The second message now exceeds the limit.
    let store = open(&directory, &clock, 100);
    let hot = hot(&broker, &store, &clock);
    for _ in 0..3 {
        clock.advance(30_000);
        assert_eq!(handles(&hot).await, []);
    }
    eventually(|| store.queues().max_offset(DEAD, 0) >= 2).await;
    let ahead = store.groups().ahead("audit", "flights", 0, Begin::AtMin);
    assert_eq!(
        (store.queues().max_offset(DEAD, 0), ahead.in_flight),
        (2, 1),
        "one is still in flight, and two are stored once"
    );
}

/// Polls a future once, drops it and returns whether it was ready.
fn poll_once<T>(future: impl Future<Output = T>) -> bool {
    pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

// With one thread no other task runs before a future is polled again.
#[tokio::test(flavor = "current_thread")]
async fn dead_letters_are_stored_once_even_if_the_request_is_dropped() {
    let (broker, directory, clock) = (Broker::start(), tempfile::tempdir().unwrap(), Clock::manual(1_000));
    let store = open(&directory, &clock, 4 << 20);
    append(&store, &[b"0", b"1"]).await;
    let hot = hot(&broker, &store, &clock);
    let given_up = handles(&hot).await[0];
    assert!(!poll_once(hot.to_dead_letters(
        SocketAddr::from(PEER),
        "audit",
        "flights",
        &given_up,
        DeadLetterCause::default()
    )));
    eventually(|| store.groups().committed_offset("audit", "flights", 0) == Some(1)).await;
    clock.advance(30_000);
    assert!(!poll_once(hot.receive(&RECEIVE)));
    eventually(|| store.groups().committed_offset("audit", "flights", 0) == Some(2)).await;
    eventually(|| store.queues().max_offset(DEAD, 0) >= 2).await;
    clock.advance(30_000);
    assert_eq!((handles(&hot).await, store.queues().max_offset(DEAD, 0)), (Vec::new(), 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_given_up_twice_concurrently_becomes_one_dead_letter() {
    let (broker, directory, clock) = (Broker::start(), tempfile::tempdir().unwrap(), Clock::manual(1_000));
    let store = open(&directory, &clock, 4 << 20);
    append(&store, &[b"0"]).await;
    let hot = hot(&broker, &store, &clock);
    let handle = handles(&hot).await[0];
    let give_up = || {
        hot.to_dead_letters(SocketAddr::from(PEER), "audit", "flights", &handle, DeadLetterCause::default())
    };
    let (one, other) = tokio::join!(give_up(), give_up());
    let stale = [one, other].iter().filter(|done| is_stale(done)).count();
    eventually(|| store.queues().max_offset(DEAD, 0) >= 1).await;
    assert_eq!((stale, store.queues().max_offset(DEAD, 0)), (1, 1));
    assert!(is_stale(&give_up().await));
}

fn is_stale(done: &Result<(), TransportError>) -> bool {
    matches!(done, Err(TransportError::Store(StoreError::StaleReceipt)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_topic_accepts_neither_sends_nor_dead_letters() {
    let broker = Broker::start();
    let client = broker.client().await;
    let drained = TopicEntry { write_queues: 0, ..TOPIC };
    client.send_one("before").await;
    broker.readable(1).await;
    broker.server.tables().put_topic("flights", drained);
    let refused = client.send(vec![message("flights", "x")]).await.status.unwrap();
    assert_eq!(refused.code, 40_300, "{}", refused.message);
    assert!(refused.message.contains("no write queues"), "{}", refused.message);
    broker.server.tables().put_topic(DEAD, drained);
    let (_, got) = client.receive(&receive(Duration::ZERO)).await;
    let fields: Vec<String> = got[0].handle().split(' ').map(str::to_owned).collect();
    let handle = ReceiptHandle {
        queue_id: fields[6].parse().unwrap(),
        queue_offset: fields[7].parse().unwrap(),
        pop_time: fields[1].parse().unwrap(),
        invisible_ms: 30_000,
    };
    let hot = broker.server.hot().unwrap();
    let done = hot
        .to_dead_letters(SocketAddr::from(PEER), "audit", "flights", &handle, DeadLetterCause::default())
        .await;
    assert!(matches!(&done, Err(TransportError::TopicDrained(name)) if name == DEAD), "{done:?}");
    broker.server.tables().put_topic(DEAD, TOPIC);
    hot.to_dead_letters(SocketAddr::from(PEER), "audit", "flights", &handle, DeadLetterCause::default())
        .await
        .unwrap();
}
