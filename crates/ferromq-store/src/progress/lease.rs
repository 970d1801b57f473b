//! Leases of one queue for one group: messages received and not acknowledged yet.
//!
//! Pure state: `now` is an argument, messages are queue offsets. `receive` reads the messages, `progress_files` writes
//! the files.

use std::collections::BTreeMap;

use crate::error::{Result, StoreError};

/// The state of one message in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// The group's committed offset of the queue.
    pub committed: u64,
    /// Whether the group is done with the message: it was acknowledged, left out by a filter, or skipped.
    pub is_over: bool,
    /// How often it was delivered, if that is known.
    pub attempts: Option<u32>,
    /// When its lease expires; `None` without a lease, or after its end.
    pub leased_until_ms: Option<i64>,
}

/// The exclusive right to one message until it expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    /// When it began, milliseconds since 1970. Strictly grows with each lease of a message.
    pub pop_time: i64,
    /// Its length in milliseconds; negative if it expired before it could begin.
    pub invisible_ms: i64,
    /// 1 for the first lease of a message.
    pub attempt: u32,
    /// Whether its consumer chose when the message comes again, as after a failure. In memory only.
    pub is_changed: bool,
}

/// How far another broker's clock may be ahead, and how long a lease of its consumers may last from now on. RocketMQ's
/// timer accepts no check-point further ahead.
const SKEW_MS: i64 = 86_400_000;
const LONGEST_MS: i64 = 3 * 86_400_000;

impl Lease {
    pub(crate) fn new(pop_time: i64, invisible_ms: i64, attempt: u32) -> Self {
        Self { pop_time, invisible_ms, attempt, is_changed: false }
    }

    /// A lease from another broker's file. Its times may be invalid; they are bounded, so that it neither hides a
    /// message forever nor leaves no later pop time.
    pub(crate) fn imported(pop_time: i64, ends_at: i64, attempt: u32, now: i64) -> Self {
        let pop_time = pop_time.clamp(0, now.max(0).saturating_add(SKEW_MS));
        let ends_at = ends_at.clamp(0, now.max(0).saturating_add(LONGEST_MS));
        Self::new(pop_time, ends_at.saturating_sub(pop_time), attempt.max(1))
    }

    pub(crate) fn expires_at(&self) -> i64 {
        self.pop_time.saturating_add(self.invisible_ms)
    }

    /// The next lease of the same message: a new pop time, even within one millisecond, and an expiry `invisible_ms`
    /// after `now`.
    fn again(self, now: i64, invisible_ms: i64) -> Self {
        let pop_time = now.max(self.pop_time.saturating_add(1));
        let expires_at = now.saturating_add(invisible_ms.max(0));
        Self::new(pop_time, expires_at.saturating_sub(pop_time), self.attempt)
    }

    /// The same lease with its expiry `invisible_ms` after `now`.
    fn until(self, now: i64, invisible_ms: i64) -> Self {
        let expires_at = now.saturating_add(invisible_ms.max(0));
        Self { invisible_ms: expires_at.saturating_sub(self.pop_time), ..self }
    }
}

/// Consecutive messages whose leases expire in the same millisecond. A batch costs one entry, and an acknowledgement
/// only counts down. At expiry, each message is checked against the leases, because it may have been acknowledged or
/// leased again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct LeaseRun {
    len: u32,
    live: u32,
}

/// The last ordered receive of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// The attempt id; never empty.
    pub attempt_id: Option<Box<str>>,
    /// When its leases began, until they are renewed.
    pub pop_time: i64,
    /// Where ordered receives began. Messages below it without a lease are never redelivered.
    pub floor: u64,
    /// Messages of this receive without a lease, with their number of deliveries. Before a rewind: those acknowledged
    /// above an unacknowledged one. After a rewind: all, sorted by offset.
    pub delivered: Vec<(u64, u32)>,
}

/// The progress of one group in one queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QueueLeases {
    /// Messages from here on were never handed out.
    next: u64,
    in_flight: BTreeMap<u64, Lease>,
    /// By expiry and first offset. Runs with the same expiry never overlap.
    expiries: BTreeMap<(i64, u64), LeaseRun>,
    /// Smallest pop time of a new lease: above those of leases that a rewind ended.
    pop_floor: i64,
    /// The last receive, if it was ordered.
    order: Option<Box<Order>>,
    /// The next message and until when it is held back, after it could not be read. In memory only.
    held: Option<(u64, i64)>,
}

impl QueueLeases {
    /// Begins at `next` without leases.
    pub(crate) fn new(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// The lowest message that is in flight, else the next one.
    pub(crate) fn committed(&self) -> u64 {
        self.in_flight.first_key_value().map_or(self.next, |(&offset, _)| offset)
    }

    /// The next message to hand out.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Holds the next message back until then, because it cannot be read now.
    pub(crate) fn hold_next_until(&mut self, at: i64) {
        self.held = Some((self.next, at));
    }

    /// Until when the next message is held back.
    pub(crate) fn next_held_until(&self, now: i64) -> Option<i64> {
        self.held.filter(|(offset, at)| *offset == self.next && *at > now).map(|(_, at)| at)
    }

    /// Whether the next message is held back now.
    pub(crate) fn is_next_held(&self, now: i64) -> bool {
        self.held.is_some() && self.next_held_until(now).is_some()
    }

    /// The leases, lowest offset first.
    pub(crate) fn in_flight(&self) -> impl ExactSizeIterator<Item = (u64, Lease)> + '_ {
        self.in_flight.iter().map(|(&offset, &lease)| (offset, lease))
    }

    /// When the first lease expires.
    pub(crate) fn next_expiry(&self) -> Option<i64> {
        self.expiries.first_key_value().map(|(&(at, _), _)| at)
    }

    /// When the last lease expires; ordered receives wait for it.
    pub(crate) fn last_expiry(&self) -> Option<i64> {
        self.expiries.last_key_value().map(|(&(at, _), _)| at)
    }

    /// Whether a lease has not expired yet.
    pub(crate) fn is_held(&self, now: i64) -> bool {
        self.last_expiry().is_some_and(|at| at > now)
    }

    /// The last receive, if it was ordered.
    pub(crate) fn order(&self) -> Option<&Order> {
        self.order.as_deref()
    }

    /// Records the last ordered receive, or `None` after any other receive.
    pub(crate) fn set_order(&mut self, order: Option<Order>) {
        if self.order.is_some() || order.is_some() {
            self.order = order.map(Box::new);
        }
    }

    /// Whether `attempt_id` repeats the last ordered receive, whose response the client lost.
    pub(crate) fn is_repeated(&self, attempt_id: Option<&str>) -> bool {
        let last = self.order().and_then(|order| order.attempt_id.as_deref());
        last.is_some() && last == attempt_id
    }

    /// Whether a lease belongs to the last ordered receive.
    fn is_in_order(&self, lease: Lease) -> bool {
        self.order().is_some_and(|order| order.pop_time == lease.pop_time)
    }

    /// The lease of the lowest message at or above `offset` that has one.
    pub(crate) fn in_flight_from(&self, offset: u64) -> Option<(u64, Lease)> {
        self.in_flight.range(offset..).next().map(|(&offset, &lease)| (offset, lease))
    }

    /// Whether the last ordered receive, with this attempt id, took the lease. Taking it again is then not another
    /// attempt.
    pub(crate) fn is_same_attempt(&self, lease: Lease, attempt_id: Option<&str>) -> bool {
        self.is_repeated(attempt_id) && self.is_in_order(lease)
    }

    /// Skips messages below `next` that were never handed out. Never goes back.
    pub(crate) fn skip_to(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// Earliest begin of the next lease of a message.
    pub(crate) fn earliest_pop_time(&self, offset: u64) -> i64 {
        self.in_flight.get(&offset).map_or(self.pop_floor, |lease| lease.pop_time.saturating_add(1))
    }

    /// Leases a message for the `attempt`-th time, and skips lower messages without a lease.
    pub(crate) fn lease(&mut self, offset: u64, now: i64, invisible_ms: i64, attempt: u32) -> Lease {
        let lease = Lease::new(now.max(self.pop_floor), invisible_ms.max(0), attempt);
        self.next = self.next.max(offset.saturating_add(1));
        self.insert(offset, lease);
        lease
    }

    /// The message whose lease expired first, if any has expired.
    pub(crate) fn first_expired_offset(&mut self, now: i64) -> Option<u64> {
        self.first_expired(now).map(|(offset, _)| offset)
    }

    /// Leases a message again after its lease expired.
    pub(crate) fn renew(&mut self, offset: u64, now: i64, invisible_ms: i64) -> Option<Lease> {
        self.in_flight.get(&offset).filter(|lease| lease.expires_at() <= now)?;
        self.take_again(offset, now, invisible_ms, 1)
    }

    /// Leases a message again, expired or not, and adds `attempts` to its attempts.
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

    /// Acknowledges a message and ends its lease. After a rewind to a lower message it is redelivered.
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

    /// Rewinds the group to its lowest lease at or above the floor of ordered receives. That message and all above are
    /// redelivered, acknowledged or not. Returns whether there was a lease.
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

    /// How often the last ordered receive delivered a message without a lease, before the rewind.
    pub(crate) fn deliveries_before(&self, offset: u64) -> u32 {
        let delivered = self.order().map_or(&[][..], |order| &order.delivered);
        let found = delivered.binary_search_by_key(&offset, |(at, _)| *at).ok();
        found.and_then(|at| delivered.get(at)).map_or(0, |(_, times)| *times)
    }

    /// Records messages of the last ordered receive that are acknowledged above an unacknowledged one.
    pub(crate) fn set_delivered(&mut self, delivered: Vec<(u64, u32)>) {
        if let Some(order) = self.order.as_mut() {
            order.delivered = delivered;
        }
    }

    pub(crate) fn holds(&self, offset: u64, pop_time: i64) -> bool {
        self.held(offset, pop_time).is_ok()
    }

    /// Moves the lease's expiry to `invisible_ms` after `now`. A lease of the last ordered receive keeps its pop time
    /// and handle, which identify that receive.
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
        let lease = Lease { is_changed: true, ..lease };
        self.remove(offset);
        self.insert(offset, lease);
        Ok(lease)
    }

    /// Moves the expiry to `invisible_ms` after `now`; the lease stays the same.
    pub(crate) fn extend(&mut self, offset: u64, pop_time: i64, now: i64, invisible_ms: i64) -> Result<()> {
        let lease = self.held(offset, pop_time)?.until(now, invisible_ms);
        self.remove(offset);
        self.insert(offset, lease);
        Ok(())
    }

    /// Returns an unused lease, which expires `invisible_ms` after `now`, without counting an attempt. It leaves its
    /// receive, so that the next delivery counts.
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

    /// Extends a lease that expires before `at` until then; the lease stays the same.
    pub(crate) fn hold_until(&mut self, offset: u64, at: i64) {
        let Some(lease) = self.in_flight.get(&offset).copied().filter(|lease| lease.expires_at() < at) else {
            return;
        };
        self.remove(offset);
        self.insert(offset, Lease { invisible_ms: at.saturating_sub(lease.pop_time), ..lease });
    }

    /// Removes the lease of a message that is no longer in the log.
    pub(crate) fn forget(&mut self, offset: u64) {
        self.remove(offset);
    }

    /// Commits `offset`: the group continues there, and messages below are done.
    ///
    /// Going back ends all leases. Going forward keeps leases at and above `offset`, whose messages then hold the
    /// committed offset.
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

    /// Moves the group to `offset` and ends all leases.
    pub(crate) fn reset(&mut self, offset: u64) {
        let newest = self.in_flight.values().map(|lease| lease.pop_time).max();
        let pop_floor = newest.map_or(self.pop_floor, |t| self.pop_floor.max(t.saturating_add(1)));
        *self = Self { next: offset, pop_floor, ..Self::default() };
    }

    /// Cuts the progress to `max_offset`, the end of the queue.
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

    /// Bounds leases that began after `now`, because the clock was ahead: they last at most their length from `now` on.
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

    /// Restores a lease from a snapshot. `false` if its message was never handed out or has a lease already.
    pub(crate) fn restore(&mut self, offset: u64, lease: Lease) -> bool {
        if offset >= self.next || self.in_flight.contains_key(&offset) {
            return false;
        }
        self.insert(offset, lease);
        true
    }

    /// Like [`Self::held`], for a lease that has not expired.
    pub(crate) fn held_at(&self, offset: u64, pop_time: i64, now: i64) -> Result<Lease> {
        let lease = self.held(offset, pop_time)?;
        if lease.expires_at() > now { Ok(lease) } else { Err(StoreError::StaleReceipt) }
    }

    /// Whether the group is done with the message: it was handed out and has no lease.
    pub(crate) fn is_over(&self, offset: u64) -> bool {
        offset < self.next && !self.in_flight.contains_key(&offset)
    }

    /// What is known of a message.
    pub(crate) fn delivery(&self, offset: u64, now: i64) -> Delivery {
        let lease = self.in_flight.get(&offset);
        let before = Some(self.deliveries_before(offset)).filter(|times| *times > 0);
        Delivery {
            committed: self.committed(),
            is_over: self.is_over(offset),
            attempts: lease.map(|lease| lease.attempt).or(before),
            leased_until_ms: lease.map(Lease::expires_at).filter(|at| *at > now),
        }
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
            // Later searches need not skip them again.
            self.expiries.remove(&(at, start));
            self.expiries.insert((at, offset), LeaseRun { len: run.len - passed, ..run });
        }
        Some((offset, lease))
    }

    fn insert(&mut self, offset: u64, lease: Lease) {
        let at = lease.expires_at();
        let before = self.expiries.range_mut((at, 0)..=(at, offset)).next_back();
        match before.map(|(&(_, start), run)| (offset - start, run)) {
            // It still belongs to the run, or belongs to it again.
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
