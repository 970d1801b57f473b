//! One incoming remoting connection: reads requests and dispatches them.
//!
//! `codec` decodes frames, `verbs` answers hot requests, `outbox` writes responses. A peer that violates the protocol,
//! sends faster than it is served, stops inside a frame or does not read its responses harms only itself. For each
//! connection the requests in flight, their memory and that of their responses, and the time of a frame and of a write
//! are bounded.

use std::{
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use crate::{
    ColdHandler, ColdRequest, ColdResponse, Reply, Sender, TransportError, Verb,
    access::{Access, UserName},
    connections::{
        answer_memory,
        budget::{Allowance, Share},
        log_limiter::LogLimiter,
        progress_deadline::after,
        read_closed::{self, ReadClosed},
        unwritten::Unwritten,
    },
    hot::{
        Counters, Hot,
        latencies::{Protocol, Timing},
        trace_context::TraceContext,
    },
    limits::{ConnectionUsers, Meter, RateLimits},
    remoting::{
        Decoder, Limits, RemotingCommand,
        calls::Calls,
        codes::{request, response},
        server::{
            incoming::{COPY_LIMIT, Incoming, name_other_protocol},
            outbox::{Outbox, OutboxWriter, Permit},
        },
        verbs::{self, BeginOutcome, HotVerb},
    },
    tables::routes::Routes,
    tls::CertificateSubject,
};

/// Memory of a request in flight beside its frame and its fields.
const REQUEST_OVERHEAD: usize = 1 << 10;
/// Additional memory of a request that waits in its own task.
const TASK_OVERHEAD: usize = 2 << 10;

/// Limits of one remoting connection.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Largest frame and header.
    pub frames: Limits,
    /// Requests in flight; at the limit the connection is not read. A consumer keeps one pull waiting per queue.
    pub in_flight: u16,
    /// How long a connection may neither receive nor send anything before it is closed; requests in flight keep it
    /// open.
    pub idle: Duration,
    /// Time in which a peer must send each further 512 KiB of a frame it has begun, or its rest.
    pub read: Duration,
    /// Time in which a peer must take each further 512 KiB of its responses, or their rest.
    pub write: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            frames: Limits::default(),
            in_flight: 4096,
            idle: Duration::from_secs(120),
            read: Duration::from_secs(30),
            write: Duration::from_secs(30),
        }
    }
}

/// Returns the user of a request on a connection, or the response to one that access control or the user's limit of
/// connections refuses.
pub(crate) type CheckUser =
    fn(&Access, &ConnectionUsers, &RemotingCommand, SocketAddr) -> Result<UserName, Box<RemotingCommand>>;

/// Charges a request of a user to its limits, or returns its refusal.
pub(crate) type CheckLimits =
    fn(&RateLimits, Option<&str>, &RemotingCommand) -> Result<Option<Meter>, Box<RemotingCommand>>;

/// A connection: its identity, its limits, and the parts of the server that it uses.
pub(crate) struct Connection {
    pub id: u64,
    pub peer: SocketAddr,
    pub certificate: CertificateSubject,
    /// The users that it counts for.
    pub users: Arc<ConnectionUsers>,
    pub limits: ConnectionLimits,
    /// Its part of the memory budget.
    pub allowance: Arc<Allowance>,
    /// `None` if the connection carries hot requests alone.
    pub cold: Option<Arc<dyn ColdHandler>>,
    /// `None` on a name server.
    pub hot: Option<Arc<Hot>>,
    /// Finds the hot verb of a request code.
    pub find_verb: fn(i32) -> Option<&'static HotVerb>,
    pub access: Arc<Access>,
    pub check: CheckUser,
    pub limit: CheckLimits,
    pub routes: Arc<Routes>,
    /// The server accepts no new requests. Once one connection has seen this, no other accepts any.
    pub is_draining: Arc<AtomicBool>,
    /// Permits for one-way requests in flight, over all connections.
    pub one_way: Arc<Semaphore>,
    /// Permits of [`ConnectionLimits::in_flight`] that a one-way request takes, so that no connection can use up
    /// `one_way`.
    pub one_way_weight: u32,
    pub counters: Arc<Counters>,
    pub bad_frames: Arc<LogLimiter>,
    /// Port of the gRPC listener; 0 without one.
    pub grpc_port: u16,
    /// Server requests that the peer has not answered yet.
    pub calls: Arc<Calls>,
}

/// State of the connection that each request needs.
struct RequestContext {
    in_flight: Arc<Semaphore>,
    outbox: Outbox,
    read_closed: ReadClosed,
}

impl Connection {
    /// Serves until the peer disconnects or violates the protocol, until `drain` resolves and the last response is
    /// written, or until `close` resolves.
    ///
    /// A peer that closes its sending half still gets its responses; requests that wait for messages are answered at
    /// once. Returns once no request is in flight. Dropping the future closes the connection.
    pub(crate) async fn serve<R, W>(
        &self,
        (read, write): (R, W),
        (outbox, outgoing): (Outbox, OutboxWriter),
        drain: impl Future<Output = ()>,
        close: impl Future<Output = ()>,
    ) where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let in_flight = Arc::new(Semaphore::new(usize::from(self.limits.in_flight)));
        let ended = tokio::select! {
            ended = self.exchange(read, outgoing.write(write, self.limits.write), outbox, drain, &in_flight) => ended,
            () = close => Ok(()),
        };
        self.calls.end();
        if let Err(error) = ended {
            self.log(&error);
        }
        // The semaphore is never closed.
        let _ = in_flight.acquire_many(u32::from(self.limits.in_flight)).await;
    }

    async fn exchange(
        &self,
        read: impl AsyncRead + Unpin,
        writing: impl Future<Output = io::Result<()>>,
        outbox: Outbox,
        drain: impl Future<Output = ()>,
        in_flight: &Arc<Semaphore>,
    ) -> Result<(), TransportError> {
        let (read_closer, read_closed) = read_closed::channel();
        let context = RequestContext { in_flight: Arc::clone(in_flight), outbox, read_closed };
        let mut writer = pin!(writing);
        // The reader owns the outbox: the writer ends after the reader and all requests in flight.
        let reader = async move {
            tokio::select! {
                // `drain` first: once one connection has seen that the server drains, none accepts another request.
                biased;
                () = drain => Ok(()),
                ended = self.read(read, &context) => ended,
            }
        };
        tokio::select! {
            ended = reader => {
                self.calls.end();
                read_closer.close();
                // The writer ends after the last response, including those to requests before a bad frame.
                let written = writer.await.map_err(|source| self.io(source));
                ended.and(written)
            }
            ended = &mut writer => ended.map_err(|source| self.io(source)),
        }
    }

    fn log(&self, error: &TransportError) {
        match error {
            TransportError::Io { .. } => {
                debug!(connection = self.id, peer = %self.peer, %error, "connection failed")
            }
            _ => {
                self.counters.malformed.add(1);
                self.bad_frames.log(|suppressed| {
                    warn!(
                        connection = self.id,
                        peer = %self.peer,
                        %error,
                        suppressed,
                        "connection closed for a bad frame"
                    );
                });
            }
        }
    }

    async fn read(
        &self,
        mut socket: impl AsyncRead + Unpin,
        context: &RequestContext,
    ) -> Result<(), TransportError> {
        let decoder = Decoder::new(self.limits.frames);
        let mut incoming = Incoming::new(self.allowance.share(), self.limits.read);
        let mut timer = pin!(sleep_until(incoming.next_check(Instant::now(), self.limits.idle)));
        loop {
            let mut waiting = incoming.buffer.len();
            while let Some(command) = decoder
                .next(&mut incoming.buffer)
                .map_err(|error| name_other_protocol(&incoming.buffer, self.grpc_port, error))?
            {
                let frame = waiting - incoming.buffer.len();
                waiting = incoming.buffer.len();
                if !self.handle(command, frame, incoming.split_memory(frame), context).await? {
                    return Ok(());
                }
            }
            incoming.make_room().await.map_err(|source| self.io(source))?;
            // The timer is reset when it fires, not on each read.
            let mut since = Instant::now();
            loop {
                let read = tokio::select! {
                    biased;
                    read = incoming.read(&mut socket) => read.map_err(|source| self.io(source))?,
                    () = &mut timer => {
                        since = match self.is_busy(context) {
                            true => Instant::now(),
                            false => since.max(context.outbox.last_write()),
                        };
                        incoming.check_progress()?;
                        if after(since, self.limits.idle) <= Instant::now() {
                            debug!(connection = self.id, peer = %self.peer, "idle connection closed");
                            return Ok(());
                        }
                        timer.as_mut().reset(incoming.next_check(since, self.limits.idle));
                        continue;
                    }
                };
                if read == 0 {
                    return Ok(());
                }
                break;
            }
        }
    }

    /// Handles one command. Returns false if the connection accepts no more.
    async fn handle(
        &self,
        command: RemotingCommand,
        frame: usize,
        memory: Share,
        context: &RequestContext,
    ) -> Result<bool, TransportError> {
        if command.is_response() {
            self.handle_response(command);
            return Ok(true);
        }
        if self.is_draining.load(Ordering::SeqCst) {
            return Ok(false);
        }
        if self.cold.is_none() && (self.find_verb)(command.code).is_none() {
            return Err(TransportError::OtherProtocol(format!(
                "this is a remoting client (request code {}), but the port is for gRPC; is it meant for the remoting port?",
                command.code
            )));
        }
        if command.is_one_way() && (self.find_verb)(command.code).is_some_and(|verb| verb.is_query) {
            self.counters.remoting_requests.add(1);
            // It would lease messages without a receiver, or hold a permit of the one-way requests while it waits.
            debug!(connection = self.id, code = command.code, "one-way query dropped");
            return Ok(true);
        }
        let mut timing = Timing::begin(Protocol::Remoting, command.code);
        if self.counters.spans.is_on() {
            timing.context = traced(&command);
        }
        let cost = frame + command.fields.memory() + REQUEST_OVERHEAD;
        memory.wait(cost.saturating_sub(memory.taken())).await;
        let mut permit = self.admit(command.is_one_way(), memory, context).await?;
        permit.timing = Some(timing);
        self.dispatch(command, permit, context);
        Ok(true)
    }

    fn is_busy(&self, context: &RequestContext) -> bool {
        context.in_flight.available_permits() < usize::from(self.limits.in_flight)
    }

    /// Hands the response to a server request to its caller; drops it if none waits.
    fn handle_response(&self, response: RemotingCommand) {
        let opaque = response.opaque;
        if !self.calls.answer(response) {
            debug!(connection = self.id, opaque, "response to no pending request dropped");
        }
    }

    /// Waits for the permits of one more request in flight.
    async fn admit(
        &self,
        is_one_way: bool,
        memory: Share,
        context: &RequestContext,
    ) -> Result<Permit, TransportError> {
        // The semaphores are never closed.
        let closed = |_| self.io(io::ErrorKind::ConnectionAborted.into());
        let weight = if is_one_way { self.one_way_weight } else { 1 };
        let connection_permit =
            Arc::clone(&context.in_flight).acquire_many_owned(weight).await.map_err(closed)?;
        // A client does not wait for responses to one-way requests: only this throttles it.
        let server_permit = match is_one_way {
            true => Some(Arc::clone(&self.one_way).acquire_owned().await.map_err(closed)?),
            false => None,
        };
        Ok(Permit::new([Some(connection_permit), server_permit], memory))
    }

    fn dispatch(&self, command: RemotingCommand, mut permit: Permit, context: &RequestContext) {
        self.counters.remoting_requests.add(1);
        let cold = self.cold.as_deref().filter(|cold| cold.serves(&Verb::Code(command.code)));
        let is_known = cold.is_some() || (self.find_verb)(command.code).is_some();
        if !is_known
            && command.code != request::GET_ROUTEINFO_BY_TOPIC
            && let Some(timing) = &mut permit.timing
        {
            timing.is_unknown();
        }
        let user = match (self.check)(&self.access, &self.users, &command, self.peer) {
            Ok(user) => user,
            Err(response) => return reply(&command, &response, permit, &context.outbox),
        };
        if command.code == request::GET_ROUTEINFO_BY_TOPIC
            && let Some(response) = self.routes.answer(&command)
        {
            self.counters.routes.add(1);
            reply(&command, &response, permit, &context.outbox);
            return;
        }
        match ((self.find_verb)(command.code), &self.hot, cold) {
            (Some(verb), Some(hot), _) => match (self.limit)(&hot.limits, user.as_deref(), &command) {
                Ok(meter) => self.call_hot((verb, meter), Arc::clone(hot), command, permit, context),
                Err(refused) => reply(&command, &refused, permit, &context.outbox),
            },
            (None, _, Some(cold)) => self.call_cold(cold, (command, user), permit, &context.outbox),
            _ => {
                debug!(connection = self.id, peer = %self.peer, code = command.code, "request code not supported");
                reply(&command, &command.respond_unsupported(), permit, &context.outbox);
            }
        }
    }

    fn call_hot(
        &self,
        (verb, meter): (&'static HotVerb, Option<Meter>),
        hot: Arc<Hot>,
        mut command: RemotingCommand,
        mut permit: Permit,
        context: &RequestContext,
    ) {
        let is_one_way = command.is_one_way();
        let mut answering: Pin<Box<dyn Future<Output = RemotingCommand> + Send>> = match verb
            .begin(&hot, self.peer, &command)
        {
            BeginOutcome::Answered(response) if is_one_way => {
                return context.outbox.drop_one_way(&response, permit);
            }
            BeginOutcome::Answered(response) => return context.outbox.answer(&response, permit),
            // The flush sends the response; no task waits for it.
            BeginOutcome::Stored(response, end) => {
                let outbox = context.outbox.clone();
                return hot.store.log().when_durable(end, move |outcome| {
                    outbox.answer(&verbs::flushed(response, outcome), permit);
                });
            }
            BeginOutcome::Pending => {
                detach_small_body(&mut command);
                let (read_closed, memory) = (context.read_closed.clone(), Arc::new(self.allowance.share()));
                let answering = verb.answer(hot, self.peer, command);
                permit = permit.with_reserved(Arc::clone(&memory));
                let answering = read_closed.scope(answer_memory::scope(memory, answering));
                if verb.is_query {
                    let unwritten = Arc::new(Unwritten::default());
                    permit = permit.with_unwritten(Some(Arc::clone(&unwritten)));
                    match meter {
                        Some(meter) => Box::pin(meter.scope(unwritten.scope(answering))),
                        None => Box::pin(unwritten.scope(answering)),
                    }
                } else {
                    Box::pin(answering)
                }
            }
        };
        // Most requests are answered at once, in the order received; only those that wait cost a task.
        if let Poll::Ready(response) = answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            reply_to(is_one_way, &response, permit, &context.outbox);
            return;
        }
        if verb.is_query {
            permit.waited();
        }
        permit.memory().count(TASK_OVERHEAD);
        let outbox = context.outbox.clone();
        tokio::spawn(async move {
            let response = tokio::select! {
                response = answering => response,
                () = outbox.closed() => return,
            };
            reply_to(is_one_way, &response, permit, &outbox);
        });
    }

    fn call_cold(
        &self,
        cold: &dyn ColdHandler,
        (mut command, user): (RemotingCommand, UserName),
        permit: Permit,
        outbox: &Outbox,
    ) {
        self.counters.cold_calls.add(1);
        detach_small_body(&mut command);
        let request = ColdRequest {
            verb: Verb::Code(command.code),
            sender: Sender {
                connection: self.id,
                peer: self.peer,
                user,
                certificate: self.certificate.clone(),
            },
            language: command.language,
            version: command.version,
            is_one_way: command.is_one_way(),
            expires: None,
            fields: std::mem::take(&mut command.fields),
            body: std::mem::take(&mut command.body),
            memory: Some(permit.memory().of_connection()),
        };
        let (sender, receiver) = Reply::new(&self.allowance);
        cold.call(request, sender);
        let outbox = outbox.clone();
        tokio::spawn(async move {
            let (answer, permit) = match receiver.await {
                Ok(answered) => (answered.answer, permit.with_reserved(Arc::new(answered.memory))),
                Err(_) => (Err(TransportError::Unanswered), permit),
            };
            let response = match answer {
                Ok(None) => return,
                Ok(Some(answer)) => fill(command.respond(answer.code, None), answer),
                Err(error) => command.respond(error.response_code(), Some(error.to_string())),
            };
            reply(&command, &response, permit, &outbox);
        });
    }

    fn io(&self, source: io::Error) -> TransportError {
        TransportError::Io { peer: self.peer.to_string(), source }
    }
}

/// Checks a request of the remoting protocol, as a [`CheckUser`].
pub(crate) fn check(
    access: &Access,
    users: &ConnectionUsers,
    command: &RemotingCommand,
    peer: SocketAddr,
) -> Result<UserName, Box<RemotingCommand>> {
    let refuse = |code, why: String| Box::new(command.respond(code, Some(why)));
    let user = access.check_command(command, peer).map_err(|refused| {
        refused.log();
        refuse(response::NO_PERMISSION, refused.to_string())
    })?;
    users
        .admit(user.as_ref(), || verbs::limited::ends_work(command.code))
        .map_err(|reached| refuse(response::SYSTEM_BUSY, reached.to_string()))?;
    Ok(user)
}

/// The client's span among the properties of a message that is sent.
fn traced(command: &RemotingCommand) -> Option<TraceContext> {
    let properties = match command.code {
        request::SEND_MESSAGE => command.field("properties"),
        request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => command.field("i"),
        _ => None,
    };
    properties.and_then(|properties| TraceContext::of_properties(properties.as_bytes()))
}

/// Copies a small body, so that a waiting request does not keep the whole read buffer alive.
fn detach_small_body(command: &mut RemotingCommand) {
    if command.body.len() < COPY_LIMIT {
        command.body = Bytes::copy_from_slice(&command.body);
    }
}

/// Answers a request, unless it is one-way.
fn reply(request: &RemotingCommand, response: &RemotingCommand, permit: Permit, outbox: &Outbox) {
    reply_to(request.is_one_way(), response, permit, outbox);
}

fn reply_to(is_one_way: bool, response: &RemotingCommand, permit: Permit, outbox: &Outbox) {
    if is_one_way {
        outbox.drop_one_way(response, permit);
    } else {
        outbox.answer(response, permit);
    }
}

fn fill(mut response: RemotingCommand, answer: ColdResponse) -> RemotingCommand {
    response.remark = answer.remark;
    response.fields = answer.fields;
    response.body = answer.body;
    response
}
