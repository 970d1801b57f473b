//! The small messages of the hot methods, as far as we read them; prost does the work.
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

/// Which messages a consumer wants.
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
    /// The duration, if it is not negative.
    #[must_use]
    pub fn get(self) -> Option<Duration> {
        Some(Duration::new(u64::try_from(self.seconds).ok()?, u32::try_from(self.nanos).ok()?))
    }
}

/// Asks for messages under a lease.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReceiveMessageRequest {
    /// Consumer group.
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    /// Topic and broker; all queues are looked at.
    #[prost(message, optional, tag = "2")]
    pub message_queue: Option<MessageQueue>,
    /// Which messages.
    #[prost(message, optional, tag = "3")]
    pub filter_expression: Option<FilterExpression>,
    /// Most messages.
    #[prost(int32, tag = "4")]
    pub batch_size: i32,
    /// Length of the lease.
    #[prost(message, optional, tag = "5")]
    pub invisible_duration: Option<ProtoDuration>,
    /// Whether the server renews the lease as long as the client lives.
    #[prost(bool, tag = "6")]
    pub auto_renew: bool,
    /// How long to wait for the first message.
    #[prost(message, optional, tag = "7")]
    pub long_polling_timeout: Option<ProtoDuration>,
    /// Names the try of a receive in order, for a client that repeats it.
    #[prost(string, optional, tag = "8")]
    pub attempt_id: Option<String>,
}

/// Asks for messages from an offset the client keeps.
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
    /// Most messages.
    #[prost(int32, tag = "4")]
    pub batch_size: i32,
    /// Which messages.
    #[prost(message, optional, tag = "5")]
    pub filter_expression: Option<FilterExpression>,
    /// How long to wait for the first message.
    #[prost(message, optional, tag = "6")]
    pub long_polling_timeout: Option<ProtoDuration>,
}

/// Changes how long a lease lasts.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ChangeInvisibleDurationRequest {
    /// Consumer group.
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    /// Topic.
    #[prost(message, optional, tag = "2")]
    pub topic: Option<Resource>,
    /// Names the lease.
    #[prost(string, tag = "3")]
    pub receipt_handle: String,
    /// From now.
    #[prost(message, optional, tag = "4")]
    pub invisible_duration: Option<ProtoDuration>,
    /// Whether the delivery does not count as an attempt.
    #[prost(bool, optional, tag = "7")]
    pub suspend: Option<bool>,
}

/// Gives a message up.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ForwardMessageToDeadLetterQueueRequest {
    /// Consumer group.
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    /// Topic.
    #[prost(message, optional, tag = "2")]
    pub topic: Option<Resource>,
    /// Names the lease.
    #[prost(string, tag = "3")]
    pub receipt_handle: String,
    /// How often its consumer tried.
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
