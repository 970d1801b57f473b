//! Queues whose committed offset was set by an administrator while members of the group were reading them.
//!
//! The next pull is answered with the new offset in place of messages; until then commits of the old one are ignored.
//! The offset itself is the store's, who is reading is known to the control plane.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

type Queues = HashMap<u32, u64>;
/// By group, then by topic.
type Groups = HashMap<Box<str>, HashMap<Box<str>, Queues>>;

/// The resets no member has been told of yet.
#[derive(Debug, Default)]
pub struct Resets {
    /// How many there are: mostly none, and then the lock is not taken.
    pending: AtomicUsize,
    groups: Mutex<Groups>,
}

impl Resets {
    /// Notes that `group` goes on at `offset` of a queue.
    pub fn put(&self, group: &str, topic: &str, queue_id: u32, offset: u64) {
        let mut groups = self.groups.lock();
        let queues = groups.entry(group.into()).or_default().entry(topic.into()).or_default();
        if queues.insert(queue_id, offset).is_none() {
            self.pending.fetch_add(1, Ordering::Release);
        }
    }

    /// Forgets what was noted for a group and a topic, or for all its topics.
    pub fn remove(&self, group: &str, topic: Option<&str>) {
        if self.pending.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut groups = self.groups.lock();
        let Some(topics) = groups.get_mut(group) else { return };
        let count = match topic {
            Some(topic) => topics.remove(topic).map_or(0, |queues| queues.len()),
            None => topics.drain().map(|(_, queues)| queues.len()).sum(),
        };
        if topics.is_empty() {
            groups.remove(group);
        }
        self.pending.fetch_sub(count, Ordering::Release);
    }

    /// Says whether a commit counts: one of another offset than the new one comes from a member that does not know.
    ///
    /// One of the new offset comes from a member that was told in another way; none has to be told any more.
    pub(crate) fn admits(&self, group: &str, topic: &str, queue_id: u32, offset: u64) -> bool {
        if self.pending.load(Ordering::Acquire) == 0 {
            return true;
        }
        let mut groups = self.groups.lock();
        let Some(pending) = groups.get(group).and_then(|topics| topics.get(topic)?.get(&queue_id)) else {
            return true;
        };
        if *pending != offset {
            return false;
        }
        self.forget(&mut groups, group, topic, queue_id);
        true
    }

    /// Says whether a member is to be told of an offset.
    pub(crate) fn is_pending(&self, group: &str, topic: &str, queue_id: u32) -> bool {
        self.pending.load(Ordering::Acquire) > 0
            && self
                .groups
                .lock()
                .get(group)
                .and_then(|topics| topics.get(topic))
                .is_some_and(|queues| queues.contains_key(&queue_id))
    }

    /// Takes the offset a member is to be told, once.
    pub(crate) fn take(&self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        if self.pending.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.forget(&mut self.groups.lock(), group, topic, queue_id)
    }

    fn forget(&self, groups: &mut Groups, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        let topics = groups.get_mut(group)?;
        let queues = topics.get_mut(topic)?;
        let offset = queues.remove(&queue_id)?;
        self.pending.fetch_sub(1, Ordering::Release);
        if queues.is_empty() {
            topics.remove(topic);
        }
        if topics.is_empty() {
            groups.remove(group);
        }
        Some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_told_once_and_the_newest_counts() {
        let resets = Resets::default();
        resets.put("g", "t", 0, 5);
        resets.put("g", "t", 0, 7);
        assert!(!resets.admits("g", "t", 0, 5));
        assert!(resets.admits("g", "t", 1, 5));
        assert!(resets.admits("h", "t", 0, 5));
        assert_eq!(resets.take("g", "u", 0), None);
        assert_eq!(resets.take("g", "t", 0), Some(7));
        assert_eq!(resets.take("g", "t", 0), None);
        assert!(resets.admits("g", "t", 0, 5));
        assert_eq!(resets.pending.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_commit_of_the_new_offset_says_that_a_member_knows() {
        let resets = Resets::default();
        resets.put("g", "t", 0, 5);
        assert!(!resets.admits("g", "t", 0, 9));
        assert!(resets.admits("g", "t", 0, 5));
        assert!(resets.admits("g", "t", 0, 9));
        assert_eq!(resets.take("g", "t", 0), None);
        assert_eq!(resets.pending.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn resets_end_for_one_topic_of_a_group_or_for_all() {
        let resets = Resets::default();
        resets.put("g", "t", 0, 5);
        resets.put("g", "t", 1, 5);
        resets.put("g", "u", 1, 5);
        resets.put("g", "v", 0, 5);
        resets.put("h", "t", 0, 5);
        resets.remove("g", Some("t"));
        assert_eq!(resets.take("g", "t", 1), None);
        assert_eq!(resets.take("g", "u", 1), Some(5));
        resets.remove("g", None);
        assert_eq!(resets.take("g", "v", 0), None);
        assert_eq!(resets.take("h", "t", 0), Some(5));
        assert_eq!(resets.pending.load(Ordering::Relaxed), 0);
    }
}
