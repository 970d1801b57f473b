//! `Server`: listeners, the connections that they accept, and the end of both.
//!
//! Composes the remoting and the gRPC half over one hot path and one cold handler. `remoting::server` and `grpc` serve
//! the connections.

mod options;

pub use options::ServerOptions;

use std::{
    io,
    net::{self, SocketAddr},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use ferromq_store::{MessageStore, time::Clock};
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::{Notify, Semaphore, watch},
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    ColdHandler, TransportError,
    access::{Access, Rules},
    connections::{budget::Budget, log_limiter::LogLimiter, slots::Slots, sockets},
    grpc::{GrpcLimits, GrpcServer, LocalCalls},
    hot::{Counters, Hot, latencies::LatencyRow, spans::Spans},
    limits::{ConnectionUsers, UserConnections},
    remoting::{
        Limits, RemotingCommand,
        calls::Calls,
        codes::framed,
        server::{
            connection::{self, Connection, ConnectionLimits},
            outbox::{Outbox, OutboxWriter, outbox},
            peers::{Peer, Peers},
        },
        verbs,
    },
    tables::{Tables, routes::Routes},
    tls::{AcceptedConnection, GrpcTls, ServerTls, Tls, TlsMode},
};

/// Connection numbers are unique in the process, so that servers can share a control plane.
static NEXT_CONNECTION: LazyLock<Arc<AtomicU64>> = LazyLock::new(|| Arc::new(AtomicU64::new(1)));

/// Pause after a failed `accept`: without file descriptors it fails again at once, and nothing signals a free one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time that a stopping server gives cut-off connections to report their end.
const CUT_OFF_GRACE: Duration = Duration::from_millis(500);

/// The server's life cycle; it only moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    /// Accepts no new connections and requests; requests in flight finish.
    Draining,
    /// Remaining connections are cut off.
    Ended,
}

struct ServerInner {
    runtime: Handle,
    options: ServerOptions,
    cold: Arc<dyn ColdHandler>,
    counters: Arc<Counters>,
    tables: Arc<Tables>,
    access: Arc<Access>,
    users: Arc<UserConnections>,
    hot: Option<Arc<Hot>>,
    grpc: GrpcServer,
    routes: Arc<Routes>,
    peers: Peers,
    budget: Arc<Budget>,
    refused: Arc<LogLimiter>,
    bad_frames: Arc<LogLimiter>,
    /// Port of the gRPC listener; 0 without one.
    grpc_port: AtomicU16,
    tls: Tls,
    grpc_tls: Arc<Tls>,
    /// A certificate was configured or generated.
    is_grpc_tls_set: AtomicBool,
    slots: Arc<Slots>,
    one_way: Arc<Semaphore>,
    phase: watch::Sender<Phase>,
    /// The server accepts no new requests. Set before `phase`, whose waiters are woken one after the other.
    is_draining: Arc<AtomicBool>,
    listeners: Mutex<Vec<JoinHandle<()>>>,
}

/// A server of both protocols. Clones share its state.
#[derive(Clone)]
pub struct Server(Arc<ServerInner>);

impl Server {
    /// Makes a server whose tasks run on `runtime`. Without `store` (a name server) there is no hot path.
    #[must_use]
    pub fn new(
        runtime: Handle,
        options: ServerOptions,
        clock: Clock,
        store: Option<(Arc<MessageStore>, String)>,
        cold: Arc<dyn ColdHandler>,
    ) -> Self {
        let (counters, tables) = (Arc::new(Counters::default()), Arc::new(Tables::new()));
        let store_files = store.as_ref().map_or(0, |(store, _)| store.admin().open_files());
        let hot = store.map(|(store, broker_name)| {
            let (cold, counters) = (Arc::clone(&cold), Arc::clone(&counters));
            Hot::new(store, Arc::clone(&tables), clock, broker_name, cold, counters)
        });
        let access = hot.as_ref().map_or_else(
            || Arc::new(Access::new(Arc::clone(&tables))),
            |hot: &Arc<Hot>| Arc::clone(&hot.access),
        );
        let users = hot.as_ref().map(|hot| Arc::clone(&hot.limits.connections)).unwrap_or_default();
        let numbers = Arc::clone(&NEXT_CONNECTION);
        let slots =
            Arc::new(Slots::new(options.max_connections, options.max_connections_by_address, store_files));
        let budget = Budget::new(options.memory, options.connection_memory);
        let limits = GrpcLimits {
            slots: Arc::clone(&slots),
            budget: Arc::clone(&budget),
            stall: options.grpc_stall,
            handshake: options.handshake,
            // Framed calls have a fixed size: their clients know it.
            connection: ConnectionLimits { frames: Limits::default(), ..options.connection },
            access: Arc::clone(&access),
            users: Arc::clone(&users),
            refused: Arc::default(),
        };
        let refused = Arc::clone(&limits.refused);
        let grpc_tls = Arc::new(Tls::speaking(&[b"h2", framed::ALPN]));
        let (grpc_cold, grpc_counters) = (Arc::clone(&cold), Arc::clone(&counters));
        let tls = Arc::clone(&grpc_tls);
        let grpc = GrpcServer::new(hot.clone(), grpc_cold, grpc_counters, numbers, limits, tls);
        Self(Arc::new(ServerInner {
            runtime,
            options,
            cold,
            counters,
            tables,
            access,
            users,
            hot,
            grpc,
            routes: Arc::default(),
            peers: Peers::new(options.calls),
            budget,
            refused,
            bad_frames: Arc::default(),
            grpc_port: AtomicU16::new(0),
            tls: Tls::default(),
            grpc_tls,
            is_grpc_tls_set: AtomicBool::new(false),
            slots,
            one_way: Arc::new(Semaphore::new(options.one_way.min(Semaphore::MAX_PERMITS))),
            phase: watch::Sender::new(Phase::Running),
            is_draining: Arc::default(),
            listeners: Mutex::default(),
        }))
    }

    /// Serves remoting connections of a bound listener and returns its address.
    ///
    /// # Errors
    /// `Io` if the runtime rejects the listener or the server has stopped.
    pub fn listen_remoting(&self, listener: net::TcpListener) -> Result<SocketAddr, TransportError> {
        let (listener, address) = self.adopt(listener)?;
        let server = self.clone();
        self.spawn_listener(async move {
            info!(%address, "remoting listener open");
            server.accept(listener).await;
        });
        Ok(address)
    }

    /// Serves gRPC connections of a bound listener and returns its address.
    ///
    /// TLS and plaintext are as set by [`Self::set_grpc_tls`]; by default both, with a certificate generated now.
    ///
    /// # Errors
    /// `Io` if the runtime rejects the listener or the server has stopped; `Tls` if no certificate can be generated.
    pub fn listen_grpc(&self, listener: net::TcpListener) -> Result<SocketAddr, TransportError> {
        if !self.0.is_grpc_tls_set.load(Ordering::Relaxed) {
            self.0.grpc_tls.set_own(TlsMode::Permissive)?;
            self.0.is_grpc_tls_set.store(true, Ordering::Relaxed);
        }
        let (listener, address) = self.adopt(listener)?;
        self.0.grpc_port.store(address.port(), Ordering::Relaxed);
        let server = self.clone();
        self.spawn_listener(async move {
            info!(%address, "grpc listener open");
            tokio::select! {
                ended = server.0.grpc.serve(listener, server.reached(Phase::Draining)) => {
                    if let Err(error) = ended {
                        warn!(%address, %error, "grpc listener failed");
                    }
                }
                () = server.reached(Phase::Ended) => {}
            }
        });
        Ok(address)
    }

    /// Topics and groups pushed by the control plane.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.0.tables
    }

    /// Turns access control on with these rules, or replaces them; `None` turns it off. Holds from the next request on.
    pub fn set_access(&self, rules: Option<Rules>) {
        self.0.access.set(rules);
    }

    /// Access control, for what the control plane finds in the store.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.0.access
    }

    /// Encoded routes pushed by the control plane of a name server.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.0.routes
    }

    /// Sets the TLS options of remoting connections, from the next one on.
    ///
    /// # Errors
    /// `Tls` naming the file; the previous options stay in force.
    pub fn set_tls(&self, options: ServerTls) -> Result<(), TransportError> {
        self.0.tls.set(options)
    }

    /// Sets the TLS options of gRPC connections, from the next one on. Without files, generates a certificate.
    ///
    /// # Errors
    /// `Tls` naming the file; the previous options stay in force.
    pub fn set_grpc_tls(&self, options: GrpcTls) -> Result<(), TransportError> {
        match options {
            GrpcTls::Files(options) => self.0.grpc_tls.set(options)?,
            GrpcTls::Own(mode) => self.0.grpc_tls.set_own(mode)?,
        }
        self.0.is_grpc_tls_set.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Reloads changed TLS files once they fit together: a key may be replaced after its certificate, and a certificate
    /// may be renewed with the same key. Files that do not fit are logged once and change nothing.
    ///
    /// Returns whether anything changed. Reads files: must not run on threads of the runtime.
    #[must_use]
    pub fn reload_tls(&self) -> bool {
        let (remoting, grpc) = (self.0.tls.reload(), self.0.grpc_tls.reload());
        remoting || grpc
    }

    /// Sends a one-way request to a remoting client. Returns false if its connection has ended or accepts no more
    /// requests.
    ///
    /// Never waits: unread requests are bounded, per client and in total.
    ///
    /// # Errors
    /// `FrameTooLarge`.
    pub fn push(&self, connection: u64, request: RemotingCommand) -> Result<bool, TransportError> {
        self.0.peers.push(connection, request)
    }

    /// Sends a request to a remoting client and waits for its response.
    ///
    /// # Errors
    /// `Io` if its connection has ended, ends meanwhile or accepts no more requests, and `Timeout`, both naming the
    /// client; `FrameTooLarge`.
    pub async fn call(
        &self,
        connection: u64,
        request: RemotingCommand,
        limit: Duration,
    ) -> Result<RemotingCommand, TransportError> {
        self.0.peers.call(connection, request, limit).await
    }

    /// Calls of clients in this process, which need no connection.
    #[must_use]
    pub fn local_calls(&self) -> LocalCalls {
        self.0.grpc.local_calls(self.0.runtime.clone())
    }

    /// The hot path; `None` on a name server.
    #[must_use]
    pub fn hot(&self) -> Option<&Hot> {
        self.0.hot.as_deref()
    }

    /// Name and value of each counter.
    #[must_use]
    pub fn stats(&self) -> Vec<(&'static str, u64)> {
        let mut stats = self.0.counters.snapshot();
        stats.push(("memory_held", self.0.budget.held()));
        stats.push(("connection_limit", self.0.slots.limit() as u64));
        stats
    }

    /// How long requests took.
    #[must_use]
    pub fn latencies(&self) -> Vec<LatencyRow> {
        self.0.counters.latencies.snapshot()
    }

    /// Spans of requests, for traces.
    #[must_use]
    pub fn spans(&self) -> &Spans {
        &self.0.counters.spans
    }

    /// Sends an encoded `TelemetryCommand` on a stream. Returns false if the stream has ended or its buffer is full.
    #[must_use]
    pub fn send_telemetry(&self, stream: u64, message: Bytes) -> bool {
        self.0.grpc.send_telemetry(stream, message)
    }

    /// Ends a telemetry stream with a gRPC status. Returns false if the stream has ended or its buffer is full.
    #[must_use]
    pub fn end_telemetry(&self, stream: u64, code: i32, message: &str) -> bool {
        self.0.grpc.end_telemetry(stream, code, message)
    }

    /// Closes a connection of either protocol; an unknown number is ignored.
    pub fn close_connection(&self, connection: u64) {
        match self.0.peers.get(connection) {
            Some(peer) => peer.close.notify_one(),
            None => _ = self.0.grpc.close_connection(connection),
        }
    }

    /// Stops the server: closes listeners, gives requests in flight `grace` to finish, then cuts off all connections.
    ///
    /// A second call does not wait.
    pub async fn stop(&self, grace: Duration) {
        self.advance(Phase::Draining);
        if let Some(hot) = &self.0.hot {
            hot.polls.close();
        }
        let mut listeners = std::mem::take(&mut *self.0.listeners.lock());
        let ended = timeout(grace, join_all(&mut listeners)).await;
        self.advance(Phase::Ended);
        if ended.is_err() {
            warn!(grace_ms = grace.as_millis(), "requests cut off at the end of the grace period");
            if timeout(CUT_OFF_GRACE, join_all(&mut listeners)).await.is_err() {
                listeners.iter().for_each(JoinHandle::abort);
            }
        }
    }

    fn advance(&self, to: Phase) {
        self.0.is_draining.store(true, Ordering::SeqCst);
        self.0.phase.send_if_modified(|phase| std::mem::replace(phase, to.max(*phase)) < to);
    }

    async fn reached(&self, wanted: Phase) {
        // The sender lives in `self`, so the channel cannot be closed.
        let _ = self.0.phase.subscribe().wait_for(|phase| *phase >= wanted).await;
    }

    fn adopt(&self, listener: net::TcpListener) -> Result<(TcpListener, SocketAddr), TransportError> {
        let _runtime = self.0.runtime.enter();
        let stopped = *self.0.phase.borrow() != Phase::Running;
        let adopted = if stopped { Err(io::Error::other("the server has stopped")) } else { Ok(listener) };
        adopted
            .and_then(|listener| {
                let address = listener.local_addr()?;
                listener.set_nonblocking(true)?;
                let socket = SockRef::from(&listener);
                // Accepted sockets take the sizes over. Set later, they would not change the window of TCP.
                if let Some(bytes) = self.0.options.send_buffer {
                    socket.set_send_buffer_size(bytes)?;
                }
                if let Some(bytes) = self.0.options.receive_buffer {
                    socket.set_recv_buffer_size(bytes)?;
                }
                socket.listen(self.0.options.backlog)?;
                Ok((TcpListener::from_std(listener)?, address))
            })
            .map_err(|source| TransportError::Io { peer: "listener".to_owned(), source })
    }

    fn spawn_listener(&self, listener: impl Future<Output = ()> + Send + 'static) {
        self.0.listeners.lock().push(self.0.runtime.spawn(listener));
    }

    /// Accepts until the server drains, then waits for the connections it accepted.
    async fn accept(&self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        let draining = self.reached(Phase::Draining);
        tokio::pin!(draining);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
                () = &mut draining => break,
            };
            match accepted {
                Ok((stream, peer)) => self.admit(stream, peer, &mut connections),
                Err(error) => {
                    self.0.refused.log(|suppressed| warn!(%error, suppressed, "accept failed"));
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    fn admit(&self, stream: TcpStream, peer: SocketAddr, connections: &mut JoinSet<()>) {
        let inner = &self.0;
        let slot = match inner.slots.take(peer.ip()) {
            Ok(slot) => slot,
            Err(reason) => {
                inner.counters.refused_connections.add(1);
                inner.refused.log(|suppressed| warn!(%peer, %reason, suppressed, "connection refused"));
                return;
            }
        };
        sockets::set_up(&stream);
        let id = NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed);
        let limits = inner.options.connection;
        let (outbox, writer) = outbox(limits.in_flight, Some(Arc::clone(&inner.counters)));
        let (allowance, calls) = (inner.budget.allowance(peer.ip()), Calls::new());
        let handle = Arc::new(Peer {
            address: peer,
            outbox: outbox.downgrade(),
            allowance: Arc::clone(&allowance),
            calls: Arc::clone(&calls),
            close: Notify::new(),
        });
        inner.peers.insert(id, Arc::clone(&handle));
        inner.counters.connections.add(1);
        let connection = Connection {
            id,
            peer,
            certificate: None,
            users: Arc::new(ConnectionUsers::new(&inner.users)),
            limits,
            allowance,
            cold: Some(Arc::clone(&inner.cold)),
            hot: inner.hot.clone(),
            find_verb: verbs::find,
            access: Arc::clone(&self.0.access),
            check: connection::check,
            limit: verbs::limited::check,
            routes: Arc::clone(&inner.routes),
            is_draining: Arc::clone(&inner.is_draining),
            one_way: Arc::clone(&inner.one_way),
            one_way_weight: inner.options.one_way_weight(),
            counters: Arc::clone(&inner.counters),
            bad_frames: Arc::clone(&inner.bad_frames),
            grpc_port: inner.grpc_port.load(Ordering::Relaxed),
            calls,
        };
        let close_guard = CloseGuard { server: self.clone(), id };
        let server = self.clone();
        connections.spawn(async move {
            let _slot = slot;
            let _close_guard = close_guard;
            tokio::select! {
                () = server.serve(connection, stream, (outbox, writer), &handle) => {}
                () = server.reached(Phase::Ended) => {}
            }
        });
    }

    async fn serve(
        &self,
        mut connection: Connection,
        stream: TcpStream,
        ends: (Outbox, OutboxWriter),
        handle: &Peer,
    ) {
        let draining = self.reached(Phase::Draining);
        let closed = handle.close.notified();
        let stream = tokio::select! {
            stream = self.0.tls.accept(stream, connection.limits.idle, self.0.options.handshake) => stream,
            () = self.reached(Phase::Draining) => None,
            () = handle.close.notified() => None,
        };
        connection.certificate = stream.as_ref().and_then(AcceptedConnection::certificate);
        match stream {
            Some(AcceptedConnection::Plain(stream)) => {
                connection.serve(stream.into_split(), ends, draining, closed).await;
            }
            Some(AcceptedConnection::Tls(stream)) => {
                connection.serve(tokio::io::split(stream), ends, draining, closed).await;
            }
            None => {}
        }
    }
}

/// Reports the end of a connection once, however its task ends.
struct CloseGuard {
    server: Server,
    id: u64,
}

impl Drop for CloseGuard {
    fn drop(&mut self) {
        let inner = &self.server.0;
        // Even if the connection was never served: calls to it must not wait.
        if let Some(peer) = inner.peers.remove(self.id) {
            peer.calls.end();
        }
        inner.counters.connections.sub(1);
        inner.cold.on_close(self.id);
    }
}

async fn join_all(listeners: &mut Vec<JoinHandle<()>>) {
    while let Some(last) = listeners.last_mut() {
        // A panicked listener has ended, too; the runtime printed the panic.
        let _ = last.await;
        listeners.pop();
    }
}
