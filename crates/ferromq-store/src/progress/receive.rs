//! The operations of consumer groups: receive, acknowledge, change the invisible duration, commit.
//!
//! `lease` has the rules of leases; the consume queues find the messages.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use crate::{
    derive::set_aside::SetAside,
    error::{Result, StoreError},
    files::disk::{Disk, Region},
    filter::message_filter::MessageFilter,
    progress::{
        group_progress::Progress,
        lease::{Lease, QueueLeases},
        progress_writer::ProgressWriter,
        receive_types::{Ahead, Begin, Cold, Leased, ReadAhead, ReceiptHandle, ReceiveRequest, Received},
    },
    read::{
        reader::Reader,
        types::{GetRequest, GetResult, GetStatus, Source, TransferLimits},
    },
    record::{log_record::Record, names::DLQ_PREFIX},
    time::clock::Clock,
};

/// Most reads of one receive without a match: a filter that matches little must not occupy a queue or a thread for more
/// than a few milliseconds. The next receive continues after the skipped messages.
const MAX_FRUITLESS_READS: usize = 4;

/// How long a dead message stays hidden while it is copied to the dead letter topic. If the copy fails it is
/// redelivered then.
const DEAD_HOLD_MS: i64 = 30_000;

/// How long an unreadable message is held back before it is tried again.
const UNREADABLE_HOLD_MS: i64 = 1_000;

/// The outcome of reading a leased message.
pub(crate) enum LeasedRecord<R: Region> {
    There(Record<R>),
    /// The log no longer holds it, and its lease was removed.
    Gone,
    /// It cannot be read now, and its lease was extended.
    Unreadable,
    /// It is not in memory: the receive ends before it.
    Cold,
}

/// A receive in progress: its remaining limits and its messages so far.
pub(crate) struct Taking<'a, R: Region> {
    pub request: &'a ReceiveRequest<'a>,
    pub now: i64,
    /// When its leases begin: now, or slightly later if the first message was leased within this millisecond.
    pub pop_time: i64,
    /// At least 1: the same receive would take an expired lease again.
    pub invisible_ms: i64,
    count: usize,
    bytes: usize,
    fruitless_reads: usize,
    /// Messages and bytes of this queue that count against the queue's limits.
    of_queue: (usize, usize),
    /// Whether a queue may have more messages than its limits allow.
    is_limited: bool,
    /// The end of the log when the receive began.
    log_end: u64,
    /// Number of leased messages that are no longer in the log.
    gone: u64,
    /// For an ordered receive: whether the client repeats it, so that its messages stay on the same attempt.
    pub is_repeated: bool,
    /// Messages read before this receive began.
    ahead: Option<ReadAhead<R>>,
    pub received: Received<R>,
    /// Whether progress changed and must be written.
    pub has_changed: bool,
}

impl<R: Region> Taking<'_, R> {
    pub(crate) fn is_full(&self) -> bool {
        self.count == 0 || self.bytes == 0 || self.received.cold.is_some()
    }

    /// Whether it stops before it saw all messages.
    fn is_over(&self) -> bool {
        self.is_full() || self.fruitless_reads >= MAX_FRUITLESS_READS
    }

    /// Ends the receive before a message that is not in memory.
    fn end_before(&mut self, queue_id: u32, offset: u64, was_leased: bool) {
        let (max_count, max_bytes) = (self.count, self.bytes);
        let limits = self.request.limits;
        self.received.cold = Some(Cold { queue_id, offset, was_leased, max_count, max_bytes, limits });
    }

    /// Messages read ahead that begin at `offset` and have no lease.
    fn new_ahead(&mut self, queue_id: u32, offset: u64) -> Option<GetResult<R>> {
        let is_it = |ahead: &mut ReadAhead<R>| {
            let Cold { queue_id: of_queue, offset: from, was_leased, .. } = ahead.cold;
            (of_queue, from, was_leased) == (queue_id, offset, false)
        };
        self.ahead.take_if(is_it).map(|ahead| ahead.found)
    }

    /// A leased message that was read ahead.
    fn leased_ahead(&self, queue_id: u32, offset: u64) -> Option<GetResult<R>> {
        let ahead =
            self.ahead.as_ref().filter(|ahead| ahead.cold.was_leased && ahead.cold.queue_id == queue_id)?;
        let GetResult { status, next_offset, min_offset, max_offset, is_cold, .. } = ahead.found;
        let message = ahead.found.messages.iter().find(|(at, _)| *at == offset);
        // Of skipped messages, only the first one has its own status.
        let is_told = message.is_some() || ahead.cold.offset == offset;
        let messages = message.into_iter().map(|(at, record)| (*at, record.clone())).collect();
        is_told.then_some(GetResult { status, messages, next_offset, min_offset, max_offset, is_cold })
    }

    /// Whether a record still fits; the first one always does. Otherwise ends the receive, or its part of this queue.
    pub(crate) fn fits(&mut self, record: &Record<R>) -> bool {
        let (count, bytes) = self.of_queue;
        let behind = self.log_end.saturating_sub(record.physical_offset());
        if self.request.limits.exclude(count, bytes.saturating_add(record.bytes().len()), behind) {
            self.is_limited = true;
            return false;
        }
        if record.bytes().len() > self.bytes && !self.received.messages.is_empty() {
            self.bytes = 0;
        }
        !self.is_full()
    }

    /// Whether a lease that may begin at `earliest` can begin with the others; the first one decides. If not, ends the
    /// receive.
    pub(crate) fn begins_with_others(&mut self, earliest: i64) -> bool {
        if self.received.messages.is_empty() {
            self.pop_time = self.now.max(earliest);
        } else if earliest > self.pop_time {
            self.bytes = 0;
        }
        !self.is_full()
    }

    /// Whether a message that was leased `attempt` times has had all its deliveries.
    pub(crate) fn is_dead(&self, record: &Record<R>, attempt: u32) -> bool {
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
    pub(crate) fn bury(
        &mut self,
        record: Record<R>,
        queue_id: u32,
        offset: u64,
        leases: &mut QueueLeases,
    ) -> bool {
        let is_alone = self.received.messages.is_empty() && self.received.dead.len() < self.request.max_count;
        if is_alone && let Some(lease) = leases.take_again(offset, self.now, DEAD_HOLD_MS, 0) {
            self.has_changed = true;
            let handle = receipt(queue_id, offset, lease);
            self.received.dead.push(Leased { record, handle, attempt: lease.attempt });
        }
        is_alone
    }

    pub(crate) fn take(&mut self, record: Record<R>, queue_id: u32, queue_offset: u64, lease: Lease) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(record.bytes().len());
        let (count, bytes) = self.of_queue;
        self.of_queue = (count.saturating_add(1), bytes.saturating_add(record.bytes().len()));
        let handle = receipt(queue_id, queue_offset, lease);
        self.has_changed = true;
        self.received.messages.push(Leased { record, handle, attempt: lease.attempt });
    }
}

/// Receives, acknowledges and commits for consumer groups: the handle
/// [`MessageStore::groups`](crate::MessageStore::groups).
pub struct Groups<D: Disk> {
    pub(crate) reader: Arc<Reader<D>>,
    pub(crate) clock: Clock,
    pub(crate) aside: Arc<SetAside<D>>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) progress_writer: Arc<ProgressWriter<D>>,
}

impl<D: Disk> Groups<D> {
    /// Leases messages to a consumer: first those whose lease expired, then new ones.
    ///
    /// An ordered receive takes nothing from a queue with a valid lease. Otherwise it begins at the lowest leased
    /// message, and skips acknowledged messages above, or with `from_first` redelivers them. A receive that repeats an
    /// attempt id does not wait. Messages that the filter rejects are skipped for good. Waits for the disk if messages
    /// are not in memory; acknowledgements go on meanwhile. `Closed` after a close.
    pub fn receive(&self, request: &ReceiveRequest<'_>) -> Result<Received<D::Region>> {
        self.receive_reading(request, None)
    }

    /// Like [`Self::receive`], from one queue. `first_queue` and `queue_count` do not matter.
    pub fn receive_of_queue(
        &self,
        request: &ReceiveRequest<'_>,
        queue_id: u32,
    ) -> Result<Received<D::Region>> {
        self.receive_reading(request, Some(queue_id))
    }

    fn receive_reading(
        &self,
        request: &ReceiveRequest<'_>,
        queue: Option<u32>,
    ) -> Result<Received<D::Region>> {
        let mut ahead = None;
        loop {
            let received = self.receive_in_memory(request, queue, ahead.take())?;
            match received.cold {
                Some(cold) if received.messages.is_empty() && received.dead.is_empty() => {
                    let found =
                        self.reader.get_from(&cold.request(request.topic, request.filter, Source::Anywhere));
                    ahead = Some(ReadAhead { cold, found });
                }
                _ => return Ok(received),
            }
        }
    }

    /// Like [`Self::receive`], optionally from one queue, but does not wait for the disk: it ends before messages that
    /// are not in memory and returns them as `cold`.
    ///
    /// Read those with [`Reader::get_from`] and pass the result as `ahead` to the next receive, which uses it if they
    /// are still the next ones.
    pub fn receive_in_memory(
        &self,
        request: &ReceiveRequest<'_>,
        queue: Option<u32>,
        ahead: Option<ReadAhead<D::Region>>,
    ) -> Result<Received<D::Region>> {
        let count = request.queue_count.max(1);
        let first = request.first_queue % count;
        match queue {
            Some(queue_id) => self.receive_of(request, ahead, std::iter::once(queue_id)),
            None if request.by_priority => self.receive_of(request, ahead, (0..request.queue_count).rev()),
            None => {
                let queues = (0..request.queue_count).map(|step| (first + step) % count);
                self.receive_of(request, ahead, queues)
            }
        }
    }

    fn receive_of(
        &self,
        request: &ReceiveRequest<'_>,
        ahead: Option<ReadAhead<D::Region>>,
        queues: impl Iterator<Item = u32>,
    ) -> Result<Received<D::Region>> {
        let begun = Instant::now();
        self.reader.home.check_open()?;
        let group_topic = self.progress.group_topic_or_new(request.group, request.topic);
        let now = self.clock.now_ms();
        let mut taking = Taking {
            request,
            now,
            pop_time: now,
            invisible_ms: request.invisible_ms.max(1),
            count: request.max_count,
            bytes: request.max_bytes.max(1),
            fruitless_reads: 0,
            of_queue: (0, 0),
            is_limited: false,
            log_end: self.reader.log.written(),
            gone: 0,
            is_repeated: false,
            ahead,
            received: Received {
                messages: Vec::new(),
                dead: Vec::new(),
                next_expiry_ms: None,
                more: false,
                cold: None,
            },
            has_changed: false,
        };
        for queue_id in queues {
            if self.reader.queues.is_closed_to_readers(request.topic, queue_id)
                || self.is_begin_unknown(request, queue_id)
            {
                continue;
            }
            let queue = group_topic.queue_or_begin(queue_id, || {
                // Keep where the group begins, even if there is nothing to receive yet.
                taking.has_changed = true;
                self.first_offset(request, queue_id)
            });
            let mut leases = queue.lock();
            taking.of_queue = (0, 0);
            let next_end = match request.order {
                Some(order) => {
                    self.receive_in_order(&mut taking, queue_id, &mut leases, order);
                    leases.last_expiry()
                }
                None => {
                    leases.set_order(None);
                    self.receive_expired(&mut taking, queue_id, &mut leases);
                    taking.of_queue = (0, 0);
                    self.receive_new(&mut taking, queue_id, &mut leases);
                    leases.next_expiry()
                }
            };
            let expiries = [taking.received.next_expiry_ms, next_end, leases.next_held_until(now)];
            taking.received.next_expiry_ms = expiries.into_iter().flatten().min();
            if !taking.received.dead.is_empty() || taking.received.cold.is_some() {
                break;
            }
        }
        self.log_gone(&taking);
        taking.received.more = taking.is_over() || taking.is_limited || !taking.received.dead.is_empty();
        if taking.has_changed {
            self.progress.touch();
        }
        self.reader.counters.count_get_time(begun.elapsed());
        Ok(taking.received)
    }

    /// The group's state in a queue. A group that is new to the queue begins at `begin`. Changes nothing.
    #[must_use]
    pub fn ahead(&self, group: &str, topic: &str, queue_id: u32, begin: Begin) -> Ahead {
        let (min_offset, max_offset) =
            (self.reader.min_offset(topic, queue_id), self.reader.max_offset(topic, queue_id));
        let held = self.progress.group_topic(group, topic).and_then(|found| found.queue(queue_id));
        let ahead = |next: u64| {
            let next_offset = next.clamp(min_offset, max_offset.max(min_offset));
            let unread = max_offset.saturating_sub(next_offset);
            let (next_expiry_ms, last_expiry_ms, held_until_ms, in_flight) = (None, None, None, 0);
            Ahead { next_offset, unread, next_expiry_ms, last_expiry_ms, held_until_ms, in_flight }
        };
        match held {
            Some(queue) => {
                let leases = queue.lock();
                Ahead {
                    next_expiry_ms: leases.next_expiry(),
                    last_expiry_ms: leases.last_expiry(),
                    held_until_ms: leases.next_held_until(self.clock.now_ms()),
                    in_flight: leases.in_flight().len(),
                    ..ahead(leases.next())
                }
            }
            None => {
                let listed = self.progress.listed(group, topic, queue_id);
                ahead(listed.unwrap_or_else(|| begin.offset(min_offset, max_offset)))
            }
        }
    }

    /// Acknowledges the message. For an ordered queue, returns when it may continue: when its last remaining lease
    /// expires or expired.
    ///
    /// `StaleReceipt` if the lease is no longer held.
    pub fn ack(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> Result<Option<i64>> {
        self.reader.home.check_open()?;
        self.with_leases(group, topic, handle.queue_id, |leases| end(leases, handle))
    }

    /// Like [`Self::ack`], but `StaleReceipt` also if the lease has expired, even if the message was not redelivered.
    pub fn ack_in_time(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> Result<Option<i64>> {
        self.reader.home.check_open()?;
        let now = self.clock.now_ms();
        self.with_leases(group, topic, handle.queue_id, |leases| {
            leases.held_at(handle.queue_offset, handle.pop_time, now)?;
            end(leases, handle)
        })
    }

    /// Whether a lease is held and has not expired.
    #[must_use]
    pub fn is_in_time(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> bool {
        let now = self.clock.now_ms();
        let found = self.progress.group_topic(group, topic).and_then(|found| found.queue(handle.queue_id));
        found.is_some_and(|queue| queue.lock().held_at(handle.queue_offset, handle.pop_time, now).is_ok())
    }

    /// Whether the group is done with the handle's message: it was acknowledged or became a dead letter.
    #[must_use]
    pub fn is_over(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> bool {
        let found = self.progress.group_topic(group, topic).and_then(|found| found.queue(handle.queue_id));
        found.is_some_and(|queue| queue.lock().is_over(handle.queue_offset))
    }

    /// Whether a lease is held: its message was neither acknowledged nor redelivered.
    #[must_use]
    pub fn holds(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> bool {
        let found = self.progress.group_topic(group, topic).and_then(|found| found.queue(handle.queue_id));
        found.is_some_and(|queue| queue.lock().holds(handle.queue_offset, handle.pop_time))
    }

    /// The number of deliveries of the message, if the lease is held.
    #[must_use]
    pub fn attempt(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> Option<u32> {
        let queue = self.progress.group_topic(group, topic)?.queue(handle.queue_id)?;
        let held = queue.lock().held(handle.queue_offset, handle.pop_time).map(|lease| lease.attempt);
        held.ok()
    }

    /// Moves the lease's expiry to `invisible_ms` from now and returns its new handle. The old handle becomes stale.
    pub fn change_invisible(
        &self,
        group: &str,
        topic: &str,
        handle: &ReceiptHandle,
        invisible_ms: i64,
    ) -> Result<ReceiptHandle> {
        self.reader.home.check_open()?;
        let now = self.clock.now_ms();
        let lease = self.with_leases(group, topic, handle.queue_id, |leases| {
            leases.change(handle.queue_offset, handle.pop_time, now, invisible_ms)
        })?;
        Ok(receipt(handle.queue_id, handle.queue_offset, lease))
    }

    /// Extends the lease to `invisible_ms` from now. Its handle and attempt stay the same.
    ///
    /// `StaleReceipt` if the lease is no longer held.
    pub fn extend(&self, group: &str, topic: &str, handle: &ReceiptHandle, invisible_ms: i64) -> Result<()> {
        self.reader.home.check_open()?;
        let now = self.clock.now_ms();
        self.with_leases(group, topic, handle.queue_id, |leases| {
            leases.extend(handle.queue_offset, handle.pop_time, now, invisible_ms)
        })
    }

    /// Like [`Self::change_invisible`], for an unused message: its delivery does not count as an attempt.
    pub fn give_back(
        &self,
        group: &str,
        topic: &str,
        handle: &ReceiptHandle,
        invisible_ms: i64,
    ) -> Result<ReceiptHandle> {
        self.reader.home.check_open()?;
        let now = self.clock.now_ms();
        let lease = self.with_leases(group, topic, handle.queue_id, |leases| {
            leases.give_back(handle.queue_offset, handle.pop_time, now, invisible_ms)
        })?;
        Ok(receipt(handle.queue_id, handle.queue_offset, lease))
    }

    /// Next queue offset that the group will read: never past the lowest unacknowledged message.
    #[must_use]
    pub fn committed_offset(&self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        match self.progress.group_topic(group, topic).and_then(|found| found.queue(queue_id)) {
            Some(queue) => Some(queue.lock().committed()),
            None => self.progress.listed(group, topic, queue_id),
        }
    }

    /// Sets the committed offset and ends leases of messages below it.
    ///
    /// An offset past the queue's end becomes its end. Going back ends all leases of the queue.
    pub fn commit_offset(&self, group: &str, topic: &str, queue_id: u32, offset: u64) -> Result<()> {
        self.reader.home.check_open()?;
        let offset = offset.min(self.reader.queues.offset_limit(topic, queue_id));
        let queue = self.progress.group_topic_or_new(group, topic).queue_or_begin(queue_id, || offset);
        queue.lock().commit(offset);
        self.progress.touch();
        Ok(())
    }

    /// Moves the group to `offset`: all leases of the queue end, and messages from there on are redelivered.
    ///
    /// An offset past the queue's end becomes its end.
    pub fn reset_offset(&self, group: &str, topic: &str, queue_id: u32, offset: u64) -> Result<()> {
        self.reader.home.check_open()?;
        let offset = offset.min(self.reader.queues.offset_limit(topic, queue_id));
        let queue = self.progress.group_topic_or_new(group, topic).queue_or_begin(queue_id, || offset);
        queue.lock().reset(offset);
        self.progress.touch();
        Ok(())
    }

    fn with_leases<T>(
        &self,
        group: &str,
        topic: &str,
        queue_id: u32,
        change: impl FnOnce(&mut QueueLeases) -> Result<T>,
    ) -> Result<T> {
        let found = self.progress.group_topic(group, topic).and_then(|found| found.queue(queue_id));
        let queue = found.ok_or(StoreError::StaleReceipt)?;
        let done = change(&mut queue.lock())?;
        self.progress.touch();
        Ok(done)
    }
}

/// The steps of a receive. They read below the layer that a close shuts, so that a concurrent close never looks like
/// deleted messages.
impl<D: Disk> Groups<D> {
    /// Whether the group never read the queue and the queue's end is unknown. Its beginning must not be recorded then.
    fn is_begin_unknown(&self, request: &ReceiveRequest<'_>, queue_id: u32) -> bool {
        let (group, topic) = (request.group, request.topic);
        let is_end_unknown =
            || self.reader.queues.find(topic, queue_id).is_some_and(|queue| queue.marks.is_end_unknown());
        !self.aside.is_empty()
            && is_end_unknown()
            && self.progress.committed_of(group, topic, queue_id).is_none()
    }

    fn first_offset(&self, request: &ReceiveRequest<'_>, queue_id: u32) -> u64 {
        if let Some(listed) = self.progress.listed(request.group, request.topic, queue_id) {
            return listed.min(self.reader.queues.offset_limit(request.topic, queue_id));
        }
        let max_offset = self.reader.queues.max_offset(request.topic, queue_id);
        request.begin.offset(self.reader.queues.min_offset(request.topic, queue_id), max_offset)
    }

    fn receive_expired(&self, taking: &mut Taking<'_, D::Region>, queue_id: u32, leases: &mut QueueLeases) {
        while !taking.is_over() {
            let Some(offset) = leases.first_expired_offset(taking.now) else { return };
            let LeasedRecord::There(record) = self.leased_record(taking, queue_id, offset, leases) else {
                taking.fruitless_reads += 1;
                continue;
            };
            let attempt = leases.in_flight_from(offset).map_or(0, |(_, lease)| lease.attempt);
            if taking.is_dead(&record, attempt) {
                if taking.bury(record, queue_id, offset, leases) {
                    continue;
                }
                return;
            }
            if !taking.received.dead.is_empty()
                || !taking.fits(&record)
                || !taking.begins_with_others(leases.earliest_pop_time(offset))
            {
                return;
            }
            let Some(lease) = leases.renew(offset, taking.pop_time, taking.invisible_ms) else { return };
            taking.take(record, queue_id, offset, lease);
        }
    }

    /// The record of a leased message. If the log no longer holds it, its lease is removed. If it cannot be read now,
    /// its lease is extended without counting an attempt.
    pub(crate) fn leased_record(
        &self,
        taking: &mut Taking<'_, D::Region>,
        queue_id: u32,
        offset: u64,
        leases: &mut QueueLeases,
    ) -> LeasedRecord<D::Region> {
        let found = taking.leased_ahead(queue_id, offset).unwrap_or_else(|| {
            let (topic, filter, source) = (taking.request.topic, &MessageFilter::All, Source::Memory);
            let (max_count, max_bytes, limits) = (1, usize::MAX, TransferLimits::NONE);
            self.reader.read_internal(&GetRequest {
                topic,
                queue_id,
                offset,
                max_count,
                max_bytes,
                filter,
                source,
                limits,
            })
        });
        let is_cut = matches!(found.status, GetStatus::OffsetOverflowOne | GetStatus::OffsetOverflowBadly);
        // A read skips only deleted messages.
        let is_gone = found.next_offset > offset || is_cut;
        if let Some((_, record)) = found.messages.into_iter().next().filter(|(at, _)| *at == offset) {
            return LeasedRecord::There(record);
        }
        if found.is_cold && !is_gone {
            taking.end_before(queue_id, offset, true);
            return LeasedRecord::Cold;
        }
        taking.has_changed = true;
        if is_gone {
            leases.forget(offset);
            taking.gone += 1;
            return LeasedRecord::Gone;
        }
        leases.hold_until(offset, taking.now.saturating_add(UNREADABLE_HOLD_MS));
        LeasedRecord::Unreadable
    }

    /// Logs one line for each receive, whatever the number of messages.
    fn log_gone(&self, taking: &Taking<'_, D::Region>) {
        let (group, topic) = (taking.request.group, taking.request.topic);
        if taking.gone > 0 {
            self.reader.counters.gone_leases.fetch_add(taking.gone, Ordering::Relaxed);
            tracing::warn!(
                group,
                topic,
                messages = taking.gone,
                "leased messages are no longer in the log: leases removed"
            );
        }
    }

    /// Leases new messages, and messages without a lease after a rewind.
    pub(crate) fn receive_new(
        &self,
        taking: &mut Taking<'_, D::Region>,
        queue_id: u32,
        leases: &mut QueueLeases,
    ) {
        while !taking.is_over() && taking.received.dead.is_empty() && !leases.is_next_held(taking.now) {
            let (request, from) = (taking.request, leases.next());
            let (max_count, max_bytes) = (taking.count, taking.bytes);
            let found = taking.new_ahead(queue_id, from).unwrap_or_else(|| {
                let (topic, offset, filter, source) = (request.topic, from, request.filter, Source::Memory);
                let limits = request.limits;
                self.reader.read(&GetRequest {
                    topic,
                    queue_id,
                    offset,
                    max_count,
                    max_bytes,
                    filter,
                    source,
                    limits,
                })
            });
            if found.is_cold && found.messages.is_empty() && found.next_offset == from {
                taking.end_before(queue_id, from, false);
                return;
            }
            let is_fruitless = found.messages.is_empty();
            for (offset, record) in found.messages {
                let before = leases.deliveries_before(offset);
                let attempt = before.saturating_add(u32::from(!taking.is_repeated)).max(1);
                if attempt > before && taking.is_dead(&record, before) {
                    if taking.received.messages.is_empty() {
                        leases.lease(offset, taking.now, taking.invisible_ms, before.max(1));
                        taking.bury(record, queue_id, offset, leases);
                    }
                    return;
                }
                if !taking.fits(&record) || !taking.begins_with_others(leases.earliest_pop_time(offset)) {
                    return;
                }
                let lease = leases.lease(offset, taking.pop_time, taking.invisible_ms, attempt);
                taking.take(record, queue_id, offset, lease);
            }
            match found.status {
                GetStatus::Found
                | GetStatus::NoMatchedMessage
                | GetStatus::OffsetTooSmall
                | GetStatus::MessageWasRemoving
                | GetStatus::OffsetFoundNull => leases.skip_to(found.next_offset),
                GetStatus::MessageUnreadable => {
                    leases.hold_next_until(taking.now.saturating_add(UNREADABLE_HOLD_MS));
                    return;
                }
                // The queue was cut: the group continues at its end.
                GetStatus::OffsetOverflowBadly => leases.clamp(found.max_offset),
                GetStatus::OffsetOverflowOne
                | GetStatus::QueueClosed
                | GetStatus::NoMatchedLogicQueue
                | GetStatus::NoMessageInQueue => return,
            }
            if leases.next() == from {
                return;
            }
            taking.has_changed = true;
            taking.fruitless_reads += usize::from(is_fruitless);
            // With limits a queue is read once, unless the rest was not in memory.
            if !is_fruitless && !found.is_cold && request.limits != TransferLimits::NONE {
                taking.is_limited |= leases.next() < found.max_offset;
                return;
            }
        }
    }
}

/// Acknowledges a message. For an ordered queue, returns when it may continue.
fn end(leases: &mut QueueLeases, handle: &ReceiptHandle) -> Result<Option<i64>> {
    leases.ack(handle.queue_offset, handle.pop_time)?;
    Ok(leases.order().map(|_| leases.last_expiry().unwrap_or(handle.pop_time)))
}

fn receipt(queue_id: u32, queue_offset: u64, lease: Lease) -> ReceiptHandle {
    ReceiptHandle { queue_id, queue_offset, pop_time: lease.pop_time, invisible_ms: lease.invisible_ms }
}
