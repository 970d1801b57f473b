//! What goes into and comes out of the store's door: plain data, no behaviour.

use std::{collections::BTreeMap, time::Instant};

use crate::{
    delayed::schedule::ScheduleStats,
    files::disk::{Disk, RealDisk, Region},
    filter::message_filter::MessageFilter,
    record::log_record::Record,
    retention::cleaner::CleaningStats,
};

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

impl Location {
    /// Of a message that was sent again, see [`MessageStore::append_once`](crate::store::message_store::MessageStore::append_once): it is in
    /// the log, but nobody knows where.
    pub const THERE_ALREADY: Self = Self { queue_offset: u64::MAX, physical_offset: u64::MAX, len: 0 };
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

/// RocketMQ's outcomes of reading from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GetStatus {
    /// At least one message.
    Found,
    /// There are messages at and after the offset, none matches the filter; go on at `next_offset`.
    NoMatchedMessage,
    /// The messages at the offset were deleted or are damaged; go on at `next_offset`, which lies behind them.
    MessageWasRemoving,
    /// The message at the offset cannot be read now. The offset stays as it is: the message comes once it can be read.
    MessageUnreadable,
    /// A file of the queue is missing at the offset; go on at `next_offset`.
    OffsetFoundNull,
    /// The offset is past the end by more than one.
    OffsetOverflowBadly,
    /// The offset is the next one to be written: nothing there yet.
    OffsetOverflowOne,
    /// The offset is below the first one kept.
    OffsetTooSmall,
    /// Somebody closed the queue for readers; the offset stays as it is.
    QueueClosed,
    /// The topic has no such queue.
    NoMatchedLogicQueue,
    /// The queue is empty.
    NoMessageInQueue,
}

impl GetStatus {
    /// All statuses, in order.
    pub const ALL: [Self; 11] = [
        Self::Found,
        Self::NoMatchedMessage,
        Self::MessageWasRemoving,
        Self::MessageUnreadable,
        Self::OffsetFoundNull,
        Self::OffsetOverflowBadly,
        Self::OffsetOverflowOne,
        Self::OffsetTooSmall,
        Self::QueueClosed,
        Self::NoMatchedLogicQueue,
        Self::NoMessageInQueue,
    ];

    /// RocketMQ's name, where it has one.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Found => "FOUND",
            Self::NoMatchedMessage => "NO_MATCHED_MESSAGE",
            Self::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
            Self::MessageUnreadable => "MESSAGE_UNREADABLE",
            Self::OffsetFoundNull => "OFFSET_FOUND_NULL",
            Self::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
            Self::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
            Self::OffsetTooSmall => "OFFSET_TOO_SMALL",
            Self::QueueClosed => "QUEUE_CLOSED",
            Self::NoMatchedLogicQueue => "NO_MATCHED_LOGIC_QUEUE",
            Self::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
        }
    }
}

/// Where a read may take messages from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Wherever they are: the reader waits for the disk.
    Anywhere,
    /// Memory: the read ends before what is not there.
    Memory,
    /// As anywhere, until this moment: then the read ends with what it has, which is at least one step. All bytes of
    /// the messages found are in memory when it returns.
    Disk(Instant),
}

/// Which messages of a queue to read.
#[derive(Debug, Clone, Copy)]
pub struct GetRequest<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Queue of the topic.
    pub queue_id: u32,
    /// First queue offset to read.
    pub offset: u64,
    /// Most messages to return.
    pub max_count: usize,
    /// About the most bytes to return; the first message comes whatever its size.
    pub max_bytes: usize,
    /// Which messages.
    pub filter: &'a MessageFilter,
    /// Where to take them from.
    pub source: Source,
    /// What bounds the answer beside the two numbers above.
    pub limits: TransferLimits,
}

/// How much one read of a queue returns, whatever is asked for: RocketMQ's limits, for messages near the end of the log
/// and for those far behind it. The first message comes whatever its size and the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferLimits {
    /// Messages before one that is near the end of the log …
    pub near_count: usize,
    /// … and bytes, its own included.
    pub near_bytes: usize,
    /// As `near_count`, for one that is far behind the end.
    pub far_count: usize,
    /// As `near_bytes`, for one that is far behind the end.
    pub far_bytes: usize,
    /// Bytes between the begin of a message and the end of the log up to which it is near.
    pub near_span: u64,
    /// Entries one read looks at, or as many as messages are asked for where that is more.
    pub scan_entries: u64,
}

impl TransferLimits {
    /// What is asked for is the only limit; one read looks at 800 entries.
    pub const NONE: Self = Self {
        near_count: usize::MAX,
        near_bytes: usize::MAX,
        far_count: usize::MAX,
        far_bytes: usize::MAX,
        near_span: u64::MAX,
        scan_entries: 800,
    };

    /// Says whether a message, with which the answer would have `bytes`, no longer fits behind `count` others. It begins
    /// `behind` bytes before the end of the log.
    #[must_use]
    pub fn exclude(&self, count: usize, bytes: usize, behind: u64) -> bool {
        let (most, most_bytes) = match behind <= self.near_span {
            true => (self.near_count, self.near_bytes),
            false => (self.far_count, self.far_bytes),
        };
        count > 0 && (count >= most || bytes > most_bytes)
    }
}

impl Default for TransferLimits {
    fn default() -> Self {
        Self::NONE
    }
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
    /// What comes at `next_offset` is not in memory: a read of [`Source::Memory`] ended before it.
    pub is_cold: bool,
}

/// Messages found by key.
pub struct QueryResult<R: Region = <RealDisk as Disk>::Region> {
    /// The messages, newest first.
    pub messages: Vec<Record<R>>,
    /// Whether the search saw all there is, or stopped because there were enough messages. A search that met
    /// too many other messages gives up: narrow its time range.
    pub is_complete: bool,
}

impl<R: Region> QueryResult<R> {
    /// Leaves out the older messages where all have more than `max_bytes` together; the newest one stays.
    pub fn limit_bytes(&mut self, max_bytes: usize) {
        let mut bytes = 0_usize;
        let fits = |record: &&Record<R>| {
            let is_first = bytes == 0;
            bytes = bytes.saturating_add(record.bytes().len());
            is_first || bytes <= max_bytes
        };
        let count = self.messages.iter().take_while(fits).count();
        self.is_complete &= count == self.messages.len();
        self.messages.truncate(count);
    }
}

/// Which end of the messages of one time a lookup by time means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Boundary {
    /// The first message stored at the time or after it.
    #[default]
    Lower,
    /// The last message stored at the time or before it.
    Upper,
}

/// Where a group begins in a queue it never read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// At the first message that is kept.
    AtMin,
    /// Behind the last message.
    AtMax,
    /// At the first message of a queue that still has all it ever had, at the last one of any other:
    /// RocketMQ's pop, whose consumers miss nothing of a queue as young as they are.
    AtLast,
}

impl Begin {
    pub(crate) fn offset(self, min_offset: u64, max_offset: u64) -> u64 {
        match self {
            Self::AtLast if min_offset > 0 => max_offset.saturating_sub(1).max(min_offset),
            Self::AtMin | Self::AtLast => min_offset,
            Self::AtMax => max_offset,
        }
    }
}

/// What a group has before it in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    /// The next message nobody of the group received yet.
    pub next_offset: u64,
    /// Messages from there to the end of the queue.
    pub unread: u64,
    /// When the first lease ends, where one is held.
    pub next_expiry_ms: Option<i64>,
    /// When the last one does: nothing of the queue is received in order before.
    pub last_expiry_ms: Option<i64>,
    /// Until when the next message is left alone, because it could not be read a moment ago.
    pub held_until_ms: Option<i64>,
    /// Messages that were received and not acknowledged.
    pub in_flight: usize,
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
    pub filter: &'a MessageFilter,
    /// Where a group that is new to a queue begins.
    pub begin: Begin,
    /// Whether each queue is received in order, by one receiver at a time.
    pub order: Option<Ordered<'a>>,
    /// Deliveries of a message after which it is dead, those told of by its record included; 0: there is no limit.
    pub max_attempts: u32,
    /// Looks at the queue with the highest number first, whatever `first_queue` says: in a topic of priorities the
    /// number of a queue is the priority of its messages.
    pub by_priority: bool,
    /// What bounds the messages of each queue: those received before and new ones apart, in order together.
    pub limits: TransferLimits,
}

/// A receive in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ordered<'a> {
    /// Names the try of a client that repeats a receive whose answer it lost: who asks again by the same name gets
    /// its messages again at once. At most [`MAX_ATTEMPT_ID`] bytes; a longer one is not known again.
    pub attempt_id: Option<&'a str>,
    /// Gives again all messages from the first one that is not acknowledged, as RocketMQ does; else those alone that are not.
    pub from_first: bool,
}

/// Bytes of the name of a try.
pub const MAX_ATTEMPT_ID: usize = 256;

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
    /// The messages, in queue order within a queue. Their leases all began at the same pop time.
    pub messages: Vec<Leased<R>>,
    /// Messages whose last delivery was not acknowledged, under a lease that keeps others from them: keep them
    /// elsewhere, then acknowledge them. Where there are any there are no `messages`.
    pub dead: Vec<Leased<R>>,
    /// When the next lease in these queues ends, where one is held: look again then.
    pub next_expiry_ms: Option<i64>,
    /// Whether there may be more to receive right now: the receive was full before it saw everything, or
    /// left off because the filter matched little or because of `cold`.
    pub more: bool,
    /// What the receive ended before, because it is not in memory.
    pub cold: Option<Cold>,
}

/// Messages a receive comes to next, which are not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cold {
    /// Their queue.
    pub queue_id: u32,
    /// The first one.
    pub offset: u64,
    /// Whether the first one had a lease, so that it comes whatever the filter says.
    pub was_leased: bool,
    /// Most messages the receive takes of them.
    pub max_count: usize,
    /// About the most bytes it takes of them.
    pub max_bytes: usize,
    /// What bounds them besides.
    pub limits: TransferLimits,
}

impl Cold {
    /// What to read before the receive goes on.
    #[must_use]
    pub fn request<'a>(&self, topic: &'a str, filter: &'a MessageFilter, source: Source) -> GetRequest<'a> {
        let filter = if self.was_leased { &MessageFilter::All } else { filter };
        let &Self { queue_id, offset, max_count, max_bytes, limits, .. } = self;
        GetRequest { topic, queue_id, offset, max_count, max_bytes, filter, source, limits }
    }
}

/// Messages that were read before the receive that leases them.
pub struct ReadAhead<R: Region = <RealDisk as Disk>::Region> {
    /// What was asked for.
    pub cold: Cold,
    /// What was found.
    pub found: GetResult<R>,
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
    /// Where the last message begins that is in the index; 0 where it is empty.
    pub indexed_offset: u64,
    /// When that message was stored, milliseconds since 1970.
    pub indexed_timestamp: i64,
    /// Messages appended since open.
    pub appended: u64,
    /// Flushes of the commit log since open.
    pub flushes: u64,
    /// Bytes cut from the tail by the last recovery.
    pub recovered_cut_bytes: u64,
    /// Whether sends are refused for want of space.
    pub is_full: bool,
    /// Consume queues that cannot be written now; sends to them are refused.
    pub set_aside_queues: u64,
    /// How long dispatch has stood still with something to dispatch, in milliseconds; 0 where it moves.
    pub dispatch_stalled_ms: u64,
    /// What cleaning removed, archived and refused.
    pub cleaning: CleaningStats,
    /// Messages walked by the last recovery.
    pub recovered_messages: u64,
    /// How long the longest put took, since open, in milliseconds.
    pub longest_put_ms: u64,
    /// How long the current append has held the log; 0 while no append does.
    pub append_lock_ms: u64,
    /// Reads of a queue by clients that found a message, since open; a receive reads each of its queues.
    pub found_gets: u64,
    /// Those that found none.
    pub fruitless_gets: u64,
    /// How long the longest request for messages took, since open, in milliseconds; its wait for a message is no part.
    pub longest_get_ms: u64,
    /// Appends that were refused or failed, since open, by [`crate::error::StoreError::name`].
    pub failed_puts: BTreeMap<&'static str, u64>,
    /// What became of messages that waited at a delay level.
    pub schedule: ScheduleStats,
    /// What became of messages with a time of delivery.
    pub timer: crate::delayed::timer::state::TimerStats,
    /// Reads of a queue that gave no message, since open, by status.
    pub missed_gets: BTreeMap<GetStatus, u64>,
    /// Records not served, since open, because they are not those their consume queue entries tell of.
    pub mismatches: u64,
    /// Leased messages forgotten since open because the log does not hold them any longer.
    pub gone_leases: u64,
    /// Messages with a [`SEQUENCE`](crate::dedup::sequence::SEQUENCE) that were sent again and not stored again, since open.
    pub duplicates: u64,
    /// Writers, partitions and queues whose highest sequence is remembered.
    pub remembered_sequences: u64,
}
