//! How far the log is prepared ahead of the appender.

use crate::sync::signal::Signal;
use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

/// How far the log is prepared.
pub(crate) struct PreparedAhead {
    /// The appender stays below it. `u64::MAX` where nothing is zeroed ahead.
    pub(super) zeroed: AtomicU64,
    pub(super) zeroing: Mutex<()>,
    /// Memory is ready up to here, or need not be. `u64::MAX` where it never is made ready.
    pub(super) prefaulted: AtomicU64,
    pub(super) prefaulted_at: Mutex<Option<Instant>>,
    /// The next file could not be made; told once until one can.
    pub(super) is_failing: AtomicBool,
    /// Something was due since the preparing thread last looked.
    pub(super) asked: AtomicBool,
    /// Wakes the preparing thread.
    pub(crate) due: Signal,
}

impl Default for PreparedAhead {
    fn default() -> Self {
        Self {
            zeroed: AtomicU64::new(u64::MAX),
            zeroing: Mutex::new(()),
            prefaulted: AtomicU64::new(u64::MAX),
            prefaulted_at: Mutex::new(None),
            is_failing: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            due: Signal::default(),
        }
    }
}

impl PreparedAhead {
    /// Nothing is prepared from `end` on. Zeros are for synchronous flush, memory for asynchronous.
    ///
    /// Under the append lock, or before the first append.
    pub(crate) fn change(&self, end: u64, is_sync: bool) {
        // Zeros under way end first: the appender may go anywhere after this.
        let _zeroing = self.zeroing.lock();
        self.zeroed.store(if is_sync { end } else { u64::MAX }, Ordering::Release);
        self.prefaulted.store(if is_sync { u64::MAX } else { end }, Ordering::Release);
    }

    /// Says once that something was due since it was last asked: a ring while the thread is awake is not heard.
    pub(crate) fn was_asked(&self) -> bool {
        self.asked.swap(false, Ordering::AcqRel)
    }

    /// The appender must not write at or after it.
    pub(crate) fn zeroed(&self) -> u64 {
        self.zeroed.load(Ordering::Acquire)
    }
}
