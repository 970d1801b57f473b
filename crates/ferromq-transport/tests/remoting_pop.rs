//! Pop requests and their acknowledgements over remoting.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;
mod support;

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use bytes::Bytes;
use ferromq_store::{
    record::{MessageView, NewMessage},
    time::Clock,
};
use ferromq_transport::{
    ServerOptions,
    remoting::{
        RemotingCommand,
        codes::{request, response},
    },
    tables::{GroupEntry, TopicEntry},
};
use grpc_support::{Broker, GROUP, TOPIC, proto};
use support::Peer;
use tokio::net::TcpStream;

/// Fields that override the defaults of a request.
type Given<'a> = &'a [(&'a str, &'a str)];

struct Rig {
    broker: Broker,
    address: SocketAddr,
}

/// A popped message, as Java's client reads it.
#[derive(Debug, Clone)]
struct Popped {
    body: String,
    reconsume_times: i32,
    queue_id: i32,
    queue_offset: u64,
    /// Java's `POP_CK`.
    handle: String,
}

impl Rig {
    fn start() -> Self {
        let broker = Broker::start();
        let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        Self { broker, address }
    }

    async fn connect(&self) -> Peer {
        Peer::of(TcpStream::connect(self.address).await.unwrap())
    }

    fn append(&self, queue_id: i32, tag: &str, body: &str) {
        let properties = format!("TAGS\x01{tag}\x02");
        let message = NewMessage {
            topic: "flights",
            queue_id,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: SocketAddr::from(([127, 0, 0, 1], 1)),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: body.as_bytes(),
            properties: properties.as_bytes(),
        };
        drop(self.broker.store.log().append(&[message]).unwrap());
    }

    /// Stores bodies `0..count`, spread over the 4 queues, and waits until they can be read.
    async fn fill(&self, count: i32) {
        (0..count).for_each(|number| self.append(number % 4, "a", &number.to_string()));
        self.broker.readable(count as u64).await;
    }
}

fn ask(code: i32, fields: &[(&str, &str)]) -> RemotingCommand {
    let mut all = vec![("consumerGroup", "audit"), ("topic", "flights"), ("queueId", "-1")];
    if code == request::POP_MESSAGE {
        all.extend([
            ("maxMsgNums", "32"),
            ("invisibleTime", "60000"),
            ("pollTime", "0"),
            ("bornTime", "1"),
            ("initMode", "0"),
            ("expType", "TAG"),
            ("exp", "*"),
            ("order", "false"),
        ]);
    }
    for (name, value) in fields {
        all.retain(|(known, _)| known != name);
        all.push((name, value));
    }
    let all: Vec<(String, String)> = all.into_iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    RemotingCommand { opaque: 7, ..RemotingCommand::request(code, all, Bytes::new()) }
}

fn pop(fields: &[(&str, &str)]) -> RemotingCommand {
    ask(request::POP_MESSAGE, fields)
}

/// Reads a pop's response as Java's client does, which builds the handle of each message.
fn messages(answer: &RemotingCommand) -> Vec<Popped> {
    let field = |name| answer.field(name).expect(name).to_owned();
    let entries = |text: String| -> Vec<Vec<String>> {
        let entries = text.split(';').filter(|entry| !entry.is_empty());
        entries.map(|entry| entry.split(' ').map(str::to_owned).collect()).collect()
    };
    let (starts, listed) = (entries(field("startOffsetInfo")), entries(field("msgOffsetInfo")));
    let mut seen = std::collections::HashMap::<i32, usize>::new();
    let (mut rest, mut popped) = (&answer.body[..], Vec::new());
    while !rest.is_empty() {
        let size = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
        let view = MessageView::decode(&rest[..size], true).unwrap();
        let is_queue = |entry: &&Vec<String>| entry[0] == "0" && entry[1] == view.queue_id.to_string();
        let index = seen.entry(view.queue_id).or_default();
        let offset = listed.iter().find(is_queue).unwrap()[2].split(',').nth(*index).unwrap().to_owned();
        *index += 1;
        assert_eq!(offset, view.queue_offset.to_string());
        let start = &starts.iter().find(is_queue).unwrap()[2];
        let handle = format!(
            "{start} {} {} {} 0 broker-a {} {offset}",
            field("popTime"),
            field("invisibleTime"),
            field("reviveQid"),
            view.queue_id
        );
        popped.push(Popped {
            body: String::from_utf8(view.body.to_vec()).unwrap(),
            reconsume_times: view.reconsume_times,
            queue_id: view.queue_id,
            queue_offset: view.queue_offset,
            handle,
        });
        rest = &rest[size..];
    }
    popped
}

/// A request to acknowledge or change a message by its handle.
fn by_handle(code: i32, popped: &Popped, more: &[(&str, &str)]) -> RemotingCommand {
    let (queue, offset) = (popped.queue_id.to_string(), popped.queue_offset.to_string());
    let mut fields = vec![("queueId", &queue[..]), ("offset", &offset), ("extraInfo", &popped.handle)];
    fields.extend_from_slice(more);
    ask(code, &fields)
}

fn bodies(popped: &[Popped]) -> Vec<&str> {
    let mut bodies: Vec<_> = popped.iter().map(|popped| &popped.body[..]).collect();
    bodies.sort_unstable();
    bodies
}

#[tokio::test(flavor = "multi_thread")]
async fn popped_messages_are_acknowledged_by_the_handle_that_the_client_builds() {
    let rig = Rig::start();
    rig.fill(6).await;
    let mut peer = rig.connect().await;
    let answer = peer.call(&pop(&[("maxMsgNums", "5")])).await;
    assert_eq!((answer.code, answer.remark.as_deref()), (response::SUCCESS, Some("FOUND")));
    let first = messages(&answer);
    assert_eq!((first.len(), answer.field("restNum")), (5, Some("1")));
    assert_eq!(answer.field("invisibleTime"), Some("60000"));
    let rest = messages(&peer.call(&pop(&[])).await);
    let all: Vec<Popped> = first.into_iter().chain(rest).collect();
    assert_eq!(bodies(&all), ["0", "1", "2", "3", "4", "5"]);
    for popped in &all {
        for _ in 0..2 {
            let done = peer.call(&by_handle(request::ACK_MESSAGE, popped, &[])).await;
            assert_eq!(done.code, response::SUCCESS, "{done:?}");
        }
    }
    rig.broker.clock.advance(3_600_000);
    let late = peer.call(&by_handle(request::ACK_MESSAGE, &all[0], &[])).await;
    assert_eq!(late.code, response::NO_MESSAGE, "{late:?}");
    let nothing = peer.call(&pop(&[])).await;
    assert_eq!(nothing.code, response::POLLING_TIMEOUT);
    assert_eq!((nothing.field("restNum"), nothing.field("msgOffsetInfo")), (Some("0"), Some("")));
    let committed = |queue| rig.broker.store.groups().committed_offset("audit", "flights", queue);
    assert_eq!(
        [committed(0), committed(1), committed(2), committed(3)],
        [Some(2), Some(2), Some(1), Some(1)]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unacknowledged_message_is_redelivered_with_increased_reconsume_times() {
    let rig = Rig::start();
    rig.fill(3).await;
    let mut peer = rig.connect().await;
    let first = messages(&peer.call(&pop(&[("invisibleTime", "10000")])).await);
    assert_eq!(first.len(), 3);
    assert_eq!(peer.call(&pop(&[])).await.code, response::POLLING_TIMEOUT);
    for times in 1..3 {
        rig.broker.clock.advance(10_000);
        let again = messages(&peer.call(&pop(&[("invisibleTime", "10000")])).await);
        assert_eq!(bodies(&again), ["0", "1", "2"]);
        assert!(again.iter().all(|popped| popped.reconsume_times == times), "{again:?}");
    }
    // The first handle is stale by now.
    let stale = peer.call(&by_handle(request::ACK_MESSAGE, &first[0], &[])).await;
    assert_eq!(stale.code, response::NO_MESSAGE);
    assert!(stale.remark.unwrap().contains("the lease has ended"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_invisible_duration_changes_the_redelivery_time_and_the_handle() {
    let rig = Rig::start();
    rig.fill(1).await;
    let mut peer = rig.connect().await;
    let popped = messages(&peer.call(&pop(&[])).await).remove(0);
    let change = by_handle(request::CHANGE_MESSAGE_INVISIBLETIME, &popped, &[("invisibleTime", "500")]);
    let answer = peer.call(&change).await;
    assert_eq!((answer.code, answer.field("invisibleTime")), (response::SUCCESS, Some("500")));
    assert_eq!(peer.call(&change).await.code, response::NO_MESSAGE);
    let old = peer.call(&by_handle(request::ACK_MESSAGE, &popped, &[])).await;
    assert_eq!(old.code, response::NO_MESSAGE);
    rig.broker.clock.advance(500);
    let again = messages(&peer.call(&pop(&[])).await).remove(0);
    assert_eq!(again.reconsume_times, 1);
    let change = by_handle(request::CHANGE_MESSAGE_INVISIBLETIME, &again, &[("invisibleTime", "60000")]);
    let answer = peer.call(&change).await;
    let handle = format!("0 {} 60000 0 0 broker-a 0 0", answer.field("popTime").unwrap());
    let renewed = Popped { handle, ..again };
    assert_eq!(peer.call(&by_handle(request::ACK_MESSAGE, &renewed, &[])).await.code, response::SUCCESS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_delivery_does_not_count_as_an_attempt() {
    let rig = Rig::start();
    rig.fill(1).await;
    let mut peer = rig.connect().await;
    for (suspend, times) in [("true", 0), ("false", 0), ("true", 1)] {
        let popped = messages(&peer.call(&pop(&[])).await).remove(0);
        assert_eq!(popped.reconsume_times, times);
        let fields = [("invisibleTime", "500"), ("suspend", suspend)];
        let change = by_handle(request::CHANGE_MESSAGE_INVISIBLETIME, &popped, &fields);
        assert_eq!(peer.call(&change).await.code, response::SUCCESS);
        rig.broker.clock.advance(500);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_acknowledged_by_one_request() {
    let rig = Rig::start();
    (0..10).for_each(|number| rig.append(0, "a", &number.to_string()));
    rig.broker.readable(10).await;
    let mut peer = rig.connect().await;
    let popped = messages(&peer.call(&pop(&[])).await);
    let pop_time = popped[0].handle.split(' ').nth(1).unwrap();
    // Bits 0 to 3 and 5 to 9, little-endian.
    let body = |bits: &str| {
        let ack = format!(
            r#"{{"b":"{bits}","c":"audit","it":60000,"pt":{pop_time},"q":0,"r":"0","rq":0,"so":0,"t":"flights"}}"#
        );
        let body = format!(r#"{{"acks":[{ack}],"brokerName":"broker-a"}}"#);
        RemotingCommand::request(request::BATCH_ACK_MESSAGE, Vec::<(String, String)>::new(), body.into())
    };
    for _ in 0..2 {
        assert_eq!(peer.call(&body("7wM=")).await.code, response::SUCCESS);
    }
    rig.broker.clock.advance(60_000);
    let again = peer.call(&body("/wM=")).await;
    assert_eq!(again.code, response::NO_MESSAGE);
    assert!(again.remark.unwrap().starts_with("9 of 10"));
    assert_eq!(rig.broker.store.groups().committed_offset("audit", "flights", 0), Some(10));
    for (bad, code) in [("", response::INVALID_PARAMETER), ("{}", response::NO_MESSAGE)] {
        let bad = RemotingCommand { body: Bytes::from(bad), ..body("") };
        assert_eq!(peer.call(&bad).await.code, code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_waits_for_a_message_in_its_queues() {
    let rig = Rig::start();
    let (mut any, mut one) = (rig.connect().await, rig.connect().await);
    any.send(&pop(&[("pollTime", "3600000")])).await;
    rig.broker.until("parked", 1).await;
    rig.append(2, "a", "wanted");
    assert_eq!(bodies(&messages(&any.receive().await.unwrap())), ["wanted"]);
    one.send(&pop(&[("queueId", "3"), ("pollTime", "3600000")])).await;
    rig.broker.until("parked", 1).await;
    let polling = |queue| ask(request::POLLING_INFO, &[("queueId", queue)]);
    for (queue, waiting) in [("3", "1"), ("2", "0"), ("-1", "0")] {
        assert_eq!(any.call(&polling(queue)).await.field("pollingNum"), Some(waiting), "{queue}");
    }
    rig.append(2, "a", "not for it");
    assert_eq!(bodies(&messages(&any.call(&pop(&[("pollTime", "3600000")])).await)), ["not for it"]);
    assert_eq!(rig.broker.stat("parked"), 1);
    rig.append(3, "a", "for it");
    assert_eq!(bodies(&messages(&one.receive().await.unwrap())), ["for it"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_lease_wakes_a_pop() {
    let rig = Rig::start();
    rig.fill(1).await;
    let mut peer = rig.connect().await;
    assert_eq!(messages(&peer.call(&pop(&[])).await).len(), 1);
    peer.send(&pop(&[("queueId", "0"), ("pollTime", "3600000")])).await;
    rig.broker.until("parked", 1).await;
    rig.broker.clock.advance(60_000);
    assert_eq!(messages(&peer.receive().await.unwrap())[0].reconsume_times, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_pop_whose_connection_closes_leases_nothing() {
    let rig = Rig::start();
    let mut leaving = rig.connect().await;
    leaving.send(&pop(&[("pollTime", "3600000")])).await;
    rig.broker.until("parked", 1).await;
    drop(leaving);
    rig.broker.until("parked", 0).await;
    rig.fill(1).await;
    assert_eq!(messages(&rig.connect().await.call(&pop(&[])).await).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_filters_by_tag_and_a_new_group_begins_by_its_init_mode() {
    let rig = Rig::start();
    for (tag, body) in [("a", "0"), ("b", "1"), ("c", "2")] {
        rig.append(0, tag, body);
    }
    rig.broker.readable(3).await;
    let mut peer = rig.connect().await;
    let some = messages(&peer.call(&pop(&[("exp", "a || c")])).await);
    assert_eq!(bodies(&some), ["0", "2"]);
    // A queue that still has all its messages is read from the first one in either mode.
    let late = messages(&peer.call(&pop(&[("consumerGroup", "auto-late"), ("initMode", "1")])).await);
    assert_eq!(bodies(&late), ["0", "1", "2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peek_returns_unreceived_messages_and_leases_nothing() {
    let rig = Rig::start();
    rig.fill(6).await;
    let mut peer = rig.connect().await;
    let peek = ask(request::PEEK_MESSAGE, &[("maxMsgNums", "4")]);
    for _ in 0..2 {
        let answer = peer.call(&peek).await;
        assert_eq!((answer.code, answer.field("restNum")), (response::SUCCESS, Some("6")));
        assert_eq!(answer.field("popTime"), Some("0"));
    }
    assert_eq!(messages(&peer.call(&pop(&[])).await).len(), 6);
    let nothing = peer.call(&peek).await;
    assert_eq!((nothing.code, nothing.body.len()), (response::PULL_NOT_FOUND, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_reports_a_message_and_receives_none() {
    let rig = Rig::start();
    let (mut peer, mut other) = (rig.connect().await, rig.connect().await);
    let notify = |poll: &str| ask(request::NOTIFICATION, &[("pollTime", poll), ("bornTime", "1")]);
    let none = peer.call(&notify("1")).await;
    assert_eq!((none.code, none.field("hasMsg")), (response::SUCCESS, Some("false")));
    assert_eq!(none.field("pollingFull"), Some("false"));
    peer.send(&notify("3600000")).await;
    other.send(&pop(&[("pollTime", "3600000")])).await;
    rig.broker.until("parked", 2).await;
    // Whichever is woken first, the pop gets the message.
    rig.append(1, "a", "x");
    assert_eq!(bodies(&messages(&other.receive().await.unwrap())), ["x"]);
    rig.append(1, "a", "y");
    // The notification may already have been sent for the first message.
    rig.broker.readable(2).await;
    assert_eq!(peer.receive().await.unwrap().field("hasMsg"), Some("true"));
    assert_eq!(bodies(&messages(&other.call(&pop(&[])).await)), ["y"]);
    // A message with an expired lease can be popped.
    rig.broker.clock.advance(60_000);
    assert_eq!(peer.call(&notify("0")).await.field("hasMsg"), Some("true"));
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_and_remoting_consumers_of_a_group_share_its_messages() {
    let rig = Rig::start();
    rig.fill(2).await;
    let (grpc, mut peer) = (rig.broker.client().await, rig.connect().await);
    let popped = messages(&peer.call(&pop(&[("maxMsgNums", "1")])).await).remove(0);
    let request = proto::receive(Duration::ZERO);
    let (_, received) = grpc.receive(&request).await;
    assert_eq!(received.len(), 1);
    // An acknowledgement over either protocol finishes a message for both.
    assert_eq!(peer.call(&by_handle(request::ACK_MESSAGE, &popped, &[])).await.code, response::SUCCESS);
    rig.broker.clock.advance(3_600_000);
    let again = messages(&peer.call(&pop(&[])).await);
    assert_eq!((again.len(), again[0].reconsume_times), (1, 1));
    assert_eq!(again[0].body.as_bytes(), &received[0].body[..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_pop_is_refused_with_the_reason() {
    let rig = Rig::start();
    rig.fill(1).await;
    let tables = rig.broker.server.tables();
    tables.put_topic("secret", TopicEntry { permission: 2, ..TOPIC });
    tables.put_group("closed", GroupEntry { enabled: false, ..GROUP });
    let mut peer = rig.connect().await;
    let cases: &[(Given<'_>, i32, &str)] = &[
        (&[("topic", "auto-missing")], response::TOPIC_NOT_EXIST, "auto-missing"),
        (&[("consumerGroup", "missing")], response::SUBSCRIPTION_GROUP_NOT_EXIST, "missing"),
        (&[("consumerGroup", "closed")], response::NO_PERMISSION, "closed"),
        (&[("topic", "secret")], response::NO_PERMISSION, "secret"),
        (&[("queueId", "4")], response::INVALID_PARAMETER, "queueId[4]"),
        (&[("maxMsgNums", "33")], response::INVALID_PARAMETER, "1 to 32"),
        (&[("maxMsgNums", "0")], response::INVALID_PARAMETER, "1 to 32"),
        (&[("invisibleTime", "0")], response::INVALID_PARAMETER, "invisibleTime"),
        (&[("initMode", "2")], response::INVALID_PARAMETER, "initMode"),
        (&[("order", "true"), ("attemptId", &"x".repeat(257))], response::INVALID_PARAMETER, "attemptId"),
        (&[("expType", "XPATH"), ("exp", "a > 1")], response::SUBSCRIPTION_PARSE_FAILED, "XPATH"),
    ];
    for (fields, code, why) in cases {
        let answer = peer.call(&pop(fields)).await;
        assert_eq!(answer.code, *code, "{fields:?}: {answer:?}");
        assert!(answer.remark.as_deref().unwrap().contains(why), "{fields:?}: {answer:?}");
    }
    assert!(tables.topic("auto-missing").is_none());
    let popped = messages(&peer.call(&pop(&[])).await).remove(0);
    let cases: &[(&[(&str, &str)], i32)] = &[
        (&[("topic", "missing")], response::TOPIC_NOT_EXIST),
        (&[("queueId", "4")], response::MESSAGE_ILLEGAL),
        (&[("offset", "-1")], response::NO_MESSAGE),
        (&[("offset", "9")], response::NO_MESSAGE),
        (&[("extraInfo", "0 x")], response::INVALID_PARAMETER),
        (&[("extraInfo", "0 1 60000 999 0 broker-a 0 0")], response::NO_MESSAGE),
    ];
    for (fields, code) in cases {
        for verb in [request::ACK_MESSAGE, request::CHANGE_MESSAGE_INVISIBLETIME] {
            let mut fields = fields.to_vec();
            fields.push(("invisibleTime", "1"));
            assert_eq!(peer.call(&by_handle(verb, &popped, &fields)).await.code, *code, "{fields:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_way_requests_do_not_wait_and_lease_nothing() {
    let options = ServerOptions { one_way: 4, ..ServerOptions::default() };
    let broker = Broker::start_limited(Clock::manual(1_700_000_000_000), true, options);
    let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let rig = Rig { broker, address };
    let (mut greedy, mut neighbour) = (rig.connect().await, rig.connect().await);
    let one_way = |code| {
        let mut asked = ask(code, &[("pollTime", "60000"), ("bornTime", "1")]);
        asked.set_one_way();
        asked
    };
    let waiting = ask(request::POLLING_INFO, &[]);
    for code in [request::NOTIFICATION, request::POP_MESSAGE] {
        for _ in 0..4 {
            greedy.send(&one_way(code)).await;
        }
        neighbour.send(&one_way(code)).await;
        assert_eq!(greedy.call(&waiting).await.field("pollingNum"), Some("0"));
        assert_eq!(neighbour.call(&waiting).await.field("pollingNum"), Some("0"));
    }
    rig.fill(1).await;
    greedy.send(&one_way(request::POP_MESSAGE)).await;
    assert_eq!(messages(&greedy.call(&pop(&[])).await).len(), 1);
}
