//! Limits of messages and bytes a second, by user, by topic, and by user and topic; and of connections by user.
//!
//! The control plane pushes the rules. Requests that store or hand out messages are checked here before they begin;
//! acknowledgements, renewals and commits never are. Without rules, a request costs one load of a flag.

mod connections;
mod meter;
mod pace;

use std::{
    cell::RefCell,
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use ferromq_store::time::Clock;
use parking_lot::RwLock;
use tracing::warn;

use crate::{
    LogLimiter,
    hot::{Counters, Traffic},
    tables::{Tables, shards::Shards},
};
pub(crate) use connections::{ConnectionUsers, TooManyConnections, UserConnections};
pub(crate) use meter::{Meter, charge};
use pace::Pace;

/// The name in a rule that stands for each user or topic without a rule of its own.
const EACH: &str = "*";
const SHARDS: usize = 64;
/// Names with rates of their own, in each shard. Above it, names that are new share the rates of their rule.
const MAX_BUCKETS: usize = 1_024;

/// Messages and bytes a second; `None`: not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate {
    /// Messages a second.
    pub messages: Option<u64>,
    /// Bytes a second.
    pub bytes: Option<u64>,
}

/// A rule: whom it is about, and what it allows.
#[derive(Debug, Clone)]
pub struct LimitRule {
    /// A user, or `*`; `None`: all users together.
    pub user: Option<Box<str>>,
    /// A topic, or `*`; `None`: all topics together.
    pub topic: Option<Box<str>>,
    /// What it allows to be stored and to be handed out; `None`: the next closest rule says so.
    pub rates: Option<(Rate, Rate)>,
    /// Open connections; `None`: the rule for each user says so. It counts in rules of a user in all topics.
    pub connections: Option<u64>,
}

/// What a request is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage<'a> {
    /// Stores messages.
    Send { topic: &'a str, messages: usize, bytes: usize },
    /// Reads messages; how many, the answer shows.
    Receive { topic: &'a str },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Send,
    Receive,
}

/// Why a request is refused: a limit is used up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limit of {per_second} {unit}/s for {action} {whom} is used up; try again in {wait_ms} ms, or have the option \
     limits raised"
)]
pub(crate) struct LimitReached {
    per_second: u64,
    unit: &'static str,
    action: &'static str,
    whom: String,
    wait_ms: i64,
}

/// The rates of one user, of one topic, or of one user in one topic.
#[derive(Debug)]
struct Bucket {
    send: Paces,
    receive: Paces,
}

#[derive(Debug)]
struct Paces {
    messages: Pace,
    bytes: Pace,
}

impl Paces {
    fn new(rate: Rate) -> Self {
        Self { messages: Pace::new(rate.messages), bytes: Pace::new(rate.bytes) }
    }

    fn take(&self, messages: u64, bytes: u64, now: i64) {
        self.messages.take(messages, now);
        self.bytes.take(bytes, now);
    }

    fn is_idle(&self, now: i64) -> bool {
        self.messages.is_idle(now) && self.bytes.is_idle(now)
    }
}

impl Bucket {
    fn new((send, receive): (Rate, Rate)) -> Self {
        Self { send: Paces::new(send), receive: Paces::new(receive) }
    }

    fn of(&self, direction: Direction) -> &Paces {
        match direction {
            Direction::Send => &self.send,
            Direction::Receive => &self.receive,
        }
    }
}

/// What a rule allows, and the rates that names share for which there is no room.
#[derive(Debug)]
struct Rule {
    rates: (Rate, Rate),
    shared: Arc<Bucket>,
}

/// The rules, and how far each is used up. Replaced as a whole.
#[derive(Debug)]
struct Table {
    /// By [`key`] of the names in the rule.
    rules: HashMap<Box<str>, Rule>,
    /// By [`key`] of the names in a request.
    buckets: Shards<RwLock<HashMap<Box<str>, Arc<Bucket>>>, SHARDS>,
}

/// Limits of a server; shared by its listeners.
pub struct RateLimits {
    /// Whether there is any rate.
    is_on: AtomicBool,
    pub(crate) connections: Arc<UserConnections>,
    table: ArcSwap<Table>,
    tables: Arc<Tables>,
    clock: Clock,
    counters: Arc<Counters>,
    traffic: Arc<Traffic>,
}

impl fmt::Debug for RateLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimits").field("is_on", &self.is_on).finish_non_exhaustive()
    }
}

thread_local! {
    /// The key that is looked up.
    static KEY: RefCell<String> = const { RefCell::new(String::new()) };
}

fn nanoseconds(clock: &Clock) -> i64 {
    clock.now_ms().saturating_mul(1_000_000)
}

/// Writes the key of a user, of a topic, or of both. No name has a character of the value 0.
fn write_key(key: &mut String, user: Option<&str>, topic: Option<&str>) {
    key.clear();
    if let Some(user) = user {
        key.push_str(user);
    }
    key.push(if user.is_some() { '\u{1}' } else { '\u{0}' });
    if let Some(topic) = topic {
        key.push('\u{0}');
        key.push_str(topic);
    }
}

impl Table {
    fn new(rules: impl IntoIterator<Item = LimitRule>) -> Self {
        let rules = rules.into_iter().filter_map(|LimitRule { user, topic, rates, .. }| {
            let (rates, mut key) = (rates?, String::new());
            write_key(&mut key, user.as_deref(), topic.as_deref());
            Some((key.into_boxed_str(), Rule { rates, shared: Arc::new(Bucket::new(rates)) }))
        });
        Self { rules: rules.collect(), buckets: Shards::new() }
    }

    /// The rates for these names; `None` if no rule is about them.
    fn bucket(&self, user: Option<&str>, topic: Option<&str>, now: i64) -> Option<Arc<Bucket>> {
        KEY.with_borrow_mut(|key| {
            write_key(key, user, topic);
            let shard = self.buckets.of(key)?;
            if let Some(bucket) = shard.read().get(key.as_str()) {
                return Some(Arc::clone(bucket));
            }
            let rule = self.rule(key, user, topic)?;
            write_key(key, user, topic);
            let mut shard = shard.write();
            if shard.len() >= MAX_BUCKETS {
                shard.retain(|_, bucket| !bucket.send.is_idle(now) || !bucket.receive.is_idle(now));
            }
            if shard.len() >= MAX_BUCKETS && !shard.contains_key(key.as_str()) {
                return Some(Arc::clone(&rule.shared));
            }
            // Another thread may have added it between the locks.
            let bucket =
                shard.entry(key.as_str().into()).or_insert_with(|| Arc::new(Bucket::new(rule.rates)));
            Some(Arc::clone(bucket))
        })
    }

    /// The rule for these names: that of the names, else of the user in each topic, else of each user in the topic.
    fn rule(&self, key: &mut String, user: Option<&str>, topic: Option<&str>) -> Option<&Rule> {
        let (each_user, each_topic) = (user.map(|_| EACH), topic.map(|_| EACH));
        [(user, topic), (user, each_topic), (each_user, topic), (each_user, each_topic)].into_iter().find_map(
            |(user, topic)| {
                write_key(key, user, topic);
                self.rules.get(key.as_str())
            },
        )
    }
}

impl RateLimits {
    /// No limits.
    pub(crate) fn new(
        tables: Arc<Tables>,
        clock: Clock,
        counters: Arc<Counters>,
        traffic: Arc<Traffic>,
    ) -> Self {
        let table = ArcSwap::from_pointee(Table::new([]));
        let connections = Arc::new(UserConnections::new(Arc::clone(&counters)));
        Self { is_on: AtomicBool::default(), connections, table, tables, clock, counters, traffic }
    }

    /// Replaces all rules. What was used up of rates is forgotten; connections that are open keep counting.
    pub fn set(&self, rules: impl IntoIterator<Item = LimitRule>) {
        let rules: Vec<_> = rules.into_iter().collect();
        let of_users = rules.iter().filter(|rule| rule.topic.is_none());
        self.connections
            .set(of_users.filter_map(|rule| Some((rule.user.clone()?, rule.connections?))).collect());
        let is_on = rules.iter().any(|rule| rule.rates.is_some_and(|rates| rates != Default::default()));
        let table = Table::new(rules);
        self.table.store(Arc::new(table));
        self.is_on.store(is_on, Ordering::Release);
    }

    /// Charges what a request is about to store, or returns what a read is to be charged to; `None` if nothing is left to
    /// charge.
    ///
    /// A topic that does not exist is charged to its user alone, so that names which clients make up take no memory.
    /// Sends to a retry topic are charged as any others: a consumer whose send is refused keeps the message and gives it
    /// back again.
    ///
    /// # Errors
    /// `LimitReached`; nothing is charged then.
    pub(crate) fn admit(
        &self,
        user: Option<&str>,
        usage: Option<Usage<'_>>,
    ) -> Result<Option<Meter>, LimitReached> {
        match usage {
            Some(usage) if self.is_on() => self.admit_usage(user, usage),
            _ => Ok(None),
        }
    }

    /// Whether there is any rate.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    fn admit_usage(&self, user: Option<&str>, usage: Usage<'_>) -> Result<Option<Meter>, LimitReached> {
        let (direction, topic) = match usage {
            Usage::Send { topic, .. } => (Direction::Send, topic),
            Usage::Receive { topic } => (Direction::Receive, topic),
        };
        let (table, now) = (self.table.load(), nanoseconds(&self.clock));
        let known = self.tables.topic(topic).map(|_| topic);
        let of_user = user.and_then(|_| table.bucket(user, None, now));
        let of_topic = known.and_then(|_| table.bucket(None, known, now));
        let of_both = user.zip(known).and_then(|_| table.bucket(user, known, now));
        let buckets = [of_user, of_topic, of_both];
        let longest = buckets.iter().enumerate().filter_map(|(of, bucket)| {
            let paces = bucket.as_ref()?.of(direction);
            let (messages, bytes) = (paces.messages.wait(now), paces.bytes.wait(now));
            Some((
                messages.max(bytes),
                of,
                if bytes > messages { (&paces.bytes, "bytes") } else { (&paces.messages, "messages") },
            ))
        });
        let longest = longest.max_by_key(|(wait, ..)| *wait);
        if let Some((wait, of, (pace, unit))) = longest.filter(|(wait, ..)| *wait > 0) {
            let whom = match of {
                0 => format!("user {}", user.unwrap_or_default()),
                1 => format!("topic {topic}"),
                _ => format!("user {} in topic {topic}", user.unwrap_or_default()),
            };
            return Err(self.refuse(
                of,
                known,
                LimitReached {
                    per_second: pace.per_second(),
                    unit,
                    action: if direction == Direction::Send { "sends of" } else { "receives of" },
                    whom,
                    wait_ms: wait / 1_000_000 + 1,
                },
            ));
        }
        match usage {
            Usage::Send { messages, bytes, .. } => {
                for bucket in buckets.iter().flatten() {
                    bucket.send.take(messages as u64, bytes as u64, now);
                }
                Ok(None)
            }
            Usage::Receive { .. } if buckets.iter().all(Option::is_none) => Ok(None),
            Usage::Receive { .. } => Ok(Some(Meter { buckets, clock: self.clock.clone() })),
        }
    }

    /// Counts and logs a refusal.
    fn refuse(&self, of: usize, topic: Option<&str>, reached: LimitReached) -> LimitReached {
        static REFUSED: LogLimiter = LogLimiter::new();
        let counters = &self.counters;
        let (counter, reason) = match of {
            0 => (&counters.over_user_limit, "user_limit"),
            1 => (&counters.over_topic_limit, "topic_limit"),
            _ => (&counters.over_user_topic_limit, "user_topic_limit"),
        };
        counter.add(1);
        if let Some(topic) = topic {
            self.traffic.count_refused(topic, reason);
        }
        REFUSED.log(|suppressed| warn!(reason = %reached, suppressed, "request refused by a limit"));
        reached
    }
}

#[cfg(test)]
mod tests;
