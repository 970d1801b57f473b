//! How far a recovery is: told to a listener and logged, at most once a second.
//!
//! It only counts; what is walked is `recover`'s business.

use std::time::{Duration, Instant};

use crate::recovery::recovery_report::{RecoveryListener, RecoveryProgress};

const INTERVAL: Duration = Duration::from_secs(1);

/// Counts the bytes of one recovery.
pub(crate) struct Pace {
    listener: Option<RecoveryListener>,
    began: Instant,
    last: Instant,
    total_bytes: u64,
}

impl Pace {
    pub(crate) fn new(listener: Option<RecoveryListener>) -> Self {
        let now = Instant::now();
        Self { listener, began: now, last: now, total_bytes: 0 }
    }

    /// The walk begins; there are `total_bytes` at most.
    pub(crate) fn begin(&mut self, total_bytes: u64) {
        self.total_bytes = total_bytes;
        self.tell(&self.progress(0));
    }

    /// `done_bytes` are walked.
    pub(crate) fn step(&mut self, done_bytes: u64) {
        let now = Instant::now();
        if now.duration_since(self.last) < INTERVAL {
            return;
        }
        self.last = now;
        let progress = self.progress(done_bytes);
        tracing::info!(
            done_mib = progress.done_bytes >> 20,
            total_mib = progress.total_bytes >> 20,
            mib_per_second = progress.bytes_per_second >> 20,
            remaining_seconds = progress.remaining.map_or(0, |left| left.as_secs()),
            "recovering"
        );
        self.tell(&progress);
    }

    /// All is walked, and now it is known how much that was.
    pub(crate) fn end(&mut self, done_bytes: u64) {
        self.total_bytes = done_bytes;
        self.tell(&self.progress(done_bytes));
    }

    fn progress(&self, done_bytes: u64) -> RecoveryProgress {
        let total_bytes = self.total_bytes.max(done_bytes);
        let elapsed = self.began.elapsed().as_secs_f64();
        let rate = if done_bytes == 0 { 0.0 } else { done_bytes as f64 / elapsed.max(1e-6) };
        let left = (total_bytes - done_bytes) as f64;
        let remaining =
            (rate > 0.0).then(|| Duration::try_from_secs_f64(left / rate).unwrap_or(Duration::MAX));
        RecoveryProgress { done_bytes, total_bytes, bytes_per_second: rate as u64, remaining }
    }

    fn tell(&self, progress: &RecoveryProgress) {
        if let Some(listener) = &self.listener {
            listener.tell(progress);
        }
    }
}
