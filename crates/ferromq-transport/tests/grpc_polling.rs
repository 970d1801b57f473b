//! Long polls over gRPC: the bounds of waits, and the requests of our own client.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::large_enum_variant
)]

mod grpc_support;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ferromq_transport::{grpc::codec::BytesCodec, hot::Waits};
use grpc_support::{
    Broker, Client, eventually,
    proto::{ReceiveContent::Status, ReceiveMessageRequest, ReceiveMessageResponse, receive},
    split,
};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

const NOW: Duration = Duration::ZERO;
const FAR: Duration = Duration::from_secs(3_600);
/// Far apart, and far from the delays of a busy machine.
const WAITS: Waits = Waits { min: Duration::from_millis(300), max: Duration::from_secs(60) };

fn broker(waits: Waits) -> Broker {
    let broker = Broker::start();
    broker.server.hot().unwrap().waits.store(Arc::new(waits));
    broker
}

fn asking(wait: &ReceiveMessageRequest, deadline: Duration, version: Option<&str>) -> Request<Bytes> {
    let mut request = Request::new(Bytes::from(wait.encode_to_vec()));
    request.set_timeout(deadline);
    if let Some(version) = version {
        request.metadata_mut().insert("x-mq-client-version", version.parse().unwrap());
    }
    request
}

/// Code, number of messages, and elapsed time.
async fn received(client: &Client, request: Request<Bytes>) -> (i32, usize, Duration) {
    let began = Instant::now();
    let (_, mut stream) = client.stream("ReceiveMessage", request).await.unwrap();
    let mut responses = Vec::new();
    while let Some(bytes) = stream.message().await.unwrap() {
        responses.push(ReceiveMessageResponse::decode(bytes).unwrap());
    }
    let (code, messages) = split(responses);
    (code, messages.len(), began.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_is_clamped_to_the_bounds() {
    let broker = broker(WAITS);
    let client = broker.client().await;
    let (code, _, took) = received(&client, asking(&receive(NOW), Duration::from_secs(30), None)).await;
    assert!(code == 40_401 && took >= WAITS.min, "{code} after {took:?}");
    broker.server.hot().unwrap().waits.store(Arc::new(Waits { min: NOW, max: WAITS.min }));
    let (code, _, took) = received(&client, asking(&receive(FAR), FAR, None)).await;
    assert!(code == 40_401 && took >= WAITS.min, "{code} after {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_below_the_minimum_wait_is_refused_before_other_checks() {
    let broker = broker(Waits { min: Duration::from_secs(600), max: FAR });
    let client = broker.client().await;
    client.send_one("x").await;
    broker.readable(1).await;
    let short = Duration::from_secs(500);
    let nothing = ReceiveMessageRequest { message_queue: None, group: None, ..receive(NOW) };
    for request in [receive(NOW), receive(FAR), nothing] {
        for (version, code) in [(Some("5.0.3"), 40_018), (Some("5.0.10"), 40_000), (None, 40_000)] {
            let refused = received(&client, asking(&request, short, version)).await;
            assert_eq!((refused.0, refused.1), (code, 0), "{version:?}");
        }
    }
    assert_eq!(received(&client, asking(&receive(NOW), FAR, None)).await.1, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_of_our_own_client_are_not_clamped() {
    let broker = broker(Waits { min: FAR, max: FAR });
    let client = broker.client().await;
    let mut request = asking(&receive(NOW), Duration::from_secs(30), Some("5.0.7"));
    request.metadata_mut().insert("x-ferromq-packed", "1".parse().unwrap());
    let (metadata, mut stream) = client.stream("ReceiveMessage", request).await.unwrap();
    assert_eq!(metadata.get("x-ferromq-packed").unwrap(), "1");
    let packet = stream.message().await.unwrap().unwrap();
    let first = packet.slice(1..1 + usize::from(packet[0]));
    assert!(
        matches!(ReceiveMessageResponse::decode(first).unwrap().content, Some(Status(s)) if s.code == 40_401)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_without_a_wait_uses_the_request_timeout_of_the_connected_client() {
    let mut broker = broker(WAITS);
    let client = broker.client().await;
    let (commands, outgoing) = mpsc::channel(1);
    let mut telemetry = Request::new(ReceiverStream::new(outgoing));
    telemetry.metadata_mut().insert("x-mq-client-id", "patient".parse().unwrap());
    let mut grpc = tonic::client::Grpc::new(client.0.clone());
    grpc.ready().await.unwrap();
    let path = "/apache.rocketmq.v2.MessagingService/Telemetry".parse().unwrap();
    let open = grpc.streaming(telemetry, path, BytesCodec).await.unwrap();
    // The settings of a client with a request timeout of 80 s, without other fields.
    commands.send(Bytes::from_static(&[0x12, 4, 0x22, 2, 0x08, 80])).await.unwrap();
    broker.telemetry.recv().await.unwrap();
    let without_wait = || {
        let receive_request = ReceiveMessageRequest { long_polling_timeout: None, ..receive(NOW) };
        let mut request = asking(&receive_request, Duration::from_secs(40), None);
        request.metadata_mut().insert("x-mq-client-id", "patient".parse().unwrap());
        request
    };
    // Half of 80 s leaves nothing of the deadline of 40 s, so the minimum applies. Without settings it would be 38.5 s.
    let with_settings = received(&client, without_wait()).await;
    assert!(with_settings.0 == 40_401 && with_settings.2 < Duration::from_secs(30), "{with_settings:?}");
    drop((open, commands));
    eventually(|| broker.stat("telemetry_streams") == 0).await;
    let waits = tokio::spawn({
        let (client, request) = (client.clone(), without_wait());
        async move { received(&client, request).await }
    });
    broker.until("parked", 1).await;
    client.send_one("x").await;
    assert_eq!(waits.await.unwrap().1, 1);
}
