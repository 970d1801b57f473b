//! Finding messages: by queue offset, by physical offset, by time, by key.
//!
//! Reads only; what readers may see is published by the log and the dispatcher.

use crate::{
    Disk, GetResult, GetStatus, MessageStore, MessageView, Record, TagFilter, consume_queue::ConsumeQueue,
    index_file::key_hash, message, properties, store::Inner,
};

/// Entries a filtered read looks at before it answers without a match, so that one call stays short.
const MAX_FRUITLESS_ENTRIES: u64 = 800;
/// RocketMQ's smallest byte limit of a read.
const MIN_READ_BYTES: usize = 100;

impl<D: Disk> MessageStore<D> {
    /// Reads up to `max_count` messages and about `max_bytes` from `from_offset` on.
    ///
    /// The first message found comes whatever its size. After [`Self::close`] there is nothing.
    pub fn get(
        &self,
        topic: &str,
        queue_id: u32,
        from_offset: u64,
        max_count: usize,
        max_bytes: usize,
        filter: &TagFilter,
    ) -> GetResult<D::Region> {
        match self.open_inner() {
            Some(inner) => inner.read(topic, queue_id, from_offset, max_count, max_bytes, filter),
            None => empty(GetStatus::NoMatchedLogicQueue, from_offset, 0, 0),
        }
    }

    /// First queue offset kept (0 for an unknown queue).
    #[must_use]
    pub fn min_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.open_inner().map_or(0, |inner| inner.min_offset(topic, queue_id))
    }

    /// Next queue offset readers have not seen yet (0 for an unknown queue).
    #[must_use]
    pub fn max_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.open_inner().map_or(0, |inner| inner.max_offset(topic, queue_id))
    }

    /// First queue offset whose message was stored at or after `timestamp_ms`; the max offset where there is none.
    #[must_use]
    pub fn offset_by_time(&self, topic: &str, queue_id: u32, timestamp_ms: i64) -> u64 {
        let found = self.open_inner().and_then(|inner| Some((inner, inner.queues.find(topic, queue_id)?)));
        let Some((inner, queue)) = found else { return 0 };
        let (mut low, mut high) = (queue.min_offset(), queue.max_offset());
        while low < high {
            let middle = low + (high - low) / 2;
            let stored = queue
                .entry(middle)
                .and_then(|entry| inner.log.record(entry.physical_offset, entry.size))
                .and_then(|record| message::store_timestamp(record.bytes()));
            // A message that is gone is older than those that are kept.
            if stored.is_none_or(|stored| stored < timestamp_ms) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The record that begins at `physical_offset`, if one does.
    #[must_use]
    pub fn record_at(&self, physical_offset: u64) -> Option<Record<D::Region>> {
        self.open_inner()?.log.checked_record(physical_offset)
    }

    /// Messages of `topic` with the key or unique key `key`, stored in the time range, newest first.
    #[must_use]
    pub fn query_by_key(
        &self,
        topic: &str,
        key: &str,
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> Vec<Record<D::Region>> {
        let mut found: Vec<Record<D::Region>> = Vec::new();
        let Some(inner) = self.open_inner() else { return found };
        if max_count == 0 {
            return found;
        }
        // A message that names a key twice is in the index twice, one entry after the other.
        let mut last = None;
        let searched = inner.index.find(key_hash(topic, key), begin_ms, end_ms, |physical_offset| {
            if last.replace(physical_offset) == Some(physical_offset) {
                return true;
            }
            let Some(record) = inner.log.checked_record(physical_offset) else { return true };
            let is_wanted = MessageView::decode(record.bytes(), false).is_ok_and(|view| {
                view.topic == topic
                    && (begin_ms..=end_ms).contains(&view.store_timestamp)
                    && view.marks().each_key().any(|k| k == key)
            });
            if is_wanted {
                found.push(record);
            }
            found.len() < max_count
        });
        if let Err(error) = searched {
            tracing::error!(%error, topic, "query by key ended early");
        }
        found
    }

    /// Topics that have messages, each with the ids of its queues.
    #[must_use]
    pub fn queues(&self) -> Vec<(String, Vec<u32>)> {
        self.open_inner().map_or_else(Vec::new, |inner| inner.queues.names())
    }
}

/// Reads that a close in their middle does not change: whoever decides what becomes of a lease needs them.
impl<D: Disk> Inner<D> {
    /// As [`MessageStore::get`].
    pub(crate) fn read(
        &self,
        topic: &str,
        queue_id: u32,
        from_offset: u64,
        max_count: usize,
        max_bytes: usize,
        filter: &TagFilter,
    ) -> GetResult<D::Region> {
        let Some(queue) = self.queues.find(topic, queue_id) else {
            return empty(GetStatus::NoMatchedLogicQueue, from_offset, 0, 0);
        };
        let (min_offset, max_offset) = (queue.min_offset(), queue.max_offset());
        let (status, next_offset) = match from_offset {
            _ if max_offset == 0 => (GetStatus::NoMessageInQueue, 0),
            offset if offset < min_offset => (GetStatus::OffsetTooSmall, min_offset),
            offset if offset == max_offset => (GetStatus::OffsetOverflowOne, offset),
            offset if offset > max_offset => (GetStatus::OffsetOverflowBadly, max_offset),
            _ => {
                let mut reading = Reading::new(from_offset, max_count, max_bytes, min_offset, max_offset);
                reading.read(self, &queue, filter);
                return reading.result;
            }
        };
        empty(status, next_offset, min_offset, max_offset)
    }

    pub(crate) fn min_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.queues.find(topic, queue_id).map_or(0, |queue| queue.min_offset())
    }

    pub(crate) fn max_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.queues.find(topic, queue_id).map_or(0, |queue| queue.max_offset())
    }
}

fn empty<R: crate::Region>(
    status: GetStatus,
    next_offset: u64,
    min_offset: u64,
    max_offset: u64,
) -> GetResult<R> {
    GetResult { status, messages: Vec::new(), next_offset, min_offset, max_offset }
}

/// One read of a queue under way.
struct Reading<D: Disk> {
    from: u64,
    max_count: usize,
    max_bytes: usize,
    bytes: usize,
    result: GetResult<D::Region>,
}

impl<D: Disk> Reading<D> {
    fn new(from: u64, max_count: usize, max_bytes: usize, min_offset: u64, max_offset: u64) -> Self {
        Self {
            from,
            max_count,
            max_bytes: max_bytes.max(MIN_READ_BYTES),
            bytes: 0,
            result: empty(GetStatus::NoMatchedMessage, from, min_offset, max_offset),
        }
    }

    fn read(&mut self, inner: &Inner<D>, queue: &ConsumeQueue<D>, filter: &TagFilter) {
        let max_entries = MAX_FRUITLESS_ENTRIES.max(self.max_count as u64);
        let mut file = None;
        queue.walk(self.from, |queue_offset, entry| {
            let is_done = queue_offset - self.from >= max_entries || queue_offset >= self.result.max_offset;
            if is_done || self.result.messages.len() >= self.max_count {
                return false;
            }
            let Some(entry) = entry else {
                if self.result.messages.is_empty() {
                    self.result.status = GetStatus::OffsetFoundNull;
                    self.result.next_offset = queue_offset + 1;
                }
                return false;
            };
            let fits = self.bytes + entry.size as usize <= self.max_bytes;
            if !fits && !self.result.messages.is_empty() {
                return false;
            }
            self.result.next_offset = queue_offset + 1;
            if !filter.may_have_hash(entry.tag_hash) {
                return true;
            }
            let Some(record) = inner.log.record_in(&mut file, entry.physical_offset, entry.size) else {
                if self.result.messages.is_empty() {
                    self.result.status = GetStatus::MessageWasRemoving;
                }
                return true;
            };
            if *filter != TagFilter::All && !has_wanted_tag(filter, &record) {
                return true;
            }
            self.bytes += entry.size as usize;
            self.result.messages.push((queue_offset, record));
            self.result.status = GetStatus::Found;
            true
        });
    }
}

fn has_wanted_tag<R: crate::Region>(filter: &TagFilter, record: &Record<R>) -> bool {
    MessageView::decode(record.bytes(), false)
        .is_ok_and(|view| filter.has_tag(properties::get(view.properties, "TAGS")))
}
