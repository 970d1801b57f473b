//! The options of a server.

use std::time::Duration;

use crate::{remoting::server::connection::ConnectionLimits, tls::HANDSHAKE_PATIENCE};

/// Limits and timeouts of a server.
#[derive(Debug, Clone, Copy)]
pub struct ServerOptions {
    /// Open connections of both protocols; further ones are closed at once. `None`: the file descriptors that the store
    /// leaves free, for all servers of the process together, at most 16,384.
    pub max_connections: Option<usize>,
    /// Open connections of one address, of both protocols; further ones are closed at once.
    pub max_connections_by_address: Option<usize>,
    /// Connections that can wait to be accepted: a whole fleet may reconnect at once. The system may allow fewer.
    pub backlog: i32,
    /// Bytes that the system buffers of answers to a connection; `None`: as the system decides.
    pub send_buffer: Option<usize>,
    /// Bytes that the system buffers of a connection's requests; `None`: as the system decides.
    pub receive_buffer: Option<usize>,
    /// Bytes of memory for requests received or in flight and for unread responses, over both protocols. At the limit
    /// remoting connections are not read and gRPC requests are refused. An eighth is reserved for small requests.
    pub memory: usize,
    /// The same for one connection: a client that stops inside its requests or does not read its responses is limited
    /// before the others. A larger gRPC request is refused.
    pub connection_memory: usize,
    /// How long a gRPC client may pause inside a request before the request is ended.
    pub grpc_stall: Duration,
    /// How long a new gRPC connection may take to begin, including its TLS handshake, and a remoting connection for a
    /// TLS handshake that has begun.
    pub handshake: Duration,
    /// Calls to clients in flight; further ones wait.
    pub calls: usize,
    /// One-way requests in flight over all connections. A connection whose next request would exceed this, or a quarter
    /// of it on its own, is not read.
    pub one_way: usize,
    /// Limits of each remoting connection.
    pub connection: ConnectionLimits,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: None,
            max_connections_by_address: None,
            backlog: 4096,
            send_buffer: None,
            receive_buffer: None,
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
    /// Weight of a one-way request in `in_flight`, so that one connection has at most a quarter of `one_way`.
    pub(super) fn one_way_weight(&self) -> u32 {
        let share = u32::try_from(self.one_way / 4).unwrap_or(u32::MAX).max(1);
        u32::from(self.connection.in_flight).div_ceil(share).max(1)
    }
}
