//! Counts the progress of a recovery for a watcher. Without one, logs it at most once a second.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const INTERVAL: Duration = Duration::from_secs(1);

/// How far the recovery of a store is, for another thread than the one that opens it.
#[derive(Debug, Default)]
pub struct RecoveryProgress {
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

impl RecoveryProgress {
    /// Bytes of the log that are walked, and the most that will be. Both are 0 before the walk.
    pub fn bytes(&self) -> (u64, u64) {
        let done_bytes = self.done_bytes.load(Ordering::Relaxed);
        (done_bytes, self.total_bytes.load(Ordering::Relaxed).max(done_bytes))
    }
}

/// The walk of one recovery.
pub(crate) struct ProgressLog {
    began: Instant,
    last: Instant,
    /// Most bytes to walk: the end of the log is known only after the walk.
    total_bytes: u64,
    watched: Option<Arc<RecoveryProgress>>,
}

impl ProgressLog {
    /// Begins a walk over at most `total_bytes`; it logs nothing if it is `watched`.
    pub(crate) fn new(total_bytes: u64, watched: Option<Arc<RecoveryProgress>>) -> Self {
        let now = Instant::now();
        if let Some(watched) = &watched {
            watched.total_bytes.store(total_bytes, Ordering::Relaxed);
        }
        Self { began: now, last: now, total_bytes, watched }
    }

    /// Reports that `done_bytes` are walked.
    pub(crate) fn step(&mut self, done_bytes: u64) {
        if let Some(watched) = &self.watched {
            watched.done_bytes.store(done_bytes, Ordering::Relaxed);
            return;
        }
        if self.last.elapsed() < INTERVAL {
            return;
        }
        self.last = Instant::now();
        let total_bytes = self.total_bytes.max(done_bytes);
        let rate = done_bytes as f64 / self.began.elapsed().as_secs_f64();
        tracing::info!(
            done_mib = done_bytes >> 20,
            total_mib = total_bytes >> 20,
            mib_per_second = rate as u64 >> 20,
            remaining_seconds = ((total_bytes - done_bytes) as f64 / rate.max(1.0)) as u64,
            "recovering"
        );
    }
}
