//! SQL92 filters over remoting and gRPC: matching messages, and errors of wrong expressions.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::large_enum_variant
)]

mod grpc_support;
mod support;

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use bytes::Bytes;
use ferromq_store::record::{MessageView, NewMessage};
use ferromq_transport::{
    remoting::{
        RemotingCommand,
        codes::{request, response},
    },
    tables::subscriptions::Subscription,
};
use grpc_support::{
    Broker,
    proto::{
        FilterExpression, PullContent, PullMessageRequest, PullMessageResponse, ReceiveMessageRequest, queue,
        receive, resource,
    },
};
use prost::Message as _;
use support::Peer;
use tokio::net::TcpStream;

const SQL: &str = "price BETWEEN 3 AND 5 AND region IN ('eu', 'us')";
const WRONG: &str = "price BETWEEN 3 OR region = 'eu'";
/// The error at OR.
const POSITION: &str = "position 16: expected AND";

/// Topic `flights` with ten messages in queue 1. The filter matches those with the bodies 3 and 5.
struct Rig {
    broker: Broker,
    address: SocketAddr,
}

impl Rig {
    async fn start() -> Self {
        let broker = Broker::start();
        let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        for price in 0..10 {
            let region = if price % 2 == 0 { "asia" } else { "eu" };
            let properties = format!("TAGS\x01a\x02price\x01{price}\x02region\x01{region}\x02");
            let body = price.to_string();
            let message = NewMessage {
                topic: "flights",
                queue_id: 1,
                flag: 0,
                sys_flag: 0,
                born_timestamp: 0,
                born_host: SocketAddr::from(([127, 0, 0, 1], 1)),
                reconsume_times: 0,
                prepared_transaction_offset: 0,
                body: body.as_bytes(),
                properties: properties.as_bytes(),
            };
            drop(broker.store.log().append(&[message]).unwrap());
        }
        broker.readable(10).await;
        Self { broker, address }
    }

    async fn call(&self, code: i32, fields: &[(&str, &str)]) -> RemotingCommand {
        let all = [("consumerGroup", "audit"), ("topic", "flights"), ("queueId", "1"), ("maxMsgNums", "32")];
        let all = all.iter().chain(fields).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let command = RemotingCommand::request(code, all.collect::<Vec<_>>(), Bytes::new());
        Peer::of(TcpStream::connect(self.address).await.unwrap()).call(&command).await
    }

    /// Pulls. With an expression, the request carries its own subscription.
    async fn pull(&self, expression: Option<&str>) -> RemotingCommand {
        let flags = if expression.is_some() { "4" } else { "0" };
        let mut fields =
            vec![("queueOffset", "0"), ("sysFlag", flags), ("commitOffset", "0"), ("subVersion", "1")];
        if let Some(expression) = expression {
            fields.extend([("subscription", expression), ("expressionType", "SQL92")]);
        }
        self.call(request::PULL_MESSAGE, &fields).await
    }

    async fn pop(&self, expression: &str) -> RemotingCommand {
        let fields = [("invisibleTime", "60000"), ("pollTime", "0"), ("bornTime", "1"), ("initMode", "0")];
        let fields = [&fields[..], &[("expType", "SQL92"), ("exp", expression)]].concat();
        self.call(request::POP_MESSAGE, &fields).await
    }
}

fn bodies(answer: &RemotingCommand) -> Vec<String> {
    let (mut rest, mut bodies) = (&answer.body[..], Vec::new());
    while !rest.is_empty() {
        let size = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
        let view = MessageView::decode(&rest[..size], true).unwrap();
        bodies.push(String::from_utf8(view.body.to_vec()).unwrap());
        rest = &rest[size..];
    }
    bodies
}

fn sql(expression: &str) -> Option<FilterExpression> {
    Some(FilterExpression { kind: 2, expression: expression.to_owned() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_is_filtered_by_its_own_expression_or_that_of_its_group() {
    let rig = Rig::start().await;
    rig.broker.server.tables().subscriptions.put(
        "audit",
        "flights",
        Subscription::new("SQL92", SQL, 1, false),
    );
    for expression in [Some(SQL), None] {
        let answer = rig.pull(expression).await;
        assert_eq!((answer.code, bodies(&answer)), (response::SUCCESS, vec!["3".to_owned(), "5".to_owned()]));
        assert_eq!(answer.field("nextBeginOffset"), Some("10"));
    }
    let none = rig.pull(Some("price = 11")).await;
    assert_eq!((none.code, none.field("nextBeginOffset")), (response::PULL_NOT_FOUND, Some("10")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_leases_matching_messages_and_skips_the_rest() {
    let rig = Rig::start().await;
    assert_eq!(bodies(&rig.pop(SQL).await), ["3", "5"]);
    assert_eq!(rig.pop("price IS NOT NULL").await.code, response::POLLING_TIMEOUT);
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_consumers_get_the_messages_that_match_their_expression() {
    let rig = Rig::start().await;
    let client = rig.broker.client().await;
    let request = ReceiveMessageRequest { filter_expression: sql(SQL), ..receive(Duration::ZERO) };
    assert_eq!(client.receive_bodies(&request).await, ["3", "5"]);
    let request = PullMessageRequest {
        group: Some(resource("audit")),
        message_queue: Some(queue("flights", 1)),
        offset: 4,
        batch_size: 32,
        filter_expression: sql(SQL),
        long_polling_timeout: Some(Duration::ZERO.into()),
    };
    let asked = tonic::Request::new(Bytes::from(request.encode_to_vec()));
    let (_, mut stream) = client.stream("PullMessage", asked).await.unwrap();
    let mut bodies = Vec::new();
    while let Some(bytes) = stream.message().await.unwrap() {
        if let Some(PullContent::Message(message)) = PullMessageResponse::decode(bytes).unwrap().content {
            bodies.push(message.body);
        }
    }
    assert_eq!(bodies, ["5"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_refuses_a_wrong_expression_with_the_position_of_the_error() {
    let rig = Rig::start().await;
    rig.broker.server.tables().subscriptions.put(
        "audit",
        "flights",
        Subscription::new("SQL92", WRONG, 1, false),
    );
    for (answer, code) in [
        (rig.pull(Some(WRONG)).await, response::SUBSCRIPTION_PARSE_FAILED),
        (rig.pull(None).await, response::FILTER_DATA_NOT_EXIST),
        (rig.pop(WRONG).await, response::SUBSCRIPTION_PARSE_FAILED),
    ] {
        assert_eq!(answer.code, code, "{answer:?}");
        assert!(answer.remark.as_deref().unwrap().contains(POSITION), "{answer:?}");
    }
    let client = rig.broker.client().await;
    let request = ReceiveMessageRequest { filter_expression: sql(WRONG), ..receive(Duration::ZERO) };
    let (code, messages) = client.receive(&request).await;
    assert_eq!((code, messages.len()), (40_010, 0));
}
