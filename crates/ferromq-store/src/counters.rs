//! What went otherwise than asked for, counted: failed puts by reason, missed gets by status.
//!
//! Counted where the failure is handled, so that what goes well pays nothing.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use crate::{GetStatus, StoreError};

/// Counts since the store was opened.
#[derive(Default)]
pub(crate) struct Counters {
    failed_puts: Mutex<BTreeMap<&'static str, u64>>,
    missed_gets: [AtomicU64; GetStatus::ALL.len()],
    /// Records not served because they are not those their consume queue entries tell of.
    pub(crate) mismatches: AtomicU64,
    /// Leased messages that were forgotten because the log does not hold them any longer.
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

    pub(crate) fn failed_puts(&self) -> BTreeMap<&'static str, u64> {
        self.failed_puts.lock().clone()
    }

    pub(crate) fn missed_gets(&self) -> BTreeMap<GetStatus, u64> {
        let counts = self.missed_gets.iter().map(|counter| counter.load(Ordering::Relaxed));
        GetStatus::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
    }
}
