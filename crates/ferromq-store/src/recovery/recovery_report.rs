//! What a recovery tells: its progress while it runs, and its report when it is done. Plain data.

use std::{fmt, sync::Arc, time::Duration};

use crate::log::damage::Damage;

/// How far a recovery is. Told when it begins, at most once a second, and when it ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecoveryProgress {
    /// Bytes of the log walked so far.
    pub done_bytes: u64,
    /// Bytes there are to walk, at most: where the log ends is known only at the end.
    pub total_bytes: u64,
    /// Bytes walked a second.
    pub bytes_per_second: u64,
    /// Time left at this rate; `None` while there is no rate yet.
    pub remaining: Option<Duration>,
}

/// What a recovery did.
#[derive(Debug, Clone, Default)]
pub struct RecoveryReport {
    /// The store was closed before.
    pub is_clean: bool,
    /// Bytes of the log that were walked.
    pub walked_bytes: u64,
    /// Messages among them.
    pub messages: u64,
    /// Bytes cut from the log's tail.
    pub cut_bytes: u64,
    /// Messages among them, as far as they could be told.
    pub cut_messages: u64,
    /// Messages whose entries were derived again from the log.
    pub redone: u64,
    /// Bytes behind the last known flush that were written and flushed again.
    pub rewritten_bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// All damages known when it ended.
    pub damages: Vec<Damage>,
}

type Listener = dyn Fn(&RecoveryProgress) + Send + Sync;

/// Who is told of a recovery's progress.
#[derive(Clone)]
pub struct RecoveryListener(Arc<Listener>);

impl RecoveryListener {
    /// Wraps a function; it is called by the thread that opens the store.
    pub fn new(listener: impl Fn(&RecoveryProgress) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    pub(crate) fn tell(&self, progress: &RecoveryProgress) {
        (self.0)(progress);
    }
}

impl fmt::Debug for RecoveryListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecoveryListener")
    }
}
