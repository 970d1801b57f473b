//! The queues as readers see them: without closed queues and deleted records.

use std::sync::atomic::Ordering;

use crate::{files::disk::Disk, queues::queue_table::ConsumeQueues, record::message::MessageView};

impl<D: Disk> ConsumeQueues<D> {
    /// First kept queue offset; 0 for an unknown queue.
    pub(crate) fn min_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.find(topic, queue_id).map_or(0, |queue| queue.min_offset())
    }

    /// End of the visible queue; 0 for an unknown queue.
    pub(crate) fn max_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.find(topic, queue_id).map_or(0, |queue| queue.max_offset())
    }

    /// Upper bound of committed offsets: the end of the queue, if it is known.
    pub(crate) fn offset_limit(&self, topic: &str, queue_id: u32) -> u64 {
        match self.find(topic, queue_id) {
            Some(queue) if queue.marks.is_end_unknown() => u64::MAX,
            queue => queue.map_or(0, |queue| queue.max_offset()),
        }
    }

    /// Whether a record was deleted with its topic.
    pub(crate) fn is_of_deleted(&self, view: &MessageView<'_>) -> bool {
        if view.physical_offset >= self.deleted_to.load(Ordering::Acquire) {
            return false;
        }
        let queue = u32::try_from(view.queue_id).ok().and_then(|id| self.find_any(view.topic, id));
        queue.map(|queue| queue.marks.floor()).is_some_and(|floor| {
            view.queue_offset < floor.offset && view.physical_offset < floor.physical_end
        })
    }

    /// Whether the queue is closed to readers.
    pub(crate) fn is_closed_to_readers(&self, topic: &str, queue_id: u32) -> bool {
        self.find(topic, queue_id).is_some_and(|queue| queue.marks.is_shut())
    }
}
