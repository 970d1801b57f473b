//! Statistics of a store.

use std::collections::BTreeMap;

use crate::{delayed::schedule::ScheduleStats, read::types::GetStatus, retention::cleaner::CleaningStats};

/// Counters and positions of a store.
#[derive(Debug, Clone, Default)]
pub struct StoreStats {
    /// First kept byte of the commit log.
    pub min_physical_offset: u64,
    /// End of the written log.
    pub max_physical_offset: u64,
    /// End of the flushed log.
    pub flushed_offset: u64,
    /// End of the log that is dispatched to consume queues and indexes.
    pub dispatched_offset: u64,
    /// Start of the last message in the index; 0 if it is empty.
    pub indexed_offset: u64,
    /// When that message was stored, milliseconds since 1970.
    pub indexed_timestamp: i64,
    /// Messages appended since open.
    pub appended: u64,
    /// Flushes of the commit log since open.
    pub flushes: u64,
    /// Bytes cut from the tail by the last recovery.
    pub recovered_cut_bytes: u64,
    /// Whether sends are refused for lack of disk space.
    pub is_full: bool,
    /// Consume queues that cannot be written now; sends to them are refused.
    pub set_aside_queues: u64,
    /// Milliseconds since dispatch last made progress, if it has work; else 0.
    pub dispatch_stalled_ms: u64,
    /// What cleaning removed, archived and refused.
    pub cleaning: CleaningStats,
    /// Messages walked by the last recovery.
    pub recovered_messages: u64,
    /// The longest put since open, in milliseconds.
    pub longest_put_ms: u64,
    /// Milliseconds since the current append began to hold the log; 0 between appends.
    pub append_lock_ms: u64,
    /// Reads of a queue by clients that found a message, since open; a receive reads several queues.
    pub found_gets: u64,
    /// Reads of a queue by clients that found none, since open.
    pub fruitless_gets: u64,
    /// The longest request for messages since open, in milliseconds, without its wait for a message.
    pub longest_get_ms: u64,
    /// Refused or failed appends since open, by [`crate::error::StoreError::name`].
    pub failed_puts: BTreeMap<&'static str, u64>,
    /// Messages with a delay level.
    pub schedule: ScheduleStats,
    /// Messages with a delivery time.
    pub timer: crate::delayed::timer::state::TimerStats,
    /// Reads of a queue that returned no message, since open, by status.
    pub missed_gets: BTreeMap<GetStatus, u64>,
    /// Records not served since open because they do not match their consume queue entries.
    pub mismatches: u64,
    /// Leases dropped since open because the log no longer has their messages.
    pub gone_leases: u64,
    /// Duplicates by [`SEQUENCE`](crate::record::properties::SEQUENCE) that were not stored again, since open.
    pub duplicates: u64,
    /// Highest sequences remembered, one per writer, partition and queue.
    pub remembered_sequences: u64,
}
