//! The options of a store; the only place where defaults of what is on disk exist.

use std::{net::SocketAddr, ops::RangeInclusive, time::Duration};

use crate::{Result, StoreError};

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
    /// Largest body of a message, in bytes, a producer may store (RocketMQ's `maxMessageSize`). Topic and
    /// properties have limits of their own; the whole record must fit into a commit log file.
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

/// A blank record tells the rest of a file in 32 bits, signed in Java; a file must hold more than that record.
const COMMIT_LOG_FILE_SIZES: RangeInclusive<u64> = 4 << 10..=i32::MAX as u64;
/// Java maps a file whole, so it has at most 2 GiB.
const CONSUME_QUEUE_FILE_ENTRIES: RangeInclusive<u64> = 1..=i32::MAX as u64 / 20;
/// Slots of 4 bytes.
const INDEX_SLOTS: RangeInclusive<u64> = 1..=i32::MAX as u64 / 8;
/// Entries of 20 bytes, the first of which is never used.
const INDEX_ENTRIES: RangeInclusive<u64> = 2..=i32::MAX as u64 / 40;

impl StoreConfig {
    /// Checks that the sizes make files that can be read again, here and by a Java broker.
    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            (
                "commit_log_file_size",
                self.commit_log_file_size,
                COMMIT_LOG_FILE_SIZES,
                "it must be 4 KiB to 2 GiB - 1",
            ),
            (
                "consume_queue_file_entries",
                self.consume_queue_file_entries,
                CONSUME_QUEUE_FILE_ENTRIES,
                "it must be 1 to 107,374,182",
            ),
            ("index_slots", u64::from(self.index_slots), INDEX_SLOTS, "it must be 1 to 268,435,455"),
            ("index_entries", u64::from(self.index_entries), INDEX_ENTRIES, "it must be 2 to 53,687,091"),
        ];
        for (what, size, limits, reason) in sizes {
            if !limits.contains(&size) {
                return Err(StoreError::Invalid { what, reason });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_make_no_sound_files_are_refused_by_the_name_of_their_option() {
        let refused = |change: fn(&mut StoreConfig)| {
            let mut config = StoreConfig::default();
            change(&mut config);
            match config.check() {
                Err(StoreError::Invalid { what, .. }) => what,
                other => panic!("{other:?}"),
            }
        };
        StoreConfig::default().check().unwrap();
        assert_eq!(refused(|config| config.commit_log_file_size = 0), "commit_log_file_size");
        assert_eq!(refused(|config| config.commit_log_file_size = 5 << 30), "commit_log_file_size");
        assert_eq!(refused(|config| config.consume_queue_file_entries = 0), "consume_queue_file_entries");
        assert_eq!(
            refused(|config| config.consume_queue_file_entries = 1 << 40),
            "consume_queue_file_entries"
        );
        assert_eq!(refused(|config| config.index_slots = 0), "index_slots");
        assert_eq!(refused(|config| config.index_entries = u32::MAX), "index_entries");
    }
}
