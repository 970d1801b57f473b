//! Sends over gRPC, encoded as by an official client, many at once on a connection.

use std::time::Instant;

use bytes::Bytes;
use ferromq_transport::grpc::codec::BytesCodec;
use prost::Message as _;
use tonic::{
    Request,
    codegen::http::uri::PathAndQuery,
    metadata::MetadataValue,
    transport::{Channel, Endpoint},
};

use crate::{Failure, Options, Totals, histogram::Histogram};

const SEND: &str = "/apache.rocketmq.v2.MessagingService/SendMessage";
/// `OK`, `IDENTITY` and `NORMAL` in RocketMQ's protocol.
pub(crate) const OK: i32 = 20_000;
const IDENTITY: i32 = 1;
const NORMAL: i32 = 1;

/// The name of a topic or group. The messages here have only the fields that the load needs.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Resource {
    #[prost(string, tag = "2")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SystemProperties {
    #[prost(string, optional, tag = "1")]
    tag: Option<String>,
    #[prost(string, tag = "3")]
    message_id: String,
    #[prost(int32, tag = "5")]
    body_encoding: i32,
    #[prost(int32, tag = "6")]
    message_type: i32,
    #[prost(message, optional, tag = "7")]
    born_timestamp: Option<Timestamp>,
    #[prost(string, tag = "8")]
    born_host: String,
    #[prost(int32, tag = "13")]
    queue_id: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Message {
    #[prost(message, optional, tag = "1")]
    topic: Option<Resource>,
    #[prost(message, optional, tag = "3")]
    system_properties: Option<SystemProperties>,
    #[prost(bytes = "bytes", tag = "4")]
    body: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SendMessageRequest {
    #[prost(message, repeated, tag = "1")]
    messages: Vec<Message>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SendMessageResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
}

/// Keeps sends in flight on a connection until the time is over.
pub(crate) async fn drive(options: &Options, number: usize) -> Result<Totals, Failure> {
    let address = options.text("address", "127.0.0.1:8081");
    let channel = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect().await?;
    let begin = Instant::now() + options.seconds("warm-up", 2)?;
    let end = begin + options.seconds("seconds", 10)?;
    let queues = options.number("queues", 8)?.max(1);
    let requests: Vec<Bytes> =
        (0..queues).map(|turn| request(options, (turn + number) % queues)).collect::<Result<_, _>>()?;
    let slots: Vec<_> = (0..options.number("in-flight", 1)?.max(1))
        .map(|_| tokio::spawn(sends(channel.clone(), requests.clone(), begin, end)))
        .collect();
    let mut totals = Totals { messages: 0, refused: 0, latencies: Histogram::new(), elapsed: end - begin };
    for slot in slots {
        let one = slot.await??;
        totals.messages += one.messages;
        totals.refused += one.refused;
        totals.latencies.merge(&one.latencies);
    }
    Ok(totals)
}

/// Sends one request after the other.
async fn sends(
    channel: Channel,
    requests: Vec<Bytes>,
    begin: Instant,
    end: Instant,
) -> Result<Totals, Failure> {
    let mut grpc = tonic::client::Grpc::new(channel);
    let mut totals = Totals { messages: 0, refused: 0, latencies: Histogram::new(), elapsed: end - begin };
    for body in requests.iter().cycle() {
        let sent_at = Instant::now();
        if sent_at >= end {
            break;
        }
        grpc.ready().await?;
        let answer =
            grpc.unary(with_metadata(body.clone()), PathAndQuery::from_static(SEND), BytesCodec).await?;
        let status = SendMessageResponse::decode(answer.into_inner())?.status.unwrap_or_default();
        if sent_at >= begin {
            totals.latencies.add(sent_at.elapsed());
            totals.messages += u64::from(status.code == OK);
            totals.refused += u64::from(status.code != OK);
        }
    }
    Ok(totals)
}

fn request(options: &Options, queue: usize) -> Result<Bytes, Failure> {
    let message = Message {
        topic: Some(Resource { name: options.text("topic", "load").to_owned() }),
        system_properties: Some(SystemProperties {
            tag: Some("t".to_owned()),
            message_id: "01000000000001000000000100000001".to_owned(),
            body_encoding: IDENTITY,
            message_type: NORMAL,
            born_timestamp: Some(Timestamp { seconds: 1_700_000_000 }),
            born_host: "load".to_owned(),
            queue_id: i32::try_from(queue)?,
        }),
        body: vec![b'x'; options.number("size", 1_024)?].into(),
    };
    Ok(SendMessageRequest { messages: vec![message] }.encode_to_vec().into())
}

/// A request with the metadata of a client.
pub(crate) fn with_metadata(body: Bytes) -> Request<Bytes> {
    let mut request = Request::new(body);
    for (name, value) in [
        ("x-mq-client-id", "load"),
        ("x-mq-language", "RUST"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.0.0"),
    ] {
        request.metadata_mut().insert(name, MetadataValue::from_static(value));
    }
    request
}
