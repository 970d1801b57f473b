//! Sends of single messages. Those that wait at the same time share a request.
//!
//! A thread whose message finds few requests under way sends it at once. The others leave their messages, and wait. A
//! thread that gets its answer passes all messages left since then to one of their threads, which sends them. So a
//! single thread pays nothing for the others, and many threads pay for few requests.
//!
//! Routes come from the user of this crate, and so does everything that is to be done about a failure.

mod async_gather;
mod gather;
mod routes;

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use ferromq_protocol::remoting::{Fields, codes::framed};

pub use routes::{SendQueue, TopicRoute};

use crate::{
    CallError, Connections, Patience, Request, Response,
    codec::{self, Batch, Durability, Headers, Kind, MessageIds, OK, OffsetId, Place, Status},
};
use async_gather::{AsyncGather, StartRequest};
use gather::Gather;
use routes::Routes;

/// A message to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Tag, keys, properties and kind.
    pub headers: &'a Headers,
    /// Body.
    pub body: &'a [u8],
    /// Time of the send, in milliseconds since 1970.
    pub born_timestamp: i64,
}

/// A message that is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// Its id.
    pub ids: MessageIds,
    /// Its topic.
    pub topic: Arc<str>,
    /// The queue it is in.
    pub queue_id: i32,
    /// Its place in the queue.
    pub queue_offset: i64,
    /// The name of the broker that has it.
    pub broker_name: Arc<str>,
    /// Where its record is in the log, if the broker says it.
    pub offset_id: Option<OffsetId>,
    /// What the broker promises of it, if it says it.
    pub durability: Option<Durability>,
}

/// A message that was not stored, or perhaps not. A caller that sends it again uses the same id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its id.
    pub ids: MessageIds,
    /// The broker that was called.
    pub endpoint: Arc<str>,
    /// What happened.
    pub cause: Cause,
}

/// Why a send failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The broker refused the message alone: it is not stored.
    Refused(Status),
    /// The broker refused a request with messages of other threads: it is not stored, and alone it may be.
    Shared,
    /// There is no answer, or none that can be read.
    Call(CallError),
    /// The broker answered with a gRPC status instead of a response; it may have stored the message.
    Rpc(i32, String),
}

/// Sends messages to the brokers of known topics; thread-safe.
#[derive(Debug)]
pub struct Sends {
    connections: Arc<Connections>,
    /// The client's id, and what its message ids and messages say of it.
    client_id: String,
    process: [u8; 8],
    host: String,
    routes: Routes,
}

impl Sends {
    /// Makes a sender of the client `client_id`. `process` is the part of message ids that names it, `host` its host.
    #[must_use]
    pub fn new(connections: Arc<Connections>, client_id: String, process: [u8; 8], host: String) -> Self {
        Self { connections, client_id, process, host, routes: Routes::default() }
    }

    /// Lets messages of `topic` go to its queues, until the route is too old.
    pub fn put_route(&self, topic: &str, route: TopicRoute) {
        self.routes.put(topic, route);
    }

    /// Whether there is a route of `topic` that is not too old.
    #[must_use]
    pub fn has_route(&self, topic: &str) -> bool {
        self.routes.get(topic, Instant::now()).is_some()
    }

    /// Forgets the routes with a queue at the broker `endpoint`, all of them for `None`: the next sends there are the
    /// user's own.
    pub fn drop_routes(&self, endpoint: Option<&str>) {
        self.routes.drop(endpoint);
    }

    /// Sends no message to the broker `endpoint` until then: those of a message group go another way, others to other
    /// brokers, and another way if there are none.
    pub fn avoid(&self, endpoint: &str, until: Instant) {
        self.routes.avoid(endpoint, Instant::now(), until);
    }

    /// Ends [`Self::avoid`]: the broker answers.
    pub fn trust(&self, endpoint: &str) {
        self.routes.trust(endpoint);
    }

    /// Sends a message, and waits for its receipt in this thread.
    ///
    /// Returns `None`, and does nothing, if the topic has no route here or a message of its kind or size goes another
    /// way. `seconds` are those since 2021, for its id.
    pub fn send(
        &self,
        message: &Outgoing<'_>,
        seconds: u32,
        patience: Patience<'_>,
    ) -> Option<Result<Receipt, Failure>> {
        let route = self.route(message)?;
        let (queue, gathers) = route.choose(message.headers.kind(), message.body.len())?;
        let (ids, encoded) = self.encode(message, queue, seconds);
        let outcome = gathers.threads.send(encoded, patience, |messages, patience| {
            let count = messages.len();
            let answer = self.connections.call(&queue.endpoint, self.request(messages), patience);
            places(answer, count)
        });
        Some(receipt(outcome, ids, route.topic(), queue))
    }

    /// Sends a message without waiting; `done` is called with its receipt, on a thread of the connection or here.
    ///
    /// Returns its id and its broker. Returns `None`, and does nothing, as [`Self::send`] does, and if no connection to
    /// the broker is open: to open one takes time.
    pub fn start(
        self: &Arc<Self>,
        message: &Outgoing<'_>,
        seconds: u32,
        until: Instant,
        done: impl FnOnce(Result<Receipt, Failure>) + Send + 'static,
    ) -> Option<(MessageIds, Arc<str>)> {
        let route = self.route(message)?;
        let (queue, gathers) = route.choose(message.headers.kind(), message.body.len())?;
        if !self.connections.is_open(&queue.endpoint) {
            return None;
        }
        let (ids, encoded) = self.encode(message, queue, seconds);
        let (topic, chosen) = (Arc::clone(route.topic()), queue.clone());
        let done = Box::new(move |outcome| done(receipt(outcome, ids, &topic, &chosen)));
        let (sends, endpoint) = (Arc::clone(self), Arc::clone(&queue.endpoint));
        let start: Arc<StartRequest> = Arc::new(move |messages, until, end| {
            let (count, request) = (messages.len(), sends.request(messages));
            sends.connections.start(&endpoint, request, until, move |answer| end(places(answer, count)));
        });
        gathers.loops.add(async_gather::Message { encoded, until, done }, &start);
        Some((ids, Arc::clone(&queue.endpoint)))
    }

    fn route(&self, message: &Outgoing<'_>) -> Option<routes::Found> {
        fits(message).then(|| self.routes.get(message.topic, Instant::now())).flatten()
    }

    /// The id of a message, and a request with it alone. Such requests one after the other are a request with all.
    fn encode(&self, message: &Outgoing<'_>, queue: &SendQueue, seconds: u32) -> (MessageIds, Bytes) {
        let ids = MessageIds::reserve(self.process, seconds, 1);
        let batch = Batch {
            topic: message.topic,
            queue_id: queue.queue_id,
            born_timestamp: message.born_timestamp,
            born_host: &self.host,
            ids,
            transaction: None,
        };
        (ids, codec::encode_send(&batch, [(message.headers, message.body)]).into())
    }

    fn request(&self, messages: Vec<Bytes>) -> Request {
        let fields = Fields::from([("client", self.client_id.as_str())]);
        Request { code: framed::SEND_MESSAGE, fields, parts: messages, is_poll: false }
    }
}

fn receipt(
    outcome: Result<Place, Cause>,
    ids: MessageIds,
    topic: &Arc<str>,
    queue: &SendQueue,
) -> Result<Receipt, Failure> {
    match outcome {
        Ok(Place { queue_id, queue_offset, offset_id, durability }) => Ok(Receipt {
            ids,
            topic: Arc::clone(topic),
            queue_id: queue_id.unwrap_or(queue.queue_id),
            queue_offset,
            broker_name: Arc::clone(&queue.broker_name),
            offset_id,
            durability,
        }),
        Err(cause) => Err(Failure { ids, endpoint: Arc::clone(&queue.endpoint), cause }),
    }
}

/// The places of the `count` messages of a request.
fn places(answer: Result<Response, CallError>, count: usize) -> Result<Vec<Place>, Cause> {
    let Response { code, remark, body, .. } = answer.map_err(Cause::Call)?;
    if code != 0 {
        return Err(Cause::Rpc(code.saturating_sub(framed::STATUS), remark.unwrap_or_default()));
    }
    let (status, places) = codec::decode_places(&body)
        .map_err(|error| Cause::Rpc(UNKNOWN, format!("the answer cannot be decoded: {}", error.0)))?;
    if status.code != OK {
        let is_of_each = count == 1 || is_stored(&status);
        return Err(if is_of_each { Cause::Refused(status) } else { Cause::Shared });
    }
    if places.len() != count {
        let text = format!("{count} messages were sent and {} results came back", places.len());
        return Err(Cause::Rpc(UNKNOWN, text));
    }
    Ok(places)
}

/// gRPC's status for a failure without a code of its own.
const UNKNOWN: i32 = 2;

/// Whether a message may share a request with others: delayed ones travel alone, and large ones over HTTP/2.
fn fits(message: &Outgoing<'_>) -> bool {
    matches!(message.headers.kind(), Kind::Normal | Kind::Fifo(_))
        && message.body.len() + message.headers.len() <= MAX_REQUEST - OVERHEAD
}

/// The largest request of a framed call: a frame has 16 MiB at a server with RocketMQ's limit.
pub const MAX_REQUEST: usize = 8 << 20;
/// What a message takes beside its headers and its body, at most.
const OVERHEAD: usize = 4 << 10;

/// Whether messages are stored although the status is not OK: they are not as durable as the broker promises.
fn is_stored(status: &Status) -> bool {
    const MASTER_PERSISTENCE_TIMEOUT: i32 = 50_401;
    const SLAVE_PERSISTENCE_TIMEOUT: i32 = 50_402;
    matches!(status.code, MASTER_PERSISTENCE_TIMEOUT | SLAVE_PERSISTENCE_TIMEOUT)
}

fn has_passed(until: Instant) -> bool {
    Instant::now() >= until
}
