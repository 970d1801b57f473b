//! Messages that a Java broker left in a group's pop retry topics are received with the topic, and acknowledged where
//! they are stored.
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
use ferromq_store::{
    filter::MessageFilter,
    record::{MessageView, NewMessage, properties},
};
use ferromq_transport::{
    grpc::proto::{ForwardMessageToDeadLetterQueueRequest, Resource},
    remoting::{
        RemotingCommand,
        codes::{request, response},
    },
    tables::TopicEntry,
};
use grpc_support::{
    Broker, Client, TOPIC, eventually,
    proto::{
        self, AckMessageResponse, ChangeInvisibleDurationRequest, ChangeInvisibleDurationResponse, ack,
        receive,
    },
};
use prost::Message as _;
use support::Peer;
use tokio::net::TcpStream;

const OLD: &str = "%RETRY%audit_flights";
const NEW: &str = "%RETRY%audit+flights";
/// A topic of another group with a similar name. No group has an offset in it.
const OTHERS: &str = "%RETRY%audit_lights";

fn append(broker: &Broker, topic: &str, body: &str, reconsume_times: i32) {
    let message = NewMessage {
        topic,
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_timestamp: 0,
        born_host: SocketAddr::from(([127, 0, 0, 1], 1)),
        reconsume_times,
        prepared_transaction_offset: 0,
        body: body.as_bytes(),
        properties: b"KEYS\x01k\x02",
    };
    drop(broker.store.log().append(&[message]).unwrap());
}

/// A broker with a message in the topic and one in each of its retry topics, as a Java broker leaves them.
async fn started() -> Broker {
    let broker = Broker::start();
    for topic in [OLD, NEW] {
        broker.server.tables().put_topic(topic, TopicEntry { read_queues: 1, write_queues: 1, ..TOPIC });
        broker.store.groups().commit_offset("audit", topic, 0, 0).unwrap();
        append(&broker, topic, topic, 3);
    }
    broker.server.tables().put_topic("lights", TOPIC);
    broker.server.tables().put_topic(OTHERS, TOPIC);
    append(&broker, OTHERS, "not mine", 1);
    append(&broker, "flights", "flights", 0);
    for topic in [OLD, NEW, OTHERS, "flights"] {
        eventually(|| broker.store.queues().max_offset(topic, 0) == 1).await;
    }
    broker
}

async fn call(peer: &mut Peer, code: i32, fields: &[(&str, &str)]) -> RemotingCommand {
    let all = [("consumerGroup", "audit"), ("queueId", "0")];
    let all = all.iter().chain(fields).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    peer.call(&RemotingCommand::request(code, all.collect::<Vec<_>>(), Bytes::new())).await
}

async fn pop(peer: &mut Peer, topic: &str) -> RemotingCommand {
    let fields = [("topic", topic), ("maxMsgNums", "32"), ("invisibleTime", "60000"), ("pollTime", "0")];
    let rest = [("bornTime", "1"), ("initMode", "0"), ("expType", "TAG"), ("exp", "*"), ("order", "false")];
    call(peer, request::POP_MESSAGE, &[&fields[..], &rest].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_gets_retries_first_under_the_original_topic_with_their_handles() {
    let broker = started().await;
    let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let mut peer = Peer::of(TcpStream::connect(address).await.unwrap());
    for (topic, topic_mark) in [(OLD, "1"), (NEW, "2")] {
        let popped = pop(&mut peer, "flights").await;
        assert_eq!(popped.field("msgOffsetInfo"), Some(&format!("{topic_mark} 0 0")[..]));
        let view = MessageView::decode(&popped.body, true).unwrap();
        assert_eq!((view.topic, view.body, view.reconsume_times), ("flights", topic.as_bytes(), 3));
        assert_eq!(properties::get(view.properties, "KEYS"), Some("k"));
        let handle = properties::get(view.properties, "POP_CK").unwrap();
        assert_eq!(handle.split(' ').nth(4), Some(topic_mark));
        // Java's client takes the topic from the handle.
        let fields = [("topic", topic), ("offset", "0"), ("extraInfo", handle)];
        assert_eq!(call(&mut peer, request::ACK_MESSAGE, &fields).await.code, response::SUCCESS);
    }
    let last = pop(&mut peer, "flights").await;
    assert_eq!(MessageView::decode(&last.body, true).unwrap().body, b"flights");
    broker.clock.advance(60_000);
    assert_eq!(last.body.len() as u64, pop(&mut peer, "flights").await.body.len() as u64);
    assert_eq!(pop(&mut peer, "lights").await.code, response::POLLING_TIMEOUT);
}

async fn received(client: &Client) -> proto::Message {
    let (code, mut messages) = client.receive(&receive(Duration::ZERO)).await;
    assert_eq!((code, messages.len()), (20_000, 1));
    messages.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_receive_gets_retries_first_and_acknowledges_them_by_their_handles() {
    let broker = started().await;
    let client = broker.client().await;
    let first = received(&client).await;
    assert_eq!(first.topic.as_ref().unwrap().name, "flights");
    assert_eq!((&first.body[..], first.system().delivery_attempt), (OLD.as_bytes(), Some(4)));
    let second = received(&client).await;
    assert_eq!(&second.body[..], NEW.as_bytes());
    let change = ChangeInvisibleDurationRequest {
        group: Some(proto::resource("audit")),
        topic: Some(proto::resource("flights")),
        receipt_handle: second.handle(),
        invisible_duration: Some(Duration::from_secs(600).into()),
        message_id: String::new(),
        suspend: None,
    };
    let changed = client.call("ChangeInvisibleDuration", change.encode_to_vec()).await.unwrap();
    let changed = ChangeInvisibleDurationResponse::decode(changed).unwrap();
    let answer =
        client.call("AckMessage", ack(&[&first.handle(), &changed.receipt_handle]).encode_to_vec()).await;
    assert_eq!(AckMessageResponse::decode(answer.unwrap()).unwrap().status.unwrap().code, 20_000);
    assert_eq!(&received(&client).await.body[..], b"flights");
    broker.clock.advance(3_600_000);
    assert_eq!(&received(&client).await.body[..], b"flights");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_is_given_up_becomes_a_dead_letter_and_is_not_redelivered() {
    let broker = started().await;
    let client = broker.client().await;
    let request = ForwardMessageToDeadLetterQueueRequest {
        group: Some(Resource { name: "audit".to_owned() }),
        topic: Some(Resource { name: "flights".to_owned() }),
        receipt_handle: received(&client).await.handle(),
        delivery_attempt: 1,
    };
    let answer = client.call("ForwardMessageToDeadLetterQueue", request.encode_to_vec()).await.unwrap();
    assert_eq!(proto::StatusOnly::decode(answer).unwrap().status.unwrap().code, 20_000);
    assert_eq!((broker.stat("dead"), broker.store.groups().committed_offset("audit", OLD, 0)), (1, Some(1)));
    eventually(|| broker.store.queues().max_offset("%DLQ%audit", 0) == 1).await;
    let dead = broker
        .store
        .queues()
        .get("%DLQ%audit", 0, 0, 1, usize::MAX, &MessageFilter::All)
        .messages
        .remove(0)
        .1;
    let dead = MessageView::decode(dead.bytes(), true).unwrap();
    let origin =
        ["DLQ_ORIGIN_TOPIC", "RETRY_TOPIC"].map(|name| properties::get(dead.properties, name).unwrap());
    assert_eq!(origin, ["flights", OLD], "the topic it was sent to, and the topic that stored it");
    broker.clock.advance(3_600_000);
    assert_eq!(&received(&client).await.body[..], NEW.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_cannot_read_a_forbidden_topic_over_either_protocol() {
    let broker = started().await;
    broker.server.tables().put_forbidden("audit", vec!["flights".into()]);
    let client = broker.client().await;
    assert_eq!(client.receive(&receive(Duration::ZERO)).await.0, 40_300);
    let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let mut peer = Peer::of(TcpStream::connect(address).await.unwrap());
    assert_eq!(pop(&mut peer, "flights").await.code, response::NO_PERMISSION);
    broker.server.tables().put_forbidden("audit", Vec::new());
    assert_eq!(pop(&mut peer, "flights").await.code, response::SUCCESS);
}
