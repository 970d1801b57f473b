//! Receive: leases messages, or waits until there are some.

use std::{net::SocketAddr, sync::atomic::Ordering, time::Duration};

use ferromq_store::{
    Result,
    filter::MessageFilter,
    progress::{Begin, Ordered, ReadAhead, ReceiveRequest, Received},
    read::{Source, TransferLimits},
};
use tokio::time::{Instant, timeout_at};

use super::{Hot, pop_retries::stored_topic, reads::Scan};
use crate::{
    connections::answer_memory::{self, MESSAGE_OVERHEAD},
    limits,
    tables::{GroupEntry, TopicEntry},
};

/// The revive queue in RocketMQ's receipt handles of messages that were received in order.
pub(crate) const ORDERED_REVIVE_QUEUE: i32 = 999;

/// A receive, independent of the wire format.
#[derive(Debug, Clone, Copy)]
pub struct Receive<'a> {
    /// Consumer group.
    pub group: &'a str,
    /// Topic.
    pub topic: &'a str,
    /// Number of queues to search, from queue 0.
    pub queue_count: u32,
    /// The only queue to search, if set.
    pub queue: Option<u32>,
    /// Most messages to return.
    pub max_count: usize,
    /// Most bytes to return; the first message is returned whatever its size.
    pub max_bytes: usize,
    /// Further limits of each queue's messages.
    pub limits: TransferLimits,
    /// Length of the lease.
    pub invisible_duration: Duration,
    /// Selects the messages; the others are skipped for good.
    pub filter: &'a MessageFilter,
    /// Where a group that is new to a queue begins.
    pub begin: Begin,
    /// Whether each queue is received in order, by one receiver at a time.
    pub order: Option<Ordered<'a>>,
    /// Deliveries of a message before it goes to the group's dead-letter topic; unlimited if 0.
    pub max_attempts: u32,
    /// Whether queues with higher numbers come first.
    pub by_priority: bool,
    /// The client's address.
    pub peer: SocketAddr,
    /// How long to wait for the first message, in real time.
    pub wait: Duration,
    /// How long to scan messages that the filter rejects. They stay skipped: the next receive continues after them.
    pub patience: Duration,
}

/// A wait until a group has something to receive.
#[derive(Debug)]
pub struct Watch<'a> {
    /// Consumer group.
    pub group: &'a str,
    /// Topic.
    pub topic: &'a str,
    /// Number of the topic's queues, from queue 0.
    pub queue_count: u32,
    /// The only queue to watch, if set.
    pub queue: Option<u32>,
    /// Whether the group receives in order; a queue with a lease then has nothing to receive.
    pub in_order: bool,
    /// How long to wait for a message, in real time.
    pub wait: Duration,
}

impl Watch<'_> {
    fn queues(&self) -> std::ops::Range<u32> {
        self.queue.map_or(0..self.queue_count, |queue| queue..queue + 1)
    }
}

impl Hot {
    /// Leases messages, waiting for the first one. Returns none if none came in time or the server stops.
    ///
    /// Dropping the future while it waits leases nothing. Dead messages that it meets go to the group's dead-letter
    /// topic.
    pub async fn receive(&self, request: &Receive<'_>) -> Result<Received> {
        let (received, is_cut) = self.receive_within_memory(request, request.patience).await?;
        if !received.messages.is_empty() || is_cut || request.wait.is_zero() {
            if let Some(expiry) = received.next_expiry_ms {
                self.polls.lease_ends(request.topic, request.group, expiry);
            }
            return Ok(received);
        }
        let parked = self.polls.park(request.topic, request.group, request.queue);
        let closed = self.polls.closed();
        tokio::pin!(closed);
        let deadline = Instant::now() + request.wait;
        loop {
            let patience = request.patience.min(deadline.saturating_duration_since(Instant::now()));
            let (received, is_cut) = self.receive_within_memory(request, patience).await?;
            if let Some(expiry) = received.next_expiry_ms {
                parked.lease_ends(expiry);
            }
            if received.more {
                parked.pass_on();
            }
            if !received.messages.is_empty() || is_cut {
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

    /// Waits until the group has something to receive, and returns whether it has. Leases nothing.
    pub async fn wait_for_messages(&self, watch: &Watch<'_>) -> bool {
        let has = self.check_for_messages(watch).0;
        if has || watch.wait.is_zero() {
            return has;
        }
        let parked = self.polls.park(watch.topic, watch.group, watch.queue);
        let closed = self.polls.closed();
        tokio::pin!(closed);
        let deadline = Instant::now() + watch.wait;
        loop {
            let (has, next_expiry_ms) = self.check_for_messages(watch);
            if has {
                // This wait takes no message: it passes the wake-up on to a receive.
                parked.pass_on();
                return true;
            }
            if let Some(expiry) = next_expiry_ms {
                parked.lease_ends(expiry);
            }
            let woken = tokio::select! {
                woken = timeout_at(deadline, parked.woken()) => woken.is_ok(),
                () = &mut closed => false,
            };
            if !woken {
                return false;
            }
        }
    }

    /// Returns whether there is something to receive, and when the next lease expires.
    fn check_for_messages(&self, watch: &Watch<'_>) -> (bool, Option<i64>) {
        let (now, mut next_expiry_ms) = (self.clock.now_ms(), None::<i64>);
        for queue_id in watch.queues() {
            let ahead = self.store.groups().ahead(watch.group, watch.topic, queue_id, Begin::AtMin);
            let expiry = if watch.in_order { ahead.last_expiry_ms } else { ahead.next_expiry_ms };
            let is_held = watch.in_order && expiry.is_some_and(|at| at > now);
            let has_unread = ahead.unread > 0 && ahead.held_until_ms.is_none();
            if !is_held && (has_unread || expiry.is_some_and(|at| at <= now)) {
                return (true, None);
            }
            next_expiry_ms = [next_expiry_ms, expiry, ahead.held_until_ms].into_iter().flatten().min();
        }
        if !watch.in_order {
            for (topic, queue_count) in self.pop_retries(watch.group, watch.topic) {
                for queue_id in 0..queue_count {
                    let ahead = self.store.groups().ahead(watch.group, &topic, queue_id, Begin::AtMin);
                    let has_unread = ahead.unread > 0 && ahead.held_until_ms.is_none();
                    if has_unread || ahead.next_expiry_ms.is_some_and(|at| at <= now) {
                        return (true, None);
                    }
                    let expiries = [next_expiry_ms, ahead.next_expiry_ms, ahead.held_until_ms];
                    next_expiry_ms = expiries.into_iter().flatten().min();
                }
            }
        }
        (false, next_expiry_ms)
    }

    /// Whether a receive starts with the queues of higher priorities: of a hundred receives as many do as the group's
    /// factor says, in no pattern.
    pub(crate) fn is_by_priority(&self, topic: &TopicEntry, group: &GroupEntry) -> bool {
        topic.is_by_priority()
            && match group.priority_factor {
                0 => false,
                factor @ 1..100 => draw(self.next_draw.fetch_add(1, Ordering::Relaxed)) < factor,
                100.. => true,
            }
    }

    /// Number of receives of a group that wait for messages of any queue, or of the given one.
    #[must_use]
    pub fn waiting(&self, topic: &str, group: &str, queue: Option<u32>) -> usize {
        self.polls.parked(topic, group, queue)
    }

    /// As [`Self::receive_round`], within the memory for an answer: with little memory fewer messages, but at least
    /// one. Leased messages do not wait for memory, except a single message that needs more than was granted.
    async fn receive_within_memory(
        &self,
        request: &Receive<'_>,
        patience: Duration,
    ) -> Result<(Received, bool)> {
        let max_bytes = answer_memory::take_some(request.max_bytes).await;
        let (received, is_cut) = self.receive_round(&Receive { max_bytes, ..*request }, patience).await?;
        let bytes =
            received.messages.iter().map(|leased| leased.record.bytes().len() + MESSAGE_OVERHEAD).sum();
        let mut unanswered = UnansweredLeases { hot: self, request, received };
        answer_memory::settle(max_bytes, bytes).await;
        let none = Received { messages: Vec::new(), dead: Vec::new(), ..unanswered.received };
        Ok((std::mem::replace(&mut unanswered.received, none), is_cut))
    }

    /// Receives until there is a message, every queue was read to its end, or `patience` is over. Also returns whether
    /// it stopped early. Between the steps over rejected messages, other requests get their turn.
    ///
    /// Messages that a Java broker put into the retry topics of the group and topic come first, and alone.
    async fn receive_round(&self, request: &Receive<'_>, patience: Duration) -> Result<(Received, bool)> {
        let mut scan = self.reads.scan(patience);
        let mut expiry: Option<i64> = None;
        if request.order.is_none() {
            for (topic, queue_count) in self.pop_retries(request.group, request.topic) {
                let (filter, begin) = (&MessageFilter::All, Begin::AtMin);
                let retries = Receive {
                    topic: &topic,
                    queue_count,
                    queue: None,
                    filter,
                    begin,
                    by_priority: false,
                    ..*request
                };
                let (received, is_cut) = self.receive_of_topic(&retries, &mut scan).await?;
                if !received.messages.is_empty() || is_cut {
                    return Ok((Received { more: true, ..received }, is_cut));
                }
                expiry = [expiry, received.next_expiry_ms].into_iter().flatten().min();
            }
        }
        let (received, is_cut) = self.receive_of_topic(request, &mut scan).await?;
        let next_expiry_ms = [expiry, received.next_expiry_ms].into_iter().flatten().min();
        Ok((Received { next_expiry_ms, ..received }, is_cut))
    }

    /// As [`Self::receive_round`], for one topic. Nothing is leased while it waits for the disk or for its turn.
    async fn receive_of_topic(&self, request: &Receive<'_>, scan: &mut Scan<'_>) -> Result<(Received, bool)> {
        let mut ahead = None;
        let mut first_queue = self.first_queue.fetch_add(1, Ordering::Relaxed);
        loop {
            let had_ahead = ahead.is_some();
            let mut received = self.receive_now(request, first_queue, ahead.take())?;
            if !received.messages.is_empty() {
                return Ok((received, false));
            }
            match received.cold {
                _ if !received.dead.is_empty() => {
                    scan.pause();
                    self.move_dead(request, std::mem::take(&mut received.dead)).await;
                }
                // A finished read is used, however late it is.
                Some(cold) if !had_ahead || !(scan.is_over() || self.polls.is_closed()) => {
                    scan.pause();
                    let wanted = cold.request(request.topic, request.filter, Source::Memory);
                    let found = self.reads.get(&self.store, &wanted).await?;
                    ahead = Some(ReadAhead { cold, found });
                    continue;
                }
                Some(_) => return Ok((received, true)),
                None if !received.more => return Ok((received, false)),
                None => first_queue = self.first_queue.fetch_add(1, Ordering::Relaxed),
            }
            let is_abandoned = scan.give_way().await && self.polls.is_closed();
            if is_abandoned || scan.is_over() {
                return Ok((received, true));
            }
        }
    }

    fn receive_now(
        &self,
        request: &Receive<'_>,
        first_queue: u32,
        ahead: Option<ReadAhead>,
    ) -> Result<Received> {
        let wanted = ReceiveRequest {
            group: request.group,
            topic: request.topic,
            queue_count: request.queue_count,
            first_queue,
            max_count: request.max_count,
            max_bytes: request.max_bytes,
            invisible_ms: millis(request.invisible_duration),
            filter: request.filter,
            begin: request.begin,
            order: request.order,
            max_attempts: request.max_attempts,
            by_priority: request.by_priority,
            limits: request.limits,
        };
        let received = self.store.groups().receive_in_memory(&wanted, request.queue, ahead)?;
        let messages = received.messages.len() as u64;
        if messages > 0 {
            let bytes = received.messages.iter().map(|leased| leased.record.bytes().len()).sum();
            self.counters.received.add(messages);
            self.traffic.count_get(request.topic, request.group, messages, bytes as u64);
            limits::charge(received.messages.len(), bytes);
        }
        Ok(received)
    }
}

/// Leases that wait for answer memory. If the client stops waiting, they are dropped and given back.
struct UnansweredLeases<'a> {
    hot: &'a Hot,
    request: &'a Receive<'a>,
    received: Received,
}

impl Drop for UnansweredLeases<'_> {
    fn drop(&mut self) {
        let messages = &self.received.messages;
        if !messages.is_empty() {
            let handles: Vec<_> = messages.iter().map(|leased| leased.handle).collect();
            self.hot.progress.give_back(
                self.request.group,
                stored_topic(messages, self.request.topic),
                &handles,
            );
        }
    }
}

/// Draws 0 to 99 from a number. The draws follow no pattern, so that consumers which alternate get even shares.
fn draw(number: u32) -> u32 {
    // The steps of SplitMix64.
    let mixed = u64::from(number).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    // Below 100.
    u32::try_from((mixed ^ (mixed >> 31)) % 100).unwrap_or(0)
}

/// A duration in milliseconds, the store's unit.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
