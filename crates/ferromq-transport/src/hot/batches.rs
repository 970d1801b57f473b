//! Requests with very many messages: a few run at a time, in a fair order, and outside the network threads.
//!
//! One request of 65,536 messages takes as long as a thousand small ones. Many of them at once would occupy every
//! network thread for seconds while all other requests wait. The verbs decide what to do with the messages.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::SocketAddr,
    sync::Arc,
    thread,
};

use ferromq_store::StoreError;
use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};

/// Most messages of a request that is answered on the thread that read it.
pub(crate) const MAX_INLINE_MESSAGES: usize = 256;
/// Memory of a message beside its bytes until its request is answered: the parsed message, the one to be stored, its
/// location and its receipt.
pub(crate) const MESSAGE_OVERHEAD: usize = 640;
/// Most batches that run at once. More would only wait for each other: the log takes one append after the other.
const MAX_RUNNING: usize = 4;

/// The queued and running batches of a connection; the last one removes the entry from the table.
#[derive(Default)]
struct ConnectionBatches {
    count: usize,
    lock: Arc<AsyncMutex<()>>,
}

/// Limits how many large batches run at once.
pub(crate) struct Batches {
    turns: Arc<Semaphore>,
    /// Connections with batches, by their peer. One batch of each connection at a time waits for a turn.
    connections: Mutex<HashMap<SocketAddr, ConnectionBatches>>,
}

impl Default for Batches {
    fn default() -> Self {
        // One core is left for other requests.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self::new(cores.saturating_sub(1).clamp(1, MAX_RUNNING))
    }
}

impl Batches {
    fn new(turns: usize) -> Self {
        Self { turns: Arc::new(Semaphore::new(turns)), connections: Mutex::default() }
    }

    /// Waits for the turn of a batch of the connection from `peer`; connections take turns.
    ///
    /// # Errors
    /// `Closed` if the server stops.
    pub(crate) async fn turn(&self, peer: SocketAddr) -> Result<BatchTurn<'_>, StoreError> {
        let (mut queued, lock) = self.enqueue(peer);
        queued.lock = Some(lock.lock_owned().await);
        // The semaphore is never closed.
        let permit = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        Ok(BatchTurn { permit, _queued: queued })
    }

    /// Adds a batch of the connection from `peer`; also returns the connection's lock.
    fn enqueue(&self, peer: SocketAddr) -> (QueuedBatch<'_>, Arc<AsyncMutex<()>>) {
        let mut connections = self.connections.lock();
        let connection = connections.entry(peer).or_default();
        connection.count += 1;
        (QueuedBatch { batches: self, peer, lock: None }, Arc::clone(&connection.lock))
    }
}

/// The right to run a batch.
pub(crate) struct BatchTurn<'a> {
    permit: OwnedSemaphorePermit,
    _queued: QueuedBatch<'a>,
}

impl BatchTurn<'_> {
    /// Runs the batch on a blocking thread. If the future is dropped, the result is discarded.
    ///
    /// # Errors
    /// `Closed` if the server stops.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let Self { permit, _queued } = self;
        let done = spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        done.await.map_err(|_| StoreError::Closed)
    }
}

/// A queued or running batch of a connection.
struct QueuedBatch<'a> {
    batches: &'a Batches,
    peer: SocketAddr,
    /// The connection's lock, held by its first batch.
    lock: Option<OwnedMutexGuard<()>>,
}

impl Drop for QueuedBatch<'_> {
    fn drop(&mut self) {
        self.lock = None;
        let mut connections = self.batches.connections.lock();
        if let Entry::Occupied(mut connection) = connections.entry(self.peer) {
            connection.get_mut().count -= 1;
            if connection.get().count == 0 {
                connection.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicU16, Ordering},
        mpsc,
    };

    use tokio::{task::JoinSet, time::Duration};

    use super::*;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    impl Batches {
        async fn run<T: Send + 'static>(
            &self,
            peer: SocketAddr,
            work: impl FnOnce() -> T + Send + 'static,
        ) -> T {
            self.turn(peer).await.unwrap().run(work).await.unwrap()
        }
    }

    /// Lets all runnable tasks run.
    async fn settle() {
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn connections_take_turns_however_many_batches_each_has() {
        let batches = Arc::new(Batches::new(1));
        let (order, done) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let mut running = JoinSet::new();
        let first = Arc::clone(&batches);
        running.spawn(async move { first.run(peer(1), move || released.recv().unwrap()).await });
        settle().await;
        for port in [1, 1, 1, 1, 2, 3] {
            let (batches, order) = (Arc::clone(&batches), order.clone());
            running.spawn(async move { batches.run(peer(port), move || order.send(port).unwrap()).await });
            settle().await;
        }
        assert_eq!(batches.connections.lock().len(), 3);
        assert!(done.try_recv().is_err(), "only one batch runs");
        release.send(()).unwrap();
        running.join_all().await;
        let order: Vec<u16> = done.try_iter().collect();
        let last = order.iter().rposition(|port| *port != 1).unwrap();
        assert!(last <= 3, "{order:?}");
        assert!(batches.connections.lock().is_empty());
    }

    #[test]
    fn batches_of_a_connection_that_end_together_leave_no_entry() {
        let batches = Batches::new(1);
        let begun = AtomicU16::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for port in 1..=2_000 {
                        let waiting = batches.enqueue(peer(port));
                        begun.fetch_add(1, Ordering::SeqCst);
                        while begun.load(Ordering::SeqCst) < 2 * port {
                            thread::yield_now();
                        }
                        drop(waiting);
                    }
                });
            }
        });
        assert!(batches.connections.lock().is_empty());
    }

    #[tokio::test]
    async fn a_batch_whose_caller_left_does_not_run_and_delays_no_other() {
        let batches = Arc::new(Batches::new(1));
        let (release, released) = mpsc::channel::<()>();
        let first = Arc::clone(&batches);
        let first = tokio::spawn(async move { first.run(peer(1), move || released.recv().unwrap()).await });
        settle().await;
        let left = tokio::time::timeout(Duration::from_millis(1), batches.run(peer(2), || unreachable!()));
        assert!(left.await.is_err());
        release.send(()).unwrap();
        first.await.unwrap();
        batches.run(peer(2), || ()).await;
        assert!(batches.connections.lock().is_empty());
    }
}
