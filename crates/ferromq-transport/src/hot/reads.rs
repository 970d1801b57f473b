//! Where and how long reads run: what is in memory on the thread of the network, the rest on a few threads of its own.
//!
//! A thread of the network serves many clients: it neither waits for a disk nor looks at messages a filter does not
//! want for more than a moment. Which bytes are in memory is the store's business.

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

/// How long a thread of the network looks at what a filter does not want before others have their turn.
const TURN: Duration = Duration::from_millis(1);
/// How often it looks, whatever the time: each look is at some hundred messages.
const LOOKS: u32 = 16;
/// How long one read of the disk lasts before others have their turn; a single message may take longer.
const DISK_TURN: Duration = Duration::from_millis(50);
/// How long a request looks at what its filter does not want before it is answered with where to go on.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Fewest and most reads of the disk at once.
const LEAST_READS: usize = 4;
const MOST_READS: usize = 16;

/// Bounds reads that last.
#[derive(Debug)]
pub(crate) struct Reads {
    disk: Arc<Semaphore>,
    scans: Arc<Semaphore>,
}

impl Default for Reads {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let disk = Arc::new(Semaphore::new(cores.clamp(LEAST_READS, MOST_READS)));
        // One core is left to those who do not look through a backlog.
        Self { disk, scans: Arc::new(Semaphore::new(cores.saturating_sub(1).max(1))) }
    }
}

impl Reads {
    /// Runs what may wait for the disk on a thread of its own, once there is one; dropped meanwhile, it ends unheard.
    ///
    /// # Errors
    /// `Closed` where the server ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        // The semaphore is never closed.
        let turn = Arc::clone(&self.disk).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let done = spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        done.await.map_err(|_| StoreError::Closed)
    }

    /// Reads messages wherever they are, for the time of one turn; all bytes of those found are in memory then.
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

    /// Begins to look at messages.
    pub(crate) fn scan(&self, patience: Duration) -> Scan<'_> {
        let now = Instant::now();
        Scan { reads: self, turn: None, looks: LOOKS, turn_ends: now + TURN, ends: now.checked_add(patience) }
    }
}

/// A look at messages that may not be wanted.
pub(crate) struct Scan<'a> {
    reads: &'a Reads,
    turn: Option<OwnedSemaphorePermit>,
    looks: u32,
    turn_ends: Instant,
    ends: Option<Instant>,
}

impl Scan<'_> {
    /// Says whether the request is to be answered with what there is.
    pub(crate) fn is_over(&self) -> bool {
        self.ends.is_some_and(|ends| Instant::now() >= ends)
    }

    /// Called after each look: lets others have their turn where it is time. Few go on at once then. Says whether it did.
    pub(crate) async fn give_way(&mut self) -> bool {
        self.looks = self.looks.saturating_sub(1);
        if self.looks > 0 && Instant::now() < self.turn_ends {
            return false;
        }
        self.turn = None;
        yield_now().await;
        // The semaphore is never closed.
        self.turn = Arc::clone(&self.reads.scans).acquire_owned().await.ok();
        (self.looks, self.turn_ends) = (LOOKS, Instant::now() + TURN);
        true
    }

    /// Others may look while this one waits.
    pub(crate) fn pause(&mut self) {
        self.turn = None;
    }
}
