//! The pending calls of one connection: matches responses to callers by opaque.
//!
//! Does no I/O. After the connection has ended, a new call ends at once, without a response.

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

/// The pending calls of one connection.
pub(crate) struct Calls {
    /// Callers by opaque; `None` once the connection has ended.
    waiting: Mutex<Option<HashMap<i32, oneshot::Sender<RemotingCommand>>>>,
    answered: AtomicU64,
}

impl Calls {
    /// The calls of an open connection.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::new(Some(HashMap::new())), answered: AtomicU64::new(0) })
    }

    /// Registers a caller under `opaque`. Dropping the guard removes it.
    pub(crate) fn register(
        self: &Arc<Self>,
        opaque: i32,
    ) -> (PendingCall, oneshot::Receiver<RemotingCommand>) {
        let (sender, receiver) = oneshot::channel();
        // If the connection has ended, the sender is dropped here, which wakes the caller.
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.insert(opaque, sender);
        }
        (PendingCall { calls: Arc::clone(self), opaque }, receiver)
    }

    /// Hands a response to its caller. Returns false if no caller waits for it.
    pub(crate) fn answer(&self, response: RemotingCommand) -> bool {
        self.answered.fetch_add(1, Ordering::Relaxed);
        let caller = self.waiting.lock().as_mut().and_then(|waiting| waiting.remove(&response.opaque));
        caller.is_some_and(|caller| caller.send(response).is_ok())
    }

    /// Number of responses received, with or without a waiting caller.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Ends the connection's calls: wakes all callers without a response. Returns false if they had ended before.
    pub(crate) fn end(&self) -> bool {
        self.waiting.lock().take().is_some()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.waiting.lock().is_none()
    }
}

/// A call that waits for its response. Dropping it unregisters the caller.
pub(crate) struct PendingCall {
    calls: Arc<Calls>,
    pub(crate) opaque: i32,
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if let Some(waiting) = self.calls.waiting.lock().as_mut() {
            waiting.remove(&self.opaque);
        }
    }
}
