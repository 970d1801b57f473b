//! Outgoing remoting calls: one persistent connection per peer; responses are matched to requests by number.
//!
//! Does not interpret requests, and never resends one: a call that fails after its request was written may have been
//! carried out.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::BytesMut;
use ferromq_protocol::signing::Signer;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    runtime::Handle,
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tracing::debug;

use crate::{
    TransportError,
    remoting::{Decoder, Frame, Limits, RemotingCommand, calls::Calls, codec},
    tls::{ClientTls, Connector},
};

/// A timed-out call marks a peer as silent only if at least the limit divided by this was left for the response; the
/// rest may have been spent on connecting.
const SILENCE_DIVISOR: u32 = 4;
/// How long a silent connection stays open beside its replacement. A name server forgets a broker when the connection
/// of its registration closes; a server that was only slow must not. After this time the broker has registered again.
const LINGER: Duration = Duration::from_secs(120);
/// Silent connections kept open per peer: the first and the newest ones. A request may still be in transit on one of
/// them, and closing the connection would undo its effect.
const MAX_SILENT: usize = 16;
/// Requests in the write queue of one peer; further callers wait.
const QUEUED_REQUESTS: usize = 256;

type ConnectionSlot = Arc<tokio::sync::Mutex<Option<Arc<Connection>>>>;

/// Calls remoting servers; clones share the connections.
#[derive(Clone)]
pub struct RemotingClient(Arc<ClientInner>);

struct ClientInner {
    runtime: Handle,
    limits: Limits,
    peers: Mutex<HashMap<String, ConnectionSlot>>,
    /// By peer, connections without responses for too long: new calls do not use them.
    silent: Mutex<HashMap<String, Vec<Arc<Connection>>>>,
    closed: AtomicBool,
    next_opaque: AtomicI32,
    tls: Option<Connector>,
    credentials: Option<Credentials>,
}

/// What a client signs its requests with.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The name of the user.
    pub access_key: String,
    /// Signs with its secret key.
    pub signer: Signer,
}

impl RemotingClient {
    /// Makes a client whose connections run on `runtime`, and whose requests are signed with `credentials`.
    #[must_use]
    pub fn new(runtime: Handle, credentials: Option<Credentials>) -> Self {
        Self::make(runtime, None, credentials)
    }

    /// Makes a client that speaks TLS to every peer.
    ///
    /// # Errors
    /// `Tls` naming the file.
    pub fn with_tls(
        runtime: Handle,
        options: &ClientTls,
        credentials: Option<Credentials>,
    ) -> Result<Self, TransportError> {
        Connector::new(options).map(|tls| Self::make(runtime, Some(tls), credentials))
    }

    fn make(runtime: Handle, tls: Option<Connector>, credentials: Option<Credentials>) -> Self {
        Self(Arc::new(ClientInner {
            runtime,
            limits: Limits::default(),
            peers: Mutex::default(),
            silent: Mutex::default(),
            closed: AtomicBool::new(false),
            next_opaque: AtomicI32::new(1),
            tls,
            credentials,
        }))
    }

    /// Sends `request` to `address` (`host:port`) and waits for its response; connects if needed.
    ///
    /// # Errors
    /// `Timeout` or `Io`, both naming the peer; `FrameTooLarge` for a request that cannot be sent. After a `Timeout`
    /// without any response from the peer, the next call makes a new connection. The old one stays open for two
    /// minutes, unless there are many.
    pub async fn call(
        &self,
        address: &str,
        mut request: RemotingCommand,
        limit: Duration,
    ) -> Result<RemotingCommand, TransportError> {
        if let Some(Credentials { access_key, signer }) = &self.0.credentials {
            signer.sign(access_key, &mut request);
        }
        let mut sent = None;
        let answer = timeout(limit, async {
            let connection = self.connect(address).await?;
            sent = Some((Arc::clone(&connection), connection.calls.answered(), Instant::now()));
            let (pending, answer) =
                connection.calls.register(self.0.next_opaque.fetch_add(1, Ordering::Relaxed));
            connection.send(&RemotingCommand { opaque: pending.opaque, ..request }).await?;
            answer.await.map_err(|_| connection.lost())
        });
        if let Ok(answer) = answer.await {
            return answer;
        }
        // Without any response the peer may have disappeared silently: the next call connects again.
        if let Some((connection, answered, since)) = sent
            && connection.calls.answered() == answered
            && since.elapsed() >= limit / SILENCE_DIVISOR
        {
            self.retire(address, &connection);
        }
        Err(timed_out(address, limit))
    }

    /// Uses `connection` for no new calls, and closes it later.
    fn retire(&self, address: &str, connection: &Arc<Connection>) {
        connection.retired.store(true, Ordering::Release);
        let mut silent = self.0.silent.lock();
        let retired = silent.entry(address.to_owned()).or_default();
        retired.retain(|other| !other.is_lost());
        if retired.iter().any(|other| Arc::ptr_eq(other, connection)) {
            return;
        }
        if retired.len() >= MAX_SILENT {
            retired.remove(1).end();
        }
        retired.push(Arc::clone(connection));
        let (inner, connection, address) =
            (Arc::downgrade(&self.0), Arc::downgrade(connection), address.to_owned());
        self.0.runtime.spawn(async move {
            sleep(LINGER).await;
            let (Some(inner), Some(connection)) = (inner.upgrade(), connection.upgrade()) else { return };
            let mut silent = inner.silent.lock();
            if let Some(retired) = silent.get_mut(&address) {
                retired.retain(|other| !Arc::ptr_eq(other, &connection));
                if retired.is_empty() {
                    silent.remove(&address);
                }
            }
            connection.end();
        });
    }

    /// Closes all connections. Calls in flight and later calls fail.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        self.0
            .silent
            .lock()
            .drain()
            .for_each(|(_, retired)| retired.iter().for_each(|connection| connection.end()));
        for (_, slot) in self.0.peers.lock().drain() {
            // A call that is connecting holds its slot, and its connection closes with the call.
            if let Some(connection) = slot.try_lock().ok().and_then(|mut connection| connection.take()) {
                connection.end();
            }
        }
    }

    async fn connect(&self, address: &str) -> Result<Arc<Connection>, TransportError> {
        let slot = Arc::clone(self.0.peers.lock().entry(address.to_owned()).or_default());
        // Locked while connecting: other calls to the peer wait for this connection.
        let mut current = slot.lock().await;
        let closed =
            || io_error(address, io::Error::new(io::ErrorKind::NotConnected, "the client is closed"));
        if self.0.closed.load(Ordering::Acquire) {
            current.take();
            return Err(closed());
        }
        if let Some(connection) = current.as_ref().filter(|connection| connection.is_usable()) {
            return Ok(Arc::clone(connection));
        }
        let stream = TcpStream::connect(address).await.map_err(|source| io_error(address, source))?;
        stream.set_nodelay(true).map_err(|source| io_error(address, source))?;
        let connection = match &self.0.tls {
            None => Connection::start(&self.0.runtime, address, stream.into_split(), self.0.limits),
            Some(tls) => {
                let stream =
                    tls.connect(address, stream).await.map_err(|source| io_error(address, source))?;
                Connection::start(&self.0.runtime, address, tokio::io::split(stream), self.0.limits)
            }
        };
        // `close` found the slot locked. Dropping the connection ends it.
        if self.0.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        let connection = Arc::new(connection);
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }
}

/// A connection. Dropping the last handle closes it.
struct Connection {
    address: String,
    outgoing: mpsc::Sender<Frame>,
    calls: Arc<Calls>,
    task: JoinHandle<()>,
    /// Was silent for too long.
    retired: AtomicBool,
}

impl Connection {
    fn start<R, W>(runtime: &Handle, address: &str, (read, write): (R, W), limits: Limits) -> Self
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (outgoing, requests) = mpsc::channel(QUEUED_REQUESTS);
        let calls = Calls::new();
        let guard = EndGuard { calls: Arc::clone(&calls), address: address.to_owned() };
        let answers = outgoing.downgrade();
        // When one direction ends, so does the other: the peer must not keep a half-open connection.
        let task = runtime.spawn(async move {
            tokio::select! {
                () = read_responses(read, answers, limits, &guard) => {}
                () = write_requests(write, requests) => {}
            }
        });
        Self { address: address.to_owned(), outgoing, calls, task, retired: AtomicBool::new(false) }
    }

    async fn send(&self, request: &RemotingCommand) -> Result<(), TransportError> {
        let frame = codec::encode(request)?;
        self.outgoing.send(frame).await.map_err(|_| self.lost())
    }

    /// Closes the connection and wakes all its callers.
    fn end(&self) {
        self.calls.end();
        self.task.abort();
    }

    fn is_lost(&self) -> bool {
        self.calls.has_ended()
    }

    fn is_usable(&self) -> bool {
        !self.is_lost() && !self.retired.load(Ordering::Acquire)
    }

    fn lost(&self) -> TransportError {
        io_error(&self.address, io::Error::new(io::ErrorKind::ConnectionReset, "the connection was lost"))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end();
    }
}

/// Wakes all waiting callers once either direction of the connection has ended.
struct EndGuard {
    calls: Arc<Calls>,
    address: String,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if self.calls.end() {
            debug!(peer = %self.address, "connection to peer ended");
        }
    }
}

/// Least buffer space for a read.
const READ_CHUNK: usize = 16 << 10;
/// Most memory reserved for a frame before its bytes arrive.
const READ_AHEAD: usize = 4 << 20;

async fn read_responses(
    mut socket: impl AsyncRead + Unpin,
    outgoing: mpsc::WeakSender<Frame>,
    limits: Limits,
    guard: &EndGuard,
) {
    let decoder = Decoder::new(limits);
    let mut buffer = BytesMut::new();
    loop {
        match decoder.next(&mut buffer) {
            Ok(Some(command)) => handle(command, &outgoing, guard).await,
            Ok(None) => {
                // A nearly full buffer must not make the next reads small. A large frame gets its memory at once, so
                // that it is not moved while it arrives.
                let missing = codec::announced(&buffer).unwrap_or(0).saturating_sub(buffer.len());
                buffer.reserve(missing.clamp(READ_CHUNK, READ_AHEAD));
                match socket.read_buf(&mut buffer).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
            Err(error) => {
                tracing::warn!(peer = %guard.address, %error, "connection closed for a bad frame");
                return;
            }
        }
    }
}

async fn handle(command: RemotingCommand, outgoing: &mpsc::WeakSender<Frame>, guard: &EndGuard) {
    if command.is_response() {
        // The caller may have given up.
        guard.calls.answer(command);
    } else if !command.is_one_way()
        && let Some(outgoing) = outgoing.upgrade()
        && let Ok(frame) = codec::encode(&command.respond_unsupported())
    {
        let _ = outgoing.send(frame).await;
    }
}

async fn write_requests(mut socket: impl AsyncWrite + Unpin, mut requests: mpsc::Receiver<Frame>) {
    while let Some(frame) = requests.recv().await {
        let mut bytes = bytes::Buf::chain(frame.head, frame.body);
        // TLS buffers written bytes until a flush.
        if socket.write_all_buf(&mut bytes).await.is_err() || socket.flush().await.is_err() {
            return;
        }
    }
}

fn io_error(address: &str, source: io::Error) -> TransportError {
    TransportError::Io { peer: address.to_owned(), source }
}

fn timed_out(address: &str, limit: Duration) -> TransportError {
    TransportError::Timeout {
        peer: address.to_owned(),
        timeout_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
    }
}
