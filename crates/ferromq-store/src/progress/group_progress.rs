//! The progress of all consumer groups: a table of queues.
//!
//! Each queue has its own mutex, found through a map that is almost only read. `lease` has the rules of leases,
//! `progress_files` reads and writes the table.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};

use crate::progress::{
    java_leases::JavaLeases, lease::QueueLeases, offset_file::OffsetFile, order_file::OrderFile,
};

pub(super) type Queue = Arc<Mutex<QueueLeases>>;
type Topics = HashMap<Box<str>, Arc<GroupTopic>>;

/// The queues of one topic as one group reads them.
#[derive(Debug, Default)]
pub(crate) struct GroupTopic {
    queues: RwLock<HashMap<u32, Queue>>,
}

impl GroupTopic {
    /// The queue's progress, if the group has any.
    pub(crate) fn queue(&self, queue_id: u32) -> Option<Queue> {
        self.queues.read().get(&queue_id).cloned()
    }

    /// The queue's progress. If the group has none yet, it begins at `first`.
    pub(crate) fn queue_or_begin(&self, queue_id: u32, first: impl FnOnce() -> u64) -> Queue {
        if let Some(queue) = self.queue(queue_id) {
            return queue;
        }
        // Call it before locking: it may wait for the thread that writes the files.
        let first = first();
        let mut queues = self.queues.write();
        Arc::clone(queues.entry(queue_id).or_insert_with(|| Arc::new(Mutex::new(QueueLeases::new(first)))))
    }
}

/// Progress of all groups.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    groups: RwLock<HashMap<Box<str>, Topics>>,
    pub(super) dirty: AtomicBool,
    /// Whether consumerOffset.json differs from `on_disk`.
    pub(super) is_file_due: AtomicBool,
    /// The content of consumerOffset.json. Never locked during an operation of the disk.
    pub(super) on_disk: Mutex<Arc<OffsetFile>>,
    /// The content of consumerOrderInfo.json; its next content while `are_orders_due` is set.
    pub(super) orders: Mutex<OrderFile>,
    pub(super) are_orders_due: AtomicBool,
    /// Held by the thread that writes.
    pub(super) writing: Mutex<()>,
}

impl Progress {
    /// The topic as the group reads it, if it ever did.
    fn group_topic(&self, group: &str, topic: &str) -> Option<Arc<GroupTopic>> {
        self.groups.read().get(group)?.get(topic).cloned()
    }

    /// The group's progress in a queue, if it has any.
    pub(super) fn queue(&self, group: &str, topic: &str, queue_id: u32) -> Option<Queue> {
        self.group_topic(group, topic)?.queue(queue_id)
    }

    /// The topic as the group reads it, created on first use.
    pub(crate) fn group_topic_or_new(&self, group: &str, topic: &str) -> Arc<GroupTopic> {
        if let Some(found) = self.group_topic(group, topic) {
            return found;
        }
        let mut groups = self.groups.write();
        Arc::clone(groups.entry(group.into()).or_default().entry(topic.into()).or_default())
    }

    /// Imports leases of another broker, which committed messages when it handed them out. Returns how many.
    ///
    /// Skips leases of messages that the group will read anyway or that are no longer kept (`bounds` are the queue's
    /// offsets). A group without a committed offset begins at the first message handed out.
    pub(crate) fn take_over(
        &self,
        group: &str,
        topic: &str,
        queue_id: u32,
        held: JavaLeases,
        bounds: (u64, u64),
    ) -> usize {
        let queue = self.group_topic_or_new(group, topic).queue_or_begin(queue_id, || {
            self.listed(group, topic, queue_id).unwrap_or(held.first).min(bounds.1)
        });
        let mut leases = queue.lock();
        if held.is_rewound {
            let first = held.first.clamp(bounds.0, bounds.1);
            if first < leases.committed() {
                leases.reset(first);
            }
            return 0;
        }
        let kept = held.leases.into_iter().filter(|(offset, _)| *offset >= bounds.0);
        kept.filter(|(offset, lease)| leases.restore(*offset, *lease)).count()
    }

    /// The group's committed offset of a queue.
    pub(crate) fn committed_of(&self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        match self.queue(group, topic, queue_id) {
            Some(queue) => Some(queue.lock().committed()),
            None => self.listed(group, topic, queue_id),
        }
    }

    /// Sets the committed offset of a queue, forward or back.
    pub(crate) fn set(&self, group: &str, topic: &str, queue_id: u32, offset: u64) {
        self.group_topic_or_new(group, topic).queue_or_begin(queue_id, || offset).lock().reset(offset);
    }

    /// Cuts all groups' offsets of a queue to its end, which was unknown before.
    pub(crate) fn clamp(&self, topic: &str, queue_id: u32, end: u64) {
        let queues: Vec<Queue> = {
            let groups = self.groups.read();
            let of_topic = groups.values().filter_map(|topics| topics.get(topic));
            of_topic.filter_map(|found| found.queue(queue_id)).collect()
        };
        queues.iter().for_each(|queue| queue.lock().clamp(end));
        self.touch();
    }

    /// Committed offset from the file, for a queue that no group has used since open.
    pub(crate) fn listed(&self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        self.on_disk.lock().offsets.get(&join_name(topic, group))?.get(&queue_id).copied()
    }

    /// Deletes the progress that `is_meant` selects by topic and group, in this order. The files follow at the next
    /// write. Returns the number of topics.
    pub(crate) fn forget(&self, is_meant: impl Fn(&str, &str) -> bool) -> usize {
        let _writing = self.writing.lock();
        let mut topics: BTreeSet<Box<str>> = BTreeSet::new();
        self.groups.write().retain(|group, of_group| {
            topics.extend(of_group.extract_if(|topic, _| is_meant(topic, group)).map(|(topic, _)| topic));
            !of_group.is_empty()
        });
        let is_kept = |name: &str| split_name(name).is_none_or(|(topic, group)| !is_meant(topic, group));
        self.are_orders_due.fetch_or(self.orders.lock().retain(is_kept), Ordering::AcqRel);
        let mut on_disk = self.on_disk.lock();
        let mut file = OffsetFile::clone(&on_disk);
        for (name, _) in file.offsets.extract_if(.., |name, _| !is_kept(name)) {
            topics.extend(split_name(&name).map(|(topic, _)| topic.into()));
            self.is_file_due.store(true, Ordering::Release);
        }
        *on_disk = Arc::new(file);
        drop(on_disk);
        self.touch();
        topics.len()
    }

    /// Imports offsets by `topic@group` and queue; other queues keep theirs. Returns whether anything changed.
    ///
    /// `max_offset` returns the end of a queue here; offsets are cut to it. The offset of a queue without messages here
    /// (0) stays in the file unchanged, as in `load`.
    pub(crate) fn adopt(
        &self,
        offsets: &BTreeMap<String, BTreeMap<u32, u64>>,
        max_offset: impl Fn(&str, u32) -> u64,
    ) -> bool {
        let _writing = self.writing.lock();
        let before = Arc::clone(&self.on_disk.lock());
        let mut file = OffsetFile::clone(&before);
        let mut has_moved = false;
        for (name, queues) in offsets {
            let Some((topic, group)) = split_name(name) else { continue };
            for (&queue_id, &offset) in queues {
                let end = max_offset(topic, queue_id);
                if end > 0 {
                    has_moved |= self.move_to(group, topic, queue_id, offset.min(end));
                } else {
                    // A commit by a client here was cut to the end of an empty queue.
                    if let Some(found) = self.group_topic(group, topic) {
                        found.queues.write().remove(&queue_id);
                    }
                    file.offsets.entry(name.clone()).or_default().insert(queue_id, offset);
                }
            }
        }
        let is_file_changed = file != *before;
        if is_file_changed {
            *self.on_disk.lock() = Arc::new(file);
            self.is_file_due.store(true, Ordering::Release);
        }
        if has_moved || is_file_changed {
            self.touch();
        }
        has_moved || is_file_changed
    }

    fn move_to(&self, group: &str, topic: &str, queue_id: u32, offset: u64) -> bool {
        let is_new = self.queue(group, topic, queue_id).is_none();
        let queue = self.group_topic_or_new(group, topic).queue_or_begin(queue_id, || offset);
        let mut leases = queue.lock();
        let has_moved = is_new || leases.committed() != offset;
        if has_moved {
            leases.commit(offset);
        }
        has_moved
    }

    /// Committed offsets by `topic@group` and queue, optionally of one group and one topic.
    pub(crate) fn committed(
        &self,
        group: Option<&str>,
        topic: Option<&str>,
    ) -> BTreeMap<String, BTreeMap<u32, u64>> {
        let is_meant = |of_topic: &str, of_group: &str| {
            group.is_none_or(|group| group == of_group) && topic.is_none_or(|topic| topic == of_topic)
        };
        let file = Arc::clone(&self.on_disk.lock());
        let listed = file.offsets.iter();
        let mut offsets: BTreeMap<String, BTreeMap<u32, u64>> = listed
            .filter(|(name, _)| split_name(name).is_some_and(|(topic, group)| is_meant(topic, group)))
            .map(|(name, queues)| (name.clone(), queues.clone()))
            .collect();
        self.for_each(is_meant, |group, topic, queue_id, leases| {
            offsets.entry(join_name(topic, group)).or_default().insert(queue_id, leases.committed());
        });
        offsets
    }

    /// Marks the progress as changed.
    pub(crate) fn touch(&self) {
        // It is usually set already. A load keeps the cache line shared between cores.
        if !self.dirty.load(Ordering::Acquire) {
            self.dirty.store(true, Ordering::Release);
        }
    }

    /// Visits the queues of the selected topics and groups.
    pub(super) fn for_each(
        &self,
        is_meant: impl Fn(&str, &str) -> bool,
        mut visit: impl FnMut(&str, &str, u32, &QueueLeases),
    ) {
        let all: Vec<(Box<str>, Box<str>, Arc<GroupTopic>)> = {
            let groups = self.groups.read();
            let topics =
                groups.iter().flat_map(|(group, topics)| topics.iter().map(move |(t, q)| (group, t, q)));
            topics
                .filter(|(group, topic, _)| is_meant(topic, group))
                .map(|(group, topic, queues)| (group.clone(), topic.clone(), Arc::clone(queues)))
                .collect()
        };
        for (group, topic, queues) in all {
            let queues: Vec<(u32, Queue)> =
                queues.queues.read().iter().map(|(&id, queue)| (id, Arc::clone(queue))).collect();
            for (id, queue) in queues {
                visit(&group, &topic, id, &queue.lock());
            }
        }
    }

    pub(super) fn insert(&self, group: &str, topic: &str, queue_id: u32, leases: QueueLeases) {
        let queues = self.group_topic_or_new(group, topic);
        queues.queues.write().insert(queue_id, Arc::new(Mutex::new(leases)));
    }
}

pub(super) fn join_name(topic: &str, group: &str) -> String {
    format!("{topic}@{group}")
}

/// Names with more than one `@` are not RocketMQ's and stay in the file untouched.
pub(super) fn split_name(name: &str) -> Option<(&str, &str)> {
    name.split_once('@').filter(|(_, group)| !group.contains('@'))
}
