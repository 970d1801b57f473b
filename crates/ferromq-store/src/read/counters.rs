//! Counters of a store: failed puts by error, missed gets by status, times of gets.
//!
//! Failures are counted where they are handled; a success costs a few atomic additions.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    error::StoreError,
    files::disk::Region,
    log::put_times,
    read::types::{GetResult, GetStatus},
};

/// Counts since the store was opened.
#[derive(Default)]
pub(crate) struct Counters {
    /// Messages appended.
    pub(crate) appended: AtomicU64,
    failed_puts: Mutex<BTreeMap<&'static str, u64>>,
    missed_gets: [AtomicU64; GetStatus::ALL.len()],
    /// Reads of a queue by clients that found a message.
    pub(crate) found_gets: AtomicU64,
    /// Reads of a queue by clients that found none.
    pub(crate) fruitless_gets: AtomicU64,
    longest_get_ms: AtomicU64,
    /// Records not served because they do not match their consume queue entries.
    pub(crate) mismatches: AtomicU64,
    /// Leases dropped because the log no longer has their messages.
    pub(crate) gone_leases: AtomicU64,
}

impl Counters {
    pub(crate) fn count_failed_put(&self, error: &StoreError) {
        *self.failed_puts.lock().entry(error.name()).or_default() += 1;
    }

    pub(crate) fn count_missed_get(&self, status: GetStatus) {
        let counters = GetStatus::ALL.iter().zip(&self.missed_gets);
        for (_, counter) in counters.filter(|(known, _)| **known == status) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a read by a client. A cold read is repeated and counted then.
    pub(crate) fn count_get<R: Region>(&self, result: &GetResult<R>) {
        if result.status == GetStatus::Found {
            self.found_gets.fetch_add(1, Ordering::Relaxed);
        } else if !result.is_cold {
            self.fruitless_gets.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the time of a request for messages.
    pub(crate) fn count_get_time(&self, took: Duration) {
        put_times::raise(&self.longest_get_ms, put_times::millis(took));
    }

    pub(crate) fn longest_get_ms(&self) -> u64 {
        self.longest_get_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn failed_puts(&self) -> BTreeMap<&'static str, u64> {
        self.failed_puts.lock().clone()
    }

    pub(crate) fn missed_gets(&self) -> BTreeMap<GetStatus, u64> {
        let counts = self.missed_gets.iter().map(|counter| counter.load(Ordering::Relaxed));
        GetStatus::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
    }
}
