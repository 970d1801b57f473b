//! Reports the progress of a recovery to a listener and the log, at most once a second.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

const INTERVAL: Duration = Duration::from_secs(1);

/// Counts the bytes of one recovery.
pub(crate) struct ProgressLog {
    listener: Option<RecoveryListener>,
    began: Instant,
    last: Instant,
    total_bytes: u64,
}

impl ProgressLog {
    pub(crate) fn new(listener: Option<RecoveryListener>) -> Self {
        let now = Instant::now();
        Self { listener, began: now, last: now, total_bytes: 0 }
    }

    /// Begins a walk over at most `total_bytes`.
    pub(crate) fn begin(&mut self, total_bytes: u64) {
        self.total_bytes = total_bytes;
        self.notify(&self.progress(0));
    }

    /// Reports that `done_bytes` are walked.
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
        self.notify(&progress);
    }

    /// Ends the walk; the total is known now.
    pub(crate) fn end(&mut self, done_bytes: u64) {
        self.total_bytes = done_bytes;
        self.notify(&self.progress(done_bytes));
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

    fn notify(&self, progress: &RecoveryProgress) {
        if let Some(listener) = &self.listener {
            listener.notify(progress);
        }
    }
}

/// The progress of a recovery, reported at its start, at most once a second, and at its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecoveryProgress {
    /// Bytes of the log walked so far.
    pub done_bytes: u64,
    /// Most bytes to walk: the end of the log is known only after the walk.
    pub total_bytes: u64,
    /// Bytes walked per second.
    pub bytes_per_second: u64,
    /// Time left at this rate; `None` while there is no rate yet.
    pub remaining: Option<Duration>,
}

type ProgressListener = dyn Fn(&RecoveryProgress) + Send + Sync;

/// A listener for the progress of a recovery.
#[derive(Clone)]
pub struct RecoveryListener(Arc<ProgressListener>);

impl RecoveryListener {
    /// Wraps a function; it is called by the thread that opens the store.
    pub fn new(listener: impl Fn(&RecoveryProgress) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    pub(crate) fn notify(&self, progress: &RecoveryProgress) {
        (self.0)(progress);
    }
}

impl fmt::Debug for RecoveryListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecoveryListener")
    }
}
