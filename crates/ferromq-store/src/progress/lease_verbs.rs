//! Acknowledges, extends and gives back leased messages for consumers; commits and resets offsets.

use crate::{
    error::{Result, StoreError},
    files::disk::Disk,
    progress::{lease::QueueLeases, receive::Groups, receive_types::ReceiptHandle},
};

/// Most leases that end under one lock of their queue; other threads can take the lock between two such groups.
const ACKS_AT_ONCE: usize = 256;

impl<D: Disk> Groups<D> {
    /// Acknowledges the message. For an ordered queue, returns when it may continue: when its last remaining lease
    /// expires or expired.
    ///
    /// `StaleReceipt` if the lease is no longer held.
    pub fn ack(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> Result<Option<i64>> {
        self.with_leases(group, topic, handle.queue_id, |leases| end(leases, handle))
    }

    /// Like [`Self::ack`], but `StaleReceipt` also if the lease has expired, even if the message was not redelivered.
    pub fn ack_in_time(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> Result<Option<i64>> {
        let now = self.clock.now_ms();
        self.with_leases(group, topic, handle.queue_id, |leases| end_in_time(leases, handle, now))
    }

    /// As [`Self::ack_in_time`] for each of `handles`, in their order. `ended` is given the outcome of each.
    pub fn ack_all_in_time(
        &self,
        group: &str,
        topic: &str,
        handles: &[ReceiptHandle],
        mut ended: impl FnMut(&ReceiptHandle, Result<Option<i64>>),
    ) {
        let now = self.clock.now_ms();
        let of_one_queue = handles.chunk_by(|one, next| one.queue_id == next.queue_id);
        for some in of_one_queue.flat_map(|run| run.chunks(ACKS_AT_ONCE)) {
            let Some(first) = some.first() else { continue };
            let outcomes = self.with_leases(group, topic, first.queue_id, |leases| {
                Ok(some.iter().map(|handle| end_in_time(leases, handle, now)).collect::<Vec<_>>())
            });
            match outcomes {
                Ok(outcomes) => {
                    some.iter().zip(outcomes).for_each(|(handle, outcome)| ended(handle, outcome))
                }
                // None was acknowledged; each has its own error.
                Err(_) => {
                    some.iter().for_each(|handle| ended(handle, self.ack_in_time(group, topic, handle)))
                }
            }
        }
    }

    /// Whether a lease is held and has not expired.
    #[must_use]
    pub fn is_in_time(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> bool {
        let now = self.clock.now_ms();
        let queue = self.progress.queue(group, topic, handle.queue_id);
        queue.is_some_and(|queue| queue.lock().held_at(handle.queue_offset, handle.pop_time, now).is_ok())
    }

    /// Whether the group is done with the handle's message: it was acknowledged or became a dead letter.
    #[must_use]
    pub fn is_over(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> bool {
        let queue = self.progress.queue(group, topic, handle.queue_id);
        queue.is_some_and(|queue| queue.lock().is_over(handle.queue_offset))
    }

    /// Whether a lease is held: its message was neither acknowledged nor redelivered.
    #[must_use]
    pub fn holds(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> bool {
        let queue = self.progress.queue(group, topic, handle.queue_id);
        queue.is_some_and(|queue| queue.lock().holds(handle.queue_offset, handle.pop_time))
    }

    /// The number of deliveries of the message, if the lease is held.
    #[must_use]
    pub fn attempt(&self, group: &str, topic: &str, handle: &ReceiptHandle) -> Option<u32> {
        let queue = self.progress.queue(group, topic, handle.queue_id)?;
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
        let now = self.clock.now_ms();
        let lease = self.with_leases(group, topic, handle.queue_id, |leases| {
            leases.change(handle.queue_offset, handle.pop_time, now, invisible_ms)
        })?;
        Ok(ReceiptHandle::of(handle.queue_id, handle.queue_offset, lease))
    }

    /// Extends the lease to `invisible_ms` from now. Its handle and attempt stay the same.
    ///
    /// `StaleReceipt` if the lease is no longer held.
    pub fn extend(&self, group: &str, topic: &str, handle: &ReceiptHandle, invisible_ms: i64) -> Result<()> {
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
        let now = self.clock.now_ms();
        let lease = self.with_leases(group, topic, handle.queue_id, |leases| {
            leases.give_back(handle.queue_offset, handle.pop_time, now, invisible_ms)
        })?;
        Ok(ReceiptHandle::of(handle.queue_id, handle.queue_offset, lease))
    }

    /// Next queue offset that the group will read: never past the lowest unacknowledged message.
    #[must_use]
    pub fn committed_offset(&self, group: &str, topic: &str, queue_id: u32) -> Option<u64> {
        self.progress.committed_of(group, topic, queue_id)
    }

    /// Sets the committed offset and ends leases of messages below it.
    ///
    /// An offset past the queue's end becomes its end. Going back ends all leases of the queue.
    pub fn commit_offset(&self, group: &str, topic: &str, queue_id: u32, offset: u64) -> Result<()> {
        self.place(group, topic, queue_id, offset, QueueLeases::commit)
    }

    /// Moves the group to `offset`: all leases of the queue end, and messages from there on are redelivered.
    ///
    /// An offset past the queue's end becomes its end.
    pub fn reset_offset(&self, group: &str, topic: &str, queue_id: u32, offset: u64) -> Result<()> {
        self.place(group, topic, queue_id, offset, QueueLeases::reset)
    }

    fn place(
        &self,
        group: &str,
        topic: &str,
        queue_id: u32,
        offset: u64,
        place: impl FnOnce(&mut QueueLeases, u64),
    ) -> Result<()> {
        self.reader.home.check_open()?;
        let offset = offset.min(self.reader.queues.offset_limit(topic, queue_id));
        let queue = self.progress.group_topic_or_new(group, topic).queue_or_begin(queue_id, || offset);
        place(&mut queue.lock(), offset);
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
        self.reader.home.check_open()?;
        let queue = self.progress.queue(group, topic, queue_id).ok_or(StoreError::StaleReceipt)?;
        let done = change(&mut queue.lock())?;
        self.progress.touch();
        Ok(done)
    }
}

/// As [`end`]; `StaleReceipt` also if the lease has expired.
fn end_in_time(leases: &mut QueueLeases, handle: &ReceiptHandle, now: i64) -> Result<Option<i64>> {
    leases.held_at(handle.queue_offset, handle.pop_time, now)?;
    end(leases, handle)
}

/// Acknowledges a message. For an ordered queue, returns when it may continue.
fn end(leases: &mut QueueLeases, handle: &ReceiptHandle) -> Result<Option<i64>> {
    leases.ack(handle.queue_offset, handle.pop_time)?;
    Ok(leases.order().map(|_| leases.last_expiry().unwrap_or(handle.pop_time)))
}
