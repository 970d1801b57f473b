//! The gRPC v2 service. Every method carries bytes: hot ones are parsed in place, cold ones pass through.
//!
//! The reason is in `docs/decisions/003-grpc-as-bytes.md`.

mod call;
pub mod codec;
mod connection;
mod convert;
mod counted_body;
mod deadline;
mod extras;
mod framed;
pub(crate) mod hot_method;
mod http2;
mod inline_calls;
mod local;
mod service;
mod stream;
mod telemetry;
mod unary;
mod verbs;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{net::TcpListener, runtime::Handle};

use crate::{
    ColdHandler, TransportError,
    access::Access,
    connections::{budget::Budget, log_limiter::LogLimiter, slots::Slots},
    hot::{Counters, Hot},
    limits::UserConnections,
    remoting::server::connection::ConnectionLimits,
    tls::Tls,
};
use connection::{Connections, Incoming};
use extras::health::Health;
use telemetry::TelemetryStreams;

pub use local::{LocalCalls, LocalError};
pub use verbs::{
    message,
    outgoing::{BodyDigest, encode_message},
    proto,
};

/// Limits that all gRPC connections of a server share.
#[derive(Debug, Clone)]
pub struct GrpcLimits {
    /// Connection slots, shared with the other protocol.
    pub(crate) slots: Arc<Slots>,
    /// Memory budget, shared with the other protocol.
    pub(crate) budget: Arc<Budget>,
    /// Longest pause of a client in the middle of a request.
    pub stall: Duration,
    /// Time limit of a new connection for its TLS handshake and HTTP/2 preface.
    pub handshake: Duration,
    /// Limits of a connection that carries framed calls; over HTTP/2 only that of writes counts.
    pub connection: ConnectionLimits,
    /// Access control, shared with the other protocol.
    pub(crate) access: Arc<Access>,
    /// Connections of each user, shared with the other protocol.
    pub(crate) users: Arc<UserConnections>,
    /// Limits the log lines about refused connections.
    pub(crate) refused: Arc<LogLimiter>,
}

/// The gRPC server. Clones share one instance.
#[derive(Clone)]
pub struct GrpcServer(Arc<Inner>);

struct Inner {
    access: Arc<Access>,
    hot: Option<Arc<Hot>>,
    cold: Arc<dyn ColdHandler>,
    counters: Arc<Counters>,
    connections: Arc<Connections>,
    telemetry: Arc<TelemetryStreams>,
    stall: Duration,
    limits: ConnectionLimits,
    /// Set once the server accepts no new requests.
    is_draining: Arc<AtomicBool>,
    bad_frames: Arc<LogLimiter>,
    health: Health,
}

impl GrpcServer {
    /// Creates the server. Without `hot` (a name server) the hot methods answer UNIMPLEMENTED.
    ///
    /// `next_connection` assigns connection numbers; share it with the remoting server.
    #[must_use]
    pub(crate) fn new(
        hot: Option<Arc<Hot>>,
        cold: Arc<dyn ColdHandler>,
        counters: Arc<Counters>,
        next_connection: Arc<AtomicU64>,
        limits: GrpcLimits,
        tls: Arc<Tls>,
    ) -> Self {
        let (stall, connection_limits) = (limits.stall, limits.connection);
        let access = Arc::clone(&limits.access);
        let connections =
            Connections::new(Arc::clone(&cold), Arc::clone(&counters), next_connection, limits, tls);
        let telemetry = TelemetryStreams::new(Arc::clone(&cold), Arc::clone(&counters), Arc::clone(&access));
        Self(Arc::new(Inner {
            access,
            hot,
            cold,
            counters,
            connections,
            telemetry,
            stall,
            limits: connection_limits,
            is_draining: Arc::default(),
            bad_frames: Arc::default(),
            health: Health::new(),
        }))
    }

    /// Serves connections of `listener` until `shutdown` ends, then lets requests under way finish.
    ///
    /// After `shutdown`, parked long polls end empty and telemetry streams end. The future resolves when the last
    /// connection is gone; dropping it closes all connections.
    ///
    /// # Errors
    /// `Io` if the listener cannot be served.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), TransportError> {
        let _close_on_drop = CloseOnDrop(&self.0.connections);
        let drain = async {
            shutdown.await;
            self.0.is_draining.store(true, Ordering::SeqCst);
            self.0.health.stop();
            if let Some(hot) = &self.0.hot {
                hot.polls.close();
            }
            self.0.telemetry.close();
        };
        http2::serve_until(&self.0, Incoming::new(listener, Arc::clone(&self.0.connections)), drain).await;
        Ok(())
    }

    /// Calls of clients in this process.
    #[must_use]
    pub fn local_calls(&self, runtime: Handle) -> LocalCalls {
        LocalCalls::new(Arc::clone(&self.0), runtime)
    }

    /// Sends an encoded `TelemetryCommand` on stream `stream`. Returns false if the stream is gone or its buffer is
    /// full.
    #[must_use]
    pub fn send_telemetry(&self, stream: u64, message: Bytes) -> bool {
        self.0.telemetry.send(stream, message)
    }

    /// Ends telemetry stream `stream` with a gRPC status. Returns false if the stream is gone or its buffer is full.
    #[must_use]
    pub fn end_telemetry(&self, stream: u64, code: i32, message: &str) -> bool {
        self.0.telemetry.end(stream, tonic::Status::new(code.into(), message))
    }

    /// Closes a connection. Returns false if it is not open here.
    #[must_use]
    pub fn close_connection(&self, connection: u64) -> bool {
        self.0.connections.close(connection)
    }
}

/// Closes all connections when the future that served them is dropped.
struct CloseOnDrop<'a>(&'a Connections);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close_all();
    }
}
