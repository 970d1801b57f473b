//! Counts messages and bytes in and out, by topic and consumer group, since the server started.
//!
//! Only totals are kept: two snapshots make a rate.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::RwLock;

use crate::tables::shards::Shards;

const SHARDS: usize = 32;
/// Upper bounds of the classes of message sizes but the last, in bytes; RocketMQ's.
pub const SIZE_BOUNDS: [u64; 6] = [1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
const SIZES: usize = SIZE_BOUNDS.len() + 1;

/// Messages and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Messages.
    pub messages: u64,
    /// Bytes of their records.
    pub bytes: u64,
}

/// All totals so far; consumer groups as `topic@group`, reasons as `topic@reason`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrafficSnapshot {
    /// Stored, by topic.
    pub put: HashMap<String, Tally>,
    /// The part of `put` that producers sent: no delayed deliveries, retries and dead letters.
    pub sent: HashMap<String, Tally>,
    /// Read, by topic and group.
    pub get: HashMap<String, Tally>,
    /// Sent back to be consumed later, by topic and group.
    pub send_back: HashMap<String, Tally>,
    /// Stored as dead letters, by topic and group; bytes are not counted.
    pub dead: HashMap<String, Tally>,
    /// Refused sends and reads, by topic and reason; bytes are not counted.
    pub refused: HashMap<String, Tally>,
    /// Messages by the mean size of the records of their send, by topic; the last class has no bound.
    pub sizes: HashMap<String, [u64; SIZES]>,
}

/// The counters. The first count of a name allocates it; later ones take a shared lock of its shard.
#[derive(Debug, Default)]
pub struct Traffic {
    put: ShardedMap<PutTally>,
    get: ShardedMap<HashMap<Box<str>, AtomicTally>>,
    send_back: ShardedMap<HashMap<Box<str>, AtomicTally>>,
    dead: ShardedMap<HashMap<Box<str>, AtomicTally>>,
    refused: ShardedMap<HashMap<Box<str>, AtomicTally>>,
}

impl Traffic {
    /// Counts messages stored in a topic that no producer sent.
    pub fn count_put(&self, topic: &str, messages: u64, bytes: u64) {
        self.put.with(topic, |tally| tally.add(messages, bytes), |_| {});
    }

    /// Counts messages of a producer that were stored in a topic.
    pub fn count_sent(&self, topic: &str, messages: u64, bytes: u64) {
        self.put.with(topic, |tally| tally.add(messages, bytes) && tally.sent.add(messages, bytes), |_| {});
    }

    /// Counts messages a group read.
    pub fn count_get(&self, topic: &str, group: &str, messages: u64, bytes: u64) {
        count_for(&self.get, topic, group, messages, bytes);
    }

    /// Counts messages a group sent back.
    pub fn count_send_back(&self, topic: &str, group: &str, messages: u64, bytes: u64) {
        count_for(&self.send_back, topic, group, messages, bytes);
    }

    /// Counts a message of a group that was stored as a dead letter.
    pub fn count_dead(&self, topic: &str, group: &str) {
        count_for(&self.dead, topic, group, 1, 0);
    }

    /// Counts a send to a topic, or a read, that was refused. The topic must exist: clients make up names.
    pub fn count_refused(&self, topic: &str, reason: &str) {
        count_for(&self.refused, topic, reason, 1, 0);
    }

    /// Removes a deleted topic.
    pub fn forget_topic(&self, topic: &str) {
        self.put.remove(topic);
        self.get.remove(topic);
        self.send_back.remove(topic);
        self.dead.remove(topic);
        self.refused.remove(topic);
    }

    /// Removes a deleted group.
    pub fn forget_group(&self, group: &str) {
        for table in [&self.get, &self.send_back, &self.dead] {
            for shard in table.0.iter() {
                shard.write().retain(|_, groups| {
                    groups.remove(group);
                    !groups.is_empty()
                });
            }
        }
    }

    /// Returns all totals so far. Counts made meanwhile may or may not be included.
    #[must_use]
    pub fn snapshot(&self) -> TrafficSnapshot {
        let mut snapshot = TrafficSnapshot::default();
        for shard in self.put.0.iter() {
            for (topic, PutTally { tally, sent, sizes }) in shard.read().iter() {
                snapshot.put.insert(topic.to_string(), tally.load());
                snapshot.sent.insert(topic.to_string(), sent.load());
                let sizes = std::array::from_fn(|class| {
                    sizes.get(class).map_or(0, |count| count.load(Ordering::Relaxed))
                });
                snapshot.sizes.insert(topic.to_string(), sizes);
            }
        }
        for (table, out) in [
            (&self.get, &mut snapshot.get),
            (&self.send_back, &mut snapshot.send_back),
            (&self.dead, &mut snapshot.dead),
            (&self.refused, &mut snapshot.refused),
        ] {
            for shard in table.0.iter() {
                for (topic, groups) in shard.read().iter() {
                    out.extend(
                        groups.iter().map(|(group, tally)| (format!("{topic}@{group}"), tally.load())),
                    );
                }
            }
        }
        snapshot
    }
}

/// Counts for a group, or a reason.
fn count_for(
    table: &ShardedMap<HashMap<Box<str>, AtomicTally>>,
    topic: &str,
    name: &str,
    messages: u64,
    bytes: u64,
) {
    table.with(
        topic,
        |tallies| tallies.get(name).is_some_and(|tally| tally.add(messages, bytes)),
        |tallies| _ = tallies.entry(name.into()).or_default().add(messages, bytes),
    );
}

#[derive(Debug, Default)]
struct AtomicTally {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl AtomicTally {
    /// Adds the counts. Always `true`: they are counted.
    fn add(&self, messages: u64, bytes: u64) -> bool {
        self.messages.fetch_add(messages, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    fn load(&self) -> Tally {
        Tally { messages: self.messages.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}

/// The tally of a topic, the part that producers sent, and its messages by the mean size of their send.
#[derive(Debug, Default)]
struct PutTally {
    tally: AtomicTally,
    sent: AtomicTally,
    sizes: [AtomicU64; SIZES],
}

impl PutTally {
    fn add(&self, messages: u64, bytes: u64) -> bool {
        let mean = bytes.checked_div(messages).unwrap_or(0);
        if messages > 0 {
            let class = SIZE_BOUNDS.iter().position(|bound| mean <= *bound).unwrap_or(SIZE_BOUNDS.len());
            if let Some(count) = self.sizes.get(class) {
                count.fetch_add(messages, Ordering::Relaxed);
            }
        }
        self.tally.add(messages, bytes)
    }
}

/// A map in shards.
#[derive(Debug)]
struct ShardedMap<T>(Shards<RwLock<HashMap<Box<str>, T>>, SHARDS>);

impl<T> Default for ShardedMap<T> {
    fn default() -> Self {
        Self(Shards::new())
    }
}

impl<T: Default> ShardedMap<T> {
    /// Counts by `known` under a shared lock; if that returns `false`, by `new` under an exclusive one.
    fn with(&self, name: &str, known: impl Fn(&T) -> bool, new: impl FnOnce(&mut T)) {
        let Some(shard) = self.0.of(name) else { return };
        if shard.read().get(name).is_some_and(&known) {
            return;
        }
        let mut shard = shard.write();
        let entry = shard.entry(name.into()).or_default();
        // Another thread may have added it between the locks.
        if !known(entry) {
            new(entry);
        }
    }

    fn remove(&self, name: &str) {
        if let Some(shard) = self.0.of(name) {
            shard.write().remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_many_threads_add_up() {
        let traffic = Traffic::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let traffic = &traffic;
                scope.spawn(move || {
                    for index in 0..500 {
                        traffic.count_put(&format!("topic-{}", index % 50), 2, 10);
                        traffic.count_get("flights", &format!("group-{thread}"), 1, 5);
                    }
                });
            }
        });
        let snapshot = traffic.snapshot();
        assert_eq!(snapshot.put.len(), 50);
        assert!(snapshot.put.values().all(|tally| *tally == Tally { messages: 80, bytes: 400 }));
        assert_eq!(snapshot.get.len(), 4);
        assert_eq!(snapshot.get["flights@group-3"], Tally { messages: 500, bytes: 2_500 });
    }

    #[test]
    fn messages_are_counted_by_the_mean_size_of_their_send() {
        let traffic = Traffic::default();
        for (messages, bytes) in [(1, 1 << 10), (4, 4 << 10), (1, (1 << 10) + 1), (1, 5 << 20), (0, 0)] {
            traffic.count_put("flights", messages, bytes);
        }
        assert_eq!(traffic.snapshot().sizes["flights"], [5, 1, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn sends_are_a_part_of_what_is_stored() {
        let traffic = Traffic::default();
        traffic.count_sent("flights", 2, 20);
        traffic.count_put("flights", 1, 10);
        traffic.count_put("delayed", 1, 10);
        let snapshot = traffic.snapshot();
        assert_eq!(snapshot.put["flights"], Tally { messages: 3, bytes: 30 });
        assert_eq!(snapshot.sent["flights"], Tally { messages: 2, bytes: 20 });
        assert_eq!(snapshot.sent["delayed"], Tally::default());
    }

    #[test]
    fn deleted_names_are_removed() {
        let traffic = Traffic::default();
        traffic.count_put("flights", 1, 1);
        traffic.count_get("flights", "audit", 1, 1);
        traffic.count_send_back("trains", "audit", 1, 1);
        traffic.count_dead("flights", "audit");
        traffic.count_refused("flights", "topic_limit");
        traffic.forget_topic("flights");
        assert_eq!(traffic.snapshot().send_back.len(), 1);
        traffic.forget_group("audit");
        assert_eq!(traffic.snapshot(), TrafficSnapshot::default());
    }
}
