//! Finding positions and single messages: a queue's ends, an offset by time, a message by its place or id.
//!
//! Reads only; what readers may see is published by the log and the dispatcher.

use crate::{
    error::{Result, StoreError},
    files::disk::Disk,
    log::nearest_record,
    queues::time_search::TimeSearch,
    read::reader::Reader,
    read::types::Boundary,
    record::{
        log_record::Record,
        message::{self, MessageView},
        message_id::OffsetMessageId,
    },
};

impl<D: Disk> Reader<D> {
    /// First queue offset kept (0 for an unknown queue).
    #[must_use]
    pub fn min_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.if_open().map_or(0, |reader| reader.queues.min_offset(topic, queue_id))
    }

    /// Next queue offset readers have not seen yet (0 for an unknown queue).
    #[must_use]
    pub fn max_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.if_open().map_or(0, |reader| reader.queues.max_offset(topic, queue_id))
    }

    /// When the first message kept in a queue was stored, milliseconds since 1970.
    #[must_use]
    pub fn earliest_time(&self, topic: &str, queue_id: u32) -> Option<i64> {
        let reader = self.if_open()?;
        let queue = reader.queues.find(topic, queue_id)?;
        TimeSearch::new(&reader.log, &queue).earliest()
    }

    /// The queue offset a time stands for, with the meanings of RocketMQ.
    ///
    /// [`Boundary::Lower`]: the first message stored at the time or after it; the min offset where all are later,
    /// the max offset where all are earlier. [`Boundary::Upper`]: the last message stored at the time or before it;
    /// the last one where all are earlier, 0 where all are later. An unknown queue gives 0. Messages that are gone
    /// or cannot be read have no time and are passed over.
    #[must_use]
    pub fn offset_by_time(&self, topic: &str, queue_id: u32, timestamp_ms: i64, boundary: Boundary) -> u64 {
        let found = self.if_open().and_then(|reader| Some((reader, reader.queues.find(topic, queue_id)?)));
        let Some((reader, queue)) = found else { return 0 };
        let mut search = TimeSearch::new(&reader.log, &queue);
        match boundary {
            Boundary::Lower => search.first_since(timestamp_ms),
            Boundary::Upper => search.last_until(timestamp_ms).unwrap_or(0),
        }
    }

    /// The message that begins at `physical_offset`.
    ///
    /// The whole record is checked, because the offset may come from anywhere. Errors: `NoRecord`, which names
    /// the nearest message, and `Closed`.
    pub fn message_at(&self, physical_offset: u64) -> Result<Record<D::Region>> {
        let reader = self.if_open().ok_or(StoreError::Closed)?;
        reader.sound_record(physical_offset).ok_or_else(|| {
            let nearest = nearest_record::nearest(&reader.log, physical_offset, |place| {
                reader.sound_record(place).is_some()
            });
            StoreError::NoRecord { physical_offset, nearest }
        })
    }

    /// Says whether what lies at a place of the log was written a moment ago, so that nothing waits for the disk there.
    #[must_use]
    pub fn has_just_come(&self, physical_offset: u64) -> bool {
        self.if_open().is_some_and(|reader| {
            let end = reader.log.written();
            (reader.log.freshness.from(end)..end).contains(&physical_offset)
        })
    }

    /// The message with an id: RocketMQ's id of a place in this broker's log, or a unique key of `topic`.
    #[must_use]
    pub fn message_by_id(&self, topic: &str, id: &str) -> Option<Record<D::Region>> {
        let reader = self.if_open()?;
        let place = id.parse::<OffsetMessageId>().ok();
        let by_place = place.and_then(|place| {
            let record = reader.sound_record(place.physical_offset)?;
            let view = MessageView::decode(record.bytes(), false).ok()?;
            (view.store_host == place.store_host).then(|| record.clone())
        });
        by_place.or_else(|| self.query_by_unique_key(topic, id, 1, i64::MIN, i64::MAX).messages.pop())
    }

    /// Topics that have messages, each with the ids of its queues.
    #[must_use]
    pub fn list(&self) -> Vec<(String, Vec<u32>)> {
        self.if_open().map_or_else(Vec::new, |reader| reader.queues.names())
    }

    /// When the message at a queue offset was stored, milliseconds since 1970; `None` where it is not kept.
    #[must_use]
    pub fn stored_time(&self, topic: &str, queue_id: u32, queue_offset: u64) -> Option<i64> {
        let reader = self.if_open()?;
        let queue = reader.queues.find(topic, queue_id)?;
        let is_kept = (queue.min_offset()..queue.max_offset()).contains(&queue_offset);
        is_kept.then(|| TimeSearch::new(&reader.log, &queue).time(queue_offset))?
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
        let reader = self.if_open()?;
        let queue = reader.queues.find(topic, queue_id)?;
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

impl<D: Disk> Reader<D> {
    /// The record that begins at `physical_offset`, whole, and the one its queue lists where it lists one:
    /// a body may hold the bytes of a record.
    fn sound_record(&self, physical_offset: u64) -> Option<Record<D::Region>> {
        let record = self.log.checked_record(physical_offset)?;
        let view = MessageView::decode(record.bytes(), false).ok()?;
        let queue_id = u32::try_from(view.queue_id).ok().filter(|_| message::is_consumable(view.sys_flag));
        let queue = queue_id.and_then(|queue_id| self.queues.find(view.topic, queue_id));
        let entry = queue.and_then(|queue| queue.entry(view.queue_offset));
        entry.is_none_or(|entry| entry.physical_offset == physical_offset).then(|| record.clone())
    }
}
