//! Logs the progress of a recovery, at most once a second.

use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// The walk of one recovery.
pub(crate) struct ProgressLog {
    began: Instant,
    last: Instant,
    /// Most bytes to walk: the end of the log is known only after the walk.
    total_bytes: u64,
}

impl ProgressLog {
    /// Begins a walk over at most `total_bytes`.
    pub(crate) fn new(total_bytes: u64) -> Self {
        let now = Instant::now();
        Self { began: now, last: now, total_bytes }
    }

    /// Reports that `done_bytes` are walked.
    pub(crate) fn step(&mut self, done_bytes: u64) {
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
