//! The gRPC v2 service: every method carries bytes, hot ones are parsed in place, cold ones pass through.
//!
//! `docs/decisions/003-grpc-as-bytes.md` says why.

mod call;
pub mod codec;
mod connection;
mod convert;
mod counted_body;
mod deadline;
mod extras;
pub(crate) mod hot_method;
mod http2;
mod inline_calls;
mod service;
mod stream;
mod telemetry;
mod unary;
mod verbs;

use std::{
    future::Future,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use bytes::Bytes;
use tokio::net::TcpListener;

use crate::{
    ColdHandler, TransportError,
    connections::{budget::Budget, log_limiter::LogLimiter, slots::Slots},
    hot::{Counters, Hot},
    tls::Tls,
};
use connection::{Connections, Incoming};
use extras::health::Health;
use telemetry::TelemetryStreams;

pub use verbs::{message, outgoing::encode_message, proto};

/// What all gRPC connections of a server may cost together.
#[derive(Debug, Clone)]
pub struct GrpcLimits {
    /// One for each connection, of both protocols.
    pub(crate) slots: Arc<Slots>,
    /// The memory that connections of both protocols share.
    pub(crate) budget: Arc<Budget>,
    /// How long a client may stop in the middle of a request.
    pub stall: Duration,
    /// How long a new connection may take to begin.
    pub handshake: Duration,
    /// How long a client may take nothing of the answers it is to have.
    pub write: Duration,
    /// Connections that were not taken, as the log says it.
    pub(crate) refused: Arc<LogLimiter>,
}

/// The gRPC half of a server; clones share it.
#[derive(Clone)]
pub struct GrpcServer(Arc<Inner>);

struct Inner {
    hot: Option<Arc<Hot>>,
    cold: Arc<dyn ColdHandler>,
    counters: Arc<Counters>,
    connections: Arc<Connections>,
    telemetry: Arc<TelemetryStreams>,
    stall: Duration,
    write: Duration,
    health: Health,
}

impl GrpcServer {
    /// Makes the service. Without `hot` (a name server) the hot methods answer UNIMPLEMENTED.
    ///
    /// `next_connection` gives out connection numbers; share it with the remoting half.
    #[must_use]
    pub(crate) fn new(
        hot: Option<Arc<Hot>>,
        cold: Arc<dyn ColdHandler>,
        counters: Arc<Counters>,
        next_connection: Arc<AtomicU64>,
        limits: GrpcLimits,
        tls: Arc<Tls>,
    ) -> Self {
        let (stall, write) = (limits.stall, limits.write);
        let (of_cold, of_counters) = (Arc::clone(&cold), Arc::clone(&counters));
        let connections = Connections::new(of_cold, of_counters, next_connection, limits, tls);
        let telemetry = TelemetryStreams::new(Arc::clone(&cold), Arc::clone(&counters));
        Self(Arc::new(Inner {
            hot,
            cold,
            counters,
            connections,
            telemetry,
            stall,
            write,
            health: Health::new(),
        }))
    }

    /// Serves connections of `listener` until `shutdown` ends, then lets requests under way finish.
    ///
    /// After `shutdown` parked polls end empty and telemetry streams end; returns when the last connection is
    /// gone. Dropping the future cuts the connections off.
    ///
    /// # Errors
    /// `Io` where the listener cannot be served.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), TransportError> {
        let _cut_off = CutOff(&self.0.connections);
        let drain = async {
            shutdown.await;
            self.0.health.stop();
            if let Some(hot) = &self.0.hot {
                hot.polls.close();
            }
            self.0.telemetry.close();
        };
        http2::serve_until(&self.0, Incoming::new(listener, Arc::clone(&self.0.connections)), drain).await;
        Ok(())
    }

    /// Sends an encoded `TelemetryCommand` on stream `stream`; false where it is gone or its buffer is full.
    #[must_use]
    pub fn send_telemetry(&self, stream: u64, message: Bytes) -> bool {
        self.0.telemetry.send(stream, message)
    }

    /// Ends telemetry stream `stream` with a gRPC status; false where it is gone or its buffer is full.
    #[must_use]
    pub fn end_telemetry(&self, stream: u64, code: i32, message: &str) -> bool {
        self.0.telemetry.end(stream, tonic::Status::new(code.into(), message))
    }

    /// Closes a connection; false where it is not one of ours.
    #[must_use]
    pub fn close_connection(&self, connection: u64) -> bool {
        self.0.connections.close(connection)
    }
}

/// Cuts all connections off when the future that served them is gone.
struct CutOff<'a>(&'a Connections);

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        self.0.close_all();
    }
}
