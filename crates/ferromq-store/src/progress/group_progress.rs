//! The progress of all consumer groups: a table of queues, loaded from disk at open and written back.
//!
//! Each queue has its own mutex, found through a map that is almost only read. `lease` has the rules of leases;
//! `offset_file` and `lease_file` have the file formats.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, RwLock};

use crate::progress::{
    lease::QueueLeases,
    lease_file::{self, QueueSnapshot, Writer},
    offset_file::OffsetFile,
    order_file::OrderFile,
};
use crate::{
    error::{Result, StoreError},
    files::{anchor::Anchor, disk::Disk},
    progress::java_leases::JavaLeases,
};

type Queue = Arc<Mutex<QueueLeases>>;
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
    dirty: AtomicBool,
    /// Whether consumerOffset.json differs from `on_disk`.
    is_file_due: AtomicBool,
    /// The content of consumerOffset.json. Never locked during an operation of the disk.
    on_disk: Mutex<Arc<OffsetFile>>,
    /// The content of consumerOrderInfo.json; its next content while `are_orders_due` is set.
    orders: Mutex<OrderFile>,
    are_orders_due: AtomicBool,
    /// Held by the thread that writes.
    writing: Mutex<()>,
}

impl Progress {
    /// Reads the files from the store directory.
    ///
    /// `max_offset` returns the end of a queue in the recovered log; offsets are cut to it. Offsets of unknown queues
    /// (0) stay in the file until a group uses them. Leases count only if `is_trusted` confirms from their anchor that
    /// no other broker opened the store since. Otherwise RocketMQ's file of ordered receives counts.
    pub(crate) fn load<D: Disk>(
        disk: &D,
        directory: &Path,
        max_offset: impl Fn(&str, u32) -> u64,
        is_trusted: impl Fn(Anchor) -> bool,
        now: i64,
    ) -> Result<Self> {
        let file = OffsetFile::load(disk, directory)?;
        let orders = OrderFile::load(disk, directory);
        let snapshots = load_snapshots(disk, directory, is_trusted)?;
        let is_ours = snapshots.is_some();
        let mut snapshots = snapshots.unwrap_or_default();
        let progress = Self::default();
        for (name, offsets) in &file.offsets {
            let Some((topic, group)) = split_name(name) else { continue };
            for (&queue_id, &offset) in offsets {
                let end = max_offset(topic, queue_id);
                if end == 0 {
                    continue;
                }
                let key = (group.to_owned(), topic.to_owned(), queue_id);
                let mut leases = snapshots
                    .remove(&key)
                    .filter(|snapshot| offset == snapshot.committed || offset == snapshot.committed_before)
                    .map(|mut snapshot| {
                        orders.add_delivered(name, queue_id, &mut snapshot.leases);
                        snapshot.leases
                    })
                    .or_else(|| orders.leases(name, queue_id, offset, now).filter(|_| !is_ours))
                    .unwrap_or_else(|| QueueLeases::new(offset));
                leases.clamp(end);
                leases.end_by(now);
                progress.insert(group, topic, queue_id, leases);
            }
        }
        // Happens after a kill between a queue's first snapshot and its first line in consumerOffset.json.
        for ((group, topic, queue_id), mut snapshot) in snapshots {
            let is_listed =
                file.offsets.get(&join_name(&topic, &group)).is_some_and(|q| q.contains_key(&queue_id));
            let end = max_offset(&topic, queue_id);
            if !is_listed && snapshot.committed_before == NOTHING_BEFORE && end > 0 {
                snapshot.leases.clamp(end);
                snapshot.leases.end_by(now);
                progress.insert(&group, &topic, queue_id, snapshot.leases);
            }
        }
        *progress.on_disk.lock() = Arc::new(file);
        *progress.orders.lock() = orders;
        progress.dirty.store(true, Ordering::Release);
        Ok(progress)
    }

    /// The topic as the group reads it, if it ever did.
    pub(crate) fn group_topic(&self, group: &str, topic: &str) -> Option<Arc<GroupTopic>> {
        self.groups.read().get(group)?.get(topic).cloned()
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
        match self.group_topic(group, topic).and_then(|found| found.queue(queue_id)) {
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

    /// Deletes the progress of deleted topics. The files follow at the next write.
    pub(crate) fn forget_topics(&self, topics: &BTreeSet<&str>) {
        let _writing = self.writing.lock();
        self.groups
            .write()
            .values_mut()
            .for_each(|of_group| of_group.retain(|topic, _| !topics.contains(&**topic)));
        let is_kept = |name: &str| split_name(name).is_none_or(|(topic, _)| !topics.contains(topic));
        self.are_orders_due.fetch_or(self.orders.lock().retain(is_kept), Ordering::AcqRel);
        let mut on_disk = self.on_disk.lock();
        let mut file = OffsetFile::clone(&on_disk);
        file.offsets.retain(|name, _| is_kept(name));
        if file != **on_disk {
            *on_disk = Arc::new(file);
            self.is_file_due.store(true, Ordering::Release);
        }
        drop(on_disk);
        self.touch();
    }

    /// Deletes a group's progress in all topics or in one. Returns the number of topics.
    pub(crate) fn forget_group(&self, group: &str, topic: Option<&str>) -> usize {
        let is_meant = |of_topic: &str| topic.is_none_or(|topic| topic == of_topic);
        let _writing = self.writing.lock();
        let mut topics: BTreeSet<Box<str>> = BTreeSet::new();
        {
            let mut groups = self.groups.write();
            if let Some(of_group) = groups.get_mut(group) {
                of_group.retain(|topic, _| !is_meant(topic) || !topics.insert(topic.clone()));
                if of_group.is_empty() {
                    groups.remove(group);
                }
            }
        }
        let is_kept = |name: &str| {
            split_name(name).is_none_or(|(topic, of_group)| of_group != group || !is_meant(topic))
        };
        self.are_orders_due.fetch_or(self.orders.lock().retain(is_kept), Ordering::AcqRel);
        let mut on_disk = self.on_disk.lock();
        let mut file = OffsetFile::clone(&on_disk);
        file.offsets.retain(|name, _| match split_name(name) {
            Some((topic, of_group)) if of_group == group && is_meant(topic) => {
                topics.insert(topic.into());
                false
            }
            _ => true,
        });
        if file != **on_disk {
            *on_disk = Arc::new(file);
            self.is_file_due.store(true, Ordering::Release);
        }
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
        let is_new = self.group_topic(group, topic).and_then(|found| found.queue(queue_id)).is_none();
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

    /// Writes the files if something changed.
    ///
    /// `anchor` is a record of the log. `flush` makes the log durable and returns its durable end, so that the files
    /// never refer to messages that are not on disk. If it fails, nothing is written.
    pub(crate) fn persist<D: Disk>(
        &self,
        disk: &D,
        directory: &Path,
        anchor: Anchor,
        flush: impl FnOnce() -> Result<u64>,
    ) -> Result<()> {
        let _writing = self.writing.lock();
        if !self.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let done = self.write(disk, directory, anchor, flush);
        if done.is_err() {
            self.touch();
        }
        done
    }

    fn write<D: Disk>(
        &self,
        disk: &D,
        directory: &Path,
        anchor: Anchor,
        flush: impl FnOnce() -> Result<u64>,
    ) -> Result<()> {
        let on_disk = Arc::clone(&self.on_disk.lock());
        let mut file = OffsetFile::clone(&on_disk);
        let mut orders = self.orders.lock().clone();
        let mut writer = Writer::new();
        self.for_each(
            |_, _| true,
            |group, topic, queue_id, leases| {
                let name = join_name(topic, group);
                orders.put(&name, queue_id, leases);
                let queues = file.offsets.entry(name).or_default();
                let before = queues.insert(queue_id, leases.committed()).unwrap_or(NOTHING_BEFORE);
                writer.queue(group, topic, queue_id, before, leases);
            },
        );
        let log_position = flush()?;
        let path = snapshot_path(directory);
        let failed = |source| StoreError::Io { operation: "write", path: path.clone(), source };
        if let Some(parent) = path.parent() {
            disk.create_dir(parent).map_err(failed)?;
        }
        disk.replace_file(&path, &writer.finish(log_position, anchor)).map_err(failed)?;
        if file != *on_disk || self.is_file_due.load(Ordering::Acquire) {
            file.save(disk, directory)?;
            self.is_file_due.store(false, Ordering::Release);
            *self.on_disk.lock() = Arc::new(file);
        }
        let is_changed = orders != *self.orders.lock();
        if is_changed || self.are_orders_due.load(Ordering::Acquire) {
            orders.save(disk, directory)?;
            self.are_orders_due.store(false, Ordering::Release);
            *self.orders.lock() = orders;
        }
        Ok(())
    }

    /// Visits the queues of the selected topics and groups.
    fn for_each(
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

    fn insert(&self, group: &str, topic: &str, queue_id: u32, leases: QueueLeases) {
        let queues = self.group_topic_or_new(group, topic);
        queues.queues.write().insert(queue_id, Arc::new(Mutex::new(leases)));
    }
}

/// Means that consumerOffset.json had no line for this queue; no queue gets that long.
const NOTHING_BEFORE: u64 = u64::MAX;

fn snapshot_path(directory: &Path) -> PathBuf {
    directory.join("ferromq").join("leases")
}

type SnapshotKey = (String, String, u32);

/// Reads the lease snapshot; `None` if there is no valid one.
///
/// An unreadable snapshot is logged and ignored. It costs early redelivery, never a message.
fn load_snapshots<D: Disk>(
    disk: &D,
    directory: &Path,
    is_trusted: impl Fn(Anchor) -> bool,
) -> Result<Option<HashMap<SnapshotKey, QueueSnapshot>>> {
    let path = snapshot_path(directory);
    let bytes = match disk.read_file(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StoreError::Io { operation: "read", path, source }),
    };
    match lease_file::read(&bytes) {
        Ok((anchor, _)) if !is_trusted(anchor) => {
            tracing::info!(file = %path.display(), "lease snapshot does not match the log: ignored");
            Ok(None)
        }
        Ok((_, queues)) => {
            tracing::debug!(queues = queues.len(), "lease snapshot read");
            let by_key = |q: QueueSnapshot| ((q.group.clone(), q.topic.clone(), q.queue_id), q);
            Ok(Some(queues.into_iter().map(by_key).collect()))
        }
        Err(reason) => {
            tracing::warn!(file = %path.display(), reason, "lease snapshot ignored: unacknowledged messages are redelivered early");
            Ok(None)
        }
    }
}

fn join_name(topic: &str, group: &str) -> String {
    format!("{topic}@{group}")
}

/// Names with more than one `@` are not RocketMQ's and stay in the file untouched.
fn split_name(name: &str) -> Option<(&str, &str)> {
    name.split_once('@').filter(|(_, group)| !group.contains('@'))
}

/// A thread that calls a function at intervals until it is stopped.
pub(crate) struct ProgressThread {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ProgressThread {
    /// Calls `work` every `interval`, or less often so that it takes at most a tenth of the time.
    pub(crate) fn start(
        interval: Duration,
        mut work: impl FnMut() + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let asked = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("ferromq-progress".into()).spawn(move || {
            let (stopped, changed) = &*asked;
            let mut pause = interval;
            let mut is_stopped = stopped.lock();
            while !*is_stopped {
                if !changed.wait_for(&mut is_stopped, pause).timed_out() {
                    continue;
                }
                parking_lot::MutexGuard::unlocked(&mut is_stopped, || {
                    let began = Instant::now();
                    work();
                    pause = interval.max(began.elapsed() * 10);
                });
            }
        })?;
        Ok(Self { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Stops the thread and waits for it. Idempotent.
    pub(crate) fn stop(&self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // The thread has printed its own panic.
            let _ = thread.join();
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.stop();
    }
}
