//! One incoming remoting connection: reads frames, hands them on, writes answers.
//!
//! What a frame looks like is the codec's business, where a request goes the dispatcher's. A peer that
//! breaks the protocol, sends faster than it is served or does not read its answers harms only itself:
//! requests under way, queued bytes and the time of a write are bounded here.

use std::{
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Buf, BufMut, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::timeout,
};
use tracing::{debug, warn};

use crate::{
    ColdHandler, ColdRequest, ColdResponse, Route, TransportError,
    dispatcher::{self, Path},
    hot::{Counters, Hot},
    remoting::{Decoder, Frame, Limits, RemotingCommand, codec, codes::response},
    serve::{self, Caller},
};

const READ_CHUNK: usize = 16 << 10;
/// Answers up to this size are copied together, so that many small ones leave in one packet.
const COPY_BELOW: usize = 16 << 10;
const WRITE_BATCH: usize = 64;

/// What one remoting connection may cost.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// Largest frame and header.
    pub frames: Limits,
    /// Requests under way; beyond it the connection is not read.
    pub in_flight: u16,
    /// Bytes of answers waiting to be written; beyond it the connection is not read.
    pub queued_bytes: usize,
    /// A connection without a request for this long, and with none under way, is closed.
    pub idle: Duration,
    /// A peer that takes no byte of an answer for this long is gone.
    pub write: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            frames: Limits::default(),
            in_flight: 256,
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
    pub counters: Arc<Counters>,
}

/// An encoded answer and the permit of its request, held until it is written.
struct Outgoing {
    frame: Frame,
    _permit: OwnedSemaphorePermit,
}

/// What reader, writer and answering tasks share.
struct Flow {
    in_flight: Arc<Semaphore>,
    queued: AtomicUsize,
    written: Notify,
}

impl Connection {
    /// Serves until the peer leaves or breaks the protocol, `drain` ends and the last answer is written, or
    /// `close` ends.
    ///
    /// Returns once no request is under way. Dropping the future closes the connection at once.
    pub(crate) async fn serve(
        &self,
        stream: TcpStream,
        drain: impl Future<Output = ()>,
        close: impl Future<Output = ()>,
    ) {
        if let Err(error) = stream.set_nodelay(true) {
            debug!(connection = self.id, %error, "no TCP_NODELAY");
        }
        let flow = Arc::new(Flow {
            in_flight: Arc::new(Semaphore::new(usize::from(self.limits.in_flight))),
            queued: AtomicUsize::new(0),
            written: Notify::new(),
        });
        let ended = tokio::select! {
            ended = self.exchange(stream, drain, &flow) => ended,
            () = close => Ok(()),
        };
        if let Err(error) = ended {
            self.log(&error);
        }
        // A closed semaphore is impossible: nobody closes it.
        let _ = flow.in_flight.acquire_many(u32::from(self.limits.in_flight)).await;
    }

    async fn exchange(
        &self,
        stream: TcpStream,
        drain: impl Future<Output = ()>,
        flow: &Arc<Flow>,
    ) -> Result<(), TransportError> {
        let (read, write) = stream.into_split();
        // Room for every permit, so that an answering task never waits to hand over its answer.
        let (answers, outgoing) = mpsc::channel(usize::from(self.limits.in_flight));
        let mut writer = pin!(self.write(write, outgoing, flow));
        let reader = async {
            tokio::select! {
                ended = self.read(read, answers, flow) => ended,
                () = drain => Ok(()),
            }
        };
        tokio::select! {
            ended = reader => {
                // The sender went with the reader: the writer ends after the last answer, also of requests
                // that came before a bad frame.
                let written = writer.await;
                ended.and(written)
            }
            ended = &mut writer => ended,
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

    async fn read(
        &self,
        mut socket: OwnedReadHalf,
        answers: mpsc::Sender<Outgoing>,
        flow: &Arc<Flow>,
    ) -> Result<(), TransportError> {
        let decoder = Decoder::new(self.limits.frames);
        let mut buffer = BytesMut::new();
        loop {
            while let Some(command) = decoder.next(&mut buffer)? {
                let permit = self.admit(flow).await?;
                self.dispatch(command, permit, &answers, flow);
            }
            buffer.reserve(READ_CHUNK);
            match timeout(self.limits.idle, socket.read_buf(&mut buffer)).await {
                Ok(Ok(0)) => return Ok(()),
                Ok(Ok(_)) => {}
                Ok(Err(source)) => return Err(self.io(source)),
                Err(_) if flow.in_flight.available_permits() < usize::from(self.limits.in_flight) => {}
                Err(_) => {
                    debug!(connection = self.id, peer = %self.peer, "connection idle, closed");
                    return Ok(());
                }
            }
        }
    }

    /// Waits until one more request may be under way.
    async fn admit(&self, flow: &Flow) -> Result<OwnedSemaphorePermit, TransportError> {
        loop {
            let written = flow.written.notified();
            if flow.queued.load(Ordering::Acquire) <= self.limits.queued_bytes {
                break;
            }
            written.await;
        }
        let permit = Arc::clone(&flow.in_flight).acquire_owned().await;
        permit.map_err(|_| self.io(io::ErrorKind::ConnectionAborted.into()))
    }

    fn dispatch(
        &self,
        command: RemotingCommand,
        permit: OwnedSemaphorePermit,
        answers: &mpsc::Sender<Outgoing>,
        flow: &Arc<Flow>,
    ) {
        if command.is_response() {
            debug!(connection = self.id, opaque = command.opaque, "response without a request");
            return;
        }
        self.counters.remoting_requests.add(1);
        let route = Route::Code(command.code);
        match (dispatcher::find(&route, &*self.cold), &self.hot) {
            (Path::Hot, Some(hot)) => self.call_hot(Arc::clone(hot), command, permit, answers, flow),
            (Path::Cold, _) => self.call_cold(route, command, permit, answers, flow),
            (Path::Hot | Path::Unsupported, _) => {
                debug!(connection = self.id, peer = %self.peer, code = command.code, "request code not supported");
                if !command.is_one_way() {
                    enqueue(&command.respond_unsupported(), permit, answers, flow);
                }
            }
        }
    }

    fn call_hot(
        &self,
        hot: Arc<Hot>,
        command: RemotingCommand,
        permit: OwnedSemaphorePermit,
        answers: &mpsc::Sender<Outgoing>,
        flow: &Arc<Flow>,
    ) {
        let caller = Caller { connection: self.id, peer: self.peer };
        let is_one_way = command.is_one_way();
        let mut answering = Box::pin(serve::answer(hot, caller, command));
        // Most requests are answered at once, in the order they came; only those that wait cost a task.
        if let Poll::Ready(response) = answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            if !is_one_way {
                enqueue(&response, permit, answers, flow);
            }
            return;
        }
        let (answers, flow) = (answers.clone(), Arc::clone(flow));
        tokio::spawn(async move {
            let response = tokio::select! {
                response = answering => response,
                () = answers.closed() => return,
            };
            if !is_one_way {
                enqueue(&response, permit, &answers, &flow);
            }
        });
    }

    fn call_cold(
        &self,
        route: Route,
        mut command: RemotingCommand,
        permit: OwnedSemaphorePermit,
        answers: &mpsc::Sender<Outgoing>,
        flow: &Arc<Flow>,
    ) {
        self.counters.cold_calls.add(1);
        let request = ColdRequest {
            route,
            connection: self.id,
            peer: self.peer,
            fields: std::mem::take(&mut command.fields),
            body: std::mem::take(&mut command.body),
        };
        let (reply, answer) = oneshot::channel();
        self.cold.call(request, reply);
        let (answers, flow) = (answers.clone(), Arc::clone(flow));
        tokio::spawn(async move {
            let answer = answer.await.unwrap_or(Err(TransportError::Unanswered));
            let response = match answer {
                Ok(None) => return,
                Ok(Some(answer)) => fill(command.respond(answer.code, None), answer),
                Err(error) => command.respond(error.response_code(), Some(error.to_string())),
            };
            if !command.is_one_way() {
                enqueue(&response, permit, &answers, &flow);
            }
        });
    }

    async fn write(
        &self,
        mut socket: OwnedWriteHalf,
        mut outgoing: mpsc::Receiver<Outgoing>,
        flow: &Flow,
    ) -> Result<(), TransportError> {
        let mut batch = Vec::with_capacity(WRITE_BATCH);
        let mut together = BytesMut::new();
        while outgoing.recv_many(&mut batch, WRITE_BATCH).await > 0 {
            let bytes: usize = batch.iter().map(|one| one.frame.len()).sum();
            for Outgoing { frame, .. } in &mut batch {
                together.put_slice(&frame.head);
                if frame.body.len() <= COPY_BELOW {
                    together.put_slice(&frame.body);
                } else {
                    self.write_all(&mut socket, &mut together).await?;
                    self.write_all(&mut socket, &mut frame.body).await?;
                }
            }
            self.write_all(&mut socket, &mut together).await?;
            batch.clear();
            if together.capacity() > READ_CHUNK * 4 {
                together = BytesMut::new();
            }
            flow.queued.fetch_sub(bytes, Ordering::AcqRel);
            flow.written.notify_one();
        }
        socket.shutdown().await.map_err(|source| self.io(source))
    }

    /// Writes everything; each step must come forward within the time allowed, however long the whole takes.
    async fn write_all(
        &self,
        socket: &mut OwnedWriteHalf,
        bytes: &mut impl Buf,
    ) -> Result<(), TransportError> {
        while bytes.has_remaining() {
            let step = timeout(self.limits.write, socket.write_buf(bytes)).await;
            step.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|source| self.io(source))?;
        }
        Ok(())
    }

    fn io(&self, source: io::Error) -> TransportError {
        TransportError::Io { peer: self.peer.to_string(), source }
    }
}

fn fill(mut response: RemotingCommand, answer: ColdResponse) -> RemotingCommand {
    response.remark = answer.remark;
    response.fields = answer.fields;
    response.body = answer.body;
    response
}

/// Queues an answer. It cannot fail for want of room; where the writer is gone nobody waits for it.
fn enqueue(
    response: &RemotingCommand,
    permit: OwnedSemaphorePermit,
    answers: &mpsc::Sender<Outgoing>,
    flow: &Flow,
) {
    let frame = codec::encode(response).or_else(|error| {
        warn!(%error, code = response.code, "answer not encodable");
        let remark = Some(error.to_string());
        codec::encode(&RemotingCommand {
            code: response::SYSTEM_ERROR,
            remark,
            fields: Vec::new(),
            body: bytes::Bytes::new(),
            ..response.clone()
        })
    });
    let Ok(frame) = frame else { return };
    flow.queued.fetch_add(frame.len(), Ordering::AcqRel);
    let _ = answers.try_send(Outgoing { frame, _permit: permit });
}
