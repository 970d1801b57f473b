//! The options of a store, and the only defaults for what is on disk.

use std::{collections::BTreeMap, net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use crate::{
    delayed::{delay_levels::DelayLevels, timer::timed_message::TimerConfig},
    error::{Result, StoreError},
    log::flush_policy::FlushPolicy,
    platform::open_file_limit,
    retention::policy::Retention,
};

/// The options of a store. File sizes apply to new files; existing files keep theirs.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Bytes in a commit log file.
    pub commit_log_file_size: u64,
    /// Entries of 20 bytes in a consume queue file.
    pub consume_queue_file_entries: u64,
    /// Whether new messages are indexed by key (RocketMQ's `messageIndexEnable`). Messages in existing index files are
    /// found either way.
    pub index_enabled: bool,
    /// Hash slots in an index file.
    pub index_slots: u32,
    /// Entries in an index file; the first is never used, as in RocketMQ.
    pub index_entries: u32,
    /// When appended bytes are flushed.
    pub flush: FlushPolicy,
    /// Most acknowledged messages of a topic that may be unflushed, by topic, whatever the policy.
    pub flush_every: BTreeMap<String, u32>,
    /// Most bytes in the body of a producer's message (RocketMQ's `maxMessageSize`). Topic and properties have their
    /// own limits; the whole record must fit into a commit log file.
    pub max_message_size: u32,
    /// Bytes to keep free on the disk; sends are refused below it.
    pub disk_reserve: u64,
    /// When files are deleted, and whether they are archived first.
    pub retention: Retention,
    /// Directories of the commit log, possibly on several disks; new files are created in each in turn. Empty: the
    /// directory `commitlog` of the store.
    pub commit_log_paths: Vec<PathBuf>,
    /// Directories of commit log files that are only read; no file is created in them.
    pub read_only_commit_log_paths: Vec<PathBuf>,
    /// Most bytes of mapped commit log files, besides the two newest; older ones are mapped when read.
    pub mapped_bytes: u64,
    /// Most open files of the log and of consume queues, one descriptor each; others are opened when needed.
    pub open_files: usize,
    /// Time between two writes of consumers' offsets and leases.
    pub progress_interval: Duration,
    /// Whether each record gets a checksum over all of it (RocketMQ's `enabledAppendPropCRC`, 20 bytes more in its
    /// properties). Existing checksums are always verified.
    pub property_crc: bool,
    /// Opens without checks: after a kill, recovery follows the lengths of records after the last checkpoint, and skips
    /// their checksums and the search for lost blocks.
    pub fast_boot: bool,
    /// The duration of each delay level.
    pub delay_levels: DelayLevels,
    /// How messages with a delivery time are stored.
    pub timer: TimerConfig,
    /// How long a partition of a writer is remembered after its last message, to detect duplicates.
    pub dedup_window: Duration,
    /// Most pairs of a writer's partition and a queue to remember, about 100 bytes each; further ones are refused.
    pub dedup_writers: u32,
    /// The broker's own address, stored in every record.
    pub store_host: SocketAddr,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            commit_log_file_size: 1 << 30,
            consume_queue_file_entries: 300_000,
            index_enabled: true,
            index_slots: 5_000_000,
            index_entries: 20_000_000,
            flush: FlushPolicy::default(),
            flush_every: BTreeMap::new(),
            max_message_size: 4 << 20,
            disk_reserve: 256 << 20,
            retention: Retention::default(),
            commit_log_paths: Vec::new(),
            read_only_commit_log_paths: Vec::new(),
            mapped_bytes: 1 << 30,
            open_files: default_open_files(),
            progress_interval: Duration::from_secs(1),
            property_crc: false,
            fast_boot: false,
            delay_levels: DelayLevels::default(),
            timer: TimerConfig::default(),
            dedup_window: Duration::from_secs(24 * 3600),
            dedup_writers: 500_000,
            store_host: SocketAddr::from(([127, 0, 0, 1], 10911)),
        }
    }
}

/// The remaining descriptors are for connections.
fn default_open_files() -> usize {
    const MOST: u64 = 4096;
    let allowed = open_file_limit().unwrap_or(MOST);
    (allowed / 2).clamp(1, MOST) as usize
}

/// A blank record states its length in 32 bits, signed in Java; a file must hold more than that record.
const COMMIT_LOG_FILE_SIZES: RangeInclusive<u64> = 4 << 10..=i32::MAX as u64;
/// Java maps a whole file, so at most 2 GiB.
const CONSUME_QUEUE_FILE_ENTRIES: RangeInclusive<u64> = 1..=i32::MAX as u64 / 20;
/// More disks than a machine has.
const MAX_COMMIT_LOG_PATHS: usize = 63;
/// Slots of 4 bytes.
const INDEX_SLOTS: RangeInclusive<u64> = 1..=i32::MAX as u64 / 8;
/// Entries of 20 bytes, the first of which is never used.
const INDEX_ENTRIES: RangeInclusive<u64> = 2..=i32::MAX as u64 / 40;

impl StoreConfig {
    /// Checks that the sizes make files that this broker and a Java broker can read.
    ///
    /// Errors: `Invalid`, which names the option and its limits.
    pub fn check(&self) -> Result<()> {
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
            (
                "max_message_size",
                u64::from(self.max_message_size),
                1..=u64::from(u32::MAX),
                "it must be at least 1",
            ),
            ("index_slots", u64::from(self.index_slots), INDEX_SLOTS, "it must be 1 to 268,435,455"),
            ("index_entries", u64::from(self.index_entries), INDEX_ENTRIES, "it must be 2 to 53,687,091"),
        ];
        if self.commit_log_paths.len() + self.read_only_commit_log_paths.len() > MAX_COMMIT_LOG_PATHS {
            return Err(StoreError::Invalid { what: "commit_log_paths", reason: "they must be at most 63" });
        }
        for (what, size, limits, reason) in sizes {
            if !limits.contains(&size) {
                return Err(StoreError::Invalid { what, reason });
            }
        }
        if self.progress_interval.is_zero() {
            return Err(StoreError::Invalid { what: "progress_interval", reason: "it must be more than 0" });
        }
        if self.dedup_window.is_zero() {
            return Err(StoreError::Invalid { what: "dedup_window", reason: "it must be more than 0" });
        }
        if self.dedup_writers == 0 {
            return Err(StoreError::Invalid { what: "dedup_writers", reason: "it must be at least 1" });
        }
        self.retention.check()?;
        self.timer.check()?;
        if self.flush_every.values().any(|count| *count == 0) {
            let reason = "a limit of 0 acknowledges nothing: use `each` or `group`";
            return Err(StoreError::Invalid { what: "flush_every", reason });
        }
        self.flush.check()
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
        assert_eq!(refused(|config| config.max_message_size = 0), "max_message_size");
        assert_eq!(refused(|config| config.progress_interval = Duration::ZERO), "progress_interval");
        assert_eq!(refused(|config| config.index_entries = u32::MAX), "index_entries");
        assert_eq!(refused(|config| config.dedup_window = Duration::ZERO), "dedup_window");
        assert_eq!(refused(|config| config.dedup_writers = 0), "dedup_writers");
    }
}
