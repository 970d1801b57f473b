//! Limits of the memory and time that a gRPC client can occupy, and their refusals.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::large_enum_variant
)]

mod grpc_support;

use std::time::Duration;

use bytes::Bytes;
use ferromq_store::time::Clock;
use ferromq_transport::{ServerOptions, grpc::codec::BytesCodec};
use grpc_support::{
    Broker, Client,
    proto::{ReceiveMessageRequest, message, receive},
};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming, codegen::http::uri::PathAndQuery};

fn limited(options: ServerOptions) -> Broker {
    Broker::start_limited(Clock::manual(1_700_000_000_000), true, options)
}

async fn exhausted(client: &Client, method: &str, bytes: usize) {
    let refused = client.call(method, vec![0; bytes]).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{method}: {refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_requests_with_bodies_or_handles_may_exceed_a_mebibyte() {
    let broker = Broker::start();
    let client = broker.client().await;
    client.call("Heartbeat", vec![0; 1 << 20]).await.unwrap();
    exhausted(&client, "Heartbeat", (1 << 20) + 1).await;
    exhausted(&client, "UpdateOffset", (1 << 20) + 1).await;
    exhausted(&client, "AckMessage", (8 << 20) + 1).await;
    let sent = client.send(vec![message("flights", &"x".repeat(3 << 20))]).await;
    assert_eq!(sent.status.unwrap().code, 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_telemetry_command_over_a_mebibyte_ends_its_stream() {
    let broker = Broker::start();
    let client = broker.client().await;
    let mut grpc = tonic::client::Grpc::new(client.0.clone());
    grpc.ready().await.unwrap();
    let path = "/apache.rocketmq.v2.MessagingService/Telemetry".parse().unwrap();
    let commands = tokio_stream::once(Bytes::from(vec![0; (1 << 20) + 1]));
    let mut answers = grpc.streaming(Request::new(commands), path, BytesCodec).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap_err().code(), Code::ResourceExhausted);
    broker.until("telemetry_streams", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_over_the_limit_is_closed_and_counted_and_room_is_returned() {
    let broker = limited(ServerOptions { max_connections: Some(1), ..ServerOptions::default() });
    let first = broker.client().await;
    first.call("Heartbeat", Bytes::new()).await.unwrap();
    let address = broker.server.listen_remoting(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    for to in [broker.address, address] {
        let mut second = tokio::net::TcpStream::connect(to).await.unwrap();
        let read = tokio::io::AsyncReadExt::read_u8(&mut second);
        tokio::time::timeout(Duration::from_secs(60), read).await.expect("an end").unwrap_err();
    }
    assert_eq!(broker.stat("refused_connections"), 2);
    drop(first);
    broker.until("connections", 0).await;
    broker.client().await.call("Heartbeat", Bytes::new()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_all_connections_share_a_memory_budget_that_is_returned() {
    let broker = limited(ServerOptions { memory: 256 << 10, ..ServerOptions::default() });
    let client = broker.client().await;
    for _ in 0..3 {
        exhausted(&client, "SendMessage", 300 << 10).await;
        let sent = client.send(vec![message("flights", &"x".repeat(200 << 10))]).await;
        assert_eq!(sent.status.unwrap().code, 20_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_responses_limit_those_of_others_and_lose_no_messages() {
    let broker = limited(ServerOptions { memory: 5 << 20, ..ServerOptions::default() });
    let client = broker.client().await;
    for i in 0..6 {
        client.send(vec![message("flights", &format!("{i}").repeat(1 << 20))]).await;
    }
    broker.readable(6).await;
    let three = ReceiveMessageRequest { batch_size: 3, ..receive(Duration::ZERO) };
    let request = || Request::new(Bytes::from(three.encode_to_vec()));
    let slow = broker.client_with_a_small_window().await;
    let held = slow.stream("ReceiveMessage", request()).await.unwrap();
    let first = client.receive(&three).await.1.len();
    assert!((1..3).contains(&first), "{first} messages of 1 MiB while 3 of 5 MiB are in use");
    drop(held);
    drop(slow);
    broker.until("connections", 1).await;
    let rest = client.receive(&three).await.1.len();
    assert!(first + rest >= 3, "{first} and {rest} messages; the other client left three");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_bodies_of_four_mebibytes_are_sent_and_received_at_once() {
    let broker = Broker::start();
    let client = broker.client().await;
    let bodies = ["a", "b", "c"].map(|letter| letter.repeat(4 << 20));
    let batch = bodies.iter().map(|body| message("flights", body).with(|system| system.queue_id = Some(1)));
    let response = client.send(batch.collect()).await;
    assert_eq!((response.status.unwrap().code, response.entries.len()), (20_000, 3));
    broker.readable(3).await;
    let mut got = Vec::new();
    while got.len() < 3 {
        let (code, messages) = client.receive(&receive(Duration::from_secs(10))).await;
        assert_eq!(code, 20_000);
        got.extend(messages.into_iter().map(|message| message.body));
    }
    assert!(got.iter().zip(&bodies).all(|(got, sent)| got == sent.as_bytes()));
}

/// Memory limit of a connection in the tests below. All connections together have four times as much.
const CONNECTION_MEMORY: usize = 256 << 10;

fn shared() -> Broker {
    limited(ServerOptions {
        memory: 4 * CONNECTION_MEMORY,
        connection_memory: CONNECTION_MEMORY,
        ..ServerOptions::default()
    })
}

/// Sends and receives a message that takes most of a connection's limit.
async fn is_undisturbed(broker: &Broker) {
    let (client, body) = (broker.client().await, "x".repeat(200 << 10));
    client.send_one(&body).await;
    assert_eq!(client.receive_bodies(&receive(Duration::from_secs(60))).await, [body]);
}

/// Starts a call that announces more bytes than it sends. Returns the open body and the future response.
async fn unfinished(
    client: &h2::client::SendRequest<Bytes>,
    method: &str,
    sent: usize,
) -> (h2::SendStream<Bytes>, h2::client::ResponseFuture) {
    let request =
        http::Request::post(format!("http://localhost/apache.rocketmq.v2.MessagingService/{method}"))
            .header("content-type", "application/grpc")
            .header("x-mq-client-id", "tests")
            .body(())
            .unwrap();
    let (answer, mut body) = client.clone().ready().await.unwrap().send_request(request, false).unwrap();
    let frame = [&[0][..], &(1_u32 << 20).to_be_bytes(), &vec![0; sent]].concat();
    body.send_data(frame.into(), false).unwrap();
    (body, answer)
}

async fn raw(broker: &Broker) -> h2::client::SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(broker.address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The gRPC status of a response without messages.
fn refusal(answer: &http::Response<h2::RecvStream>) -> (&str, &str) {
    let text = |name| answer.headers().get(name).map_or("", |text| text.to_str().unwrap());
    (text("grpc-status"), text("grpc-message"))
}

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), event).await.expect(what)
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_requests_use_up_only_the_memory_of_their_connection() {
    let broker = shared();
    let stalled = raw(&broker).await;
    let (mut bodies, mut answers) = (Vec::new(), tokio::task::JoinSet::new());
    // Four bodies of 60 KiB fit the limit of a connection. Only refused calls get a response.
    for _ in 0..10 {
        let (body, answer) = unfinished(&stalled, "SendMessage", 60 << 10).await;
        bodies.push(body);
        answers.spawn(answer);
    }
    for _ in 0..6 {
        let refused = soon("a refusal", answers.join_next()).await.unwrap().unwrap().unwrap();
        let (code, reason) = refusal(&refused);
        assert_eq!(code, "8", "{reason}");
        assert!(reason.contains("connection") && reason.contains("262144"), "{reason}");
    }
    is_undisturbed(&broker).await;
    is_undisturbed(&broker).await;
    assert!(answers.try_join_next().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_request_ends_and_returns_its_memory() {
    let broker = limited(ServerOptions {
        connection_memory: CONNECTION_MEMORY,
        grpc_stall: Duration::from_millis(100),
        ..ServerOptions::default()
    });
    let stalled = raw(&broker).await;
    for _ in 0..3 {
        let (_body, answer) = unfinished(&stalled, "SendMessage", 200 << 10).await;
        assert_eq!(refusal(&soon("an end", answer).await.unwrap()).0, "4");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_responses_use_up_only_the_memory_of_their_connection() {
    let broker = shared();
    let client = broker.client().await;
    for _ in 0..6 {
        client.send_one(&"x".repeat(100 << 10)).await;
    }
    broker.readable(6).await;
    let one = ReceiveMessageRequest { batch_size: 1, ..receive(Duration::from_secs(60)) };
    let slow = broker.client_with_a_small_window().await;
    let ask = || slow.stream("ReceiveMessage", Request::new(one.encode_to_vec().into()));
    let _unread = [ask().await.unwrap(), ask().await.unwrap()];
    let mut third = Box::pin(ask());
    let waits = tokio::time::timeout(Duration::from_millis(100), &mut third).await;
    assert!(waits.is_err(), "three answers of 100 KiB are unread");
    drop(third);
    // The message of the dropped response is released, so four are left for the other client.
    for _ in 0..4 {
        assert_eq!(client.receive_bodies(&one).await.len(), 1);
    }
    is_undisturbed(&broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_disconnected_and_a_long_poll_is_not() {
    let mut options = ServerOptions::default();
    options.connection.write = Duration::from_millis(300);
    let broker = limited(options);
    let (client, deaf) = (broker.client().await, broker.client_with_a_small_window().await);
    client.send_one(&"x".repeat(1 << 20)).await;
    broker.readable(1).await;
    let waiting = broker.client().await;
    let waits = ReceiveMessageRequest { batch_size: 1, ..receive(Duration::from_secs(60)) };
    let unread = deaf.stream("ReceiveMessage", Request::new(waits.encode_to_vec().into())).await.unwrap();
    let parked = tokio::spawn(async move { waiting.receive_bodies(&waits).await });
    broker.until("connections", 2).await;
    // By now, the parked receive has waited longer than the write limit.
    client.send_one("small").await;
    assert_eq!(soon("the message", parked).await.unwrap().len(), 1);
    drop(unread);
}

/// Reads a message of 4 MiB slowly, for five times the limit. Returns false if the machine stalled for longer than a
/// quarter of the limit, which proves nothing.
async fn stays_open_for_a_slow_reader(limit: Duration) -> bool {
    let mut options = ServerOptions::default();
    options.connection.write = limit;
    let broker = limited(options);
    broker.client().await.send_one(&"x".repeat((4 << 20) - 1024)).await;
    broker.readable(1).await;
    let stream = tokio::net::TcpStream::connect(broker.address).await.unwrap();
    let mut settings = h2::client::Builder::new();
    let (client, connection) =
        settings.initial_window_size(8 << 10).handshake::<_, Bytes>(stream).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post("http://localhost/apache.rocketmq.v2.MessagingService/ReceiveMessage")
        .header("content-type", "application/grpc")
        .header("x-mq-client-id", "tests")
        .body(())
        .unwrap();
    let (answer, mut body) = client.ready().await.unwrap().send_request(request, false).unwrap();
    let encoded = ReceiveMessageRequest { batch_size: 1, ..receive(Duration::ZERO) }.encode_to_vec();
    let frame = [&[0][..], &(encoded.len() as u32).to_be_bytes(), &encoded].concat();
    body.send_data(frame.into(), true).unwrap();
    let mut message = soon("an answer", answer).await.unwrap().into_body();
    let begun = std::time::Instant::now();
    let mut last = begun;
    while begun.elapsed() < 5 * limit {
        let read = soon("bytes", message.data()).await;
        if last.elapsed() > limit / 4 {
            return false;
        }
        last = std::time::Instant::now();
        let read = read.expect("the message has not ended yet").expect("the connection is open");
        message.flow_control().release_capacity(read.len()).unwrap();
        tokio::time::sleep(limit / 100).await;
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_of_a_large_message_is_not_disconnected() {
    for limit in [1, 2, 4, 8] {
        if stays_open_for_a_slow_reader(Duration::from_secs(limit)).await {
            return;
        }
    }
    panic!("the machine stalled each time");
}

/// Opens a telemetry or reflection stream. Returns its sender and its responses, or the refusal.
async fn open_stream(
    client: &Client,
    path: &'static str,
) -> Result<(mpsc::Sender<Bytes>, Streaming<Bytes>), Status> {
    let (requests, stream) = mpsc::channel(64);
    let mut grpc = tonic::client::Grpc::new(client.0.clone());
    grpc.ready().await.unwrap();
    let request = Request::new(ReceiverStream::new(stream));
    let answers = grpc.streaming(request, PathAndQuery::from_static(path), BytesCodec).await?;
    Ok((requests, answers.into_inner()))
}

const TELEMETRY: &str = "/apache.rocketmq.v2.MessagingService/Telemetry";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_open_streams_is_limited_for_each_connection() {
    let broker = Broker::start();
    let client = broker.client().await;
    let mut open = Vec::new();
    let refused = loop {
        match open_stream(&client, [TELEMETRY, REFLECTION][open.len() % 2]).await {
            Ok(stream) => open.push(stream),
            Err(refused) => break refused,
        }
    };
    assert_eq!((open.len(), refused.code()), (256, Code::ResourceExhausted), "{refused:?}");
    assert!(refused.message().contains("256"), "{refused:?}");
    open_stream(&broker.client().await, TELEMETRY).await.unwrap();
    open.pop();
    // The client is not notified when the server has closed the stream.
    while open_stream(&client, TELEMETRY).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_telemetry_commands_count_and_too_many_end_their_stream() {
    let mut broker = shared();
    let client = broker.client().await;
    let (commands, mut answers) = open_stream(&client, TELEMETRY).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..2 {
        commands.send(vec![0; 100 << 10].into()).await.unwrap();
        held.push(broker.telemetry.recv().await.unwrap());
    }
    commands.send(vec![0; 100 << 10].into()).await.unwrap();
    let refused = soon("an end", answers.message()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert_eq!(broker.telemetry.recv().await.unwrap().2, None);
    is_undisturbed(&broker).await;
    held.clear();
    let (commands, _answers) = open_stream(&client, TELEMETRY).await.unwrap();
    for _ in 0..10 {
        commands.send(vec![0; 100 << 10].into()).await.unwrap();
        assert_eq!(broker.telemetry.recv().await.unwrap().2.unwrap().len(), 100 << 10);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_commands_and_unread_descriptions_count_too() {
    let broker = shared();
    let (stalled, deaf) = (raw(&broker).await, broker.client_with_a_small_window().await);
    let (mut bodies, mut answers) = (Vec::new(), tokio::task::JoinSet::new());
    for _ in 0..2 {
        let (body, answer) = unfinished(&stalled, "Telemetry", 200 << 10).await;
        bodies.push(body);
        answers.spawn(async move {
            let mut answer = answer.await.unwrap().into_body();
            answer.trailers().await.unwrap().unwrap()["grpc-status"].clone()
        });
    }
    assert_eq!(soon("an end", answers.join_next()).await.unwrap().unwrap(), "8");
    // Field 4: the file that defines a symbol, about 20 KB with its imports.
    let question = Bytes::from([&[0x22, 35][..], b"apache.rocketmq.v2.MessagingService"].concat());
    let mut unread = Vec::new();
    for _ in 0..20 {
        // The last streams may be refused.
        let Ok(stream) = open_stream(&deaf, REFLECTION).await else { break };
        for _ in 0..8 {
            // The stream may have ended.
            let _ = stream.0.send(question.clone()).await;
        }
        unread.push(stream);
    }
    // Reflection responses come asynchronously. A malformed request gets a response without a body.
    let is_refused = async {
        while deaf.call("UpdateOffset", vec![0xff; 150 << 10]).await.unwrap_err().code()
            != Code::ResourceExhausted
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon("a refusal while responses are unread", is_refused).await;
    is_undisturbed(&broker).await;
}
