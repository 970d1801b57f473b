//! What can go wrong in the store, grouped by what the caller does next.

use std::{
    io,
    path::{Path, PathBuf},
};

/// The result of a store operation.
pub type Result<T> = std::result::Result<T, StoreError>;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system refused an operation on a file.
    #[error("{operation} failed on {path}: {source}")]
    Io {
        /// What was tried: `open`, `write`, `flush`, …
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// Bytes on disk do not follow the format.
    #[error("{file} is corrupt at byte {offset}: {reason}")]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// Byte offset inside the file.
        offset: u64,
        /// Which rule of the format is broken.
        reason: &'static str,
    },
    /// Something a caller passed is over its limit; nothing was written.
    #[error("{what} has {len} bytes; the limit is {limit}")]
    TooLarge {
        /// `message body`, `properties`, `topic`, …
        what: &'static str,
        /// The size that was given.
        len: u64,
        /// The largest size allowed.
        limit: u64,
    },
    /// A name or number a caller passed cannot be stored; nothing was written.
    #[error("{what} is not valid: {reason}")]
    Invalid {
        /// `topic`, `queue id`, `properties`, or the option of a store.
        what: &'static str,
        /// Which rule is broken.
        reason: &'static str,
    },
    /// Another store, of this process, of another one or of a Java broker, has the directory open.
    #[error("{path} is locked: another broker has this store open; stop it, or use another directory")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The disk has less free space than the reserve; sends are refused until space is back.
    #[error(
        "disk full: {free} bytes free under {path}; the next write needs {needed} and {reserve} stay in reserve; \
         free some space or lower the reserve"
    )]
    Full {
        /// The directory that ran out of space.
        path: PathBuf,
        /// Bytes free now.
        free: u64,
        /// Bytes the next write needs: a whole file where a new one is due.
        needed: u64,
        /// Bytes that must stay free.
        reserve: u64,
    },
    /// An fsync failed earlier; writing has stopped, reading goes on.
    #[error("the store stopped writing after a failed flush; restart the broker once the disk is sound")]
    Poisoned,
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// The receipt handle no longer holds a lease: acknowledged, expired and received again, or not ours.
    #[error(
        "the receipt handle is stale: the message was acknowledged, or its lease ended and it was received again"
    )]
    StaleReceipt,
}

impl StoreError {
    /// An operation on `path` that the operating system refused.
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_path_buf(), source }
    }

    /// Says whether the operating system has no space (or quota) left.
    pub(crate) fn is_full(source: &io::Error) -> bool {
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}
