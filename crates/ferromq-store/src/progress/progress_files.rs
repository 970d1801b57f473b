//! Reads the progress of consumer groups at open, and writes it back.
//!
//! `offset_file`, `lease_file` and `order_file` have the formats.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use crate::{
    derive::dispatched::Dispatched,
    error::{IoResult, Result},
    files::{anchor::Anchor, disk::Disk, store_directory::StoreDirectory},
    log::commit_log::CommitLog,
    progress::{
        group_progress::{Progress, join_name, split_name},
        lease::QueueLeases,
        lease_file::{self, QueueSnapshot, Writer},
        offset_file::OffsetFile,
        order_file::OrderFile,
    },
    sync::signal::Signal,
};

/// Means that consumerOffset.json had no line for this queue; no queue gets that long.
const NOTHING_BEFORE: u64 = u64::MAX;

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
}

/// Writes the progress of consumer groups to its files.
pub(crate) struct ProgressWriter<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) log: Arc<CommitLog<D>>,
    pub(crate) dispatched: Arc<Dispatched>,
    pub(crate) progress: Arc<Progress>,
    /// Stops the thread that writes at intervals.
    pub(crate) due: Signal,
}

impl<D: Disk> ProgressWriter<D> {
    /// Writes the files if something changed.
    ///
    /// Makes the log durable first, so that the files never refer to messages that are not on disk. If that fails,
    /// nothing is written.
    pub(crate) fn persist(&self) -> Result<()> {
        let _held = self.home.hold()?;
        let _writing = self.progress.writing.lock();
        if !self.progress.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.write().inspect_err(|_| self.progress.touch())
    }

    fn write(&self) -> Result<()> {
        let (disk, directory, progress) = (&self.home.disk, &self.home.root, &self.progress);
        let anchor = self.dispatched.anchor();
        let on_disk = Arc::clone(&progress.on_disk.lock());
        let mut file = OffsetFile::clone(&on_disk);
        let mut orders = progress.orders.lock().clone();
        let mut writer = Writer::new();
        progress.for_each(
            |_, _| true,
            |group, topic, queue_id, leases| {
                let name = join_name(topic, group);
                orders.put(&name, queue_id, leases);
                let queues = file.offsets.entry(name).or_default();
                let before = queues.insert(queue_id, leases.committed()).unwrap_or(NOTHING_BEFORE);
                writer.queue(group, topic, queue_id, before, leases);
            },
        );
        let log_position = self.log.flush()?;
        let path = snapshot_path(directory);
        disk.replace_file(&path, &writer.finish(log_position, anchor)).or_io("write", &path)?;
        if file != *on_disk || progress.is_file_due.load(Ordering::Acquire) {
            file.save(disk, directory)?;
            progress.is_file_due.store(false, Ordering::Release);
            *progress.on_disk.lock() = Arc::new(file);
        }
        let is_changed = orders != *progress.orders.lock();
        if is_changed || progress.are_orders_due.load(Ordering::Acquire) {
            orders.save(disk, directory)?;
            progress.are_orders_due.store(false, Ordering::Release);
            *progress.orders.lock() = orders;
        }
        Ok(())
    }
}

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
    let Some(bytes) = disk.read_file(&path).if_found().or_io("read", &path)? else { return Ok(None) };
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
