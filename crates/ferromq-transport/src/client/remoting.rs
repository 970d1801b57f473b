//! Outgoing remoting calls: one kept connection a peer, requests told apart by their number.
//!
//! It knows nothing of what is called. A call that fails after its request was written may have been
//! carried out: nothing is sent twice here.

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

/// A call that had less than this part of its time for its answer, since it had to connect, says nothing of the peer.
const LEAST_SILENCE: u32 = 4;
/// How long a silent connection stays open beside those that take its place. Name servers forget a broker with the
/// connection over which it registered: one that was only slow must not, and by then the broker has registered again.
const LINGER: Duration = Duration::from_secs(120);
/// Silent connections to a peer that stay open: the first, and the newest. A request may still be on its way on one of
/// them, and what it asks for would be undone by the end of its connection.
const SILENT: usize = 16;
/// Requests waiting to be written to one peer; more wait in their callers.
const QUEUED_REQUESTS: usize = 256;

type Slot = Arc<tokio::sync::Mutex<Option<Arc<Link>>>>;

/// Calls remoting servers; clones share the connections.
#[derive(Clone)]
pub struct RemotingClient(Arc<Inner>);

struct Inner {
    runtime: Handle,
    limits: Limits,
    peers: Mutex<HashMap<String, Slot>>,
    /// By peer, connections on which nothing came for too long: no call is begun on them any more.
    silent: Mutex<HashMap<String, Vec<Arc<Link>>>>,
    closed: AtomicBool,
    next_opaque: AtomicI32,
    tls: Option<Connector>,
}

impl RemotingClient {
    /// Makes a client whose connections live on `runtime`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self::make(runtime, None)
    }

    /// Makes a client that speaks TLS to every peer.
    ///
    /// # Errors
    /// `Tls` naming the file.
    pub fn with_tls(runtime: Handle, options: &ClientTls) -> Result<Self, TransportError> {
        Connector::new(options).map(|tls| Self::make(runtime, Some(tls)))
    }

    fn make(runtime: Handle, tls: Option<Connector>) -> Self {
        Self(Arc::new(Inner {
            runtime,
            limits: Limits::default(),
            peers: Mutex::default(),
            silent: Mutex::default(),
            closed: AtomicBool::new(false),
            next_opaque: AtomicI32::new(1),
            tls,
        }))
    }

    /// Sends `request` to `address` (`host:port`) and waits for its response, connecting where needed.
    ///
    /// # Errors
    /// `Timeout` or `Io`, both naming the peer; `FrameTooLarge` for a request that cannot be sent. After a `Timeout`
    /// in which the peer answered nothing else either, the next call makes a new connection; the old one stays open
    /// for two minutes, unless there are many.
    pub async fn call(
        &self,
        address: &str,
        request: RemotingCommand,
        limit: Duration,
    ) -> Result<RemotingCommand, TransportError> {
        let mut asked = None;
        let answer = timeout(limit, async {
            let link = self.link(address).await?;
            asked = Some((Arc::clone(&link), link.calls.answered(), Instant::now()));
            let (pending, answer) = link.calls.expect(self.0.next_opaque.fetch_add(1, Ordering::Relaxed));
            link.send(&RemotingCommand { opaque: pending.opaque, ..request }).await?;
            answer.await.map_err(|_| link.lost())
        });
        if let Ok(answer) = answer.await {
            return answer;
        }
        // Where nothing at all was answered the peer may be gone without a word; the next call connects again.
        if let Some((link, answered, since)) = asked
            && link.calls.answered() == answered
            && since.elapsed() >= limit / LEAST_SILENCE
        {
            self.retire(address, &link);
        }
        Err(timed_out(address, limit))
    }

    /// Begins no call on `link` any more, and ends it later.
    fn retire(&self, address: &str, link: &Arc<Link>) {
        link.retired.store(true, Ordering::Release);
        let mut silent = self.0.silent.lock();
        let kept = silent.entry(address.to_owned()).or_default();
        kept.retain(|other| !other.is_lost());
        if kept.iter().any(|other| Arc::ptr_eq(other, link)) {
            return;
        }
        if kept.len() >= SILENT {
            kept.remove(1).end();
        }
        kept.push(Arc::clone(link));
        let (inner, link, address) = (Arc::downgrade(&self.0), Arc::downgrade(link), address.to_owned());
        self.0.runtime.spawn(async move {
            sleep(LINGER).await;
            let (Some(inner), Some(link)) = (inner.upgrade(), link.upgrade()) else { return };
            let mut silent = inner.silent.lock();
            if let Some(kept) = silent.get_mut(&address) {
                kept.retain(|other| !Arc::ptr_eq(other, &link));
                if kept.is_empty() {
                    silent.remove(&address);
                }
            }
            link.end();
        });
    }

    /// Closes every connection; calls under way fail, and so do later ones.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.silent.lock().drain().for_each(|(_, kept)| kept.iter().for_each(|link| link.end()));
        for (_, slot) in self.0.peers.lock().drain() {
            // A slot held by a call that connects right now is closed by that call.
            if let Some(link) = slot.try_lock().ok().and_then(|mut link| link.take()) {
                link.end();
            }
        }
    }

    async fn link(&self, address: &str) -> Result<Arc<Link>, TransportError> {
        let slot = Arc::clone(self.0.peers.lock().entry(address.to_owned()).or_default());
        // Held while connecting: there is one connection a peer, and other calls wait for it.
        let mut kept = slot.lock().await;
        if self.0.closed.load(Ordering::Acquire) {
            kept.take();
            return Err(io_error(
                address,
                io::Error::new(io::ErrorKind::NotConnected, "the client is closed"),
            ));
        }
        if let Some(link) = kept.as_ref().filter(|link| link.is_usable()) {
            return Ok(Arc::clone(link));
        }
        let stream = TcpStream::connect(address).await.map_err(|source| io_error(address, source))?;
        stream.set_nodelay(true).map_err(|source| io_error(address, source))?;
        let link = match &self.0.tls {
            None => Link::start(&self.0.runtime, address, stream.into_split(), self.0.limits),
            Some(tls) => {
                let stream =
                    tls.connect(address, stream).await.map_err(|source| io_error(address, source))?;
                Link::start(&self.0.runtime, address, tokio::io::split(stream), self.0.limits)
            }
        };
        let link = Arc::new(link);
        *kept = Some(Arc::clone(&link));
        Ok(link)
    }
}

/// One connection. Dropping the last handle closes it.
struct Link {
    address: String,
    outgoing: mpsc::Sender<Frame>,
    calls: Arc<Calls>,
    task: JoinHandle<()>,
    /// Whether it was silent for too long.
    retired: AtomicBool,
}

impl Link {
    fn start<R, W>(runtime: &Handle, address: &str, (read, write): (R, W), limits: Limits) -> Self
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (outgoing, requests) = mpsc::channel(QUEUED_REQUESTS);
        let calls = Calls::new();
        let lost = Lost { calls: Arc::clone(&calls), address: address.to_owned() };
        let answers = outgoing.downgrade();
        // Where one direction ends so does the other: the peer must not keep half a connection.
        let task = runtime.spawn(async move {
            tokio::select! {
                () = read_responses(read, answers, limits, &lost) => {}
                () = write_requests(write, requests) => {}
            }
        });
        Self { address: address.to_owned(), outgoing, calls, task, retired: AtomicBool::new(false) }
    }

    async fn send(&self, request: &RemotingCommand) -> Result<(), TransportError> {
        let frame = codec::encode(request)?;
        self.outgoing.send(frame).await.map_err(|_| self.lost())
    }

    /// Ends the connection and wakes all callers that wait on it.
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

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}

/// Wakes all waiting callers once either direction of the connection has ended.
struct Lost {
    calls: Arc<Calls>,
    address: String,
}

impl Drop for Lost {
    fn drop(&mut self) {
        if self.calls.end() {
            debug!(peer = %self.address, "connection to peer ended");
        }
    }
}

/// Room for one read, at least.
const READ_CHUNK: usize = 16 << 10;
/// Memory given to a frame before its bytes are here.
const READ_AHEAD: usize = 4 << 20;

async fn read_responses(
    mut socket: impl AsyncRead + Unpin,
    outgoing: mpsc::WeakSender<Frame>,
    limits: Limits,
    lost: &Lost,
) {
    let decoder = Decoder::new(limits);
    let mut buffer = BytesMut::new();
    loop {
        match decoder.next(&mut buffer) {
            Ok(Some(command)) => take(command, &outgoing, lost).await,
            Ok(None) => {
                // What is left over from the last frame must not make the next reads small; a large one gets its
                // memory at once, so that it is not moved while it comes.
                let missing = codec::announced(&buffer).unwrap_or(0).saturating_sub(buffer.len());
                buffer.reserve(missing.clamp(READ_CHUNK, READ_AHEAD));
                match socket.read_buf(&mut buffer).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
            Err(error) => {
                tracing::warn!(peer = %lost.address, %error, "connection closed for a bad frame");
                return;
            }
        }
    }
}

async fn take(command: RemotingCommand, outgoing: &mpsc::WeakSender<Frame>, lost: &Lost) {
    if command.is_response() {
        // The caller may have given up.
        lost.calls.answer(command);
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
        // TLS keeps what was written until it is flushed.
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
