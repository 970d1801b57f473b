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
use ferromq_store::Clock;
use ferromq_transport::{ServerOptions, grpc::codec::BytesCodec};
use grpc_support::{
    Broker, Client,
    proto::{ReceiveMessageRequest, message, receive},
};
use prost::Message as _;
use tonic::{Code, Request};

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
    let broker = limited(ServerOptions { max_connections: 1, ..ServerOptions::default() });
    let first = broker.client().await;
    first.call("Heartbeat", Bytes::new()).await.unwrap();
    let address = broker.server.listen_remoting(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    for to in [broker.address, address] {
        let mut second = tokio::net::TcpStream::connect(to).await.unwrap();
        let read = tokio::io::AsyncReadExt::read_u8(&mut second);
        tokio::time::timeout(Duration::from_secs(10), read).await.expect("an end").unwrap_err();
    }
    assert_eq!(broker.stat("refused_connections"), 2);
    drop(first);
    broker.until("connections", 0).await;
    broker.client().await.call("Heartbeat", Bytes::new()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_all_connections_share_a_budget_that_comes_back() {
    let broker = limited(ServerOptions { grpc_bytes: 256 << 10, ..ServerOptions::default() });
    let client = broker.client().await;
    for _ in 0..3 {
        exhausted(&client, "SendMessage", 300 << 10).await;
        let sent = client.send(vec![message("flights", &"x".repeat(200 << 10))]).await;
        assert_eq!(sent.status.unwrap().code, 20_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_nobody_takes_use_the_budget_up_and_their_leases_are_given_back() {
    let broker = limited(ServerOptions { grpc_bytes: 5 << 20, ..ServerOptions::default() });
    let client = broker.client().await;
    for i in 0..6 {
        client.send(vec![message("flights", &format!("{i}").repeat(1 << 20))]).await;
    }
    broker.readable(6).await;
    let three = ReceiveMessageRequest { batch_size: 3, ..receive(Duration::ZERO) };
    let request = || Request::new(Bytes::from(three.encode_to_vec()));
    let slow = broker.client_with_a_small_window().await;
    let held = slow.stream("ReceiveMessage", request()).await.unwrap();
    let refused = client.stream("ReceiveMessage", request()).await.map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(broker.stat("given_back"), 3);
    drop(held);
    drop(slow);
    broker.until("connections", 1).await;
    assert_eq!(client.receive(&three).await.1.len(), 3);
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
