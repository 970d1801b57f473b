//! Accepts, numbers and closes gRPC connections, and reports their end to the control plane.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::{Sleep, sleep},
};
use tracing::warn;

use super::{GrpcLimits, counted_body::UnsentAnswers};
use crate::{
    ColdHandler, Sender,
    access::UserName,
    connections::{budget::Allowance, slots::Slot, sockets},
    hot::Counters,
    limits::ConnectionUsers,
    tls::{CertificateSubject, Tls, opening::ListenerStream},
};

/// Pause after a failed `accept`: without free file descriptors it fails at once, repeatedly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Number of clients of a connection from which those without a lease are removed.
const MANY_CLIENTS: usize = 1024;
/// Length of the HTTP/2 client preface.
const PREFACE: usize = 24;

/// The open connections of a server, by number.
pub(super) struct Connections {
    open: Mutex<HashMap<u64, oneshot::Sender<()>>>,
    next: Arc<AtomicU64>,
    cold: Arc<dyn ColdHandler>,
    counters: Arc<Counters>,
    limits: GrpcLimits,
    tls: Arc<Tls>,
}

impl Connections {
    pub(super) fn new(
        cold: Arc<dyn ColdHandler>,
        counters: Arc<Counters>,
        next: Arc<AtomicU64>,
        limits: GrpcLimits,
        tls: Arc<Tls>,
    ) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), next, cold, counters, limits, tls })
    }

    /// Closes a connection. Returns false if it is not open.
    pub(super) fn close(&self, id: u64) -> bool {
        self.open.lock().remove(&id).is_some()
    }

    /// The memory of a new connection from `peer`.
    pub(super) fn allowance(&self, peer: SocketAddr) -> Arc<Allowance> {
        self.limits.budget.allowance(peer.ip())
    }

    /// Closes all connections.
    pub(super) fn close_all(&self) {
        self.open.lock().clear();
    }

    /// Admits a connection, unless too many are open.
    fn admit(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) -> Option<GrpcStream> {
        let slot = match self.limits.slots.take(peer.ip()) {
            Ok(slot) => slot,
            Err(reason) => {
                self.counters.refused_connections.add(1);
                self.limits.refused.log(|suppressed| warn!(%peer, %reason, suppressed, "connection refused"));
                return None;
            }
        };
        sockets::set_up(&stream);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (keep, cut) = oneshot::channel();
        self.open.lock().insert(id, keep);
        self.counters.connections.add(1);
        let (connections, clients) = (Arc::clone(self), Mutex::default());
        let allowance = self.allowance(peer);
        let inner = LinkInner {
            id,
            peer,
            certificate: OnceLock::new(),
            users: Arc::new(ConnectionUsers::new(&self.limits.users)),
            connections,
            clients,
            allowance,
            unsent: Arc::default(),
            _slot: slot,
        };
        let link = Link(Arc::new(inner));
        let stream = ListenerStream::new(stream, self.tls.current());
        let handshake =
            Some(Handshake { deadline: Box::pin(sleep(self.limits.handshake)), missing: PREFACE });
        Some(GrpcStream { stream, cut, is_cut: false, handshake, peeked: None, link })
    }
}

/// A connection as its requests see it. Dropping the last clone reports the end of the connection, so no request is
/// under way then.
#[derive(Clone)]
pub(super) struct Link(Arc<LinkInner>);

struct LinkInner {
    id: u64,
    peer: SocketAddr,
    /// Set after the handshake, if the client has shown one.
    certificate: OnceLock<Arc<str>>,
    users: Arc<ConnectionUsers>,
    connections: Arc<Connections>,
    /// Clients of this connection, by id. Their leases are renewed while their entry exists.
    clients: Mutex<HashMap<Box<str>, Arc<()>>>,
    allowance: Arc<Allowance>,
    unsent: Arc<UnsentAnswers>,
    _slot: Slot,
}

impl Link {
    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    pub(super) fn certificate(&self) -> CertificateSubject {
        self.0.certificate.get().cloned()
    }

    /// The users that the connection counts for.
    pub(super) fn users(&self) -> &Arc<ConnectionUsers> {
        &self.0.users
    }

    /// The sender of a request of `user`.
    pub(super) fn sender(&self, user: UserName) -> Sender {
        Sender { connection: self.id(), peer: self.peer(), user, certificate: self.certificate() }
    }

    /// Memory allowance of the connection.
    pub(super) fn allowance(&self) -> &Arc<Allowance> {
        &self.0.allowance
    }

    /// Large answers that the client has not read yet.
    pub(super) fn unsent(&self) -> &Arc<UnsentAnswers> {
        &self.0.unsent
    }

    /// Returns a reference that lives as long as both the connection and its client `client`.
    pub(super) fn presence(&self, client: &str) -> Weak<()> {
        let mut clients = self.0.clients.lock();
        if clients.len() >= MANY_CLIENTS {
            // A client without a lease has nothing to renew.
            clients.retain(|_, presence| Arc::weak_count(presence) > 0);
        }
        if let Some(presence) = clients.get(client) {
            return Arc::downgrade(presence);
        }
        Arc::downgrade(clients.entry(client.into()).or_default())
    }

    /// Stops the renewal of a departed client's leases.
    pub(super) fn forget_client(&self, client: &str) {
        self.0.clients.lock().remove(client);
    }
}

impl Drop for LinkInner {
    fn drop(&mut self) {
        // Renewals must have stopped before the handler learns of the end.
        self.clients.get_mut().clear();
        // A client that sees the end may open its next connection at once.
        self.users.leave();
        self.connections.open.lock().remove(&self.id);
        self.connections.counters.connections.sub(1);
        self.connections.cold.on_close(self.id);
    }
}

/// Accepts connections, endlessly.
pub(super) struct Incoming {
    listener: TcpListener,
    connections: Arc<Connections>,
}

impl Incoming {
    pub(super) fn new(listener: TcpListener, connections: Arc<Connections>) -> Self {
        Self { listener, connections }
    }

    /// Returns the next admitted connection. Dropping the future loses none.
    pub(super) async fn next(&mut self) -> GrpcStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    if let Some(admitted) = self.connections.admit(stream, peer) {
                        return admitted;
                    }
                }
                Err(error) => {
                    let refused = &self.connections.limits.refused;
                    refused.log(|suppressed| warn!(%error, suppressed, "accept failed"));
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// A connection that [`Connections::close`] can close.
pub(super) struct GrpcStream {
    stream: ListenerStream,
    /// Resolves when the sender in the table of open connections is dropped.
    cut: oneshot::Receiver<()>,
    is_cut: bool,
    /// Set until the HTTP/2 preface has arrived. Without a deadline, a silent client would keep its slot for ever.
    handshake: Option<Handshake>,
    /// The first byte, if [`Self::peek`] has read it and no other read has returned it.
    peeked: Option<u8>,
    link: Link,
}

/// The wait for the client's HTTP/2 preface.
struct Handshake {
    deadline: Pin<Box<Sleep>>,
    /// Bytes of the preface that have not arrived.
    missing: usize,
}

impl GrpcStream {
    /// Returns the connection as its requests see it.
    pub(super) fn link(&self) -> Link {
        self.link.clone()
    }

    /// Returns the first byte of the connection, which stays to be read.
    ///
    /// # Errors
    /// Those of the socket and of the TLS handshake; `TimedOut`; `UnexpectedEof` if no byte came.
    pub(super) async fn peek(&mut self) -> io::Result<u8> {
        let first = self.read_u8().await?;
        self.peeked = Some(first);
        // The handshake is done.
        if let Some(certificate) = self.stream.certificate() {
            let _ = self.link.0.certificate.set(certificate);
        }
        Ok(first)
    }

    /// Ends the wait for the HTTP/2 preface, because the client speaks another protocol.
    pub(super) fn skip_preface(&mut self) {
        self.handshake = None;
    }

    /// Fails if the TLS handshake and the preface took too long.
    fn check_handshake(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(handshake) = &mut self.handshake else { return Ok(()) };
        match handshake.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for GrpcStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut || Pin::new(&mut self.cut).poll(context).is_ready() {
            self.is_cut = true;
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        self.check_handshake(context)?;
        if let Some(first) = self.peeked.take_if(|_| buffer.remaining() > 0) {
            buffer.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let outcome = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if let Some(handshake) = &mut self.handshake {
            handshake.missing =
                handshake.missing.saturating_sub(buffer.filled().len().saturating_sub(before));
            if handshake.missing == 0 {
                self.handshake = None;
            }
        }
        Poll::Ready(outcome)
    }
}

impl AsyncWrite for GrpcStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_handshake(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_handshake(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
