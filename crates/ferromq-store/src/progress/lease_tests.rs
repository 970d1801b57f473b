//! Tests of leases, by examples and against a simple model.
use proptest::prelude::*;

use super::*;

fn lease_expired(queue: &mut QueueLeases, now: i64, invisible_ms: i64) -> Option<(u64, Lease)> {
    let offset = queue.first_expired_offset(now)?;
    Some((offset, queue.renew(offset, now, invisible_ms).unwrap()))
}

#[test]
fn the_committed_offset_never_passes_an_unacknowledged_message() {
    let mut queue = QueueLeases::new(5);
    let first = queue.lease(5, 100, 10, 1);
    let second = queue.lease(6, 100, 10, 1);
    queue.ack(6, second.pop_time).unwrap();
    assert_eq!(queue.committed(), 5);
    queue.ack(5, first.pop_time).unwrap();
    assert_eq!(queue.committed(), 7);
}

#[test]
fn an_expired_lease_can_be_acknowledged_until_its_message_is_redelivered() {
    let mut queue = QueueLeases::new(0);
    let a = queue.lease(0, 100, 10, 1);
    let b = queue.lease(1, 100, 10, 1);
    queue.ack(0, a.pop_time).unwrap();
    let (offset, again) = lease_expired(&mut queue, 110, 10).unwrap();
    assert_eq!((offset, again.attempt), (1, 2));
    assert!(matches!(queue.ack(1, b.pop_time), Err(StoreError::StaleReceipt)));
    queue.ack(1, again.pop_time).unwrap();
    assert_eq!(queue.next_expiry(), None);
}

#[test]
fn what_became_of_a_message_is_known_until_its_group_has_passed_it() {
    let mut queue = QueueLeases::new(5);
    let known = |committed, is_over, attempts, leased_until_ms| Delivery {
        committed,
        is_over,
        attempts,
        leased_until_ms,
    };
    queue.lease(5, 100, 10, 1);
    let second = queue.lease(6, 100, 10, 1);
    queue.ack(6, second.pop_time).unwrap();
    assert_eq!(queue.delivery(4, 105), known(5, true, None, None));
    assert_eq!(queue.delivery(5, 105), known(5, false, Some(1), Some(110)));
    assert_eq!(queue.delivery(6, 105), known(5, true, None, None), "acknowledged before an earlier message");
    assert_eq!(queue.delivery(7, 105), known(5, false, None, None), "never received");
    assert_eq!(queue.delivery(5, 110), known(5, false, Some(1), None), "its lease has ended");
    let (_, again) = lease_expired(&mut queue, 110, 10).unwrap();
    assert_eq!(queue.delivery(5, 110), known(5, false, Some(2), Some(120)));
    queue.ack(5, again.pop_time).unwrap();
    assert_eq!(queue.delivery(5, 110), known(7, true, None, None));
}

#[test]
fn a_lease_is_changed_until_the_next_delivery_or_until_it_is_given_back() {
    let mut queue = QueueLeases::new(0);
    let old = queue.lease(0, 100, 10, 1);
    assert!(!old.is_changed);
    let changed = queue.change(0, old.pop_time, 100, 50).unwrap();
    assert!(changed.is_changed);
    let (_, again) = lease_expired(&mut queue, 150, 10).unwrap();
    assert_eq!((again.attempt, again.is_changed), (2, false));
    let changed = queue.change(0, again.pop_time, 150, 50).unwrap();
    let given_back = queue.give_back(0, changed.pop_time, 150, 50).unwrap();
    assert_eq!((given_back.attempt, given_back.is_changed), (1, false));
}

#[test]
fn a_lease_changed_in_the_same_millisecond_gets_a_new_handle() {
    let mut queue = QueueLeases::new(0);
    let old = queue.lease(0, 100, 1000, 1);
    let new = queue.change(0, old.pop_time, 100, 0).unwrap();
    assert!(new.pop_time > old.pop_time);
    assert!(queue.ack(0, old.pop_time).is_err());
    assert_eq!(lease_expired(&mut queue, 100, 5).unwrap().1.attempt, 2);
}

#[test]
fn a_returned_lease_ends_at_once_and_counts_no_attempt() {
    let mut queue = QueueLeases::new(0);
    let old = queue.lease(0, 100, 1000, 1);
    queue.give_back(0, old.pop_time, 100, 0).unwrap();
    assert!(queue.ack(0, old.pop_time).is_err());
    let again = lease_expired(&mut queue, 100, 1000).unwrap().1;
    assert_eq!(again.attempt, 1);
    queue.change(0, again.pop_time, 100, 0).unwrap();
    assert_eq!(lease_expired(&mut queue, 100, 5).unwrap().1.attempt, 2);
}

#[test]
fn a_handle_from_before_a_rewind_is_stale_even_within_the_same_millisecond() {
    let mut queue = QueueLeases::new(0);
    let old = queue.lease(0, 100, 1000, 1);
    queue.lease(1, 100, 1000, 1);
    queue.ack(0, old.pop_time).unwrap();
    queue.commit(0);
    let new = queue.lease(0, 100, 1000, 1);
    assert!(new.pop_time > old.pop_time);
}

#[test]
fn acknowledged_messages_leave_no_memory_behind() {
    let mut queue = QueueLeases::new(0);
    for round in 0..100 {
        let leases: Vec<_> =
            (0..256).map(|i| (round * 256 + i, queue.lease(round * 256 + i, 7, 30, 1))).collect();
        assert_eq!(queue.expiries.len(), 1);
        for (offset, lease) in leases {
            queue.ack(offset, lease.pop_time).unwrap();
        }
    }
    assert!(queue.in_flight.is_empty() && queue.expiries.is_empty());
}

#[test]
fn a_hundred_thousand_leases_cost_a_hundred_bytes_each_at_most() {
    // A B-tree node has room for 11 entries and holds 6 after ordered inserts.
    let in_tree = |entries: usize, size: usize| entries * size * 11 / 6;
    for batch in [1u64, 32] {
        let mut queue = QueueLeases::new(0);
        for offset in 0..100_000 {
            queue.lease(offset, (offset / batch).cast_signed(), 30_000, 1);
        }
        assert_eq!(queue.expiries.len() as u64, 100_000 / batch);
        let bytes = in_tree(queue.in_flight.len(), size_of::<(u64, Lease)>())
            + in_tree(queue.expiries.len(), size_of::<((i64, u64), LeaseRun)>());
        assert!(bytes <= 105 * 100_000, "{bytes}");
    }
}

#[test]
fn a_lease_moved_back_to_an_earlier_expiry_is_found_there_once() {
    let mut queue = QueueLeases::new(0);
    let leases: Vec<_> = (0..4).map(|offset| queue.lease(offset, 100, 50, 1)).collect();
    let moved = queue.change(2, leases[2].pop_time, 100, 10).unwrap();
    queue.ack(0, leases[0].pop_time).unwrap();
    queue.change(2, moved.pop_time, 100, 50).unwrap();
    let expired = std::iter::from_fn(|| lease_expired(&mut queue, 150, 7).map(|(offset, _)| offset));
    assert_eq!(expired.collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((queue.next_expiry(), queue.last_expiry()), (Some(157), Some(157)));
}

/// The model: a list of messages that is searched.
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
                    let lease = queue.lease(offset, now, invisible_ms, 1);
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

proptest! {
    #[test]
    fn an_imported_lease_expires_and_allows_a_later_one_for_any_times(
        pop_time in any::<i64>(), ends_at in any::<i64>(), attempt in any::<u32>(), now in 0..4_000_000_000_000i64,
    ) {
        let lease = Lease::imported(pop_time, ends_at, attempt, now);
        prop_assert!(lease.attempt >= 1);
        prop_assert!((0..=now + LONGEST_MS).contains(&lease.expires_at()));
        let mut queue = QueueLeases::new(1);
        prop_assert!(queue.restore(0, lease));
        let later = now + LONGEST_MS;
        let (_, again) = lease_expired(&mut queue, later, 10).unwrap();
        prop_assert!(again.pop_time > lease.pop_time);
        prop_assert!(queue.ack(0, lease.pop_time).is_err());
        queue.ack(0, again.pop_time).unwrap();
    }

    #[test]
    fn an_imported_lease_with_possible_times_is_unchanged(
        ago in -SKEW_MS..1_000_000_000_000i64, left in -1_000_000_000i64..LONGEST_MS,
    ) {
        let now = 1_700_000_000_000;
        let lease = Lease::imported(now - ago, now + left, 3, now);
        prop_assert_eq!((lease.pop_time, lease.expires_at(), lease.attempt), (now - ago, now + left, 3));
    }
}
