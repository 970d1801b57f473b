//! Undoes the effect of a request whose response is not written, for example a lease.
//!
//! The undo travels with the task that answers, and then with the response, so that no verb passes it on.

use std::sync::Arc;

use parking_lot::Mutex;

tokio::task_local! {
    static UNWRITTEN: Arc<Unwritten>;
}

/// What to do unless the response is written. Dropping the last reference does it.
#[derive(Default)]
pub(crate) struct Unwritten(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Unwritten {
    /// Runs a request's answer, in which [`undo_unless_written`] works.
    pub(crate) fn scope<F: Future>(self: Arc<Self>, answering: F) -> impl Future<Output = F::Output> {
        UNWRITTEN.scope(self, answering)
    }

    /// The response was written: nothing is undone.
    pub(crate) fn written(&self) {
        drop(self.0.lock().take());
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        if let Some(undo) = self.0.get_mut().take() {
            undo();
        }
    }
}

/// Sets what to do unless the response is written; outside of [`Unwritten::scope`] nothing is undone.
pub(crate) fn undo_unless_written(undo: impl FnOnce() + Send + 'static) {
    // An error means that there is no scope.
    let _ = UNWRITTEN.try_with(|unwritten| *unwritten.0.lock() = Some(Box::new(undo)));
}
