//! Fairness of the hot verbs: a filter that matches little must not block a thread for a whole backlog.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use ferromq_store::{
    MessageStore, StoreConfig,
    filter::MessageFilter,
    progress::Begin,
    read::{GetRequest, Source, TransferLimits},
    record::NewMessage,
};
use ferromq_transport::{
    hot::{Counters, Hot, pull::Pull, receive::Receive},
    remoting::{
        Decoder, Limits, RemotingCommand, codec,
        codes::{request, response},
    },
    tables::Tables,
};
use grpc_support::Broker;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// More messages than either verb skips in one turn.
const BACKLOG: usize = 120_000;

/// Fills queue 1 of `flights` with unwanted messages and a wanted one behind them.
async fn backlog(broker: &Broker) {
    let message = |properties| NewMessage {
        topic: "flights",
        queue_id: 1,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: SocketAddr::from(([127, 0, 0, 1], 1)),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: b"x",
        properties,
    };
    let unwanted = vec![message(b"TAGS\x01other\x02"); 1_000];
    for _ in 0..BACKLOG / 1_000 {
        drop(broker.store.log().append(&unwanted).unwrap());
    }
    drop(broker.store.log().append(&[message(b"TAGS\x01wanted\x02")]).unwrap());
    broker.readable(BACKLOG as u64 + 1).await;
}

fn hot(broker: &Broker) -> Arc<Hot> {
    let (store, control) = (Arc::clone(&broker.store), Arc::clone(&broker.control));
    let (tables, counters) = (Arc::new(Tables::new()), Arc::new(Counters::default()));
    Hot::new(store, tables, broker.clock.clone(), "broker-a".to_owned(), control, counters)
}

/// The output of a future, and how often it yielded before.
async fn turns<T>(future: impl Future<Output = T>) -> (T, usize) {
    let (mut future, mut turns) = (pin!(future), 0);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(answer) => return (answer, turns),
            std::task::Poll::Pending => turns += 1,
        }
    }
}

fn pull(filter: &MessageFilter, offset: u64, patience: Duration) -> Pull<'_> {
    Pull {
        topic: "flights",
        queue_id: 1,
        offset,
        max_count: 32,
        max_bytes: 4 << 20,
        limits: TransferLimits::NONE,
        filter,
        wait: Duration::ZERO,
        patience,
    }
}

fn receive(filter: &MessageFilter, patience: Duration) -> Receive<'_> {
    Receive {
        group: "audit",
        topic: "flights",
        queue_count: 4,
        queue: None,
        max_count: 32,
        max_bytes: 4 << 20,
        limits: TransferLimits::NONE,
        invisible_duration: Duration::from_secs(30),
        filter,
        begin: Begin::AtMin,
        order: None,
        max_attempts: 0,
        by_priority: false,
        peer: SocketAddr::from(([127, 0, 0, 1], 1)),
        wait: Duration::ZERO,
        patience,
    }
}

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_pull_yields_while_it_skips_a_backlog_and_finds_the_message_behind_it() {
    let broker = Broker::start();
    backlog(&broker).await;
    let filter = MessageFilter::tags("wanted");
    let (found, turns) = turns(hot(&broker).pull(&pull(&filter, 0, LONG))).await;
    assert_eq!((found.messages.len(), found.next_offset), (1, BACKLOG as u64 + 1));
    assert!(turns > 1, "{turns}");
}

#[tokio::test]
async fn a_receive_yields_while_it_skips_a_backlog_and_finds_the_message_behind_it() {
    let broker = Broker::start();
    backlog(&broker).await;
    let filter = MessageFilter::tags("wanted");
    let (received, turns) = turns(hot(&broker).receive(&receive(&filter, LONG))).await;
    assert_eq!(received.unwrap().messages[0].handle.queue_offset, BACKLOG as u64);
    assert!(turns > 1, "{turns}");
}

#[tokio::test]
async fn a_pull_whose_patience_ends_returns_the_next_offset_even_if_it_may_wait() {
    let broker = Broker::start();
    backlog(&broker).await;
    let (hot, filter) = (hot(&broker), MessageFilter::parse("SQL92", "TAGS = 'wanted'").unwrap());
    let (mut at, mut pulls, mut found) = (0, 0, 0);
    while found == 0 {
        let request = Pull { wait: LONG, ..pull(&filter, at, Duration::ZERO) };
        let answer = hot.pull(&request).await;
        assert!(answer.next_offset > at, "no progress from {at}");
        (at, pulls, found) = (answer.next_offset, pulls + 1, answer.messages.len());
    }
    assert_eq!((found, at), (1, BACKLOG as u64 + 1));
    assert!(pulls > 100, "{pulls} pulls scanned the backlog");
}

#[tokio::test]
async fn a_receive_whose_patience_ends_leases_nothing_and_the_next_one_continues() {
    let broker = Broker::start();
    backlog(&broker).await;
    let (hot, filter) = (hot(&broker), MessageFilter::parse("SQL92", "TAGS = 'wanted'").unwrap());
    let (mut at, mut receives) = (0, 0);
    loop {
        let request = Receive { wait: LONG, ..receive(&filter, Duration::ZERO) };
        let messages = hot.receive(&request).await.unwrap().messages;
        receives += 1;
        if let Some(wanted) = messages.first() {
            assert_eq!((wanted.handle.queue_offset, wanted.attempt), (BACKLOG as u64, 1));
            break;
        }
        let next = broker.store.groups().committed_offset("audit", "flights", 1).unwrap_or(0);
        assert!(next > at || receives <= 4, "no progress from {at}");
        at = next;
    }
    assert!(receives > 20, "{receives} receives scanned the backlog");
}

#[tokio::test]
async fn a_client_that_disconnects_ends_the_scans_of_its_pulls() {
    let broker = Broker::start();
    backlog(&broker).await;
    let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let mut peer = TcpStream::connect(address).await.unwrap();
    let fields = [
        ("consumerGroup", "audit"),
        ("topic", "flights"),
        ("queueId", "1"),
        ("queueOffset", "0"),
        ("maxMsgNums", "32"),
        ("sysFlag", "6"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "600000"),
        ("subscription", "TAGS = 'none'"),
        ("subVersion", "0"),
        ("expressionType", "SQL92"),
    ];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let pulls = 32;
    for opaque in 0..pulls {
        let mut request = RemotingCommand::request(request::PULL_MESSAGE, fields.to_vec(), Bytes::new());
        request.opaque = opaque;
        peer.write_all(&codec::encode(&request).unwrap().to_bytes()).await.unwrap();
    }
    peer.shutdown().await.unwrap();
    let (mut buffer, decoder) = (BytesMut::new(), Decoder::new(Limits::default()));
    let mut scanned = 0;
    for _ in 0..pulls {
        let answer = loop {
            if let Some(answer) = decoder.next(&mut buffer).unwrap() {
                break answer;
            }
            assert!(peer.read_buf(&mut buffer).await.unwrap() > 0, "the broker closed the connection");
        };
        assert!([response::PULL_RETRY_IMMEDIATELY, response::PULL_NOT_FOUND].contains(&answer.code));
        scanned += answer.field("nextBeginOffset").unwrap().parse::<usize>().unwrap();
    }
    assert!(scanned < 32 * BACKLOG, "all of them scanned the whole backlog");
}

#[test]
fn messages_that_are_not_in_memory_are_read_on_another_thread() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(read_evicted_messages());
}

async fn read_evicted_messages() {
    let (broker, directory) = (Broker::start(), tempfile::tempdir().unwrap());
    let open = || MessageStore::open(directory.path(), StoreConfig::default(), broker.clock.clone()).unwrap();
    let store = open();
    let message = NewMessage {
        topic: "flights",
        queue_id: 1,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: SocketAddr::from(([127, 0, 0, 1], 1)),
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body: &[7; 4_000],
        properties: b"",
    };
    for _ in 0..20 {
        drop(store.log().append(&vec![message; 100]).unwrap());
    }
    store.close().unwrap();
    drop(store);
    evict_pages(directory.path());
    let store = Arc::new(open());
    let (control, counters) = (Arc::clone(&broker.control), Arc::new(Counters::default()));
    let (tables, name) = (Arc::new(Tables::new()), "broker-a".to_owned());
    let hot = Hot::new(Arc::clone(&store), tables, broker.clock.clone(), name, control, counters);
    let (filter, source) = (&MessageFilter::All, Source::Memory);
    let (topic, queue_id, offset, max_count, max_bytes) = ("flights", 1, 1_000, 32, 4 << 20);
    let wanted = GetRequest {
        topic,
        queue_id,
        offset,
        max_count,
        max_bytes,
        filter,
        source,
        limits: TransferLimits::NONE,
    };
    if !store.queues().get_from(&wanted).is_cold {
        // The file system is in memory or keeps its pages.
        return;
    }
    let found = after_a_read_elsewhere(hot.pull(&pull(filter, offset, LONG))).await;
    assert_eq!((found.messages.len(), found.next_offset), (32, offset + 32));
    let warm = store.queues().get_from(&wanted);
    assert_eq!((warm.messages.len(), warm.is_cold), (32, false));
    let received = after_a_read_elsewhere(hot.receive(&receive(filter, LONG))).await;
    assert_eq!(received.unwrap().messages[0].handle.queue_offset, 0);
}

/// The output of a future that reads from the disk on the runtime's only blocking thread: that is busy until the
/// future was polled once, so a future that is ready by then has read on this thread.
async fn after_a_read_elsewhere<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let busy = tokio::task::spawn_blocking(move || _ = released.recv());
    let first = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(first.is_pending(), "it waited for the disk on this thread");
    drop(release);
    busy.await.unwrap();
    future.await
}

/// Evicts the files of a directory from the page cache.
fn evict_pages(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            evict_pages(&path);
            continue;
        }
        let file = std::fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }
}
