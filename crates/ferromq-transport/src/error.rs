//! Errors between the socket and the store, and their one mapping to remoting response codes.

use ferromq_protocol::ProtocolError;
use ferromq_store::StoreError;

use crate::{Verb, remoting::codes::response};

/// An error of the transport.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The peer speaks another protocol. The text names it and the way out.
    #[error("not a remoting frame: {0}")]
    OtherProtocol(String),
    /// A field of a request is missing or invalid.
    #[error("the field {name} is invalid: {reason}")]
    BadField {
        /// The field.
        name: &'static str,
        /// Why it is invalid.
        reason: &'static str,
    },
    /// Bytes or a command break the rules of a protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// This request code has no handler.
    #[error("request code {0} is not supported")]
    Unsupported(i32),
    /// The topic does not exist and is not created on first use.
    #[error("topic {0} does not exist")]
    NoSuchTopic(String),
    /// The consumer group does not exist and is not created on first use.
    #[error("consumer group {0} does not exist")]
    NoSuchGroup(String),
    /// Permissions forbid the request.
    #[error("{0}")]
    Forbidden(&'static str),
    /// A topic's permission forbids the request.
    #[error(
        "the topic {topic} cannot be {done} here: its permission or the broker's forbids it, or this broker is a slave"
    )]
    TopicForbidden {
        /// The topic.
        topic: String,
        /// The refused operation, as a participle: `written`, `read` or `given back from`.
        done: &'static str,
    },
    /// The topic has no write queues.
    #[error("the topic {0} has no write queues: it only drains; to send to it again, give it write queues")]
    TopicDrained(String),
    /// The name breaks the rules for topic names.
    #[error("the topic name {topic:?} is not allowed: {reason}")]
    BadTopicName {
        /// The name.
        topic: String,
        /// The broken rule.
        reason: &'static str,
    },
    /// The topic has no such queue.
    #[error("the topic {topic} has no queue {queue_id}; its queues are 0 to {}", queues.saturating_sub(1))]
    NoSuchQueue {
        /// The topic.
        topic: String,
        /// The requested queue.
        queue_id: i32,
        /// Number of queues of the topic.
        queues: u32,
    },
    /// The message cannot be stored.
    #[error("the message is illegal: {0}")]
    IllegalMessage(&'static str),
    /// The topic takes messages of another type.
    #[error(
        "the topic {topic} takes {takes} messages, this one is {sent}; use a topic of that type, or change this one: \
         alter_topic({topic:?}, message_type={sent:?}), or mqadmin updateTopic -t {topic} -a +message.type={sent}"
    )]
    WrongMessageType {
        /// The topic.
        topic: String,
        /// The type of the topic.
        takes: &'static str,
        /// The type of the message.
        sent: &'static str,
    },
    /// A feature of RocketMQ that this server does not implement.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The server accepts no messages.
    #[error("{0}")]
    NotAvailable(&'static str),
    /// This broker is a slave. Slaves do not replicate messages yet, so their logs cannot answer for the master's.
    #[error("this broker is a slave, and slaves have no messages of their master yet; ask the master")]
    Slave,
    /// Too many requests are pending; retry later.
    #[error("the server is busy: {0}")]
    Busy(&'static str),
    /// The peer did not answer in time.
    #[error("no answer from {peer} within {timeout_ms} ms")]
    Timeout {
        /// Address of the peer.
        peer: String,
        /// Length of the wait in milliseconds.
        timeout_ms: u64,
    },
    /// The control plane registered a handler for a verb of the hot path.
    #[error("{0} belongs to the hot path: Rust answers it, and it takes no handler")]
    HotVerb(Verb),
    /// The control plane dropped a request without an answer.
    #[error("the server stopped before the request was answered")]
    Unanswered,
    /// A cold handler failed; the text gives the reason.
    #[error("{0}")]
    Handler(String),
    /// The network failed.
    #[error("{peer}: {source}")]
    Io {
        /// Address of the peer.
        peer: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A certificate or a key is invalid, or is configured wrongly.
    #[error("{}: {reason}", path.display())]
    Tls {
        /// The file or the option.
        path: std::path::PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The store failed or rejected the request.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl TransportError {
    /// The remoting response code of this error.
    #[must_use]
    pub fn response_code(&self) -> i32 {
        match self {
            Self::BadField { .. } | Self::BadTopicName { .. } | Self::NoSuchQueue { .. } => {
                response::INVALID_PARAMETER
            }
            Self::Protocol(ProtocolError::FrameTooLarge { .. }) => response::MESSAGE_ILLEGAL,
            Self::Protocol(_)
            | Self::OtherProtocol(_)
            | Self::Handler(_)
            | Self::HotVerb(_)
            | Self::NotSupported(_)
            | Self::Tls { .. }
            | Self::Io { .. } => response::SYSTEM_ERROR,
            Self::IllegalMessage(_) | Self::WrongMessageType { .. } => response::MESSAGE_ILLEGAL,
            Self::Unsupported(_) => response::REQUEST_CODE_NOT_SUPPORTED,
            Self::NoSuchTopic(_) => response::TOPIC_NOT_EXIST,
            Self::NoSuchGroup(_) => response::SUBSCRIPTION_GROUP_NOT_EXIST,
            Self::Forbidden(_) | Self::TopicForbidden { .. } | Self::TopicDrained(_) => {
                response::NO_PERMISSION
            }
            Self::Busy(_) | Self::Slave | Self::Timeout { .. } => response::SYSTEM_BUSY,
            Self::Unanswered | Self::NotAvailable(_) => response::SERVICE_NOT_AVAILABLE,
            Self::Store(error) => match error {
                StoreError::TooLarge { .. } | StoreError::Invalid { .. } | StoreError::TooFarAhead { .. } => {
                    response::MESSAGE_ILLEGAL
                }
                StoreError::NotDurable { .. } => response::FLUSH_DISK_TIMEOUT,
                StoreError::QueueClosed { .. } | StoreError::DedupFull { .. } => response::NO_PERMISSION,
                StoreError::Full { .. }
                | StoreError::QueueSetAside { .. }
                | StoreError::DispatchStalled { .. }
                | StoreError::Poisoned
                | StoreError::Closed => response::SERVICE_NOT_AVAILABLE,
                // A stale receipt, a missing record, and errors that later versions of the store add.
                _ => response::SYSTEM_ERROR,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_of_the_store_has_rocketmqs_code() {
        let code = |error: StoreError| TransportError::Store(error).response_code();
        assert_eq!(code(StoreError::NotDurable { cause: "EIO".into() }), response::FLUSH_DISK_TIMEOUT);
        let closed = StoreError::QueueClosed { topic: "orders".to_owned(), queue_id: 3 };
        assert_eq!(code(closed), response::NO_PERMISSION);
        assert_eq!(code(StoreError::Poisoned), response::SERVICE_NOT_AVAILABLE);
        let (topic, reason) = ("orders".to_owned(), "no right to write".into());
        let aside = StoreError::QueueSetAside { topic, queue_id: 3, reason };
        assert_eq!(code(aside), response::SERVICE_NOT_AVAILABLE);
        let large = StoreError::TooLarge { what: "message body", len: 9, limit: 8 };
        assert_eq!(code(large), response::MESSAGE_ILLEGAL);
        let missing = StoreError::NoRecord { physical_offset: 7, nearest: Some(5) };
        assert_eq!(code(missing), response::SYSTEM_ERROR);
    }
}
