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

/// The outcome of a read from a queue, as RocketMQ defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GetStatus {
    /// At least one message.
    Found,
    /// No message at or after the offset matches the filter; continue at `next_offset`.
    NoMatchedMessage,
    /// The messages at the offset were removed or are damaged; continue at `next_offset`, after them.
    MessageWasRemoving,
    /// The message at the offset cannot be read now. `next_offset` stays there until it can be.
    MessageUnreadable,
    /// A file of the queue is missing at the offset; continue at `next_offset`.
    OffsetFoundNull,
    /// The offset is past the end by more than one.
    OffsetOverflowBadly,
    /// The offset is the next one to be written.
    OffsetOverflowOne,
    /// The offset is below the first kept one.
    OffsetTooSmall,
    /// The queue is closed for readers; `next_offset` stays.
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

    /// RocketMQ's name, or one in its style.
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

/// Whether a read may wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The read waits for the disk.
    Anywhere,
    /// The read ends before the first message that is not in memory.
    Memory,
    /// The read waits for the disk until this moment, for one step at least, then ends with what it has. It leaves the
    /// messages found in memory.
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
    /// Most bytes to return, approximately; the first message is returned whatever its size.
    pub max_bytes: usize,
    /// Selects the messages.
    pub filter: &'a MessageFilter,
    /// Whether the read may wait for the disk.
    pub source: Source,
    /// Further limits of the answer.
    pub limits: TransferLimits,
}

impl<'a> GetRequest<'a> {
    /// A request for all messages, which waits for the disk and has no further limits.
    pub(crate) fn all(
        topic: &'a str,
        queue_id: u32,
        offset: u64,
        max_count: usize,
        max_bytes: usize,
    ) -> Self {
        let (filter, source, limits) = (&MessageFilter::All, Source::Anywhere, TransferLimits::NONE);
        Self { topic, queue_id, offset, max_count, max_bytes, filter, source, limits }
    }
}

/// RocketMQ's limits of a read, for messages near the end of the log and for those far from it. The first message is
/// returned in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferLimits {
    /// Most messages, for a message near the end of the log …
    pub near_count: usize,
    /// … and most bytes, including its own.
    pub near_bytes: usize,
    /// As `near_count`, for a message far from the end.
    pub far_count: usize,
    /// As `near_bytes`, for a message far from the end.
    pub far_bytes: usize,
    /// A message is near if it begins at most so many bytes before the end of the log.
    pub near_span: u64,
    /// Most entries that a read visits, unless more messages are asked for.
    pub scan_entries: u64,
}

impl TransferLimits {
    /// No limits but those of the request; a read visits 800 entries.
    pub const NONE: Self = Self {
        near_count: usize::MAX,
        near_bytes: usize::MAX,
        far_count: usize::MAX,
        far_bytes: usize::MAX,
        near_span: u64::MAX,
        scan_entries: 800,
    };

    /// Whether a message that begins `behind` bytes before the end of the log does not fit after `count` others, with
    /// which it would make `bytes`.
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

/// The messages read from a queue.
pub struct GetResult<R: Region = <RealDisk as Disk>::Region> {
    /// The outcome.
    pub status: GetStatus,
    /// The messages found, with their queue offsets.
    pub messages: Vec<(u64, Record<R>)>,
    /// Where to read next: always a valid offset.
    pub next_offset: u64,
    /// First kept offset.
    pub min_offset: u64,
    /// Next offset to be written.
    pub max_offset: u64,
    /// A read of [`Source::Memory`] ended because the message at `next_offset` is not in memory.
    pub is_cold: bool,
}

impl<R: Region> GetResult<R> {
    pub(crate) fn empty(status: GetStatus, next_offset: u64, min_offset: u64, max_offset: u64) -> Self {
        Self { status, messages: Vec::new(), next_offset, min_offset, max_offset, is_cold: false }
    }
}

/// Messages found by key.
pub struct QueryResult<R: Region = <RealDisk as Disk>::Region> {
    /// The messages, newest first.
    pub messages: Vec<Record<R>>,
    /// Whether the search saw all entries, or found enough messages. If false, it met too many other messages: narrow
    /// its time range.
    pub is_complete: bool,
}

impl<R: Region> QueryResult<R> {
    /// Keeps the newest messages up to `max_bytes` in total, one at least.
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

/// The boundary that a lookup by time returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Boundary {
    /// The first message stored at or after the time.
    #[default]
    Lower,
    /// The last message stored at or before the time.
    Upper,
}
