//! Receive: lease messages, or wait parked until there are some.

use std::{sync::atomic::Ordering, time::Duration};

use ferromq_store::{ReceiveRequest, Received, Result, TagFilter};
use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use super::Hot;

/// A receive as every wire format says it.
#[derive(Debug)]
pub struct Receive<'a> {
    /// Consumer group.
    pub group: &'a str,
    /// Topic.
    pub topic: &'a str,
    /// Queues of the topic to look at, from 0.
    pub queue_count: u32,
    /// Most messages to return.
    pub max_count: usize,
    /// Most bytes to return; one message comes whatever its size.
    pub max_bytes: usize,
    /// Length of the lease.
    pub invisible_duration: Duration,
    /// Which messages.
    pub filter: &'a TagFilter,
    /// Where a group that is new to a queue begins.
    pub from_beginning: bool,
    /// How long to wait for the first message, in real time.
    pub wait: Duration,
}

impl Hot {
    /// Leases messages, waiting for the first one; nothing where none came in time or the server stops.
    ///
    /// Dropping the future while it waits leases nothing.
    pub async fn receive(&self, request: &Receive<'_>) -> Result<Received> {
        let received = self.receive_round(request).await?;
        if !received.messages.is_empty() || request.wait.is_zero() {
            if let Some(expiry) = received.next_expiry_ms {
                self.polls.lease_ends(request.topic, request.group, expiry);
            }
            return Ok(received);
        }
        let parked = self.polls.park(request.topic, request.group);
        let closed = self.polls.closed();
        tokio::pin!(closed);
        let deadline = Instant::now() + request.wait;
        loop {
            let received = self.receive_round(request).await?;
            if let Some(expiry) = received.next_expiry_ms {
                parked.lease_ends(expiry);
            }
            if received.more {
                parked.pass_on();
            }
            if !received.messages.is_empty() {
                return Ok(received);
            }
            let woken = tokio::select! {
                woken = timeout_at(deadline, parked.woken()) => woken.is_ok(),
                () = &mut closed => false,
            };
            if !woken {
                return Ok(received);
            }
        }
    }

    /// Receives until there is a message or every queue was seen to its end. Between the steps over what the
    /// filter does not want, other tasks of the thread have their turn.
    async fn receive_round(&self, request: &Receive<'_>) -> Result<Received> {
        loop {
            let received = self.receive_now(request)?;
            if !received.messages.is_empty() || !received.more {
                return Ok(received);
            }
            yield_now().await;
        }
    }

    fn receive_now(&self, request: &Receive<'_>) -> Result<Received> {
        let first_queue = self.first_queue.fetch_add(1, Ordering::Relaxed);
        let received = self.store.receive(&ReceiveRequest {
            group: request.group,
            topic: request.topic,
            queue_count: request.queue_count,
            first_queue,
            max_count: request.max_count,
            max_bytes: request.max_bytes,
            invisible_ms: millis(request.invisible_duration),
            filter: request.filter,
            from_beginning: request.from_beginning,
        })?;
        self.counters.received.add(received.messages.len() as u64);
        Ok(received)
    }
}

/// A duration in milliseconds, as the store counts.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
