//! What goes into and comes out of the store's door: plain data, no behaviour.

use crate::{
    files::{
        disk::{Disk, Region},
        real_disk::RealDisk,
    },
    filter::message_filter::MessageFilter,
    read::types::{GetRequest, GetResult, Source, TransferLimits},
    record::log_record::Record,
};

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
