//! The open remoting connections of a server by number, and the server's requests to their clients.
//!
//! A push is one-way and never waits; a client that does not read loses only its own pushes. A call waits for the
//! client's response, at most for its time limit.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore},
    time::timeout,
};

use crate::{
    TransportError,
    connections::budget::Allowance,
    remoting::{RemotingCommand, calls::Calls, codec, server::outbox::WeakOutbox},
};

/// The server's handle to an open connection.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) outbox: WeakOutbox,
    /// The connection's part of the memory budget.
    pub(crate) allowance: Arc<Allowance>,
    /// Server requests that the peer has not answered yet.
    pub(crate) calls: Arc<Calls>,
    /// Notified to close the connection at once.
    pub(crate) close: Notify,
}

/// The connections of a server.
pub(crate) struct Peers {
    open: Mutex<HashMap<u64, Arc<Peer>>>,
    next_opaque: AtomicI32,
    /// Permits for calls in flight, over all connections.
    calls: Semaphore,
}

impl Peers {
    pub(crate) fn new(calls: usize) -> Self {
        Self {
            open: Mutex::default(),
            next_opaque: AtomicI32::new(1),
            calls: Semaphore::new(calls.min(Semaphore::MAX_PERMITS)),
        }
    }

    pub(crate) fn insert(&self, id: u64, peer: Arc<Peer>) {
        self.open.lock().insert(id, peer);
    }

    pub(crate) fn remove(&self, id: u64) -> Option<Arc<Peer>> {
        self.open.lock().remove(&id)
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<Peer>> {
        self.open.lock().get(&id).cloned()
    }

    /// Sends a one-way request. Returns false if the connection has ended or accepts no more requests.
    ///
    /// # Errors
    /// `FrameTooLarge`.
    pub(crate) fn push(&self, id: u64, mut request: RemotingCommand) -> Result<bool, TransportError> {
        let Some(peer) = self.get(id) else { return Ok(false) };
        request.opaque = self.next_opaque();
        request.set_one_way();
        Ok(peer.outbox.push(codec::encode(&request)?, peer.allowance.share()))
    }

    /// Sends a request and waits for its response.
    ///
    /// # Errors
    /// `Io` if the connection has ended, ends meanwhile or accepts no more requests; `Timeout`; `FrameTooLarge`.
    pub(crate) async fn call(
        &self,
        id: u64,
        mut request: RemotingCommand,
        limit: Duration,
    ) -> Result<RemotingCommand, TransportError> {
        let Some(peer) = self.get(id) else { return Err(connection_lost(&format!("connection {id}"))) };
        let address = peer.address.to_string();
        let answered = timeout(limit, async {
            // The semaphore is never closed.
            let _permit = self.calls.acquire().await.map_err(|_| connection_lost(&address))?;
            request.opaque = self.next_opaque();
            let (_pending, answer) = peer.calls.register(request.opaque);
            if !peer.outbox.push(codec::encode(&request)?, peer.allowance.share()) {
                return Err(connection_lost(&address));
            }
            answer.await.map_err(|_| connection_lost(&address))
        });
        answered.await.unwrap_or_else(|_| {
            let timeout_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            Err(TransportError::Timeout { peer: address.clone(), timeout_ms })
        })
    }

    fn next_opaque(&self) -> i32 {
        self.next_opaque.fetch_add(1, Ordering::Relaxed)
    }
}

fn connection_lost(peer: &str) -> TransportError {
    let source =
        io::Error::new(io::ErrorKind::NotConnected, "the connection has ended or accepts no more requests");
    TransportError::Io { peer: peer.to_owned(), source }
}
