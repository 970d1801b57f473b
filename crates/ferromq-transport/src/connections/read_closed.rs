//! Tells parked requests of a connection that no more requests will come from it.
//!
//! The peer closed the connection or its half of it, or the server drains. Requests that wait for messages then answer
//! at once with what they have. The signal travels with the task that answers, so that no verb passes it on.

use tokio::sync::watch;

tokio::task_local! {
    static READ_CLOSED: ReadClosed;
}

/// Whether a connection's reading half has ended.
#[derive(Clone)]
pub(crate) struct ReadClosed(watch::Receiver<bool>);

/// The connection's side of the signal; dropping it closes, too.
pub(crate) struct ReadCloser(watch::Sender<bool>);

/// Creates both sides.
pub(crate) fn channel() -> (ReadCloser, ReadClosed) {
    let (close, closed) = watch::channel(false);
    (ReadCloser(close), ReadClosed(closed))
}

impl ReadCloser {
    pub(crate) fn close(&self) {
        self.0.send_replace(true);
    }
}

impl ReadClosed {
    /// Runs a request's answer, in which [`wait`] works.
    pub(crate) fn scope<F: Future>(self, answering: F) -> impl Future<Output = F::Output> {
        READ_CLOSED.scope(self, answering)
    }
}

/// Resolves once the connection of the request being answered takes no more requests; never outside of
/// [`ReadClosed::scope`].
pub(crate) async fn wait() {
    match READ_CLOSED.try_with(|closed| closed.0.clone()) {
        // An error is a dropped sender: the connection is gone.
        Ok(mut closed) => _ = closed.wait_for(|closed| *closed).await,
        Err(_) => std::future::pending().await,
    }
}

/// Returns whether [`wait`] would resolve at once.
pub(crate) fn is_closed() -> bool {
    READ_CLOSED.try_with(|closed| *closed.0.borrow() || closed.0.has_changed().is_err()).unwrap_or(false)
}
