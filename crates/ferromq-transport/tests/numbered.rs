//! Messages with a sequence, over gRPC and remoting: a duplicate is acknowledged and not stored.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;
mod support;

use std::{net::TcpListener, time::Duration};

use bytes::Bytes;
use ferromq_transport::remoting::{Fields, RemotingCommand};
use grpc_support::{Broker, proto};
use support::Peer;
use tokio::net::TcpStream;

const SEQUENCE: &str = "FERROMQ_SEQUENCE";

fn numbered(body: &str, sequence: &str) -> proto::Message {
    let mut message = proto::message("flights", body).with(|system| system.queue_id = Some(1));
    message.user_properties.insert(SEQUENCE.to_owned(), sequence.to_owned());
    message
}

fn text(pairs: &[(&str, &str)]) -> String {
    pairs.iter().map(|(name, value)| format!("{name}\u{1}{value}\u{2}")).collect()
}

fn request(code: i32, body: &[u8], properties: &str, is_batch: bool) -> RemotingCommand {
    let fields: Fields = [
        ("a", "PG"),
        ("b", "flights"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "1"),
        ("f", "0"),
        ("g", "1699999999999"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", if is_batch { "true" } else { "false" }),
    ]
    .into_iter()
    .collect();
    let mut command = RemotingCommand::request(code, fields, Bytes::copy_from_slice(body));
    command.opaque = 1;
    command
}

fn in_batch(body: &str, properties: &str) -> Vec<u8> {
    let mut out = vec![0; 16];
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body.as_bytes());
    out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
    out.extend_from_slice(properties.as_bytes());
    let len = out.len() as u32;
    out[..4].copy_from_slice(&len.to_be_bytes());
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_is_acknowledged_with_its_id_and_stored_once_over_grpc_and_remoting() {
    let broker = Broker::start();
    let client = broker.client().await;
    let rows = || vec![numbered("zero", "w/0/0/0"), numbered("one", "w/0/0/1")];
    let first = client.send(rows()).await;
    assert_eq!(first.status.unwrap().code, 20_000);
    assert_eq!(first.entries.iter().map(|entry| entry.offset).collect::<Vec<_>>(), [0, 1]);
    let mut more = rows();
    more.push(numbered("two", "w/0/0/2"));
    let again = client.send(more).await;
    assert_eq!(again.status.unwrap().code, 20_000);
    assert_eq!(again.entries.iter().map(|entry| entry.offset).collect::<Vec<_>>(), [-1, -1, 2]);
    let ids: Vec<_> = again.entries.iter().map(|entry| entry.message_id.as_str()).collect();
    assert_eq!(ids, ["id-zero", "id-one", "id-two"]);

    let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let mut peer = Peer::of(TcpStream::connect(address).await.unwrap());
    let one = |row: &str| text(&[("WAIT", "true"), ("UNIQ_KEY", "7F01"), (SEQUENCE, row)]);
    let twice = peer.call(&request(310, b"two", &one("w/0/0/2"), false)).await;
    assert_eq!((twice.code, twice.fields.get("queueOffset")), (0, Some("-1")));
    assert_eq!(twice.fields.get("transactionId"), Some("7F01"));
    let batch = [in_batch("two", &one("w/0/0/2")), in_batch("three", &one("w/0/0/3"))].concat();
    let mixed = peer.call(&request(320, &batch, &one("w/0/0/3"), true)).await;
    assert_eq!(mixed.code, 0, "{:?}", mixed.remark);
    let stats = broker.store.admin().stats();
    assert_eq!((stats.appended, stats.duplicates), (4, 4));
    assert_eq!(broker.stat("sent"), 4);

    broker.readable(4).await;
    let (_, received) = client.receive(&proto::receive(Duration::ZERO)).await;
    assert!(received.iter().all(|message| message.user_properties.is_empty()), "{received:?}");
    assert_eq!(received.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_sequence_and_one_in_a_transaction_are_refused_with_the_property_name() {
    let broker = Broker::start();
    let client = broker.client().await;
    let wrong = client.send(vec![numbered("x", "w/0/0")]).await.status.unwrap();
    assert_eq!(wrong.code, 40_000);
    assert!(wrong.message.contains(SEQUENCE), "{}", wrong.message);
    let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let mut peer = Peer::of(TcpStream::connect(address).await.unwrap());
    for properties in [
        text(&[(SEQUENCE, "w/0/0/-1")]),
        text(&[(SEQUENCE, "w/0/0/1"), ("TRAN_MSG", "true"), ("PGROUP", "g"), ("UNIQ_KEY", "7F02")]),
    ] {
        let refused = peer.call(&request(310, b"x", &properties, false)).await;
        assert_eq!(refused.code, 13, "{properties:?}");
        assert!(refused.remark.unwrap().contains(SEQUENCE), "{properties:?}");
    }
    assert_eq!(broker.store.admin().stats().appended, 0);
}
