//! Send: append messages and wait until the promise of the flush policy holds.

use std::sync::atomic::Ordering;

use ferromq_store::{Appended, NewMessage, QueueAccess, Result, StoreError, is_timed};
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

    /// Appends `messages` of one topic; the answer comes once they are as durable as the flush policy promises.
    ///
    /// The messages are in the log when this returns, so what they borrow may go.
    pub fn send(
        &self,
        messages: &[NewMessage<'_>],
    ) -> Result<impl Future<Output = Result<Appended>> + Send + use<>> {
        let appended = self.append(messages)?;
        let durable = self.durable(appended.end);
        Ok(async move { durable.await.map(|()| appended) })
    }

    /// Appends `messages` of one topic. What is promised of them holds once [`Self::durable`] says so.
    pub fn append(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        let appended = self.store.append(messages)?;
        self.count(messages, &appended);
        Ok(appended)
    }

    /// As [`Self::append`], for one message that waits first where its delay level `level` is above 0, or its properties
    /// have a time of delivery.
    pub fn append_delayed(&self, message: &NewMessage<'_>, level: i32) -> Result<Appended> {
        self.append_timed(message, level).map(|(appended, _)| appended)
    }

    /// As [`Self::append_delayed`], and when the message is due, where it waits for a time of its own.
    pub fn append_timed(&self, message: &NewMessage<'_>, level: i32) -> Result<(Appended, Option<i64>)> {
        let waits = level > 0 || is_timed(message.properties);
        let delayed = if waits { self.store.delayed(message)? } else { None };
        let Some(delayed) = delayed else { return Ok((self.append(&[*message])?, None)) };
        let waiting = NewMessage {
            topic: delayed.topic,
            queue_id: delayed.queue_id,
            properties: &delayed.properties,
            ..*message
        };
        Ok((self.append(&[waiting])?, delayed.deliver_at))
    }

    /// As [`Self::append`], but whatever happens all of the messages are there afterwards or none.
    pub fn append_as_one(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        let appended = self.store.append_as_one(messages)?;
        self.count(messages, &appended);
        Ok(appended)
    }

    /// Says at once of what ends at `end` whether it is as durable as promised; `None` where that is not known yet.
    pub fn durable_now(&self, end: u64) -> Option<Result<()>> {
        self.store.durable_now(end)
    }

    /// Waits until what ends at `end`, an `Appended::end`, is as durable as the flush policy promises.
    pub fn durable(&self, end: u64) -> impl Future<Output = Result<()>> + Send + use<> {
        let known = self.durable_now(end);
        let durable = known.is_none().then(|| {
            let (done, durable) = oneshot::channel();
            self.store.when_durable(end, move |outcome| {
                // The request may have been given up meanwhile.
                let _ = done.send(outcome);
            });
            durable
        });
        async move {
            match durable {
                // A callback that is dropped belongs to a store that closed.
                Some(durable) => durable.await.unwrap_or(Err(StoreError::Closed)),
                None => known.unwrap_or(Ok(())),
            }
        }
    }

    fn count(&self, messages: &[NewMessage<'_>], appended: &Appended) {
        let count = messages.len() as u64;
        self.counters.send_requests.add(1);
        self.counters.sent.add(count);
        if let Some(first) = messages.first() {
            let bytes = appended.locations.iter().map(|location| u64::from(location.len)).sum();
            self.traffic.count_put(first.topic, count, bytes);
        }
    }
}
