//! gRPC connections: their numbers, how they are cut off, and who hears that they are gone.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::{Sleep, sleep},
};
use tracing::warn;

use super::{GrpcLimits, counted_body::Untaken};
use crate::{
    ColdHandler,
    connections::{budget::Allowance, slots::Slot, sockets},
    hot::Counters,
    tls::{Tls, opening::Wire},
};

/// Out of file descriptors, `accept` fails at once and again; nothing tells when one is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// From so many clients of a connection on those that hold no lease are forgotten.
const MANY_CLIENTS: usize = 1024;
/// Bytes with which a client of HTTP/2 begins.
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

    /// Cuts a connection off; false where it is not open.
    pub(super) fn close(&self, id: u64) -> bool {
        self.open.lock().remove(&id).is_some()
    }

    /// Cuts all connections off.
    pub(super) fn close_all(&self) {
        self.open.lock().clear();
    }

    /// Takes a connection, unless too many are open.
    fn admit(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) -> Option<GrpcStream> {
        let Some(slot) = self.limits.slots.take() else {
            self.counters.refused_connections.add(1);
            let limit = self.limits.slots.limit();
            self.limits.refused.log(|left_out| {
                warn!(%peer, limit, left_out, "connection refused, too many are open; raise max_connections");
            });
            return None;
        };
        sockets::set_up(&stream);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (keep, cut) = oneshot::channel();
        self.open.lock().insert(id, keep);
        self.counters.connections.add(1);
        let (connections, clients) = (Arc::clone(self), Mutex::default());
        let allowance = self.limits.budget.allowance(peer.ip());
        let inner =
            LinkInner { id, peer, connections, clients, allowance, untaken: Arc::default(), _slot: slot };
        let link = Link(Arc::new(inner));
        let stream = Wire::new(stream, self.tls.current());
        let beginning =
            Some(Beginning { patience: Box::pin(sleep(self.limits.handshake)), missing: PREFACE });
        Some(GrpcStream { stream, cut, is_cut: false, beginning, link })
    }
}

/// A connection as requests see it. The last clone that goes tells that the connection is gone, so no
/// request is still under way then.
#[derive(Clone)]
pub(super) struct Link(Arc<LinkInner>);

struct LinkInner {
    id: u64,
    peer: SocketAddr,
    connections: Arc<Connections>,
    /// The clients whose leases are renewed.
    clients: Mutex<HashMap<Box<str>, Arc<()>>>,
    allowance: Arc<Allowance>,
    untaken: Arc<Untaken>,
    _slot: Slot,
}

impl Link {
    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// What the connection may hold.
    pub(super) fn allowance(&self) -> &Arc<Allowance> {
        &self.0.allowance
    }

    /// The answers its client has not taken yet.
    pub(super) fn untaken(&self) -> &Arc<Untaken> {
        &self.0.untaken
    }

    /// What a client of the connection holds while both are there.
    pub(super) fn presence(&self, client: &str) -> Weak<()> {
        let mut clients = self.0.clients.lock();
        if clients.len() >= MANY_CLIENTS {
            // Of a client without a lease nothing is renewed.
            clients.retain(|_, presence| Arc::weak_count(presence) > 0);
        }
        if let Some(presence) = clients.get(client) {
            return Arc::downgrade(presence);
        }
        Arc::downgrade(clients.entry(client.into()).or_default())
    }

    /// The client is gone: nothing it received is renewed.
    pub(super) fn forget_client(&self, client: &str) {
        self.0.clients.lock().remove(client);
    }
}

impl Drop for LinkInner {
    fn drop(&mut self) {
        // The handler of the end must find no lease renewed any more.
        self.clients.get_mut().clear();
        self.connections.open.lock().remove(&self.id);
        self.connections.counters.connections.sub(1);
        self.connections.cold.on_close(self.id);
    }
}

/// Accepted connections, endless.
pub(super) struct Incoming {
    listener: TcpListener,
    connections: Arc<Connections>,
}

impl Incoming {
    pub(super) fn new(listener: TcpListener, connections: Arc<Connections>) -> Self {
        Self { listener, connections }
    }

    /// The next one. Giving the future up loses none.
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
                    refused.log(|left_out| warn!(%error, left_out, "accept failed"));
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// A connection that can be cut off from outside.
pub(super) struct GrpcStream {
    stream: Wire,
    /// Resolves when the other half, in the table of open connections, is dropped.
    cut: oneshot::Receiver<()>,
    is_cut: bool,
    /// Until the client has begun; one that does not would keep its slot for ever.
    beginning: Option<Beginning>,
    link: Link,
}

/// A client that has not said all it has to say first.
struct Beginning {
    patience: Pin<Box<Sleep>>,
    /// Bytes that are still to come.
    missing: usize,
}

impl GrpcStream {
    /// The connection as its requests see it.
    pub(super) fn link(&self) -> Link {
        self.link.clone()
    }

    /// Fails where the client took too long to begin, its TLS handshake included.
    fn check_patience(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(beginning) = &mut self.beginning else { return Ok(()) };
        match beginning.patience.as_mut().poll(context) {
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
        self.check_patience(context)?;
        let before = buffer.filled().len();
        let outcome = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if let Some(beginning) = &mut self.beginning {
            beginning.missing =
                beginning.missing.saturating_sub(buffer.filled().len().saturating_sub(before));
            if beginning.missing == 0 {
                self.beginning = None;
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
        self.check_patience(context)?;
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
        self.check_patience(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
