//! Wakes the thread that delivers timed messages.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::sync::wake::Wake;

/// The thread does not wait for the dispatcher.
const NOT_AWAITED: u64 = u64::MAX;

/// Wakes the thread, also once the dispatcher has reached a place in the log.
pub(crate) struct TimerWake {
    pub(crate) wake: Wake,
    /// Where the dispatcher must get to before the thread goes on.
    awaited: AtomicU64,
}

impl Default for TimerWake {
    fn default() -> Self {
        Self { wake: Wake::default(), awaited: AtomicU64::new(NOT_AWAITED) }
    }
}

impl TimerWake {
    /// Messages came that wait, or the clock was moved.
    pub(crate) fn ask(&self) {
        self.wake.ask();
    }

    /// The dispatcher got to `end`, which readers see already.
    pub(crate) fn dispatched(&self, end: u64) {
        // Pairs with the fence in `Signal::wait`: either the thread sees how far it is, or it is seen waiting.
        fence(Ordering::SeqCst);
        if self.awaited.load(Ordering::Relaxed) <= end {
            self.wake.due.ring();
        }
    }

    /// Waits until the dispatcher got to `end`, or for a question.
    pub(crate) fn wait_for(&self, end: u64, dispatched: impl Fn() -> u64) {
        self.awaited.store(end, Ordering::SeqCst);
        self.wake.due.wait(|| dispatched() >= end || self.wake.is_asked(), None);
        self.awaited.store(NOT_AWAITED, Ordering::SeqCst);
    }
}
