//! Ordered receives, attempts, dead letters and priorities over a socket, with both protocols.
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
    StoreError,
    filter::MessageFilter,
    progress::ReceiptHandle,
    record::{MessageView, properties},
};
use ferromq_transport::{
    TransportError,
    hot::DeadLetterCause,
    remoting::{
        RemotingCommand,
        codes::{request, response},
    },
    tables::{GroupEntry, MessageType, TopicEntry},
};
use grpc_support::{
    Broker, Client, GROUP, TOPIC, eventually,
    proto::{
        self, AckMessageResponse, ChangeInvisibleDurationRequest, ChangeInvisibleDurationResponse, Message,
        ReceiveMessageRequest, ack, receive,
    },
};
use prost::Message as _;
use support::Peer;
use tokio::net::TcpStream;

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(60);
const DEAD: &str = "%DLQ%audit";

/// A broker with `flights` of one queue, and an ordered group with two attempts.
fn ordered() -> Broker {
    let broker = Broker::start();
    broker.server.tables().put_topic("flights", TopicEntry { read_queues: 1, write_queues: 1, ..TOPIC });
    broker.server.tables().put_group("audit", GroupEntry { ordered: true, max_attempts: 2, ..GROUP });
    broker
}

async fn send(broker: &Broker, client: &Client, bodies: &[&str]) {
    let before = broker.store.queues().max_offset("flights", 0);
    for body in bodies {
        client.send_one(body).await;
    }
    let end = before + bodies.len() as u64;
    eventually(|| broker.store.queues().max_offset("flights", 0) == end).await;
}

fn with_attempt_id(attempt_id: &str) -> ReceiveMessageRequest {
    ReceiveMessageRequest { attempt_id: Some(attempt_id.to_owned()), ..receive(NOW) }
}

/// Body and attempt of each message.
fn seen(messages: &[Message]) -> Vec<(String, i32)> {
    let body = |message: &Message| String::from_utf8(message.body.to_vec()).unwrap();
    messages.iter().map(|message| (body(message), message.system().delivery_attempt.unwrap())).collect()
}

fn expected(messages: &[(&str, i32)]) -> Vec<(String, i32)> {
    messages.iter().map(|(body, attempt)| ((*body).to_owned(), *attempt)).collect()
}

async fn acknowledge(client: &Client, messages: &[&Message]) -> i32 {
    let handles: Vec<String> = messages.iter().map(|message| message.handle()).collect();
    let handles: Vec<&str> = handles.iter().map(String::as_str).collect();
    let answer = client.call("AckMessage", ack(&handles).encode_to_vec()).await.unwrap();
    AckMessageResponse::decode(answer).unwrap().status.unwrap().code
}

async fn change(client: &Client, handle: &str, duration: Duration) -> ChangeInvisibleDurationResponse {
    let request = ChangeInvisibleDurationRequest {
        group: Some(proto::resource("audit")),
        topic: Some(proto::resource("flights")),
        receipt_handle: handle.to_owned(),
        invisible_duration: Some(duration.into()),
        message_id: String::new(),
        suspend: None,
    };
    let answer = client.call("ChangeInvisibleDuration", request.encode_to_vec()).await.unwrap();
    ChangeInvisibleDurationResponse::decode(answer).unwrap()
}

/// Body, reconsume times and properties of each dead letter.
fn dead_letters(broker: &Broker) -> Vec<(String, i32, Vec<u8>)> {
    let queues = 0..4;
    let read = queues.flat_map(|queue| {
        broker.store.queues().get(DEAD, queue, 0, 32, 1 << 20, &MessageFilter::All).messages
    });
    let view = |record: &[u8]| {
        let view = MessageView::decode(record, true).unwrap();
        let body = String::from_utf8(view.body.to_vec()).unwrap();
        (body, view.reconsume_times, view.properties.to_vec())
    };
    read.map(|(_, record)| view(record.bytes())).collect()
}

async fn expect_dead_letters(broker: &Broker, bodies: &[&str]) {
    eventually(|| dead_letters(broker).len() >= bodies.len()).await;
    let mut found: Vec<String> = dead_letters(broker).into_iter().map(|letter| letter.0).collect();
    found.sort_unstable();
    assert_eq!(found, bodies);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_group_has_one_receiver_and_the_last_acknowledgement_wakes_the_next() {
    let broker = ordered();
    let client = broker.client().await;
    send(&broker, &client, &["0", "1", "2"]).await;
    let two = ReceiveMessageRequest { batch_size: 2, ..receive(NOW) };
    let (_, first) = client.receive(&two).await;
    assert_eq!(seen(&first), expected(&[("0", 1), ("1", 1)]));
    assert_eq!(first[0].handle().split(' ').nth(3), Some("999"));
    let parked = tokio::spawn({
        let client = client.clone();
        async move { client.receive(&receive(SOON)).await.1 }
    });
    broker.until("parked", 1).await;
    // Out of order: the first message still locks the queue.
    assert_eq!(acknowledge(&client, &[&first[1]]).await, 20_000);
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_401);
    assert_eq!(broker.store.groups().committed_offset("audit", "flights", 0), Some(0));
    assert_eq!(acknowledge(&client, &[&first[0]]).await, 20_000);
    assert_eq!(seen(&parked.await.unwrap()), expected(&[("2", 1)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_with_the_same_attempt_id_gets_its_messages_again_and_redelivery_is_in_order() {
    let broker = ordered();
    let client = broker.client().await;
    send(&broker, &client, &["0", "1", "2"]).await;
    let (_, lost) = client.receive(&with_attempt_id("a")).await;
    assert_eq!(client.receive(&with_attempt_id("b")).await.0, 40_401);
    let (_, again) = client.receive(&with_attempt_id("a")).await;
    assert_eq!(seen(&again), expected(&[("0", 1), ("1", 1), ("2", 1)]));
    assert_eq!(acknowledge(&client, &[&lost[0]]).await, 40_013);
    assert_eq!(acknowledge(&client, &[&again[1]]).await, 20_000);
    let parked = tokio::spawn({
        let client = client.clone();
        async move { client.receive(&receive(SOON)).await.1 }
    });
    broker.until("parked", 1).await;
    // The repeated receive in the same millisecond got a pop time that is one later.
    broker.clock.advance(30_001);
    assert_eq!(seen(&parked.await.unwrap()), expected(&[("0", 2), ("2", 2)]));
    let long = client.receive(&with_attempt_id(&"x".repeat(257))).await;
    assert_eq!(long.0, 40_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_a_changed_lease_is_redelivered_first_at_its_new_time() {
    let broker = ordered();
    let client = broker.client().await;
    send(&broker, &client, &["0", "1", "2"]).await;
    let (_, first) = client.receive(&ReceiveMessageRequest { batch_size: 2, ..receive(NOW) }).await;
    let changed = change(&client, &first[0].handle(), Duration::from_secs(5)).await;
    assert_eq!(changed.status.unwrap().code, 20_000);
    assert_eq!(acknowledge(&client, &[&first[1]]).await, 20_000);
    broker.clock.advance(4_999);
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_401);
    broker.clock.advance(1);
    let (_, again) = client.receive(&receive(NOW)).await;
    assert_eq!(seen(&again), expected(&[("0", 2), ("2", 1)]));
    // The handle from the change names a lease that has ended.
    let stale = ack(&[&changed.receipt_handle]).encode_to_vec();
    let stale = AckMessageResponse::decode(client.call("AckMessage", stale).await.unwrap()).unwrap();
    assert_eq!(stale.status.unwrap().code, 40_013);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_queue_continues_after_its_last_remaining_lease() {
    let broker = ordered();
    let client = broker.client().await;
    send(&broker, &client, &["0", "1"]).await;
    let (_, first) = client.receive(&receive(NOW)).await;
    change(&client, &first[1].handle(), Duration::from_secs(60)).await;
    let parked = tokio::spawn({
        let client = client.clone();
        async move { client.receive(&receive(SOON)).await.1 }
    });
    broker.until("parked", 1).await;
    assert_eq!(acknowledge(&client, &[&first[1]]).await, 20_000);
    broker.clock.advance(30_000);
    assert_eq!(seen(&parked.await.unwrap()), expected(&[("0", 2)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_its_last_attempt_a_message_becomes_a_dead_letter_and_the_ordered_queue_continues() {
    let broker = ordered();
    let client = broker.client().await;
    send(&broker, &client, &["0", "1"]).await;
    let one = ReceiveMessageRequest { batch_size: 1, ..receive(NOW) };
    for attempt in 1..=2 {
        assert_eq!(seen(&client.receive(&one).await.1), expected(&[("0", attempt)]));
        broker.clock.advance(30_000);
    }
    assert_eq!(seen(&client.receive(&one).await.1), expected(&[("1", 1)]));
    expect_dead_letters(&broker, &["0"]).await;
    assert_eq!(broker.stat("dead"), 1);
    assert_eq!(broker.store.groups().committed_offset("audit", "flights", 0), Some(1));
    let (_, reconsume_times, text) = dead_letters(&broker).remove(0);
    let property = |name| properties::get(&text, name);
    assert_eq!((reconsume_times, property("RETRY_TOPIC")), (2, Some("flights")), "the number of deliveries");
    assert_eq!(
        (property("DLQ_ORIGIN_TOPIC"), property("DLQ_ORIGIN_MESSAGE_ID")),
        (Some("flights"), Some("id-0"))
    );
    assert_eq!(property("ORIGIN_MESSAGE_ID").map(str::len), Some(32));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_receive_moves_dead_letters_by_itself() {
    let broker = Broker::start();
    broker.server.tables().put_group("audit", GroupEntry { max_attempts: 1, ..GROUP });
    let client = broker.client().await;
    for body in ["0", "1", "2"] {
        client.send_one(body).await;
    }
    broker.readable(3).await;
    assert_eq!(client.receive(&receive(NOW)).await.1.len(), 3);
    let parked = tokio::spawn({
        let client = client.clone();
        async move { client.receive_bodies(&receive(SOON)).await }
    });
    broker.until("parked", 1).await;
    broker.clock.advance(30_000);
    expect_dead_letters(&broker, &["0", "1", "2"]).await;
    broker.until("dead", 3).await;
    client.send_one("3").await;
    assert_eq!(parked.await.unwrap(), ["3"]);
    // A group without retry queues has no dead letters: RocketMQ drops its messages, too.
    broker.server.tables().put_group("audit", GroupEntry { max_attempts: 1, retry_queues: 0, ..GROUP });
    broker.clock.advance(30_000);
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_401);
    assert_eq!(broker.stat("dead"), 3);
    let committed =
        (0..4).map(|queue| broker.store.groups().committed_offset("audit", "flights", queue).unwrap());
    assert_eq!(committed.sum::<u64>(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_can_give_up_a_message_only_during_its_lease() {
    let broker = Broker::start();
    let (client, hot) = (broker.client().await, broker.server.hot().unwrap());
    client.send_one("0").await;
    broker.readable(1).await;
    let (_, got) = client.receive(&receive(NOW)).await;
    let fields: Vec<String> = got[0].handle().split(' ').map(str::to_owned).collect();
    let handle = ReceiptHandle {
        queue_id: fields[6].parse().unwrap(),
        queue_offset: fields[7].parse().unwrap(),
        pop_time: fields[1].parse().unwrap(),
        invisible_ms: 30_000,
    };
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let stale = ReceiptHandle { pop_time: handle.pop_time - 1, ..handle };
    let give_up = |handle: ReceiptHandle| async move {
        hot.to_dead_letters(peer, "audit", "flights", &handle, DeadLetterCause::default()).await
    };
    assert!(matches!(give_up(stale).await, Err(TransportError::Store(StoreError::StaleReceipt))));
    give_up(handle).await.unwrap();
    expect_dead_letters(&broker, &["0"]).await;
    assert!(matches!(give_up(handle).await, Err(TransportError::Store(StoreError::StaleReceipt))));
    // As in RocketMQ: the message is finished, and the handle has not expired.
    assert_eq!(acknowledge(&client, &[&got[0]]).await, 20_000);
    broker.clock.advance(86_400_000);
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_stays_in_its_queue_while_the_dead_letter_topic_is_not_writable() {
    let broker = ordered();
    let tables = broker.server.tables();
    tables.put_topic(DEAD, TopicEntry { permission: 4, ..TOPIC });
    let client = broker.client().await;
    send(&broker, &client, &["0"]).await;
    for _ in 0..2 {
        assert_eq!(client.receive(&receive(NOW)).await.1.len(), 1);
        broker.clock.advance(30_000);
    }
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_401);
    assert_eq!(broker.store.groups().committed_offset("audit", "flights", 0), Some(0));
    tables.put_topic(DEAD, TOPIC);
    broker.clock.advance(30_000);
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_401);
    expect_dead_letters(&broker, &["0"]).await;
    assert_eq!(broker.store.groups().committed_offset("audit", "flights", 0), Some(1));
}

/// A broker with a PRIORITY topic and a message in each of the given queues.
async fn prioritised(queues: u32, messages: impl Iterator<Item = i32>) -> Broker {
    let broker = Broker::start();
    let by_priority = TopicEntry {
        message_type: MessageType::Priority,
        read_queues: queues,
        write_queues: queues,
        ..TOPIC
    };
    broker.server.tables().put_topic("flights", by_priority);
    let mut count = 0;
    for queue in messages {
        let body = queue.to_string();
        let message = ferromq_store::record::NewMessage {
            topic: "flights",
            queue_id: queue,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: SocketAddr::from(([127, 0, 0, 1], 1)),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: body.as_bytes(),
            properties: b"",
        };
        drop(broker.store.log().append(&[message]).unwrap());
        count += 1;
    }
    broker.readable(count).await;
    broker
}

#[tokio::test(flavor = "multi_thread")]
async fn a_priority_topic_delivers_its_highest_queue_first() {
    let broker = prioritised(4, [0, 3, 1, 2, 3].into_iter()).await;
    let client = broker.client().await;
    for priority in ["3", "3", "2", "1", "0"] {
        let one = ReceiveMessageRequest { batch_size: 1, ..receive(NOW) };
        assert_eq!(client.receive_bodies(&one).await, [priority]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_priority_factor_is_the_percentage_of_receives_that_respect_priorities() {
    for (factor, expected) in [(0, 100..=100), (40, 125..=155), (100, 200..=200)] {
        let broker = prioritised(2, (0..400).map(|number| number % 2)).await;
        broker.server.tables().put_group("audit", GroupEntry { priority_factor: factor, ..GROUP });
        let (client, mut peer) = (broker.client().await, remoting(&broker).await);
        let mut high = 0;
        for _ in 0..100 {
            let one = ReceiveMessageRequest { batch_size: 1, ..receive(NOW) };
            high += usize::from(client.receive_bodies(&one).await == ["1"]);
        }
        let one = [("queueId", "-1"), ("order", "false"), ("maxMsgNums", "1")];
        for _ in 0..100 {
            let popped = peer.call(&ask(request::POP_MESSAGE, &one)).await;
            assert_eq!(popped.code, response::SUCCESS);
            high += usize::from(popped.field("startOffsetInfo").unwrap().starts_with("0 1 "));
        }
        assert!(expected.contains(&high), "factor {factor}: {high} of 200 had the high priority");
    }
}

async fn remoting(broker: &Broker) -> Peer {
    let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    Peer::of(TcpStream::connect(address).await.unwrap())
}

fn ask(code: i32, fields: &[(&str, &str)]) -> RemotingCommand {
    let usual = [
        ("consumerGroup", "audit"),
        ("topic", "flights"),
        ("queueId", "0"),
        ("maxMsgNums", "32"),
        ("initMode", "0"),
    ];
    let more = [("invisibleTime", "10000"), ("pollTime", "0"), ("bornTime", "1"), ("order", "true")];
    let mut all: Vec<(&str, &str)> = usual.into_iter().chain(more).collect();
    for (name, value) in fields {
        all.retain(|(known, _)| known != name);
        all.push((name, value));
    }
    let all: Vec<(String, String)> = all.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    RemotingCommand { opaque: 7, ..RemotingCommand::request(code, all, Bytes::new()) }
}

/// A Java client's request about the message at `offset` of a pop's response.
fn by_handle(code: i32, answer: &RemotingCommand, offset: &str, more: &[(&str, &str)]) -> RemotingCommand {
    let field = |name| answer.field(name).unwrap();
    let start = field("startOffsetInfo").split(' ').nth(2).unwrap();
    let (popped, invisible, revive) = (field("popTime"), field("invisibleTime"), field("reviveQid"));
    let handle = format!("{start} {popped} {invisible} {revive} 0 broker-a 0 {offset}");
    let mut fields = vec![("offset", offset), ("extraInfo", &handle[..])];
    fields.extend_from_slice(more);
    ask(code, &fields)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_pop_is_answered_as_by_java() {
    let broker = ordered();
    broker.server.tables().put_group("audit", GROUP);
    let (client, mut peer) = (broker.client().await, remoting(&broker).await);
    send(&broker, &client, &["0", "1", "2"]).await;
    let two = ask(request::POP_MESSAGE, &[("maxMsgNums", "2"), ("attemptId", "a")]);
    let first = peer.call(&two).await;
    assert_eq!(first.code, response::SUCCESS);
    assert_eq!(first.field("reviveQid"), Some("999"));
    assert_eq!(
        (first.field("msgOffsetInfo"), first.field("orderCountInfo")),
        (Some("0 0 0,1"), Some("0 0 0"))
    );
    assert_eq!(first.field("restNum"), Some("0"), "the rest is locked");
    assert_eq!(peer.call(&ask(request::POP_MESSAGE, &[])).await.code, response::POLLING_TIMEOUT);
    let waiting = peer.call(&ask(request::NOTIFICATION, &[])).await;
    assert_eq!(waiting.field("hasMsg"), Some("false"));
    assert_eq!(peer.call(&by_handle(request::ACK_MESSAGE, &first, "1", &[])).await.code, response::SUCCESS);
    // The pop time of a receive stays, so that its other handles remain valid.
    let later = by_handle(request::CHANGE_MESSAGE_INVISIBLETIME, &first, "0", &[("invisibleTime", "3000")]);
    broker.clock.advance(2_000);
    let changed = peer.call(&later).await;
    assert_eq!(changed.field("popTime"), first.field("popTime"));
    assert_eq!((changed.field("invisibleTime"), changed.field("reviveQid")), (Some("5000"), Some("999")));
    broker.clock.advance(3_000);
    assert_eq!(peer.call(&ask(request::NOTIFICATION, &[])).await.field("hasMsg"), Some("true"));
    let again = peer.call(&ask(request::POP_MESSAGE, &[])).await;
    assert_eq!(again.field("msgOffsetInfo"), Some("0 0 0,2"));
    assert_eq!(again.field("orderCountInfo"), Some("0 qo0%0 1;0 0 0"));
    let pop_time = again.field("popTime").unwrap();
    // Bits 0 and 2.
    let batch = format!(
        r#"{{"acks":[{{"b":"BQ==","c":"audit","it":10000,"pt":{pop_time},"q":0,"r":"0","rq":999,"so":0,"t":"flights"}}]}}"#
    );
    let batch =
        RemotingCommand::request(request::BATCH_ACK_MESSAGE, Vec::<(String, String)>::new(), batch.into());
    assert_eq!(peer.call(&batch).await.code, response::SUCCESS);
    assert_eq!(broker.store.groups().committed_offset("audit", "flights", 0), Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn remoting_and_grpc_receivers_of_an_ordered_group_exclude_each_other() {
    let broker = ordered();
    let (client, mut peer) = (broker.client().await, remoting(&broker).await);
    send(&broker, &client, &["0", "1"]).await;
    let popped = peer.call(&ask(request::POP_MESSAGE, &[("maxMsgNums", "1")])).await;
    let parked = tokio::spawn({
        let client = client.clone();
        async move { client.receive(&receive(SOON)).await.1 }
    });
    broker.until("parked", 1).await;
    assert_eq!(peer.call(&by_handle(request::ACK_MESSAGE, &popped, "0", &[])).await.code, response::SUCCESS);
    assert_eq!(seen(&parked.await.unwrap()), expected(&[("1", 1)]));
    assert_eq!(peer.call(&ask(request::POP_MESSAGE, &[])).await.code, response::POLLING_TIMEOUT);
}
