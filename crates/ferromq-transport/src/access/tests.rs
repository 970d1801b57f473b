use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::{
    protobuf::put_bytes_field,
    remoting::{Fields, codes::request, verbs},
    tables::{GroupEntry, MessageType, TopicEntry},
};

const HERE: &str = "10.1.2.3:5000";
const TOPIC: TopicEntry =
    TopicEntry { read_queues: 1, write_queues: 1, permission: 6, message_type: MessageType::Normal };
const GROUP: GroupEntry = GroupEntry {
    enabled: true,
    max_attempts: 16,
    from_beginning: true,
    broadcast: false,
    retry_queues: 1,
    ordered: false,
    priority_factor: 0,
};

fn peer() -> SocketAddr {
    HERE.parse().unwrap()
}

fn entry(resource: &str, actions: Actions, allows: bool) -> PolicyEntry {
    PolicyEntry { resources: resource.parse().unwrap(), actions, sources: Vec::new(), allows }
}

fn user(secret: &str, is_super: bool, entries: Vec<PolicyEntry>) -> Arc<User> {
    Arc::new(User {
        name: secret.into(),
        signer: Signer::new(secret),
        is_super,
        is_enabled: true,
        policy: Policy::new(entries),
        default_policy: Policy::default(),
    })
}

/// Rules with a super user `root` and a user `ada`, whose secret keys are their names.
fn rules(entries: Vec<PolicyEntry>) -> Rules {
    let users =
        [("root".into(), user("root", true, Vec::new())), ("ada".into(), user("ada", false, entries))];
    Rules { authorizes: true, cluster: "c".into(), users: users.into(), ..Rules::default() }
}

fn access(rules: Rules) -> Access {
    let access = Access::new(Arc::new(Tables::new()));
    access.set(Some(rules));
    access
}

fn signed(user: &str, code: i32, fields: &[(&str, &str)], body: &'static [u8]) -> RemotingCommand {
    let fields: Fields = fields.iter().copied().collect();
    let mut command = RemotingCommand::request(code, fields, Bytes::from_static(body));
    Signer::new(user).sign(user, &mut command);
    command
}

fn may(access: &Access, command: &RemotingCommand) -> bool {
    access.check_command(command, peer()).is_ok()
}

fn call(access: &Access, user: &str, method: &'static str, message: &[u8]) -> Result<(), AccessRefused> {
    let authorization = Signer::new(user).authorization(user, "now");
    let get = |name: &str| match name {
        AUTHORIZATION => Some(&*authorization),
        DATE_TIME => Some("now"),
        _ => None,
    };
    access.admit(method, get, peer())?.check(message)
}

fn resource(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_bytes_field(&mut bytes, 2, name.as_bytes());
    bytes
}

fn with(number: u32, inner: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_bytes_field(&mut bytes, number, inner);
    bytes
}

#[test]
fn without_rules_every_request_passes() {
    let access = Access::new(Arc::new(Tables::new()));
    assert!(may(
        &access,
        &RemotingCommand::request(request::SEND_MESSAGE_V2, Fields::default(), Bytes::new())
    ));
    assert!(access.admit("SendMessage", |_| None, peer()).unwrap().check(b"").is_ok());
    access.set(Some(rules(Vec::new())));
    assert!(access.admit("SendMessage", |_| None, peer()).is_err());
    access.set(None);
    assert!(access.admit("SendMessage", |_| None, peer()).is_ok());
}

#[test]
fn a_request_needs_the_signature_of_a_known_and_enabled_user() {
    let mut rules = rules(Vec::new());
    rules.authorizes = false;
    rules.users.insert(
        "off".into(),
        Arc::new(User {
            name: "off".into(),
            signer: Signer::new("off"),
            is_super: true,
            is_enabled: false,
            policy: Policy::default(),
            default_policy: Policy::default(),
        }),
    );
    let access = access(rules);
    let good = signed("ada", request::SEND_MESSAGE_V2, &[("b", "t")], b"body");
    assert!(may(&access, &good));
    let changed = RemotingCommand { body: Bytes::from_static(b"bodY"), ..good.clone() };
    assert!(!may(&access, &changed));
    let unsigned = RemotingCommand { fields: [("b", "t")].into(), ..good };
    let why = access.check_command(&unsigned, peer()).unwrap_err().to_string();
    assert!(why.contains("no credentials"), "{why}");
    let unknown = access.check_command(&signed("bob", 310, &[], b""), peer()).unwrap_err().to_string();
    let wrong = call(&access, "bob", "SendMessage", b"").unwrap_err().to_string();
    assert_eq!(unknown, wrong, "a stranger learns nothing about names");
    let why = access.check_command(&signed("off", 310, &[], b""), peer()).unwrap_err().to_string();
    assert!(why.contains("disabled"), "{why}");
}

#[test]
fn the_most_exact_entry_that_matches_decides() {
    let cases: [(&[(&str, bool)], bool); 7] = [
        (&[], false),
        (&[("*", true)], true),
        (&[("*", true), ("Topic:*", false)], false),
        (&[("Topic:*", false), ("Topic:or*", true)], true),
        (&[("Topic:or*", true), ("Topic:orders*", false)], false),
        (&[("Topic:orders*", false), ("Topic:orders", true)], true),
        (&[("Group:orders", true), ("Topic:other", true), ("Cluster:*", true)], false),
    ];
    for (entries, allowed) in cases {
        let entries = entries.iter().map(|(resource, allows)| entry(resource, Actions::PUB, *allows));
        let access = access(rules(entries.collect()));
        let command = signed("ada", request::SEND_MESSAGE_V2, &[("b", "orders")], b"");
        assert_eq!(may(&access, &command), allowed, "{command:?}");
        assert!(may(&access, &signed("root", request::SEND_MESSAGE_V2, &[("b", "orders")], b"")));
    }
}

#[test]
fn an_entry_counts_for_its_actions_and_addresses_alone() {
    let mut from_afar = entry("Topic:orders", Actions::PUB, false);
    from_afar.sources = vec!["192.168.0.0/16".parse().unwrap()];
    let policy = Policy::new([from_afar, entry("Topic:or*", Actions::ALL, true)]);
    let decide = |actions, from: &str| policy.decide(Kind::Topic, "orders", actions, from.parse().unwrap());
    assert_eq!(decide(Actions::PUB, "192.168.7.7"), Some(false));
    assert_eq!(decide(Actions::PUB, "192.169.7.7"), Some(true));
    assert_eq!(decide(Actions::SUB, "192.168.7.7"), Some(true));
    assert_eq!(policy.decide(Kind::Group, "orders", Actions::SUB, [10, 0, 0, 1].into()), None);
}

#[test]
fn a_default_policy_decides_what_the_own_one_leaves_open() {
    let mut rules = rules(Vec::new());
    rules.users.insert(
        "ada".into(),
        Arc::new(User {
            name: "ada".into(),
            signer: Signer::new("ada"),
            is_super: false,
            is_enabled: true,
            policy: Policy::new([entry("Topic:secret", Actions::PUB, false)]),
            default_policy: Policy::new([entry("Topic:*", Actions::PUB, true)]),
        }),
    );
    let access = access(rules);
    assert!(may(&access, &signed("ada", 310, &[("b", "orders")], b"")));
    assert!(!may(&access, &signed("ada", 310, &[("b", "secret")], b"")));
}

#[test]
fn every_topic_that_a_send_names_is_checked() {
    let access = access(rules(vec![entry("Topic:mine", Actions::PUB, true)]));
    assert!(may(&access, &signed("ada", 310, &[("b", "mine")], b"")));
    for fields in [&[("b", "mine"), ("topic", "yours")][..], &[("b", "yours"), ("b", "mine")], &[]] {
        assert!(!may(&access, &signed("ada", 310, fields, b"")), "{fields:?}");
    }
    let message = |topic| with(1, &with(1, &resource(topic)));
    assert!(call(&access, "ada", "SendMessage", &message("mine")).is_ok());
    let both = [message("mine"), message("yours")].concat();
    assert!(call(&access, "ada", "SendMessage", &both).is_err());
    assert!(call(&access, "ada", "SendMessage", b"").is_err());
}

#[test]
fn a_pull_without_a_group_needs_its_topic_alone() {
    let access =
        access(rules(vec![entry("Topic:mine", Actions::SUB, true), entry("Group:g", Actions::SUB, true)]));
    let message = |group: &[u8], topic| [group, &with(2, &with(1, &resource(topic)))].concat();
    let (no_group, unnamed) = (Vec::new(), with(1, b""));
    for group in [&no_group, &unnamed, &with(1, &resource("")), &with(1, &resource("g"))] {
        assert!(call(&access, "ada", "PullMessage", &message(group, "mine")).is_ok(), "{group:?}");
        assert!(call(&access, "ada", "PullMessage", &message(group, "yours")).is_err(), "{group:?}");
    }
    assert!(call(&access, "ada", "PullMessage", &message(&with(1, &resource("h")), "mine")).is_err());
    for method in ["ReceiveMessage", "AwaitMessages"] {
        assert!(
            call(&access, "ada", method, &message(&no_group, "mine")).is_err(),
            "{method} is for a group"
        );
    }
}

#[test]
fn a_retry_topic_belongs_to_its_group() {
    let access = access(rules(vec![entry("Group:g", Actions::SUB, true)]));
    let pull = |topic| signed("ada", request::PULL_MESSAGE, &[("topic", topic), ("consumerGroup", "g")], b"");
    assert!(may(&access, &pull("%RETRY%g")));
    assert!(!may(&access, &pull("%RETRY%h")));
    assert!(may(&access, &signed("ada", 310, &[("b", "%RETRY%g")], b"")));
}

#[test]
fn a_retry_topic_of_pop_belongs_to_the_group_that_is_there() {
    let tables = Arc::new(Tables::new());
    let access = Access::new(Arc::clone(&tables));
    access.set(Some(rules(vec![entry("Group:g", Actions::SUB, true), entry("Topic:*", Actions::SUB, true)])));
    let ack = |topic| {
        may(&access, &signed("ada", request::ACK_MESSAGE, &[("topic", topic), ("consumerGroup", "g")], b""))
    };
    assert!(ack("%RETRY%g+t"));
    assert!(!ack("%RETRY%h+t"));
    tables.put_group("g", GROUP);
    tables.put_topic("t", TOPIC);
    assert!(!ack("%RETRY%g_t"), "a new group of this name may come");
    tables.put_topic("%RETRY%g_t", TOPIC);
    tables.put_topic("%RETRY%g_u", TOPIC);
    assert!(ack("%RETRY%g_t"));
    assert!(!ack("%RETRY%g_u"));
    tables.put_group("g_t", GROUP);
    assert!(!ack("%RETRY%g_t"), "it is the retry topic of another group");
}

#[test]
fn topics_with_messages_of_all_topics_are_for_super_users() {
    let everything = ["*", "Topic:*", "Topic:RMQ_SYS_TRANS_HALF_TOPIC"];
    let everything = everything.map(|resources| entry(resources, Actions::ALL, true));
    let access = access(rules(everything.into()));
    for topic in [
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    ] {
        for code in [request::PULL_MESSAGE, request::VIEW_MESSAGE_BY_ID, request::QUERY_MESSAGE] {
            let by = |user| signed(user, code, &[("topic", topic), ("consumerGroup", "g")], b"");
            assert!(!may(&access, &by("ada")), "{topic}");
            assert!(may(&access, &by("root")), "{topic}");
        }
    }
    assert!(may(
        &access,
        &signed("ada", request::PULL_MESSAGE, &[("topic", "t"), ("consumerGroup", "g")], b"")
    ));
}

#[test]
fn a_topic_found_in_the_store_is_checked_and_not_named() {
    let access =
        access(rules(vec![entry("Group:g", Actions::SUB, true), entry("Topic:t", Actions::SUB, true)]));
    let back = signed("ada", request::CONSUMER_SEND_MSG_BACK, &[("group", "g")], b"");
    let found = |topic| access.check_found(&back, peer(), topic, Actions::SUB);
    assert_eq!(access.check_command(&back, peer()).unwrap().as_deref(), Some("ada"));
    assert!(found("t").is_ok());
    assert!(found("%RETRY%g").is_ok());
    let why = found("secret").unwrap_err().to_string();
    assert!(!why.contains("secret"), "{why}");
    assert!(found("%RETRY%h").is_err());
    assert!(access.allows(Some("ada"), peer(), "t", Actions::SUB));
    assert!(!access.allows(Some("ada"), peer(), "t", Actions::PUB));
    assert!(!access.allows(None, peer(), "t", Actions::SUB));
    access.set(None);
    assert!(found("secret").is_ok());
    assert!(access.allows(None, peer(), "t", Actions::PUB));
}

/// A request, its fields, and the resource that a user lacks for it.
type Case<'a> = (i32, &'a [(&'a str, &'a str)], &'a str);

#[test]
fn a_request_is_checked_for_all_that_it_uses() {
    let cases: [Case<'_>; 3] = [
        (request::GET_CONSUME_STATS, &[("consumerGroup", "g"), ("topicList", "t;secret")], "Topic:secret"),
        (request::CLONE_GROUP_OFFSET, &[("srcGroup", "h"), ("destGroup", "g")], "Group:h"),
        (request::PULL_MESSAGE, &[("topic", "t"), ("consumerGroup", "h")], "Group:h"),
    ];
    let mine = || vec![entry("Group:g", Actions::ALL, true), entry("Topic:t", Actions::ALL, true)];
    for (code, fields, lacking) in cases {
        assert!(!may(&access(rules(mine())), &signed("ada", code, fields, b"")), "{lacking}");
        let mut more = mine();
        more.push(entry(lacking, Actions::ALL, true));
        assert!(may(&access(rules(more)), &signed("ada", code, fields, b"")), "{lacking}");
    }
    let access = access(rules(mine()));
    let change = |topic| [with(1, &resource("g")), with(2, &resource(topic))].concat();
    assert!(call(&access, "ada", "ChangeInvisibleDuration", &change("t")).is_ok());
    assert!(call(&access, "ada", "ChangeInvisibleDuration", &change("secret")).is_err());
}

#[test]
fn names_in_a_body_are_checked() {
    let access =
        access(rules(vec![entry("Group:g", Actions::SUB, true), entry("Topic:t", Actions::SUB, true)]));
    let beat = |body| may(&access, &signed("ada", request::HEART_BEAT, &[], body));
    assert!(beat(br#"{"clientID":"x","producerDataSet":[{"groupName":"p"}]}"#));
    assert!(beat(br#"{"consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t"},{"topic":"%RETRY%g"}]}]}"#));
    assert!(!beat(br#"{"consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"u"}]}]}"#));
    assert!(!beat(br#"{"consumerDataSet":[{"groupName":"h"}]}"#));
    assert!(!beat(b"no json"));
    let ack = |body| may(&access, &signed("ada", request::BATCH_ACK_MESSAGE, &[], body));
    assert!(ack(br#"{"acks":[{"c":"g","t":"t"}]}"#));
    assert!(!ack(br#"{"acks":[{"c":"g","t":"t"},{"c":"g","topic":"u"}]}"#));
}

#[test]
fn exceptions_need_neither_a_signature_nor_a_policy() {
    let mut rules = rules(Vec::new());
    rules.unsigned = Exceptions::parse(["34", "apache.rocketmq.v2.QueryRouteRequest"]).unwrap();
    let access = access(rules);
    let beat = RemotingCommand::request(34, Fields::default(), Bytes::from_static(b"{}"));
    assert!(may(&access, &beat), "it names nothing");
    let route = with(1, &resource("t"));
    let admitted = access.admit("QueryRoute", |_| None, peer()).unwrap();
    assert!(admitted.check(&route).is_err(), "unsigned is not allowed to do what needs a policy");
    let mut rules = self::rules(Vec::new());
    rules.unrestricted = Exceptions::parse(["apache.rocketmq.v2.TelemetryCommand", "310"]).unwrap();
    let access = self::access(rules);
    assert!(may(&access, &signed("ada", 310, &[("b", "t")], b"")));
    assert!(call(&access, "ada", "Telemetry", &with(2, &with(5, &with(1, &resource("t"))))).is_ok());
    assert!(access.admit("Telemetry", |_| None, peer()).is_err());
    assert_eq!(Exceptions::parse(["310", "Heartbeat"]).unwrap_err(), "Heartbeat");
    assert!(Exceptions::parse(["apache.rocketmq.v2.NoSuchRequest"]).is_err());
}

#[test]
fn requests_that_are_not_listed_are_for_super_users() {
    let access = access(rules(vec![entry("Topic:*", Actions::ALL, true)]));
    assert!(!may(&access, &signed("ada", 9999, &[], b"")));
    assert!(may(&access, &signed("root", 9999, &[], b"")));
    assert!(call(&access, "ada", known_method("NoSuchMethod"), b"").is_err());
    assert!(call(&access, "root", known_method("NoSuchMethod"), b"").is_ok());
}

#[test]
fn every_hot_request_is_listed() {
    for code in (0..400).chain(200_000..200_200).filter(|code| verbs::find(*code).is_some()) {
        assert!(is_listed(&Verb::Code(code)), "{code}");
    }
    for method in [
        "SendMessage",
        "AckMessage",
        "ChangeInvisibleDuration",
        "ForwardMessageToDeadLetterQueue",
        "UpdateOffset",
        "ReceiveMessage",
        "PullMessage",
    ] {
        assert!(
            crate::grpc::hot_method::HotMethod::named(method).is_some()
                && is_listed(&Verb::Rpc(method.into()))
        );
    }
    for code in 32_000..=32_008 {
        assert!(is_listed(&Verb::Rpc(framed_method(code).into())), "{code}");
    }
}

fn any_pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("*".to_owned()),
        ("(Topic|Group|Cluster)", "[ab]{0,3}\\*").prop_map(|(kind, name)| format!("{kind}:{name}")),
        ("(Topic|Group|Cluster)", "[ab]{1,3}").prop_map(|(kind, name)| format!("{kind}:{name}")),
    ]
}

proptest! {
    #[test]
    fn a_lookup_decides_as_a_scan_in_order_of_precedence(
        written in prop::collection::btree_map(any_pattern(), (0_u8..128, any::<bool>()), 0..8),
        name in "[ab]{0,3}",
        wanted in 1_u8..128,
    ) {
        let actions = |bits: u8| {
            let all = [
                Actions::PUB, Actions::SUB, Actions::CREATE, Actions::UPDATE, Actions::DELETE, Actions::GET, Actions::LIST,
            ];
            let chosen = all.into_iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1);
            chosen.map(|(_, action)| action).reduce(Actions::or)
        };
        let entries = written.iter().filter_map(|(pattern, (bits, allows))| {
            Some(entry(pattern, actions(*bits)?, *allows))
        });
        let policy = Policy::new(entries);
        let rank = |pattern: &str| match pattern.split_once(':') {
            None => (3, 0),
            Some((_, "*")) => (2, 0),
            Some((_, name)) if name.ends_with('*') => (1, 99 - name.len()),
            Some(_) => (0, 0),
        };
        let matches = |pattern: &str| pattern == "*" || pattern.strip_prefix("Topic:").is_some_and(|text| {
            text.strip_suffix('*').map_or(text == name, |begin| name.starts_with(begin))
        });
        let found = written.iter()
            .filter(|(pattern, (bits, _))| matches(pattern) && bits & wanted != 0)
            .min_by_key(|(pattern, _)| rank(pattern));
        let decided = policy.decide(Kind::Topic, &name, actions(wanted).unwrap(), [1, 2, 3, 4].into());
        prop_assert_eq!(decided, found.map(|(_, (_, allows))| *allows));
    }

    #[test]
    fn patterns_and_networks_of_any_text_are_read_or_refused(text in ".{0,40}") {
        if let Ok(pattern) = text.parse::<Pattern>() {
            prop_assert_eq!(pattern.to_string().parse::<Pattern>().unwrap(), pattern);
        }
        let _ = text.parse::<Network>();
    }

    #[test]
    fn a_range_contains_the_addresses_with_its_prefix(address: [u8; 4], other: [u8; 4], prefix in 0_u32..=32) {
        let text = format!("{}/{prefix}", IpAddr::from(address));
        let range: Network = text.parse().unwrap();
        let policy = Policy::new([PolicyEntry { sources: vec![range], ..entry("*", Actions::GET, true) }]);
        let decided = policy.decide(Kind::Topic, "t", Actions::GET, other.into());
        let shift = |octets: [u8; 4]| u64::from(u32::from_be_bytes(octets)) >> (32 - prefix);
        prop_assert_eq!(decided.is_some(), shift(address) == shift(other));
    }

    #[test]
    fn any_message_is_checked_without_a_panic(message: Vec<u8>, method in 0_usize..6, body in ".{0,60}") {
        let access = access(rules(vec![entry("Topic:*", Actions::ALL, true)]));
        let names = ["SendMessage", "ReceiveMessage", "Telemetry", "AckRecords", "KeepWriteLayout", "Heartbeat"];
        let _ = call(&access, "ada", names[method], &message);
        let _ = needs::check_command(
            &RemotingCommand::request(34, Fields::default(), Bytes::from(body)), &mut |_, _, _| Ok(()),
        );
    }
}
