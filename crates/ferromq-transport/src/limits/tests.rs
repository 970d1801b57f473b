use super::*;
use crate::tables::{MessageType, TopicEntry};

const TOPIC: TopicEntry =
    TopicEntry { read_queues: 1, write_queues: 1, permission: 6, message_type: MessageType::Normal };

fn limits(topics: &[&str], rules: Vec<LimitRule>) -> (RateLimits, Clock) {
    let (tables, clock) = (Arc::new(Tables::new()), Clock::manual(1_000));
    for topic in topics {
        tables.put_topic(topic, TOPIC);
    }
    let limits = RateLimits::new(tables, clock.clone(), Arc::default(), Arc::default());
    limits.set(rules);
    (limits, clock)
}

fn rule(user: Option<&str>, topic: Option<&str>, messages: Option<u64>, bytes: Option<u64>) -> LimitRule {
    let rate = Rate { messages, bytes };
    LimitRule {
        user: user.map(Into::into),
        topic: topic.map(Into::into),
        rates: Some((rate, rate)),
        connections: None,
    }
}

fn send(limits: &RateLimits, user: Option<&str>, topic: &str, messages: usize) -> Result<(), LimitReached> {
    limits.admit(user, Some(Usage::Send { topic, messages, bytes: 100 * messages })).map(|_| ())
}

/// How many single messages are sent before one is refused.
fn sends(limits: &RateLimits, user: Option<&str>, topic: &str) -> usize {
    (0..100).take_while(|_| send(limits, user, topic, 1).is_ok()).count()
}

#[test]
fn a_topic_takes_its_rate_and_its_refusal_names_limit_and_wait() {
    let (limits, clock) = limits(&["orders"], vec![rule(None, Some("orders"), Some(10), None)]);
    assert_eq!(sends(&limits, None, "orders"), 10);
    let refused = send(&limits, None, "orders", 1).unwrap_err().to_string();
    assert!(
        refused.contains("10 messages/s for sends of topic orders") && refused.contains(" ms"),
        "{refused}"
    );
    clock.advance(500);
    assert_eq!(sends(&limits, None, "orders"), 5);
    assert_eq!(limits.counters.over_topic_limit.get(), 3);
}

#[test]
fn users_have_rates_of_their_own_and_the_closest_rule_counts() {
    let rules = vec![
        rule(Some("*"), None, Some(3), None),
        rule(Some("big"), None, Some(20), None),
        rule(Some("free"), None, None, None),
        rule(Some("*"), Some("orders"), Some(2), None),
        rule(Some("big"), Some("*"), Some(7), None),
    ];
    let (limits, _) = limits(&["orders", "other"], rules);
    assert_eq!([sends(&limits, Some("ann"), "orders"), sends(&limits, Some("bob"), "orders")], [2, 2]);
    assert_eq!(sends(&limits, Some("ann"), "other"), 1);
    assert_eq!([sends(&limits, Some("big"), "orders"), sends(&limits, Some("big"), "other")], [7, 7]);
    assert_eq!([sends(&limits, Some("free"), "orders"), sends(&limits, Some("free"), "other")], [2, 100]);
    assert_eq!(sends(&limits, None, "orders"), 100);
}

#[test]
fn a_refused_request_is_charged_to_no_limit() {
    let rules = vec![rule(None, Some("orders"), Some(1), None), rule(Some("ann"), None, Some(5), None)];
    let (limits, _) = limits(&["orders", "other"], rules);
    assert_eq!(sends(&limits, Some("ann"), "orders"), 1);
    assert_eq!(sends(&limits, Some("ann"), "other"), 4);
}

#[test]
fn bytes_are_limited_and_a_large_batch_borrows() {
    let (limits, clock) = limits(&["orders"], vec![rule(None, Some("*"), None, Some(1_000))]);
    send(&limits, None, "orders", 100).unwrap();
    let refused = send(&limits, None, "orders", 1).unwrap_err();
    assert_eq!((refused.unit, refused.wait_ms), ("bytes", 9_001));
    clock.advance(9_001);
    send(&limits, None, "orders", 1).unwrap();
}

#[tokio::test]
async fn a_read_is_charged_with_what_it_hands_out() {
    let (limits, clock) = limits(&["orders"], vec![rule(None, Some("orders"), Some(10), None)]);
    let read = || limits.admit(None, Some(Usage::Receive { topic: "orders" }));
    // Reads without messages cost nothing.
    for _ in 0..100 {
        read().unwrap().unwrap().scope(async {}).await;
    }
    let meter = read().unwrap().unwrap();
    meter.scope(async { charge(32, 3_200) }).await;
    assert_eq!(read().unwrap_err().wait_ms, 2_201);
    // Sends have a rate of their own.
    assert_eq!(sends(&limits, None, "orders"), 10);
    clock.advance(2_201);
    read().unwrap();
}

#[test]
fn sends_to_a_retry_topic_are_limited_and_unknown_topics_are_not() {
    let rules = vec![rule(None, Some("*"), Some(2), None), rule(Some("*"), None, Some(1), None)];
    let (limits, _) = limits(&["%RETRY%group"], rules);
    assert_eq!(sends(&limits, Some("ann"), "%RETRY%group"), 1);
    assert_eq!(sends(&limits, None, "%RETRY%group"), 1);
    assert_eq!(sends(&limits, None, "unknown"), 100);
    assert_eq!(sends(&limits, Some("bob"), "unknown"), 1);
}

#[test]
fn refusals_are_counted_by_reason_for_topics_that_exist() {
    let rules = vec![
        rule(None, Some("orders"), Some(1), None),
        rule(Some("ann"), None, Some(1), None),
        rule(Some("bob"), Some("trains"), Some(1), None),
    ];
    let (limits, _) = limits(&["orders", "other", "trains"], rules);
    assert_eq!([sends(&limits, None, "orders"), sends(&limits, Some("bob"), "trains")], [1, 1]);
    assert_eq!([sends(&limits, Some("ann"), "other"), sends(&limits, Some("ann"), "unknown")], [1, 0]);
    let refused = limits.traffic.snapshot().refused;
    let mut counts: Vec<_> = refused.iter().map(|(name, tally)| (name.as_str(), tally.messages)).collect();
    counts.sort_unstable();
    assert_eq!(counts, [("orders@topic_limit", 1), ("other@user_limit", 1), ("trains@user_topic_limit", 1)]);
}

#[test]
fn many_names_take_bounded_memory_and_are_limited_together() {
    let (limits, clock) = limits(&[], vec![rule(Some("*"), None, Some(1), None)]);
    let names: Vec<_> = (0..SHARDS * MAX_BUCKETS + 10_000).map(|number| format!("user-{number}")).collect();
    let sent = names.iter().filter(|name| send(&limits, Some(name), "t", 1).is_ok()).count();
    let table = limits.table.load();
    let kept = || table.buckets.iter().map(|shard| shard.read().len()).sum::<usize>();
    assert!(kept() <= SHARDS * MAX_BUCKETS && sent <= kept() + 1, "{sent} {}", kept());
    // Those that are as good as new give way.
    clock.advance(1_001);
    assert!(send(&limits, Some("late"), "t", 1).is_ok() && send(&limits, Some("late"), "t", 1).is_err());
}

#[test]
fn new_rules_replace_the_old_ones_at_once() {
    let (limits, _) = limits(&["orders"], vec![rule(None, Some("orders"), Some(1), None)]);
    assert_eq!(sends(&limits, None, "orders"), 1);
    limits.set(vec![rule(None, Some("orders"), Some(2), None)]);
    assert_eq!(sends(&limits, None, "orders"), 2);
    limits.set([]);
    assert!(!limits.is_on());
    assert_eq!(sends(&limits, None, "orders"), 100);
}

#[test]
fn rates_and_connections_are_limited_apart() {
    let of_each = LimitRule { connections: Some(1), ..rule(Some("*"), None, Some(2), None) };
    let of_ada = LimitRule { rates: None, connections: Some(2), ..rule(Some("ada"), None, None, None) };
    let (limits, _) = limits(&["orders"], vec![of_each, of_ada, rule(Some("bob"), None, Some(5), None)]);
    assert_eq!(["ada", "bob", "eve"].map(|user| sends(&limits, Some(user), "orders")), [2, 5, 2]);
    let open: Vec<_> = (0..3).map(|_| ConnectionUsers::new(&limits.connections)).collect();
    let admitted =
        |user: &str| open.iter().filter(|each| each.admit(Some(&user.into()), || false).is_ok()).count();
    assert_eq!(["ada", "bob", "eve"].map(admitted), [2, 1, 1]);
}

#[test]
fn a_limit_of_connections_costs_requests_no_look_at_rates() {
    let (limits, _) = limits(&["orders"], vec![]);
    limits.set([LimitRule { connections: Some(1), ..rule(Some("*"), None, None, None) }]);
    assert!(!limits.is_on());
    let (first, second) =
        (ConnectionUsers::new(&limits.connections), ConnectionUsers::new(&limits.connections));
    assert!(first.admit(Some(&"ann".into()), || false).is_ok());
    assert!(second.admit(Some(&"ann".into()), || false).is_err());
    assert_eq!(limits.counters.over_user_connections.get(), 1);
}
