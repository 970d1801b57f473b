//! Wakes a thread that works in turns.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::signal::Signal;

/// Wakes a thread and remembers requests since its turn began.
#[derive(Default)]
pub(crate) struct Wake {
    /// Wakes and stops the thread.
    pub(crate) due: Signal,
    is_asked: AtomicBool,
}

impl Wake {
    /// Requests a turn. Costs one load if the thread is awake or not running.
    pub(crate) fn ask(&self) {
        self.is_asked.store(true, Ordering::Release);
        self.due.ring();
    }

    /// Begins a turn, which serves all earlier requests.
    pub(crate) fn begin_turn(&self) {
        self.is_asked.store(false, Ordering::Release);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }
}
