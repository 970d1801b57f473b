//! Counters and positions of a store.

use std::collections::BTreeMap;

use crate::{delayed::schedule::ScheduleStats, read::types::GetStatus, retention::cleaner::CleaningStats};

/// Counters and positions, for people and tests.
#[derive(Debug, Clone, Default)]
pub struct StoreStats {
    /// First byte kept in the commit log.
    pub min_physical_offset: u64,
    /// End of what is written.
    pub max_physical_offset: u64,
    /// End of what is flushed.
    pub flushed_offset: u64,
    /// End of what is dispatched to consume queues and indexes.
    pub dispatched_offset: u64,
    /// Where the last message begins that is in the index; 0 where it is empty.
    pub indexed_offset: u64,
    /// When that message was stored, milliseconds since 1970.
    pub indexed_timestamp: i64,
    /// Messages appended since open.
    pub appended: u64,
    /// Flushes of the commit log since open.
    pub flushes: u64,
    /// Bytes cut from the tail by the last recovery.
    pub recovered_cut_bytes: u64,
    /// Whether sends are refused for want of space.
    pub is_full: bool,
    /// Consume queues that cannot be written now; sends to them are refused.
    pub set_aside_queues: u64,
    /// How long dispatch has stood still with something to dispatch, in milliseconds; 0 where it moves.
    pub dispatch_stalled_ms: u64,
    /// What cleaning removed, archived and refused.
    pub cleaning: CleaningStats,
    /// Messages walked by the last recovery.
    pub recovered_messages: u64,
    /// How long the longest put took, since open, in milliseconds.
    pub longest_put_ms: u64,
    /// How long the current append has held the log; 0 while no append does.
    pub append_lock_ms: u64,
    /// Reads of a queue by clients that found a message, since open; a receive reads each of its queues.
    pub found_gets: u64,
    /// Those that found none.
    pub fruitless_gets: u64,
    /// How long the longest request for messages took, since open, in milliseconds; its wait for a message is no part.
    pub longest_get_ms: u64,
    /// Appends that were refused or failed, since open, by [`crate::error::StoreError::name`].
    pub failed_puts: BTreeMap<&'static str, u64>,
    /// What became of messages that waited at a delay level.
    pub schedule: ScheduleStats,
    /// What became of messages with a time of delivery.
    pub timer: crate::delayed::timer::state::TimerStats,
    /// Reads of a queue that gave no message, since open, by status.
    pub missed_gets: BTreeMap<GetStatus, u64>,
    /// Records not served, since open, because they are not those their consume queue entries tell of.
    pub mismatches: u64,
    /// Leased messages forgotten since open because the log does not hold them any longer.
    pub gone_leases: u64,
    /// Messages with a [`SEQUENCE`](crate::record::properties::SEQUENCE) that were sent again and not stored again, since open.
    pub duplicates: u64,
    /// Writers, partitions and queues whose highest sequence is remembered.
    pub remembered_sequences: u64,
}
