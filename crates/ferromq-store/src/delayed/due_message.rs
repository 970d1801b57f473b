//! Delivery of a due message: finds its destination and stores it there, whatever it waited for.

use std::sync::{Arc, atomic::Ordering};

use parking_lot::RwLock;

use crate::{
    config::StoreConfig,
    delayed::delay_levels::{self},
    error::{Result, StoreError},
    files::disk::Disk,
    log::{appended::Appended, appender::Log},
    progress::java_leases::REVIVE_PREFIX,
    queues::{consume_queue::check_name, queue_table::ConsumeQueues},
    record::{
        encode::NewMessage,
        message::MessageView,
        names::{self},
    },
    time::clock::Clock,
};

/// Why a message is given up for which [`DueMessages::is_past_retention`] holds.
pub(crate) const PAST_RETENTION: &str = "all queues of its topic stayed closed until its retention ended";

/// Why acknowledgement state of a Java broker's pops is not delivered: it became leases at open, and that broker must
/// not read it again.
pub(crate) const TAKEN_OVER: &str = "it became leases when the store was opened";

/// The destination of a due message.
pub(crate) enum Target {
    /// This queue: its own or an open one of its topic.
    Queue(String, i32),
    /// All queues of its topic are closed; this is its own.
    Closed(String, i32),
    /// None, and why.
    Undeliverable(&'static str),
}

/// Called with the topic and the size of each delivered record.
pub(crate) type DeliveryListener = Arc<dyn Fn(&str, u32) + Send + Sync>;

pub(crate) struct DueMessages<D: Disk> {
    pub(crate) log: Arc<Log<D>>,
    pub(crate) queues: Arc<ConsumeQueues<D>>,
    pub(crate) clock: Clock,
    pub(crate) config: Arc<StoreConfig>,
    pub(crate) listener: RwLock<Option<DeliveryListener>>,
}

impl<D: Disk> DueMessages<D> {
    pub(crate) fn listener(&self) -> Option<DeliveryListener> {
        self.listener.read().clone()
    }

    /// The destination of the message, by its properties.
    pub(crate) fn target(&self, view: &MessageView<'_>) -> Target {
        let Some((topic, queue_id)) = delay_levels::destination(view.properties) else {
            return Target::Undeliverable("it has no destination");
        };
        let Ok(queue) = check_name(topic, queue_id) else {
            return Target::Undeliverable("its destination is not a queue");
        };
        if topic.starts_with(REVIVE_PREFIX) {
            return Target::Undeliverable(TAKEN_OVER);
        }
        if names::is_waiting_room(topic) {
            return Target::Undeliverable("its destination is a topic of waiting messages");
        }
        if self.was_deleted_since(topic, view.physical_offset) {
            return Target::Undeliverable("its topic was deleted");
        }
        match self.open_queue(topic, queue) {
            Some(queue) => Target::Queue(topic.to_owned(), queue.cast_signed()),
            None => Target::Closed(topic.to_owned(), queue_id),
        }
    }

    /// Whether the message has reached the age at which messages of its topic are deleted. Such a message is given up
    /// if its queues are closed, but not while one of them is set aside, because that queue will take messages again.
    pub(crate) fn is_past_retention(&self, topic: &str, view: &MessageView<'_>) -> bool {
        if self.queues.of_topic(topic).iter().any(|queue| queue.marks.is_aside()) {
            return false;
        }
        let retention = &self.config.retention;
        let age = retention.age_by_topic.get(topic).copied().or(retention.age);
        let born_ago = self.clock.now_ms().saturating_sub(view.born_timestamp);
        age.is_some_and(|age| i128::from(born_ago) >= age.as_millis().cast_signed())
    }

    /// Appends the messages. Logs and skips those that the store can never take. Returns the size of each record, 0 for
    /// a skipped one.
    pub(crate) fn append(&self, messages: &[NewMessage<'_>]) -> Result<Vec<u32>> {
        let is_never_taken =
            |error: &StoreError| matches!(error, StoreError::TooLarge { .. } | StoreError::Invalid { .. });
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let sizes = |appended: Appended| appended.locations.into_iter().map(|location| location.len);
        match self.log.append(messages) {
            Ok(appended) => return Ok(sizes(appended).collect()),
            Err(error) if !is_never_taken(&error) => return Err(error),
            Err(_) => {}
        }
        let is_kept = |message: &NewMessage<'_>| {
            let tell = |error: &StoreError| {
                tracing::error!(%error, topic = message.topic, "due message cannot be stored: given up");
            };
            self.log.check(message).inspect_err(tell).is_ok()
        };
        let is_kept: Vec<bool> = messages.iter().map(is_kept).collect();
        let kept: Vec<NewMessage<'_>> = messages
            .iter()
            .zip(&is_kept)
            .filter(|(_, is_kept)| **is_kept)
            .map(|(message, _)| *message)
            .collect();
        let appended = if kept.is_empty() { None } else { Some(self.log.append(&kept)?) };
        let mut sizes = appended.map(sizes).into_iter().flatten();
        Ok(is_kept.into_iter().map(|is_kept| if is_kept { sizes.next().unwrap_or(0) } else { 0 }).collect())
    }

    /// The queue if it is open, else another open one of the topic.
    fn open_queue(&self, topic: &str, queue_id: u32) -> Option<u32> {
        let wanted = self.queues.find_any(topic, queue_id);
        if wanted.is_none_or(|queue| queue.marks.takes_messages()) {
            return Some(queue_id);
        }
        let others = self.queues.of_topic(topic);
        let open = others.iter().filter(|queue| queue.marks.takes_messages() && !queue.marks.is_deleted());
        open.map(|queue| queue.queue_id()).min()
    }

    /// Whether the topic was deleted after a message for it was stored at `physical_offset`.
    fn was_deleted_since(&self, topic: &str, physical_offset: u64) -> bool {
        self.queues.deleted_to.load(Ordering::Acquire) > physical_offset
            && self
                .queues
                .of_topic(topic)
                .iter()
                .any(|queue| queue.marks.floor().physical_end > physical_offset)
    }
}

/// The message of a record, addressed to another queue.
pub(crate) fn renewed<'a>(
    view: &MessageView<'a>,
    topic: &'a str,
    queue_id: i32,
    properties: &'a [u8],
) -> NewMessage<'a> {
    NewMessage {
        topic,
        queue_id,
        flag: view.flag,
        sys_flag: view.sys_flag,
        born_timestamp: view.born_timestamp,
        born_host: view.born_host,
        reconsume_times: view.reconsume_times,
        prepared_transaction_offset: 0,
        body: view.body,
        properties,
    }
}
