//! Snapshots of topics and groups that the control plane pushes.
//!
//! The hot path reads them without a lock; a push replaces one entry at a time. The control plane decides which topics
//! and groups exist: an unknown name is demoted, never guessed.

pub mod filters;
pub mod resets;
pub mod routes;
pub(crate) mod shards;
pub mod subscriptions;

use std::{collections::HashMap, str::FromStr, sync::Arc};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::TransportError;
use filters::Filters;
use resets::Resets;
use shards::Shards;
use subscriptions::Subscriptions;

/// A push copies one shard: of ten thousand entries, about forty.
const SHARDS: usize = 256;

/// The kind of messages that a topic accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageType {
    /// Messages without order, delay or transaction.
    Normal,
    /// Messages of one message group are consumed in order.
    Fifo,
    /// Messages that become visible at a time.
    Delay,
    /// Messages that become visible when their transaction commits.
    Transaction,
    /// Messages with a priority, the higher ones first; the queue is the priority.
    Priority,
    /// Messages of lite topics, which are not supported yet.
    Lite,
    /// Any type.
    Mixed,
    /// Any type: none was chosen.
    Unspecified,
    /// Any type, until the first message decides.
    Undecided,
}

impl MessageType {
    const ALL: [Self; 9] = [
        Self::Normal,
        Self::Fifo,
        Self::Delay,
        Self::Transaction,
        Self::Priority,
        Self::Lite,
        Self::Mixed,
        Self::Unspecified,
        Self::Undecided,
    ];

    /// Returns whether a topic of this type accepts a message of the type `sent`.
    #[must_use]
    pub fn takes(self, sent: Self) -> bool {
        matches!(self, Self::Mixed | Self::Unspecified | Self::Undecided) || self == sent
    }

    /// RocketMQ's name; it has none for `Undecided`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "NORMAL",
            Self::Fifo => "FIFO",
            Self::Delay => "DELAY",
            Self::Transaction => "TRANSACTION",
            Self::Priority => "PRIORITY",
            Self::Lite => "LITE",
            Self::Mixed => "MIXED",
            Self::Unspecified => "UNSPECIFIED",
            Self::Undecided => "UNDECIDED",
        }
    }
}

impl FromStr for MessageType {
    type Err = UnknownMessageType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownMessageType(text.to_owned()))
    }
}

/// A text that names no message type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown message type {0:?}; use NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE, MIXED, UNSPECIFIED or UNDECIDED"
)]
pub struct UnknownMessageType(pub String);

/// The hot path's knowledge of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicEntry {
    /// Number of queues that consumers read.
    pub read_queues: u32,
    /// Number of queues that producers write.
    pub write_queues: u32,
    /// RocketMQ's permission bits: 4 read, 2 write.
    pub permission: u32,
    /// Type of messages it accepts.
    pub message_type: MessageType,
}

impl TopicEntry {
    /// Whether consumers may read.
    #[must_use]
    pub const fn is_readable(&self) -> bool {
        self.permission & 4 != 0
    }

    /// The queue of messages with a priority: priorities above the last queue share it, as in RocketMQ.
    #[must_use]
    pub fn queue_of_priority(&self, priority: u32) -> u32 {
        priority.min(self.write_queues.saturating_sub(1))
    }

    /// Whether the number of a queue is the priority of its messages.
    #[must_use]
    pub fn is_by_priority(&self) -> bool {
        self.message_type == MessageType::Priority
    }

    /// Whether producers may write.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.permission & 2 != 0
    }

    /// Fails if a permission forbids writes, or if the topic, called `name`, has no write queues: it is then only read
    /// until it is empty.
    ///
    /// # Errors
    /// `TopicForbidden`, `TopicDrained`.
    pub fn check_writable(&self, name: &str) -> Result<(), TransportError> {
        if !self.is_writable() {
            return Err(TransportError::TopicForbidden { topic: name.to_owned(), done: "written" });
        }
        if self.write_queues == 0 {
            return Err(TransportError::TopicDrained(name.to_owned()));
        }
        Ok(())
    }
}

/// The hot path's knowledge of a consumer group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupEntry {
    /// Whether it may consume.
    pub enabled: bool,
    /// Most deliveries of a message before it is dead.
    pub max_attempts: u32,
    /// Where the group begins in a queue it never read: at the min offset if true, else at the max offset.
    pub from_beginning: bool,
    /// Whether each of its members may read all messages.
    pub broadcast: bool,
    /// Number of queues of its retry topic; if 0, messages that are sent back are dropped.
    pub retry_queues: u32,
    /// Whether its gRPC consumers receive each queue in order, one at a time.
    pub ordered: bool,
    /// How many of a hundred receives from a priority topic start with the highest priorities; the others start with
    /// any queue.
    pub priority_factor: u32,
}

impl GroupEntry {
    /// Deliveries of a message before it is dead; 1 for a group that wants no retries.
    #[must_use]
    pub fn deliveries(&self) -> u32 {
        self.max_attempts.max(1)
    }
}

type Shard<T> = ArcSwap<HashMap<Arc<str>, T>>;

/// Entries by name, read without a lock. A change copies one shard.
#[derive(Debug)]
pub struct Sharded<T> {
    shards: Shards<Shard<T>, SHARDS>,
    /// Serializes pushes; readers never take it.
    pushing: Mutex<()>,
}

impl<T> Default for Sharded<T> {
    fn default() -> Self {
        Self { shards: Shards::new(), pushing: Mutex::new(()) }
    }
}

impl<T: Clone> Sharded<T> {
    /// Returns the entry called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<T> {
        self.shards.of(name)?.load().get(name).cloned()
    }

    /// Adds or replaces an entry.
    pub fn insert(&self, name: &str, entry: T) {
        self.change(name, |map| _ = map.insert(name.into(), entry));
    }

    /// Removes an entry.
    pub fn remove(&self, name: &str) {
        self.change(name, |map| _ = map.remove(name));
    }

    /// Removes all entries.
    pub fn clear(&self) {
        let _pushing = self.pushing.lock();
        self.shards.iter().for_each(|shard| shard.store(Arc::default()));
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut HashMap<Arc<str>, T>)) {
        let _pushing = self.pushing.lock();
        if let Some(shard) = self.shards.of(name) {
            let mut map = HashMap::clone(&shard.load());
            change(&mut map);
            shard.store(Arc::new(map));
        }
    }
}

/// Topics and groups, as the control plane last pushed them.
#[derive(Debug, Default)]
pub struct Tables {
    topics: Sharded<TopicEntry>,
    groups: Sharded<GroupEntry>,
    /// Topics that a group must not read although it subscribes to them.
    forbidden: Sharded<Arc<[Box<str>]>>,
    /// The last millisecond in which a member of a group holds the lock of a queue.
    locked: Sharded<i64>,
    /// Subscriptions of live groups.
    pub subscriptions: Subscriptions,
    /// Cache of the filter expressions in requests.
    pub filters: Filters,
    /// Offsets at which members of groups must continue.
    pub resets: Resets,
}

impl Tables {
    /// Returns empty tables.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the topic's entry, if it exists.
    #[must_use]
    pub fn topic(&self, name: &str) -> Option<TopicEntry> {
        self.topics.get(name)
    }

    /// Returns the group's entry, if it exists.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<GroupEntry> {
        self.groups.get(name)
    }

    /// Adds a topic or replaces its entry.
    pub fn put_topic(&self, name: &str, entry: TopicEntry) {
        self.topics.insert(name, entry);
    }

    /// Removes a topic.
    pub fn remove_topic(&self, name: &str) {
        self.topics.remove(name);
    }

    /// Adds a group or replaces its entry.
    pub fn put_group(&self, name: &str, entry: GroupEntry) {
        self.groups.insert(name, entry);
    }

    /// Removes a group.
    pub fn remove_group(&self, name: &str) {
        self.groups.remove(name);
    }

    /// Sets the topics that a group must not read, in place of the previous ones.
    pub fn put_forbidden(&self, group: &str, topics: Vec<Box<str>>) {
        if topics.is_empty() {
            self.forbidden.remove(group);
        } else {
            self.forbidden.insert(group, topics.into());
        }
    }

    /// Returns whether a group must not read a topic.
    #[must_use]
    pub fn is_forbidden(&self, group: &str, topic: &str) -> bool {
        self.forbidden.get(group).is_some_and(|topics| topics.iter().any(|name| **name == *topic))
    }

    /// Sets until when members of a group hold locks of queues, in place of the previous time; `None` if none does.
    pub fn put_locked(&self, group: &str, until_ms: Option<i64>) {
        match until_ms {
            Some(until_ms) => self.locked.insert(group, until_ms),
            None => self.locked.remove(group),
        }
    }

    /// Returns whether a member of a group holds the lock of a queue, and so consumes in order.
    #[must_use]
    pub fn is_locked(&self, group: &str, now_ms: i64) -> bool {
        self.locked.get(group).is_some_and(|until_ms| now_ms <= until_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: TopicEntry =
        TopicEntry { read_queues: 8, write_queues: 4, permission: 6, message_type: MessageType::Normal };

    #[test]
    fn a_group_must_not_read_the_topics_pushed_last() {
        let tables = Tables::new();
        assert!(!tables.is_forbidden("g", "t"));
        tables.put_forbidden("g", vec!["t".into(), "u".into()]);
        assert!(tables.is_forbidden("g", "t"));
        assert!(!tables.is_forbidden("h", "t"));
        tables.put_forbidden("g", vec!["u".into()]);
        assert!(!tables.is_forbidden("g", "t"));
        tables.put_forbidden("g", Vec::new());
        assert!(!tables.is_forbidden("g", "u"));
    }

    #[test]
    fn a_group_holds_locks_until_the_millisecond_pushed_last() {
        let tables = Tables::new();
        assert!(!tables.is_locked("g", 0));
        tables.put_locked("g", Some(10));
        assert!(tables.is_locked("g", 10));
        assert!(!tables.is_locked("g", 11));
        assert!(!tables.is_locked("h", 10));
        tables.put_locked("g", None);
        assert!(!tables.is_locked("g", 10));
    }

    #[test]
    fn a_pushed_entry_is_read_until_it_is_removed() {
        let tables = Tables::new();
        assert_eq!(tables.topic("a"), None);
        tables.put_topic("a", TOPIC);
        tables.put_topic("b", TopicEntry { permission: 2, ..TOPIC });
        assert_eq!(tables.topic("a"), Some(TOPIC));
        assert!(!tables.topic("b").unwrap().is_readable());
        tables.remove_topic("a");
        assert_eq!(tables.topic("a"), None);
        assert!(tables.topic("b").is_some());
    }

    #[test]
    fn entries_pushed_by_many_threads_are_all_kept() {
        let tables = Tables::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let tables = &tables;
                scope.spawn(move || {
                    for index in 0..50 {
                        tables.put_topic(&format!("{thread}-{index}"), TOPIC);
                    }
                });
            }
        });
        for thread in 0..4 {
            for index in 0..50 {
                assert!(tables.topic(&format!("{thread}-{index}")).is_some());
            }
        }
    }

    #[test]
    fn a_topic_accepts_its_own_type_and_one_without_a_type_accepts_all() {
        for sent in MessageType::ALL {
            assert!(MessageType::Mixed.takes(sent) && MessageType::Unspecified.takes(sent));
            assert!(MessageType::Undecided.takes(sent));
            assert_eq!(MessageType::Fifo.takes(sent), sent == MessageType::Fifo);
        }
    }

    #[test]
    fn message_types_read_as_they_are_written() {
        for kind in MessageType::ALL {
            assert_eq!(kind.as_str().parse::<MessageType>().unwrap(), kind);
        }
        assert!("normal".parse::<MessageType>().unwrap_err().to_string().contains("normal"));
    }
}
