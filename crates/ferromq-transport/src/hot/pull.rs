//! Pull: read from an offset the client keeps, or wait parked until something is there.

use std::{sync::Arc, time::Duration};

use ferromq_store::{
    StoreError,
    filter::MessageFilter,
    read::{GetRequest, GetResult, GetStatus, Source, TransferLimits},
    record::Record,
};
use tokio::time::{Instant, timeout_at};

use super::Hot;

/// How long a message that cannot be read now is left alone before it is tried again.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(1);

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
    /// What bounds the answer besides.
    pub limits: TransferLimits,
    /// Which messages.
    pub filter: &'a MessageFilter,
    /// How long to wait for the first message, in real time.
    pub wait: Duration,
    /// How long to look at messages the filter does not want; then the answer says where to go on.
    pub patience: Duration,
}

/// What a look at all there is came to.
struct Looked {
    found: GetResult,
    /// It ended before it saw everything: the answer is where to go on.
    is_cut: bool,
}

impl Looked {
    /// Says whether waiting would not change the answer.
    fn is_answer(&self) -> bool {
        self.is_cut || is_answer(&self.found)
    }
}

impl Hot {
    /// Reads messages, waiting for the first one where the offset is the queue's end.
    ///
    /// Messages the filter does not want are stepped over; the answer says where to go on.
    pub async fn pull(&self, request: &Pull<'_>) -> GetResult {
        let mut offset = request.offset;
        let looked = self.look_through(request, &mut offset, request.patience).await;
        if looked.is_answer() || request.wait.is_zero() {
            return looked.found;
        }
        self.pull_parked(request, offset, || false).await
    }

    /// Reads what there is.
    pub async fn pull_now(&self, request: &Pull<'_>) -> GetResult {
        let mut offset = request.offset;
        self.look_through(request, &mut offset, request.patience).await.found
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
            let mut woken = parked.woken();
            let patience = request.patience.min(deadline.saturating_duration_since(Instant::now()));
            let looked = self.look_through(request, &mut offset, patience).await;
            if looked.is_answer() || is_over() {
                return looked.found;
            }
            let is_unreadable = looked.found.status == GetStatus::MessageUnreadable;
            let until =
                if is_unreadable { deadline.min(Instant::now() + UNREADABLE_PAUSE) } else { deadline };
            loop {
                let again = tokio::select! {
                    woken = timeout_at(until, woken) => woken.is_ok() || until < deadline,
                    () = &mut closed => false,
                };
                if !again || is_over() {
                    return looked.found;
                }
                // What arrives does not make the messages before it readable.
                if !is_unreadable || Instant::now() >= until {
                    break;
                }
                woken = parked.woken();
            }
        }
    }

    /// Reads until there is a message or the end of the queue, or `patience` ends: one step it makes whatever the time.
    /// Between the steps over what the filter does not want, others have their turn.
    async fn look_through(&self, request: &Pull<'_>, offset: &mut u64, patience: Duration) -> Looked {
        let mut scan = self.reads.scan(patience);
        loop {
            let wanted = request.of_store(*offset);
            let mut found = self.store.queues().get_from(&wanted);
            if found.is_cold && found.messages.is_empty() && found.next_offset == *offset {
                scan.pause();
                match self.reads.get(&self.store, &wanted).await {
                    Ok(read) => found = read,
                    // The server ends.
                    Err(_) => return Looked { found, is_cut: true },
                }
            }
            self.counters.pulled.add(found.messages.len() as u64);
            if found.status != GetStatus::NoMatchedMessage || found.next_offset <= *offset {
                return Looked { found, is_cut: false };
            }
            *offset = found.next_offset;
            let is_left = scan.give_way().await && self.polls.is_closed();
            if is_left || scan.is_over() {
                return Looked { found, is_cut: true };
            }
        }
    }

    /// The message that begins at `physical_offset`, read on another thread where it did not just come.
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

    /// Reads messages that lie wherever they may, waiting for the disk on another thread where it must be.
    pub(crate) async fn get(&self, request: &GetRequest<'_>) -> Result<GetResult, StoreError> {
        let found = self.store.queues().get_from(&GetRequest { source: Source::Memory, ..*request });
        if !found.is_cold || !found.messages.is_empty() || found.next_offset > request.offset {
            return Ok(found);
        }
        self.reads.get(&self.store, request).await
    }
}

impl Pull<'_> {
    fn of_store(&self, offset: u64) -> GetRequest<'_> {
        let &Self { topic, queue_id, max_count, max_bytes, filter, limits, .. } = self;
        let source = Source::Memory;
        GetRequest { topic, queue_id, offset, max_count, max_bytes, filter, source, limits }
    }
}

/// Says whether waiting would not change the answer.
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
