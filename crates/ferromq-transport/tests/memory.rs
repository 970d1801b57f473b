//! Limits of the memory that untrusted clients can occupy, over both protocols together.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;
mod support;

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use bytes::Bytes;
use ferromq_store::{record::NewMessage, time::Clock};
use ferromq_transport::tables::{MessageType, TopicEntry};
use ferromq_transport::{
    ServerOptions,
    remoting::{
        RemotingCommand,
        codes::{request, response},
    },
};
use grpc_support::{
    Broker,
    proto::{ReceiveMessageRequest, SendMessageRequest, message, receive},
};
use support::{PATIENCE, Peer};
#[cfg(target_os = "linux")]
use tokio::net::TcpSocket;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

const MIB: usize = 1 << 20;

struct Rig {
    broker: Broker,
    address: SocketAddr,
}

impl Rig {
    fn start(options: ServerOptions) -> Self {
        let broker = Broker::start_limited(Clock::manual(1_700_000_000_000), true, options);
        let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        Self { broker, address }
    }

    /// Connects from another address of this machine.
    #[cfg(target_os = "linux")]
    async fn connect_from(&self, address: &str) -> Peer {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(address.parse().unwrap()).unwrap();
        Peer::of(socket.connect(self.address).await.unwrap())
    }

    async fn connect(&self) -> Peer {
        Peer::of(TcpStream::connect(self.address).await.unwrap())
    }

    fn append(&self, body: &[u8]) {
        let message = NewMessage {
            topic: "flights",
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: SocketAddr::from(([127, 0, 0, 1], 1)),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties: b"",
        };
        drop(self.broker.store.log().append(&[message]).unwrap());
    }

    fn held(&self) -> usize {
        usize::try_from(self.broker.stat("memory_held")).unwrap()
    }
}

/// A pull that waits for the message at an offset, with its own subscription.
fn pull(opaque: i32, offset: u64) -> RemotingCommand {
    let fields = [
        ("consumerGroup", "audit"),
        ("topic", "flights"),
        ("queueId", "0"),
        ("queueOffset", &offset.to_string()),
        ("maxMsgNums", "32"),
        ("maxMsgBytes", "4194304"),
        ("sysFlag", "6"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "60000"),
        ("subscription", "*"),
        ("expressionType", "TAG"),
    ];
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    RemotingCommand { opaque, ..RemotingCommand::request(request::PULL_MESSAGE, fields, Bytes::new()) }
}

fn send(body: &str) -> RemotingCommand {
    let fields = [
        ("producerGroup", "p"),
        ("topic", "flights"),
        ("defaultTopic", "TBW102"),
        ("defaultTopicQueueNums", "4"),
        ("queueId", "1"),
        ("sysFlag", "0"),
        ("bornTimestamp", "0"),
        ("flag", "0"),
        ("reconsumeTimes", "0"),
    ];
    let fields: Vec<_> =
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let body = Bytes::from(body.to_owned());
    RemotingCommand { opaque: 1, ..RemotingCommand::request(request::SEND_MESSAGE, fields, body) }
}

/// Sends a message over each protocol.
async fn others_send(rig: &Rig) {
    let sent = rig.connect().await.call(&send("small")).await;
    assert_eq!(sent.code, response::SUCCESS, "{:?}", sent.remark);
    rig.broker.client().await.send_one("small").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_pulls_woken_by_one_message_are_answered_within_the_memory_limit() {
    const PULLS: i32 = 64;
    let rig = Rig::start(ServerOptions {
        memory: 16 * MIB,
        connection_memory: 4 * MIB,
        ..ServerOptions::default()
    });
    let mut deaf = rig.connect().await;
    for opaque in 0..PULLS {
        deaf.send(&pull(opaque, 0)).await;
    }
    rig.broker.until("parked", u64::try_from(PULLS).unwrap()).await;
    rig.append(&vec![b'x'; MIB]);
    grpc_support::eventually(|| rig.held() > 2 * MIB).await;
    others_send(&rig).await;
    assert!(rig.held() <= 6 * MIB, "{} bytes are in use by one connection", rig.held());
    for _ in 0..PULLS {
        let answer = deaf.receive().await.expect("an answer");
        assert_eq!(answer.code, response::SUCCESS);
        assert!(answer.body.len() > MIB);
    }
    grpc_support::eventually(|| rig.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_frames_use_only_the_memory_of_their_received_bytes_and_time_out() {
    let mut options =
        ServerOptions { memory: 16 * MIB, connection_memory: 4 * MIB, ..ServerOptions::default() };
    options.connection.read = Duration::from_millis(500);
    let rig = Rig::start(options);
    let mut halves = Vec::new();
    for _ in 0..12 {
        let mut peer = rig.connect().await;
        // Announces 16 MiB.
        peer.send_bytes(&[&(16_777_212_u32).to_be_bytes()[..], &[0, 0, 1, 0]].concat()).await;
        halves.push(peer);
    }
    others_send(&rig).await;
    assert!(rig.held() < MIB, "{} bytes are in use by frames that were not sent", rig.held());
    let mut sending = JoinSet::new();
    for mut peer in halves {
        sending.spawn(async move {
            // The server may close the connection meanwhile.
            _ = tokio::io::AsyncWriteExt::write_all(&mut peer.stream, &vec![0; 3 * MIB]).await;
            peer
        });
    }
    grpc_support::eventually(|| rig.held() > 10 * MIB).await;
    others_send(&rig).await;
    // One frame may exceed the budget, so that frames that wait for each other complete.
    assert!(rig.held() <= 24 * MIB, "{} bytes are in use", rig.held());
    while let Some(peer) = timeout(PATIENCE, sending.join_next()).await.expect("an end of the frame") {
        assert_eq!(peer.unwrap().receive().await, None);
    }
    grpc_support::eventually(|| rig.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_overhead_of_many_small_messages_is_counted() {
    let rig = Rig::start(ServerOptions {
        memory: 64 * MIB,
        connection_memory: 16 * MIB,
        ..ServerOptions::default()
    });
    let client = rig.broker.client().await;
    let many = |count| vec![message("flights", "b"); count];
    let sent = client.send(many(1_000)).await;
    assert_eq!((sent.status.unwrap().code, sent.entries.len()), (20_000, 1_000));
    let request = prost::Message::encode_to_vec(&SendMessageRequest { messages: many(40_000) });
    let wire = request.len();
    let refused = client.call("SendMessage", request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{wire} bytes: {refused:?}");
    others_send(&rig).await;
    grpc_support::eventually(|| rig.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_with_little_memory_gets_fewer_messages() {
    let rig =
        Rig::start(ServerOptions { memory: 8 * MIB, connection_memory: 2 * MIB, ..ServerOptions::default() });
    let client = rig.broker.client().await;
    for _ in 0..6 {
        rig.append(&vec![b'x'; MIB / 2]);
    }
    rig.broker.readable(6).await;
    let all = ReceiveMessageRequest { batch_size: 32, ..receive(Duration::ZERO) };
    let mut got = Vec::new();
    while got.len() < 6 {
        let messages = client.receive(&all).await.1;
        assert!((1..=4).contains(&messages.len()), "{} messages of 512 KiB in 2 MiB", messages.len());
        got.extend(messages);
    }
    assert_eq!(got.len(), 6);
}

/// Connects, and returns a future that sends a gRPC batch of `count` messages and returns its code.
async fn batch(rig: &Rig, topic: &str, count: usize) -> impl Future<Output = i32> + Send + use<> {
    let client = rig.broker.client().await;
    let messages = vec![message(topic, "b"); count];
    async move { client.send(messages).await.status.unwrap().code }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_batches_that_wait_for_a_topic_type_do_not_delay_others() {
    let rig = Rig::start(ServerOptions::default());
    let undecided = TopicEntry { message_type: MessageType::Undecided, ..grpc_support::TOPIC };
    // As many as the server processes at once. They wait for the control plane, and must not count meanwhile.
    let mut waiting = JoinSet::new();
    for topic in ["held-1", "held-2", "held-3", "held-4"] {
        rig.broker.server.tables().put_topic(topic, undecided);
        waiting.spawn(batch(&rig, topic, 300).await);
    }
    grpc_support::eventually(|| rig.broker.control.held.lock().len() == 4).await;
    let mut remoting = rig.connect().await;
    remoting.send(&send_batch(300)).await;
    let other = batch(&rig, "flights", 300).await;
    assert_eq!(timeout(PATIENCE, other).await.expect("an answer"), 20_000);
    let answer = timeout(PATIENCE, remoting.receive()).await.expect("no wait").expect("an answer");
    assert_eq!(answer.code, response::SUCCESS, "{:?}", answer.remark);
    for _ in 0..10 {
        others_send(&rig).await;
    }
    assert!(waiting.try_join_next().is_none(), "a batch was answered before its topic had a type");
    rig.broker.readable(20 + 600).await;
    rig.broker.control.release();
    while let Some(code) = timeout(PATIENCE, waiting.join_next()).await.expect("all batches") {
        assert_eq!(code.unwrap(), 20_000);
    }
    grpc_support::eventually(|| rig.held() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_batches_of_many_connections_are_all_stored() {
    const BATCHES: usize = 24;
    const MESSAGES: usize = 2_000;
    let rig = Rig::start(ServerOptions::default());
    let mut sending = JoinSet::new();
    for _ in 0..BATCHES {
        sending.spawn(batch(&rig, "flights", MESSAGES).await);
    }
    while let Some(code) = sending.join_next().await {
        assert_eq!(code.unwrap(), 20_000);
    }
    rig.broker.readable((BATCHES * MESSAGES) as u64).await;
    grpc_support::eventually(|| rig.held() == 0).await;
}

/// A remoting batch of `count` messages.
fn send_batch(count: usize) -> RemotingCommand {
    let one = [&26_u32.to_be_bytes()[..], &[0; 12], &4_u32.to_be_bytes(), b"body", &[0; 2]].concat();
    RemotingCommand { code: request::SEND_BATCH_MESSAGE, body: one.repeat(count).into(), ..send("") }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remoting_batch_of_too_many_messages_is_refused_and_one_of_many_is_stored() {
    let rig = Rig::start(ServerOptions::default());
    let mut peer = rig.connect().await;
    let refused = peer.call(&send_batch((1 << 16) + 1)).await;
    assert_eq!(refused.code, response::MESSAGE_ILLEGAL, "{:?}", refused.remark);
    assert!(refused.remark.unwrap().contains("65,536"));
    let stored = peer.call(&send_batch(20_000)).await;
    assert_eq!(stored.code, response::SUCCESS, "{:?}", stored.remark);
    rig.broker.readable(20_000).await;
}

/// Starts a frame of 16 MiB on each of `connections` connections from one address, and sends 3 MiB of it as far as the
/// server reads.
#[cfg(target_os = "linux")]
async fn begin_frames(rig: &Rig, connections: usize) -> JoinSet<Peer> {
    let mut sending = JoinSet::new();
    for _ in 0..connections {
        let mut peer = rig.connect().await;
        sending.spawn(async move {
            let frame = [&(16_777_212_u32).to_be_bytes()[..], &[0, 0, 1, 0], &vec![0; 3 * MIB]].concat();
            _ = tokio::io::AsyncWriteExt::write_all(&mut peer.stream, &frame).await;
            peer
        });
    }
    sending
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn large_batches_that_wait_for_memory_do_not_delay_others() {
    // The frame of so many messages is a small request, but their memory until they are stored is large.
    const MESSAGES: usize = 2_400;
    let rig = Rig::start(ServerOptions {
        memory: 64 * MIB,
        connection_memory: 16 * MIB,
        ..ServerOptions::default()
    });
    let frames = begin_frames(&rig, 24).await;
    // One of them exceeds the limit of an address, so that there is no room for others.
    grpc_support::eventually(|| rig.held() > 42 * MIB).await;
    let held = rig.held();
    let mut stuck = Vec::new();
    // As many as the server processes at once.
    for _ in 0..4 {
        let mut peer = rig.connect().await;
        peer.send(&send_batch(MESSAGES)).await;
        stuck.push(peer);
    }
    grpc_support::eventually(|| rig.held() > held + 4 * 26 * MESSAGES).await;
    let mut other = rig.connect_from("127.0.0.2:0").await;
    for _ in 0..4 {
        let stored = other.call(&send_batch(MESSAGES)).await;
        assert_eq!(stored.code, response::SUCCESS, "{:?}", stored.remark);
    }
    assert!(rig.held() > 42 * MIB, "the frames no longer use memory");
    drop(frames);
    for mut peer in stuck {
        let answer = peer.receive().await.expect("an answer");
        assert_eq!(answer.code, response::SUCCESS, "{:?}", answer.remark);
    }
    rig.broker.readable(8 * MESSAGES as u64).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn large_requests_from_one_address_do_not_delay_those_from_another() {
    let rig = Rig::start(ServerOptions {
        memory: 64 * MIB,
        connection_memory: 16 * MIB,
        ..ServerOptions::default()
    });
    let _frames = begin_frames(&rig, 24).await;
    grpc_support::eventually(|| rig.held() > 36 * MIB).await;
    let mut other = rig.connect_from("127.0.0.2:0").await;
    for _ in 0..8 {
        let stored = other.call(&send(&"x".repeat(2 * MIB))).await;
        assert_eq!(stored.code, response::SUCCESS, "{:?}", stored.remark);
    }
    assert!(rig.held() > 36 * MIB, "the frames no longer use memory");
    assert!(rig.held() <= 50 * MIB, "{} bytes are in use by one address", rig.held());
}
