//! Messages a group could not consume: where they are kept, and that they are there before their life in the queue ends.

use std::net::SocketAddr;

use ferromq_store::{
    GetStatus, Leased, MessageFilter, MessageView, NewMessage, OffsetMessageId, ReceiptHandle, Record,
    StoreError, properties,
};

use super::{Hot, receive::Receive};
use crate::{
    Missing, TransportError,
    tables::{GroupEntry, TopicEntry},
};

/// Before the name of a group in the name of its dead-letter topic.
pub(crate) const DLQ_PREFIX: &str = "%DLQ%";
/// A dead-letter topic has one queue.
pub(crate) const DLQ_QUEUES: u32 = 1;

impl Hot {
    /// Keeps a message a group holds in the group's dead-letter topic, and then ends its lease.
    ///
    /// It is there as durably as the flush policy promises when this returns. A kill between the two steps leaves it in
    /// both places. A group that wants no retries has no dead-letter topic: as in RocketMQ, the message is dropped.
    ///
    /// # Errors
    /// `StaleReceipt` where the lease is no longer held, `NoSuchGroup`, what forbids to write the dead-letter topic,
    /// and those of the store; the lease is then as it was.
    pub async fn to_dead_letters(
        &self,
        peer: SocketAddr,
        group: &str,
        topic: &str,
        handle: &ReceiptHandle,
    ) -> Result<(), TransportError> {
        let entry = self.group(group, peer).await?;
        if !self.store.holds(group, topic, handle) {
            self.counters.stale_receipts.add(1);
            return Err(StoreError::StaleReceipt.into());
        }
        let record = self.record_at(topic, handle)?;
        self.keep_dead(peer, group, &entry, &[&record]).await?;
        match self.ack(group, topic, handle) {
            // It ended meanwhile: the message is kept, and comes again as well.
            Err(StoreError::StaleReceipt) => Ok(()),
            done => Ok(done?),
        }
    }

    /// As [`Self::to_dead_letters`], of messages a receive found dead. What fails is said and tried again when the
    /// leases of the dead end.
    pub(super) async fn bury(&self, request: &Receive<'_>, dead: Vec<Leased>) {
        let Receive { group, topic, peer, .. } = *request;
        let records: Vec<&Record> = dead.iter().map(|leased| &leased.record).collect();
        let kept = match self.group(group, peer).await {
            Ok(entry) => self.keep_dead(peer, group, &entry, &records).await,
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            let count = dead.len();
            tracing::error!(topic, group, count, %error, "dead messages are not kept; they are tried again");
            return;
        }
        for leased in dead {
            if let Err(error) = self.store.ack(group, topic, &leased.handle) {
                tracing::warn!(topic, group, queue_offset = leased.handle.queue_offset, %error,
                    "a dead message is kept and comes again");
            }
        }
    }

    async fn keep_dead(
        &self,
        peer: SocketAddr,
        group: &str,
        entry: &GroupEntry,
        records: &[&Record],
    ) -> Result<(), TransportError> {
        if entry.retry_queues == 0 {
            return Ok(());
        }
        let name = format!("{DLQ_PREFIX}{group}");
        let topic = self.topic_of_group(peer, &name, DLQ_QUEUES, 0).await?;
        let mut end = 0;
        for record in records {
            end = self.append_dead(group, &name, self.pick_queue(&name, &topic), record)?;
        }
        Ok(self.durable(end).await?)
    }

    /// Appends one message to a dead-letter topic; returns where it ends.
    fn append_dead(
        &self,
        group: &str,
        name: &str,
        queue_id: u32,
        record: &Record,
    ) -> Result<u64, TransportError> {
        let message = MessageView::decode(record.bytes(), false)
            .map_err(|_| TransportError::IllegalMessage("the message cannot be read"))?;
        let text = properties_of_dead(&message);
        let dead = NewMessage {
            topic: name,
            queue_id: queue_id.cast_signed(),
            flag: message.flag,
            sys_flag: message.sys_flag,
            born_timestamp: message.born_timestamp,
            born_host: message.born_host,
            reconsume_times: message.reconsume_times.saturating_add(1),
            prepared_transaction_offset: 0,
            body: message.body,
            properties: &text,
        };
        let appended = match self.append(&[dead]) {
            // There is no room to tell where it comes from; it is kept all the same.
            Err(StoreError::TooLarge { what: "properties", .. }) => {
                tracing::warn!(topic = name, group, "a dead message has no room for the name of its topic");
                self.append(&[NewMessage { properties: message.properties, ..dead }])?
            }
            appended => appended?,
        };
        let consumed = properties::get(&text, "RETRY_TOPIC").unwrap_or(message.topic);
        self.traffic.count_send_back(consumed, group, 1, u64::from(message.total_size));
        self.counters.dead.add(1);
        Ok(appended.end)
    }

    /// The entry of a group's retry or dead-letter topic, which is made where it is missing.
    ///
    /// # Errors
    /// Those of [`Self::topic_or`], and `TopicForbidden`.
    pub(crate) async fn topic_of_group(
        &self,
        peer: SocketAddr,
        name: &str,
        queues: u32,
        sys_flag: i32,
    ) -> Result<TopicEntry, TransportError> {
        let entry = match self.tables.topic(name) {
            Some(entry) => entry,
            None => {
                let missing = Missing::TopicOfGroup { name: name.to_owned(), queues, sys_flag };
                self.topic_or(missing, peer).await?
            }
        };
        if entry.is_writable() {
            Ok(entry)
        } else {
            Err(TransportError::TopicForbidden { topic: name.to_owned(), done: "written" })
        }
    }

    fn record_at(&self, topic: &str, handle: &ReceiptHandle) -> Result<Record, TransportError> {
        let ReceiptHandle { queue_id, queue_offset, .. } = *handle;
        let found = self.store.get(topic, queue_id, queue_offset, 1, usize::MAX, &MessageFilter::All);
        match found.messages.into_iter().next() {
            Some((at, record)) if at == queue_offset => Ok(record),
            _ if matches!(found.status, GetStatus::OffsetTooSmall | GetStatus::MessageWasRemoving) => {
                Err(TransportError::IllegalMessage("the message is no longer kept"))
            }
            _ => Err(TransportError::IllegalMessage("the message cannot be read")),
        }
    }
}

/// The properties of a message that is kept as dead, which tell gRPC consumers where it comes from.
fn properties_of_dead(message: &MessageView<'_>) -> Vec<u8> {
    let text = properties_of_retry(message, 0);
    let known = |name| properties::get(&text, name);
    let topic = known("RETRY_TOPIC").unwrap_or(message.topic);
    let id = known("UNIQ_KEY").or_else(|| known("ORIGIN_MESSAGE_ID")).unwrap_or("");
    properties::replace(&text, &[], &[("DLQ_ORIGIN_TOPIC", topic), ("DLQ_ORIGIN_MESSAGE_ID", id)])
}

/// The properties of a message that goes back: it tells where it was read first, and by which id.
pub(crate) fn properties_of_retry(message: &MessageView<'_>, level: i32) -> Vec<u8> {
    let place = OffsetMessageId { store_host: message.store_host, physical_offset: message.physical_offset };
    let (place, level_text) = (place.to_string(), level.to_string());
    let known = |name| properties::get(message.properties, name);
    let mut set = Vec::with_capacity(3);
    if known("RETRY_TOPIC").is_none() {
        set.push(("RETRY_TOPIC", message.topic));
    }
    if known("ORIGIN_MESSAGE_ID").is_none() {
        set.push(("ORIGIN_MESSAGE_ID", place.as_str()));
    }
    if level > 0 {
        set.push(("DELAY", level_text.as_str()));
    }
    properties::replace(message.properties, &["DELAY"], &set)
}
