//! Callers that wait for responses on one connection, told apart by opaque.
//!
//! It knows neither sockets nor callers. Once the connection has ended, a caller that begins to wait is woken at
//! once, without a response.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::remoting::RemotingCommand;

/// The callers of one connection; `None` once it has ended.
pub(crate) struct Calls {
    waiting: Mutex<Option<HashMap<i32, oneshot::Sender<RemotingCommand>>>>,
    answered: AtomicU64,
}

impl Calls {
    /// Returns the table of an open connection.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::new(Some(HashMap::new())), answered: AtomicU64::new(0) })
    }

    /// Registers a caller under `opaque`; the guard takes it out again.
    pub(crate) fn expect(self: &Arc<Self>, opaque: i32) -> (Pending, oneshot::Receiver<RemotingCommand>) {
        let (tell, answer) = oneshot::channel();
        // Without a table the connection has ended and the sender is dropped: the caller wakes at once.
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.insert(opaque, tell);
        }
        (Pending { calls: Arc::clone(self), opaque }, answer)
    }

    /// Hands a response to its caller; false where none waits.
    pub(crate) fn answer(&self, response: RemotingCommand) -> bool {
        self.answered.fetch_add(1, Ordering::Relaxed);
        let caller = self.waiting.lock().as_mut().and_then(|waiting| waiting.remove(&response.opaque));
        caller.is_some_and(|caller| caller.send(response).is_ok())
    }

    /// How many responses came, with or without a waiting caller.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Wakes all callers without a response; false if it was called before.
    pub(crate) fn end(&self) -> bool {
        self.waiting.lock().take().is_some()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.waiting.lock().is_none()
    }
}

/// A request whose response is awaited.
pub(crate) struct Pending {
    calls: Arc<Calls>,
    pub(crate) opaque: i32,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(waiting) = self.calls.waiting.lock().as_mut() {
            waiting.remove(&self.opaque);
        }
    }
}
