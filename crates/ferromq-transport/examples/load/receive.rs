//! Receives and acknowledges over gRPC, many requests at once on a connection.

use std::time::Instant;

use bytes::Bytes;
use ferromq_transport::grpc::codec::BytesCodec;
use prost::Message as _;
use tonic::{
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};

use crate::{
    Failure, Options, Totals,
    grpc::{OK, Resource, Status, with_metadata},
    histogram::Histogram,
};

const RECEIVE: &str = "/apache.rocketmq.v2.MessagingService/ReceiveMessage";
const ACK: &str = "/apache.rocketmq.v2.MessagingService/AckMessage";
/// `MESSAGE_NOT_FOUND` and `TAG` in RocketMQ's protocol.
const NOTHING: i32 = 40_401;
const TAG: i32 = 1;
/// Seconds of a lease, and of the wait of a receive.
const INVISIBLE: i64 = 60;
const WAIT: i64 = 1;

#[derive(Clone, PartialEq, prost::Message)]
struct MessageQueue {
    #[prost(message, optional, tag = "1")]
    topic: Option<Resource>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Filter {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(string, tag = "2")]
    expression: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReceiveRequest {
    #[prost(message, optional, tag = "1")]
    group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    queue: Option<MessageQueue>,
    #[prost(message, optional, tag = "3")]
    filter: Option<Filter>,
    #[prost(int32, tag = "4")]
    batch: i32,
    #[prost(message, optional, tag = "5")]
    invisible: Option<Duration>,
    #[prost(message, optional, tag = "7")]
    wait: Option<Duration>,
}

/// A message's id and lease; other fields are skipped.
#[derive(Clone, PartialEq, prost::Message)]
struct SystemProperties {
    #[prost(string, tag = "3")]
    message_id: String,
    #[prost(string, tag = "12")]
    receipt_handle: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Message {
    #[prost(message, optional, tag = "3")]
    system: Option<SystemProperties>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Received {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
    #[prost(message, optional, tag = "2")]
    message: Option<Message>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AckEntry {
    #[prost(string, tag = "1")]
    message_id: String,
    #[prost(string, tag = "2")]
    receipt_handle: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AckRequest {
    #[prost(message, optional, tag = "1")]
    group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    topic: Option<Resource>,
    #[prost(message, repeated, tag = "3")]
    entries: Vec<AckEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Acked {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
}

/// Keeps receives in flight on a connection until the time is over.
pub(crate) async fn drive(options: &Options) -> Result<Totals, Failure> {
    let address = options.text("address", "127.0.0.1:8081");
    let channel = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect().await?;
    let begin = Instant::now() + options.seconds("warm-up", 2)?;
    let end = begin + options.seconds("seconds", 10)?;
    let slots = (0..options.number("in-flight", 1)?.max(1))
        .map(|_| Ok(tokio::spawn(Receiver::new(options, channel.clone())?.run(begin, end))))
        .collect::<Result<Vec<_>, Failure>>()?;
    let mut totals = Totals { messages: 0, refused: 0, latencies: Histogram::new(), elapsed: end - begin };
    for slot in slots {
        let one = slot.await??;
        totals.messages += one.messages;
        totals.refused += one.refused;
        totals.latencies.merge(&one.latencies);
    }
    Ok(totals)
}

struct Receiver {
    grpc: Grpc<Channel>,
    request: Bytes,
    group: Resource,
    topic: Resource,
    each: bool,
}

impl Receiver {
    fn new(options: &Options, channel: Channel) -> Result<Self, Failure> {
        let each = match options.text("acks", "each") {
            "each" => true,
            "all" => false,
            other => return Err(format!("--acks {other} is neither each nor all").into()),
        };
        let resource = |name: &str| Resource { name: name.to_owned() };
        let group = resource(options.text("group", "load_group"));
        let topic = resource(options.text("topic", "load"));
        let request = ReceiveRequest {
            group: Some(group.clone()),
            queue: Some(MessageQueue { topic: Some(topic.clone()) }),
            filter: Some(Filter { kind: TAG, expression: "*".to_owned() }),
            batch: i32::try_from(options.number("batch", 32)?)?,
            invisible: Some(Duration { seconds: INVISIBLE }),
            wait: Some(Duration { seconds: WAIT }),
        };
        Ok(Self { grpc: Grpc::new(channel), request: request.encode_to_vec().into(), group, topic, each })
    }

    /// Receives and acknowledges until the time is over.
    async fn run(mut self, begin: Instant, end: Instant) -> Result<Totals, Failure> {
        let mut totals =
            Totals { messages: 0, refused: 0, latencies: Histogram::new(), elapsed: end - begin };
        loop {
            let asked_at = Instant::now();
            if asked_at >= end {
                return Ok(totals);
            }
            let (entries, mut refused) = self.receive().await?;
            let at_once = if self.each { 1 } else { entries.len().max(1) };
            for some in entries.chunks(at_once) {
                refused += u64::from(self.acknowledge(some.to_vec()).await? != OK);
            }
            if asked_at >= begin {
                totals.refused += refused;
                totals.messages += entries.len() as u64;
                if !entries.is_empty() {
                    totals.latencies.add(asked_at.elapsed());
                }
            }
        }
    }

    /// The received messages, and the number of failed responses.
    async fn receive(&mut self) -> Result<(Vec<AckEntry>, u64), Failure> {
        self.grpc.ready().await?;
        let request = with_metadata(self.request.clone());
        let path = PathAndQuery::from_static(RECEIVE);
        let mut answers = self.grpc.server_streaming(request, path, BytesCodec).await?.into_inner();
        let (mut entries, mut refused) = (Vec::new(), 0);
        while let Some(answer) = answers.message().await? {
            let answer = Received::decode(answer)?;
            refused += u64::from(answer.status.is_some_and(|status| ![OK, NOTHING].contains(&status.code)));
            if let Some(system) = answer.message.and_then(|message| message.system) {
                let SystemProperties { message_id, receipt_handle } = system;
                entries.push(AckEntry { message_id, receipt_handle });
            }
        }
        Ok((entries, refused))
    }

    async fn acknowledge(&mut self, entries: Vec<AckEntry>) -> Result<i32, Failure> {
        let request =
            AckRequest { group: Some(self.group.clone()), topic: Some(self.topic.clone()), entries };
        self.grpc.ready().await?;
        let (request, path) = (with_metadata(request.encode_to_vec().into()), PathAndQuery::from_static(ACK));
        let answer = self.grpc.unary(request, path, BytesCodec).await?;
        Ok(Acked::decode(answer.into_inner())?.status.unwrap_or_default().code)
    }
}
