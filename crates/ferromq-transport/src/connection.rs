//! One incoming remoting connection: reads frames, hands them on.
//!
//! What a frame looks like is the codec's business, where a request goes the dispatcher's, how answers are
//! written the outbox's. A peer that breaks the protocol, sends faster than it is served or does not read its
//! answers harms only itself: requests under way and their bytes, queued bytes and the time of a write are bounded.

use std::{
    future::poll_fn,
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

use bytes::{BufMut, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    sync::{Semaphore, oneshot},
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use crate::{
    ColdHandler, ColdRequest, ColdResponse, Route, TransportError,
    calls::Calls,
    dispatcher::{self, Path},
    hot::{Counters, Hot},
    leaving::{Leaving, leaving},
    outbox::{Outbox, Permit, Waiting},
    remoting::{Decoder, Limits, RemotingCommand, codec, codes::request},
    routes::Routes,
    serve::{self, Begun},
};

const READ_CHUNK: usize = 16 << 10;
/// A frame larger than this has its memory for itself, so that a small one that stays keeps no large one.
const OWN_MEMORY: usize = 64 << 10;
/// Stands for "never" where a limit is too long to be added to a time.
const FAR: Duration = Duration::from_secs(86_400 * 365);

/// What one remoting connection may cost.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Largest frame and header.
    pub frames: Limits,
    /// Requests under way; beyond it the connection is not read. A consumer keeps one pull waiting for each
    /// of its queues.
    pub in_flight: u16,
    /// Bytes of the frames of requests under way; beyond it the connection is not read. A single larger frame
    /// is served alone. Frames no larger than an even share of it, by `in_flight`, are not counted: their
    /// number bounds them as well.
    pub request_bytes: u32,
    /// Bytes of answers waiting to be written; beyond it the connection is not read.
    pub queued_bytes: usize,
    /// A connection on which nothing came and nothing was written for this long, and with no request under
    /// way, is closed.
    pub idle: Duration,
    /// A peer that takes no byte of an answer for this long is gone.
    pub write: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            frames: Limits::default(),
            in_flight: 4096,
            request_bytes: 64 << 20,
            queued_bytes: 32 << 20,
            idle: Duration::from_secs(120),
            write: Duration::from_secs(30),
        }
    }
}

/// A connection's identity and what it works with.
pub(crate) struct Connection {
    pub id: u64,
    pub peer: SocketAddr,
    pub limits: ConnectionLimits,
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
    /// Requests of ours the peer has not answered yet.
    pub calls: Arc<Calls>,
}

/// What the reading half hands to whoever answers.
struct Flow {
    in_flight: Arc<Semaphore>,
    request_bytes: Arc<Semaphore>,
    outbox: Outbox,
    leaving: Leaving,
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
        // A closed semaphore is impossible: nobody closes it.
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
        let (leaves, leaving) = leaving();
        let request_bytes = Arc::new(Semaphore::new(self.limits.request_bytes as usize));
        let flow = Flow { in_flight: Arc::clone(in_flight), request_bytes, outbox, leaving };
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
                leaves.tell();
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
                warn!(connection = self.id, peer = %self.peer, %error, "connection closed for a bad frame");
            }
        }
    }

    async fn read(&self, mut socket: impl AsyncRead + Unpin, flow: &Flow) -> Result<(), TransportError> {
        let decoder = Decoder::new(self.limits.frames);
        let mut buffer = BytesMut::new();
        let mut idle = pin!(sleep_until(self.idle_from(Instant::now())));
        loop {
            let mut waiting = buffer.len();
            while let Some(command) = decoder.next(&mut buffer)? {
                let frame = waiting - buffer.len();
                waiting = buffer.len();
                if command.is_response() {
                    self.answered(command);
                    continue;
                }
                if self.is_draining.load(Ordering::SeqCst) {
                    return Ok(());
                }
                if command.is_one_way() && serve::only_answers(command.code) {
                    self.counters.remoting_requests.add(1);
                    // Messages would be leased to nobody, and waiting for some would keep what one-way
                    // requests share.
                    debug!(connection = self.id, code = command.code, "one-way request that asks, dropped");
                    continue;
                }
                let permit = self.admit(command.is_one_way(), frame, flow).await?;
                self.dispatch(command, permit, flow);
            }
            let most = match codec::announced(&buffer) {
                Some(frame) if frame > OWN_MEMORY => frame - buffer.len(),
                _ => usize::MAX,
            };
            // The timer is set anew when it ends, not with each read.
            let mut since = Instant::now();
            loop {
                let read = tokio::select! {
                    biased;
                    read = read_some(&mut socket, &mut buffer, most) => read.map_err(|source| self.io(source))?,
                    () = &mut idle => {
                        since = if self.is_busy(flow) { Instant::now() } else { since.max(flow.outbox.last_write()) };
                        if self.idle_from(since) <= Instant::now() {
                            debug!(connection = self.id, peer = %self.peer, "connection idle, closed");
                            return Ok(());
                        }
                        idle.as_mut().reset(self.idle_from(since));
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

    fn idle_from(&self, since: Instant) -> Instant {
        since.checked_add(self.limits.idle).unwrap_or_else(|| since + FAR)
    }

    fn is_busy(&self, flow: &Flow) -> bool {
        flow.in_flight.available_permits() < usize::from(self.limits.in_flight)
    }

    /// Takes the response to a request of ours; one that nobody waits for is passed over.
    fn answered(&self, response: RemotingCommand) {
        let opaque = response.opaque;
        if !self.calls.answer(response) {
            debug!(connection = self.id, opaque, "response without a request");
        }
    }

    /// Waits until one more request of so many bytes may be under way.
    async fn admit(&self, is_one_way: bool, frame: usize, flow: &Flow) -> Result<Permit, TransportError> {
        flow.outbox.has_room().await;
        // Closed semaphores are impossible: nobody closes them.
        let closed = |_| self.io(io::ErrorKind::ConnectionAborted.into());
        let weight = if is_one_way { self.one_way_weight } else { 1 };
        let of_connection = Arc::clone(&flow.in_flight).acquire_many_owned(weight).await.map_err(closed)?;
        let of_bytes = match self.counted(frame) {
            0 => None,
            bytes => Some(Arc::clone(&flow.request_bytes).acquire_many_owned(bytes).await.map_err(closed)?),
        };
        // Nobody waits for the answer of a one-way request, so nothing slows down who sends them.
        let of_server = match is_one_way {
            true => Some(Arc::clone(&self.one_way).acquire_owned().await.map_err(closed)?),
            false => None,
        };
        Ok(Permit::with([Some(of_connection), of_bytes, of_server]))
    }

    /// What a frame takes of the bytes that may be under way.
    fn counted(&self, frame: usize) -> u32 {
        let limit = self.limits.request_bytes;
        match u32::try_from(frame).unwrap_or(u32::MAX).min(limit) {
            small if small <= limit / u32::from(self.limits.in_flight).max(1) => 0,
            large => large,
        }
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
        let route = Route::Code(command.code);
        match (dispatcher::find(&route, &*self.cold), &self.hot) {
            (Path::Hot, Some(hot)) => self.call_hot(Arc::clone(hot), command, permit, flow),
            (Path::Cold, _) => self.call_cold(route, command, permit, &flow.outbox),
            (Path::Hot | Path::Unsupported, _) => {
                debug!(connection = self.id, peer = %self.peer, code = command.code, "request code not supported");
                reply(&command, &command.respond_unsupported(), permit, &flow.outbox);
            }
        }
    }

    fn call_hot(&self, hot: Arc<Hot>, command: RemotingCommand, permit: Permit, flow: &Flow) {
        let is_one_way = command.is_one_way();
        let mut answering: Pin<Box<dyn Future<Output = RemotingCommand> + Send>> =
            match serve::begin(&hot, self.peer, &command) {
                Begun::Answered(response) if is_one_way => return drop((response, permit)),
                Begun::Answered(response) => return flow.outbox.answer(&response, permit),
                // The flush tells it, without a task that waits.
                Begun::Stored(response, end) => {
                    let outbox = flow.outbox.clone();
                    return hot.store.when_durable(end, move |outcome| {
                        outbox.answer(&serve::flushed(response, outcome), permit);
                    });
                }
                Begun::No => {
                    let leaving = flow.leaving.clone();
                    Box::pin(leaving.scope(serve::answer(hot, self.peer, command)))
                }
            };
        // Most requests are answered at once, in the order they came; only those that wait cost a task.
        if let Poll::Ready(response) = answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            if !is_one_way {
                flow.outbox.answer(&response, permit);
            }
            return;
        }
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

    fn call_cold(&self, route: Route, mut command: RemotingCommand, permit: Permit, outbox: &Outbox) {
        self.counters.cold_calls.add(1);
        let request = ColdRequest {
            route,
            connection: self.id,
            peer: self.peer,
            language: command.language,
            version: command.version,
            is_one_way: command.is_one_way(),
            expires: None,
            fields: std::mem::take(&mut command.fields),
            body: std::mem::take(&mut command.body),
        };
        let (tell, answer) = oneshot::channel();
        self.cold.call(request, tell);
        let outbox = outbox.clone();
        tokio::spawn(async move {
            let answer = answer.await.unwrap_or(Err(TransportError::Unanswered));
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

/// Reads what is there, up to `most` bytes. While nothing comes an empty buffer holds no memory: most
/// connections are idle.
async fn read_some(
    socket: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    most: usize,
) -> io::Result<usize> {
    poll_fn(|context| {
        if buffer.is_empty() && buffer.capacity() > OWN_MEMORY {
            *buffer = BytesMut::new();
        }
        buffer.reserve(READ_CHUNK);
        let mut room = (&mut *buffer).limit(most);
        let read = pin!(socket.read_buf(&mut room)).poll(context);
        if read.is_pending() && buffer.is_empty() {
            *buffer = BytesMut::new();
        }
        read
    })
    .await
}

/// Answers a request, unless nobody waits for it.
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
