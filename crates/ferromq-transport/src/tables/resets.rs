//! Queues whose committed offset an administrator set while members of the group were reading them.
//!
//! The next pull is answered with the new offset in place of messages; until then, commits of the old one are ignored.
//! The store keeps the offset itself; the control plane knows the members.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

type Queues = HashMap<u32, u64>;
/// By group, then by topic.
type Groups = HashMap<Box<str>, HashMap<Box<str>, Queues>>;

/// Resets that no member has received yet.
#[derive(Debug, Default)]
pub struct Resets {
    /// Number of resets. Mostly 0, and then the lock is not taken.
    pending: AtomicUsize,
    groups: Mutex<Groups>,
}

impl Resets {
    /// Records that `group` continues at `offset` of a queue.
    pub fn put(&self, group: &str, topic: &str, queue_id: u32, offset: u64) {
        let mut groups = self.groups.lock();
        let queues = groups.entry(group.into()).or_default().entry(topic.into()).or_default();
        if queues.insert(queue_id, offset).is_none() {
            self.pending.fetch_add(1, Ordering::Release);
        }
    }

    /// Removes the resets of a group in a topic, or in all its topics.
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

    /// Returns whether a commit is accepted. A commit of any offset but the new one comes from a member that does not
    /// know the reset.
    ///
    /// A commit of the new offset comes from a member that learned it in another way, and ends the reset.
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

    /// Returns whether the reset of a queue has yet to reach a member.
    pub(crate) fn is_pending(&self, group: &str, topic: &str, queue_id: u32) -> bool {
        self.pending.load(Ordering::Acquire) > 0
            && self
                .groups
                .lock()
                .get(group)
                .and_then(|topics| topics.get(topic))
                .is_some_and(|queues| queues.contains_key(&queue_id))
    }

    /// Takes the offset at which a member must continue, once.
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
    fn a_reset_is_delivered_once_and_the_newest_wins() {
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
    fn a_commit_of_the_new_offset_ends_the_reset() {
        let resets = Resets::default();
        resets.put("g", "t", 0, 5);
        assert!(!resets.admits("g", "t", 0, 9));
        assert!(resets.admits("g", "t", 0, 5));
        assert!(resets.admits("g", "t", 0, 9));
        assert_eq!(resets.take("g", "t", 0), None);
        assert_eq!(resets.pending.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn resets_are_removed_for_one_topic_of_a_group_or_for_all() {
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
