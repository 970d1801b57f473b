//! ReceiveMessage, AckMessage and ChangeInvisibleDuration over a socket: leases from the view of a consumer.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::large_enum_variant
)]

mod grpc_support;

use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use ferromq_store::time::Clock;
use grpc_support::{
    Broker, Client, GROUP, TOPIC,
    proto::{
        self, AckMessageResponse, ChangeInvisibleDurationRequest, ChangeInvisibleDurationResponse,
        FilterExpression, ReceiveMessageRequest, ReceiveMessageResponse, ack, message, receive,
    },
    split,
};
use prost::{Message as _, encoding::decode_varint};
use tokio::time::timeout;
use tonic::Request;

const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(10);
/// Longer than any test takes: such a wait ends by a wake-up, or the test fails.
const FAR: Duration = Duration::from_secs(3_600);
const PATIENCE: Duration = Duration::from_secs(60);

async fn acknowledge(client: &Client, handles: &[&str]) -> (i32, Vec<i32>) {
    let answer = client.call("AckMessage", ack(handles).encode_to_vec()).await.unwrap();
    let answer = AckMessageResponse::decode(answer).unwrap();
    let codes = answer.entries.into_iter().map(|entry| entry.status.unwrap().code).collect();
    (answer.status.unwrap().code, codes)
}

async fn change(client: &Client, handle: &str, duration: Duration) -> ChangeInvisibleDurationResponse {
    change_as(client, handle, duration, None).await
}

async fn change_as(
    client: &Client,
    handle: &str,
    duration: Duration,
    suspend: Option<bool>,
) -> ChangeInvisibleDurationResponse {
    let request = ChangeInvisibleDurationRequest {
        group: Some(proto::resource("audit")),
        topic: Some(proto::resource("flights")),
        receipt_handle: handle.to_owned(),
        invisible_duration: Some(duration.into()),
        message_id: String::new(),
        suspend,
    };
    let answer = client.call("ChangeInvisibleDuration", request.encode_to_vec()).await.unwrap();
    ChangeInvisibleDurationResponse::decode(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_poll_ends_after_its_wait_with_message_not_found() {
    let broker = Broker::start();
    let client = broker.client().await;
    let began = Instant::now();
    assert_eq!(client.receive(&receive(Duration::from_millis(300))).await, (40_401, vec![]));
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(client.receive(&receive(NOW)).await, (40_401, vec![]));
    assert_eq!(broker.stat("parked"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_accepts_any_wait_even_out_of_range() {
    let broker = Broker::start();
    let client = broker.client().await;
    let asking = |seconds, nanos| ReceiveMessageRequest {
        long_polling_timeout: Some(proto::Time { seconds, nanos }),
        ..receive(NOW)
    };
    for past in [asking(i64::MIN, i32::MIN), asking(0, -1), asking(-1, i32::MAX)] {
        assert_eq!(client.receive(&past).await, (40_401, vec![]));
    }
    for (seconds, nanos) in [(i64::MAX, 0), (i64::MAX, i32::MAX)] {
        let poll = tokio::spawn({
            let client = client.clone();
            async move { client.receive_bodies(&asking(seconds, nanos)).await }
        });
        broker.until("parked", 1).await;
        client.send_one("x").await;
        assert_eq!(poll.await.unwrap(), ["x"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_in_any_queue_wakes_a_parked_poll_at_once() {
    let broker = Broker::start();
    let client = broker.client().await;
    for queue in 0..4 {
        let poll = tokio::spawn({
            let client = client.clone();
            async move { client.receive_bodies(&receive(FAR)).await }
        });
        broker.until("parked", 1).await;
        client.send(vec![message("flights", "x").with(|system| system.queue_id = Some(queue))]).await;
        // Woken by the message: the end of the poll is farther away.
        assert_eq!(timeout(PATIENCE, poll).await.expect("woken").unwrap(), ["x"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unacknowledged_message_is_redelivered_after_its_lease_and_the_old_handle_is_stale() {
    let broker = Broker::start();
    let client = broker.client().await;
    client.send_one("x").await;
    let (_, first) = client.receive(&receive(SOON)).await;
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_401);

    let poll = tokio::spawn({
        let client = client.clone();
        async move { client.receive(&receive(SOON)).await.1 }
    });
    broker.until("parked", 1).await;
    broker.clock.advance(29_999);
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_401);
    broker.clock.advance(1);
    let second = poll.await.unwrap();
    assert_eq!(second[0].system().delivery_attempt, Some(2));
    assert_eq!(acknowledge(&client, &[&first[0].handle()]).await, (40_013, vec![40_013]));
    assert_eq!(acknowledge(&client, &[&second[0].handle()]).await, (20_000, vec![20_000]));
    broker.clock.advance(86_400_000);
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_401);
    assert_eq!((broker.stat("acked"), broker.stat("stale_receipts")), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_delivery_does_not_count_as_an_attempt() {
    let broker = Broker::start();
    let client = broker.client().await;
    client.send_one("x").await;
    let (_, messages) = client.receive(&receive(SOON)).await;
    let changed = change_as(&client, &messages[0].handle(), Duration::from_secs(5), Some(true)).await;
    assert_eq!(changed.status.unwrap().code, 20_000);
    broker.clock.advance(4_999);
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_401);
    broker.clock.advance(1);
    let (_, again) = client.receive(&receive(SOON)).await;
    assert_eq!(again[0].system().delivery_attempt, Some(1));
    assert_eq!(acknowledge(&client, &[&changed.receipt_handle]).await, (40_013, vec![40_013]));
    assert_eq!(change(&client, &again[0].handle(), Duration::ZERO).await.status.unwrap().code, 20_000);
    let (_, third) = client.receive(&receive(SOON)).await;
    assert_eq!(third[0].system().delivery_attempt, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_lease_wakes_a_parked_poll_on_the_system_clock() {
    let broker = Broker::start_with(Clock::system(), true);
    let client = broker.client().await;
    client.send_one("x").await;
    let short = ReceiveMessageRequest {
        invisible_duration: Some(Duration::from_millis(400).into()),
        ..receive(SOON)
    };
    client.receive(&short).await;
    let far = ReceiveMessageRequest { long_polling_timeout: receive(FAR).long_polling_timeout, ..short };
    let woken = timeout(PATIENCE, client.receive_bodies(&far)).await.expect("woken by the end of the lease");
    assert_eq!(woken, ["x"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_acknowledgement_of_a_request_has_its_own_status() {
    let broker = Broker::start();
    let client = broker.client().await;
    client.send((0..3).map(|i| message("flights", &i.to_string())).collect()).await;
    broker.readable(3).await;
    let (_, messages) = client.receive(&receive(SOON)).await;
    let handles: Vec<_> = messages.iter().map(proto::Message::handle).collect();
    let outcome = acknowledge(&client, &[&handles[0], "no handle", &handles[2]]).await;
    assert_eq!(outcome, (30_000, vec![20_000, 40_013, 20_000]));
    assert_eq!(acknowledge(&client, &[]).await, (40_000, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_lease_has_a_new_handle_and_ends_at_the_new_time() {
    let broker = Broker::start();
    let client = broker.client().await;
    client.send_one("x").await;
    let (_, messages) = client.receive(&receive(SOON)).await;
    let old = messages[0].handle();
    let answer = change(&client, &old, Duration::from_secs(5)).await;
    assert_eq!(answer.status.unwrap().code, 20_000);
    let new = answer.receipt_handle;
    assert_ne!(new, old);
    assert_eq!(change(&client, &old, Duration::from_secs(5)).await.status.unwrap().code, 40_013);

    let poll = tokio::spawn({
        let client = client.clone();
        async move { client.receive(&receive(SOON)).await.1 }
    });
    broker.until("parked", 1).await;
    broker.clock.advance(5_001);
    assert_eq!(poll.await.unwrap()[0].system().delivery_attempt, Some(2));
    let too_long = change(&client, &new, Duration::from_secs(13 * 3_600)).await;
    assert_eq!(too_long.status.unwrap().code, 40_011);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_during_a_poll_leases_no_message() {
    let broker = Broker::start();
    let (leaving, staying) = (broker.client().await, broker.client().await);
    let poll = tokio::spawn(async move { leaving.receive(&receive(SOON)).await });
    broker.until("parked", 1).await;
    poll.abort();
    broker.until("parked", 0).await;
    staying.send_one("x").await;
    assert_eq!(staying.receive_bodies(&receive(SOON)).await, ["x"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_were_not_written_to_the_connection_are_released() {
    let broker = Broker::start();
    let (leaving, staying) = (broker.client_with_a_small_window().await, broker.client().await);
    let body = "x".repeat(1 << 20);
    for _ in 0..16 {
        leaving.send_one(&body).await;
    }
    broker.readable(16).await;
    // Three messages of 1 MiB exceed the flow-control window of the connection.
    let request = Request::new(Bytes::from(receive(SOON).encode_to_vec()));
    let (_, stream) = leaving.stream("ReceiveMessage", request).await.unwrap();
    assert!(broker.stat("received") >= 3);
    drop(stream);
    drop(leaving);
    grpc_support::eventually(|| broker.stat("given_back") >= 1).await;
    let mut attempts = Vec::new();
    while let (20_000, again) = staying.receive(&receive(NOW)).await {
        attempts.extend(again.iter().map(|message| message.system().delivery_attempt));
    }
    // Some of the three in flight were released, which does not count as an attempt.
    assert!(attempts.len() > 13 && attempts.iter().all(|attempt| *attempt == Some(1)), "{attempts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_a_thousand_parked_polls_gets_a_message_and_the_others_keep_waiting() {
    let broker = Broker::start();
    let client = broker.client().await;
    let polls: Vec<_> = (0..1_000)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.receive_bodies(&receive(FAR)).await })
        })
        .collect();
    broker.until("parked", 1_000).await;
    for i in 0..20 {
        client.send_one(&i.to_string()).await;
    }
    broker.until("received", 20).await;
    let left = broker.stat("parked");
    assert!((980..1_000).contains(&left), "{left}");
    // The stopping server ends parked polls without messages, long before their time and its grace period.
    let mut bodies = Vec::new();
    let ended = async {
        broker.server.stop(FAR).await;
        for poll in polls {
            bodies.extend(poll.await.unwrap());
        }
    };
    timeout(PATIENCE, ended).await.expect("the end of all polls");
    assert_eq!(bodies.len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_filter_skips_other_messages_for_good() {
    let broker = Broker::start();
    let client = broker.client().await;
    let tagged = |tag: &str| message("flights", tag).with(|system| system.tag = Some(tag.to_owned()));
    client.send(vec![tagged("UA"), tagged("AA"), tagged("B6"), tagged("UA")]).await;
    broker.readable(4).await;
    let filter = |kind, expression: &str| ReceiveMessageRequest {
        filter_expression: Some(FilterExpression { kind, expression: expression.to_owned() }),
        ..receive(NOW)
    };
    let mut bodies = client.receive_bodies(&filter(1, "UA || B6")).await;
    bodies.sort();
    assert_eq!(bodies, ["B6", "UA", "UA"]);
    assert_eq!(client.receive(&filter(1, "AA")).await.0, 40_401);
    assert_eq!(client.receive(&filter(2, "a > ")).await.0, 40_010);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_refused_with_rocketmqs_codes() {
    let broker = Broker::start();
    let client = broker.client().await;
    let group = |name: &str| ReceiveMessageRequest { group: Some(proto::resource(name)), ..receive(NOW) };
    let topic =
        |name: &str| ReceiveMessageRequest { message_queue: Some(proto::queue(name, 0)), ..receive(NOW) };
    let lease = |ms| ReceiveMessageRequest {
        invisible_duration: Some(Duration::from_millis(ms).into()),
        ..receive(NOW)
    };
    assert_eq!(client.receive(&group("no group")).await.0, 40_003);
    assert_eq!(client.receive(&group("unknown")).await.0, 40_403);
    assert_eq!(client.receive(&group("auto-group")).await.0, 40_401);
    assert_eq!(client.receive(&topic("no topic")).await.0, 40_002);
    assert_eq!(client.receive(&topic("unknown")).await.0, 40_402);
    assert_eq!(client.receive(&lease(0)).await.0, 40_011);
    assert_eq!(client.receive(&lease(13 * 3_600_000)).await.0, 40_011);
    assert_eq!(client.receive(&ReceiveMessageRequest { batch_size: 0, ..receive(NOW) }).await.0, 40_000);
    broker
        .server
        .tables()
        .put_group("audit", ferromq_transport::tables::GroupEntry { enabled: false, ..GROUP });
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_300);
    broker
        .server
        .tables()
        .put_topic("flights", ferromq_transport::tables::TopicEntry { permission: 2, ..TOPIC });
    assert_eq!(client.receive(&receive(NOW)).await.0, 40_300);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_ends_before_the_deadline_of_its_client() {
    let broker = Broker::start();
    let client = broker.client().await;
    // The response must arrive within a tenth of a second. A machine that stalls for longer proves nothing.
    for _ in 0..20 {
        let mut request = Request::new(Bytes::from(receive(Duration::from_secs(20)).encode_to_vec()));
        request.set_timeout(Duration::from_millis(600));
        let answered = async {
            let (_, mut stream) = client.stream("ReceiveMessage", request).await?;
            stream.message().await
        };
        let Ok(first) = answered.await else { continue };
        let first = ReceiveMessageResponse::decode(first.unwrap()).unwrap();
        let Some(proto::ReceiveContent::Status(status)) = first.content else { panic!("{first:?}") };
        assert_eq!(status.code, 40_401);
        return;
    }
    panic!("none of twenty polls was answered in time");
}

/// Responses of a packed stream.
fn unpack(mut packet: Bytes) -> Vec<ReceiveMessageResponse> {
    let mut responses = Vec::new();
    while packet.has_remaining() {
        let len = usize::try_from(decode_varint(&mut packet).unwrap()).unwrap();
        responses.push(ReceiveMessageResponse::decode(packet.split_to(len)).unwrap());
    }
    responses
}

#[tokio::test(flavor = "multi_thread")]
async fn a_packed_stream_has_the_same_responses_and_larger_batches() {
    let broker = Broker::start();
    let client = broker.client().await;
    let body = "x".repeat(1 << 10);
    for _ in 0..12 {
        client.send(vec![message("flights", &body); 256]).await;
    }
    broker.readable(12 * 256).await;
    let (_, plain) = client.receive(&ReceiveMessageRequest { batch_size: 4_096, ..receive(SOON) }).await;
    assert_eq!(plain.len(), 32);
    let mut request = Request::new(Bytes::from(
        ReceiveMessageRequest { batch_size: 5_000, ..receive(SOON) }.encode_to_vec(),
    ));
    request.metadata_mut().insert("x-ferromq-packed", "1".parse().unwrap());
    let (metadata, mut stream) = client.stream("ReceiveMessage", request).await.unwrap();
    assert_eq!(metadata.get("x-ferromq-packed").unwrap(), "1");
    let (mut responses, mut packets) = (Vec::new(), 0);
    while let Some(packet) = stream.message().await.unwrap() {
        responses.extend(unpack(packet));
        packets += 1;
    }
    let (code, packed) = split(responses);
    assert_eq!((code, packed.len()), (20_000, 12 * 256 - 32));
    assert!(packets <= 6, "{packets}");
    let digest = packed[0].system().body_digest.clone().unwrap();
    assert_eq!(
        (digest.kind, digest.checksum),
        (1, format!("{:08X}", crc32fast::hash(body.as_bytes()) & 0x7FFF_FFFF))
    );
    let strip = |message: &proto::Message| {
        message.clone().with(|system| {
            system.body_digest = None;
            system.receipt_handle = None;
            system.queue_offset = None;
            system.queue_id = None;
        })
    };
    assert_eq!(strip(&plain[0]), strip(&packed[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_ends_at_four_mebibytes_but_has_at_least_one_message() {
    let broker = Broker::start();
    let client = broker.client().await;
    let body = "x".repeat((4 << 20) - 10);
    client.send_one(&body).await;
    client.send_one(&body).await;
    broker.readable(2).await;
    assert_eq!(client.receive(&receive(SOON)).await.1.len(), 1);
    assert_eq!(client.receive(&receive(SOON)).await.1.len(), 1);
}
