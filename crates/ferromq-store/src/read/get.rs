//! Reads messages of a queue, with RocketMQ's statuses for offsets without a message.
//!
//! `queue_read` reads the messages.

use std::time::Instant;

use crate::{
    files::disk::Disk,
    filter::message_filter::MessageFilter,
    queues::consume_queue::ConsumeQueue,
    read::{
        queue_read::QueueRead,
        reader::Reader,
        types::{GetRequest, GetResult, GetStatus},
    },
};

impl<D: Disk> Reader<D> {
    /// Reads up to `max_count` messages and about `max_bytes` from `from_offset` on.
    ///
    /// The first message is returned whatever its size. A record that does not match its consume queue entry is never
    /// served. After a close there are no messages.
    pub fn get(
        &self,
        topic: &str,
        queue_id: u32,
        from_offset: u64,
        max_count: usize,
        max_bytes: usize,
        filter: &MessageFilter,
    ) -> GetResult<D::Region> {
        let all = GetRequest::all(topic, queue_id, from_offset, max_count, max_bytes);
        self.get_from(&GetRequest { filter, ..all })
    }

    /// As [`Self::get`], with all options of a request.
    ///
    /// A call skips a bounded number of messages and bytes that the filter rejects, whatever the source.
    pub fn get_from(&self, request: &GetRequest<'_>) -> GetResult<D::Region> {
        match self.if_open() {
            Some(reader) => {
                let begun = Instant::now();
                let found = reader.read(request);
                reader.counters.count_get_time(begun.elapsed());
                found
            }
            None => GetResult::empty(GetStatus::NoMatchedLogicQueue, request.offset, 0, 0),
        }
    }
}

/// Reads that go on during a close: the state of leases depends on them.
impl<D: Disk> Reader<D> {
    /// As [`Self::get_from`], for a client.
    pub(crate) fn read(&self, request: &GetRequest<'_>) -> GetResult<D::Region> {
        let result = self.read_internal(request);
        self.counters.count_get(&result);
        result
    }

    /// As [`Self::get_from`], for the store itself.
    pub(crate) fn read_internal(&self, request: &GetRequest<'_>) -> GetResult<D::Region> {
        let result = match self.queues.find(request.topic, request.queue_id) {
            Some(queue) => self.read_queue(&queue, request),
            None => GetResult::empty(GetStatus::NoMatchedLogicQueue, 0, 0, 0),
        };
        if result.status != GetStatus::Found && !result.is_cold {
            self.counters.count_missed_get(result.status);
        }
        result
    }

    fn read_queue(&self, queue: &ConsumeQueue<D>, request: &GetRequest<'_>) -> GetResult<D::Region> {
        let is_end_unknown = queue.marks.is_end_unknown();
        let (min_offset, max_offset) = (queue.min_offset(), queue.max_offset());
        let (status, next_offset) = match request.offset {
            offset if queue.marks.is_shut() => (GetStatus::QueueClosed, offset),
            // Messages there may exist, but are not listed yet.
            offset if is_end_unknown && offset >= max_offset => (GetStatus::QueueClosed, offset),
            _ if max_offset == 0 => (GetStatus::NoMessageInQueue, 0),
            offset if offset < min_offset => (GetStatus::OffsetTooSmall, min_offset),
            offset if offset == max_offset => (GetStatus::OffsetOverflowOne, offset),
            offset if offset > max_offset => (GetStatus::OffsetOverflowBadly, max_offset),
            offset => {
                let found = QueueRead::new(self, queue, request, min_offset, max_offset).read();
                let min_offset = queue.min_offset();
                if !found.messages.is_empty() || offset >= min_offset {
                    return found;
                }
                // Retention removed it meanwhile.
                (GetStatus::OffsetTooSmall, min_offset)
            }
        };
        GetResult::empty(status, next_offset, min_offset, max_offset)
    }
}
