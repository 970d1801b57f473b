//! Retries a file that cannot be written, with a bounded cost and one log line.

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::error::{Result, StoreError};

/// Shortest pause after an attempt.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_TIMES: u32 = 20;

/// The write errors of one file.
#[derive(Debug, Default)]
pub(crate) struct WriteRetry {
    is_failing: AtomicBool,
    /// The last error, and when to try again.
    last: Mutex<Option<(String, Instant)>>,
}

impl WriteRetry {
    /// Whether the last attempt failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Acquire)
    }

    /// Returns the last error until the next attempt is due.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        match &*self.last.lock() {
            Some((reason, at)) if Instant::now() < *at => {
                Err(StoreError::io("write", path, io::Error::other(reason.clone())))
            }
            _ => Ok(()),
        }
    }

    /// Records the outcome of an attempt begun at `began`. `what` is the subject of the log line.
    pub(crate) fn note(&self, path: &Path, began: Instant, outcome: &Result<()>, what: &str) {
        let file = path.display();
        let was_failing = self.is_failing.swap(outcome.is_err(), Ordering::AcqRel);
        *self.last.lock() = outcome.as_ref().err().map(|error| {
            let reason = match error {
                StoreError::Io { source, .. } => source.to_string(),
                other => other.to_string(),
            };
            (reason, Instant::now() + LEAST_PAUSE.max(began.elapsed() * PAUSE_TIMES))
        });
        match outcome {
            Err(error) if !was_failing => {
                tracing::error!(%error, file = %file, "{what} cannot be written; retrying");
            }
            Ok(()) if was_failing => tracing::info!(file = %file, "{what} is written again"),
            _ => {}
        }
    }
}
