//! Framed calls of clients in the server's own process: the same methods, without a socket and without frames.
//!
//! A call runs on the thread of its caller. Most are answered there at once; one that waits, for messages or for the
//! disk, waits in the caller's thread, too.

use std::{
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, time::timeout};

use super::{Inner, framed};
use crate::{
    connections::{
        answer_memory,
        budget::Allowance,
        read_closed::{self, ReadClosed, ReadCloser},
        unwritten::Unwritten,
    },
    hot::Hot,
    remoting::{RemotingCommand, verbs::HotVerb},
};

/// How often a caller that waits is asked whether it is interrupted.
const TICK: Duration = Duration::from_millis(500);
/// Where its calls come from, for the rules of a server that depend on it.
const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Calls the hot methods of a server in this process; thread-safe.
pub struct LocalCalls {
    server: Arc<Inner>,
    runtime: Handle,
    allowance: Arc<Allowance>,
    /// Ends the polls under way; the next ones have another.
    polls: Mutex<(ReadCloser, ReadClosed)>,
}

/// Why a call has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalError {
    /// The server has stopped, or has no such method.
    Stopped,
    /// Its time is over.
    Late,
    /// The caller was interrupted.
    Interrupted,
}

impl LocalCalls {
    pub(super) fn new(server: Arc<Inner>, runtime: Handle) -> Self {
        let allowance = server.connections.allowance(PEER);
        Self { server, runtime, allowance, polls: Mutex::new(read_closed::channel()) }
    }

    /// Answers a request in this thread, which must not belong to a runtime.
    ///
    /// `is_interrupted` is called twice a second while it waits.
    ///
    /// # Errors
    /// [`LocalError`].
    pub fn call(
        &self,
        command: RemotingCommand,
        until: Instant,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<RemotingCommand, LocalError> {
        let (verb, hot) = self.find(&command)?;
        let unwritten = Arc::new(Unwritten::default());
        let mut answering = pin!(self.answer(verb, hot, command, Arc::clone(&unwritten)));
        let first = {
            let _runtime = self.runtime.enter();
            answering.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        let answer = match first {
            Poll::Ready(answer) => answer,
            Poll::Pending => loop {
                let left = until.saturating_duration_since(Instant::now());
                let wait = async { timeout(left.min(TICK), &mut answering).await };
                match self.runtime.block_on(wait) {
                    Ok(answer) => break answer,
                    Err(_) if left <= TICK => return Err(LocalError::Late),
                    Err(_) if is_interrupted() => return Err(LocalError::Interrupted),
                    Err(_) => {}
                }
            },
        };
        unwritten.written();
        Ok(answer)
    }

    /// Answers a request; `done` is called once, in this thread or on one of the server's. It must not wait.
    pub fn start(
        &self,
        command: RemotingCommand,
        until: Instant,
        done: impl FnOnce(Result<RemotingCommand, LocalError>) + Send + 'static,
    ) {
        let (verb, hot) = match self.find(&command) {
            Ok(found) => found,
            Err(error) => return done(Err(error)),
        };
        let unwritten = Arc::new(Unwritten::default());
        let mut answering = Box::pin(self.answer(verb, hot, command, Arc::clone(&unwritten)));
        let _runtime = self.runtime.enter();
        if let Poll::Ready(answer) = answering.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            unwritten.written();
            return done(Ok(answer));
        }
        self.runtime.spawn(async move {
            let left = until.saturating_duration_since(Instant::now());
            let answer = timeout(left, answering).await.map_err(|_| LocalError::Late);
            if answer.is_ok() {
                unwritten.written();
            }
            done(answer);
        });
    }

    /// Has the polls under way answered at once.
    pub fn release(&self) {
        let (closer, _) = std::mem::replace(&mut *self.polls.lock(), read_closed::channel());
        closer.close();
    }

    fn find(&self, command: &RemotingCommand) -> Result<(&'static HotVerb, Arc<Hot>), LocalError> {
        let is_draining = self.server.is_draining.load(std::sync::atomic::Ordering::SeqCst);
        let hot = self.server.hot.as_ref().filter(|_| !is_draining);
        hot.and_then(|hot| Some((framed::find(command.code)?, Arc::clone(hot)))).ok_or(LocalError::Stopped)
    }

    fn answer(
        &self,
        verb: &'static HotVerb,
        hot: Arc<Hot>,
        command: RemotingCommand,
        unwritten: Arc<Unwritten>,
    ) -> impl Future<Output = RemotingCommand> + Send + use<> {
        self.server.counters.remoting_requests.add(1);
        let released = self.polls.lock().1.clone();
        let memory = Arc::new(self.allowance.share());
        // Clients of this process are no users.
        let limited = framed::limit(&hot.limits, None, &command);
        let answering = async move {
            match limited {
                Ok(Some(meter)) => meter.scope(verb.answer(hot, PEER, command)).await,
                Ok(None) => verb.answer(hot, PEER, command).await,
                Err(refused) => *refused,
            }
        };
        unwritten.scope(released.scope(answer_memory::scope(memory, answering)))
    }
}

impl std::fmt::Debug for LocalCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalCalls").finish_non_exhaustive()
    }
}
