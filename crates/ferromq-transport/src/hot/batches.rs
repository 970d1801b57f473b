//! Requests of very many messages: a few at a time, in a fair order, and not on the threads of the network.
//!
//! One request of 65,536 messages takes as long as a thousand small ones. Many of them at once would keep every thread of
//! the network busy for seconds, and all other requests waiting. What is done with the messages is the verbs' business.

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

/// A request of at most so many messages is answered where it was read.
pub(crate) const FEW: usize = 256;
/// What a message takes until its request is answered, beside its bytes: as parsed, to be stored, its place and its
/// receipt.
pub(crate) const OF_MESSAGE: usize = 640;
/// More at once would only wait for each other: the log takes one append after the other.
const MOST: usize = 4;

/// The batches of a connection that wait or are worked on; the last one takes the row out of the table.
#[derive(Default)]
struct Row {
    count: usize,
    first: Arc<AsyncMutex<()>>,
}

/// Bounds how many large batches are worked on at once.
pub(crate) struct Batches {
    turns: Arc<Semaphore>,
    /// Of each connection with a batch, by its peer: one of its batches at a time waits for a turn.
    rows: Mutex<HashMap<SocketAddr, Row>>,
}

impl Default for Batches {
    fn default() -> Self {
        // One core is left to the others.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self::new(cores.saturating_sub(1).clamp(1, MOST))
    }
}

impl Batches {
    fn new(turns: usize) -> Self {
        Self { turns: Arc::new(Semaphore::new(turns)), rows: Mutex::default() }
    }

    /// Waits until a batch of the connection from `peer` has its turn; connections take turns.
    ///
    /// # Errors
    /// `Closed` where the server ends.
    pub(crate) async fn turn(&self, peer: SocketAddr) -> Result<Turn<'_>, StoreError> {
        let (mut row, first) = self.wait(peer);
        row.first = Some(first.lock_owned().await);
        // The semaphore is never closed.
        let permit = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        Ok(Turn { permit, _row: row })
    }

    /// One more batch of the connection from `peer`, and what the first of its row holds.
    fn wait(&self, peer: SocketAddr) -> (Waiting<'_>, Arc<AsyncMutex<()>>) {
        let mut rows = self.rows.lock();
        let row = rows.entry(peer).or_default();
        row.count += 1;
        (Waiting { batches: self, peer, first: None }, Arc::clone(&row.first))
    }
}

/// The right to work on a batch.
pub(crate) struct Turn<'a> {
    permit: OwnedSemaphorePermit,
    _row: Waiting<'a>,
}

impl Turn<'_> {
    /// Works on the batch on a thread of its own; dropped meanwhile, the work ends unheard.
    ///
    /// # Errors
    /// `Closed` where the server ends.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let Self { permit, _row } = self;
        let done = spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        done.await.map_err(|_| StoreError::Closed)
    }
}

/// A batch of a connection that waits or is worked on.
struct Waiting<'a> {
    batches: &'a Batches,
    peer: SocketAddr,
    /// It is the first of its row.
    first: Option<OwnedMutexGuard<()>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.first = None;
        let mut rows = self.batches.rows.lock();
        if let Entry::Occupied(mut row) = rows.entry(self.peer) {
            row.get_mut().count -= 1;
            if row.get().count == 0 {
                row.remove();
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

    /// Lets all tasks that can go on do so.
    async fn settle() {
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn connections_take_turns_however_many_batches_one_of_them_has() {
        let batches = Arc::new(Batches::new(1));
        let (order, done) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let mut running = JoinSet::new();
        let first = Arc::clone(&batches);
        running.spawn(async move { first.run(peer(1), move || released.recv().unwrap()).await });
        settle().await;
        for of in [1, 1, 1, 1, 2, 3] {
            let (batches, order) = (Arc::clone(&batches), order.clone());
            running.spawn(async move { batches.run(peer(of), move || order.send(of).unwrap()).await });
            settle().await;
        }
        assert_eq!(batches.rows.lock().len(), 3);
        assert!(done.try_recv().is_err(), "one is worked on, and no other beside it");
        release.send(()).unwrap();
        running.join_all().await;
        let order: Vec<u16> = done.try_iter().collect();
        let last = order.iter().rposition(|of| *of != 1).unwrap();
        assert!(last <= 3, "{order:?}");
        assert!(batches.rows.lock().is_empty());
    }

    #[test]
    fn batches_of_a_connection_that_end_at_once_leave_no_row() {
        let batches = Batches::new(1);
        let begun = AtomicU16::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for port in 1..=2_000 {
                        let waiting = batches.wait(peer(port));
                        begun.fetch_add(1, Ordering::SeqCst);
                        while begun.load(Ordering::SeqCst) < 2 * port {
                            thread::yield_now();
                        }
                        drop(waiting);
                    }
                });
            }
        });
        assert!(batches.rows.lock().is_empty());
    }

    #[tokio::test]
    async fn a_batch_whose_caller_left_is_not_begun_and_keeps_no_other_waiting() {
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
        assert!(batches.rows.lock().is_empty());
    }
}
