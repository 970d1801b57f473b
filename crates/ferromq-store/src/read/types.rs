//! Requests and results of reads: plain data.

use crate::{
    files::{
        disk::{Disk, Region},
        real_disk::RealDisk,
    },
    filter::message_filter::MessageFilter,
    record::log_record::Record,
};
use std::time::Instant;

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
