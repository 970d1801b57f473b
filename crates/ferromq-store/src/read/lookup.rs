//! Finds positions and single messages: the ends of a queue, an offset by time, a message by offset.

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
    },
};

impl<D: Disk> Reader<D> {
    /// First kept queue offset (0 for an unknown queue).
    #[must_use]
    pub fn min_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.if_open().map_or(0, |reader| reader.queues.min_offset(topic, queue_id))
    }

    /// Next queue offset that readers have not seen yet (0 for an unknown queue).
    #[must_use]
    pub fn max_offset(&self, topic: &str, queue_id: u32) -> u64 {
        self.if_open().map_or(0, |reader| reader.queues.max_offset(topic, queue_id))
    }

    /// When the first kept message of a queue was stored, milliseconds since 1970.
    #[must_use]
    pub fn earliest_time(&self, topic: &str, queue_id: u32) -> Option<i64> {
        let reader = self.if_open()?;
        let queue = reader.queues.find(topic, queue_id)?;
        TimeSearch::new(&reader.log, &queue).earliest()
    }

    /// The queue offset at a time, as RocketMQ defines it.
    ///
    /// [`Boundary::Lower`]: the first message stored at or after the time; the min offset if all are later, the max
    /// offset if all are earlier. [`Boundary::Upper`]: the last message stored at or before the time; the last one if
    /// all are earlier, 0 if all are later. An unknown queue gives 0. Messages that are gone or cannot be read are
    /// skipped.
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
    /// Checks the whole record, because the offset may come from a client. Errors: `NoRecord`, which names the nearest
    /// message, and `Closed`.
    pub fn message_at(&self, physical_offset: u64) -> Result<Record<D::Region>> {
        let reader = self.if_open().ok_or(StoreError::Closed)?;
        reader.sound_record(physical_offset).ok_or_else(|| {
            let nearest = nearest_record::nearest(&reader.log, physical_offset, |place| {
                reader.sound_record(place).is_some()
            });
            StoreError::NoRecord { physical_offset, nearest }
        })
    }

    /// Whether the log at an offset was written so recently that a read does not wait for the disk.
    #[must_use]
    pub fn is_recent(&self, physical_offset: u64) -> bool {
        self.if_open().is_some_and(|reader| {
            let end = reader.log.written();
            (reader.log.freshness.from(end)..end).contains(&physical_offset)
        })
    }

    /// Topics that have messages, each with the ids of its queues.
    #[must_use]
    pub fn list(&self) -> Vec<(String, Vec<u32>)> {
        self.if_open().map_or_else(Vec::new, |reader| reader.queues.names())
    }

    /// When the message at a queue offset was stored, milliseconds since 1970; `None` if it is not kept.
    #[must_use]
    pub fn stored_time(&self, topic: &str, queue_id: u32, queue_offset: u64) -> Option<i64> {
        let reader = self.if_open()?;
        let queue = reader.queues.find(topic, queue_id)?;
        let is_kept = (queue.min_offset()..queue.max_offset()).contains(&queue_offset);
        is_kept.then(|| TimeSearch::new(&reader.log, &queue).time(queue_offset))?
    }

    /// Up to `count` consume queue entries from a queue offset on: physical offset, size, tag hash.
    ///
    /// `None` if the queue does not exist. Stops early at a missing entry.
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
    /// The valid record at `physical_offset`, if its queue lists the same record or none: a body may contain the bytes
    /// of a record.
    fn sound_record(&self, physical_offset: u64) -> Option<Record<D::Region>> {
        let record = self.log.checked_record(physical_offset)?;
        let view = MessageView::decode(record.bytes(), false).ok()?;
        let queue_id = u32::try_from(view.queue_id).ok().filter(|_| message::is_consumable(view.sys_flag));
        let queue = queue_id.and_then(|queue_id| self.queues.find(view.topic, queue_id));
        let entry = queue.and_then(|queue| queue.entry(view.queue_offset));
        entry.is_none_or(|entry| entry.physical_offset == physical_offset).then(|| record.clone())
    }
}
