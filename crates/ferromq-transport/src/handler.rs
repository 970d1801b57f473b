//! The interface of the control plane, which answers the requests that the hot path does not.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{
    TransportError, Verb,
    access::UserName,
    connections::budget::{Allowance, Share},
    remoting::{Fields, Language},
    tables::MessageType,
    tls::CertificateSubject,
};

/// Who sent a request.
#[derive(Debug, Clone)]
pub struct Sender {
    /// Number of the connection, unique in this process. `ColdHandler::on_close` gets the same number.
    pub connection: u64,
    /// Address of the client.
    pub peer: SocketAddr,
    /// The user that access control verified.
    pub user: UserName,
    /// The subject of the certificate that the client has shown.
    pub certificate: CertificateSubject,
}

/// A request for the control plane.
#[derive(Debug, Clone)]
pub struct ColdRequest {
    /// The requested operation.
    pub verb: Verb,
    /// Who sent it.
    pub sender: Sender,
    /// Language that a remoting client announces; `OTHER` for gRPC.
    pub language: Language,
    /// Version that a remoting client announces, an ordinal of `MQVersion`; 0 for gRPC.
    pub version: i32,
    /// Whether the client expects no answer.
    pub is_one_way: bool,
    /// When the client stops waiting, if it announces that. A request that has not started by then can be dropped.
    pub expires: Option<Instant>,
    /// Remoting: `extFields`. gRPC: ASCII metadata, names in lower case.
    pub fields: Fields,
    /// Remoting: body. gRPC: the encoded protobuf message.
    pub body: Bytes,
    /// Memory allowance of the connection.
    pub(crate) memory: Option<Arc<Allowance>>,
}

impl ColdRequest {
    /// Returns the memory allowance of the request's connection.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory(self.memory.clone())
    }
}

/// The memory allowance of a connection.
pub struct Memory(Option<Arc<Allowance>>);

impl Memory {
    /// Returns whether there is room for an answer. Call it before the request is handled, because the size of an
    /// answer is known only afterwards. Without room, answer [`TransportError::Busy`] and change nothing.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.0.as_ref().is_none_or(|memory| memory.has_room())
    }
}

/// The control plane's answer.
#[derive(Debug, Clone, Default)]
pub struct ColdResponse {
    /// Remoting response code; unused for gRPC, where the status is part of the body.
    pub code: i32,
    /// Remoting remark.
    pub remark: Option<String>,
    /// Remoting `extFields`; unused for gRPC.
    pub fields: Fields,
    /// Remoting body, or the encoded protobuf response.
    pub body: Bytes,
}

/// Sends the answer to a cold request. `None` sends no answer, which only remoting allows. Dropping the reply answers
/// with an error.
#[derive(Debug)]
pub struct Reply {
    answer: oneshot::Sender<Answered>,
    memory: Arc<Allowance>,
}

/// An answer and the memory counted for it.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) answer: Result<Option<ColdResponse>, TransportError>,
    pub(crate) memory: Share,
}

impl Reply {
    /// Creates a reply whose answer counts in `memory`, and the receiver of that answer.
    pub(crate) fn new(memory: &Arc<Allowance>) -> (Self, oneshot::Receiver<Answered>) {
        let (answer, answered) = oneshot::channel();
        (Self { answer, memory: Arc::clone(memory) }, answered)
    }

    /// Sends the answer and counts its memory at once, so that the next request finds less room. A thread that checks
    /// [`Memory::has_room`] before each request exceeds the allowance by at most one answer. Returns `false` if the
    /// connection is gone.
    #[allow(clippy::must_use_candidate)] // most handlers ignore a lost connection
    pub fn send(self, answer: Result<Option<ColdResponse>, TransportError>) -> bool {
        let memory = self.memory.share();
        if let Ok(Some(response)) = &answer {
            memory.count(response.body.len() + response.fields.memory());
        }
        self.answer.send(Answered { answer, memory }).is_ok()
    }
}

/// A name that the hot path does not know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Missing {
    /// A topic that a producer sends to or a consumer reads from.
    Topic(String),
    /// A topic that a producer sends to, with the settings for its creation.
    TopicToSend {
        /// The topic.
        name: String,
        /// The template topic whose settings the new one copies.
        default_topic: String,
        /// Maximum number of queues.
        queues: u32,
        /// System flag: 1 if its producer belongs to a unit, 2 if its consumers do.
        sys_flag: i32,
    },
    /// The retry or dead-letter topic of a consumer group. It is created even if topics are not created on first use.
    TopicOfGroup {
        /// The topic.
        name: String,
        /// Number of queues.
        queues: u32,
        /// System flag.
        sys_flag: i32,
    },
    /// A consumer group.
    Group(String),
    /// The type of a topic that receives its first message.
    TypeOfTopic {
        /// The topic.
        name: String,
        /// The type of the message.
        kind: MessageType,
    },
}

/// The control plane's outcome for a missing name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demoted {
    /// The tables may have the name now: look it up again.
    Done,
    /// It does not exist and is not created on first use.
    Refused,
    /// Too many names are pending; nothing is known about this one.
    Busy,
    /// Its creation is allowed but failed, for example because its table cannot be written.
    Failed,
}

/// The control plane as the servers see it. No method must block: the control plane works on its own threads.
pub trait ColdHandler: Send + Sync + 'static {
    /// Returns whether `verb` has a handler. The server answers verbs without one as unsupported.
    fn serves(&self, verb: &Verb) -> bool;
    /// Answers `request` through `reply`, now or later, from any thread.
    fn call(&self, request: ColdRequest, reply: Reply);
    /// Creates the missing name if that is allowed, pushes its entry down, then sends the outcome to `done`. Dropping
    /// `done` counts as a refusal.
    fn demote(&self, missing: Missing, peer: SocketAddr, done: oneshot::Sender<Demoted>);
    /// Handles a message of telemetry stream `stream`, or its end (`None`). Answers go through `Server::send_telemetry`.
    /// Returns `false` if too many messages are pending: the caller then ends the stream. The end of a stream is always
    /// accepted.
    fn telemetry(&self, stream: u64, sender: Sender, fields: &Fields, body: Option<Bytes>) -> bool;
    /// Handles the end of a connection. It has no cold calls under way, unless a stopping server closed it.
    fn on_close(&self, connection: u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::budget::Budget;

    #[tokio::test]
    async fn an_answer_counts_from_its_send_until_it_is_dropped() {
        let budget = Budget::new(1 << 20, 1 << 20);
        let (allowance, body) = (budget.of_other(), Bytes::from(vec![0; 1 << 20]));
        let memory = Memory(Some(Arc::clone(&allowance)));
        let answer = |body: &Bytes| Ok(Some(ColdResponse { body: body.clone(), ..ColdResponse::default() }));
        let (reply, answered) = Reply::new(&allowance);
        assert!(memory.has_room());
        assert!(reply.send(answer(&body)));
        assert!(!memory.has_room());
        drop(answered.await);
        assert!(memory.has_room());
        let (reply, answered) = Reply::new(&allowance);
        drop(answered);
        assert!(!reply.send(answer(&body)), "its receiver is gone");
        assert!(memory.has_room());
        let (reply, answered) = Reply::new(&allowance);
        drop(reply);
        assert!(answered.await.is_err());
    }
}
