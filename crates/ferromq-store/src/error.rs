//! What can go wrong in the store, grouped by what the caller does next.

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
    /// No sound record lies where one should in a file of the commit log.
    #[error("{file} is corrupt at byte {offset} (physical offset {physical_offset}): {reason}")]
    CorruptRecord {
        /// The file.
        file: PathBuf,
        /// Byte offset inside the file.
        offset: u64,
        /// The same in the log.
        physical_offset: u64,
        /// Which rule of the format is broken.
        reason: String,
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
    /// A time of delivery further ahead than `timer_max_delay`; nothing was written.
    #[error(
        "the time of delivery is {ahead_ms} ms ahead; timer_max_delay is {limit_ms} ms: give an earlier one, or raise it"
    )]
    TooFarAhead {
        /// How far ahead it is.
        ahead_ms: i64,
        /// The furthest allowed.
        limit_ms: i64,
    },
    /// A directory to look at is no store.
    #[error("{path} is no store directory: it has not {missing}")]
    NoStore {
        /// The directory.
        path: PathBuf,
        /// What a store directory has.
        missing: &'static str,
    },
    /// A store directory has no such topic, or the topic no such queue.
    #[error("the store has no {}; it has {}", wanted(topic, *queue_id), shown(topics))]
    NoSuchQueue {
        /// The topic asked for.
        topic: String,
        /// The queue asked for.
        queue_id: Option<u32>,
        /// The topics there are.
        topics: Vec<String>,
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
         free some space, or change what keeps so much: `disk_reserve`, or the third step of `retention_disk_usage`"
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
    /// The flush that was to cover an append failed: its messages may be there after a restart.
    #[error("the message was written, but its flush failed ({cause}); it may be there after a restart")]
    NotDurable {
        /// What the flush said.
        cause: Arc<str>,
    },
    /// Somebody closed the queue, for sends or for everybody; nothing was written.
    #[error("queue {queue_id} of topic {topic} is closed")]
    QueueClosed {
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: u32,
    },
    /// The queue cannot be written now; nothing was written.
    #[error(
        "queue {queue_id} of topic {topic} is set aside: {reason}; the store tries it again by itself and redoes it from \
         the commit log: put that right, or send to another queue"
    )]
    QueueSetAside {
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: u32,
        /// What the operating system said of its files.
        reason: Arc<str>,
    },
    /// Messages are written, but reach no reader since long; nothing more was written.
    #[error(
        "the store refuses messages: it has delivered none for {stalled_ms} ms, from physical offset {physical_offset} on \
         ({reason}); it takes them again once that moves: look into its log, and restart the broker where it does not"
    )]
    DispatchStalled {
        /// For how long, in milliseconds.
        stalled_ms: i64,
        /// Where dispatch stands.
        physical_offset: u64,
        /// What is known of the cause.
        reason: Arc<str>,
    },
    /// The store remembers as many writers of numbered messages as it may, none of them out of the window; nothing was
    /// written.
    #[error(
        "no place for another writer of messages with FERROMQ_SEQUENCE: {limit} pairs of a writer's partition and a \
         queue are remembered; raise `dedup_writers`, shorten `dedup_window`, or write with fewer partitions"
    )]
    DedupFull {
        /// The option `dedup_writers`.
        limit: u64,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// No message begins at a place of the commit log.
    #[error(
        "no message begins at the physical offset {physical_offset}{}",
        nearest.map(|nearest| format!("; the nearest one begins at {nearest}")).unwrap_or_default()
    )]
    NoRecord {
        /// The place that was asked for.
        physical_offset: u64,
        /// Where the message begins that lies there; else the last one before it, else the first one kept.
        nearest: Option<u64>,
    },
    /// The receipt handle no longer holds a lease: acknowledged, expired and received again, or not ours.
    #[error(
        "the receipt handle is stale: the message was acknowledged, or its lease ended and it was received again"
    )]
    StaleReceipt,
}

fn wanted(topic: &str, queue_id: Option<u32>) -> String {
    queue_id
        .map_or_else(|| format!("topic {topic}"), |queue_id| format!("queue {queue_id} of the topic {topic}"))
}

/// The first of many names.
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

impl StoreError {
    /// The kind of error in one word, as statistics count it.
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

    /// An operation on `path` that the operating system refused.
    pub fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_path_buf(), source }
    }

    /// Says whether a write met a full disk: it goes on by itself once there is space.
    pub(crate) fn is_of_full_disk(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Io { source, .. } => Self::is_full(source),
            _ => false,
        }
    }

    /// Says whether a descriptor or memory was short when something was opened or mapped: nothing is lost by that, and it
    /// goes well later. A flush that fails for want of memory is none of these, see [`crate::files::disk::Disk`].
    pub(crate) fn is_shortage(&self) -> bool {
        const ENOMEM: i32 = 12;
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        let Self::Io { source, .. } = self else { return false };
        matches!(source.raw_os_error(), Some(ENOMEM | ENFILE | EMFILE))
    }

    /// Says whether the operating system has no space (or quota) left.
    pub(crate) fn is_full(source: &io::Error) -> bool {
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}
