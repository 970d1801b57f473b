//! Pulls (11, 361) and commits (15) over remoting.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;
mod support;

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use bytes::Bytes;
use ferromq_store::{
    StoreConfig,
    read::{GetStatus, TransferLimits},
    record::{MessageView, NewMessage},
    time::Clock,
};
use ferromq_transport::{
    ServerOptions,
    remoting::{
        HeaderForm, RemotingCommand,
        codes::{request, response},
    },
    tables::{GroupEntry, TopicEntry, subscriptions::Subscription},
};
use grpc_support::{Broker, GROUP, TOPIC, eventually, store_config};
use support::Peer;
use tokio::{io::AsyncWriteExt, net::TcpStream};

/// Fields that override the defaults of a request.
type Given<'a> = &'a [(&'a str, &'a str)];

const COMMIT: i32 = 1;
const SUSPEND: i32 = 2;
const SUBSCRIPTION: i32 = 4;
const CLASS_FILTER: i32 = 8;

/// Topic `flights`, group `audit`, and `audit` subscribed to `flights`.
struct Rig {
    broker: Broker,
    address: SocketAddr,
}

impl Rig {
    fn start() -> Self {
        Self::of(Broker::start())
    }

    fn of(broker: Broker) -> Self {
        let address = broker.server.listen_remoting(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        broker.server.tables().subscriptions.put("audit", "flights", Subscription::new("TAG", "*", 5, false));
        Self { broker, address }
    }

    async fn connect(&self) -> Peer {
        Peer::of(TcpStream::connect(self.address).await.unwrap())
    }

    fn append(&self, queue_id: i32, tag: &str, body: &[u8]) {
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
            body,
            properties: properties.as_bytes(),
        };
        drop(self.broker.store.log().append(&[message]).unwrap());
    }

    /// Stores bodies `0..count` in queue 0 and waits until they can be read.
    async fn fill(&self, count: u64) {
        (0..count).for_each(|number| self.append(0, "a", number.to_string().as_bytes()));
        self.broker.readable(count).await;
    }
}

/// A pull of queue 0 from the beginning, with `fields` overridden.
fn pull_with(code: i32, fields: &[(&str, &str)]) -> RemotingCommand {
    let mut all: Vec<(String, String)> = [
        ("consumerGroup", "audit"),
        ("topic", "flights"),
        ("queueId", "0"),
        ("queueOffset", "0"),
        ("maxMsgNums", "32"),
        ("sysFlag", "0"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "20000"),
        ("subVersion", "5"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect();
    for (name, value) in fields {
        all.retain(|(known, _)| known != name);
        all.push(((*name).to_owned(), (*value).to_owned()));
    }
    RemotingCommand { opaque: 7, ..RemotingCommand::request(code, all, Bytes::new()) }
}

fn pull(fields: &[(&str, &str)]) -> RemotingCommand {
    pull_with(request::PULL_MESSAGE, fields)
}

fn bodies(answer: &RemotingCommand) -> Vec<String> {
    let (mut rest, mut bodies) = (&answer.body[..], Vec::new());
    while !rest.is_empty() {
        let size = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
        let view = MessageView::decode(&rest[..size], true).unwrap();
        bodies.push(String::from_utf8(view.body.to_vec()).unwrap());
        rest = &rest[size..];
    }
    bodies
}

/// Next offset, min offset, max offset.
fn offsets(answer: &RemotingCommand) -> (u64, u64, u64) {
    let field = |name| answer.field(name).expect(name).parse().unwrap();
    (field("nextBeginOffset"), field("minOffset"), field("maxOffset"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_returns_the_records_as_in_the_log() {
    let rig = Rig::start();
    rig.fill(5).await;
    let mut peer = rig.connect().await;
    for (code, form) in
        [(request::PULL_MESSAGE, HeaderForm::Json), (request::LITE_PULL_MESSAGE, HeaderForm::Binary)]
    {
        let asked = pull_with(code, &[("queueOffset", "1"), ("maxMsgNums", "3")]);
        let answer = peer.call(&RemotingCommand { header_form: form, ..asked }).await;
        assert_eq!((answer.code, answer.opaque, answer.header_form), (response::SUCCESS, 7, form));
        assert_eq!(answer.remark.as_deref(), Some("FOUND"));
        assert_eq!(offsets(&answer), (4, 0, 5));
        assert_eq!(answer.field("suggestWhichBrokerId"), Some("0"));
        assert_eq!(bodies(&answer), ["1", "2", "3"]);
        let stored = rig.broker.store.queues().get(
            "flights",
            0,
            1,
            3,
            usize::MAX,
            &ferromq_store::filter::MessageFilter::All,
        );
        let stored: Vec<u8> =
            stored.messages.iter().flat_map(|(_, record)| record.bytes().to_vec()).collect();
        assert_eq!(answer.body, stored);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_respects_the_byte_limit_but_returns_at_least_one_message() {
    let rig = Rig::start();
    rig.fill(3).await;
    let mut peer = rig.connect().await;
    let one = peer.call(&pull(&[("maxMsgBytes", "1")])).await;
    assert_eq!((bodies(&one).len(), offsets(&one).0), (1, 1));
    let two = (one.body.len() * 2).to_string();
    let two = peer.call(&pull(&[("maxMsgBytes", &two)])).await;
    assert_eq!(bodies(&two), ["0", "1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_outcome_has_rocketmqs_code_and_the_next_offset() {
    let rig = Rig::start();
    let mut peer = rig.connect().await;
    // The queue never had messages: an offset beyond its end is reported.
    let empty = peer.call(&pull(&[])).await;
    assert_eq!((empty.code, offsets(&empty)), (response::PULL_NOT_FOUND, (0, 0, 0)));
    let lost = peer.call(&pull(&[("queueOffset", "9"), ("sysFlag", "2")])).await;
    assert_eq!((lost.code, offsets(&lost).0), (response::PULL_OFFSET_MOVED, 0));
    rig.fill(5).await;
    for (offset, code, next) in [
        ("5", response::PULL_NOT_FOUND, 5),
        ("6", response::PULL_OFFSET_MOVED, 5),
        ("-1", response::PULL_OFFSET_MOVED, 0),
        ("4", response::SUCCESS, 5),
    ] {
        let answer = peer.call(&pull(&[("queueOffset", offset)])).await;
        assert_eq!((answer.code, offsets(&answer)), (code, (next, 0, 5)), "{offset}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_do_not_match_the_filter_are_skipped() {
    let rig = Rig::start();
    for (tag, body) in [("a", "0"), ("b", "1"), ("c", "2"), ("a", "3"), ("c", "4")] {
        rig.append(0, tag, body.as_bytes());
    }
    rig.broker.readable(5).await;
    let mut peer = rig.connect().await;
    let own = [("sysFlag", "4"), ("subscription", "a || b"), ("expressionType", "TAG")];
    let answer = peer.call(&pull(&own)).await;
    assert_eq!((bodies(&answer), offsets(&answer).0), (vec!["0".into(), "1".into(), "3".into()], 5));
    let subscriptions = &rig.broker.server.tables().subscriptions;
    subscriptions.put("audit", "flights", Subscription::new("TAG", "c", 5, false));
    assert_eq!(bodies(&peer.call(&pull(&[])).await), ["2", "4"]);
    subscriptions.put("audit", "flights", Subscription::new("TAG", "none", 5, false));
    let none = peer.call(&pull(&[])).await;
    assert_eq!((none.code, offsets(&none)), (response::PULL_NOT_FOUND, (5, 0, 5)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_pull_is_answered_when_a_message_arrives() {
    let rig = Rig::start();
    let (mut waiting, mut other) = (rig.connect().await, rig.connect().await);
    waiting.send(&pull(&[("sysFlag", &SUSPEND.to_string())])).await;
    rig.broker.until("parked", 1).await;
    // A message in another queue does not wake it.
    rig.append(1, "a", b"elsewhere");
    rig.broker.readable(1).await;
    let elsewhere = other.call(&pull(&[("queueId", "1")])).await;
    assert_eq!(bodies(&elsewhere), ["elsewhere"]);
    assert_eq!(rig.broker.stat("parked"), 1);
    rig.append(0, "a", b"here");
    let answer = waiting.receive().await.unwrap();
    assert_eq!((answer.code, bodies(&answer)), (response::SUCCESS, vec!["here".to_owned()]));
    rig.broker.until("parked", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_pull_without_messages_ends_with_not_found() {
    let rig = Rig::start();
    let mut peer = rig.connect().await;
    let answer = peer.call(&pull(&[("sysFlag", "2"), ("suspendTimeoutMillis", "30")])).await;
    assert_eq!((answer.code, offsets(&answer)), (response::PULL_NOT_FOUND, (0, 0, 0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_pull_ends_with_its_connection_or_its_server() {
    let rig = Rig::start();
    let (mut leaving, mut staying) = (rig.connect().await, rig.connect().await);
    for peer in [&mut leaving, &mut staying] {
        peer.send(&pull(&[("sysFlag", "2"), ("suspendTimeoutMillis", "3600000")])).await;
    }
    rig.broker.until("parked", 2).await;
    drop(leaving);
    rig.broker.until("parked", 1).await;
    rig.broker.server.stop(Duration::from_secs(3_600)).await;
    let answer = staying.receive().await.unwrap();
    assert_eq!(answer.code, response::PULL_NOT_FOUND);
    assert_eq!(staying.receive().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_closed_its_write_half_still_gets_its_responses() {
    let rig = Rig::start();
    let mut peer = rig.connect().await;
    peer.send(&pull(&[("sysFlag", "2"), ("suspendTimeoutMillis", "3600000")])).await;
    rig.broker.until("parked", 1).await;
    let quick = 8..40;
    for opaque in quick.clone() {
        peer.send(&RemotingCommand { opaque, ..pull(&[("queueId", "1")]) }).await;
    }
    peer.stream.shutdown().await.unwrap();
    let mut answered = Vec::new();
    while let Some(answer) = peer.receive().await {
        assert_eq!(answer.code, response::PULL_NOT_FOUND);
        answered.push(answer.opaque);
    }
    answered.sort_unstable();
    // The suspended pull is answered, too.
    assert_eq!(answered, [7].into_iter().chain(quick).collect::<Vec<_>>());
    rig.broker.until("parked", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_commits_an_offset_only_with_the_commit_flag() {
    let rig = Rig::start();
    rig.fill(5).await;
    let committed = || rig.broker.store.groups().committed_offset("audit", "flights", 0);
    let mut peer = rig.connect().await;
    let told = [("commitOffset", "3"), ("queueOffset", "5")];
    peer.call(&pull(&told)).await;
    assert_eq!(committed(), None);
    let flagged = [told[0], told[1], ("sysFlag", "1")];
    assert_eq!(peer.call(&pull(&flagged)).await.code, response::PULL_NOT_FOUND);
    assert_eq!(committed(), Some(3));
    // Also while the pull waits.
    let sys_flag = (COMMIT | SUSPEND).to_string();
    peer.send(&pull(&[("commitOffset", "4"), ("queueOffset", "5"), ("sysFlag", &sys_flag)])).await;
    rig.broker.until("parked", 1).await;
    assert_eq!(committed(), Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_reported_to_the_member_and_its_late_commits_are_ignored() {
    let rig = Rig::start();
    rig.fill(5).await;
    let committed = || rig.broker.store.groups().committed_offset("audit", "flights", 0);
    let mut peer = rig.connect().await;
    rig.broker.server.tables().resets.put("audit", "flights", 0, 2);
    rig.broker.store.groups().commit_offset("audit", "flights", 0, 2).unwrap();
    assert_eq!(peer.call(&commit("audit", "flights", "0", "5")).await.code, response::SUCCESS);
    assert_eq!(committed(), Some(2));
    let told = peer.call(&pull(&[("queueOffset", "5"), ("sysFlag", "3"), ("commitOffset", "5")])).await;
    assert_eq!((told.code, offsets(&told)), (response::PULL_OFFSET_MOVED, (2, 0, 5)));
    assert_eq!(committed(), Some(2));
    // The reset is reported once. Afterwards, pulls and commits work as usual.
    assert_eq!(bodies(&peer.call(&pull(&[("queueOffset", "2")])).await), ["2", "3", "4"]);
    peer.call(&commit("audit", "flights", "0", "4")).await;
    assert_eq!(committed(), Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_reported_to_a_parked_pull_at_once() {
    let rig = Rig::start();
    rig.fill(5).await;
    let mut peer = rig.connect().await;
    let hot = rig.broker.server.hot().unwrap();
    let (flags, long) = ("2", "600000");
    let waiting = pull(&[("queueOffset", "5"), ("sysFlag", flags), ("suspendTimeoutMillis", long)]);
    let reset = async {
        rig.broker.until("parked", 1).await;
        hot.put_reset("audit", "flights", 0, 2);
    };
    let (told, ()) = tokio::join!(peer.call(&waiting), reset);
    assert_eq!((told.code, offsets(&told)), (response::PULL_OFFSET_MOVED, (2, 0, 5)));
    assert_eq!(told.remark.as_deref(), Some("OFFSET_RESET"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_pull_is_refused_with_the_reason() {
    let rig = Rig::start();
    rig.fill(1).await;
    let tables = rig.broker.server.tables();
    tables.put_topic("secret", TopicEntry { permission: 2, ..TOPIC });
    tables.put_group("closed", GroupEntry { enabled: false, ..GROUP });
    tables.put_group("apart", GroupEntry { broadcast: false, ..GROUP });
    tables.subscriptions.put("apart", "flights", Subscription::new("TAG", "*", 5, true));
    tables.put_group("other", GROUP);
    tables.subscriptions.put("other", "flights", Subscription::new("XPATH", "a > 1", 5, false));
    let mut peer = rig.connect().await;
    let class_filter = CLASS_FILTER.to_string();
    let own = SUBSCRIPTION.to_string();
    let cases: &[(Given<'_>, i32, &str, Option<&str>)] = &[
        (&[("topic", "missing")], response::TOPIC_NOT_EXIST, "missing", None),
        (&[("consumerGroup", "missing")], response::SUBSCRIPTION_GROUP_NOT_EXIST, "missing", None),
        (&[("consumerGroup", "closed")], response::NO_PERMISSION, "closed", Some("2")),
        (&[("topic", "secret")], response::NO_PERMISSION, "secret", Some("3")),
        (&[("consumerGroup", "apart")], response::NO_PERMISSION, "broadcast", Some("4")),
        (&[("queueId", "4")], response::INVALID_PARAMETER, "queueId[4] is illegal", None),
        (&[("queueId", "-1")], response::INVALID_PARAMETER, "queueId", None),
        (&[("consumerGroup", "auto-new")], response::SUBSCRIPTION_NOT_EXIST, "auto-new", None),
        (&[("subVersion", "6")], response::SUBSCRIPTION_NOT_LATEST, "not latest", None),
        (&[("sysFlag", &class_filter)], response::SYSTEM_ERROR, "filter classes", None),
        (&[("consumerGroup", "other")], response::FILTER_DATA_NOT_EXIST, "XPATH", None),
        (
            &[("sysFlag", &own), ("subscription", "a > 1"), ("expressionType", "XPATH")],
            response::SUBSCRIPTION_PARSE_FAILED,
            "XPATH",
            None,
        ),
        (&[("queueOffset", "x")], response::INVALID_PARAMETER, "queueOffset", None),
    ];
    for (fields, code, why, forbidden) in cases {
        let answer = peer.call(&pull(fields)).await;
        assert_eq!(answer.code, *code, "{fields:?}: {answer:?}");
        assert!(answer.remark.as_deref().unwrap().contains(why), "{fields:?}: {answer:?}");
        assert_eq!(answer.field("forbiddenType"), *forbidden, "{fields:?}");
        assert!(answer.body.is_empty());
    }
}

fn commit(group: &str, topic: &str, queue_id: &str, offset: &str) -> RemotingCommand {
    let fields =
        [("consumerGroup", group), ("topic", topic), ("queueId", queue_id), ("commitOffset", offset)];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    RemotingCommand::request(request::UPDATE_CONSUMER_OFFSET, fields, Bytes::new())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_sets_the_committed_offset() {
    let rig = Rig::start();
    rig.fill(5).await;
    let mut peer = rig.connect().await;
    for (offset, committed) in [("3", 3), ("1", 1), ("99", 5)] {
        assert_eq!(peer.call(&commit("audit", "flights", "0", offset)).await.code, response::SUCCESS);
        assert_eq!(rig.broker.store.groups().committed_offset("audit", "flights", 0), Some(committed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_with_an_unknown_name_creates_nothing() {
    let rig = Rig::start();
    let mut peer = rig.connect().await;
    for (group, topic, queue_id, offset, code) in [
        ("auto-new", "flights", "0", "1", response::SUBSCRIPTION_GROUP_NOT_EXIST),
        ("audit", "auto-new", "0", "1", response::TOPIC_NOT_EXIST),
        ("audit", "flights", "4", "1", response::INVALID_PARAMETER),
        ("audit", "flights", "0", "-1", response::INVALID_PARAMETER),
        ("audit", "flights", "0", "", response::INVALID_PARAMETER),
    ] {
        let answer = peer.call(&commit(group, topic, queue_id, offset)).await;
        assert_eq!(answer.code, code, "{group} {topic} {queue_id} {offset}");
    }
    let tables = rig.broker.server.tables();
    assert!(tables.group("auto-new").is_none() && tables.topic("auto-new").is_none());
    assert_eq!(rig.broker.store.groups().committed_offset("audit", "flights", 4), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_of_an_unreadable_message_waits_and_is_answered_once_it_is_readable() {
    let config = StoreConfig { commit_log_file_size: 64 << 10, mapped_bytes: 0, ..store_config() };
    let clock = Clock::manual(1_700_000_000_000);
    let rig = Rig::of(Broker::start_on(clock, true, ServerOptions::default(), config));
    (0..300).for_each(|_| rig.append(0, "a", &[b'x'; 1_000]));
    rig.broker.readable(300).await;
    let read = |offset| {
        rig.broker
            .store
            .queues()
            .get("flights", 0, offset, 1, usize::MAX, &ferromq_store::filter::MessageFilter::All)
            .status
    };
    // The first file of the log is unmapped once the later ones are flushed.
    eventually(|| {
        rig.broker.store.admin().stats().flushed_offset
            == rig.broker.store.admin().stats().max_physical_offset
    })
    .await;
    assert!((0..300).all(|offset| read(offset) == GetStatus::Found));
    let file = rig.broker.directory().join("commitlog").join(format!("{:020}", 0));
    let whole = std::fs::read(&file).unwrap();
    std::fs::File::options().write(true).open(&file).unwrap().set_len(100).unwrap();
    assert_eq!(read(0), GetStatus::MessageUnreadable);
    let mut peer = rig.connect().await;
    // A pull that does not wait is answered as at the end of the queue, so that the client does not retry at once.
    let now = peer.call(&pull(&[])).await;
    assert_eq!((now.code, offsets(&now).0), (response::PULL_NOT_FOUND, 0));
    assert_eq!(now.remark.as_deref(), Some("MESSAGE_UNREADABLE"));
    let (mut second, waiting) = (rig.connect().await, pull(&[("sysFlag", "2"), ("maxMsgNums", "1")]));
    second.send(&waiting).await;
    rig.broker.until("parked", 1).await;
    // A later message does not wake it.
    rig.append(0, "a", b"later");
    rig.broker.readable(301).await;
    let short = pull(&[("sysFlag", "2"), ("suspendTimeoutMillis", "1")]);
    assert_eq!(peer.call(&short).await.code, response::PULL_NOT_FOUND);
    assert_eq!(rig.broker.stat("parked"), 1);
    std::fs::write(&file, &whole).unwrap();
    let answer = second.receive().await.unwrap();
    assert_eq!((answer.code, offsets(&answer).0), (response::SUCCESS, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_respects_the_transfer_limits_unless_it_asks_for_large_answers() {
    let rig = Rig::start();
    rig.fill(100).await;
    let limits = TransferLimits {
        near_count: 32,
        near_bytes: 256 << 10,
        far_count: 8,
        far_bytes: 64 << 10,
        near_span: u64::MAX,
        scan_entries: 800,
    };
    let hot = rig.broker.server.hot().unwrap();
    hot.set_transfer_limits(limits);
    let mut peer = rig.connect().await;
    let mut read = async |fields: Given<'_>| {
        let answer = peer.call(&pull(&[&[("maxMsgNums", "1000")], fields].concat())).await;
        assert_eq!(answer.code, response::SUCCESS);
        (bodies(&answer).len(), offsets(&answer).0)
    };
    assert_eq!(read(&[]).await, (32, 32));
    assert_eq!(read(&[("queueOffset", "32")]).await, (32, 64));
    assert_eq!(read(&[("queueOffset", "96")]).await, (4, 100));
    assert_eq!(read(&[("ferromqLarge", "true")]).await, (100, 100));
    // Far from the end of the log, and then near it.
    hot.set_transfer_limits(TransferLimits { near_span: 0, ..limits });
    assert_eq!(read(&[]).await, (8, 8));
    assert_eq!(read(&[("maxMsgNums", "5")]).await, (5, 5));
    hot.set_transfer_limits(TransferLimits { near_bytes: 1, ..limits });
    assert_eq!(read(&[]).await, (1, 1));
}
