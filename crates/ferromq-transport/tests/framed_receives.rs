//! Framed receives, pulls and acknowledgements: their answers have records as stored in the log.
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
use ferromq_client::codec::{Body, RecordAnswer, decode_record_acks, decode_records, encode_record_acks};
use ferromq_transport::remoting::codes::framed;
use grpc_support::{
    Broker,
    frames::{Frames, SOON},
    proto::{
        PullMessageRequest, ReceiveMessageRequest, ReceiveMessageResponse, ack, message, queue, receive,
        resource,
    },
};
use prost::Message as _;
use tokio::{io::AsyncWriteExt, time::timeout};

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(60);
const OK: i32 = 20_000;
const NOTHING: i32 = 40_401;

async fn received(frames: &mut Frames, request: &ReceiveMessageRequest) -> RecordAnswer {
    let response = frames.call(framed::RECEIVE_MESSAGE, request.encode_to_vec()).await;
    assert_eq!((response.code, &response.remark), (0, &None));
    decode_records(&response.body).unwrap()
}

fn bodies(answer: &RecordAnswer) -> Vec<String> {
    let text = |body: Body<'_>| match body {
        Body::Plain(body) => String::from_utf8(body.to_vec()).unwrap(),
        Body::Unpacked(body) => String::from_utf8(body).unwrap(),
    };
    answer.messages.iter().map(|message| text(message.body().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_framed_receive_brings_the_same_message_as_http2() {
    let broker = Broker::start();
    let client = broker.client().await;
    let mut sent = message("flights", "LH 400").with(|system| {
        system.tag = Some("late".to_owned());
        system.keys = vec!["a".to_owned(), "b".to_owned()];
    });
    sent.user_properties.insert("gate".to_owned(), "B 12".to_owned());
    assert_eq!(client.send(vec![sent]).await.status.unwrap().code, OK);
    broker.readable(1).await;

    let mut frames = Frames::connect(&broker).await;
    let framed = received(&mut frames, &receive(NOW)).await;
    assert_eq!((framed.status.code, framed.messages.len()), (OK, 1));
    let framed = &framed.messages[0];
    let handle = framed.receipt_handle();
    broker.clock.advance(31_000);
    let (_, plain) = client.receive(&receive(NOW)).await;
    let system = plain[0].system();

    assert_eq!(framed.topic(), "flights");
    assert_eq!(framed.message_id(), system.message_id);
    assert_eq!(framed.tag(), system.tag.as_deref());
    assert_eq!(framed.keys().collect::<Vec<_>>(), system.keys);
    assert_eq!(framed.message_group(), system.message_group.as_deref());
    assert_eq!(framed.properties().collect::<Vec<_>>(), [("gate", "B 12")]);
    assert_eq!(framed.raw_body(), plain[0].body);
    assert_eq!(framed.born_host(), system.born_host);
    assert_eq!(framed.store_host(), system.store_host);
    assert_eq!(framed.born_timestamp, system.born_timestamp.unwrap().ms());
    assert_eq!(framed.store_timestamp, system.store_timestamp.unwrap().ms());
    assert_eq!(
        (framed.queue_id, framed.queue_offset),
        (system.queue_id.unwrap(), system.queue_offset.unwrap())
    );
    assert_eq!((framed.delivery_attempt, system.delivery_attempt), (1, Some(2)));
    assert_eq!(framed.invisible_ms(), 30_000);
    // All of the handle but the time of the lease, its second field, is alike.
    let rest = |handle: &str| {
        handle
            .split(' ')
            .enumerate()
            .filter(|(at, _)| *at != 1)
            .map(|(_, field)| field.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(rest(&handle), rest(&plain[0].handle()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receipt_handle_of_a_record_is_acknowledged_over_http2() {
    let broker = Broker::start();
    let client = broker.client().await;
    client.send_one("one").await;
    broker.readable(1).await;
    let framed = received(&mut Frames::connect(&broker).await, &receive(NOW)).await;
    let handle = framed.messages[0].receipt_handle();
    let answer = client.call("AckMessage", ack(&[&handle]).encode_to_vec()).await.unwrap();
    assert_eq!(grpc_support::proto::AckMessageResponse::decode(answer).unwrap().status.unwrap().code, OK);
    broker.clock.advance(31_000);
    assert_eq!(client.receive(&receive(NOW)).await.0, NOTHING);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_acknowledged_together_and_a_stale_one_is_named() {
    let broker = Broker::start();
    let client = broker.client().await;
    for body in ["a", "b", "c"] {
        client.send_one(body).await;
    }
    broker.readable(3).await;
    let mut frames = Frames::connect(&broker).await;
    let stale = received(&mut frames, &ReceiveMessageRequest { batch_size: 1, ..receive(NOW) }).await;
    broker.clock.advance(31_000);
    let fresh = received(&mut frames, &receive(NOW)).await;
    assert_eq!(fresh.messages.len(), 3);
    let (stale_place, place) = (&stale.messages[0], |at: usize| &fresh.messages[at]);
    let others = (0..3).map(place).filter(|message| {
        (message.queue_id, message.queue_offset) != (stale_place.queue_id, stale_place.queue_offset)
    });
    let all: Vec<_> = std::iter::once(stale_place).chain(others).collect();
    let request = encode_record_acks("audit", "flights", all.into_iter()).unwrap();
    let response = frames.call(framed::ACK_RECORDS, request).await;
    let (status, failed) = decode_record_acks(&response.body).unwrap();
    assert_eq!((response.code, status.code), (0, OK));
    assert_eq!(failed.iter().map(|(index, why)| (*index, why.code)).collect::<Vec<_>>(), [(0, 40_013)]);
    broker.clock.advance(31_000);
    assert_eq!(received(&mut frames, &receive(NOW)).await.messages.len(), 1, "the stale one alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledgements_for_another_broker_or_group_are_refused() {
    let broker = Broker::start();
    let mut frames = Frames::connect(&broker).await;
    broker.client().await.send_one("a").await;
    broker.readable(1).await;
    let answer = received(&mut frames, &receive(NOW)).await;
    for (group, code) in [("no group", 40_003), ("audit", 40_013)] {
        let mut request = encode_record_acks(group, "flights", answer.messages.iter()).unwrap();
        let at = request.windows(8).position(|bytes| bytes == b"broker-a").unwrap();
        request[at + 7] = b'b';
        let response = frames.call(framed::ACK_RECORDS, request).await;
        assert_eq!(decode_record_acks(&response.body).unwrap().0.code, code, "{group}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_written_gives_its_leases_back() {
    let broker = Broker::start();
    let client = broker.client().await;
    let large = "x".repeat(1 << 20);
    for _ in 0..24 {
        client.send_one(&large).await;
    }
    broker.readable(24).await;
    let mut frames = Frames::connect(&broker).await;
    // More than the sockets hold: the last answers wait in the server.
    for opaque in 0..24 {
        let request = ReceiveMessageRequest { batch_size: 1, ..receive(NOW) };
        let request = request.encode_to_vec().into();
        frames.write(opaque, framed::RECEIVE_MESSAGE, Some("c"), request).await;
    }
    broker.until("received", 24).await;
    drop(frames);
    // The clock stands still, so no lease expires.
    let mut again = Frames::connect(&broker).await;
    let request = ReceiveMessageRequest { batch_size: 1, ..receive(SOON) };
    assert_eq!(bodies(&received(&mut again, &request).await), [large]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_that_waits_is_answered_at_once_when_its_client_sends_no_more() {
    let broker = Broker::start();
    let mut frames = Frames::connect(&broker).await;
    frames.write(1, framed::RECEIVE_MESSAGE, Some("c"), receive(LONG).encode_to_vec().into()).await;
    broker.until("parked", 1).await;
    frames.socket.shutdown().await.unwrap();
    let answer = timeout(SOON, frames.read()).await.expect("at once").expect("an answer");
    assert_eq!(decode_records(&answer.body).unwrap().status.code, NOTHING);
    assert!(frames.read().await.is_none(), "then the connection ends");
    broker.client().await.send_one("a").await;
    broker.readable(1).await;
    let other = received(&mut Frames::connect(&broker).await, &receive(NOW)).await;
    assert_eq!(bodies(&other), ["a"], "nothing was leased for the client that had left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_framed_pull_brings_records_and_the_next_offset() {
    let broker = Broker::start();
    let to_queue_1 = |body: &str| message("flights", body).with(|system| system.queue_id = Some(1));
    broker.client().await.send(["a", "b", "c"].map(to_queue_1).to_vec()).await;
    broker.readable(3).await;
    let mut frames = Frames::connect(&broker).await;
    let pull = |offset| PullMessageRequest {
        group: Some(resource("audit")),
        message_queue: Some(queue("flights", 1)),
        offset,
        batch_size: 2,
        filter_expression: None,
        long_polling_timeout: None,
    };
    let mut pulled = Vec::new();
    let mut offset = 0;
    while offset < 3 {
        let response = frames.call(framed::PULL_MESSAGE, pull(offset).encode_to_vec()).await;
        let answer = decode_records(&response.body).unwrap();
        assert_eq!(answer.messages[0].receipt_handle(), "", "a pull leases nothing");
        assert_eq!(answer.messages[0].delivery_attempt, 1);
        pulled.extend(bodies(&answer));
        offset = answer.next_offset.unwrap();
    }
    assert_eq!(pulled, ["a", "b", "c"]);
    let response = frames.call(framed::PULL_MESSAGE, pull(9).encode_to_vec()).await;
    assert_eq!(decode_records(&response.body).unwrap().status.code, 40_019, "out of range");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_framed_receive_does_not_offer_is_refused() {
    let broker = Broker::start();
    let mut frames = Frames::connect(&broker).await;
    let renewed = received(&mut frames, &ReceiveMessageRequest { auto_renew: true, ..receive(NOW) }).await;
    assert_eq!(renewed.status.code, 40_000);
    assert!(renewed.status.message.contains("auto_renew"), "{}", renewed.status.message);
    frames.write(7, framed::RECEIVE_MESSAGE, None, receive(NOW).encode_to_vec().into()).await;
    let unnamed = decode_records(&frames.read().await.unwrap().body).unwrap();
    assert!(unnamed.status.message.contains("client"), "{}", unnamed.status.message);
    let malformed = frames.call(framed::PULL_MESSAGE, Bytes::from_static(&[0xff])).await;
    assert_eq!(malformed.code, framed::STATUS + 3, "INVALID_ARGUMENT");
    assert!(ReceiveMessageResponse::decode(&b""[..]).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_messages_is_answered_once_there_is_one_and_leases_none() {
    let broker = Broker::start();
    let mut frames = Frames::connect(&broker).await;
    frames.write(1, framed::AWAIT_MESSAGES, Some("c"), receive(LONG).encode_to_vec().into()).await;
    broker.until("parked", 1).await;
    broker.client().await.send_one("a").await;
    let answer = decode_records(&frames.read().await.unwrap().body).unwrap();
    assert_eq!((answer.status.code, answer.messages.len()), (OK, 0));
    assert_eq!(bodies(&received(&mut frames, &receive(NOW)).await), ["a"]);
    let again = frames.call(framed::AWAIT_MESSAGES, receive(NOW).encode_to_vec()).await;
    assert_eq!(decode_records(&again.body).unwrap().status.code, NOTHING, "the only one is leased");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_messages_passes_its_wake_up_on_to_a_receive() {
    let broker = Broker::start();
    let mut waiting = Frames::connect(&broker).await;
    waiting.write(1, framed::AWAIT_MESSAGES, Some("c"), receive(LONG).encode_to_vec().into()).await;
    broker.until("parked", 1).await;
    let mut receiving = Frames::connect(&broker).await;
    receiving.write(1, framed::RECEIVE_MESSAGE, Some("c"), receive(LONG).encode_to_vec().into()).await;
    broker.until("parked", 2).await;
    broker.client().await.send_one("a").await;
    let answer = timeout(SOON, receiving.read()).await.expect("the message is received").unwrap();
    assert_eq!(bodies(&decode_records(&answer.body).unwrap()), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_messages_of_a_topic_that_cannot_be_read_is_refused() {
    let broker = Broker::start();
    let mut frames = Frames::connect(&broker).await;
    let wrong = ReceiveMessageRequest { message_queue: Some(queue("no topic", 0)), ..receive(LONG) };
    let refused = frames.call(framed::AWAIT_MESSAGES, wrong.encode_to_vec()).await;
    assert_eq!(decode_records(&refused.body).unwrap().status.code, 40_002, "an illegal name");
}
