//! How far the log is dispatched.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::files::anchor::Anchor;

/// How far the log is dispatched; readers and derived files depend on it.
pub(crate) struct Dispatched {
    end: AtomicU64,
    /// The end, the newest store timestamp below it, and the last record.
    mark: Mutex<(u64, i64, Anchor)>,
}

impl Default for Dispatched {
    fn default() -> Self {
        Self { end: AtomicU64::new(0), mark: Mutex::new((0, 0, Anchor::NONE)) }
    }
}

impl Dispatched {
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Marks everything below `end` as dispatched; `last` is the last record, if there was a new one.
    pub(crate) fn set(&self, end: u64, timestamp: i64, last: Option<Anchor>) {
        let mut mark = self.mark.lock();
        *mark = (end, timestamp.max(mark.1), last.unwrap_or(mark.2));
        self.end.store(end, Ordering::Release);
    }

    /// The end, the newest store timestamp below it, and the last record.
    pub(crate) fn mark(&self) -> (u64, i64, Anchor) {
        *self.mark.lock()
    }

    /// The last dispatched record: once the log is flushed, derived files are sealed with it.
    pub(crate) fn anchor(&self) -> Anchor {
        self.mark.lock().2
    }
}
