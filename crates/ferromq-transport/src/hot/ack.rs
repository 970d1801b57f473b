//! Acknowledges messages, changes invisible durations and commits offsets.

use std::{sync::Arc, time::Duration};

use ferromq_store::{MessageStore, Result, StoreError, progress::ReceiptHandle, time::Clock};

use super::{Counters, long_poll::LongPolls, receive::millis, renewals::Renewals};

/// The progress of consumer groups: ends leases and commits offsets.
pub struct GroupProgress {
    pub(super) store: Arc<MessageStore>,
    pub(super) clock: Clock,
    pub(super) counters: Arc<Counters>,
    pub(super) polls: LongPolls,
    pub(super) renewals: Renewals,
}

impl GroupProgress {
    /// Acknowledges the message for the group. `StaleReceipt` if the lease is no longer held; within the invisible
    /// duration, a repetition is accepted, as in RocketMQ.
    pub fn ack(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> Result<()> {
        self.renewals.forget(group, topic, handle, self.clock.now_ms());
        self.acked(group, topic, handle, self.store.groups().ack(group, topic, handle))
    }

    /// As [`Self::ack`], by RocketMQ's rule for gRPC: `StaleReceipt` if the lease has expired, even if its message was
    /// not redelivered since. A lease that the broker renews does not expire before the renewals end.
    pub fn ack_in_time(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> Result<()> {
        let outcome = match self.renewals.forget(group, topic, handle, self.clock.now_ms()) {
            // It did not expire: its renewal is late.
            true => self.store.groups().ack(group, topic, handle),
            false => self.store.groups().ack_in_time(group, topic, handle),
        };
        self.acked(group, topic, handle, outcome)
    }

    /// As [`Self::ack_in_time`] for each of `handles`. `refused` is given the index and the error of those that fail.
    pub fn ack_all_in_time(
        &self,
        group: &str,
        topic: &str,
        handles: &[ReceiptHandle],
        mut refused: impl FnMut(usize, StoreError),
    ) {
        let mut index = 0;
        let mut note = |outcome: Result<()>| {
            if let Err(error) = outcome {
                refused(index, error);
            }
            index += 1;
        };
        if self.renewals.is_any() {
            return handles.iter().for_each(|handle| note(self.ack_in_time(group, topic, handle)));
        }
        self.store.groups().ack_all_in_time(group, topic, handles, |handle, outcome| {
            note(self.acked(group, topic, handle, outcome));
        });
    }

    /// `StaleReceipt` if the lease has expired, even if its message was not redelivered since.
    pub fn check_in_time(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> Result<()> {
        let is_in_time = self.store.groups().is_in_time(group, topic, handle)
            || self.renewals.renews(group, topic, handle, self.clock.now_ms())
                && self.store.groups().holds(group, topic, handle);
        self.counted(if is_in_time { Ok(()) } else { Err(StoreError::StaleReceipt) })
    }

    fn acked(
        &self,
        group: &str,
        topic: &str,
        handle: &ReceiptHandle,
        outcome: Result<Option<i64>>,
    ) -> Result<()> {
        let ends_at = handle.pop_time.saturating_add(handle.invisible_ms);
        if matches!(outcome, Err(StoreError::StaleReceipt))
            && ends_at > self.clock.now_ms()
            && self.store.groups().is_over(group, topic, handle)
        {
            return Ok(());
        }
        let goes_on = self.counted(outcome)?;
        self.counters.acked.add(1);
        match goes_on {
            Some(at) if at <= self.clock.now_ms() => self.polls.wake_receives(topic, group),
            Some(at) => self.polls.lease_ends(topic, group, at),
            None => {}
        }
        Ok(())
    }

    /// Moves the lease's expiry to `invisible_duration` from now; the old handle becomes stale.
    pub fn change_invisible(
        &self,
        group: &str,
        topic: &str,
        handle: &ReceiptHandle,
        invisible_duration: Duration,
    ) -> Result<ReceiptHandle> {
        self.renewals.forget(group, topic, handle, self.clock.now_ms());
        self.changed(
            group,
            topic,
            self.store.groups().change_invisible(group, topic, handle, millis(invisible_duration)),
        )
    }

    /// As [`Self::change_invisible`], for an unused message: its delivery does not count as an attempt.
    pub fn suspend(
        &self,
        group: &str,
        topic: &str,
        handle: &ReceiptHandle,
        invisible_duration: Duration,
    ) -> Result<ReceiptHandle> {
        self.renewals.forget(group, topic, handle, self.clock.now_ms());
        self.changed(
            group,
            topic,
            self.store.groups().give_back(group, topic, handle, millis(invisible_duration)),
        )
    }

    fn changed(&self, group: &str, topic: &str, outcome: Result<ReceiptHandle>) -> Result<ReceiptHandle> {
        let new = self.counted(outcome)?;
        self.counters.invisible_changed.add(1);
        self.polls.lease_ends(topic, group, new.pop_time.saturating_add(new.invisible_ms));
        Ok(new)
    }

    /// Sets the group's committed offset in a queue.
    pub fn update_offset(&self, group: &str, topic: &str, queue_id: u32, offset: u64) -> Result<()> {
        self.store.groups().commit_offset(group, topic, queue_id, offset)?;
        self.polls.wake_receives(topic, group);
        Ok(())
    }

    /// Returns messages that could not be delivered: they are redelivered at once, and no attempt is counted.
    pub fn give_back(&self, group: &str, topic: &str, handles: &[ReceiptHandle]) {
        for handle in handles {
            self.renewals.forget(group, topic, handle, self.clock.now_ms());
            match self.store.groups().give_back(group, topic, handle, 0) {
                Ok(ended) => {
                    self.counters.given_back.add(1);
                    self.polls.lease_ends(topic, group, ended.pop_time.saturating_add(ended.invisible_ms));
                }
                // It was acknowledged, its lease expired, or the store was closed meanwhile: nothing to return.
                Err(error) => tracing::trace!(topic, group, %error, "message not given back"),
            }
        }
    }

    fn counted<T>(&self, outcome: Result<T>) -> Result<T> {
        if matches!(outcome, Err(StoreError::StaleReceipt)) {
            self.counters.stale_receipts.add(1);
        }
        outcome
    }
}
