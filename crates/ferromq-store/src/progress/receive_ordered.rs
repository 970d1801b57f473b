//! Ordered receives: a queue has one receiver at a time, and continues at the lowest unacknowledged message.
//!
//! An acknowledged message is not redelivered, except with `from_first` after an unacknowledged lower one. A queue is
//! taken while one of its leases is valid.

use crate::{
    files::disk::Disk,
    progress::{
        lease::{Order, QueueLeases},
        receive::{Groups, LeasedRecord},
        receive_types::{MAX_ATTEMPT_ID, Ordered},
        taking::Taking,
    },
};

impl<D: Disk> Groups<D> {
    /// Leases messages of a queue in order, redelivered ones first, if no lease of it is valid or the request repeats
    /// the last receive.
    pub(super) fn receive_in_order(
        &self,
        taking: &mut Taking<'_, D::Region>,
        queue_id: u32,
        leases: &mut QueueLeases,
        order: Ordered<'_>,
    ) {
        let attempt_id = order.attempt_id.filter(|id| !id.is_empty() && id.len() <= MAX_ATTEMPT_ID);
        let floor = leases.order().map_or(leases.next(), |last| last.floor);
        let is_repeated = leases.is_repeated(attempt_id);
        if leases.is_held(taking.now) && !is_repeated {
            if leases.order().is_none() {
                // These leases began before the group was ordered. Their expiry must wake waiting ordered receives.
                leases.set_order(Some(Order { floor, ..Order::default() }));
            }
            return;
        }
        taking.is_repeated = is_repeated;
        taking.has_changed |= order.from_first && !taking.is_full() && leases.rewind();
        let before = taking.received.messages.len();
        let is_through = self.receive_again(taking, queue_id, leases, attempt_id);
        if is_through && taking.received.dead.is_empty() {
            self.receive_new(taking, queue_id, leases);
        }
        if taking.received.messages.len() > before {
            let attempt_id = attempt_id.map(Into::into);
            let (pop_time, delivered) = (taking.pop_time, Vec::new());
            leases.set_order(Some(Order { attempt_id, pop_time, floor, delivered }));
        }
        taking.is_repeated = false;
    }

    /// Leases earlier received messages again, in their order. Returns whether it took all of them.
    fn receive_again(
        &self,
        taking: &mut Taking<'_, D::Region>,
        queue_id: u32,
        leases: &mut QueueLeases,
        attempt_id: Option<&str>,
    ) -> bool {
        let mut from = 0;
        while let Some((offset, lease)) = leases.in_flight_from(from) {
            if taking.is_full() {
                return false;
            }
            from = offset.saturating_add(1);
            let is_same_attempt = leases.is_same_attempt(lease, attempt_id);
            if lease.expires_at() > taking.now && !is_same_attempt {
                // Another receiver has it, or it is being copied to the dead letter topic.
                return false;
            }
            let record = match self.leased_record(taking, queue_id, offset, leases) {
                LeasedRecord::There(record) => record,
                LeasedRecord::Gone => continue,
                LeasedRecord::Unreadable | LeasedRecord::Cold => return false,
            };
            if !is_same_attempt && taking.is_dead(&record, lease.attempt) {
                if taking.bury(record, queue_id, offset, leases) {
                    continue;
                }
                return false;
            }
            if !taking.admits(&record, leases.earliest_pop_time(offset)) {
                return false;
            }
            let attempts = u32::from(!is_same_attempt);
            let Some(lease) = leases.take_again(offset, taking.pop_time, taking.invisible_ms, attempts)
            else {
                return false;
            };
            taking.take(record, queue_id, offset, lease);
        }
        true
    }
}
