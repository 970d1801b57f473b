//! Wakes a thread that works in turns.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::signal::Signal;

/// Wakes a thread, and remembers that it was asked for since its turn began.
#[derive(Default)]
pub(crate) struct Wake {
    /// Wakes and stops the thread.
    pub(crate) due: Signal,
    is_asked: AtomicBool,
}

impl Wake {
    /// Asks for a turn. Costs a load where the thread is awake or does not run.
    pub(crate) fn ask(&self) {
        self.is_asked.store(true, Ordering::Release);
        self.due.ring();
    }

    /// A turn begins, which answers what was asked so far.
    pub(crate) fn begin_turn(&self) {
        self.is_asked.store(false, Ordering::Release);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }
}
