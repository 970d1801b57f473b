//! Pull: read from an offset the client keeps, or wait parked until something is there.

use std::time::Duration;

use ferromq_store::{GetResult, GetStatus, MessageFilter};
use tokio::{
    task::yield_now,
    time::{Instant, timeout_at},
};

use super::Hot;

/// Reads in a row that find nothing, before others have their turn.
const READS_PER_TURN: usize = 64;

/// A pull as every wire format says it.
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
    /// Most bytes to return; one message comes whatever its size.
    pub max_bytes: usize,
    /// Which messages.
    pub filter: &'a MessageFilter,
    /// How long to wait for the first message, in real time.
    pub wait: Duration,
}

impl Hot {
    /// Reads messages, waiting for the first one where the offset is the queue's end.
    ///
    /// Messages the filter does not want are stepped over; the answer says where to go on.
    pub async fn pull(&self, request: &Pull<'_>) -> GetResult {
        let mut offset = request.offset;
        let found = self.pull_round(request, &mut offset).await;
        if is_answer(&found) || request.wait.is_zero() {
            return found;
        }
        self.pull_parked(request, offset, || false).await
    }

    /// Reads what there is.
    pub async fn pull_now(&self, request: &Pull<'_>) -> GetResult {
        let mut offset = request.offset;
        self.pull_round(request, &mut offset).await
    }

    /// Waits for the first message at or after `offset`; the answer is never older than the wait.
    ///
    /// Ends at once where the server stops, and once `is_over` says so, which is asked after each wake-up. Leaves nothing
    /// behind where it is dropped.
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
            // Made before the look: it hears of every arrival from here on, polled or not.
            let woken = parked.woken();
            let found = self.pull_round(request, &mut offset).await;
            if is_answer(&found) || is_over() {
                return found;
            }
            let again = tokio::select! {
                woken = timeout_at(deadline, woken) => woken.is_ok(),
                () = &mut closed => false,
            };
            if !again {
                return found;
            }
        }
    }

    /// Reads until there is a message or the end of the queue. Between the steps over what the filter does
    /// not want, other tasks of the thread have their turn.
    async fn pull_round(&self, request: &Pull<'_>, offset: &mut u64) -> GetResult {
        let mut reads = 0;
        loop {
            let (count, bytes) = (request.max_count, request.max_bytes);
            let found =
                self.store.get(request.topic, request.queue_id, *offset, count, bytes, request.filter);
            self.counters.pulled.add(found.messages.len() as u64);
            if found.status != GetStatus::NoMatchedMessage || found.next_offset <= *offset {
                return found;
            }
            *offset = found.next_offset;
            reads += 1;
            if reads % READS_PER_TURN == 0 {
                yield_now().await;
            }
        }
    }
}

/// Says whether waiting would not change the answer.
fn is_answer(found: &GetResult) -> bool {
    match found.status {
        GetStatus::OffsetOverflowOne
        | GetStatus::NoMessageInQueue
        | GetStatus::NoMatchedLogicQueue
        | GetStatus::QueueClosed
        | GetStatus::NoMatchedMessage => false,
        GetStatus::Found
        | GetStatus::MessageWasRemoving
        | GetStatus::OffsetFoundNull
        | GetStatus::OffsetOverflowBadly
        | GetStatus::OffsetTooSmall => true,
    }
}
