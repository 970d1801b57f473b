//! Wakes the thread that delivers timed messages.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::sync::wake::Wake;

/// The thread is not waiting for the dispatcher.
const NOT_AWAITED: u64 = u64::MAX;

/// Wakes the thread on request, or once the dispatcher has reached an offset.
pub(crate) struct TimerWake {
    pub(crate) wake: Wake,
    /// The offset that the thread waits for.
    awaited: AtomicU64,
}

impl Default for TimerWake {
    fn default() -> Self {
        Self { wake: Wake::default(), awaited: AtomicU64::new(NOT_AWAITED) }
    }
}

impl TimerWake {
    /// Wakes the thread: new messages wait, or the clock was moved.
    pub(crate) fn ask(&self) {
        self.wake.ask();
    }

    /// Called when dispatch has reached `end`, which readers already see.
    pub(crate) fn dispatched(&self, end: u64) {
        // Pairs with the fence in `Signal::wait`: either the thread sees this progress, or this call sees it waiting.
        fence(Ordering::SeqCst);
        if self.awaited.load(Ordering::Relaxed) <= end {
            self.wake.due.ring();
        }
    }

    /// Waits until dispatch has reached `end`, or for a request.
    pub(crate) fn wait_for(&self, end: u64, dispatched: impl Fn() -> u64) {
        self.awaited.store(end, Ordering::SeqCst);
        self.wake.due.wait(|| dispatched() >= end || self.wake.is_asked(), None);
        self.awaited.store(NOT_AWAITED, Ordering::SeqCst);
    }
}
