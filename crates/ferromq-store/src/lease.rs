//! Leases of one queue for one group: what was received and not acknowledged yet.
//!
//! Pure state: `now` is an argument, messages are queue offsets. Reading the messages is `receive`'s
//! business, files are `progress`'s.

use std::collections::{BTreeMap, VecDeque};

use crate::{Result, StoreError};

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

impl Lease {
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
}

/// Leases that end in the same millisecond. Offsets are kept as ranges and checked against the leases when
/// the time comes, so that a batch costs one entry and an acknowledgement only counts down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Bucket {
    live: usize,
    /// Newest last; the second number is the end, exclusive.
    ranges: VecDeque<(u64, u64)>,
}

/// The last receive in order of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// The name of the try; never empty.
    pub attempt_id: Option<Box<str>>,
    /// When its leases began, until they are renewed.
    pub pop_time: i64,
}

/// The progress of one group in one queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QueueLeases {
    /// Everything at and above was never handed out.
    next: u64,
    in_flight: BTreeMap<u64, Lease>,
    expiries: BTreeMap<i64, Bucket>,
    /// Smallest pop time a new lease may get: above those of leases a rewind ended.
    pop_floor: i64,
    /// Where the queue was received in order last time.
    order: Option<Box<Order>>,
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

    /// The leases, lowest offset first.
    pub(crate) fn in_flight(&self) -> impl ExactSizeIterator<Item = (u64, Lease)> + '_ {
        self.in_flight.iter().map(|(&offset, &lease)| (offset, lease))
    }

    /// When the first lease ends.
    pub(crate) fn next_expiry(&self) -> Option<i64> {
        self.expiries.first_key_value().map(|(&at, _)| at)
    }

    /// When the last lease ends: until then nothing of a queue is received in order.
    pub(crate) fn last_expiry(&self) -> Option<i64> {
        self.expiries.last_key_value().map(|(&at, _)| at)
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

    /// Leases a message nobody received yet; those below it that nobody received are passed over.
    pub(crate) fn lease(&mut self, offset: u64, now: i64, invisible_ms: i64) -> Lease {
        let lease =
            Lease { pop_time: now.max(self.pop_floor), invisible_ms: invisible_ms.max(0), attempt: 1 };
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

    /// Ends the message's life in the group.
    pub(crate) fn ack(&mut self, offset: u64, pop_time: i64) -> Result<()> {
        self.held(offset, pop_time)?;
        self.remove(offset);
        Ok(())
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
        let lease = if self.is_in_order(old) {
            let expires_at = now.saturating_add(invisible_ms.max(0));
            Lease { invisible_ms: expires_at.saturating_sub(old.pop_time), ..old }
        } else {
            old.again(now, invisible_ms)
        };
        self.remove(offset);
        self.insert(offset, lease);
        Ok(lease)
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
    }

    /// Takes over a lease from a snapshot; says no to one that was never handed out or is there twice.
    pub(crate) fn restore(&mut self, offset: u64, lease: Lease) -> bool {
        if offset >= self.next || self.in_flight.contains_key(&offset) {
            return false;
        }
        self.insert(offset, lease);
        true
    }

    fn held(&self, offset: u64, pop_time: i64) -> Result<Lease> {
        let lease = self.in_flight.get(&offset).copied();
        lease.filter(|lease| lease.pop_time == pop_time).ok_or(StoreError::StaleReceipt)
    }

    fn first_expired(&mut self, now: i64) -> Option<(u64, Lease)> {
        let mut entry = self.expiries.first_entry()?;
        let at = *entry.key();
        if at > now {
            return None;
        }
        let bucket = entry.get_mut();
        // A bucket lives as long as one of its leases does, so the loop ends at a lease.
        while let Some(range) = bucket.ranges.front_mut() {
            while range.0 < range.1 {
                let lease = self.in_flight.get(&range.0).copied();
                if let Some(lease) = lease.filter(|lease| lease.expires_at() == at) {
                    return Some((range.0, lease));
                }
                range.0 += 1;
            }
            bucket.ranges.pop_front();
        }
        debug_assert!(false, "a bucket without leases");
        entry.remove();
        None
    }

    fn insert(&mut self, offset: u64, lease: Lease) {
        let bucket = self.expiries.entry(lease.expires_at()).or_default();
        bucket.live += 1;
        match bucket.ranges.back_mut() {
            Some((_, end)) if *end == offset => *end += 1,
            _ => bucket.ranges.push_back((offset, offset.saturating_add(1))),
        }
        self.in_flight.insert(offset, lease);
    }

    fn remove(&mut self, offset: u64) {
        let Some(lease) = self.in_flight.remove(&offset) else { return };
        let at = lease.expires_at();
        if let Some(bucket) = self.expiries.get_mut(&at) {
            bucket.live -= 1;
            if bucket.live == 0 {
                self.expiries.remove(&at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lease_expired(queue: &mut QueueLeases, now: i64, invisible_ms: i64) -> Option<(u64, Lease)> {
        let offset = queue.first_expired_offset(now)?;
        Some((offset, queue.renew(offset, now, invisible_ms).unwrap()))
    }

    #[test]
    fn the_committed_offset_never_passes_an_unacknowledged_message() {
        let mut queue = QueueLeases::new(5);
        let first = queue.lease(5, 100, 10);
        let second = queue.lease(6, 100, 10);
        queue.ack(6, second.pop_time).unwrap();
        assert_eq!(queue.committed(), 5);
        queue.ack(5, first.pop_time).unwrap();
        assert_eq!(queue.committed(), 7);
    }

    #[test]
    fn an_expired_lease_can_be_acknowledged_until_somebody_receives_again() {
        let mut queue = QueueLeases::new(0);
        let a = queue.lease(0, 100, 10);
        let b = queue.lease(1, 100, 10);
        queue.ack(0, a.pop_time).unwrap();
        let (offset, again) = lease_expired(&mut queue, 110, 10).unwrap();
        assert_eq!((offset, again.attempt), (1, 2));
        assert!(matches!(queue.ack(1, b.pop_time), Err(StoreError::StaleReceipt)));
        queue.ack(1, again.pop_time).unwrap();
        assert_eq!(queue.next_expiry(), None);
    }

    #[test]
    fn a_lease_changed_in_the_same_millisecond_gets_a_new_handle() {
        let mut queue = QueueLeases::new(0);
        let old = queue.lease(0, 100, 1000);
        let new = queue.change(0, old.pop_time, 100, 0).unwrap();
        assert!(new.pop_time > old.pop_time);
        assert!(queue.ack(0, old.pop_time).is_err());
        assert_eq!(lease_expired(&mut queue, 100, 5).unwrap().1.attempt, 2);
    }

    #[test]
    fn a_handle_from_before_a_rewind_is_stale_even_within_the_same_millisecond() {
        let mut queue = QueueLeases::new(0);
        let old = queue.lease(0, 100, 1000);
        queue.lease(1, 100, 1000);
        queue.ack(0, old.pop_time).unwrap();
        queue.commit(0);
        let new = queue.lease(0, 100, 1000);
        assert!(new.pop_time > old.pop_time);
    }

    #[test]
    fn acknowledged_messages_leave_no_memory_behind() {
        let mut queue = QueueLeases::new(0);
        for round in 0..100 {
            let leases: Vec<_> =
                (0..256).map(|i| (round * 256 + i, queue.lease(round * 256 + i, 7, 30))).collect();
            assert_eq!(queue.expiries.values().map(|b| b.ranges.len()).sum::<usize>(), 1);
            for (offset, lease) in leases {
                queue.ack(offset, lease.pop_time).unwrap();
            }
        }
        assert!(queue.in_flight.is_empty() && queue.expiries.is_empty());
    }

    /// The same promises kept by the simplest means: a list of messages that is searched.
    #[derive(Default)]
    struct Model {
        next: u64,
        leases: Vec<(u64, Lease)>,
    }

    impl Model {
        fn committed(&self) -> u64 {
            self.leases.iter().map(|(offset, _)| *offset).min().unwrap_or(self.next)
        }
        fn position(&self, offset: u64, pop_time: i64) -> Option<usize> {
            self.leases.iter().position(|(o, l)| *o == offset && l.pop_time == pop_time)
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Receive { count: u64, invisible_ms: i64 },
        ReceiveExpired { count: usize, invisible_ms: i64 },
        Ack { pick: prop::sample::Index, stale: bool },
        Change { pick: prop::sample::Index, invisible_ms: i64 },
        Advance(i64),
        Commit { ahead: i64 },
        Clamp { below: u64 },
        SkipTo { ahead: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..6u64, 0..40i64).prop_map(|(count, invisible_ms)| Step::Receive { count, invisible_ms }),
            4 => (1..6usize, 0..40i64).prop_map(|(count, invisible_ms)| Step::ReceiveExpired { count, invisible_ms }),
            6 => (any::<prop::sample::Index>(), prop::bool::weighted(0.2))
                .prop_map(|(pick, stale)| Step::Ack { pick, stale }),
            3 => (any::<prop::sample::Index>(), 0..40i64)
                .prop_map(|(pick, invisible_ms)| Step::Change { pick, invisible_ms }),
            4 => (0..30i64).prop_map(Step::Advance),
            1 => (-4..6i64).prop_map(|ahead| Step::Commit { ahead }),
            1 => (0..4u64).prop_map(|below| Step::Clamp { below }),
            1 => (0..3u64).prop_map(|ahead| Step::SkipTo { ahead }),
        ]
    }

    fn run(steps: Vec<Step>) {
        let (mut queue, mut model, mut now) = (QueueLeases::new(0), Model::default(), 1_000i64);
        for step in steps {
            match step {
                Step::Receive { count, invisible_ms } => {
                    for offset in queue.next()..queue.next() + count {
                        let lease = queue.lease(offset, now, invisible_ms);
                        assert_eq!((lease.attempt, lease.invisible_ms), (1, invisible_ms));
                        model.leases.push((offset, lease));
                        model.next = offset + 1;
                    }
                }
                Step::ReceiveExpired { count, invisible_ms } => {
                    for _ in 0..count {
                        let first =
                            model.leases.iter().map(|(_, l)| l.expires_at()).min().filter(|at| *at <= now);
                        let got = lease_expired(&mut queue, now, invisible_ms);
                        assert_eq!(first.is_some(), got.is_some());
                        let Some((offset, lease)) = got else { break };
                        let old = model.leases.iter_mut().find(|(o, _)| *o == offset).unwrap();
                        assert_eq!(Some(old.1.expires_at()), first);
                        assert!(lease.pop_time > old.1.pop_time && lease.pop_time >= now);
                        assert_eq!(lease.attempt, old.1.attempt + 1);
                        old.1 = lease;
                    }
                }
                Step::Ack { pick, stale } => {
                    if model.leases.is_empty() {
                        continue;
                    }
                    let (offset, lease) = *pick.get(&model.leases);
                    let pop_time = lease.pop_time - i64::from(stale);
                    let at = model.position(offset, pop_time);
                    assert_eq!(queue.ack(offset, pop_time).is_ok(), at.is_some());
                    at.map(|at| model.leases.swap_remove(at));
                }
                Step::Change { pick, invisible_ms } => {
                    if model.leases.is_empty() {
                        continue;
                    }
                    let (offset, old) = *pick.get(&model.leases);
                    let new = queue.change(offset, old.pop_time, now, invisible_ms).unwrap();
                    assert!(new.pop_time > old.pop_time && new.attempt == old.attempt);
                    assert_eq!(new.expires_at(), now + invisible_ms);
                    let at = model.position(offset, old.pop_time).unwrap();
                    model.leases[at].1 = new;
                }
                Step::Advance(ms) => now += ms,
                Step::Commit { ahead } => {
                    let offset = model.committed().saturating_add_signed(ahead);
                    if offset < model.committed() {
                        model = Model { next: offset, leases: Vec::new() };
                    } else {
                        model.leases.retain(|(o, _)| *o >= offset);
                        model.next = model.next.max(offset);
                    }
                    queue.commit(offset);
                }
                Step::Clamp { below } => {
                    let max_offset = model.next.saturating_sub(below);
                    model.leases.retain(|(o, _)| *o < max_offset);
                    model.next = max_offset;
                    queue.clamp(max_offset);
                }
                Step::SkipTo { ahead } => {
                    model.next += ahead;
                    queue.skip_to(model.next);
                }
            }
            assert_eq!((queue.committed(), queue.next()), (model.committed(), model.next));
            assert_eq!(queue.next_expiry(), model.leases.iter().map(|(_, l)| l.expires_at()).min());
            assert_eq!(queue.in_flight().len(), model.leases.len());
        }
    }

    proptest! {
        #[test]
        fn leases_behave_like_a_list_that_is_searched(steps in prop::collection::vec(step(), 1..120)) {
            run(steps);
        }
    }
}
