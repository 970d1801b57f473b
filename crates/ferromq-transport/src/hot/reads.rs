//! Decides where reads run and for how long: from memory on a network thread, from disk on a few threads of their own.
//!
//! A network thread serves many clients: it must not wait for a disk, nor scan messages that a filter rejects for more
//! than a moment. The store knows which bytes are in memory.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ferromq_store::{
    MessageStore, StoreError,
    filter::MessageFilter,
    read::{GetRequest, GetResult, Source},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{spawn_blocking, yield_now},
};

/// Longest time that a request scans rejected messages on a network thread before others get their turn.
const SCAN_TURN: Duration = Duration::from_millis(1);
/// Most steps of one turn, whatever the time; a step scans a few hundred messages.
const SCAN_STEPS: u32 = 16;
/// Longest disk read before others get their turn; a single message may take longer.
const DISK_TURN: Duration = Duration::from_millis(50);
/// Longest time that a request scans messages which its filter rejects; the answer then says where to continue.
pub const SCAN_PATIENCE: Duration = Duration::from_secs(1);
/// Fewest and most disk reads at once.
const MIN_DISK_READS: usize = 4;
const MAX_DISK_READS: usize = 16;

/// Limits disk reads and long scans.
#[derive(Debug)]
pub(crate) struct Reads {
    disk: Arc<Semaphore>,
    scans: Arc<Semaphore>,
}

impl Default for Reads {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let disk = Arc::new(Semaphore::new(cores.clamp(MIN_DISK_READS, MAX_DISK_READS)));
        // One core is left for requests that do not scan a backlog.
        Self { disk, scans: Arc::new(Semaphore::new(cores.saturating_sub(1).max(1))) }
    }
}

impl Reads {
    /// Runs `work`, which may wait for the disk, on a blocking thread as soon as one may be used. If the future is
    /// dropped, the result is discarded.
    ///
    /// # Errors
    /// `Closed` if the server stops.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.disk).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let done = spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        done.await.map_err(|_| StoreError::Closed)
    }

    /// Reads messages from memory or disk, for one turn; afterwards all bytes of the messages found are in memory.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(crate) async fn get(
        &self,
        store: &Arc<MessageStore>,
        request: &GetRequest<'_>,
    ) -> Result<GetResult, StoreError> {
        let GetRequest { queue_id, offset, max_count, max_bytes, limits, .. } = *request;
        let (store, topic) = (Arc::clone(store), request.topic.to_owned());
        let filter: MessageFilter = request.filter.clone();
        let work = move || {
            let source = Source::Disk(Instant::now() + DISK_TURN);
            let (topic, filter) = (topic.as_str(), &filter);
            let wanted = GetRequest { topic, queue_id, offset, max_count, max_bytes, filter, source, limits };
            store.queues().get_from(&wanted)
        };
        self.run(work).await
    }

    /// Begins a scan that lasts for `patience` at most.
    pub(crate) fn scan(&self, patience: Duration) -> Scan<'_> {
        let now = Instant::now();
        Scan {
            reads: self,
            permit: None,
            steps_left: SCAN_STEPS,
            turn_ends: now + SCAN_TURN,
            ends: now.checked_add(patience),
        }
    }
}

/// A scan over messages that the filter may reject.
pub(crate) struct Scan<'a> {
    reads: &'a Reads,
    permit: Option<OwnedSemaphorePermit>,
    steps_left: u32,
    turn_ends: Instant,
    ends: Option<Instant>,
}

impl Scan<'_> {
    /// Returns whether `patience` is over: the request is then answered with what it has.
    pub(crate) fn is_over(&self) -> bool {
        self.ends.is_some_and(|ends| Instant::now() >= ends)
    }

    /// Call after each step. At the end of a turn, yields and then waits for one of the few scan permits. Returns
    /// whether it yielded.
    pub(crate) async fn give_way(&mut self) -> bool {
        self.steps_left = self.steps_left.saturating_sub(1);
        if self.steps_left > 0 && Instant::now() < self.turn_ends {
            return false;
        }
        self.permit = None;
        yield_now().await;
        // The semaphore is never closed.
        self.permit = Arc::clone(&self.reads.scans).acquire_owned().await.ok();
        (self.steps_left, self.turn_ends) = (SCAN_STEPS, Instant::now() + SCAN_TURN);
        true
    }

    /// Lets other scans run while this one waits.
    pub(crate) fn pause(&mut self) {
        self.permit = None;
    }
}
