//! Administration of consumer groups: reads, deletes and imports their progress.

use std::collections::BTreeMap;

use crate::{
    error::Result,
    files::disk::Disk,
    progress::{lease::Delivery, receive::Groups},
};

/// Committed offsets by `topic@group` and queue id, as consumerOffset.json names them.
type Offsets = BTreeMap<String, BTreeMap<u32, u64>>;

impl<D: Disk> Groups<D> {
    /// Committed offsets by `topic@group`, optionally of one group and one topic.
    #[must_use]
    pub fn committed_offsets(&self, group: Option<&str>, topic: Option<&str>) -> Offsets {
        self.progress.committed(group, topic)
    }

    /// The messages of a queue that are in flight: queue offset, deliveries, and whether their consumer changed when
    /// they come again, as it does after a failure or to have more time. Restarts forget the change.
    #[must_use]
    pub fn in_flight(&self, group: &str, topic: &str, queue_id: u32) -> Vec<(u64, u32, bool)> {
        let Some(queue) = self.progress.queue(group, topic, queue_id) else { return Vec::new() };
        let leases = queue.lock();
        leases.in_flight().map(|(offset, lease)| (offset, lease.attempt, lease.is_changed)).collect()
    }

    /// Returns the state of the message at a queue offset; `None` if the group has no committed offset there.
    #[must_use]
    pub fn delivery(&self, group: &str, topic: &str, queue_id: u32, queue_offset: u64) -> Option<Delivery> {
        let now = self.clock.now_ms();
        match self.progress.queue(group, topic, queue_id) {
            Some(queue) => Some(queue.lock().delivery(queue_offset, now)),
            None => self.progress.committed_of(group, topic, queue_id).map(|committed| {
                let is_over = queue_offset < committed;
                Delivery { committed, is_over, attempts: None, leased_until_ms: None }
            }),
        }
    }

    /// Deletes a group's progress in all topics or in one, and ends its leases.
    ///
    /// Durable on return. Returns how many topics the group had read. Errors: `Closed`, `Io`.
    pub fn forget_group(&self, group: &str, topic: Option<&str>) -> Result<usize> {
        self.reader.home.check_open()?;
        let is_meant = |of_topic: &str, of: &str| of == group && topic.is_none_or(|topic| topic == of_topic);
        let forgotten = self.progress.forget(is_meant);
        if forgotten > 0 {
            self.progress_writer.persist()?;
        }
        Ok(forgotten)
    }

    /// Imports a master's committed offsets by `topic@group`. Queues that the master does not name stay as they are.
    ///
    /// An offset past the end of a queue is cut to that end. The offset of a queue without messages here is kept for
    /// later. Durable on return. Errors: `Closed`, `Io`.
    pub fn adopt_offsets(&self, offsets: &Offsets) -> Result<()> {
        self.reader.home.check_open()?;
        if self.progress.adopt(offsets, |topic, queue_id| self.reader.queues.offset_limit(topic, queue_id)) {
            self.progress_writer.persist()?;
        }
        Ok(())
    }
}
