//! One incoming remoting connection: reads frames, hands them on.
//!
//! `codec` knows frames, `verbs` answers hot requests, `outbox` writes answers. A peer that breaks the protocol, sends faster than it is served, stops in the middle of a
//! frame or does not read its answers harms only itself: requests under way, the memory of them and of their answers,
//! and the time of a frame and of a write are bounded.

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
    ColdHandler, ColdRequest, ColdResponse, Reply, TransportError, Verb,
    connections::{
        answer_memory,
        budget::{Allowance, Share},
        log_limiter::LogLimiter,
        progress_deadline::after,
        read_closed::{self, ReadClosed},
    },
    hot::{Counters, Hot},
    remoting::{
        Decoder, Limits, RemotingCommand,
        calls::Calls,
        codes::request,
        server::{
            incoming::{BEGIN, Incoming, foreign},
            outbox::{Outbox, Permit, Waiting},
        },
        verbs::{self, Begun, HotVerb},
    },
    tables::routes::Routes,
};

/// What a request costs beside its frame and its fields while it is under way.
const REQUEST: usize = 1 << 10;
/// What one costs more that waits in a task of its own.
const WAITING: usize = 2 << 10;

/// What one remoting connection may cost.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Largest frame and header.
    pub frames: Limits,
    /// Requests under way; beyond it the connection is not read. A consumer keeps one pull waiting for each
    /// of its queues.
    pub in_flight: u16,
    /// A connection on which nothing came and nothing was written for this long, and with no request under
    /// way, is closed.
    pub idle: Duration,
    /// A peer that has begun a frame sends 512 KiB of it, or all that is left, in this time, again and again.
    pub read: Duration,
    /// A peer takes 512 KiB of what is written to it, or all that is left, in this time, again and again.
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

/// A connection's identity and what it works with.
pub(crate) struct Connection {
    pub id: u64,
    pub peer: SocketAddr,
    pub limits: ConnectionLimits,
    /// The memory it may hold.
    pub allowance: Arc<Allowance>,
    pub cold: Arc<dyn ColdHandler>,
    /// None on a name server.
    pub hot: Option<Arc<Hot>>,
    pub routes: Arc<Routes>,
    /// No new request is taken: once one connection has seen it, none takes any.
    pub is_draining: Arc<AtomicBool>,
    /// One-way requests that may be under way over all connections.
    pub one_way: Arc<Semaphore>,
    /// What a one-way request takes of [`ConnectionLimits::in_flight`]: so no connection can have all of `one_way`.
    pub one_way_weight: u32,
    pub counters: Arc<Counters>,
    pub bad_frames: Arc<LogLimiter>,
    /// The port of the gRPC listener; 0 without one.
    pub grpc_port: u16,
    /// Requests of ours the peer has not answered yet.
    pub calls: Arc<Calls>,
}

/// What the reading half hands on with a request.
struct Flow {
    in_flight: Arc<Semaphore>,
    outbox: Outbox,
    read_closed: ReadClosed,
}

impl Connection {
    /// Serves until the peer leaves or breaks the protocol, `drain` ends and the last answer is written, or
    /// `close` ends.
    ///
    /// A peer that closes its half still gets the answers of its requests; those that wait for messages are
    /// answered at once. Returns once no request is under way. Dropping the future closes the connection.
    pub(crate) async fn serve<R, W>(
        &self,
        (read, write): (R, W),
        (outbox, outgoing): (Outbox, Waiting),
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
        let flow = Flow { in_flight: Arc::clone(in_flight), outbox, read_closed };
        let mut writer = pin!(writing);
        // The way into the outbox goes with the reader.
        let reader = async move {
            tokio::select! {
                // In this order: once one connection has seen that the server ends, none takes another request.
                biased;
                () = drain => Ok(()),
                ended = self.read(read, &flow) => ended,
            }
        };
        tokio::select! {
            ended = reader => {
                self.calls.end();
                read_closer.close();
                // The writer ends after the last answer, also of requests that came before a bad frame.
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
                self.bad_frames.log(|left_out| {
                    warn!(
                        connection = self.id,
                        peer = %self.peer,
                        %error,
                        left_out,
                        "connection closed for a bad frame"
                    );
                });
            }
        }
    }

    async fn read(&self, mut socket: impl AsyncRead + Unpin, flow: &Flow) -> Result<(), TransportError> {
        let decoder = Decoder::new(self.limits.frames);
        let mut incoming = Incoming::new(self.allowance.share(), self.limits.read);
        let mut timer = pin!(sleep_until(incoming.look_from(Instant::now(), self.limits.idle)));
        loop {
            let mut waiting = incoming.buffer.len();
            while let Some(command) = decoder
                .next(&mut incoming.buffer)
                .map_err(|error| foreign(&incoming.buffer, self.grpc_port, error))?
            {
                let frame = waiting - incoming.buffer.len();
                waiting = incoming.buffer.len();
                if !self.take(command, frame, incoming.taken(frame), flow).await? {
                    return Ok(());
                }
            }
            incoming.make_room().await.map_err(|source| self.io(source))?;
            // The timer is set anew when it ends, not with each read.
            let mut since = Instant::now();
            loop {
                let read = tokio::select! {
                    biased;
                    read = incoming.read(&mut socket) => read.map_err(|source| self.io(source))?,
                    () = &mut timer => {
                        since = if self.is_busy(flow) { Instant::now() } else { since.max(flow.outbox.last_write()) };
                        incoming.check_progress()?;
                        if after(since, self.limits.idle) <= Instant::now() {
                            debug!(connection = self.id, peer = %self.peer, "connection idle, closed");
                            return Ok(());
                        }
                        timer.as_mut().reset(incoming.look_from(since, self.limits.idle));
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

    /// Takes one frame; false where the connection takes no more.
    async fn take(
        &self,
        command: RemotingCommand,
        frame: usize,
        memory: Share,
        flow: &Flow,
    ) -> Result<bool, TransportError> {
        if command.is_response() {
            self.answered(command);
            return Ok(true);
        }
        if self.is_draining.load(Ordering::SeqCst) {
            return Ok(false);
        }
        if command.is_one_way() && verbs::find(command.code).is_some_and(|verb| verb.is_query) {
            self.counters.remoting_requests.add(1);
            // Messages would be leased without a receiver, and a wait for some would keep what
            // one-way requests share.
            debug!(connection = self.id, code = command.code, "one-way request that asks, dropped");
            return Ok(true);
        }
        let cost = frame + command.fields.memory() + REQUEST;
        memory.wait(cost.saturating_sub(memory.taken())).await;
        let permit = self.admit(command.is_one_way(), memory, flow).await?;
        self.dispatch(command, permit, flow);
        Ok(true)
    }

    fn is_busy(&self, flow: &Flow) -> bool {
        flow.in_flight.available_permits() < usize::from(self.limits.in_flight)
    }

    /// Takes the response to a request of ours; one without a waiting caller is dropped.
    fn answered(&self, response: RemotingCommand) {
        let opaque = response.opaque;
        if !self.calls.answer(response) {
            debug!(connection = self.id, opaque, "response without a request");
        }
    }

    /// Waits until one more request may be under way.
    async fn admit(&self, is_one_way: bool, memory: Share, flow: &Flow) -> Result<Permit, TransportError> {
        // The semaphores are never closed.
        let closed = |_| self.io(io::ErrorKind::ConnectionAborted.into());
        let weight = if is_one_way { self.one_way_weight } else { 1 };
        let of_connection = Arc::clone(&flow.in_flight).acquire_many_owned(weight).await.map_err(closed)?;
        // No answer slows down a client that sends one-way requests.
        let of_server = match is_one_way {
            true => Some(Arc::clone(&self.one_way).acquire_owned().await.map_err(closed)?),
            false => None,
        };
        Ok(Permit::new([Some(of_connection), of_server], memory))
    }

    fn dispatch(&self, command: RemotingCommand, permit: Permit, flow: &Flow) {
        self.counters.remoting_requests.add(1);
        if command.code == request::GET_ROUTEINFO_BY_TOPIC
            && let Some(response) = self.routes.answer(&command)
        {
            self.counters.routes.add(1);
            reply(&command, &response, permit, &flow.outbox);
            return;
        }
        match (verbs::find(command.code), &self.hot) {
            (Some(verb), Some(hot)) => self.call_hot(verb, Arc::clone(hot), command, permit, flow),
            (None, _) if self.cold.serves(&Verb::Code(command.code)) => {
                self.call_cold(command, permit, &flow.outbox);
            }
            _ => {
                debug!(connection = self.id, peer = %self.peer, code = command.code, "request code not supported");
                reply(&command, &command.respond_unsupported(), permit, &flow.outbox);
            }
        }
    }

    fn call_hot(
        &self,
        verb: &'static HotVerb,
        hot: Arc<Hot>,
        mut command: RemotingCommand,
        mut permit: Permit,
        flow: &Flow,
    ) {
        let is_one_way = command.is_one_way();
        let mut answering: Pin<Box<dyn Future<Output = RemotingCommand> + Send>> =
            match verb.begin(&hot, self.peer, &command) {
                Begun::Answered(response) if is_one_way => return drop((response, permit)),
                Begun::Answered(response) => return flow.outbox.answer(&response, permit),
                // The flush tells it, without a task that waits.
                Begun::Stored(response, end) => {
                    let outbox = flow.outbox.clone();
                    return hot.store.log().when_durable(end, move |outcome| {
                        outbox.answer(&verbs::flushed(response, outcome), permit);
                    });
                }
                Begun::No => {
                    own_body(&mut command);
                    let (read_closed, memory) = (flow.read_closed.clone(), Arc::new(self.allowance.share()));
                    let answering = verb.answer(hot, self.peer, command);
                    permit = permit.with_room(Arc::clone(&memory));
                    Box::pin(read_closed.scope(answer_memory::scope(memory, answering)))
                }
            };
        // Most requests are answered at once, in the order they came; only those that wait cost a task.
        if let Poll::Ready(response) = answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            if !is_one_way {
                flow.outbox.answer(&response, permit);
            }
            return;
        }
        permit.memory().count(WAITING);
        let outbox = flow.outbox.clone();
        tokio::spawn(async move {
            let response = tokio::select! {
                response = answering => response,
                () = outbox.closed() => return,
            };
            if !is_one_way {
                outbox.answer(&response, permit);
            }
        });
    }

    fn call_cold(&self, mut command: RemotingCommand, permit: Permit, outbox: &Outbox) {
        self.counters.cold_calls.add(1);
        own_body(&mut command);
        let request = ColdRequest {
            verb: Verb::Code(command.code),
            connection: self.id,
            peer: self.peer,
            language: command.language,
            version: command.version,
            is_one_way: command.is_one_way(),
            expires: None,
            fields: std::mem::take(&mut command.fields),
            body: std::mem::take(&mut command.body),
            memory: Some(permit.memory().of_connection()),
        };
        let (tell, answer) = Reply::new(&self.allowance);
        self.cold.call(request, tell);
        let outbox = outbox.clone();
        tokio::spawn(async move {
            let (answer, permit) = match answer.await {
                Ok(told) => (told.answer, permit.with_room(Arc::new(told.memory))),
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

/// Has a request that waits keep its own bytes alone, not the buffer they came in.
fn own_body(command: &mut RemotingCommand) {
    if command.body.len() < BEGIN {
        command.body = Bytes::copy_from_slice(&command.body);
    }
}

/// Answers a request, unless it is one-way.
fn reply(request: &RemotingCommand, response: &RemotingCommand, permit: Permit, outbox: &Outbox) {
    if !request.is_one_way() {
        outbox.answer(response, permit);
    }
}

fn fill(mut response: RemotingCommand, answer: ColdResponse) -> RemotingCommand {
    response.remark = answer.remark;
    response.fields = answer.fields;
    response.body = answer.body;
    response
}
