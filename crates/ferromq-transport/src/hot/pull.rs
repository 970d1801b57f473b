//! Pull: reads from an offset that the client keeps, or waits until a message is there.

use std::{sync::Arc, time::Duration};

use ferromq_store::{
    StoreError,
    filter::MessageFilter,
    read::{GetRequest, GetResult, GetStatus, Source, TransferLimits},
    record::Record,
};
use tokio::time::{Instant, timeout_at};

use super::Hot;

/// Pause before a message that cannot be read now is tried again.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(1);

/// A pull, independent of the wire format.
#[derive(Debug)]
pub struct Pull<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Queue of the topic.
    pub queue_id: u32,
    /// First queue offset to read.
    pub offset: u64,
    /// Most messages to return.
    pub max_count: usize,
    /// Most bytes to return; the first message is returned whatever its size.
    pub max_bytes: usize,
    /// Further limits of the answer.
    pub limits: TransferLimits,
    /// Selects the messages.
    pub filter: &'a MessageFilter,
    /// How long to wait for the first message, in real time.
    pub wait: Duration,
    /// How long to scan messages that the filter rejects; then the answer says where to continue.
    pub patience: Duration,
}

/// The outcome of a scan.
struct ScanOutcome {
    found: GetResult,
    /// The scan stopped early: the answer says where to continue.
    is_cut: bool,
}

impl ScanOutcome {
    /// Returns whether waiting would not change the answer.
    fn is_answer(&self) -> bool {
        self.is_cut || is_answer(&self.found)
    }
}

impl Hot {
    /// Reads messages, waiting for the first one if the offset is the queue's end.
    ///
    /// Skips messages that the filter rejects; the answer says where to continue.
    pub async fn pull(&self, request: &Pull<'_>) -> GetResult {
        let mut offset = request.offset;
        let outcome = self.scan_queue(request, &mut offset, request.patience).await;
        if outcome.is_answer() || request.wait.is_zero() {
            return outcome.found;
        }
        self.pull_parked(request, offset, || false).await
    }

    /// Reads messages without waiting.
    pub async fn pull_now(&self, request: &Pull<'_>) -> GetResult {
        let mut offset = request.offset;
        self.scan_queue(request, &mut offset, request.patience).await.found
    }

    /// Waits for the first message at or after `offset`; the answer is never older than the wait.
    ///
    /// Ends at once if the server stops, and once `is_over` returns true, which is checked after each wake-up. Dropping
    /// the future leaves nothing behind.
    pub async fn pull_parked(
        &self,
        request: &Pull<'_>,
        mut offset: u64,
        is_over: impl Fn() -> bool,
    ) -> GetResult {
        let parked = self.polls.park_pull(request.topic, request.queue_id);
        let closed = self.polls.closed();
        tokio::pin!(closed);
        let deadline = Instant::now() + request.wait;
        loop {
            // Created before the read: it is notified of every arrival from here on, polled or not.
            let mut woken = parked.woken();
            let patience = request.patience.min(deadline.saturating_duration_since(Instant::now()));
            let outcome = self.scan_queue(request, &mut offset, patience).await;
            if outcome.is_answer() || is_over() {
                return outcome.found;
            }
            let is_unreadable = outcome.found.status == GetStatus::MessageUnreadable;
            let until =
                if is_unreadable { deadline.min(Instant::now() + UNREADABLE_PAUSE) } else { deadline };
            loop {
                let again = tokio::select! {
                    woken = timeout_at(until, woken) => woken.is_ok() || until < deadline,
                    () = &mut closed => false,
                };
                if !again || is_over() {
                    return outcome.found;
                }
                // An arrival does not make the messages before it readable.
                if !is_unreadable || Instant::now() >= until {
                    break;
                }
                woken = parked.woken();
            }
        }
    }

    /// Reads until there is a message or the end of the queue, or `patience` is over, but makes at least one step.
    /// Between the steps over rejected messages, other requests get their turn.
    async fn scan_queue(&self, request: &Pull<'_>, offset: &mut u64, patience: Duration) -> ScanOutcome {
        let mut scan = self.reads.scan(patience);
        loop {
            let wanted = request.store_request(*offset);
            let mut found = self.store.queues().get_from(&wanted);
            if found.is_cold && found.messages.is_empty() && found.next_offset == *offset {
                scan.pause();
                match self.reads.get(&self.store, &wanted).await {
                    Ok(read) => found = read,
                    // The server stops.
                    Err(_) => return ScanOutcome { found, is_cut: true },
                }
            }
            self.counters.pulled.add(found.messages.len() as u64);
            if found.status != GetStatus::NoMatchedMessage || found.next_offset <= *offset {
                return ScanOutcome { found, is_cut: false };
            }
            *offset = found.next_offset;
            let is_abandoned = scan.give_way().await && self.polls.is_closed();
            if is_abandoned || scan.is_over() {
                return ScanOutcome { found, is_cut: true };
            }
        }
    }

    /// Returns the message that begins at `physical_offset`; reads it on another thread unless it is recent.
    pub(crate) async fn message_at(&self, physical_offset: u64) -> Result<Record, StoreError> {
        if self.store.queues().is_recent(physical_offset) {
            return self.store.queues().message_at(physical_offset);
        }
        let store = Arc::clone(&self.store);
        let read = move || {
            let record = store.queues().message_at(physical_offset)?;
            record.read_ahead().map(|()| record)
        };
        self.reads.run(read).await?
    }

    /// Reads messages from memory, or on another thread if that has to wait for the disk.
    pub(crate) async fn get(&self, request: &GetRequest<'_>) -> Result<GetResult, StoreError> {
        let found = self.store.queues().get_from(&GetRequest { source: Source::Memory, ..*request });
        if !found.is_cold || !found.messages.is_empty() || found.next_offset > request.offset {
            return Ok(found);
        }
        self.reads.get(&self.store, request).await
    }
}

impl Pull<'_> {
    fn store_request(&self, offset: u64) -> GetRequest<'_> {
        let &Self { topic, queue_id, max_count, max_bytes, filter, limits, .. } = self;
        let source = Source::Memory;
        GetRequest { topic, queue_id, offset, max_count, max_bytes, filter, source, limits }
    }
}

/// Returns whether waiting would not change the answer.
fn is_answer(found: &GetResult) -> bool {
    match found.status {
        GetStatus::OffsetOverflowOne
        | GetStatus::NoMessageInQueue
        | GetStatus::NoMatchedLogicQueue
        | GetStatus::QueueClosed
        | GetStatus::MessageUnreadable
        | GetStatus::NoMatchedMessage => false,
        GetStatus::Found
        | GetStatus::MessageWasRemoving
        | GetStatus::OffsetFoundNull
        | GetStatus::OffsetOverflowBadly
        | GetStatus::OffsetTooSmall => true,
    }
}
