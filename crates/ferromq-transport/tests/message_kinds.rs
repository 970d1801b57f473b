//! Ordered, transactional, delayed, prioritised and lite messages over both protocols: their queues and refusals.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;
mod support;

use std::{net::TcpListener, sync::Arc, time::Duration};

use bytes::Bytes;
use ferromq_store::record::{MessageView, properties};
use ferromq_transport::{
    hot::{SendPolicy, message_group::queue_of_group, recall_handle},
    remoting::{Fields, RemotingCommand},
    tables::{MessageType, TopicEntry},
};
use grpc_support::{
    Broker, Client, TOPIC, eventually,
    proto::{self, Message, SendResultEntry, Time, message},
};
use support::Peer;
use tokio::net::TcpStream;

const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";

fn set_topic_type(broker: &Broker, message_type: MessageType) {
    broker.server.tables().put_topic("flights", TopicEntry { message_type, ..TOPIC });
}

fn set_policy(broker: &Broker, words: &str, rejects_transactions: bool) {
    let mut policy = SendPolicy::default();
    policy.type_checks = words.parse().unwrap();
    policy.rejects_transactions = rejects_transactions;
    broker.server.hot().unwrap().policy.store(Arc::new(policy));
}

fn in_group(body: &str, group: &str) -> Message {
    message("flights", body).with(|system| {
        system.message_type = 2;
        system.message_group = Some(group.to_owned());
    })
}

fn prioritised(body: &str, priority: i32) -> Message {
    message("flights", body).with(|system| {
        system.message_type = 6;
        system.priority = Some(priority);
    })
}

/// The time in `days` days. The clock of the tests is at 1,700,000,000 s.
fn in_days(days: i64) -> Time {
    Time { seconds: 1_700_000_000 + days * 86_400, nanos: 0 }
}

fn delayed(body: &str, at: Time) -> Message {
    message("flights", body).with(|system| {
        system.message_type = 3;
        system.delivery_timestamp = Some(at);
    })
}

fn transactional(body: &str) -> Message {
    message("flights", body).with(|system| system.message_type = 4)
}

async fn sent(client: &Client, messages: Vec<Message>) -> Vec<SendResultEntry> {
    let response = client.send(messages).await;
    let status = response.status.unwrap();
    assert_eq!(status.code, 20_000, "{}", status.message);
    response.entries
}

async fn refused(client: &Client, messages: Vec<Message>) -> (i32, String) {
    let response = client.send(messages).await;
    assert!(response.entries.is_empty());
    let status = response.status.unwrap();
    (status.code, status.message)
}

/// The max offsets of the queues of `flights`.
fn max_offsets(broker: &Broker) -> [u64; 4] {
    [0, 1, 2, 3].map(|queue| broker.store.queues().max_offset("flights", queue))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_group_goes_to_the_queue_that_rocketmq_chooses_whatever_queue_the_client_names() {
    let broker = Broker::start();
    set_topic_type(&broker, MessageType::Fifo);
    let client = broker.client().await;
    let chosen = queue_of_group("order-4711", 4) as usize;
    let wrong = (chosen as i32 + 1) % 4;
    sent(&client, vec![in_group("1", "order-4711")]).await;
    sent(&client, vec![in_group("2", "order-4711").with(|system| system.queue_id = Some(wrong))]).await;
    broker.readable(2).await;
    let mut wanted = [0; 4];
    wanted[chosen] = 2;
    assert_eq!(max_offsets(&broker), wanted);
    let (_, got) = client.receive(&proto::receive(Duration::from_secs(5))).await;
    let bodies: Vec<_> = got.iter().map(|message| message.body.clone()).collect();
    assert_eq!(bodies, ["1", "2"]);
    let system = got[0].system();
    assert_eq!((system.message_type, system.message_group.as_deref()), (2, Some("order-4711")));
    assert!(got[0].user_properties.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn message_groups_of_one_request_go_to_their_queues_in_order() {
    let broker = Broker::start();
    set_topic_type(&broker, MessageType::Fifo);
    let groups = ["a", "b", "c", "order-4711", "a", "b"];
    let messages = groups.iter().enumerate().map(|(i, group)| in_group(&i.to_string(), group)).collect();
    let entries = sent(&broker.client().await, messages).await;
    let mut next = [0; 4];
    for (group, entry) in groups.iter().zip(&entries) {
        let queue = queue_of_group(group, 4) as usize;
        assert_eq!(entry.offset, next[queue]);
        next[queue] += 1;
    }
    broker.readable(6).await;
    assert_eq!(max_offsets(&broker), next.map(i64::cast_unsigned));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_message_is_hidden_from_consumers_and_its_receipt_names_its_offset() {
    let broker = Broker::start();
    set_topic_type(&broker, MessageType::Transaction);
    let client = broker.client().await;
    let half = transactional("half").with(|system| {
        system.recovery_duration = Some(Time { seconds: 7, nanos: 900_000_000 });
        system.queue_id = Some(2);
        system.body_encoding = 2;
    });
    sent(&client, vec![transactional("first")]).await;
    let entry = sent(&client, vec![half]).await.remove(0);
    assert_eq!((entry.offset, entry.message_id.as_str()), (1, "id-half"));
    let (place, offset) = entry.transaction_id.split_at(16);
    let number = |text| u64::from_str_radix(text, 16).unwrap();
    assert_eq!(number(offset), 1);
    let record = broker.store.queues().message_at(number(place)).unwrap();
    let view = MessageView::decode(record.bytes(), true).unwrap();
    assert_eq!((view.topic, view.queue_id, view.sys_flag), (HALF_TOPIC, 0, 1));
    let wanted = [
        ("UNIQ_KEY", "id-half"),
        ("TRAN_MSG", "true"),
        ("PGROUP", "flights"),
        ("CHECK_IMMUNITY_TIME_IN_SECONDS", "7"),
        ("MSG_REGION", "DefaultRegion"),
        ("TRACE_ON", "true"),
        ("CLUSTER", "DefaultCluster"),
        ("__transactionId__", "id-half"),
        ("REAL_TOPIC", "flights"),
        ("REAL_QID", "2"),
    ];
    assert_eq!(properties::iter(view.properties).collect::<Vec<_>>(), wanted);
    eventually(|| broker.store.queues().max_offset(HALF_TOPIC, 0) == 2).await;
    assert_eq!(max_offsets(&broker), [0; 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_half_message_is_refused() {
    let broker = Broker::start();
    set_topic_type(&broker, MessageType::Transaction);
    let client = broker.client().await;
    let recovery = |seconds| {
        transactional("x").with(|system| system.recovery_duration = Some(Time { seconds, nanos: 0 }))
    };
    assert_eq!(refused(&client, vec![recovery(3_601)]).await.0, 40_000);
    assert_eq!(refused(&client, vec![recovery(-1)]).await.0, 40_000);
    let far = transactional("x").with(|system| system.delivery_timestamp = Some(in_days(4)));
    assert_eq!(refused(&client, vec![far]).await.0, 40_012);
    assert_eq!(refused(&client, vec![transactional("x"), transactional("y")]).await.0, 40_000);
    set_policy(&broker, "grpc", true);
    assert_eq!(refused(&client, vec![transactional("x")]).await.0, 40_300);
    assert_eq!(broker.store.admin().stats().appended, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_message_waits_and_its_receipt_has_a_recall_handle() {
    let broker = Broker::start();
    set_topic_type(&broker, MessageType::Delay);
    let client = broker.client().await;
    let at = Time { seconds: 1_700_000_060, nanos: 5_000_000 };
    let entry = sent(&client, vec![delayed("later", at)]).await.remove(0);
    assert_eq!(entry.recall_handle, recall_handle::handle("flights", "broker-a", at.ms(), "id-later"));
    eventually(|| broker.store.queues().max_offset("rmq_sys_wheel_timer", 0) == 1).await;
    assert_eq!(max_offsets(&broker), [0; 4]);
    // A message with a past delivery time is delivered at once and has no recall handle.
    let entry = sent(&client, vec![delayed("now", in_days(-1))]).await.remove(0);
    assert_eq!(entry.recall_handle, "");
    broker.readable(1).await;
    assert_eq!(refused(&client, vec![delayed("x", in_days(4))]).await.0, 40_012);
    assert_eq!(refused(&client, vec![delayed("x", at), delayed("y", at)]).await.0, 40_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_priority_selects_a_queue_and_priorities_beyond_the_last_queue_share_it() {
    let broker = Broker::start();
    set_topic_type(&broker, MessageType::Priority);
    let client = broker.client().await;
    let messages = [0, 2, 3, 9].map(|priority| prioritised(&priority.to_string(), priority)).to_vec();
    sent(&client, messages).await;
    broker.readable(4).await;
    assert_eq!(max_offsets(&broker), [1, 0, 1, 2]);
    let (_, got) = client.receive(&proto::receive(Duration::from_secs(5))).await;
    for message in &got {
        let priority = message.system().priority.unwrap();
        assert_eq!((message.body.clone(), message.system().message_type), (priority.to_string().into(), 6));
    }
    assert_eq!(got.len(), 4);
    assert_eq!(refused(&client, vec![prioritised("x", -1)]).await.0, 40_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_refuses_messages_of_another_type_unless_checks_are_off() {
    let broker = Broker::start();
    let client = broker.client().await;
    let samples = [
        (MessageType::Normal, message("flights", "x")),
        (MessageType::Fifo, in_group("x", "g")),
        (MessageType::Delay, delayed("x", in_days(1))),
        (MessageType::Transaction, transactional("x")),
        (MessageType::Priority, prioritised("x", 1)),
    ];
    for topic in samples.iter().map(|(kind, _)| *kind) {
        set_topic_type(&broker, topic);
        for (kind, sample) in &samples {
            set_policy(&broker, "grpc", false);
            let status = client.send(vec![sample.clone()]).await.status.unwrap();
            let wanted = if topic == *kind { 20_000 } else { 40_014 };
            assert_eq!(status.code, wanted, "{kind:?} to {topic:?}: {}", status.message);
            if wanted == 40_014 {
                assert!(status.message.contains(topic.as_str()) && status.message.contains(kind.as_str()));
            }
            set_policy(&broker, "none", false);
            sent(&client, vec![sample.clone()]).await;
        }
    }
    set_policy(&broker, "all", false);
    set_topic_type(&broker, MessageType::Mixed);
    for (_, sample) in samples {
        sent(&client, vec![sample]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_the_fields_of_its_type_is_refused() {
    let broker = Broker::start();
    set_topic_type(&broker, MessageType::Mixed);
    let client = broker.client().await;
    let typed = |kind| message("flights", "x").with(|system| system.message_type = kind);
    for (kind, code) in [(2, 40_014), (3, 40_014), (5, 50_500), (6, 40_014)] {
        assert_eq!(refused(&client, vec![typed(kind)]).await.0, code, "{kind}");
    }
    let lite = message("flights", "x").with(|system| system.lite_topic = Some("l".to_owned()));
    assert_eq!(refused(&client, vec![lite]).await.0, 50_500);
    for group in [" ".to_owned(), "a\u{1}".to_owned(), "g".repeat(64)] {
        assert_eq!(refused(&client, vec![in_group("x", &group)]).await.0, 40_006, "{group:?}");
    }
    sent(&client, vec![in_group("x", &"g".repeat(63))]).await;
}

async fn connect(broker: &Broker) -> Peer {
    let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    Peer::of(TcpStream::connect(address).await.unwrap())
}

/// A remoting send to queue 1 with these properties.
fn command(code: i32, given: &[(&str, &str)]) -> RemotingCommand {
    let text: String = given.iter().map(|(name, value)| format!("{name}\u{1}{value}\u{2}")).collect();
    let batch = code == 320;
    let mut body = b"body".to_vec();
    if batch {
        body = [&[0; 19][..], &[4], b"body", &(text.len() as u16).to_be_bytes(), text.as_bytes()].concat();
    }
    let header_properties = if batch { "" } else { &text };
    let fields = [
        ("a", "PG"),
        ("b", "flights"),
        ("e", "1"),
        ("f", "0"),
        ("g", "1"),
        ("h", "0"),
        ("i", header_properties),
    ];
    let fields: Fields = fields.into_iter().collect();
    let mut command = RemotingCommand::request(code, fields, Bytes::from(body));
    command.opaque = 1;
    command
}

#[tokio::test]
async fn over_remoting_a_priority_selects_a_queue_unless_the_message_has_a_sharding_key() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let priority = ("_SYS_MSG_PRIORITY_", "9");
    let answer = peer.call(&command(310, &[priority])).await;
    assert_eq!((answer.code, answer.field("queueId")), (0, Some("3")));
    let answer = peer.call(&command(310, &[priority, ("__SHARDINGKEY", "k")])).await;
    assert_eq!((answer.code, answer.field("queueId")), (0, Some("1")));
    let place = u64::from_str_radix(&answer.field("msgId").unwrap()[16..], 16).unwrap();
    let record = broker.store.queues().message_at(place).unwrap();
    let view = MessageView::decode(record.bytes(), true).unwrap();
    assert_eq!(properties::get(view.properties, "_SYS_MSG_PRIORITY_"), None);
}

#[tokio::test]
async fn over_remoting_types_are_checked_only_if_configured_and_refused_with_13() {
    let broker = Broker::start();
    set_topic_type(&broker, MessageType::Fifo);
    let mut peer = connect(&broker).await;
    let mut code = async |request| peer.call(&request).await.code;
    for request in [310, 320] {
        set_policy(&broker, "grpc", false);
        assert_eq!(code(command(request, &[])).await, 0);
        set_policy(&broker, "all", false);
        assert_eq!(code(command(request, &[])).await, 13);
        assert_eq!(code(command(request, &[("__SHARDINGKEY", "k")])).await, 0);
        assert_eq!(code(command(request, &[("TRANSFER_FLAG", "true")])).await, 0);
    }
    assert_eq!(code(command(310, &[("__SHARDINGKEY", "k"), ("DELAY", "3")])).await, 13);
    assert_eq!(code(command(310, &[("__LITE_TOPIC", "l")])).await, 13);
    let remark = peer.call(&command(310, &[])).await.remark.unwrap();
    assert!(remark.contains("FIFO") && remark.contains("NORMAL"), "{remark}");
}

#[tokio::test]
async fn a_remoting_message_with_transaction_flags_that_is_not_a_half_message_is_refused() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let end = broker.store.admin().stats().max_physical_offset;
    for (bits, times) in [("4", "0"), ("8", "0"), ("12", "0"), ("8", "1")] {
        let mut command = command(310, &[]);
        command.fields.put("f", bits);
        command.fields.put("j", times);
        let answer = peer.call(&command).await;
        assert_eq!(answer.code, 13, "{answer:?}");
    }
    assert_eq!(broker.store.admin().stats().max_physical_offset, end, "nothing was stored");
}
