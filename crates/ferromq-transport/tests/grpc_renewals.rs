//! `auto_renew`: leases that the broker renews while the receiver is connected.
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
use ferromq_transport::tables::{GroupEntry, TopicEntry};
use grpc_support::{
    Broker, Client, GROUP, TOPIC, eventually,
    proto::{
        self, AckMessageResponse, ChangeInvisibleDurationRequest, Message, ReceiveMessageRequest, StatusOnly,
        ack, receive,
    },
};
use prost::Message as _;
use tonic::Request;

const NOW: Duration = Duration::ZERO;
/// Shorter than the time between a renewal and the end of its lease, and a fraction of a lease.
const STEP_MS: i64 = 15_000;
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// A receive of the official push consumers: without an invisible duration.
fn renewed() -> ReceiveMessageRequest {
    ReceiveMessageRequest { auto_renew: true, invisible_duration: None, ..receive(NOW) }
}

/// A broker whose topic has one queue, and whose group is ordered or not.
fn broker(ordered: bool) -> Broker {
    let broker = Broker::start();
    broker.server.tables().put_topic("flights", TopicEntry { read_queues: 1, write_queues: 1, ..TOPIC });
    broker.server.tables().put_group("audit", GroupEntry { ordered, ..GROUP });
    broker
}

async fn send(broker: &Broker, client: &Client, bodies: &[&str]) {
    let end = broker.store.queues().max_offset("flights", 0) + bodies.len() as u64;
    for body in bodies {
        client.send_one(body).await;
    }
    eventually(|| broker.store.queues().max_offset("flights", 0) == end).await;
}

/// The latest end of the group's leases.
fn last_end(broker: &Broker) -> Option<i64> {
    broker.store.groups().ahead("audit", "flights", 0, ferromq_store::progress::Begin::AtMin).last_expiry_ms
}

/// Advances the clock in steps. After each, all due leases are renewed.
async fn pass(broker: &Broker, ms: i64) {
    for _ in 0..ms / STEP_MS {
        broker.clock.advance(STEP_MS);
        let now = broker.clock.now_ms();
        eventually(|| last_end(broker).is_none_or(|end| end - now > 25_000)).await;
    }
}

async fn acknowledge(client: &Client, message: &Message) -> i32 {
    let request = ack(&[&message.handle()]).encode_to_vec();
    let answer = client.call("AckMessage", request).await.unwrap();
    AckMessageResponse::decode(answer).unwrap().status.unwrap().code
}

fn seen(messages: &[Message]) -> Vec<(String, i32)> {
    let body = |message: &Message| String::from_utf8(message.body.to_vec()).unwrap();
    messages.iter().map(|message| (body(message), message.system().delivery_attempt.unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_handler_takes_ten_minutes_is_delivered_once() {
    for ordered in [false, true] {
        let broker = broker(ordered);
        let (holder, other) = (broker.client().await, broker.client().await);
        send(&broker, &holder, &["a", "b"]).await;
        let (_, held) = holder.receive(&renewed()).await;
        assert_eq!(held.len(), 2);
        pass(&broker, 10 * MINUTE_MS).await;
        assert_eq!(other.receive(&renewed()).await.0, 40_401, "ordered: {ordered}");
        for message in &held {
            assert_eq!(acknowledge(&holder, message).await, 20_000);
        }
        assert_eq!(broker.store.groups().committed_offset("audit", "flights", 0), Some(2));
        // Acknowledged messages are not renewed.
        let renewals = broker.stat("renewed");
        broker.clock.advance(HOUR_MS);
        assert_eq!((other.receive(&renewed()).await.0, broker.stat("renewed")), (40_401, renewals));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_message_is_not_renewed_and_its_neighbours_are() {
    let broker = broker(false);
    let client = broker.client().await;
    send(&broker, &client, &["a", "b", "c"]).await;
    let (_, held) = client.receive(&renewed()).await;
    assert_eq!(acknowledge(&client, &held[1]).await, 20_000);
    broker.clock.advance(40_000);
    broker.until("renewed", 2).await;
    broker.clock.advance(40_000);
    broker.until("renewed", 4).await;
    assert_eq!(acknowledge(&client, &held[0]).await, 20_000);
    broker.clock.advance(40_000);
    broker.until("renewed", 5).await;
    assert_eq!(acknowledge(&client, &held[2]).await, 20_000);
    assert_eq!(broker.stat("stale_receipts"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_disconnected_client_is_redelivered_within_a_minute() {
    for is_unregistered in [false, true] {
        let mut broker = broker(true);
        let (holder, other) = (broker.client().await, broker.client().await);
        send(&broker, &other, &["a"]).await;
        assert_eq!(holder.receive(&renewed()).await.1.len(), 1);
        pass(&broker, 5 * MINUTE_MS).await;
        let renewals = broker.stat("renewed");
        if is_unregistered {
            // The connection stays.
            holder.call("NotifyClientTermination", Bytes::new()).await.unwrap();
        } else {
            drop(holder);
            broker.closed.recv().await.unwrap();
        }
        let end = last_end(&broker).unwrap();
        let left = end - broker.clock.now_ms();
        assert!(left <= MINUTE_MS, "{left}");
        broker.clock.advance(left - 1);
        assert_eq!(other.receive(&renewed()).await.0, 40_401);
        broker.clock.advance(1);
        assert_eq!(
            seen(&other.receive(&renewed()).await.1),
            [("a".to_owned(), 2)],
            "unregistered: {is_unregistered}"
        );
        assert_eq!(broker.stat("renewed"), renewals);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_unregisters_does_not_end_leases_of_another_on_its_connection() {
    let broker = broker(false);
    let client = broker.client().await;
    send(&broker, &client, &["a"]).await;
    client.receive(&renewed()).await;
    let mut unregister = Request::new(Bytes::new());
    unregister.metadata_mut().insert("x-mq-client-id", "another".parse().unwrap());
    client.call_as("NotifyClientTermination", unregister).await.unwrap();
    pass(&broker, 5 * MINUTE_MS).await;
    assert_eq!(client.receive(&renewed()).await.0, 40_401);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invisible_duration_chosen_by_the_client_is_not_renewed() {
    for ordered in [false, true] {
        let broker = broker(ordered);
        let client = broker.client().await;
        send(&broker, &client, &["a"]).await;
        let (_, held) = client.receive(&renewed()).await;
        let request = ChangeInvisibleDurationRequest {
            group: Some(proto::resource("audit")),
            topic: Some(proto::resource("flights")),
            receipt_handle: held[0].handle(),
            invisible_duration: Some(Duration::from_secs(45).into()),
            message_id: String::new(),
            suspend: None,
        };
        let answer = client.call("ChangeInvisibleDuration", request.encode_to_vec()).await.unwrap();
        assert_eq!(StatusOnly::decode(answer).unwrap().status.unwrap().code, 20_000);
        broker.clock.advance(44_000);
        assert_eq!(client.receive(&renewed()).await.0, 40_401);
        broker.clock.advance(1_001);
        assert_eq!(seen(&client.receive(&renewed()).await.1), [("a".to_owned(), 2)], "ordered: {ordered}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_lease_ends_after_three_hours() {
    let broker = broker(false);
    let client = broker.client().await;
    send(&broker, &client, &["a"]).await;
    client.receive(&renewed()).await;
    pass(&broker, 3 * HOUR_MS - MINUTE_MS).await;
    assert_eq!(client.receive(&renewed()).await.0, 40_401);
    for _ in 0..8 {
        broker.clock.advance(STEP_MS);
        if let (20_000, again) = client.receive(&receive(NOW)).await {
            assert_eq!(seen(&again), [("a".to_owned(), 2)]);
            return;
        }
    }
    panic!("the lease never ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_ends_renewed_leases_for_good() {
    let broker = broker(false);
    let client = broker.client().await;
    send(&broker, &client, &["a", "b"]).await;
    client.receive(&renewed()).await;
    broker.store.groups().reset_offset("audit", "flights", 0, 0).unwrap();
    let one = ReceiveMessageRequest { batch_size: 1, ..receive(NOW) };
    assert_eq!(client.receive_bodies(&one).await, ["a"]);
    broker.clock.advance(50_000);
    // The lease of 30 s has ended. The renewed lease from before the reset, due by now, must not extend it.
    assert_eq!(client.receive_bodies(&receive(NOW)).await, ["a", "b"]);
    assert_eq!(broker.stat("renewed"), 0);
}
