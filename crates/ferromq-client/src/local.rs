//! Servers in the client's own process, which are called without a connection.

use std::{sync::Arc, time::Instant};

use crate::{CallError, Patience, Request, Response};

/// A server in this process; thread-safe.
pub trait LocalServer: Release + Send + Sync {
    /// Answers a request in this thread.
    ///
    /// # Errors
    /// [`LocalError`].
    fn call(&self, request: Request, patience: Patience<'_>) -> Result<Response, LocalError>;

    /// Answers a request; `done` is called once, in this thread or in another one. It does not wait.
    fn start(&self, request: Request, until: Instant, done: LocalCallback);
}

/// What ends a call of [`LocalServer::start`].
pub type LocalCallback = Box<dyn FnOnce(Result<Response, LocalError>) + Send>;

/// Where polls wait for messages.
pub trait Release {
    /// Has the polls under way answered at once.
    fn release(&self);
}

/// Why a local server gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalError {
    /// The server has stopped. It did nothing.
    Stopped,
    /// No answer came in time.
    Late,
    /// The caller was interrupted.
    Interrupted,
}

impl LocalError {
    /// The error of a call to the server at `address`.
    pub(crate) fn at(self, address: &str) -> CallError {
        let address = Arc::from(address);
        match self {
            Self::Stopped => CallError::NotSent { address, reason: "the broker has stopped".into() },
            Self::Late => CallError::Timeout { address },
            Self::Interrupted => CallError::Interrupted { address },
        }
    }
}
