//! The errors of the store, grouped by how the caller responds.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
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
        /// The operation: `open`, `write`, `flush`, …
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
        /// The broken rule of the format.
        reason: &'static str,
    },
    /// A file of the commit log has no valid record where one should begin.
    #[error("{file} is corrupt at byte {offset} (physical offset {physical_offset}): {reason}")]
    CorruptRecord {
        /// The file.
        file: PathBuf,
        /// Byte offset inside the file.
        offset: u64,
        /// The same byte as a physical offset.
        physical_offset: u64,
        /// The broken rule of the format.
        reason: String,
    },
    /// An argument exceeds its limit; nothing was written.
    #[error("{what} has {len} bytes; the limit is {limit}")]
    TooLarge {
        /// `message body`, `properties`, `topic`, …
        what: &'static str,
        /// Its size.
        len: u64,
        /// The largest size allowed.
        limit: u64,
    },
    /// An argument cannot be stored; nothing was written.
    #[error("{what} is not valid: {reason}")]
    Invalid {
        /// `topic`, `queue id`, `properties`, or the option of a store.
        what: &'static str,
        /// The broken rule.
        reason: &'static str,
    },
    /// A delivery time further ahead than `timer_max_delay`; nothing was written.
    #[error(
        "the delivery time is {ahead_ms} ms ahead; timer_max_delay is {limit_ms} ms: set an earlier time, or raise it"
    )]
    TooFarAhead {
        /// How far ahead it is.
        ahead_ms: i64,
        /// The furthest allowed.
        limit_ms: i64,
    },
    /// The directory is not a store.
    #[error("{path} is no store directory: it does not have {missing}")]
    NoStore {
        /// The directory.
        path: PathBuf,
        /// The file or directory that a store has.
        missing: &'static str,
    },
    /// A store directory does not contain the topic or the queue.
    #[error("the store has no {}; it has {}", wanted(topic, *queue_id), shown(topics))]
    NoSuchQueue {
        /// The topic asked for.
        topic: String,
        /// The queue asked for.
        queue_id: Option<u32>,
        /// The topics it contains.
        topics: Vec<String>,
    },
    /// Another store has the directory open, in this process or another, or a Java broker has.
    #[error("{path} is locked: another broker has this store open; stop it, or use another directory")]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The disk has less free space than the reserve; sends are refused until space is back.
    #[error(
        "disk full: {free} bytes free under {path}; the next write needs {needed} and {reserve} stay in reserve; \
         free some space, or change `disk_reserve` or the third step of `retention_disk_usage`"
    )]
    Full {
        /// The directory that ran out of space.
        path: PathBuf,
        /// Bytes free now.
        free: u64,
        /// Bytes the next write needs: a whole file if a new one is due.
        needed: u64,
        /// Bytes that must stay free.
        reserve: u64,
    },
    /// An fsync failed earlier; writing has stopped, reading continues.
    #[error("the store stopped writing after a failed flush; restart the broker once the disk works")]
    Poisoned,
    /// The flush for an append failed: its messages may exist after a restart.
    #[error("the message was written, but its flush failed ({cause}); it may exist after a restart")]
    NotDurable {
        /// The error of the flush.
        cause: Arc<str>,
    },
    /// The queue was closed for sends, or for sends and reads; nothing was written.
    #[error("queue {queue_id} of topic {topic} is closed")]
    QueueClosed {
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: u32,
    },
    /// The queue cannot be written now; nothing was written.
    #[error(
        "queue {queue_id} of topic {topic} is set aside: {reason}; the store retries and rebuilds it from the commit log: \
         fix the cause, or send to another queue"
    )]
    QueueSetAside {
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: u32,
        /// The operating system's reason.
        reason: Arc<str>,
    },
    /// Dispatch has made no progress for long, so messages reach no reader; nothing was written.
    #[error(
        "the store refuses messages: dispatch has made no progress for {stalled_ms} ms at physical offset \
         {physical_offset} ({reason}); it accepts them again once dispatch continues: read the broker's log, and restart \
         the broker if it does not"
    )]
    DispatchStalled {
        /// Milliseconds without progress.
        stalled_ms: i64,
        /// The physical offset at which dispatch stands.
        physical_offset: u64,
        /// The cause, if known.
        reason: Arc<str>,
    },
    /// The store remembers as many writers as it may, all of them within the window; nothing was written.
    #[error(
        "no place for another writer of messages with FERROMQ_SEQUENCE: {limit} pairs of a writer's partition and a \
         queue are remembered; raise `dedup_writers`, shorten `dedup_window`, or write with fewer partitions"
    )]
    DedupFull {
        /// The value of `dedup_writers`.
        limit: u64,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// No message begins at an offset of the commit log.
    #[error(
        "no message begins at the physical offset {physical_offset}{}",
        nearest.map(|nearest| format!("; the nearest one begins at {nearest}")).unwrap_or_default()
    )]
    NoRecord {
        /// The offset asked for.
        physical_offset: u64,
        /// The start of the message that covers it; else of the last one before it, else of the first kept one.
        nearest: Option<u64>,
    },
    /// The receipt handle no longer holds a lease: acknowledged, expired and received again, or not ours.
    #[error(
        "the receipt handle is stale: the message was acknowledged, or its lease expired and it was received again"
    )]
    StaleReceipt,
}

fn wanted(topic: &str, queue_id: Option<u32>) -> String {
    queue_id
        .map_or_else(|| format!("topic {topic}"), |queue_id| format!("queue {queue_id} of the topic {topic}"))
}

/// Lists the first names.
fn shown(names: &[String]) -> String {
    const MOST: usize = 20;
    match names {
        [] => "no topics".into(),
        names if names.len() <= MOST => format!("the topics {}", names.join(", ")),
        names => format!(
            "{} topics, {} … among them",
            names.len(),
            names.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Results of the operating system as the store's.
pub(crate) trait IoResult<T> {
    /// Names the file of an error.
    fn or_io(self, operation: &'static str, path: &Path) -> Result<T>;
    /// `None` if there is no such file.
    fn if_found(self) -> io::Result<Option<T>>;
}

impl<T> IoResult<T> for io::Result<T> {
    fn or_io(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| StoreError::io(operation, path, source))
    }

    fn if_found(self) -> io::Result<Option<T>> {
        match self {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }
}

impl StoreError {
    /// The kind of error in one word, for statistics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Io { .. } => "io",
            Self::Corrupt { .. } | Self::CorruptRecord { .. } => "corrupt",
            Self::TooLarge { .. } => "too_large",
            Self::Invalid { .. } => "invalid",
            Self::Locked { .. } => "locked",
            Self::Full { .. } => "full",
            Self::Poisoned => "poisoned",
            Self::NotDurable { .. } => "not_durable",
            Self::Closed => "closed",
            Self::DedupFull { .. } => "dedup_full",
            Self::QueueClosed { .. } => "queue_closed",
            Self::QueueSetAside { .. } => "queue_set_aside",
            Self::DispatchStalled { .. } => "dispatch_stalled",
            Self::NoRecord { .. } => "no_record",
            Self::NoStore { .. } => "no_store",
            Self::NoSuchQueue { .. } => "no_such_queue",
            Self::StaleReceipt => "stale_receipt",
            Self::TooFarAhead { .. } => "too_far_ahead",
        }
    }

    /// Wraps an error of the operating system for `operation` on `path`.
    pub fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_path_buf(), source }
    }

    /// Whether a write met a full disk: it succeeds once there is space.
    pub(crate) fn is_of_full_disk(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Io { source, .. } => Self::is_full(source),
            _ => false,
        }
    }

    /// Whether an open or a map lacked a descriptor or memory: nothing is lost, and a retry may succeed. Excludes a
    /// flush that fails for lack of memory, see [`crate::files::disk::Disk`].
    pub(crate) fn is_shortage(&self) -> bool {
        const ENOMEM: i32 = 12;
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        let Self::Io { source, .. } = self else { return false };
        matches!(source.raw_os_error(), Some(ENOMEM | ENFILE | EMFILE))
    }

    /// Whether the operating system has no space (or quota) left.
    pub(crate) fn is_full(source: &io::Error) -> bool {
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}
