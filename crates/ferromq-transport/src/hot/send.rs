//! Send: append messages and wait until the promise of the flush policy holds.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use ferromq_store::{
    MessageStore, Result, StoreError,
    log::{Appended, Location},
    queues::QueueAccess,
    record::NewMessage,
};
use tokio::sync::oneshot;

use super::{Counters, Traffic};
use crate::tables::TopicEntry;

/// Which messages of a send are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Each.
    All,
    /// None that is there already: one of them has a [`ferromq_store::dedup::SEQUENCE`].
    New,
}

impl Kept {
    /// The answer for a send where some message has a sequence, or none has.
    #[must_use]
    pub fn of(is_numbered: bool) -> Self {
        if is_numbered { Self::New } else { Self::All }
    }
}

/// Where messages are stored, and when they are as durable as promised.
pub struct Sends {
    pub(super) store: Arc<MessageStore>,
    pub(super) counters: Arc<Counters>,
    pub(super) traffic: Arc<Traffic>,
    /// Spreads requests that do not choose a queue. One for all topics: what counts is that each topic's
    /// requests are spread, not in which order.
    pub(super) next_queue: AtomicU32,
}

impl Sends {
    /// Picks the queue of a request that did not choose one: each request another, and none that is closed.
    #[must_use]
    pub fn pick_queue(&self, name: &str, topic: &TopicEntry) -> u32 {
        let queues = topic.write_queues.max(1);
        let turn = self.next_queue.fetch_add(1, Ordering::Relaxed) % queues;
        let is_open = |queue: &u32| self.store.admin().queue_access(name, *queue) == QueueAccess::Open;
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
        self.append_kept(messages, Kept::All)
    }

    /// As [`Self::append`], but for what is there already where the messages are numbered.
    pub fn append_kept(&self, messages: &[NewMessage<'_>], kept: Kept) -> Result<Appended> {
        let appended = match kept {
            Kept::All => self.store.log().append(messages)?,
            Kept::New => self.store.log().append_once(messages)?,
        };
        self.count(messages, &appended);
        Ok(appended)
    }

    /// As [`Self::append_kept`], for one message. Where `is_delayed`, its properties have a delay level or a time of
    /// delivery, for which it waits first. Also returns that time.
    pub fn append_delayed(
        &self,
        message: &NewMessage<'_>,
        is_delayed: bool,
        kept: Kept,
    ) -> Result<(Appended, Option<i64>)> {
        let delayed = if is_delayed { self.store.log().delayed(message)? } else { None };
        let Some(delayed) = delayed else { return Ok((self.append_kept(&[*message], kept)?, None)) };
        let waiting = NewMessage {
            topic: delayed.topic,
            queue_id: delayed.queue_id,
            properties: &delayed.properties,
            ..*message
        };
        Ok((self.append_kept(&[waiting], kept)?, delayed.deliver_at))
    }

    /// As [`Self::append_kept`], but whatever happens all that are to be stored are there afterwards or none.
    pub fn append_as_one(&self, messages: &[NewMessage<'_>], kept: Kept) -> Result<Appended> {
        let appended = match kept {
            Kept::All => self.store.log().append_as_one(messages)?,
            Kept::New => self.store.log().append_once_as_one(messages)?,
        };
        self.count(messages, &appended);
        Ok(appended)
    }

    /// Says at once of what ends at `end` whether it is as durable as promised; `None` where that is not known yet.
    pub fn durable_now(&self, end: u64) -> Option<Result<()>> {
        self.store.log().durable_now(end)
    }

    /// Waits until what ends at `end`, an `Appended::end`, is as durable as the flush policy promises.
    pub fn durable(&self, end: u64) -> impl Future<Output = Result<()>> + Send + use<> {
        let known = self.durable_now(end);
        let durable = known.is_none().then(|| {
            let (done, durable) = oneshot::channel();
            self.store.log().when_durable(end, move |outcome| {
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
        let stored = appended.locations.iter().filter(|location| **location != Location::THERE_ALREADY);
        let count = stored.count() as u64;
        self.counters.send_requests.add(1);
        self.counters.sent.add(count);
        if let Some(first) = messages.first() {
            let bytes = appended.locations.iter().map(|location| u64::from(location.len)).sum();
            self.traffic.count_put(first.topic, count, bytes);
        }
    }
}
