//! The small messages of the hot methods, parsed by prost. Fields that ferromq does not read are left out.
//!
//! Names and numbers are those of `apache.rocketmq.v2`. Messages with bodies are parsed in place instead.

use std::time::Duration;

/// A topic or a group.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Resource {
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// A broker.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Broker {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A queue.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MessageQueue {
    /// Its topic.
    #[prost(message, optional, tag = "1")]
    pub topic: Option<Resource>,
    /// Its number in the topic.
    #[prost(int32, tag = "2")]
    pub id: i32,
    /// Its broker.
    #[prost(message, optional, tag = "4")]
    pub broker: Option<Broker>,
}

/// The filter of a consumer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FilterExpression {
    /// 1 tags, 2 SQL.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// The expression.
    #[prost(string, tag = "2")]
    pub expression: String,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ProtoDuration {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl ProtoDuration {
    /// Returns the duration, or `None` if it is negative.
    #[must_use]
    pub fn get(self) -> Option<Duration> {
        Some(Duration::new(u64::try_from(self.seconds).ok()?, u32::try_from(self.nanos).ok()?))
    }
}

/// Receives messages under a lease.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReceiveMessageRequest {
    /// Consumer group.
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    /// Topic and broker. The receive covers all queues.
    #[prost(message, optional, tag = "2")]
    pub message_queue: Option<MessageQueue>,
    /// Filter.
    #[prost(message, optional, tag = "3")]
    pub filter_expression: Option<FilterExpression>,
    /// Maximum number of messages.
    #[prost(int32, tag = "4")]
    pub batch_size: i32,
    /// Length of the lease.
    #[prost(message, optional, tag = "5")]
    pub invisible_duration: Option<ProtoDuration>,
    /// Whether the server renews the leases while the client is connected.
    #[prost(bool, tag = "6")]
    pub auto_renew: bool,
    /// Longest wait for the first message.
    #[prost(message, optional, tag = "7")]
    pub long_polling_timeout: Option<ProtoDuration>,
    /// Id of the attempt of an ordered receive; a client that repeats the receive sends it again.
    #[prost(string, optional, tag = "8")]
    pub attempt_id: Option<String>,
}

/// Pulls messages from an offset that the client keeps.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PullMessageRequest {
    /// Consumer group.
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    /// Topic and queue.
    #[prost(message, optional, tag = "2")]
    pub message_queue: Option<MessageQueue>,
    /// First queue offset.
    #[prost(int64, tag = "3")]
    pub offset: i64,
    /// Maximum number of messages.
    #[prost(int32, tag = "4")]
    pub batch_size: i32,
    /// Filter.
    #[prost(message, optional, tag = "5")]
    pub filter_expression: Option<FilterExpression>,
    /// Longest wait for the first message.
    #[prost(message, optional, tag = "6")]
    pub long_polling_timeout: Option<ProtoDuration>,
}

/// Changes the length of a lease.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ChangeInvisibleDurationRequest {
    /// Consumer group.
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    /// Topic.
    #[prost(message, optional, tag = "2")]
    pub topic: Option<Resource>,
    /// Receipt handle of the lease.
    #[prost(string, tag = "3")]
    pub receipt_handle: String,
    /// New length, counted from now.
    #[prost(message, optional, tag = "4")]
    pub invisible_duration: Option<ProtoDuration>,
    /// Whether the delivery does not count as an attempt.
    #[prost(bool, optional, tag = "7")]
    pub suspend: Option<bool>,
}

/// Moves a message to the dead-letter topic.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ForwardMessageToDeadLetterQueueRequest {
    /// Consumer group.
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    /// Topic.
    #[prost(message, optional, tag = "2")]
    pub topic: Option<Resource>,
    /// Receipt handle of the lease.
    #[prost(string, tag = "3")]
    pub receipt_handle: String,
    /// Number of attempts of its consumer.
    #[prost(int32, tag = "5")]
    pub delivery_attempt: i32,
}

/// Sets a committed offset.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct UpdateOffsetRequest {
    /// Consumer group.
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    /// Topic and queue.
    #[prost(message, optional, tag = "2")]
    pub message_queue: Option<MessageQueue>,
    /// The offset.
    #[prost(int64, tag = "3")]
    pub offset: i64,
}
