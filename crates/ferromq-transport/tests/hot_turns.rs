//! The hot verbs among other tasks: a filter that matches little must not keep a thread for the whole backlog.
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

/// More than one turn of either verb steps over.
const BACKLOG: usize = 120_000;

/// A backlog nobody wants in queue 1 of `flights`, and one wanted message behind it.
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

/// The future's answer, and how often it gave way before.
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

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_pull_gives_way_while_it_steps_over_a_backlog_and_finds_what_is_behind() {
    let broker = Broker::start();
    backlog(&broker).await;
    let filter = MessageFilter::tags("wanted");
    let (found, turns) = turns(hot(&broker).pull(&pull(&filter, 0, LONG))).await;
    assert_eq!((found.messages.len(), found.next_offset), (1, BACKLOG as u64 + 1));
    assert!(turns > 1, "{turns}");
}

#[tokio::test]
async fn a_receive_gives_way_while_it_steps_over_a_backlog_and_finds_what_is_behind() {
    let broker = Broker::start();
    backlog(&broker).await;
    let filter = MessageFilter::tags("wanted");
    let (received, turns) = turns(hot(&broker).receive(&receive(&filter, LONG))).await;
    assert_eq!(received.unwrap().messages[0].handle.queue_offset, BACKLOG as u64);
    assert!(turns > 1, "{turns}");
}

#[tokio::test]
async fn a_pull_whose_patience_ends_says_where_to_go_on_though_it_may_wait() {
    let broker = Broker::start();
    backlog(&broker).await;
    let (hot, filter) = (hot(&broker), MessageFilter::parse("SQL92", "TAGS = 'wanted'").unwrap());
    let (mut at, mut pulls, mut found) = (0, 0, 0);
    while found == 0 {
        let request = Pull { wait: LONG, ..pull(&filter, at, Duration::ZERO) };
        let answer = hot.pull(&request).await;
        assert!(answer.next_offset > at, "it stays at {at}");
        (at, pulls, found) = (answer.next_offset, pulls + 1, answer.messages.len());
    }
    assert_eq!((found, at), (1, BACKLOG as u64 + 1));
    assert!(pulls > 100, "{pulls} pulls looked at everything");
}

#[tokio::test]
async fn a_receive_whose_patience_ends_leases_nothing_and_the_next_goes_on() {
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
        assert!(next > at || receives <= 4, "it stays at {at}");
        at = next;
    }
    assert!(receives > 20, "{receives} receives looked at everything");
}

#[tokio::test]
async fn a_client_that_leaves_ends_what_its_pulls_look_through() {
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
    let mut passed = 0;
    for _ in 0..pulls {
        let answer = loop {
            if let Some(answer) = decoder.next(&mut buffer).unwrap() {
                break answer;
            }
            assert!(peer.read_buf(&mut buffer).await.unwrap() > 0, "the broker closed");
        };
        assert!([response::PULL_RETRY_IMMEDIATELY, response::PULL_NOT_FOUND].contains(&answer.code));
        passed += answer.field("nextBeginOffset").unwrap().parse::<usize>().unwrap();
    }
    assert!(passed < 32 * BACKLOG, "all of them looked at everything");
}

#[tokio::test]
async fn what_is_not_in_memory_is_read_on_another_thread() {
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
    forget_pages(directory.path());
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
        // A file system in memory, or one that keeps its pages.
        return;
    }
    let (found, turns) = turns(hot.pull(&pull(filter, offset, LONG))).await;
    assert!(turns > 0, "it waited for the disk on this thread");
    assert_eq!((found.messages.len(), found.next_offset), (32, offset + 32));
    let warm = store.queues().get_from(&wanted);
    assert_eq!((warm.messages.len(), warm.is_cold), (32, false));
    let (received, turns) = self::turns(hot.receive(&receive(filter, LONG))).await;
    assert_eq!(received.unwrap().messages[0].handle.queue_offset, 0);
    assert!(turns > 0, "it waited for the disk on this thread");
}

/// Takes the files of a directory that are on disk out of memory.
fn forget_pages(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            forget_pages(&path);
            continue;
        }
        let file = std::fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }
}
