//! The options of a server.

use std::time::Duration;

use crate::{remoting::server::connection::ConnectionLimits, tls::HANDSHAKE_PATIENCE};

/// What a server may cost, and how patient it is.
#[derive(Debug, Clone, Copy)]
pub struct ServerOptions {
    /// Open connections of both protocols; more are closed as they come. `None`: what the limit of descriptors leaves beside
    /// those of the store, for all servers of the process together, and at most 16,384.
    pub max_connections: Option<usize>,
    /// Bytes of memory for requests that arrive or are answered and for answers that peers have not taken yet, of
    /// both protocols together. Beyond it remoting connections are not read, and gRPC requests are refused; an eighth
    /// of it is for small requests alone.
    pub memory: usize,
    /// Those of one connection: a client that stops in the middle of its requests, or reads no answers, waits or is
    /// refused before the others are. No gRPC request larger than it is served.
    pub connection_memory: usize,
    /// How long a gRPC client may send nothing in the middle of a request; then the request ends.
    pub grpc_stall: Duration,
    /// How long a new gRPC connection may take to begin, its TLS handshake included, and one over remoting for a handshake
    /// that has begun.
    pub handshake: Duration,
    /// Calls of clients under way; more wait.
    pub calls: usize,
    /// One-way requests under way over all connections; beyond it, or beyond a quarter of it on its own, a
    /// connection with one more is not read.
    pub one_way: usize,
    /// What each remoting connection may cost.
    pub connection: ConnectionLimits,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: None,
            memory: 256 << 20,
            connection_memory: 64 << 20,
            grpc_stall: Duration::from_secs(30),
            handshake: HANDSHAKE_PATIENCE,
            calls: 64,
            one_way: 256,
            connection: ConnectionLimits::default(),
        }
    }
}

impl ServerOptions {
    /// So heavy that one-way requests of one connection are at most a quarter of those of the server.
    pub(super) fn one_way_weight(&self) -> u32 {
        let share = u32::try_from(self.one_way / 4).unwrap_or(u32::MAX).max(1);
        u32::from(self.connection.in_flight).div_ceil(share).max(1)
    }
}
