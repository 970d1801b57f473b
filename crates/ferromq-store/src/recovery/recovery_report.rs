//! The report of a recovery: plain data.

use std::time::Duration;

use crate::log::damage::Damage;

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
    /// Valid messages among them.
    pub cut_messages: u64,
    /// Messages whose entries were derived again from the log.
    pub redone: u64,
    /// Bytes after the last known flush that were written and flushed again.
    pub rewritten_bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// All damages known when it ended.
    pub damages: Vec<Damage>,
}
