//! Leases of one queue for one group: what was received and not acknowledged yet.
//!
//! Pure state: `now` is an argument, messages are queue offsets. Reading the messages is `receive`'s
//! business, files are `group_progress`'s.

use std::collections::BTreeMap;

use crate::error::{Result, StoreError};

/// The right to one message until it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    /// When it began, milliseconds since 1970; strictly grows with each lease of a message.
    pub pop_time: i64,
    /// Its length in milliseconds; negative where it ended before it could begin.
    pub invisible_ms: i64,
    /// 1 for the first lease of a message.
    pub attempt: u32,
}

/// How far ahead of our clock that of another broker may be, and how long a lease of its consumers may last from now
/// on: RocketMQ's timer takes a check-point no further ahead.
const SKEW_MS: i64 = 86_400_000;
const LONGEST_MS: i64 = 3 * 86_400_000;

impl Lease {
    /// A lease that a file of another broker tells of. Its times may be anything; what cannot be true must neither hold
    /// a message for ever nor leave no later pop time.
    pub(crate) fn from_outside(pop_time: i64, ends_at: i64, attempt: u32, now: i64) -> Self {
        let pop_time = pop_time.clamp(0, now.max(0).saturating_add(SKEW_MS));
        let ends_at = ends_at.clamp(0, now.max(0).saturating_add(LONGEST_MS));
        Self { pop_time, invisible_ms: ends_at.saturating_sub(pop_time), attempt: attempt.max(1) }
    }

    pub(crate) fn expires_at(&self) -> i64 {
        self.pop_time.saturating_add(self.invisible_ms)
    }

    /// The next lease of the same message: another pop time, even within one millisecond, and an end
    /// `invisible_ms` after `now` whatever the pop time had to be.
    fn again(self, now: i64, invisible_ms: i64) -> Self {
        let pop_time = now.max(self.pop_time.saturating_add(1));
        let expires_at = now.saturating_add(invisible_ms.max(0));
        Self { pop_time, invisible_ms: expires_at.saturating_sub(pop_time), attempt: self.attempt }
    }

    /// The same lease with its end `invisible_ms` after `now`.
    fn until(self, now: i64, invisible_ms: i64) -> Self {
        let expires_at = now.saturating_add(invisible_ms.max(0));
        Self { invisible_ms: expires_at.saturating_sub(self.pop_time), ..self }
    }
}

/// Messages one after the other whose leases end in the same millisecond. What of them was acknowledged or leased
/// again meanwhile is checked against the leases when the time comes, so that a batch costs one entry and an
/// acknowledgement only counts down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct LeaseRun {
    len: u32,
    live: u32,
}

/// The last receive in order of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// The name of the try; never empty.
    pub attempt_id: Option<Box<str>>,
    /// When its leases began, until they are renewed.
    pub pop_time: i64,
    /// Where receives in order began: messages below it that have no lease never come again.
    pub floor: u64,
    /// Messages of this receive without a lease, with their number of deliveries. Before a rewind: those acknowledged
    /// above an unacknowledged one. After a rewind: all, sorted by offset.
    pub delivered: Vec<(u64, u32)>,
}

/// The progress of one group in one queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QueueLeases {
    /// Everything at and above was never handed out.
    next: u64,
    in_flight: BTreeMap<u64, Lease>,
    /// By their end and the offset of the first. Runs of one end never overlap.
    expiries: BTreeMap<(i64, u64), LeaseRun>,
    /// Smallest pop time a new lease may get: above those of leases a rewind ended.
    pop_floor: i64,
    /// Where the queue was received in order last time.
    order: Option<Box<Order>>,
    /// The next message, where it could not be read, and until when it is left alone. Kept in memory alone.
    held: Option<(u64, i64)>,
}

impl QueueLeases {
    /// Begins at `next` without leases.
    pub(crate) fn new(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// Lowest message that is not done with: in flight, or the next one.
    pub(crate) fn committed(&self) -> u64 {
        self.in_flight.first_key_value().map_or(self.next, |(&offset, _)| offset)
    }

    /// The next message to hand out.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The next message cannot be read now: it is left alone until then.
    pub(crate) fn hold_next_until(&mut self, at: i64) {
        self.held = Some((self.next, at));
    }

    /// Until when the next message is left alone.
    pub(crate) fn next_held_until(&self, now: i64) -> Option<i64> {
        self.held.filter(|(offset, at)| *offset == self.next && *at > now).map(|(_, at)| at)
    }

    /// Says whether the next message is left alone now.
    pub(crate) fn is_next_held(&self, now: i64) -> bool {
        self.held.is_some() && self.next_held_until(now).is_some()
    }

    /// The leases, lowest offset first.
    pub(crate) fn in_flight(&self) -> impl ExactSizeIterator<Item = (u64, Lease)> + '_ {
        self.in_flight.iter().map(|(&offset, &lease)| (offset, lease))
    }

    /// When the first lease ends.
    pub(crate) fn next_expiry(&self) -> Option<i64> {
        self.expiries.first_key_value().map(|(&(at, _), _)| at)
    }

    /// When the last lease ends: until then nothing of a queue is received in order.
    pub(crate) fn last_expiry(&self) -> Option<i64> {
        self.expiries.last_key_value().map(|(&(at, _), _)| at)
    }

    /// Says whether a lease has not ended yet.
    pub(crate) fn is_held(&self, now: i64) -> bool {
        self.last_expiry().is_some_and(|at| at > now)
    }

    /// The last receive in order, where the last receive was one.
    pub(crate) fn order(&self) -> Option<&Order> {
        self.order.as_deref()
    }

    /// Notes the last receive in order, or that the last one was not.
    pub(crate) fn set_order(&mut self, order: Option<Order>) {
        if self.order.is_some() || order.is_some() {
            self.order = order.map(Box::new);
        }
    }

    /// Says whether `attempt_id` names the last receive in order: whoever asks has lost its answer.
    pub(crate) fn is_repeated(&self, attempt_id: Option<&str>) -> bool {
        let last = self.order().and_then(|order| order.attempt_id.as_deref());
        last.is_some() && last == attempt_id
    }

    /// Says whether a lease is one of the last receive in order.
    fn is_in_order(&self, lease: Lease) -> bool {
        self.order().is_some_and(|order| order.pop_time == lease.pop_time)
    }

    /// The lease of the lowest message at or above `offset` that has one.
    pub(crate) fn in_flight_from(&self, offset: u64) -> Option<(u64, Lease)> {
        self.in_flight.range(offset..).next().map(|(&offset, &lease)| (offset, lease))
    }

    /// Says whether a lease was taken out by the last receive in order under this name, so that taking it out again
    /// is no further attempt.
    pub(crate) fn is_same_attempt(&self, lease: Lease, attempt_id: Option<&str>) -> bool {
        self.is_repeated(attempt_id) && self.is_in_order(lease)
    }

    /// Passes over everything below `next` that was never handed out. Never goes back.
    pub(crate) fn skip_to(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// When the next lease of a message may begin at the earliest.
    pub(crate) fn earliest_pop_time(&self, offset: u64) -> i64 {
        self.in_flight.get(&offset).map_or(self.pop_floor, |lease| lease.pop_time.saturating_add(1))
    }

    /// Leases a message for the `attempt`-th time; those below it that have no lease are passed over.
    pub(crate) fn lease(&mut self, offset: u64, now: i64, invisible_ms: i64, attempt: u32) -> Lease {
        let lease = Lease { pop_time: now.max(self.pop_floor), invisible_ms: invisible_ms.max(0), attempt };
        self.next = self.next.max(offset.saturating_add(1));
        self.insert(offset, lease);
        lease
    }

    /// The message whose lease ended first, if one has ended.
    pub(crate) fn first_expired_offset(&mut self, now: i64) -> Option<u64> {
        self.first_expired(now).map(|(offset, _)| offset)
    }

    /// Leases a message again whose lease has ended.
    pub(crate) fn renew(&mut self, offset: u64, now: i64, invisible_ms: i64) -> Option<Lease> {
        self.in_flight.get(&offset).filter(|lease| lease.expires_at() <= now)?;
        self.take_again(offset, now, invisible_ms, 1)
    }

    /// Leases a message again, whether its lease has ended or not, and counts `attempts` more.
    pub(crate) fn take_again(
        &mut self,
        offset: u64,
        now: i64,
        invisible_ms: i64,
        attempts: u32,
    ) -> Option<Lease> {
        let old = self.in_flight.get(&offset).copied()?;
        let attempt = old.attempt.saturating_add(attempts);
        let lease = Lease { attempt, ..old.again(now, invisible_ms) };
        self.remove(offset);
        self.insert(offset, lease);
        Some(lease)
    }

    /// Ends the lease, and so the message's life in the group, unless the queue is rewound to a lower one.
    pub(crate) fn ack(&mut self, offset: u64, pop_time: i64) -> Result<()> {
        let lease = self.held(offset, pop_time)?;
        self.remove(offset);
        if self.is_in_order(lease) {
            let committed = self.committed();
            let Some(order) = self.order.as_mut() else { return Ok(()) };
            if offset > committed {
                order.delivered.push((offset, lease.attempt));
            } else {
                order.delivered.retain(|(offset, _)| *offset > committed);
            }
        }
        Ok(())
    }

    /// Has the group go on at its lowest lease at or above where receives in order began: that and all above come again,
    /// also what was acknowledged. Says whether there was one.
    pub(crate) fn rewind(&mut self) -> bool {
        let Some(order) = self.order.as_mut() else { return false };
        let again: Vec<(u64, Lease)> =
            self.in_flight.range(order.floor..).map(|(&offset, &lease)| (offset, lease)).collect();
        let Some(&(first, _)) = again.first() else { return false };
        order.delivered.retain(|(offset, _)| *offset > first);
        order.delivered.extend(again.iter().map(|(offset, lease)| (*offset, lease.attempt)));
        order.delivered.sort_unstable();
        let newest = again.iter().map(|(_, lease)| lease.pop_time).fold(order.pop_time, i64::max);
        self.pop_floor = self.pop_floor.max(newest.saturating_add(1));
        for (offset, _) in again {
            self.remove(offset);
        }
        self.next = first;
        true
    }

    /// How often a message without a lease was handed out, by the last receive in order, before the queue was rewound.
    pub(crate) fn deliveries_before(&self, offset: u64) -> u32 {
        let delivered = self.order().map_or(&[][..], |order| &order.delivered);
        let found = delivered.binary_search_by_key(&offset, |(at, _)| *at).ok();
        found.and_then(|at| delivered.get(at)).map_or(0, |(_, times)| *times)
    }

    /// Notes messages of the last receive in order that are acknowledged although lower ones are not.
    pub(crate) fn set_delivered(&mut self, delivered: Vec<(u64, u32)>) {
        if let Some(order) = self.order.as_mut() {
            order.delivered = delivered;
        }
    }

    /// Says whether the lease is held.
    pub(crate) fn holds(&self, offset: u64, pop_time: i64) -> bool {
        self.held(offset, pop_time).is_ok()
    }

    /// Lets the lease end `invisible_ms` after `now`. One of the last receive in order keeps its pop time, and so its
    /// handle: what is left of such a receive is found by it.
    pub(crate) fn change(
        &mut self,
        offset: u64,
        pop_time: i64,
        now: i64,
        invisible_ms: i64,
    ) -> Result<Lease> {
        let old = self.held(offset, pop_time)?;
        let lease = match self.is_in_order(old) {
            true => old.until(now, invisible_ms),
            false => old.again(now, invisible_ms),
        };
        self.remove(offset);
        self.insert(offset, lease);
        Ok(lease)
    }

    /// Lets the lease end `invisible_ms` after `now` and be the same lease.
    pub(crate) fn extend(&mut self, offset: u64, pop_time: i64, now: i64, invisible_ms: i64) -> Result<()> {
        let lease = self.held(offset, pop_time)?.until(now, invisible_ms);
        self.remove(offset);
        self.insert(offset, lease);
        Ok(())
    }

    /// Lets a lease end `invisible_ms` after `now` whose message nobody used: it was no attempt, and is of no receive
    /// any longer, so that the next delivery counts.
    pub(crate) fn give_back(
        &mut self,
        offset: u64,
        pop_time: i64,
        now: i64,
        invisible_ms: i64,
    ) -> Result<Lease> {
        let old = self.held(offset, pop_time)?;
        let lease = Lease { attempt: old.attempt.saturating_sub(1), ..old.again(now, invisible_ms) };
        self.remove(offset);
        self.insert(offset, lease);
        Ok(lease)
    }

    /// Lets a lease that ends before `at` end then, and be the same lease.
    pub(crate) fn hold_until(&mut self, offset: u64, at: i64) {
        let Some(lease) = self.in_flight.get(&offset).copied().filter(|lease| lease.expires_at() < at) else {
            return;
        };
        self.remove(offset);
        self.insert(offset, Lease { invisible_ms: at.saturating_sub(lease.pop_time), ..lease });
    }

    /// Forgets a message that is no longer in the log.
    pub(crate) fn forget(&mut self, offset: u64) {
        self.remove(offset);
    }

    /// Makes `offset` the next message the group will read; messages below are done with.
    ///
    /// Going back ends all leases. Going forward keeps those at and above `offset`, whose messages then
    /// hold the committed offset.
    pub(crate) fn commit(&mut self, offset: u64) {
        if offset < self.committed() {
            return self.reset(offset);
        }
        while let Some((&lowest, _)) = self.in_flight.first_key_value()
            && lowest < offset
        {
            self.remove(lowest);
        }
        self.skip_to(offset);
    }

    /// Makes `offset` the next message the group will read, whatever it was handed out above: all leases end.
    pub(crate) fn reset(&mut self, offset: u64) {
        let newest = self.in_flight.values().map(|lease| lease.pop_time).max();
        let pop_floor = newest.map_or(self.pop_floor, |t| self.pop_floor.max(t.saturating_add(1)));
        *self = Self { next: offset, pop_floor, ..Self::default() };
    }

    /// Cuts everything at and above `max_offset`: the log does not hold it.
    pub(crate) fn clamp(&mut self, max_offset: u64) {
        while let Some((&highest, _)) = self.in_flight.last_key_value()
            && highest >= max_offset
        {
            self.remove(highest);
        }
        self.next = self.next.min(max_offset);
        if let Some(order) = self.order.as_mut() {
            order.delivered.retain(|(offset, _)| *offset < max_offset);
        }
    }

    /// Leases that began after `now` were given by a clock that was ahead: they last no longer from `now` on than they
    /// were given for.
    pub(crate) fn end_by(&mut self, now: i64) {
        let ahead: Vec<(u64, Lease)> = self
            .in_flight
            .iter()
            .map(|(at, lease)| (*at, *lease))
            .filter(|(_, l)| l.pop_time > now)
            .collect();
        for (offset, lease) in ahead {
            self.remove(offset);
            self.insert(offset, lease.until(now, lease.invisible_ms));
        }
    }

    /// Takes over a lease from a snapshot; says no to one that was never handed out or is there twice.
    pub(crate) fn restore(&mut self, offset: u64, lease: Lease) -> bool {
        if offset >= self.next || self.in_flight.contains_key(&offset) {
            return false;
        }
        self.insert(offset, lease);
        true
    }

    /// As [`Self::held`], and the lease has not ended.
    pub(crate) fn held_at(&self, offset: u64, pop_time: i64, now: i64) -> Result<Lease> {
        let lease = self.held(offset, pop_time)?;
        if lease.expires_at() > now { Ok(lease) } else { Err(StoreError::StaleReceipt) }
    }

    /// Says whether the message's life in the group is over: it was handed out, and has no lease.
    pub(crate) fn is_over(&self, offset: u64) -> bool {
        offset < self.next && !self.in_flight.contains_key(&offset)
    }

    pub(crate) fn held(&self, offset: u64, pop_time: i64) -> Result<Lease> {
        let lease = self.in_flight.get(&offset).copied();
        lease.filter(|lease| lease.pop_time == pop_time).ok_or(StoreError::StaleReceipt)
    }

    fn first_expired(&mut self, now: i64) -> Option<(u64, Lease)> {
        let (&(at, start), &run) = self.expiries.first_key_value()?;
        if at > now {
            return None;
        }
        let offsets = start..start.saturating_add(run.len.into());
        let is_live = |offset: u64| {
            let lease = self.in_flight.get(&offset).copied();
            lease.filter(|lease| lease.expires_at() == at).map(|lease| (offset, lease))
        };
        let Some((offset, lease)) = offsets.into_iter().find_map(is_live) else {
            debug_assert!(false, "a run without leases");
            self.expiries.remove(&(at, start));
            return None;
        };
        if let Ok(passed @ 1..) = u32::try_from(offset - start) {
            // Nobody has to pass over them again.
            self.expiries.remove(&(at, start));
            self.expiries.insert((at, offset), LeaseRun { len: run.len - passed, ..run });
        }
        Some((offset, lease))
    }

    fn insert(&mut self, offset: u64, lease: Lease) {
        let at = lease.expires_at();
        let before = self.expiries.range_mut((at, 0)..=(at, offset)).next_back();
        match before.map(|(&(_, start), run)| (offset - start, run)) {
            // It is of the run still, or again.
            Some((distance, run)) if distance < u64::from(run.len) => run.live += 1,
            Some((distance, run)) if distance == u64::from(run.len) && run.len < u32::MAX => {
                run.len += 1;
                run.live += 1;
            }
            _ => _ = self.expiries.insert((at, offset), LeaseRun { len: 1, live: 1 }),
        }
        self.in_flight.insert(offset, lease);
    }

    fn remove(&mut self, offset: u64) {
        let Some(lease) = self.in_flight.remove(&offset) else { return };
        let at = lease.expires_at();
        if let Some((&key, run)) = self.expiries.range_mut((at, 0)..=(at, offset)).next_back() {
            run.live -= 1;
            if run.live == 0 {
                self.expiries.remove(&key);
            }
        }
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
