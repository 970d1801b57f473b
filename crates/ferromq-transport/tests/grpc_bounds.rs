//! Lease expiry, and limits of leases and delays over gRPC, with RocketMQ's status codes and texts.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::large_enum_variant
)]

mod grpc_support;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ferromq_transport::{
    hot::ClientPolicy,
    tables::{GroupEntry, MessageType, TopicEntry},
};
use grpc_support::{
    Broker, Client, GROUP, TOPIC,
    proto::{
        self, AckMessageResponse, ChangeInvisibleDurationRequest, ChangeInvisibleDurationResponse,
        ReceiveContent, ReceiveMessageRequest, ReceiveMessageResponse, SendMessageRequest,
        SendMessageResponse, Time, ack, message, receive,
    },
};
use prost::Message as _;
use tonic::Request;

const NOW: Duration = Duration::ZERO;
const LEASE_MS: i64 = 30_000;
const EXPIRED: &str = "receipt handle is expired";

async fn acknowledge(client: &Client, handles: &[&str]) -> (i32, Vec<(i32, String)>) {
    let answer = client.call("AckMessage", ack(handles).encode_to_vec()).await.unwrap();
    let answer = AckMessageResponse::decode(answer).unwrap();
    let entries = answer.entries.into_iter().map(|entry| entry.status.unwrap());
    (answer.status.unwrap().code, entries.map(|status| (status.code, status.message)).collect())
}

async fn code_of(client: &Client, handle: &str) -> i32 {
    acknowledge(client, &[handle]).await.0
}

async fn change(client: &Client, handle: &str, duration: Time) -> (i32, String) {
    let request = ChangeInvisibleDurationRequest {
        group: Some(proto::resource("audit")),
        topic: Some(proto::resource("flights")),
        receipt_handle: handle.to_owned(),
        invisible_duration: Some(duration),
        message_id: String::new(),
        suspend: None,
    };
    let answer = client.call("ChangeInvisibleDuration", request.encode_to_vec()).await.unwrap();
    let status = ChangeInvisibleDurationResponse::decode(answer).unwrap().status.unwrap();
    (status.code, status.message)
}

/// Code and text of the first status of a receive.
async fn status(client: &Client, request: &ReceiveMessageRequest) -> (i32, String) {
    let request = Request::new(Bytes::from(request.encode_to_vec()));
    let (_, mut stream) = client.stream("ReceiveMessage", request).await.unwrap();
    let first = ReceiveMessageResponse::decode(stream.message().await.unwrap().unwrap()).unwrap();
    let Some(ReceiveContent::Status(status)) = first.content else { panic!("{first:?}") };
    (status.code, status.message)
}

/// Sends `count` messages to one queue, receives them with an ordered group or not, and returns their handles.
async fn received(broker: &Broker, client: &Client, count: usize, ordered: bool) -> Vec<String> {
    broker.server.tables().put_topic("flights", TopicEntry { read_queues: 1, write_queues: 1, ..TOPIC });
    broker.server.tables().put_group("audit", GroupEntry { ordered, ..GROUP });
    client.send((0..count).map(|number| message("flights", &number.to_string())).collect()).await;
    broker.readable(count as u64).await;
    let (_, messages) = client.receive(&receive(NOW)).await;
    messages.iter().map(proto::Message::handle).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_cannot_be_acknowledged_or_changed_even_without_a_redelivery() {
    for ordered in [false, true] {
        let broker = Broker::start();
        let client = broker.client().await;
        let handles = received(&broker, &client, 3, ordered).await;
        broker.clock.advance(LEASE_MS - 1);
        assert_eq!(code_of(&client, &handles[0]).await, 20_000);
        broker.clock.advance(1);
        let (code, entries) = acknowledge(&client, &[&handles[0], &handles[1]]).await;
        assert_eq!((code, entries.len()), (40_013, 2));
        for (code, words) in entries {
            assert!(code == 40_013 && words.starts_with(EXPIRED), "{code} {words}");
        }
        let (code, words) = change(&client, &handles[2], Duration::from_secs(5).into()).await;
        assert!(code == 40_013 && words.starts_with(EXPIRED), "{code} {words}");
        assert_eq!(client.receive_bodies(&receive(NOW)).await, ["1", "2"], "ordered: {ordered}");
        assert_eq!(broker.stat("acked"), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_lease_expires_at_its_actual_end_not_at_that_of_the_handle() {
    let broker = Broker::start();
    let client = broker.client().await;
    client.send_one("x").await;
    broker.readable(1).await;
    let renewed = ReceiveMessageRequest { auto_renew: true, invisible_duration: None, ..receive(NOW) };
    let (_, messages) = client.receive(&renewed).await;
    // Leases are renewed from 20 s before their end.
    broker.clock.advance(45_000);
    broker.until("renewed", 1).await;
    broker.clock.advance(30_000);
    // 75 s have passed since the receive; the handle names 60 s.
    assert_eq!(code_of(&client, &messages[0].handle()).await, 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_acknowledgement_succeeds_until_the_handle_expires() {
    for ordered in [false, true] {
        let broker = Broker::start();
        let client = broker.client().await;
        let handles = received(&broker, &client, 2, ordered).await;
        for _ in 0..2 {
            assert_eq!(code_of(&client, &handles[0]).await, 20_000, "ordered: {ordered}");
        }
        assert_eq!(acknowledge(&client, &[&handles[0], &handles[0]]).await.0, 20_000);
        assert_eq!(broker.stat("acked"), 1);
        broker.clock.advance(LEASE_MS);
        assert_eq!(code_of(&client, &handles[0]).await, 40_013, "the handle has expired");
        let (_, again) = client.receive(&receive(NOW)).await;
        assert_eq!(code_of(&client, &again[0].handle()).await, 20_000);
        assert_eq!(code_of(&client, &handles[1]).await, 40_013, "another delivery's handle");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_from_before_an_offset_reset_is_refused() {
    let broker = Broker::start();
    let client = broker.client().await;
    let handles = received(&broker, &client, 2, false).await;
    broker.store.groups().reset_offset("audit", "flights", 0, 0).unwrap();
    assert_eq!(code_of(&client, &handles[0]).await, 40_013);
    assert_eq!(client.receive_bodies(&receive(NOW)).await, ["0", "1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_durations_outside_the_policy_are_refused_with_rocketmqs_texts() {
    let broker = Broker::start();
    let client = broker.client().await;
    let handles = received(&broker, &client, 1, false).await;
    let asking = |ms: i64| ReceiveMessageRequest {
        invisible_duration: Some(Time {
            seconds: ms / 1_000,
            nanos: i32::try_from(ms % 1_000).unwrap() * 1_000_000,
        }),
        ..receive(NOW)
    };
    let none = ReceiveMessageRequest { invisible_duration: None, ..receive(NOW) };
    let small = |min: u32| (40_011, format!("the invisibleTime is too small. min is {min}"));
    let large = (40_011, "the invisibleTime is too large. max is 43200000".to_owned());
    assert_eq!(status(&client, &asking(0)).await, small(1));
    assert_eq!(status(&client, &asking(-5_000)).await, small(1));
    assert_eq!(status(&client, &asking(43_200_001)).await, large);
    for allowed in [&asking(1), &asking(43_200_000), &none] {
        assert_eq!(status(&client, allowed).await.0, 40_401);
    }
    let policy = ClientPolicy { min_invisible: Duration::from_secs(10), ..ClientPolicy::default() };
    broker.server.hot().unwrap().client_policy.store(Arc::new(policy));
    for refused in [&asking(9_999), &asking(0), &none] {
        assert_eq!(status(&client, refused).await, small(10_000));
    }
    assert_eq!(status(&client, &asking(43_200_001)).await, large);
    for allowed in [&asking(10_000), &ReceiveMessageRequest { auto_renew: true, ..asking(1) }] {
        assert_eq!(status(&client, allowed).await.0, 40_401);
    }
    // A change has no minimum duration and the same maximum.
    assert_eq!(change(&client, &handles[0], Time { seconds: 43_200, nanos: 1_000_000 }).await, large);
    assert_eq!(change(&client, &handles[0], Time { seconds: -1, nanos: 0 }).await, small(0));
    assert_eq!(change(&client, &handles[0], Time { seconds: 0, nanos: 0 }).await.0, 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_time_beyond_the_maximum_delay_is_refused() {
    let broker = Broker::start();
    let client = broker.client().await;
    broker.server.tables().put_topic("flights", TopicEntry { message_type: MessageType::Delay, ..TOPIC });
    let sent = |topic: &'static str, ahead_ms: i64| {
        let (client, at) = (client.clone(), broker.clock.now_ms() + ahead_ms);
        async move {
            let delivery =
                Time { seconds: at / 1_000, nanos: i32::try_from(at % 1_000).unwrap() * 1_000_000 };
            let message = message(topic, "x").with(|system| system.delivery_timestamp = Some(delivery));
            let request = SendMessageRequest { messages: vec![message] }.encode_to_vec();
            let answer = client.call("SendMessage", request).await.unwrap();
            let status = SendMessageResponse::decode(answer).unwrap().status.unwrap();
            (status.code, status.message)
        }
    };
    let day = 86_400_000;
    assert_eq!(sent("flights", day + 1).await.0, 20_000);
    let policy = ClientPolicy { max_delay: Duration::from_millis(86_400_000), ..ClientPolicy::default() };
    broker.server.hot().unwrap().client_policy.store(Arc::new(policy));
    let refused = (40_012, "the max delay time of message is too large, max is 86400000".to_owned());
    assert_eq!(sent("flights", day + 1).await, refused);
    assert_eq!(sent("auto-late", day + 1).await, refused, "before the topic is looked up");
    assert!(broker.server.tables().topic("auto-late").is_none());
    for allowed in [day, 0, -day] {
        assert_eq!(sent("flights", allowed).await.0, 20_000);
    }
}
