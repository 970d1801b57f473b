//! Sends over remoting (10, 310, 320) and messages sent back (36).
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;
mod support;

use std::{net::TcpListener, time::Duration};

use bytes::Bytes;
use ferromq_store::{
    log::FlushPolicy,
    queues::QueueAccess,
    record::{MessageView, OffsetMessageId, properties},
};
use ferromq_transport::{
    hot::{SendPolicy, Tally},
    remoting::{Fields, RemotingCommand},
    tables::TopicEntry,
};
use grpc_support::{Broker, TOPIC, eventually, proto};
use support::Peer;
use tokio::net::TcpStream;

const SEND: i32 = 310;
const SEND_BATCH: i32 = 320;

async fn connect(broker: &Broker) -> Peer {
    let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    Peer::of(TcpStream::connect(address).await.unwrap())
}

fn text(pairs: &[(&str, &str)]) -> String {
    pairs.iter().map(|(name, value)| format!("{name}\u{1}{value}\u{2}")).collect()
}

/// A request of RocketMQ's client. `changes` replace fields; an empty value removes one.
fn request(code: i32, body: &str, changes: &[(&str, &str)]) -> RemotingCommand {
    let properties = text(&[("TAGS", "t"), ("WAIT", "true"), ("UNIQ_KEY", "7F00000100001")]);
    let mut fields = vec![
        ("a", "PG"),
        ("b", "flights"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "2"),
        ("f", "0"),
        ("g", "1699999999999"),
        ("h", "7"),
        ("i", properties.as_str()),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    for (name, value) in changes {
        fields.retain(|(known, _)| known != name);
        if !value.is_empty() {
            fields.push((name, value));
        }
    }
    let fields: Fields = fields.into_iter().collect();
    let mut command = RemotingCommand::request(code, fields, Bytes::copy_from_slice(body.as_bytes()));
    command.opaque = 1;
    command
}

fn message(flag: i32, body: &str, properties: &str) -> Vec<u8> {
    let mut out = vec![0; 12];
    out.extend_from_slice(&flag.to_be_bytes());
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body.as_bytes());
    out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
    out.extend_from_slice(properties.as_bytes());
    out
}

/// The physical offset in a message id of the broker.
fn place(broker: &Broker, id: &str) -> u64 {
    let physical_offset = u64::from_str_radix(&id[id.len() - 16..], 16).unwrap();
    let store_host = broker.store.admin().store_host();
    assert_eq!(OffsetMessageId { store_host, physical_offset }.to_string(), id);
    physical_offset
}

/// Topic, queue id, queue offset, flag, body and properties of a record.
fn stored(broker: &Broker, id: &str) -> (String, i32, u64, i32, String, String) {
    let record = broker.store.queues().message_at(place(broker, id)).unwrap();
    let view = MessageView::decode(record.bytes(), true).unwrap();
    (
        view.topic.to_owned(),
        view.queue_id,
        view.queue_offset,
        view.flag,
        String::from_utf8(view.body.to_vec()).unwrap(),
        String::from_utf8(view.properties.to_vec()).unwrap(),
    )
}

const STAMP: [(&str, &str); 3] =
    [("MSG_REGION", "DefaultRegion"), ("TRACE_ON", "true"), ("CLUSTER", "DefaultCluster")];

#[tokio::test]
async fn a_message_is_stored_as_sent_and_the_response_names_its_offsets() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let sent = request(SEND, "hello", &[]);
    let answer = peer.call(&sent).await;
    assert_eq!((answer.code, answer.remark.as_deref()), (0, None));
    assert_eq!((answer.field("queueId"), answer.field("queueOffset")), (Some("2"), Some("0")));
    assert_eq!(answer.field("transactionId"), Some("7F00000100001"));
    assert_eq!(answer.field("MSG_REGION"), Some("DefaultRegion"));
    assert_eq!(answer.field("TRACE_ON"), Some("true"));
    let properties = sent.field("i").unwrap().to_owned() + &text(&STAMP);
    let wanted = ("flights".to_owned(), 2, 0, 7, "hello".to_owned(), properties);
    assert_eq!(stored(&broker, answer.field("msgId").unwrap()), wanted);
    assert_eq!(peer.call(&sent).await.field("queueOffset"), Some("1"));
}

#[tokio::test]
async fn request_10_has_the_same_fields_with_full_names() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let names = [
        ("producerGroup", "PG"),
        ("topic", "flights"),
        ("defaultTopic", "TBW102"),
        ("defaultTopicQueueNums", "4"),
        ("queueId", "1"),
        ("sysFlag", "0"),
        ("bornTimestamp", "5"),
        ("flag", "3"),
        ("properties", "KEYS\u{1}k\u{2}UNIQ_KEY\u{1}u\u{2}"),
    ];
    let answer = peer.call(&RemotingCommand::request(10, names, Bytes::from_static(b"old"))).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    let (topic, queue_id, _, flag, body, _) = stored(&broker, answer.field("msgId").unwrap());
    assert_eq!((topic.as_str(), queue_id, flag, body.as_str()), ("flights", 1, 3, "old"));
}

#[tokio::test]
async fn a_message_without_a_unique_key_gets_one_and_may_be_empty() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let answer = peer.call(&request(SEND, "", &[("i", "")])).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    let key = answer.field("transactionId").unwrap().to_owned();
    assert_eq!(key.len(), 32);
    let (.., body, stored) = stored(&broker, answer.field("msgId").unwrap());
    assert_eq!(body, "");
    assert_eq!(properties::get(stored.as_bytes(), "UNIQ_KEY"), Some(key.as_str()));
}

#[tokio::test]
async fn the_record_has_the_born_host_and_time_of_the_message() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let answer = peer.call(&request(SEND, "x", &[("f", "1"), ("j", "4")])).await;
    let place = place(&broker, answer.field("msgId").unwrap());
    let record = broker.store.queues().message_at(place).unwrap();
    let view = MessageView::decode(record.bytes(), true).unwrap();
    assert_eq!(view.born_host, peer.stream.local_addr().unwrap());
    assert_eq!((view.born_timestamp, view.sys_flag, view.reconsume_times), (1_699_999_999_999, 1, 4));
}

#[tokio::test]
async fn a_negative_queue_id_lets_the_server_choose() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let mut queues = Vec::new();
    for _ in 0..4 {
        let answer = peer.call(&request(SEND, "x", &[("e", "-1")])).await;
        queues.push(answer.field("queueId").unwrap().to_owned());
    }
    queues.sort();
    assert_eq!(queues, ["0", "1", "2", "3"]);
}

#[tokio::test]
async fn a_send_to_a_queue_beyond_the_write_queues_is_still_stored() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    broker.server.tables().put_topic("flights", TopicEntry { write_queues: 1, ..TOPIC });
    assert_eq!(peer.call(&request(SEND, "x", &[("e", "3")])).await.code, 0);
    assert_eq!(peer.call(&request(SEND, "x", &[("e", "-1")])).await.field("queueId"), Some("0"));
}

#[tokio::test]
async fn each_message_of_a_batch_becomes_a_record_and_the_response_lists_their_ids() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let keys = ["A1", "A2", "A3"];
    let body: Vec<u8> = (0..3)
        .flat_map(|n| message(n, &format!("body {n}"), &text(&[("UNIQ_KEY", keys[n as usize])])))
        .collect();
    let body = String::from_utf8(body).unwrap();
    let changes = [("m", "true"), ("i", "WAIT\u{1}true\u{2}UNIQ_KEY\u{1}BATCH\u{2}")];
    let answer = peer.call(&request(SEND_BATCH, &body, &changes)).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!((answer.field("queueId"), answer.field("queueOffset")), (Some("2"), Some("0")));
    assert_eq!(answer.field("transactionId"), Some("BATCH"));
    assert_eq!(answer.field("batchUniqId"), None);
    let ids: Vec<&str> = answer.field("msgId").unwrap().split(',').collect();
    assert_eq!(ids.len(), 3);
    for (n, id) in (0..3).zip(ids) {
        let properties = text(&[("UNIQ_KEY", keys[n as usize])]);
        let wanted = ("flights".to_owned(), 2, n as u64, n, format!("body {n}"), properties);
        assert_eq!(stored(&broker, id), wanted);
    }
}

#[tokio::test]
async fn with_synchronous_flush_acknowledged_messages_are_flushed() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    broker.store.admin().set_flush(FlushPolicy::Group).unwrap();
    let body = String::from_utf8([message(0, "one", ""), message(0, "two", "")].concat()).unwrap();
    for asked in [request(SEND, "x", &[]), request(SEND_BATCH, &body, &[("m", "true")])] {
        assert_eq!(peer.call(&asked).await.code, 0);
        let stats = broker.store.admin().stats();
        assert_eq!(stats.flushed_offset, stats.max_physical_offset);
    }
    // A send that does not wait is acknowledged, whether or not it is flushed.
    let answer = peer.call(&request(SEND, "x", &[("i", "WAIT\u{1}false\u{2}")])).await;
    assert_eq!((answer.code, answer.field("queueOffset")), (0, Some("3")));
}

#[tokio::test]
async fn a_batch_is_stored_completely_or_not_at_all() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let good = String::from_utf8(message(0, "good", "")).unwrap();
    let delayed = String::from_utf8(message(0, "late", &text(&[("DELAY", "3")]))).unwrap();
    let half = String::from_utf8(message(0, "half", &text(&[("TRAN_MSG", "true")]))).unwrap();
    for bad in [&good[..good.len() - 1], &delayed, &half, ""] {
        let body = if bad.is_empty() { String::new() } else { good.clone() + bad };
        let answer = peer.call(&request(SEND_BATCH, &body, &[("m", "true")])).await;
        assert_eq!(answer.code, 13, "{answer:?}");
    }
    let answer = peer.call(&request(SEND_BATCH, &good, &[("m", "true"), ("b", "%RETRY%audit")])).await;
    assert_ne!(answer.code, 0);
    assert_eq!(broker.store.admin().stats().appended, 0);
}

#[tokio::test]
async fn a_one_way_message_is_stored_and_not_answered() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let mut silent = request(SEND, "quiet", &[]);
    silent.set_one_way();
    peer.send(&silent).await;
    silent.fields.push("b", "nowhere");
    peer.send(&silent).await;
    let mut loud = request(SEND, "loud", &[]);
    loud.opaque = 2;
    let answer = peer.call(&loud).await;
    assert_eq!((answer.opaque, answer.field("queueOffset")), (2, Some("1")));
}

#[tokio::test]
async fn a_refused_message_is_not_stored_and_the_response_has_the_reason() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    broker.server.tables().put_topic("museum", TopicEntry { permission: 4, ..TOPIC });
    broker.server.tables().put_topic("SCHEDULE_TOPIC_XXXX", TOPIC);
    broker.store.admin().set_queue_access("flights", 1, QueueAccess::ReadOnly).unwrap();
    let long_name = "x".repeat(128);
    let long_properties = text(&[("KEYS", &"k".repeat(32_767))]);
    for (changes, code, reason) in [
        (&[("e", "4")][..], 29, "0 to 3"),
        (&[("e", "1")], 16, "queue 1 of topic flights is closed"),
        (&[("b", "museum")], 16, "museum"),
        (&[("b", "SCHEDULE_TOPIC_XXXX")], 16, "SCHEDULE_TOPIC_XXXX"),
        (&[("b", "nowhere")], 17, "nowhere"),
        (&[("b", "busy")], 2, "busy"),
        (&[("b", "fl/ghts")], 29, "letters"),
        (&[("b", &long_name)], 29, "127"),
        (&[("b", "")], 29, "topic"),
        (&[("g", "")], 29, "bornTimestamp"),
        (&[("e", "one")], 29, "queueId"),
        (&[("i", &long_properties)], 13, "32767"),
        (&[("i", "TIMER_DELAY_SEC\u{1}999999\u{2}")], 13, "timer_max_delay"),
        (&[("i", "DELAY\u{1}soon\u{2}")], 13, "delay level"),
        (&[("i", "DELAY\u{1}1\u{2}TRAN_MSG\u{1}true\u{2}")], 13, "transaction"),
        (&[("i", "INNER_NUM\u{1}2\u{2}")], 13, "INNER_NUM"),
        (&[("f", "128")], 13, "128"),
    ] {
        let answer = peer.call(&request(SEND, "x", changes)).await;
        assert_eq!(answer.code, code, "{changes:?} {answer:?}");
        let remark = answer.remark.unwrap();
        assert!(remark.contains(reason), "{remark}");
    }
    let answer = peer.call(&request(SEND, &"x".repeat((4 << 20) + 1), &[])).await;
    assert_eq!(answer.code, 13);
    assert!(answer.remark.unwrap().contains("the limit is 4194304"));
    assert_eq!(broker.store.admin().stats().appended, 0);
}

#[tokio::test]
async fn the_send_policy_decides_about_transactions_and_message_marks() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let set = |policy| broker.server.hot().unwrap().policy.store(std::sync::Arc::new(policy));
    let mut policy = SendPolicy::default();
    policy.rejects_transactions = true;
    set(policy);
    assert_eq!(peer.call(&request(SEND, "x", &[("i", "TRAN_MSG\u{1}true\u{2}")])).await.code, 16);
    set(SendPolicy::new("east", "r1", false));
    let answer = peer.call(&request(SEND, "x", &[])).await;
    assert_eq!((answer.field("MSG_REGION"), answer.field("TRACE_ON")), (Some("r1"), Some("false")));
    let (.., properties) = stored(&broker, answer.field("msgId").unwrap());
    assert!(properties.ends_with(&text(&[("MSG_REGION", "r1"), ("TRACE_ON", "false"), ("CLUSTER", "east")])));
}

#[tokio::test]
async fn a_missing_topic_is_demoted_once_and_then_written() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    for queue_offset in ["0", "1"] {
        let answer = peer.call(&request(SEND, "x", &[("b", "auto-made")])).await;
        assert_eq!((answer.code, answer.field("queueOffset")), (0, Some(queue_offset)));
    }
    assert_eq!(broker.stat("demoted"), 1);
}

#[tokio::test]
async fn a_message_with_a_delay_level_waits_in_rocketmqs_topic_with_its_target() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let given = text(&[("DELAY", "3"), ("UNIQ_KEY", "7F")]);
    let answer = peer.call(&request(SEND, "later", &[("i", &given)])).await;
    assert_eq!((answer.code, answer.field("queueId")), (0, Some("2")), "{answer:?}");
    let (topic, queue_id, .., body, properties) = stored(&broker, answer.field("msgId").unwrap());
    assert_eq!((topic.as_str(), queue_id, body.as_str()), ("SCHEDULE_TOPIC_XXXX", 2, "later"));
    for (name, value) in [("REAL_TOPIC", "flights"), ("REAL_QID", "2"), ("DELAY", "3"), ("UNIQ_KEY", "7F")] {
        assert_eq!(properties::get(properties.as_bytes(), name), Some(value));
    }
    let answer = peer.call(&request(SEND, "now", &[("i", "DELAY\u{1}0\u{2}")])).await;
    assert_eq!(stored(&broker, answer.field("msgId").unwrap()).0, "flights");
}

#[tokio::test]
async fn a_half_message_waits_in_rocketmqs_topic_with_its_target() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let given = text(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("UNIQ_KEY", "7F")]);
    let answer = peer.call(&request(SEND, "half", &[("f", "4"), ("i", &given)])).await;
    // The producer ends the transaction by the half message's queue offset, physical offset and id.
    assert_eq!((answer.field("queueId"), answer.field("queueOffset")), (Some("2"), Some("0")));
    assert_eq!(answer.field("transactionId"), Some("7F"));
    let destination = [("__transactionId__", "7F"), ("REAL_TOPIC", "flights"), ("REAL_QID", "2")];
    let properties = given + &text(&STAMP) + &text(&destination);
    let wanted = ("RMQ_SYS_TRANS_HALF_TOPIC".to_owned(), 0, 0, 7, "half".to_owned(), properties);
    assert_eq!(stored(&broker, answer.field("msgId").unwrap()), wanted);
    let place = place(&broker, answer.field("msgId").unwrap());
    let record = broker.store.queues().message_at(place).unwrap();
    assert_eq!(MessageView::decode(record.bytes(), true).unwrap().sys_flag, 0);
    eventually(|| broker.store.queues().max_offset("RMQ_SYS_TRANS_HALF_TOPIC", 0) == 1).await;
    assert_eq!(broker.store.queues().max_offset("flights", 2), 0);
}

#[tokio::test]
async fn a_message_sent_over_remoting_is_received_over_grpc() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    assert_eq!(peer.call(&request(SEND, "across", &[("e", "0")])).await.code, 0);
    broker.readable(1).await;
    let client = broker.client().await;
    let (code, messages) = client.receive(&proto::receive(Duration::from_secs(5))).await;
    assert_eq!((code, messages.len()), (20_000, 1));
    assert_eq!(messages[0].body, "across".as_bytes());
}

#[tokio::test]
async fn messages_and_their_bytes_are_counted_by_topic() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    peer.call(&request(SEND, "one", &[])).await;
    let body = String::from_utf8([message(0, "two", ""), message(0, "three", "")].concat()).unwrap();
    peer.call(&request(SEND_BATCH, &body, &[("m", "true")])).await;
    broker.client().await.send_one("four").await;
    let traffic = &broker.server.hot().unwrap().traffic;
    let put = traffic.snapshot().put;
    assert_eq!(put.len(), 1);
    let end = broker.store.admin().stats().max_physical_offset;
    assert_eq!(put["flights"], Tally { messages: 4, bytes: end });
    traffic.forget_topic("flights");
    assert!(traffic.snapshot().put.is_empty());
}

fn send_back(changes: &[(&str, &str)]) -> RemotingCommand {
    let mut fields = Fields::default();
    for (name, value) in [("group", "audit"), ("delayLevel", "0"), ("originTopic", "flights")] {
        fields.push(name, value);
    }
    changes.iter().for_each(|(name, value)| fields.push(name, value));
    RemotingCommand::request(36, fields, Bytes::new())
}

/// Topic, queue id, reconsume times and properties of the last record.
fn last(broker: &Broker) -> (String, i32, i32, Vec<u8>) {
    let end = broker.store.admin().stats().max_physical_offset;
    let at = broker.store.queues().message_at(end - 1).expect_err("no message begins in its last byte");
    let ferromq_store::StoreError::NoRecord { nearest: Some(at), .. } = at else { panic!("{at}") };
    let record = broker.store.queues().message_at(at).unwrap();
    let view = MessageView::decode(record.bytes(), true).unwrap();
    assert_eq!(view.sys_flag & 12, 0, "consumers cannot see a message with these flags");
    (view.topic.to_owned(), view.queue_id, view.reconsume_times, view.properties.to_vec())
}

async fn sent_offset(broker: &Broker, peer: &mut Peer, changes: &[(&str, &str)]) -> (String, String) {
    let answer = peer.call(&request(SEND, "again", changes)).await;
    let id = answer.field("msgId").unwrap_or_else(|| panic!("{answer:?}")).to_owned();
    (place(broker, &id).to_string(), id)
}

#[tokio::test]
async fn a_message_sent_back_waits_for_its_groups_retry_topic() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let (offset, id) = sent_offset(&broker, &mut peer, &[("j", "2")]).await;
    let answer = peer.call(&send_back(&[("offset", &offset)])).await;
    assert_eq!((answer.code, answer.remark), (0, None));
    let (topic, queue_id, times, text) = last(&broker);
    // Level 3 for the first time, and one more for each earlier delivery.
    assert_eq!((topic.as_str(), queue_id, times), ("SCHEDULE_TOPIC_XXXX", 4, 3));
    for (name, value) in [
        ("REAL_TOPIC", "%RETRY%audit"),
        ("RETRY_TOPIC", "flights"),
        ("ORIGIN_MESSAGE_ID", &id),
        ("DELAY", "5"),
        ("WAIT", "false"),
        ("UNIQ_KEY", "7F00000100001"),
    ] {
        assert_eq!(properties::get(&text, name), Some(value), "{name}");
    }
    // The message can be sent back again, with another level.
    let end = broker.store.admin().stats().max_physical_offset;
    assert_eq!(peer.call(&send_back(&[("offset", &offset), ("delayLevel", "7")])).await.code, 0);
    let (_, queue_id, _, _) = last(&broker);
    assert_eq!((queue_id, broker.store.admin().stats().max_physical_offset > end), (6, true));
    let counted = broker.server.hot().unwrap().traffic.snapshot().send_back;
    assert_eq!(counted["flights@audit"].messages, 2);
}

#[tokio::test]
async fn a_message_sent_back_too_often_or_given_up_becomes_a_dead_letter() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let (offset, id) = sent_offset(&broker, &mut peer, &[("j", "16")]).await;
    let (fresh, _) = sent_offset(&broker, &mut peer, &[("i", "DELAY\u{1}0\u{2}")]).await;
    let (back, up) = ("given back after its last delivery attempt", "given up by its consumer");
    for (changes, attempts, reason) in [
        (&[("offset", offset.as_str())][..], "17", back),
        (&[("offset", &fresh), ("delayLevel", "-1")], "1", up),
        (&[("offset", &fresh), ("maxReconsumeTimes", "0")], "1", back),
    ] {
        assert_eq!(peer.call(&send_back(changes)).await.code, 0);
        let (topic, _, _, text) = last(&broker);
        assert_eq!(topic, "%DLQ%audit");
        assert_eq!(["DELAY", "WAIT"].map(|name| properties::get(&text, name)), [Some("0"), Some("false")]);
        for name in ["RETRY_TOPIC", "DLQ_ORIGIN_TOPIC", "DLQ_SOURCE_TOPIC"] {
            assert_eq!(properties::get(&text, name), Some("flights"));
        }
        let ids = ["UNIQ_KEY", "DLQ_ORIGIN_MESSAGE_ID", "DLQ_SOURCE_MESSAGE_ID"];
        let [unique, origin, source] = ids.map(|name| properties::get(&text, name));
        assert!(unique.is_some() && unique == origin && unique == source, "{text:?}");
        assert_eq!(properties::get(&text, "DLQ_ATTEMPTS"), Some(attempts));
        assert_eq!(properties::get(&text, "DLQ_REASON"), Some(reason));
    }
    assert_eq!(peer.call(&send_back(&[("offset", &offset), ("maxReconsumeTimes", "17")])).await.code, 0);
    let (topic, queue_id, times, text) = last(&broker);
    assert_eq!((topic.as_str(), queue_id, times), ("SCHEDULE_TOPIC_XXXX", 17, 17));
    assert_eq!(properties::get(&text, "ORIGIN_MESSAGE_ID"), Some(id.as_str()));
}

#[tokio::test]
async fn an_invalid_send_back_is_refused_with_rocketmqs_codes() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let (offset, _) = sent_offset(&broker, &mut peer, &[]).await;
    let end = broker.store.admin().stats().max_physical_offset;
    for (changes, code) in [
        (&[("offset", offset.as_str()), ("group", "nobody")][..], 26),
        (&[("offset", "1")], 1),
        (&[("offset", "-1")], 29),
        (&[("group", "audit")], 29),
    ] {
        let answer = peer.call(&send_back(changes)).await;
        assert_eq!(answer.code, code, "{answer:?}");
    }
    assert_eq!(broker.store.admin().stats().max_physical_offset, end, "nothing was stored");
    let half = text(&[("TRAN_MSG", "true"), ("UNIQ_KEY", "7F")]);
    let (half, _) = sent_offset(&broker, &mut peer, &[("f", "4"), ("i", &half)]).await;
    assert_eq!(peer.call(&send_back(&[("offset", &half)])).await.code, 16, "it is not committed");
    let end = broker.store.admin().stats().max_physical_offset;
    let group = ferromq_transport::tables::GroupEntry { retry_queues: 0, ..grpc_support::GROUP };
    broker.server.tables().put_group("audit", group);
    assert_eq!(peer.call(&send_back(&[("offset", &offset)])).await.code, 0);
    assert_eq!(broker.store.admin().stats().max_physical_offset, end, "nothing was stored");
}

#[tokio::test]
async fn a_consumer_can_send_to_its_retry_topic_until_the_message_is_a_dead_letter() {
    let broker = Broker::start();
    let mut peer = connect(&broker).await;
    let given = text(&[("DELAY", "4"), ("UNIQ_KEY", "7F"), ("RETRY_TOPIC", "flights")]);
    for (times, most, wanted) in [
        ("1", "16", "SCHEDULE_TOPIC_XXXX"),
        ("16", "16", "SCHEDULE_TOPIC_XXXX"),
        ("17", "16", "%DLQ%audit"),
        ("17", "", "%DLQ%audit"),
    ] {
        let changes = [("b", "%RETRY%audit"), ("e", "-1"), ("i", &given), ("j", times), ("l", most)];
        let answer = peer.call(&request(SEND, "again", &changes)).await;
        assert_eq!(answer.code, 0, "{answer:?}");
        let (topic, _, stored_times, text) = last(&broker);
        assert_eq!((topic.as_str(), stored_times.to_string().as_str()), (wanted, times));
        let is_dead = wanted == "%DLQ%audit";
        assert_eq!(properties::get(&text, "DELAY"), Some(if is_dead { "-1" } else { "4" }));
        let names = ["DLQ_SOURCE_TOPIC", "DLQ_SOURCE_MESSAGE_ID", "DLQ_ATTEMPTS", "DLQ_REASON"];
        let wanted = ["flights", "7F", "17", "given back after its last delivery attempt"];
        assert_eq!(
            names.map(|name| properties::get(&text, name)),
            wanted.map(|value| is_dead.then_some(value))
        );
    }
    // A message without room for more properties is stored without the reason.
    let full = |len| text(&[("UNIQ_KEY", "7F"), ("RETRY_TOPIC", "flights"), ("k", &"x".repeat(len))]);
    peer.call(&request(SEND, "x", &[("i", &full(1))])).await;
    let full = full(32_767 - last(&broker).3.len() + 1);
    let changes = [("b", "%RETRY%audit"), ("e", "-1"), ("i", &full), ("j", "17"), ("l", "16")];
    let answer = peer.call(&request(SEND, "again", &changes)).await;
    let (topic, _, _, kept) = last(&broker);
    assert_eq!((answer.code, topic.as_str()), (0, "%DLQ%audit"), "{answer:?}");
    assert_eq!((kept.len(), properties::get(&kept, "DLQ_REASON")), (32_767, None));
    // Java's ordered consumer gives up a message: it becomes a dead letter while its group locks queues.
    let now = broker.clock.now_ms();
    broker.server.tables().put_locked("audit", Some(now));
    for wanted in ["%DLQ%audit", "SCHEDULE_TOPIC_XXXX"] {
        let changes = [("b", "%RETRY%audit"), ("e", "-1"), ("i", &given), ("j", "16"), ("l", "16")];
        let answer = peer.call(&request(SEND, "given up", &changes)).await;
        let (topic, _, _, text) = last(&broker);
        assert_eq!((answer.code, topic.as_str()), (0, wanted), "{answer:?}");
        let reason = (wanted == "%DLQ%audit").then_some("given up by its consumer");
        assert_eq!(properties::get(&text, "DLQ_REASON"), reason);
        broker.clock.advance(1);
    }
    // A committed transactional message can be sent back like any other.
    let given = text(&[("DELAY", "4"), ("TRAN_MSG", "true"), ("UNIQ_KEY", "7F")]);
    for (times, wanted) in [("1", "SCHEDULE_TOPIC_XXXX"), ("17", "%DLQ%audit")] {
        let changes =
            [("b", "%RETRY%audit"), ("e", "-1"), ("f", "4"), ("i", &given), ("j", times), ("l", "16")];
        let answer = peer.call(&request(SEND, "again", &changes)).await;
        assert_eq!((answer.code, last(&broker).0.as_str()), (0, wanted), "{answer:?}");
    }
    let answer = peer.call(&request(SEND, "x", &[("b", "%RETRY%nobody"), ("e", "0")])).await;
    assert_eq!(answer.code, 26);
}
