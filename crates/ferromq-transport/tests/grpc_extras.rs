//! gRPC besides sending and receiving: health, reflection, deadlines, client ids, and dead letters.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use ferromq_store::record::MessageView;
use ferromq_transport::grpc::codec::BytesCodec;
use grpc_support::{
    Broker, Client, eventually,
    proto::{self, Resource, StatusOnly, receive, resource},
};
use prost::Message as _;
use tokio::net::TcpStream;
use tonic::{Code, Request};

const SOON: Duration = Duration::from_secs(10);

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

fn check_request(service: &str) -> Bytes {
    HealthCheckRequest { service: service.to_owned() }.encode_to_vec().into()
}

fn status(answer: Bytes) -> i32 {
    HealthCheckResponse::decode(answer).unwrap().status
}

#[tokio::test(flavor = "multi_thread")]
async fn the_health_service_reports_serving_and_then_stopping() {
    let broker = Broker::start();
    let client = broker.client().await;
    for service in ["", "apache.rocketmq.v2.MessagingService"] {
        let answer = client.call("grpc.health.v1.Health/Check", check_request(service)).await.unwrap();
        assert_eq!(status(answer), 1);
    }
    let missing = client.call("grpc.health.v1.Health/Check", check_request("no.Service")).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);

    let watch = async |service| {
        client.stream("grpc.health.v1.Health/Watch", Request::new(check_request(service))).await.unwrap().1
    };
    let (mut watching, mut unknown) = (watch("").await, watch("no.Service").await);
    assert_eq!(status(watching.message().await.unwrap().unwrap()), 1);
    assert_eq!(status(unknown.message().await.unwrap().unwrap()), 3);
    let stopped = broker.server.stop(SOON);
    let watched = async { (status(watching.message().await.unwrap().unwrap()), watching.message().await) };
    let (_, (last, end)) = tokio::join!(stopped, watched);
    assert_eq!((last, end.unwrap()), (2, None));
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReflectionRequest {
    #[prost(string, optional, tag = "3")]
    file_by_filename: Option<String>,
    #[prost(string, optional, tag = "4")]
    file_containing_symbol: Option<String>,
    #[prost(string, optional, tag = "6")]
    all_extension_numbers_of_type: Option<String>,
    #[prost(string, optional, tag = "7")]
    list_services: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServiceList {
    #[prost(message, repeated, tag = "1")]
    service: Vec<NameField>,
}

/// A message with a name in field 1.
#[derive(Clone, PartialEq, prost::Message)]
struct NameField {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptors {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ErrorResponse {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReflectionResponse {
    #[prost(message, optional, tag = "2")]
    original_request: Option<ReflectionRequest>,
    #[prost(message, optional, tag = "4")]
    files: Option<Descriptors>,
    #[prost(message, optional, tag = "5")]
    extensions: Option<NameField>,
    #[prost(message, optional, tag = "6")]
    services: Option<ServiceList>,
    #[prost(message, optional, tag = "7")]
    error: Option<ErrorResponse>,
}

/// Sends requests on one stream and returns the responses.
async fn reflect(
    client: &Client,
    version: &str,
    requests: Vec<ReflectionRequest>,
) -> Vec<ReflectionResponse> {
    let mut grpc = tonic::client::Grpc::new(client.0.clone());
    grpc.ready().await.unwrap();
    let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo").parse().unwrap();
    let encoded: Vec<_> = requests.iter().map(|request| Bytes::from(request.encode_to_vec())).collect();
    let request = Request::new(tokio_stream::iter(encoded));
    let mut answers = grpc.streaming(request, path, BytesCodec).await.unwrap().into_inner();
    let mut seen = Vec::new();
    while let Some(answer) = answers.message().await.unwrap() {
        seen.push(ReflectionResponse::decode(answer).unwrap());
    }
    assert!(
        seen.iter().zip(&requests).all(|(answer, request)| answer.original_request.as_ref() == Some(request))
    );
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_the_services_and_their_files() {
    let broker = Broker::start();
    let client = broker.client().await;
    let nothing = ReflectionRequest::default();
    let text = |text: &str| Some(text.to_owned());
    for version in ["v1", "v1alpha"] {
        let symbol = "apache.rocketmq.v2.MessagingService";
        let requests = vec![
            ReflectionRequest { list_services: text(""), ..nothing.clone() },
            ReflectionRequest { file_containing_symbol: text(symbol), ..nothing.clone() },
            ReflectionRequest { file_by_filename: text("grpc/health/v1/health.proto"), ..nothing.clone() },
            ReflectionRequest { file_containing_symbol: text("no.Symbol"), ..nothing.clone() },
            ReflectionRequest {
                all_extension_numbers_of_type: text("apache.rocketmq.v2.Message"),
                ..nothing.clone()
            },
            nothing.clone(),
        ];
        let answers = reflect(&client, version, requests).await;
        let services: Vec<_> = answers[0]
            .services
            .as_ref()
            .unwrap()
            .service
            .iter()
            .map(|service| service.name.as_str())
            .collect();
        assert!(services.contains(&symbol) && services.contains(&"grpc.health.v1.Health"), "{services:?}");
        let files = |answer: &ReflectionResponse| -> Vec<String> {
            let files = &answer.files.as_ref().unwrap().files;
            files.iter().map(|file| NameField::decode(&file[..]).unwrap().name).collect()
        };
        // The file and its imports.
        let described = files(&answers[1]);
        assert_eq!(described[0], "apache/rocketmq/v2/service.proto");
        for needed in ["apache/rocketmq/v2/definition.proto", "google/protobuf/timestamp.proto"] {
            assert_eq!(described.iter().filter(|name| *name == needed).count(), 1, "{described:?}");
        }
        assert_eq!(files(&answers[2]), ["grpc/health/v1/health.proto"]);
        assert_eq!(answers[3].error.as_ref().unwrap().code, 5);
        assert_eq!(answers[4].extensions.as_ref().unwrap().name, "apache.rocketmq.v2.Message");
        assert_eq!(answers[5].error.as_ref().unwrap().code, 12);
    }
    let elsewhere = client.call("no.Service/Method", Bytes::new()).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::Unimplemented);
}

/// Calls a method on a connection of its own and returns the gRPC status. A regular client would enforce the deadline
/// itself.
async fn status_within(broker: &Broker, timeout: &str, method: &str, message: &[u8]) -> String {
    let stream = TcpStream::connect(broker.address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let serving = tokio::spawn(connection);
    let uri = format!("http://localhost/apache.rocketmq.v2.MessagingService/{method}");
    let request = http::Request::post(uri)
        .header("content-type", "application/grpc")
        .header("grpc-timeout", timeout)
        .header("x-mq-client-id", "tests")
        .body(())
        .unwrap();
    let (response, mut body) = client.ready().await.unwrap().send_request(request, false).unwrap();
    let frame = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
    // Fails if the server responds before it reads the body.
    let _ = body.send_data(frame.into(), true);
    let response = response.await.unwrap();
    let mut trailers = response.headers().clone();
    let mut body = response.into_body();
    while let Some(Ok(data)) = body.data().await {
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    trailers.extend(body.trailers().await.unwrap().unwrap_or_default());
    serving.abort();
    trailers["grpc-status"].to_str().unwrap().to_owned()
}

const OK: &str = "0";
const DEADLINE_EXCEEDED: &str = "4";

#[tokio::test(flavor = "multi_thread")]
async fn a_request_past_its_deadline_is_not_started() {
    let broker = Broker::start();
    let send =
        proto::SendMessageRequest { messages: vec![proto::message("flights", "late")] }.encode_to_vec();
    for (method, body) in [("SendMessage", &send[..]), ("ReceiveMessage", &[]), ("Heartbeat", &[])] {
        assert_eq!(status_within(&broker, "0n", method, body).await, DEADLINE_EXCEEDED, "{method}");
    }
    assert_eq!((broker.store.admin().stats().appended, broker.stat("cold_calls")), (0, 0));
    assert_eq!(status_within(&broker, "60S", "SendMessage", &send).await, OK);
    assert_eq!(broker.store.admin().stats().appended, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_ends_at_its_deadline_which_its_handler_knows() {
    let broker = Broker::start();
    // On a slow machine, a short deadline passes before the call reaches its handler.
    for millis in [50, 500, 5_000, 50_000] {
        let before = Instant::now();
        let status = status_within(&broker, &format!("{millis}m"), "QueryAssignment", &[]).await;
        assert_eq!(status, DEADLINE_EXCEEDED);
        let Some((expires, _reply)) = broker.control.unanswered.lock().pop() else { continue };
        assert!(expires.unwrap() >= before + Duration::from_millis(millis));
        return;
    }
    panic!("the handler was never called");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_client_id_gets_the_code_of_rocketmqs_proxy() {
    let broker = Broker::start();
    let client = broker.client().await;
    let nameless = |body: Vec<u8>| {
        let mut request = Request::new(Bytes::from(body));
        request.metadata_mut().insert("x-mq-client-id", " ".parse().unwrap());
        request
    };
    let send = proto::SendMessageRequest { messages: vec![proto::message("flights", "x")] }.encode_to_vec();
    for (method, body) in [("SendMessage", send), ("AckMessage", proto::ack(&["h"]).encode_to_vec())] {
        let mut grpc = tonic::client::Grpc::new(client.0.clone());
        grpc.ready().await.unwrap();
        let path = format!("/apache.rocketmq.v2.MessagingService/{method}").parse().unwrap();
        let answer = grpc.unary(nameless(body), path, BytesCodec).await.unwrap().into_inner();
        assert_eq!(StatusOnly::decode(answer).unwrap().status.unwrap().code, 40_017, "{method}");
    }
    let (_, mut stream) =
        client.stream("ReceiveMessage", nameless(receive(SOON).encode_to_vec())).await.unwrap();
    let answer = stream.message().await.unwrap().unwrap();
    assert_eq!(StatusOnly::decode(answer).unwrap().status.unwrap().code, 40_017);
    assert_eq!(broker.store.admin().stats().appended, 0);
}

#[derive(Clone, PartialEq, prost::Message)]
struct Forward {
    #[prost(message, optional, tag = "1")]
    group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    topic: Option<Resource>,
    #[prost(string, tag = "3")]
    receipt_handle: String,
    #[prost(string, tag = "4")]
    message_id: String,
    #[prost(int32, tag = "5")]
    delivery_attempt: i32,
    #[prost(int32, tag = "6")]
    max_delivery_attempts: i32,
}

async fn forward(client: &Client, group: &str, receipt_handle: &str) -> i32 {
    let request = Forward {
        group: Some(resource(group)),
        topic: Some(resource("flights")),
        receipt_handle: receipt_handle.to_owned(),
        message_id: "id-lost".to_owned(),
        delivery_attempt: 3,
        max_delivery_attempts: 17,
    };
    let answer = client.call("ForwardMessageToDeadLetterQueue", request.encode_to_vec()).await.unwrap();
    StatusOnly::decode(answer).unwrap().status.unwrap().code
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_given_up_becomes_a_dead_letter_and_is_not_redelivered() {
    let broker = Broker::start();
    let client = broker.client().await;
    client.send_one("lost").await;
    let (_, mut got) = client.receive(&receive(SOON)).await;
    let handle = got.remove(0).handle();
    assert_eq!(forward(&client, "no group", &handle).await, 40_003);
    assert_eq!(forward(&client, "unknown", &handle).await, 40_403);
    assert_eq!(forward(&client, "audit", "no handle").await, 40_013);
    assert_eq!(forward(&client, "audit", &handle).await, 20_000);
    // The lease has ended.
    assert_eq!(forward(&client, "audit", &handle).await, 40_013);
    let dead = "%DLQ%audit";
    eventually(|| (0..4).any(|queue| broker.store.queues().max_offset(dead, queue) == 1)).await;
    let queue = (0..4).find(|queue| broker.store.queues().max_offset(dead, *queue) == 1).unwrap();
    let found =
        broker.store.queues().get(dead, queue, 0, 1, usize::MAX, &ferromq_store::filter::MessageFilter::All);
    let view = MessageView::decode(found.messages[0].1.bytes(), true).unwrap();
    assert_eq!((view.body, view.topic), (&b"lost"[..], dead));
    broker.clock.advance(60_000);
    let (code, none) = client.receive(&receive(Duration::ZERO)).await;
    assert_eq!((code, none.len()), (40_401, 0));
}
