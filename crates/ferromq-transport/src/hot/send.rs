//! Send: appends messages and waits until the promise of the flush policy holds.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use ferromq_protocol::record::names::DLQ_PREFIX;
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
pub enum Deduplication {
    /// Every message is stored.
    Off,
    /// A message of the send has a [`ferromq_store::dedup::SEQUENCE`]; one with a number that is stored is skipped.
    On,
}

impl Deduplication {
    /// The value for a send in which some message has a sequence, or none has.
    #[must_use]
    pub fn of(is_numbered: bool) -> Self {
        if is_numbered { Self::On } else { Self::Off }
    }
}

/// Stores messages, and reports when they are as durable as promised.
pub struct Sends {
    pub(super) store: Arc<MessageStore>,
    pub(super) counters: Arc<Counters>,
    pub(super) traffic: Arc<Traffic>,
    /// Spreads requests that name no queue. One counter serves all topics: each topic's requests must be spread, in
    /// whatever order.
    pub(super) next_queue: AtomicU32,
}

impl Sends {
    /// Picks the queue of a request that names none: another queue for each request, and only an open one.
    #[must_use]
    pub fn pick_queue(&self, name: &str, topic: &TopicEntry) -> u32 {
        let queues = topic.write_queues.max(1);
        let turn = self.next_queue.fetch_add(1, Ordering::Relaxed) % queues;
        let is_open = |queue: &u32| self.store.admin().queue_access(name, *queue) == QueueAccess::Open;
        // If all are closed, the append reports it.
        (turn..queues).chain(0..turn).find(is_open).unwrap_or(turn)
    }

    /// Appends `messages` of one topic. The future resolves once they are as durable as the flush policy promises.
    ///
    /// The messages are in the log when this returns, so their borrows may end.
    pub fn send(
        &self,
        messages: &[NewMessage<'_>],
    ) -> Result<impl Future<Output = Result<Appended>> + Send + use<>> {
        let appended = self.append(messages)?;
        let durable = self.durable(appended.end);
        Ok(async move { durable.await.map(|()| appended) })
    }

    /// Appends `messages` of one topic. They are as durable as promised once [`Self::durable`] resolves.
    pub fn append(&self, messages: &[NewMessage<'_>]) -> Result<Appended> {
        self.append_with(messages, Deduplication::Off)
    }

    /// As [`Self::append`], but [`Deduplication::On`] skips duplicates of numbered messages.
    pub fn append_with(&self, messages: &[NewMessage<'_>], kept: Deduplication) -> Result<Appended> {
        let appended = match kept {
            Deduplication::Off => self.store.log().append(messages)?,
            Deduplication::On => self.store.log().append_once(messages)?,
        };
        self.count(messages, &appended);
        Ok(appended)
    }

    /// As [`Self::append_with`], for one message. If `is_delayed`, its properties have a delay level or a delivery
    /// time, and it waits for that first. Also returns the delivery time.
    pub fn append_delayed(
        &self,
        message: &NewMessage<'_>,
        is_delayed: bool,
        kept: Deduplication,
    ) -> Result<(Appended, Option<i64>)> {
        let delayed = if is_delayed { self.store.log().delayed(message)? } else { None };
        let Some(delayed) = delayed else { return Ok((self.append_with(&[*message], kept)?, None)) };
        let waiting = NewMessage {
            topic: delayed.topic,
            queue_id: delayed.queue_id,
            properties: &delayed.properties,
            ..*message
        };
        Ok((self.append_with(&[waiting], kept)?, delayed.deliver_at))
    }

    /// As [`Self::append_with`], but after a crash all messages that are to be stored are there or none.
    pub fn append_as_one(&self, messages: &[NewMessage<'_>], kept: Deduplication) -> Result<Appended> {
        let appended = match kept {
            Deduplication::Off => self.store.log().append_as_one(messages)?,
            Deduplication::On => self.store.log().append_once_as_one(messages)?,
        };
        self.count(messages, &appended);
        Ok(appended)
    }

    /// Returns at once whether the append that ends at `end` is as durable as promised; `None` if that is not known
    /// yet.
    pub fn durable_now(&self, end: u64) -> Option<Result<()>> {
        self.store.log().durable_now(end)
    }

    /// Whether the flush policy promised that the append that ends at `end` is on disk, and it is.
    #[must_use]
    pub fn is_promised_on_disk(&self, end: u64) -> bool {
        self.store.log().is_promised_on_disk(end)
    }

    /// The broker's own address, as in every record.
    #[must_use]
    pub fn store_host(&self) -> SocketAddr {
        self.store.admin().store_host()
    }

    /// Waits until the append that ends at `end`, an `Appended::end`, is as durable as the flush policy promises.
    pub fn durable(&self, end: u64) -> impl Future<Output = Result<()>> + Send + use<> {
        let known = self.durable_now(end);
        let durable = known.is_none().then(|| {
            let (done, durable) = oneshot::channel();
            self.store.log().when_durable(end, move |outcome| {
                // The request may have been cancelled meanwhile.
                let _ = done.send(outcome);
            });
            durable
        });
        async move {
            match durable {
                // A dropped callback means that the store was closed.
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
            // Retries and dead letters come from consumers.
            if first.reconsume_times > 0 || first.topic.starts_with(DLQ_PREFIX) {
                self.traffic.count_put(first.topic, count, bytes);
            } else {
                self.traffic.count_sent(first.topic, count, bytes);
            }
        }
    }
}
