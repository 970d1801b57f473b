//! Requests and results of receiving: plain data.

use crate::{
    files::{
        disk::{Disk, Region},
        real_disk::RealDisk,
    },
    filter::message_filter::MessageFilter,
    progress::lease::Lease,
    read::types::{GetRequest, GetResult, Source, TransferLimits},
    record::log_record::Record,
};

/// Where a group begins in a queue it never read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// At the first message that is kept.
    AtMin,
    /// After the last message.
    AtMax,
    /// At the first message of a queue that still has all its messages, else at the last one. RocketMQ's pop begins so:
    /// its consumers miss nothing of a new queue.
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

/// A group's state in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    /// The next message that the group has not received.
    pub next_offset: u64,
    /// Messages from there to the end of the queue.
    pub unread: u64,
    /// When the first lease expires, if there is one.
    pub next_expiry_ms: Option<i64>,
    /// When the last lease expires; an ordered receive waits for it.
    pub last_expiry_ms: Option<i64>,
    /// Until when the next message is held back, because it could not be read.
    pub held_until_ms: Option<i64>,
    /// Messages received and not acknowledged.
    pub in_flight: usize,
}

/// A request for messages under a lease.
#[derive(Debug, Clone, Copy)]
pub struct ReceiveRequest<'a> {
    /// Consumer group.
    pub group: &'a str,
    /// Topic.
    pub topic: &'a str,
    /// Queues `0..queue_count` of the topic are searched …
    pub queue_count: u32,
    /// … beginning with this one.
    pub first_queue: u32,
    /// Most messages to return.
    pub max_count: usize,
    /// Most bytes to return; the first message always fits.
    pub max_bytes: usize,
    /// Length of the lease in milliseconds.
    pub invisible_ms: i64,
    /// Which messages; the others are skipped for good.
    pub filter: &'a MessageFilter,
    /// Where a group that is new to a queue begins.
    pub begin: Begin,
    /// Whether each queue is received in order, by one receiver at a time.
    pub order: Option<Ordered<'a>>,
    /// Deliveries after which a message is dead, including those that its record counts; 0 for no limit.
    pub max_attempts: u32,
    /// Starts with the queue of the highest number, whatever `first_queue` is: in a priority topic the queue's number
    /// is the priority.
    pub by_priority: bool,
    /// Limits of each queue's messages: separately for redelivered and new ones, together if ordered.
    pub limits: TransferLimits,
}

/// Options of an ordered receive.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ordered<'a> {
    /// Identifies the attempt of a client that repeats a receive after losing its response: it gets the same messages
    /// again at once. At most [`MAX_ATTEMPT_ID`] bytes; a longer one is ignored.
    pub attempt_id: Option<&'a str>,
    /// Redelivers all messages from the first unacknowledged one on, as RocketMQ does; else only unacknowledged ones.
    pub from_first: bool,
}

/// Longest attempt id in bytes.
pub const MAX_ATTEMPT_ID: usize = 256;

/// Identifies one lease of one message. The text form is RocketMQ's receipt handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReceiptHandle {
    /// Queue of the topic.
    pub queue_id: u32,
    /// Index in its queue.
    pub queue_offset: u64,
    /// When it was received, milliseconds since 1970. Strictly grows with each lease of the same message.
    pub pop_time: i64,
    /// Length of the lease in milliseconds.
    pub invisible_ms: i64,
}

impl ReceiptHandle {
    pub(super) fn of(queue_id: u32, queue_offset: u64, lease: Lease) -> Self {
        Self { queue_id, queue_offset, pop_time: lease.pop_time, invisible_ms: lease.invisible_ms }
    }
}

/// A message under a lease.
pub struct Leased<R: Region = <RealDisk as Disk>::Region> {
    /// The record.
    pub record: Record<R>,
    /// Identifies the lease.
    pub handle: ReceiptHandle,
    /// 1 for the first delivery.
    pub attempt: u32,
}

/// The outcome of a receive.
pub struct Received<R: Region = <RealDisk as Disk>::Region> {
    /// The messages, in queue order within a queue. Their leases all have the same pop time.
    pub messages: Vec<Leased<R>>,
    /// Dead messages, under a lease that hides them: copy them to the dead letter topic, then acknowledge them. If
    /// there are any, `messages` is empty.
    pub dead: Vec<Leased<R>>,
    /// When the next lease in these queues expires, if there is one: receive again then.
    pub next_expiry_ms: Option<i64>,
    /// Whether there may be more to receive now: the receive was full, its filter matched little, or it ended at
    /// `cold`.
    pub more: bool,
    /// The messages that ended the receive, because they are not in memory.
    pub cold: Option<Cold>,
}

/// The next messages of a receive, if they are not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cold {
    /// Their queue.
    pub queue_id: u32,
    /// The first one.
    pub offset: u64,
    /// Whether the first one had a lease, so that the filter does not apply to it.
    pub was_leased: bool,
    /// Most messages of them that the receive takes.
    pub max_count: usize,
    /// About the most bytes of them that the receive takes.
    pub max_bytes: usize,
    /// Further limits.
    pub limits: TransferLimits,
}

impl Cold {
    /// The read to do before the receive continues.
    #[must_use]
    pub fn request<'a>(&self, topic: &'a str, filter: &'a MessageFilter, source: Source) -> GetRequest<'a> {
        let filter = if self.was_leased { &MessageFilter::All } else { filter };
        let &Self { queue_id, offset, max_count, max_bytes, limits, .. } = self;
        GetRequest { topic, queue_id, offset, max_count, max_bytes, filter, source, limits }
    }
}

/// Messages that were read before the receive that leases them.
pub struct ReadAhead<R: Region = <RealDisk as Disk>::Region> {
    /// The messages that were read.
    pub cold: Cold,
    /// The result of the read.
    pub found: GetResult<R>,
}
