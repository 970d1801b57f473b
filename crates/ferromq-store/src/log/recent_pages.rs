//! Which log pages are in memory, so that reads of new messages need no system call.
//!
//! Pages written a moment ago count as resident.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::files::{disk::Region, mapped_file::MappedFile};

/// Most recent bytes that count as resident, however fast the log grows.
const FRESH_BYTES: u64 = 64 << 20;
/// Bytes per residency check, so that consecutive messages share one.
const LOOK_AHEAD: u64 = 64 << 10;

/// The end of the log at the last two ticks, about a second apart.
#[derive(Debug, Default)]
pub(crate) struct Freshness {
    ticks: AtomicU64,
    last: AtomicU64,
    before: AtomicU64,
}

impl Freshness {
    /// Starts with no recent pages.
    pub(crate) fn begin_at(&self, end: u64) {
        self.last.store(end, Ordering::Relaxed);
        self.before.store(end, Ordering::Relaxed);
    }

    /// Records a tick; the log ends at `end`.
    pub(crate) fn tick(&self, end: u64) {
        self.before.store(self.last.swap(end, Ordering::Relaxed), Ordering::Relaxed);
        self.ticks.fetch_add(1, Ordering::Relaxed);
    }

    /// Ticks so far.
    pub(crate) fn now(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Start of the recent pages of a log that ends at `end`.
    pub(crate) fn from(&self, end: u64) -> u64 {
        self.before.load(Ordering::Relaxed).max(end.saturating_sub(FRESH_BYTES))
    }
}

/// The pages that one reader knows to be in memory.
#[derive(Debug, Default)]
pub(crate) struct KnownPages {
    fresh_from: u64,
    seen: Range<u64>,
}

impl KnownPages {
    pub(crate) fn new(fresh_from: u64) -> Self {
        Self { fresh_from, seen: 0..0 }
    }

    /// Whether a range is known to be in memory without asking the system.
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        range.start >= self.fresh_from || (self.seen.start <= range.start && range.end <= self.seen.end)
    }

    /// Whether a range of a log file is in memory.
    pub(crate) fn has<R: Region>(&mut self, file: &MappedFile<R>, range: Range<u64>) -> bool {
        if self.covers(&range) {
            return true;
        }
        let end = range.end.max(range.start.saturating_add(LOOK_AHEAD).min(file.end()));
        let there = file.resident_to(range.start..end);
        self.seen = range.start..there;
        range.end <= there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_since_the_tick_before_the_last_is_fresh() {
        let freshness = Freshness::default();
        freshness.begin_at(1_000);
        assert_eq!(freshness.from(5_000), 1_000);
        freshness.tick(5_000);
        assert_eq!((freshness.from(7_000), freshness.now()), (1_000, 1));
        freshness.tick(7_000);
        assert_eq!(freshness.from(7_000), 5_000);
        freshness.tick(7_000);
        assert_eq!(freshness.from(7_000), 7_000);
        assert_eq!(freshness.from(7_000 + (1 << 30)), 7_000 + (1 << 30) - FRESH_BYTES);
    }
}
