//! Callers that wait for responses on one connection, told apart by opaque.
//!
//! It knows neither sockets nor who calls. Once the connection has ended nobody can begin to wait: a caller
//! that tries is woken at once, without a response.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::remoting::RemotingCommand;

/// The callers of one connection; `None` once it has ended.
pub(crate) struct Calls(Mutex<Option<HashMap<i32, oneshot::Sender<RemotingCommand>>>>);

impl Calls {
    /// Returns the table of an open connection.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(HashMap::new()))))
    }

    /// Registers a caller under `opaque`; the guard takes it out again.
    pub(crate) fn expect(self: &Arc<Self>, opaque: i32) -> (Pending, oneshot::Receiver<RemotingCommand>) {
        let (tell, answer) = oneshot::channel();
        // Without a table the connection has ended and the sender is dropped: the caller wakes at once.
        if let Some(waiting) = self.0.lock().as_mut() {
            waiting.insert(opaque, tell);
        }
        (Pending { calls: Arc::clone(self), opaque }, answer)
    }

    /// Hands a response to who waits for it; false where nobody does.
    pub(crate) fn answer(&self, response: RemotingCommand) -> bool {
        let caller = self.0.lock().as_mut().and_then(|waiting| waiting.remove(&response.opaque));
        caller.is_some_and(|caller| caller.send(response).is_ok())
    }

    /// Wakes everybody without a response; false where that has happened before.
    pub(crate) fn end(&self) -> bool {
        self.0.lock().take().is_some()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.0.lock().is_none()
    }
}

/// A request whose response is awaited.
pub(crate) struct Pending {
    calls: Arc<Calls>,
    pub(crate) opaque: i32,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(waiting) = self.calls.0.lock().as_mut() {
            waiting.remove(&self.opaque);
        }
    }
}
