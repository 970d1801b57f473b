//! Cold methods, telemetry streams, and notifications of closed connections.
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
use ferromq_transport::grpc::codec::BytesCodec;
use grpc_support::{Broker, Client};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Streaming};

async fn telemetry(client: &Client) -> (mpsc::Sender<Bytes>, Streaming<Bytes>) {
    let (commands, outgoing) = mpsc::channel(8);
    let mut grpc = tonic::client::Grpc::new(client.0.clone());
    grpc.ready().await.unwrap();
    let path = "/apache.rocketmq.v2.MessagingService/Telemetry".parse().unwrap();
    let answers =
        grpc.streaming(Request::new(ReceiverStream::new(outgoing)), path, BytesCodec).await.unwrap();
    (commands, answers.into_inner())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_method_gets_bytes_and_metadata_and_returns_bytes() {
    let broker = Broker::start();
    let client = broker.client().await;
    let bytes = Bytes::from_static(b"\xff not even protobuf");
    assert_eq!(client.call("Heartbeat", bytes.clone()).await.unwrap(), bytes);
    let seen = client.call("QueryRoute", Bytes::new()).await.unwrap();
    assert!(String::from_utf8_lossy(&seen).contains("user-agent"), "{seen:?}");
    assert_eq!(broker.stat("cold_calls"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_method_without_handler_is_unimplemented_and_a_failing_handler_an_internal_error() {
    let broker = Broker::start();
    let client = broker.client().await;
    assert_eq!(client.call("RecallMessage", Bytes::new()).await.unwrap_err().code(), Code::Unimplemented);
    let broken = client.call("EndTransaction", Bytes::new()).await.unwrap_err();
    assert_eq!((broken.code(), broken.message()), (Code::Internal, "broken"));
    let busy = client.call("GetOffset", Bytes::new()).await.unwrap_err();
    assert_eq!(busy.code(), Code::ResourceExhausted);
    let name_server = Broker::start_with(Clock::system(), false);
    let client = name_server.client().await;
    assert_eq!(client.call("SendMessage", Bytes::new()).await.unwrap_err().code(), Code::Unimplemented);
    client.call("Heartbeat", Bytes::new()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn telemetry_passes_in_both_directions_and_its_end_is_reported() {
    let mut broker = Broker::start();
    let client = broker.client().await;
    let (commands, mut answers) = telemetry(&client).await;
    commands.send(Bytes::from_static(b"settings")).await.unwrap();
    let (stream, connection, body) = broker.telemetry.recv().await.unwrap();
    assert_eq!(body.unwrap(), "settings");
    assert!(broker.server.send_telemetry(stream, Bytes::from_static(b"answer")));
    assert_eq!(answers.message().await.unwrap().unwrap(), "answer");
    drop(commands);
    assert_eq!(broker.telemetry.recv().await.unwrap(), (stream, connection, None));
    assert_eq!(answers.message().await.unwrap(), None);
    assert!(!broker.server.send_telemetry(stream, Bytes::from_static(b"too late")));
    assert_eq!(broker.stat("telemetry_streams"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_if_the_control_plane_rejects_a_command() {
    let mut broker = Broker::start();
    let client = broker.client().await;
    let (commands, mut answers) = telemetry(&client).await;
    commands.send(Bytes::from_static(b"too many")).await.unwrap();
    assert_eq!(answers.message().await.unwrap_err().code(), Code::ResourceExhausted);
    broker.telemetry.recv().await.unwrap();
    assert_eq!(broker.telemetry.recv().await.unwrap().2, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_can_end_a_stream_with_a_status() {
    let mut broker = Broker::start();
    let client = broker.client().await;
    let (commands, mut answers) = telemetry(&client).await;
    commands.send(Bytes::from_static(b"wrong")).await.unwrap();
    let (stream, ..) = broker.telemetry.recv().await.unwrap();
    assert!(broker.server.end_telemetry(stream, Code::InvalidArgument as i32, "no settings"));
    let status = answers.message().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "no settings"));
    assert_eq!(broker.telemetry.recv().await.unwrap().2, None);
    assert!(!broker.server.end_telemetry(stream, Code::InvalidArgument as i32, "once more"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_gets_no_more_commands() {
    let mut broker = Broker::start();
    let client = broker.client().await;
    let (commands, _answers) = telemetry(&client).await;
    commands.send(Bytes::from_static(b"settings")).await.unwrap();
    let (stream, ..) = broker.telemetry.recv().await.unwrap();
    let large = Bytes::from(vec![0; 1 << 20]);
    let taken = (0..1_000).take_while(|_| broker.server.send_telemetry(stream, large.clone())).count();
    assert!(taken < 200, "{taken}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_control_plane_is_notified_of_closed_connections() {
    let mut broker = Broker::start();
    let client = broker.client().await;
    let (commands, mut answers) = telemetry(&client).await;
    commands.send(Bytes::new()).await.unwrap();
    let (_, connection, _) = broker.telemetry.recv().await.unwrap();
    broker.server.close_connection(connection);
    assert!(answers.message().await.is_err());
    assert_eq!(broker.closed.recv().await, Some(connection));
    let other = broker.client().await;
    other.call("Heartbeat", Bytes::new()).await.unwrap();
    assert_eq!(broker.stat("connections"), 1);
    drop(other);
    assert!(broker.closed.recv().await > Some(connection));
    assert_eq!(broker.stat("connections"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_ends_telemetry_and_connections() {
    let mut broker = Broker::start();
    let client = broker.client().await;
    let (commands, mut answers) = telemetry(&client).await;
    commands.send(Bytes::new()).await.unwrap();
    broker.telemetry.recv().await.unwrap();
    let stopped = tokio::time::timeout(Duration::from_secs(60), broker.server.stop(Duration::from_secs(600)));
    stopped.await.expect("an end long before the grace period's");
    assert!(matches!(answers.message().await, Ok(None) | Err(_)));
    assert!(client.call("Heartbeat", Bytes::new()).await.is_err());
}
