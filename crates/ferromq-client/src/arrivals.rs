//! Waits for messages at several servers at once.

use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use crate::{CallError, Cancellation, Connections, Patience, Request, Response, TICK, sync};

/// How long a request waits at its server, and the answer on its way.
const LIMIT: Duration = Duration::from_secs(30);
/// A server that failed is asked again after this time.
const PAUSE: Duration = Duration::from_secs(1);

/// A request that a server answers once it has messages.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Names the request: the same name is not sent twice at once.
    pub name: String,
    /// The server.
    pub address: String,
    /// The request.
    pub request: Request,
}

/// Requests that wait at servers, each on a thread and a connection of its own; thread-safe.
///
/// What waits goes on waiting after another request was answered, for 30 s at most.
#[derive(Default)]
pub struct Arrivals {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    connections: Connections,
    cancellation: Cancellation,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The requests under way; a failed one stays until this time.
    waiting: HashMap<String, Option<Instant>>,
    answered: Vec<(String, Response)>,
    /// Called once, when something is answered next.
    waker: Option<Box<dyn FnOnce() + Send>>,
    is_interrupted: bool,
    is_closed: bool,
}

impl Arrivals {
    /// Watches nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches nothing yet, and calls servers over these connections.
    #[must_use]
    pub fn over(connections: Connections) -> Self {
        Self { shared: Arc::new(Shared { connections, ..Shared::default() }) }
    }

    /// Sends the requests that are not under way, and waits for the first answers. Returns none if none came in time, if
    /// it was interrupted, or after [`Self::close`].
    pub fn wait(&self, watched: &[Watched], patience: Patience<'_>) -> Vec<(String, Response)> {
        self.send(watched);
        let mut state = sync::lock(&self.shared.state);
        loop {
            let now = Instant::now();
            let is_over =
                now >= patience.until || state.is_closed || std::mem::take(&mut state.is_interrupted);
            if !state.answered.is_empty() || is_over {
                return std::mem::take(&mut state.answered);
            }
            drop(sync::wait_until(&self.shared.changed, state, patience.until.min(now + TICK)));
            // Without the lock: the caller's check may wait for a lock of its own.
            let is_interrupted = (patience.is_interrupted)();
            state = sync::lock(&self.shared.state);
            state.is_interrupted |= is_interrupted;
        }
    }

    /// Sends the requests that are not under way. Calls `wake` once, when something is answered, maybe at once.
    pub fn watch(&self, watched: &[Watched], wake: impl FnOnce() + Send + 'static) {
        self.send(watched);
        let mut state = sync::lock(&self.shared.state);
        if state.answered.is_empty() && !state.is_closed {
            state.waker = Some(Box::new(wake));
        } else {
            drop(state);
            wake();
        }
    }

    /// Takes the answers that have come.
    pub fn take(&self) -> Vec<(String, Response)> {
        std::mem::take(&mut sync::lock(&self.shared.state).answered)
    }

    /// Ends the wait of a thread.
    pub fn interrupt(&self) {
        sync::lock(&self.shared.state).is_interrupted = true;
        self.shared.changed.notify_all();
    }

    /// Ends all waits and requests.
    pub fn close(&self) {
        sync::lock(&self.shared.state).is_closed = true;
        self.shared.wake();
        self.shared.cancellation.set();
        self.shared.connections.close();
    }

    fn send(&self, watched: &[Watched]) {
        let now = Instant::now();
        let new: Vec<Watched> = {
            let mut state = sync::lock(&self.shared.state);
            if state.is_closed {
                return;
            }
            let is_new = |each: &&Watched| match state.waiting.get(&each.name) {
                Some(None) => false,
                Some(Some(again)) => *again <= now,
                None => true,
            };
            let new: Vec<_> = watched.iter().filter(is_new).cloned().collect();
            state.waiting.extend(new.iter().map(|each| (each.name.clone(), None)));
            new
        };
        for Watched { name, address, request } in new {
            let (shared, failed) = (Arc::clone(&self.shared), name.clone());
            let run = move || {
                let patience = Patience { until: Instant::now() + LIMIT, is_interrupted: &|| false };
                let answer = shared.connections.poll(&address, request, patience, &shared.cancellation);
                shared.end(name, answer);
            };
            if thread::Builder::new().name("ferromq-arrivals".to_owned()).spawn(run).is_err() {
                self.shared.fail(failed);
            }
        }
    }
}

impl Shared {
    fn end(&self, name: String, answer: Result<Response, CallError>) {
        match answer {
            Ok(response) => {
                let mut state = sync::lock(&self.state);
                state.waiting.remove(&name);
                state.answered.push((name, response));
                drop(state);
                self.wake();
            }
            // Its time is over: it is sent again with the next wait.
            Err(CallError::Timeout { .. }) => _ = sync::lock(&self.state).waiting.remove(&name),
            Err(_) => self.fail(name),
        }
    }

    fn fail(&self, name: String) {
        sync::lock(&self.state).waiting.insert(name, Some(Instant::now() + PAUSE));
    }

    fn wake(&self) {
        let waker = sync::lock(&self.state).waker.take();
        self.changed.notify_all();
        if let Some(wake) = waker {
            wake();
        }
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrivals")
            .field("waiting", &sync::lock(&self.shared.state).waiting)
            .finish_non_exhaustive()
    }
}
