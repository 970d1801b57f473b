//! Framed calls on the gRPC port: hot methods in frames of the remoting protocol.
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
use ferromq_transport::remoting::codes::framed;
use grpc_support::{
    Broker, Client,
    frames::{Frames, SOON},
    proto::{SendMessageRequest, SendMessageResponse, StatusOnly, message},
};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

fn send_request(bodies: &[&str]) -> Vec<u8> {
    let to_queue_1 = |body: &&str| message("flights", body).with(|system| system.queue_id = Some(1));
    let messages = bodies.iter().map(to_queue_1).collect();
    SendMessageRequest { messages }.encode_to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_framed_send_is_answered_as_over_http2() {
    let broker = Broker::start();
    let mut frames = Frames::connect(&broker).await;
    let framed = frames.call(framed::SEND_MESSAGE, send_request(&["a", "b"])).await;
    assert_eq!((framed.code, framed.remark), (0, None));
    let framed = SendMessageResponse::decode(framed.body).unwrap();
    assert_eq!(framed.status.unwrap().code, 20_000);
    assert_eq!(framed.entries.iter().map(|entry| entry.offset).collect::<Vec<_>>(), [0, 1]);
    let plain = broker.client().await.call("SendMessage", send_request(&["c"])).await.unwrap();
    let bytes = plain.clone();
    let plain = SendMessageResponse::decode(plain).unwrap();
    assert_eq!(plain.encode_to_vec(), bytes, "RocketMQ's clients get fields that they know, and no others");
    assert_eq!(plain.entries[0].offset, 2);
    assert_eq!((broker.stat("sent"), broker.stat("send_requests")), (3, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_calls_share_a_connection_and_are_answered_by_number() {
    let broker = Broker::start();
    let mut frames = Frames::connect(&broker).await;
    for opaque in 0..500 {
        frames.write(opaque, framed::SEND_MESSAGE, Some("c"), send_request(&["x"]).into()).await;
    }
    let mut seen = Vec::new();
    while seen.len() < 500 {
        let response = frames.read().await.unwrap();
        assert_eq!(response.code, 0);
        seen.push(response.opaque);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..500).collect::<Vec<_>>());
    assert_eq!(broker.stat("sent"), 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_has_the_same_answer_as_over_http2() {
    let broker = Broker::start();
    let mut frames = Frames::connect(&broker).await;
    let unknown = SendMessageRequest { messages: vec![message("unknown", "x")] }.encode_to_vec();
    let framed = frames.call(framed::SEND_MESSAGE, unknown.clone()).await;
    let plain = broker.client().await.call("SendMessage", unknown).await.unwrap();
    assert_eq!((framed.code, framed.body), (0, plain));
    for code in
        [framed::SEND_MESSAGE, framed::ACK_MESSAGE, framed::CHANGE_INVISIBLE_DURATION, framed::UPDATE_OFFSET]
    {
        frames.write(1, code, None, Bytes::new()).await;
        let nameless = frames.read().await.unwrap();
        let status = StatusOnly::decode(nameless.body).unwrap().status.unwrap();
        assert_eq!((nameless.code, status.code), (0, 40_017), "{code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_request_is_a_status_and_the_connection_goes_on() {
    let broker = Broker::start();
    let mut frames = Frames::connect(&broker).await;
    let malformed = frames.call(framed::SEND_MESSAGE, &b"\xff\xff"[..]).await;
    assert_eq!(malformed.code, framed::STATUS + 3);
    assert!(malformed.remark.unwrap().contains("malformed"));
    let large = frames.call(framed::UPDATE_OFFSET, vec![0; (1 << 20) + 1]).await;
    assert_eq!(large.code, framed::STATUS + 8);
    assert_eq!(frames.call(framed::SEND_MESSAGE, send_request(&["x"])).await.code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remoting_client_of_the_grpc_port_is_disconnected() {
    let broker = Broker::start();
    for code in [310, 11, 34, 105, 206] {
        let mut frames = Frames::connect(&broker).await;
        assert_eq!(frames.call(framed::PROBE, Bytes::new()).await.code, 0);
        frames.write(1, code, Some("c"), Bytes::new()).await;
        assert!(frames.read().await.is_none(), "{code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_begins_neither_way_is_closed_and_others_go_on() {
    let broker = Broker::start();
    for bytes in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\0\0\0\x02\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\x08\x05\0\0\0aaaa"]
    {
        let mut frames = Frames::connect(&broker).await;
        frames.socket.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let end = timeout(SOON, frames.socket.read_to_end(&mut answer)).await.expect("closed in time");
        assert!(end.is_err() || answer.is_empty() || answer.starts_with(b"\0\0"), "{answer:?}");
    }
    let mut frames = Frames::connect(&broker).await;
    assert_eq!(frames.call(framed::SEND_MESSAGE, send_request(&["x"])).await.code, 0);
    broker.client().await.send_one("y").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_connection_is_reported_and_its_slot_is_free() {
    let mut broker = Broker::start();
    let mut frames = Frames::connect(&broker).await;
    frames.call(framed::PROBE, Bytes::new()).await;
    assert_eq!(broker.stat("connections"), 1);
    drop(frames);
    timeout(SOON, broker.closed.recv()).await.expect("reported").unwrap();
    broker.until("connections", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_ends_framed_connections() {
    let broker = Broker::start();
    let mut frames = Frames::connect(&broker).await;
    assert_eq!(frames.call(framed::SEND_MESSAGE, send_request(&["x"])).await.code, 0);
    timeout(SOON, broker.server.stop(Duration::from_secs(5))).await.expect("stops");
    assert!(frames.read().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_announces_framed_calls_on_the_telemetry_stream() {
    let broker = Broker::start();
    let Client(channel) = broker.client().await;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let request = tonic::Request::new(tokio_stream::once(Bytes::from_static(b"settings")));
    let path = "/apache.rocketmq.v2.MessagingService/Telemetry".parse().unwrap();
    let response = grpc.streaming(request, path, ferromq_transport::grpc::codec::BytesCodec).await.unwrap();
    assert_eq!(response.metadata().get("x-ferromq-framed").unwrap(), "1");
}
