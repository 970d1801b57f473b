//! The bridge to the control plane: requests that the hot path does not answer.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{
    TransportError, Verb,
    connections::budget::{Allowance, Share},
    remoting::{Fields, Language},
    tables::MessageType,
};

/// A request for the control plane.
#[derive(Debug, Clone)]
pub struct ColdRequest {
    /// What is asked.
    pub verb: Verb,
    /// Number of the connection, unique in this process; `ColdHandler::on_close` names it again.
    pub connection: u64,
    /// The other side.
    pub peer: SocketAddr,
    /// The language a remoting client says it is written in; `OTHER` for gRPC.
    pub language: Language,
    /// The version a remoting client says it has, an ordinal of `MQVersion`; 0 for gRPC.
    pub version: i32,
    /// Whether the sender waits for no answer.
    pub is_one_way: bool,
    /// When the sender stops waiting, if it says so: a request not begun by then need not be.
    pub expires: Option<Instant>,
    /// Remoting: `extFields`. gRPC: ASCII metadata, names in lower case.
    pub fields: Fields,
    /// Remoting: body. gRPC: the protobuf message as it came.
    pub body: Bytes,
    /// What the connection may hold.
    pub(crate) memory: Option<Arc<Allowance>>,
}

impl ColdRequest {
    /// The memory its connection may hold.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory(self.memory.clone())
    }
}

/// The memory a connection may hold.
pub struct Memory(Option<Arc<Allowance>>);

impl Memory {
    /// Says whether there is room for an answer, whose size is known only once it is made. Ask when the request's turn
    /// has come; without room it is answered with [`TransportError::Busy`] and nothing is done.
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

/// Where the answer to a cold request goes. `None`: the handler does not answer, which only remoting knows. Dropping it
/// answers with an error.
#[derive(Debug)]
pub struct Reply {
    told: oneshot::Sender<Answered>,
    memory: Arc<Allowance>,
}

/// An answer, and what it holds.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) answer: Result<Option<ColdResponse>, TransportError>,
    pub(crate) memory: Share,
}

impl Reply {
    /// A reply whose answer counts in `memory`, and where that comes.
    pub(crate) fn new(memory: &Arc<Allowance>) -> (Self, oneshot::Receiver<Answered>) {
        let (told, answer) = oneshot::channel();
        (Self { told, memory: Arc::clone(memory) }, answer)
    }

    /// Answers, and counts the answer at once, so that the next request finds less room. A thread that asks
    /// [`Memory::has_room`] before each answer makes at most one too many. `false` if the connection is gone.
    #[allow(clippy::must_use_candidate)] // most handlers have nothing to do then
    pub fn send(self, answer: Result<Option<ColdResponse>, TransportError>) -> bool {
        let memory = self.memory.share();
        if let Ok(Some(response)) = &answer {
            memory.count(response.body.len() + response.fields.memory());
        }
        self.told.send(Answered { answer, memory }).is_ok()
    }
}

/// A name the hot path met and does not know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Missing {
    /// A topic a producer sends to or a consumer reads from.
    Topic(String),
    /// A topic a producer sends to, with what it says about a topic that has to be made.
    TopicToSend {
        /// The topic.
        name: String,
        /// The topic whose settings the new one takes.
        default_topic: String,
        /// Most queues it shall have.
        queues: u32,
        /// Its system flag: 1 where the producer is of a unit, 2 where consumers of it are.
        sys_flag: i32,
    },
    /// The retry or dead-letter topic of a consumer group; it is made whether or not topics may be created on first use.
    TopicOfGroup {
        /// The topic.
        name: String,
        /// How many queues it shall have.
        queues: u32,
        /// Its system flag.
        sys_flag: i32,
    },
    /// A consumer group.
    Group(String),
    /// The type of a topic whose first message this is.
    TypeOfTopic {
        /// The topic.
        name: String,
        /// The type of the message.
        kind: MessageType,
    },
}

/// How the control plane took a missing name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demoted {
    /// Look again: it may be there now.
    Done,
    /// It does not exist and may not be created.
    Refused,
    /// Too much is waiting to find out; nothing is known about the name.
    Busy,
    /// It could not be created, though it may be: its table cannot be written, say.
    Failed,
}

/// The control plane as the servers see it. No method may block: work goes to its own threads.
pub trait ColdHandler: Send + Sync + 'static {
    /// Returns whether `verb` has a handler; others are answered as unsupported.
    fn serves(&self, verb: &Verb) -> bool;
    /// Answers `request` through `reply`, now or later, from any thread.
    fn call(&self, request: ColdRequest, reply: Reply);
    /// Creates what is missing, where allowed, and pushes its entry; then says how it went. Dropping `done`
    /// says no.
    fn demote(&self, missing: Missing, peer: SocketAddr, done: oneshot::Sender<Demoted>);
    /// A message came on telemetry stream `stream` (`None`: the stream ended). Answers go through
    /// `Server::send_telemetry`. `false`: too many messages wait, the caller ends the stream; the end of
    /// a stream is always taken.
    fn telemetry(
        &self,
        stream: u64,
        connection: u64,
        peer: SocketAddr,
        fields: &Fields,
        body: Option<Bytes>,
    ) -> bool;
    /// The connection is gone. None of its cold calls is still under way, unless a stopping server cut it off.
    fn on_close(&self, connection: u64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::budget::Budget;

    #[tokio::test]
    async fn an_answer_counts_before_anybody_has_heard_it_and_until_it_is_dropped() {
        let budget = Budget::new(1 << 20, 1 << 20);
        let (allowance, body) = (budget.of_other(), Bytes::from(vec![0; 1 << 20]));
        let memory = Memory(Some(Arc::clone(&allowance)));
        let answer = |body: &Bytes| Ok(Some(ColdResponse { body: body.clone(), ..ColdResponse::default() }));
        let (reply, told) = Reply::new(&allowance);
        assert!(memory.has_room());
        assert!(reply.send(answer(&body)));
        assert!(!memory.has_room());
        drop(told.await);
        assert!(memory.has_room());
        let (reply, told) = Reply::new(&allowance);
        drop(told);
        assert!(!reply.send(answer(&body)), "its receiver is gone");
        assert!(memory.has_room());
        let (reply, told) = Reply::new(&allowance);
        drop(reply);
        assert!(told.await.is_err());
    }
}
