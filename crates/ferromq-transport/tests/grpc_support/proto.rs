//! The protocol's messages for prost, written by hand from the field numbers, to check our own encoding.
#![allow(
    missing_docs,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::large_enum_variant
)]

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;

#[derive(Clone, PartialEq, prost::Message)]
pub struct Resource {
    #[prost(string, tag = "1")]
    pub resource_namespace: String,
    #[prost(string, tag = "2")]
    pub name: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Time {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Time {
    pub fn ms(self) -> i64 {
        self.seconds * 1_000 + i64::from(self.nanos) / 1_000_000
    }
}

impl From<Duration> for Time {
    fn from(duration: Duration) -> Self {
        Self { seconds: duration.as_secs().cast_signed(), nanos: duration.subsec_nanos().cast_signed() }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Digest {
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(string, tag = "2")]
    pub checksum: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SystemProperties {
    #[prost(string, optional, tag = "1")]
    pub tag: Option<String>,
    #[prost(string, repeated, tag = "2")]
    pub keys: Vec<String>,
    #[prost(string, tag = "3")]
    pub message_id: String,
    #[prost(message, optional, tag = "4")]
    pub body_digest: Option<Digest>,
    #[prost(int32, tag = "5")]
    pub body_encoding: i32,
    #[prost(int32, tag = "6")]
    pub message_type: i32,
    #[prost(message, optional, tag = "7")]
    pub born_timestamp: Option<Time>,
    #[prost(string, tag = "8")]
    pub born_host: String,
    #[prost(message, optional, tag = "9")]
    pub store_timestamp: Option<Time>,
    #[prost(string, tag = "10")]
    pub store_host: String,
    #[prost(message, optional, tag = "11")]
    pub delivery_timestamp: Option<Time>,
    #[prost(string, optional, tag = "12")]
    pub receipt_handle: Option<String>,
    /// Optional, so that tests can set and check its presence on the wire.
    #[prost(int32, optional, tag = "13")]
    pub queue_id: Option<i32>,
    #[prost(int64, optional, tag = "14")]
    pub queue_offset: Option<i64>,
    #[prost(message, optional, tag = "15")]
    pub invisible_duration: Option<Time>,
    #[prost(int32, optional, tag = "16")]
    pub delivery_attempt: Option<i32>,
    #[prost(string, optional, tag = "17")]
    pub message_group: Option<String>,
    #[prost(string, optional, tag = "18")]
    pub trace_context: Option<String>,
    #[prost(message, optional, tag = "19")]
    pub recovery_duration: Option<Time>,
    #[prost(string, optional, tag = "21")]
    pub lite_topic: Option<String>,
    #[prost(int32, optional, tag = "22")]
    pub priority: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Message {
    #[prost(message, optional, tag = "1")]
    pub topic: Option<Resource>,
    #[prost(map = "string, string", tag = "2")]
    pub user_properties: HashMap<String, String>,
    #[prost(message, optional, tag = "3")]
    pub system_properties: Option<SystemProperties>,
    #[prost(bytes = "bytes", tag = "4")]
    pub body: Bytes,
}

impl Message {
    pub fn system(&self) -> &SystemProperties {
        self.system_properties.as_ref().unwrap()
    }

    pub fn handle(&self) -> String {
        self.system().receipt_handle.clone().unwrap()
    }

    pub fn with(mut self, change: impl FnOnce(&mut SystemProperties)) -> Self {
        change(self.system_properties.as_mut().unwrap());
        self
    }
}

/// A normal message.
pub fn message(topic: &str, body: &str) -> Message {
    Message {
        topic: Some(resource(topic)),
        user_properties: HashMap::new(),
        system_properties: Some(SystemProperties {
            message_id: format!("id-{}", body.get(..40).unwrap_or(body)),
            message_type: 1,
            body_encoding: 1,
            ..SystemProperties::default()
        }),
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

pub fn resource(name: &str) -> Resource {
    Resource { resource_namespace: String::new(), name: name.to_owned() }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SendMessageRequest {
    #[prost(message, repeated, tag = "1")]
    pub messages: Vec<Message>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SendResultEntry {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(string, tag = "2")]
    pub message_id: String,
    #[prost(string, tag = "3")]
    pub transaction_id: String,
    #[prost(int64, tag = "4")]
    pub offset: i64,
    #[prost(string, tag = "5")]
    pub recall_handle: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SendMessageResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(message, repeated, tag = "2")]
    pub entries: Vec<SendResultEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Broker {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct MessageQueue {
    #[prost(message, optional, tag = "1")]
    pub topic: Option<Resource>,
    #[prost(int32, tag = "2")]
    pub id: i32,
    #[prost(message, optional, tag = "4")]
    pub broker: Option<Broker>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct FilterExpression {
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(string, tag = "2")]
    pub expression: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ReceiveMessageRequest {
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub message_queue: Option<MessageQueue>,
    #[prost(message, optional, tag = "3")]
    pub filter_expression: Option<FilterExpression>,
    #[prost(int32, tag = "4")]
    pub batch_size: i32,
    #[prost(message, optional, tag = "5")]
    pub invisible_duration: Option<Time>,
    #[prost(bool, tag = "6")]
    pub auto_renew: bool,
    #[prost(message, optional, tag = "7")]
    pub long_polling_timeout: Option<Time>,
    #[prost(string, optional, tag = "8")]
    pub attempt_id: Option<String>,
}

/// Receives up to 32 of `flights` for `audit`, leased for 30 s.
pub fn receive(wait: Duration) -> ReceiveMessageRequest {
    ReceiveMessageRequest {
        group: Some(resource("audit")),
        message_queue: Some(queue("flights", 0)),
        filter_expression: Some(FilterExpression { kind: 1, expression: "*".to_owned() }),
        batch_size: 32,
        invisible_duration: Some(Duration::from_secs(30).into()),
        auto_renew: false,
        long_polling_timeout: Some(wait.into()),
        attempt_id: None,
    }
}

pub fn queue(topic: &str, id: i32) -> MessageQueue {
    MessageQueue { topic: Some(resource(topic)), id, broker: None }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ReceiveMessageResponse {
    #[prost(oneof = "ReceiveContent", tags = "1, 2, 3")]
    pub content: Option<ReceiveContent>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ReceiveContent {
    #[prost(message, tag = "1")]
    Status(Status),
    #[prost(message, tag = "2")]
    Message(Message),
    #[prost(message, tag = "3")]
    DeliveryTimestamp(Time),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PullMessageRequest {
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub message_queue: Option<MessageQueue>,
    #[prost(int64, tag = "3")]
    pub offset: i64,
    #[prost(int32, tag = "4")]
    pub batch_size: i32,
    #[prost(message, optional, tag = "5")]
    pub filter_expression: Option<FilterExpression>,
    #[prost(message, optional, tag = "6")]
    pub long_polling_timeout: Option<Time>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PullMessageResponse {
    #[prost(oneof = "PullContent", tags = "1, 2, 3")]
    pub content: Option<PullContent>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum PullContent {
    #[prost(message, tag = "1")]
    Status(Status),
    #[prost(message, tag = "2")]
    Message(Message),
    #[prost(int64, tag = "3")]
    NextOffset(i64),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AckMessageEntry {
    #[prost(string, tag = "1")]
    pub message_id: String,
    #[prost(string, tag = "2")]
    pub receipt_handle: String,
    #[prost(message, optional, tag = "3")]
    pub status: Option<Status>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AckMessageRequest {
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub topic: Option<Resource>,
    #[prost(message, repeated, tag = "3")]
    pub entries: Vec<AckMessageEntry>,
}

/// Acknowledges messages of `flights` for `audit`.
pub fn ack(handles: &[&str]) -> AckMessageRequest {
    let entry = |handle: &&str| AckMessageEntry {
        message_id: "id".to_owned(),
        receipt_handle: (*handle).to_owned(),
        status: None,
    };
    AckMessageRequest {
        group: Some(resource("audit")),
        topic: Some(resource("flights")),
        entries: handles.iter().map(entry).collect(),
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AckMessageResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(message, repeated, tag = "2")]
    pub entries: Vec<AckMessageEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ChangeInvisibleDurationRequest {
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub topic: Option<Resource>,
    #[prost(string, tag = "3")]
    pub receipt_handle: String,
    #[prost(message, optional, tag = "4")]
    pub invisible_duration: Option<Time>,
    #[prost(string, tag = "5")]
    pub message_id: String,
    #[prost(bool, optional, tag = "7")]
    pub suspend: Option<bool>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ChangeInvisibleDurationResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(string, tag = "2")]
    pub receipt_handle: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UpdateOffsetRequest {
    #[prost(message, optional, tag = "1")]
    pub group: Option<Resource>,
    #[prost(message, optional, tag = "2")]
    pub message_queue: Option<MessageQueue>,
    #[prost(int64, tag = "3")]
    pub offset: i64,
}

/// A response of which only the status is read.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StatusOnly {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
}
