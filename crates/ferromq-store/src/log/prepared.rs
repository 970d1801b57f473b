//! How far the log is prepared ahead of the appender.

use crate::sync::signal::Signal;
use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

/// How far the log is prepared ahead of the appender.
pub(crate) struct PreparedAhead {
    /// The appender stays below it. `u64::MAX` if nothing is zeroed ahead.
    pub(super) zeroed: AtomicU64,
    pub(super) zeroing: Mutex<()>,
    /// End of the last append that was written through the map.
    pub(super) mapped: AtomicU64,
    /// End of the faulted-in pages. `u64::MAX` if none are.
    pub(super) prefaulted: AtomicU64,
    pub(super) prefaulted_at: Mutex<Option<Instant>>,
    /// The next file could not be created; logged once until one can be.
    pub(super) is_failing: AtomicBool,
    /// Work became due since the preparing thread last checked.
    pub(super) asked: AtomicBool,
    /// Wakes the preparing thread.
    pub(crate) due: Signal,
}

impl Default for PreparedAhead {
    fn default() -> Self {
        Self {
            zeroed: AtomicU64::new(u64::MAX),
            zeroing: Mutex::new(()),
            mapped: AtomicU64::new(0),
            prefaulted: AtomicU64::new(u64::MAX),
            prefaulted_at: Mutex::new(None),
            is_failing: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            due: Signal::default(),
        }
    }
}

impl PreparedAhead {
    /// Restarts at `end`, with zeros for synchronous flush or page faults for asynchronous flush.
    ///
    /// Call it under the append lock or before the first append.
    pub(crate) fn change(&self, end: u64, is_sync: bool) {
        // Wait for zeroing under way: the appender may go anywhere after this.
        let _zeroing = self.zeroing.lock();
        self.zeroed.store(if is_sync { end } else { u64::MAX }, Ordering::Release);
        self.prefaulted.store(if is_sync { u64::MAX } else { end }, Ordering::Release);
    }

    /// Takes the request for work, so that one made while the thread was awake is not missed.
    pub(crate) fn was_asked(&self) -> bool {
        self.asked.swap(false, Ordering::AcqRel)
    }

    /// The appender must not write at or beyond it.
    pub(crate) fn zeroed(&self) -> u64 {
        self.zeroed.load(Ordering::Acquire)
    }
}
