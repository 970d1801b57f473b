//! Send: append messages and wait until the promise of the flush policy holds.

use std::sync::atomic::Ordering;

use ferromq_store::{Appended, NewMessage, QueueAccess, Result, StoreError};
use tokio::sync::oneshot;

use super::Hot;
use crate::tables::TopicEntry;

impl Hot {
    /// Picks the queue of a request that did not choose one: each request another, and none that is closed.
    #[must_use]
    pub fn pick_queue(&self, name: &str, topic: &TopicEntry) -> u32 {
        let queues = topic.write_queues.max(1);
        let turn = self.next_queue.fetch_add(1, Ordering::Relaxed) % queues;
        let is_open = |queue: &u32| self.store.queue_access(name, *queue) == QueueAccess::Open;
        // Where all are closed, the append says so.
        (turn..queues).chain(0..turn).find(is_open).unwrap_or(turn)
    }

    /// Appends `messages`; the answer comes once they are as durable as the flush policy promises.
    ///
    /// The messages are in the log when this returns, so what they borrow may go.
    pub fn send(
        &self,
        messages: &[NewMessage<'_>],
    ) -> Result<impl Future<Output = Result<Appended>> + Send + use<>> {
        let appended = self.store.append(messages)?;
        self.counters.send_requests.add(1);
        self.counters.sent.add(messages.len() as u64);
        let (done, durable) = oneshot::channel();
        self.store.when_durable(appended.end, move |outcome| {
            // The request may have been given up meanwhile.
            let _ = done.send(outcome);
        });
        Ok(async move {
            // A callback that is dropped belongs to a store that closed.
            durable.await.unwrap_or(Err(StoreError::Closed)).map(|()| appended)
        })
    }
}
