//! The options of a store; the only place where defaults of what is on disk exist.

use std::{net::SocketAddr, time::Duration};

/// When appended bytes reach the disk, and when a send may be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushMode {
    /// A background flush every `interval`; a send is answered once written.
    Async {
        /// Time between two flushes.
        interval: Duration,
    },
    /// Group commit: a send is answered once a flush that covers it has returned, many sends share one
    /// flush, and readers never see past the flushed offset.
    Sync,
}

/// The options of a store. File sizes hold for new files; existing files keep the size they have.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Bytes in a commit log file.
    pub commit_log_file_size: u64,
    /// Entries of 20 bytes in a consume queue file.
    pub consume_queue_file_entries: u64,
    /// Hash slots in an index file.
    pub index_slots: u32,
    /// Entries in an index file; the first is never used, as in RocketMQ.
    pub index_entries: u32,
    /// When bytes reach the disk.
    pub flush: FlushMode,
    /// Largest record, in bytes, a producer may store (body; RocketMQ's `maxMessageSize`).
    pub max_message_size: u32,
    /// Bytes that stay free on the disk; sends are refused below it.
    pub disk_reserve: u64,
    /// How often consumers' offsets and leases are written.
    pub progress_interval: Duration,
    /// The broker's own address, kept in every record.
    pub store_host: SocketAddr,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            commit_log_file_size: 1 << 30,
            consume_queue_file_entries: 300_000,
            index_slots: 5_000_000,
            index_entries: 20_000_000,
            flush: FlushMode::Async { interval: Duration::from_millis(500) },
            max_message_size: 4 << 20,
            disk_reserve: 256 << 20,
            progress_interval: Duration::from_secs(1),
            store_host: SocketAddr::from(([127, 0, 0, 1], 10911)),
        }
    }
}
