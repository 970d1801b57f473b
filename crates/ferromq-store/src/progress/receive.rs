//! Receives messages for consumer groups: redelivered ones, then new ones.
//!
//! `lease` has the rules of leases; `lease_verbs` changes and ends leases; the consume queues find the messages.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use crate::{
    derive::set_aside::SetAside,
    error::Result,
    files::disk::{Disk, Region},
    progress::{
        group_progress::Progress,
        lease::QueueLeases,
        progress_files::ProgressWriter,
        receive_types::{Ahead, Begin, ReadAhead, ReceiveRequest, Received},
        taking::Taking,
    },
    read::{
        reader::Reader,
        types::{GetRequest, GetStatus, Source, TransferLimits},
    },
    record::log_record::Record,
    time::clock::Clock,
};

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
    /// Leases messages to a consumer: first those whose lease expired, then new ones; optionally of one queue.
    ///
    /// An ordered receive takes nothing from a queue with a valid lease. Otherwise it begins at the lowest leased
    /// message, and skips acknowledged messages above, or with `from_first` redelivers them. A receive that repeats an
    /// attempt id does not wait. Messages that the filter rejects are skipped for good.
    ///
    /// It does not wait for the disk: it ends before messages that are not in memory and returns them as `cold`. Read
    /// those with [`Reader::get_from`] and pass the result as `ahead` to the next receive, which uses it if they are
    /// still the next ones. Acknowledgements go on meanwhile. `Closed` after a close.
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
        let mut taking = Taking::new(request, now, self.reader.log.written(), ahead);
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
        let held = self.progress.queue(group, topic, queue_id);
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
            if !taking.admits(&record, leases.earliest_pop_time(offset)) {
                return;
            }
            let Some(lease) = leases.renew(offset, taking.pop_time, taking.invisible_ms) else { return };
            taking.take(record, queue_id, offset, lease);
        }
    }

    /// The record of a leased message. If the log no longer holds it, its lease is removed. If it cannot be read now,
    /// its lease is extended without counting an attempt.
    pub(super) fn leased_record(
        &self,
        taking: &mut Taking<'_, D::Region>,
        queue_id: u32,
        offset: u64,
        leases: &mut QueueLeases,
    ) -> LeasedRecord<D::Region> {
        let found = taking.leased_ahead(queue_id, offset).unwrap_or_else(|| {
            let all = GetRequest::all(taking.request.topic, queue_id, offset, 1, usize::MAX);
            self.reader.read_internal(&GetRequest { source: Source::Memory, ..all })
        });
        let is_cut = matches!(found.status, GetStatus::OffsetOverflowOne | GetStatus::OffsetOverflowBadly);
        // A read skips only deleted messages.
        let is_gone = found.next_offset > offset || is_cut;
        if let Some((_, record)) = found.messages.into_iter().next().filter(|(at, _)| *at == offset) {
            return LeasedRecord::There(record);
        }
        if found.is_cold && !is_gone {
            taking.received.cold = Some(taking.next_of(queue_id, offset, true));
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
    pub(super) fn receive_new(
        &self,
        taking: &mut Taking<'_, D::Region>,
        queue_id: u32,
        leases: &mut QueueLeases,
    ) {
        while !taking.is_over() && taking.received.dead.is_empty() && !leases.is_next_held(taking.now) {
            let (request, from) = (taking.request, leases.next());
            let found = taking.new_ahead(queue_id, from).unwrap_or_else(|| {
                let wanted = taking.next_of(queue_id, from, false);
                self.reader.read(&wanted.request(request.topic, request.filter, Source::Memory))
            });
            if found.is_cold && found.messages.is_empty() && found.next_offset == from {
                taking.received.cold = Some(taking.next_of(queue_id, from, false));
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
                if !taking.admits(&record, leases.earliest_pop_time(offset)) {
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
