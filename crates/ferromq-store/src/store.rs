//! `MessageStore`: open, append, get, receive, look up, close. The only door.

use std::{path::Path, sync::Arc};

use crate::{Clock, Disk, NewMessage, RealDisk, Region, Result, StoreConfig};

/// Where one appended message lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Index in its queue.
    pub queue_offset: u64,
    /// Byte position in the commit log.
    pub physical_offset: u64,
    /// Length of the record in bytes.
    pub len: u32,
}

/// The outcome of an append.
#[derive(Debug, Clone)]
pub struct Appended {
    /// One entry a message, in the order given.
    pub locations: Vec<Location>,
    /// The broker's time, milliseconds since 1970.
    pub store_timestamp: i64,
    /// End of the last record: pass it to [`MessageStore::when_durable`].
    pub end: u64,
}

/// A record in the log, kept mapped as long as this lives. Cloning copies no bytes.
pub struct Record<R: Region = <RealDisk as Disk>::Region> {
    _region: Arc<R>,
}

impl<R: Region> Record<R> {
    /// The record's bytes as they lie on disk; decode them with [`crate::MessageView`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        todo!()
    }
}

impl<R: Region> AsRef<[u8]> for Record<R> {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// RocketMQ's outcomes of reading from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetStatus {
    /// At least one message.
    Found,
    /// There are messages at and after the offset, none matches the filter; go on at `next_offset`.
    NoMatchedMessage,
    /// The offset points at a message that was deleted while being read.
    MessageWasRemoving,
    /// The queue holds nothing at the offset although it should.
    OffsetFoundNull,
    /// The offset is past the end by more than one.
    OffsetOverflowBadly,
    /// The offset is the next one to be written: nothing there yet.
    OffsetOverflowOne,
    /// The offset is below the first one kept.
    OffsetTooSmall,
    /// The topic has no such queue.
    NoMatchedLogicQueue,
    /// The queue is empty.
    NoMessageInQueue,
}

/// Messages read from a queue.
pub struct GetResult<R: Region = <RealDisk as Disk>::Region> {
    /// What happened.
    pub status: GetStatus,
    /// Found messages with their queue offsets.
    pub messages: Vec<(u64, Record<R>)>,
    /// Where to read next: a valid offset whatever the status.
    pub next_offset: u64,
    /// First offset kept.
    pub min_offset: u64,
    /// Next offset to be written.
    pub max_offset: u64,
}

/// Which tags a reader wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TagFilter {
    /// Every message.
    #[default]
    All,
    /// Messages with one of these tags: Java hash (looked up in the consume queue) and the tag itself.
    Tags(Vec<(i64, String)>),
}

impl TagFilter {
    /// Parses `*`, an empty string, or tags joined by `||`.
    #[must_use]
    pub fn parse(_expression: &str) -> Self {
        todo!()
    }
}

/// Asks for messages under a lease.
#[derive(Debug, Clone, Copy)]
pub struct ReceiveRequest<'a> {
    /// Consumer group.
    pub group: &'a str,
    /// Topic.
    pub topic: &'a str,
    /// Queues `0..queue_count` of the topic are looked at …
    pub queue_count: u32,
    /// … beginning with this one.
    pub first_queue: u32,
    /// Most messages to return.
    pub max_count: usize,
    /// Most bytes to return; at least one message comes whatever its size.
    pub max_bytes: usize,
    /// Length of the lease in milliseconds.
    pub invisible_ms: i64,
    /// Which messages; others are passed over for good.
    pub filter: &'a TagFilter,
    /// Where a group that is new to a queue begins: at its min offset (`true`) or its max offset.
    pub from_beginning: bool,
}

/// Names one lease of one message; the text form is RocketMQ's receipt handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReceiptHandle {
    /// Queue of the topic.
    pub queue_id: u32,
    /// Index in its queue.
    pub queue_offset: u64,
    /// When it was received, milliseconds since 1970; strictly grows with each lease of the same message.
    pub pop_time: i64,
    /// Length of the lease in milliseconds.
    pub invisible_ms: i64,
}

/// A message under a lease.
pub struct Leased<R: Region = <RealDisk as Disk>::Region> {
    /// The record.
    pub record: Record<R>,
    /// Names the lease.
    pub handle: ReceiptHandle,
    /// 1 the first time.
    pub attempt: u32,
}

/// The outcome of a receive.
pub struct Received<R: Region = <RealDisk as Disk>::Region> {
    /// The messages, in queue order within a queue.
    pub messages: Vec<Leased<R>>,
    /// When the next lease in these queues ends, where one is held: look again then.
    pub next_expiry_ms: Option<i64>,
    /// Whether there may be more to receive right now: the receive was full before it saw everything.
    pub more: bool,
}

/// New messages in one queue, told to the arrival listener once readers can see them.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Queue.
    pub queue_id: u32,
    /// The queue's new max offset.
    pub max_offset: u64,
}

/// Counters and positions, for people and tests.
#[derive(Debug, Clone, Default)]
pub struct StoreStats {
    /// First byte kept in the commit log.
    pub min_physical_offset: u64,
    /// End of what is written.
    pub max_physical_offset: u64,
    /// End of what is flushed.
    pub flushed_offset: u64,
    /// End of what is dispatched to consume queues and indexes.
    pub dispatched_offset: u64,
    /// Messages appended since open.
    pub appended: u64,
    /// Flushes of the commit log since open.
    pub flushes: u64,
    /// Bytes cut from the tail by the last recovery.
    pub recovered_cut_bytes: u64,
    /// Messages walked by the last recovery.
    pub recovered_messages: u64,
}

/// The message store. All methods take `&self` and may be called from any thread.
pub struct MessageStore<D: Disk = RealDisk> {
    _disk: D,
}

impl MessageStore<RealDisk> {
    /// Opens the store in `directory` on the real disk, recovering it where needed.
    pub fn open(_directory: &Path, _config: StoreConfig, _clock: Clock) -> Result<Self> {
        todo!()
    }
}

impl<D: Disk> MessageStore<D> {
    /// Opens the store in `directory` on `disk`, recovering it where needed.
    pub fn open_on(_disk: D, _directory: &Path, _config: StoreConfig, _clock: Clock) -> Result<Self> {
        todo!()
    }

    /// Appends `messages` in order, each its own record. Limits are checked before anything is written.
    ///
    /// The promise of the flush mode holds once [`Self::when_durable`] of `Appended::end` says so.
    pub fn append(&self, _messages: &[NewMessage<'_>]) -> Result<Appended> {
        todo!()
    }

    /// Calls `done` once everything below `end` is as durable as the flush mode promises: at once under
    /// asynchronous flush, after the covering flush under synchronous, with an error when it failed.
    pub fn when_durable(&self, _end: u64, _done: impl FnOnce(Result<()>) + Send + 'static) {
        todo!()
    }

    /// As [`Self::when_durable`], waiting for it.
    pub fn wait_durable(&self, _end: u64) -> Result<()> {
        todo!()
    }

    /// Reads up to `max_count` messages and about `max_bytes` from `from_offset` on.
    pub fn get(
        &self,
        _topic: &str,
        _queue_id: u32,
        _from_offset: u64,
        _max_count: usize,
        _max_bytes: usize,
        _filter: &TagFilter,
    ) -> GetResult<D::Region> {
        todo!()
    }

    /// First queue offset kept (0 for an unknown queue).
    #[must_use]
    pub fn min_offset(&self, _topic: &str, _queue_id: u32) -> u64 {
        todo!()
    }

    /// Next queue offset readers have not seen yet (0 for an unknown queue).
    #[must_use]
    pub fn max_offset(&self, _topic: &str, _queue_id: u32) -> u64 {
        todo!()
    }

    /// First queue offset whose message was stored at or after `timestamp_ms`; the max offset where there is none.
    #[must_use]
    pub fn offset_by_time(&self, _topic: &str, _queue_id: u32, _timestamp_ms: i64) -> u64 {
        todo!()
    }

    /// The record that begins at `physical_offset`, if one does.
    #[must_use]
    pub fn record_at(&self, _physical_offset: u64) -> Option<Record<D::Region>> {
        todo!()
    }

    /// Messages of `topic` with the key or unique key `key`, stored in the time range, newest first.
    pub fn query_by_key(
        &self,
        _topic: &str,
        _key: &str,
        _max_count: usize,
        _begin_ms: i64,
        _end_ms: i64,
    ) -> Vec<Record<D::Region>> {
        todo!()
    }

    /// The clock.
    pub(crate) fn clock(&self) -> &Clock {
        todo!()
    }

    /// Progress of all groups; `receive.rs` works on it.
    pub(crate) fn progress(&self) -> &crate::progress::Progress {
        todo!()
    }

    /// `Closed` after [`Self::close`].
    pub(crate) fn check_open(&self) -> Result<()> {
        todo!()
    }

    /// Topics that have messages, each with the ids of its queues.
    #[must_use]
    pub fn queues(&self) -> Vec<(String, Vec<u32>)> {
        todo!()
    }

    /// Sets the listener told of new messages by the dispatching thread; it must return quickly.
    pub fn on_arrival(&self, _listener: impl Fn(&Arrival<'_>) + Send + Sync + 'static) {
        todo!()
    }

    /// Counters and positions.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        todo!()
    }

    /// Flushes everything, writes the checkpoint, removes the abort file and lets the lock go.
    ///
    /// Also done on drop; further calls of any method answer `Closed` or nothing.
    pub fn close(&self) -> Result<()> {
        todo!()
    }
}
