//! A file of the store's own that cannot be written now: said once, tried again at a bounded cost.

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::error::{Result, StoreError};

/// The pause after a try, at least and in times of what the try took.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_TIMES: u32 = 20;

/// What is known of one file.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    is_on: AtomicBool,
    /// Why it could not be written last time, and when it is tried again.
    last: Mutex<Option<(String, Instant)>>,
}

impl Trouble {
    /// Says whether the last try failed.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// The error of the last try, until it is time for the next one.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        match &*self.last.lock() {
            Some((reason, at)) if Instant::now() < *at => {
                Err(StoreError::io("write", path, io::Error::other(reason.clone())))
            }
            _ => Ok(()),
        }
    }

    /// A try that began at `began` is over. `what` is the subject of the line in the log.
    pub(crate) fn note(&self, path: &Path, began: Instant, outcome: &Result<()>, what: &str) {
        let file = path.display();
        let was_on = self.is_on.swap(outcome.is_err(), Ordering::AcqRel);
        *self.last.lock() = outcome.as_ref().err().map(|error| {
            let reason = match error {
                StoreError::Io { source, .. } => source.to_string(),
                other => other.to_string(),
            };
            (reason, Instant::now() + LEAST_PAUSE.max(began.elapsed() * PAUSE_TIMES))
        });
        match outcome {
            Err(error) if !was_on => {
                tracing::error!(%error, file = %file, "{what} cannot be written now; it is tried again");
            }
            Ok(()) if was_on => tracing::info!(file = %file, "{what} is written again"),
            _ => {}
        }
    }
}
