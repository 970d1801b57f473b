//! A receive in progress: its remaining limits and its messages so far.

use crate::{
    files::disk::Region,
    progress::{
        lease::{Lease, QueueLeases},
        receive_types::{Cold, Leased, ReadAhead, ReceiptHandle, ReceiveRequest, Received},
    },
    read::types::GetResult,
    record::{log_record::Record, names::DLQ_PREFIX},
};

/// Most reads of one receive without a match: a filter that matches little must not occupy a queue or a thread for more
/// than a few milliseconds. The next receive continues after the skipped messages.
const MAX_FRUITLESS_READS: usize = 4;

/// How long a dead message stays hidden while it is copied to the dead letter topic. If the copy fails it is
/// redelivered then.
const DEAD_HOLD_MS: i64 = 30_000;

/// A receive in progress: its remaining limits and its messages so far.
pub(super) struct Taking<'a, R: Region> {
    pub(super) request: &'a ReceiveRequest<'a>,
    pub(super) now: i64,
    /// When its leases begin: now, or slightly later if the first message was leased within this millisecond.
    pub(super) pop_time: i64,
    /// At least 1: the same receive would take an expired lease again.
    pub(super) invisible_ms: i64,
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) fruitless_reads: usize,
    /// Messages and bytes of this queue that count against the queue's limits.
    pub(super) of_queue: (usize, usize),
    /// Whether a queue may have more messages than its limits allow.
    pub(super) is_limited: bool,
    /// The end of the log when the receive began.
    pub(super) log_end: u64,
    /// Number of leased messages that are no longer in the log.
    pub(super) gone: u64,
    /// For an ordered receive: whether the client repeats it, so that its messages stay on the same attempt.
    pub(super) is_repeated: bool,
    /// Messages read before this receive began.
    pub(super) ahead: Option<ReadAhead<R>>,
    pub(super) received: Received<R>,
    /// Whether progress changed and must be written.
    pub(super) has_changed: bool,
}

impl<'a, R: Region> Taking<'a, R> {
    pub(super) fn new(
        request: &'a ReceiveRequest<'a>,
        now: i64,
        log_end: u64,
        ahead: Option<ReadAhead<R>>,
    ) -> Self {
        let (messages, dead) = (Vec::new(), Vec::new());
        Self {
            request,
            now,
            pop_time: now,
            invisible_ms: request.invisible_ms.max(1),
            count: request.max_count,
            bytes: request.max_bytes.max(1),
            fruitless_reads: 0,
            of_queue: (0, 0),
            is_limited: false,
            log_end,
            gone: 0,
            is_repeated: false,
            ahead,
            received: Received { messages, dead, next_expiry_ms: None, more: false, cold: None },
            has_changed: false,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == 0 || self.bytes == 0 || self.received.cold.is_some()
    }

    /// Whether it stops before it saw all messages.
    pub(super) fn is_over(&self) -> bool {
        self.is_full() || self.fruitless_reads >= MAX_FRUITLESS_READS
    }

    /// The messages that it takes next of a queue, from `offset` on.
    pub(super) fn next_of(&self, queue_id: u32, offset: u64, was_leased: bool) -> Cold {
        let (max_count, max_bytes, limits) = (self.count, self.bytes, self.request.limits);
        Cold { queue_id, offset, was_leased, max_count, max_bytes, limits }
    }

    /// Messages read ahead that begin at `offset` and have no lease.
    pub(super) fn new_ahead(&mut self, queue_id: u32, offset: u64) -> Option<GetResult<R>> {
        let is_it = |ahead: &mut ReadAhead<R>| {
            let Cold { queue_id: of_queue, offset: from, was_leased, .. } = ahead.cold;
            (of_queue, from, was_leased) == (queue_id, offset, false)
        };
        self.ahead.take_if(is_it).map(|ahead| ahead.found)
    }

    /// A leased message that was read ahead.
    pub(super) fn leased_ahead(&self, queue_id: u32, offset: u64) -> Option<GetResult<R>> {
        let ahead =
            self.ahead.as_ref().filter(|ahead| ahead.cold.was_leased && ahead.cold.queue_id == queue_id)?;
        let GetResult { status, next_offset, min_offset, max_offset, is_cold, .. } = ahead.found;
        let message = ahead.found.messages.iter().find(|(at, _)| *at == offset);
        // Of skipped messages, only the first one has its own status.
        let is_told = message.is_some() || ahead.cold.offset == offset;
        let messages = message.into_iter().map(|(at, record)| (*at, record.clone())).collect();
        is_told.then_some(GetResult { status, messages, next_offset, min_offset, max_offset, is_cold })
    }

    /// Whether it has room for a record; the first one always has. `earliest` is when its lease may begin: the first
    /// message decides when all begin. Otherwise ends the receive, or its part of this queue.
    pub(super) fn admits(&mut self, record: &Record<R>, earliest: i64) -> bool {
        let (count, bytes) = self.of_queue;
        let (len, is_first) = (record.bytes().len(), self.received.messages.is_empty());
        let behind = self.log_end.saturating_sub(record.physical_offset());
        if self.request.limits.exclude(count, bytes.saturating_add(len), behind) {
            self.is_limited = true;
            return false;
        }
        if is_first {
            self.pop_time = self.now.max(earliest);
        } else if len > self.bytes || earliest > self.pop_time {
            self.bytes = 0;
        }
        !self.is_full() && self.received.dead.is_empty()
    }

    /// Whether a message that was leased `attempt` times has had all its deliveries.
    pub(super) fn is_dead(&self, record: &Record<R>, attempt: u32) -> bool {
        let limit = self.request.max_attempts;
        limit > 0 && self.earlier_deliveries(record).saturating_add(attempt) >= limit
    }

    /// Deliveries before the message was stored. A dead letter's earlier deliveries were to another group and do not
    /// count.
    fn earlier_deliveries(&self, record: &Record<R>) -> u32 {
        match self.request.topic.starts_with(DLQ_PREFIX) {
            true => 0,
            false => record.reconsume_times(),
        }
    }

    /// Adds a message to the dead ones. After live messages it is left for the next receive, so that they need not wait
    /// for its copy.
    pub(super) fn bury(
        &mut self,
        record: Record<R>,
        queue_id: u32,
        offset: u64,
        leases: &mut QueueLeases,
    ) -> bool {
        let is_alone = self.received.messages.is_empty() && self.received.dead.len() < self.request.max_count;
        if is_alone && let Some(lease) = leases.take_again(offset, self.now, DEAD_HOLD_MS, 0) {
            self.has_changed = true;
            let handle = ReceiptHandle::of(queue_id, offset, lease);
            self.received.dead.push(Leased { record, handle, attempt: lease.attempt });
        }
        is_alone
    }

    pub(super) fn take(&mut self, record: Record<R>, queue_id: u32, queue_offset: u64, lease: Lease) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(record.bytes().len());
        let (count, bytes) = self.of_queue;
        self.of_queue = (count.saturating_add(1), bytes.saturating_add(record.bytes().len()));
        let handle = ReceiptHandle::of(queue_id, queue_offset, lease);
        self.has_changed = true;
        self.received.messages.push(Leased { record, handle, attempt: lease.attempt });
    }
}
