//! What readers see of the queues: their ends, and which records and queues are closed or deleted.

use std::sync::atomic::Ordering;

use crate::{files::disk::Disk, queues::queue_table::ConsumeQueues, record::message::MessageView};

impl<D: Disk> ConsumeQueues<D> {
    /// First queue offset kept; 0 for an unknown queue.
    pub(crate) fn min_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.find(topic, queue_id).map_or(0, |queue| queue.min_offset())
    }

    /// End of what readers see; 0 for an unknown queue.
    pub(crate) fn max_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.find(topic, queue_id).map_or(0, |queue| queue.max_offset())
    }

    /// No group's offset lies past it: the end of the queue, where that is known.
    pub(crate) fn offset_limit(&self, topic: &str, queue_id: u32) -> u64 {
        match self.find(topic, queue_id) {
            Some(queue) if queue.marks.is_end_unknown() => u64::MAX,
            queue => queue.map_or(0, |queue| queue.max_offset()),
        }
    }

    /// Says whether a record belongs to what was deleted with its topic.
    pub(crate) fn is_of_deleted(&self, view: &MessageView<'_>) -> bool {
        let queue = u32::try_from(view.queue_id).ok().and_then(|id| self.find_any(view.topic, id));
        queue.map(|queue| queue.marks.floor()).is_some_and(|floor| {
            view.queue_offset < floor.offset && view.physical_offset < floor.physical_end
        })
    }

    /// As [`Self::is_of_deleted`], at no cost for records behind everything deleted.
    pub(crate) fn is_record_of_deleted(&self, physical_offset: u64, record: &[u8]) -> bool {
        physical_offset < self.deleted_to.load(Ordering::Acquire)
            && MessageView::decode(record, false).is_ok_and(|view| self.is_of_deleted(&view))
    }

    /// Says whether the queue is closed to readers now.
    pub(crate) fn is_closed_to_readers(&self, topic: &str, queue_id: u32) -> bool {
        self.find(topic, queue_id).is_some_and(|queue| queue.marks.is_shut())
    }
}
