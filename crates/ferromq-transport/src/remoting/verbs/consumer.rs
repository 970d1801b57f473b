//! Shared by the pop requests: checks their group, topic and queue against the tables.

use std::{net::SocketAddr, time::Duration};

use ferromq_store::filter::MessageFilter;

use super::{headers::ConsumerHeader, refused::Refused};
use crate::{
    TransportError,
    hot::{Hot, MAX_WAIT},
    remoting::{RemotingCommand, codes::response},
};

/// A group that reads a topic, or one queue of it.
pub(super) struct Consumer<'a> {
    pub group: &'a str,
    pub topic: &'a str,
    pub queue: Option<u32>,
    pub queue_count: u32,
    /// Deliveries of a message before it becomes a dead letter.
    pub deliveries: u32,
    /// Whether the topic has priorities and this request observes them.
    pub is_by_priority: bool,
}

impl<'a> Consumer<'a> {
    /// Checks the topic, queue and group of a request. May create the group, never the topic.
    pub(super) async fn of(
        hot: &Hot,
        peer: SocketAddr,
        command: &RemotingCommand,
        header: &ConsumerHeader<'a>,
    ) -> Result<Self, Refused> {
        let ConsumerHeader { group, topic, queue_id } = *header;
        let entry = hot.tables.topic(topic).ok_or_else(|| TransportError::NoSuchTopic(topic.to_owned()))?;
        if !entry.is_readable() {
            let why = format!("the topic[{topic}] is not readable");
            return Err(Refused::new(command, response::NO_PERMISSION, why));
        }
        // A negative id means all queues.
        let queue = u32::try_from(queue_id).ok();
        let queue_count = entry.read_queues;
        if queue.is_some_and(|queue| queue >= queue_count) {
            let why = format!(
                "queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{queue_count}] consumer:[{}]",
                peer
            );
            return Err(Refused::new(command, response::INVALID_PARAMETER, why));
        }
        let group_entry = hot.lookup.group(group, peer).await?;
        if !group_entry.enabled {
            let why = format!("subscription group no permission, {group}: consumption is disabled for it");
            return Err(Refused::new(command, response::NO_PERMISSION, why));
        }
        if hot.tables.is_forbidden(group, topic) {
            let why = format!("the consumer group[{group}] is forbidden for topic[{topic}]");
            return Err(Refused::new(command, response::NO_PERMISSION, why));
        }
        let (deliveries, is_by_priority) =
            (group_entry.deliveries(), hot.is_by_priority(&entry, &group_entry));
        Ok(Self { group, topic, queue, queue_count, deliveries, is_by_priority })
    }

    /// The queues it reads.
    pub(super) fn queues(&self) -> std::ops::Range<u32> {
        self.queue.map_or(0..self.queue_count, |queue| queue..queue + 1)
    }
}

/// Compiles the filter of a request.
///
/// # Errors
/// A refusal that names the position in the expression and the reason.
pub(super) fn filter(
    hot: &Hot,
    command: &RemotingCommand,
    kind: &str,
    expression: &str,
) -> Result<MessageFilter, Refused> {
    hot.tables.filters.compile(kind, expression).map_err(|error| {
        let why = format!("parse the consumer's subscription failed: {error}");
        Refused::new(command, response::SUBSCRIPTION_PARSE_FAILED, why)
    })
}

/// A client's wait, at most [`MAX_WAIT`].
pub(super) fn wait(milliseconds: i64) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0)).min(MAX_WAIT)
}
