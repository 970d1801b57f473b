//! What administrators ask of groups' progress and of single entries of a queue: read, and forget.
//!
//! How progress is kept and written is `group_progress`'s business.

use std::collections::BTreeMap;

use crate::{
    error::{Result, StoreError},
    files::disk::Disk,
    queues::time_search::TimeSearch,
    store::message_store::MessageStore,
};

/// Committed offsets by `topic@group` and queue id, as consumerOffset.json names them.
type Offsets = BTreeMap<String, BTreeMap<u32, u64>>;

impl<D: Disk> MessageStore<D> {
    /// Committed offsets by `topic@group`, of one group and of one topic where they are given.
    #[must_use]
    pub fn committed_offsets(&self, group: Option<&str>, topic: Option<&str>) -> Offsets {
        self.progress().committed(group, topic)
    }

    /// Forgets what a group has read of all topics, or of one; its leases end.
    ///
    /// It is on disk when the call returns. Returns how many topics the group had read. Errors: `Closed`, `Io`.
    pub fn forget_group(&self, group: &str, topic: Option<&str>) -> Result<usize> {
        let inner = self.open_inner().ok_or(StoreError::Closed)?;
        let forgotten = self.progress().forget_group(group, topic);
        if forgotten > 0 {
            inner.persist_progress()?;
        }
        Ok(forgotten)
    }

    /// Takes over committed offsets of a master, by `topic@group`; what the master does not name stays as it is.
    ///
    /// No group is set past the end of a queue; of a queue without messages here the offset is kept for later.
    /// It is on disk when the call returns. Errors: `Closed`, `Io`.
    pub fn adopt_offsets(&self, offsets: &Offsets) -> Result<()> {
        let inner = self.open_inner().ok_or(StoreError::Closed)?;
        if self.progress().adopt(offsets, |topic, queue_id| inner.offset_limit(topic, queue_id)) {
            inner.persist_progress()?;
        }
        Ok(())
    }

    /// When the message at a queue offset was stored, milliseconds since 1970; `None` where it is not kept.
    #[must_use]
    pub fn stored_time(&self, topic: &str, queue_id: u32, queue_offset: u64) -> Option<i64> {
        let inner = self.open_inner()?;
        let queue = inner.queues.find(topic, queue_id)?;
        let is_kept = (queue.min_offset()..queue.max_offset()).contains(&queue_offset);
        is_kept.then(|| TimeSearch::new(&inner.log, &queue).time(queue_offset))?
    }

    /// Up to `count` entries of a consume queue from a queue offset on: physical offset, size, tag hash.
    ///
    /// `None` where there is no such queue. It stops early where an entry is missing.
    #[must_use]
    pub fn queue_entries(
        &self,
        topic: &str,
        queue_id: u32,
        from: u64,
        count: usize,
    ) -> Option<Vec<(u64, u32, i64)>> {
        let inner = self.open_inner()?;
        let queue = inner.queues.find(topic, queue_id)?;
        let mut entries = Vec::new();
        if from >= queue.min_offset() {
            queue.walk(from, |_, entry| {
                let Some(entry) = entry.filter(|_| entries.len() < count) else { return false };
                entries.push((entry.physical_offset, entry.size, entry.tag_hash));
                true
            });
        }
        Some(entries)
    }
}
