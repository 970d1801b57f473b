//! SendMessage over a socket: stored messages, and the codes of refused ones.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::large_enum_variant
)]

mod grpc_support;

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use ferromq_transport::tables::TopicEntry;
use grpc_support::{
    Broker, TOPIC,
    proto::{self, Message, StatusOnly, Time, message, receive},
};
use prost::Message as _;

const SOON: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_reads_the_message_as_the_producer_sent_it() {
    let broker = Broker::start();
    let client = broker.client().await;
    let mut sent = message("flights", "EWR-IAH").with(|system| {
        system.tag = Some("UA".to_owned());
        system.keys = vec!["UA1545".to_owned(), "2013-01-01".to_owned()];
        system.born_timestamp = Some(Time { seconds: 1_699_999_999, nanos: 123_000_000 });
        system.born_host = "gate-7".to_owned();
        system.trace_context = Some("trace".to_owned());
        system.queue_id = Some(2);
    });
    sent.user_properties.insert("größe".to_owned(), "1 000".to_owned());
    let response = client.send(vec![sent.clone()]).await;
    assert_eq!(response.status.unwrap().code, 20_000);
    assert_eq!((response.entries[0].message_id.as_str(), response.entries[0].offset), ("id-EWR-IAH", 0));

    let (code, messages) = client.receive(&receive(SOON)).await;
    assert_eq!((code, messages.len()), (20_000, 1));
    let (got, system) = (&messages[0], messages[0].system());
    assert_eq!((got.topic.as_ref(), &got.body), (sent.topic.as_ref(), &sent.body));
    assert_eq!(got.user_properties["größe"], "1 000");
    let expected = sent.system();
    assert_eq!((&system.tag, &system.keys), (&expected.tag, &expected.keys));
    assert_eq!((&system.message_id, &system.born_host), (&expected.message_id, &expected.born_host));
    assert_eq!(
        (system.born_timestamp, &system.trace_context),
        (expected.born_timestamp, &expected.trace_context)
    );
    assert_eq!((system.queue_id, system.queue_offset, system.delivery_attempt), (Some(2), Some(0), Some(1)));
    assert_eq!((system.body_encoding, system.message_type), (1, 1));
    assert_eq!(system.store_timestamp.unwrap().ms(), broker.clock.now_ms());
    assert_eq!(system.invisible_duration.unwrap(), Duration::from_secs(30).into());
    assert_eq!(system.store_host, "127.0.0.1:10911");
    let digest = system.body_digest.as_ref().unwrap();
    assert_eq!((digest.kind, digest.checksum.as_str()), (2, "3AE4CEA220D93D7D939C9F1CDD5592AE"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_gets_a_receipt_for_each_message_in_order() {
    let broker = Broker::start();
    let client = broker.client().await;
    let batch: Vec<_> = (0..256)
        .map(|i| message("flights", &format!("{i}")).with(|system| system.queue_id = Some(i % 3)))
        .collect();
    let response = client.send(batch).await;
    assert_eq!(response.entries.len(), 256);
    for (i, entry) in response.entries.iter().enumerate() {
        assert_eq!((entry.message_id.clone(), entry.offset), (format!("id-{i}"), i as i64 / 3));
        assert_eq!(entry.status.as_ref().unwrap().code, 20_000);
    }
    assert_eq!((broker.stat("sent"), broker.stat("send_requests")), (256, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_a_busy_control_plane_did_not_look_up_is_not_reported_missing() {
    let broker = Broker::start();
    let client = broker.client().await;
    for (topic, code) in [("busy", 42_900), ("unknown", 40_402)] {
        assert_eq!(client.send(vec![message(topic, "x")]).await.status.unwrap().code, code);
    }
    for (group, code) in [("busy", 42_900), ("unknown", 40_403)] {
        let request = proto::ReceiveMessageRequest { group: Some(proto::resource(group)), ..receive(SOON) };
        assert_eq!(client.receive(&request).await.0, code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_queue_is_used_and_otherwise_queues_take_turns() {
    let broker = Broker::start();
    let client = broker.client().await;
    client.send(vec![message("flights", "zero").with(|system| system.queue_id = Some(0))]).await;
    broker.readable(1).await;
    assert_eq!(broker.store.queues().max_offset("flights", 0), 1);
    for i in 0..8 {
        client.send_one(&i.to_string()).await;
    }
    broker.readable(9).await;
    let lengths: Vec<_> = (0..4).map(|queue| broker.store.queues().max_offset("flights", queue)).collect();
    assert_eq!(lengths, [3, 2, 2, 2]);
}

/// The code of a refused message, which must not be stored.
async fn refusal(broker: &Broker, message: Message) -> i32 {
    let stored = broker.store.admin().stats().appended;
    let response = broker.client().await.send(vec![message]).await;
    assert!(response.entries.is_empty());
    assert_eq!(broker.store.admin().stats().appended, stored);
    let status = response.status.unwrap();
    assert!(!status.message.is_empty());
    status.code
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_message_is_refused_with_rocketmqs_code_and_not_stored() {
    let broker = Broker::start();
    let good = || message("flights", "body");
    let property = |name: &str, value: &str| {
        let mut message = good();
        message.user_properties.insert(name.to_owned(), value.to_owned());
        message
    };
    let with = |change: fn(&mut proto::SystemProperties)| good().with(change);
    let cases = [
        (41_302, Message { body: Bytes::new(), ..good() }),
        (41_301, Message { body: vec![1; (4 << 20) + 1].into(), ..good() }),
        (40_009, with(|system| system.message_id = " ".to_owned())),
        (40_009, with(|system| system.message_id = "a\u{1}b".to_owned())),
        (40_004, with(|system| system.tag = Some("a|b".to_owned()))),
        (40_004, with(|system| system.tag = Some(" ".to_owned()))),
        (40_004, with(|system| system.tag = Some("a\u{2}".to_owned()))),
        (40_005, with(|system| system.keys = vec!["ok".to_owned(), " ".to_owned()])),
        (40_005, with(|system| system.keys = vec!["a\u{85}b".to_owned()])),
        (40_007, property("TAGS", "x")),
        (40_007, property("a\u{1}", "x")),
        (40_007, property("a", "x\u{2}y")),
        (43_101, property("a", &"x".repeat(17 << 10))),
        (40_000, with(|system| system.queue_id = Some(4))),
        (40_000, with(|system| system.queue_id = Some(-1))),
        (40_002, message("no good", "body")),
        (40_002, message("SCHEDULE_TOPIC_XXXX", "body")),
        (40_002, Message { topic: None, ..good() }),
        (40_402, message("unknown", "body")),
    ];
    for (index, (code, message)) in cases.into_iter().enumerate() {
        assert_eq!(refusal(&broker, message).await, code, "case {index}");
    }
    let many_keys = with(|system| system.keys = vec![String::new(); 2_000]);
    assert_eq!(refusal(&broker, many_keys).await, 43_101);
    let mut many_properties = good();
    many_properties.user_properties = (0..2_000).map(|i| (i.to_string(), String::new())).collect();
    assert_eq!(refusal(&broker, many_properties).await, 43_101);
    let mut other = message("auto", "body");
    other.topic = Some(proto::resource("auto-other"));
    let mixed = broker.client().await.send(vec![good(), other]).await;
    assert_eq!(mixed.status.unwrap().code, 40_016);
    assert_eq!(broker.client().await.send(vec![]).await.status.unwrap().code, 40_016);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_to_a_topic_without_write_permission_is_refused() {
    let broker = Broker::start();
    broker.server.tables().put_topic("flights", TopicEntry { permission: 4, ..TOPIC });
    assert_eq!(refusal(&broker, message("flights", "body")).await, 40_300);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_topic_is_demoted_once_for_concurrent_sends() {
    let broker = Broker::start();
    let client = broker.client().await;
    let sends: Vec<_> = (0..50)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move { client.send(vec![message("auto-topic", &i.to_string())]).await })
        })
        .collect();
    for send in sends {
        assert_eq!(send.await.unwrap().status.unwrap().code, 20_000);
    }
    // Requests for the same name share one demotion. A later request finds the entry.
    assert_eq!(broker.control.demotions.load(Ordering::SeqCst), 1);
    let refused = client.send(vec![message("unknown", "body")]).await.status.unwrap();
    assert_eq!(refused.code, 40_402);
    assert!(refused.message.contains("unknown") && refused.message.contains("create"), "{}", refused.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_invalid_arguments_and_the_connection_continues() {
    let broker = Broker::start();
    let client = broker.client().await;
    for method in ["SendMessage", "AckMessage", "ChangeInvisibleDuration", "UpdateOffset"] {
        let error = client.call(method, &b"\x0a\xff\xff\xff\xff\xff"[..]).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument, "{method}");
    }
    client.send_one("still there").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_millions_of_empty_messages_is_refused_before_it_takes_memory() {
    let broker = Broker::start();
    let client = broker.client().await;
    let empty = [0x0a, 0x00].repeat(4 << 20);
    let error = client.call("SendMessage", empty).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    let handles = [0x1a, 0x00].repeat(1 << 20);
    let request = [proto::ack(&[]).encode_to_vec(), handles].concat();
    let answer = client.call("AckMessage", request).await.unwrap();
    assert_eq!(StatusOnly::decode(answer).unwrap().status.unwrap().code, 40_000);
    // Requests other than sends are limited to 8 MiB.
    let error = client.call("AckMessage", vec![0; 9 << 20]).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::ResourceExhausted);
}
