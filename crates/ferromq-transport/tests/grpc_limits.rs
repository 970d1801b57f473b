//! What a gRPC client may make the server hold, and what it is told beyond it.
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
async fn only_requests_that_carry_bodies_or_handles_may_be_over_a_mebibyte() {
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
async fn a_connection_too_many_is_closed_and_counted_and_room_comes_back() {
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
async fn requests_of_all_connections_share_a_budget_that_comes_back() {
    let broker = limited(ServerOptions { memory: 256 << 10, ..ServerOptions::default() });
    let client = broker.client().await;
    for _ in 0..3 {
        exhausted(&client, "SendMessage", 300 << 10).await;
        let sent = client.send(vec![message("flights", &"x".repeat(200 << 10))]).await;
        assert_eq!(sent.status.unwrap().code, 20_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_taken_keep_others_waiting_for_room_and_lose_nothing() {
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
    assert!((1..3).contains(&first), "{first} messages of 1 MiB where 3 of 5 MiB are taken");
    drop(held);
    drop(slow);
    broker.until("connections", 1).await;
    let rest = client.receive(&three).await.1.len();
    assert!(first + rest >= 3, "{first} and {rest} messages, of three that the other did not get");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_four_mebibytes_go_both_ways_also_several_at_once() {
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

/// What a connection may hold in the tests below; all together four times that.
const OF_ONE: usize = 256 << 10;

fn shared() -> Broker {
    limited(ServerOptions { memory: 4 * OF_ONE, connection_memory: OF_ONE, ..ServerOptions::default() })
}

/// Sends and receives what takes most of a connection's share.
async fn is_undisturbed(broker: &Broker) {
    let (client, body) = (broker.client().await, "x".repeat(200 << 10));
    client.send_one(&body).await;
    assert_eq!(client.receive_bodies(&receive(Duration::from_secs(60))).await, [body]);
}

/// A call that announces more than it sends; what it holds open, and the answer once there is one.
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

/// The gRPC status of an answer that is nothing else.
fn refusal(answer: &http::Response<h2::RecvStream>) -> (&str, &str) {
    let text = |name| answer.headers().get(name).map_or("", |text| text.to_str().unwrap());
    (text("grpc-status"), text("grpc-message"))
}

async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), event).await.expect(what)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_stops_in_the_middle_of_bodies_uses_up_their_own_share_and_nobody_elses() {
    let broker = shared();
    let stalled = raw(&broker).await;
    let (mut bodies, mut answers) = (Vec::new(), tokio::task::JoinSet::new());
    // Four of 60 KiB are what one may hold; only those that are refused are answered.
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
async fn the_rest_of_a_request_that_does_not_come_ends_the_request_and_gives_its_share_back() {
    let broker = limited(ServerOptions {
        connection_memory: OF_ONE,
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
async fn who_reads_no_answers_uses_up_their_own_share_and_nobody_elses() {
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
    // The lease of the answer that was waited for is given back, so four are left for the other.
    for _ in 0..4 {
        assert_eq!(client.receive_bodies(&one).await.len(), 1);
    }
    is_undisturbed(&broker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_nothing_of_an_answer_is_cut_off_and_who_waits_for_messages_is_not() {
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
    // It would have been cut off as well.
    client.send_one("small").await;
    assert_eq!(soon("the message", parked).await.unwrap().len(), 1);
    drop(unread);
}

/// Takes 4 KiB of one message of 4 MiB every few milliseconds, for five times the limit; false where the machine stood
/// still for longer than a quarter of it, which proves nothing.
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
    let wish = ReceiveMessageRequest { batch_size: 1, ..receive(Duration::ZERO) }.encode_to_vec();
    let frame = [&[0][..], &(wish.len() as u32).to_be_bytes(), &wish].concat();
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
        let read = read.expect("the end of the message does not come yet").expect("it is not cut off");
        message.flow_control().release_capacity(read.len()).unwrap();
        tokio::time::sleep(limit / 100).await;
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_a_large_message_slowly_is_not_cut_off() {
    for limit in [1, 2, 4, 8] {
        if stays_open_for_a_slow_reader(Duration::from_secs(limit)).await {
            return;
        }
    }
    panic!("the machine stood still each time");
}

/// A telemetry or reflection stream: the way to send, and the answers unless it is refused.
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
async fn a_connection_has_so_many_streams_that_stay_open_and_another_has_its_own() {
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
    // The end of a stream is not told to who ended it.
    while open_stream(&client, TELEMETRY).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_nobody_has_worked_on_yet_count_and_their_stream_ends_once_they_are_too_many() {
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
async fn half_commands_and_descriptions_nobody_reads_count_as_well() {
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
    // Field 4: the file that defines a symbol, about 20 KB with all it imports.
    let question = Bytes::from([&[0x22, 35][..], b"apache.rocketmq.v2.MessagingService"].concat());
    let mut unread = Vec::new();
    for _ in 0..20 {
        // The last ones may find that there is no room.
        let Ok(stream) = open_stream(&deaf, REFLECTION).await else { break };
        for _ in 0..8 {
            // The stream may have ended.
            let _ = stream.0.send(question.clone()).await;
        }
        unread.push(stream);
    }
    // The questions are answered in their own time; what is no request is answered without a body.
    let is_refused = async {
        while deaf.call("UpdateOffset", vec![0xff; 150 << 10]).await.unwrap_err().code()
            != Code::ResourceExhausted
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon("a refusal, as so much is unread", is_refused).await;
    is_undisturbed(&broker).await;
}
