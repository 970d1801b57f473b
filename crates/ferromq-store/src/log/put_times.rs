//! A histogram of put times in milliseconds since open. A reader computes rates from two snapshots.
//!
//! Under a synchronous flush policy a put ends with its flush.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The last millisecond of each bucket; the final bucket is open-ended. Has the bounds of both of RocketMQ's
/// tables: one of 13 classes, and a finer one for percentiles.
const BOUNDS: [u64; BUCKETS - 1] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26, 28, 30, 32, 34, 36,
    38, 40, 42, 44, 46, 48, 49, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 99, 100, 110, 120, 130, 140, 150,
    160, 170, 180, 190, 199, 200, 250, 300, 350, 400, 450, 499, 500, 600, 700, 800, 900, 999, 1000, 1999,
    2000, 2999, 3000, 3999, 4000, 4999, 5000, 6000, 7000, 8000, 9000, 9999, 10000,
];
const BUCKETS: usize = 87;

/// The histogram.
pub(crate) struct PutTimes {
    buckets: [AtomicU64; BUCKETS],
    longest_ms: AtomicU64,
    /// Puts that wait for their flush: their end and start time.
    unflushed: Mutex<Vec<(u64, Instant)>>,
}

impl Default for PutTimes {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            longest_ms: AtomicU64::new(0),
            unflushed: Mutex::default(),
        }
    }
}

impl PutTimes {
    /// Counts a put.
    pub(crate) fn count(&self, took: Duration) {
        let ms = millis(took);
        if let Some(bucket) = self.buckets.get(BOUNDS.partition_point(|bound| *bound < ms)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        raise(&self.longest_ms, ms);
    }

    /// Counts a put once a flush covers `end`; `flushed` returns the end of the flushed log.
    pub(crate) fn count_when_flushed(&self, end: u64, begun: Instant, flushed: impl FnOnce() -> u64) {
        let mut unflushed = self.unflushed.lock();
        if flushed() >= end {
            self.count(begun.elapsed());
        } else {
            unflushed.push((end, begun));
        }
    }

    /// Counts the puts that a flush up to `to` covers, then calls `note`, which publishes the flush.
    pub(crate) fn flushed(&self, to: u64, note: impl FnOnce()) {
        let mut unflushed = self.unflushed.lock();
        for (_, begun) in unflushed.extract_if(.., |(end, _)| *end <= to) {
            self.count(begun.elapsed());
        }
        note();
    }

    /// The last millisecond of each bucket with its count; the final bucket ends with the longest put.
    pub(crate) fn snapshot(&self) -> Vec<(u64, u64)> {
        let last = self.longest_ms().max(BOUNDS.last().map_or(0, |bound| bound + 1));
        let bounds = BOUNDS.into_iter().chain([last]);
        bounds.zip(&self.buckets).map(|(bound, count)| (bound, count.load(Ordering::Relaxed))).collect()
    }

    pub(crate) fn longest_ms(&self) -> u64 {
        self.longest_ms.load(Ordering::Relaxed)
    }
}

pub(crate) fn millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

/// Raises `longest` to `ms`; the plain load first is cheap and usually enough.
pub(crate) fn raise(longest: &AtomicU64, ms: u64) {
    if ms > longest.load(Ordering::Relaxed) {
        longest.fetch_max(ms, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_counted_in_the_bucket_that_its_time_ends_in() {
        let times = PutTimes::default();
        for ms in [0, 0, 9, 10, 49, 50, 51, 10_000, 70_000] {
            times.count(Duration::from_millis(ms));
        }
        times.count(Duration::from_micros(999));
        let counted: Vec<_> = times.snapshot().into_iter().filter(|(_, count)| *count > 0).collect();
        let expected = [(0, 3), (9, 1), (10, 1), (49, 1), (50, 1), (55, 1), (10_000, 1), (70_000, 1)];
        assert_eq!(counted, expected);
        assert_eq!(times.longest_ms(), 70_000);
    }

    #[test]
    fn the_bounds_rise_and_each_has_its_bucket() {
        assert!(BOUNDS.is_sorted_by(|one, next| one < next));
        let times = PutTimes::default();
        for bound in BOUNDS {
            times.count(Duration::from_millis(bound));
        }
        let counts: Vec<_> = times.snapshot().into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [vec![1; BUCKETS - 1], vec![0]].concat());
    }

    #[test]
    fn a_put_is_counted_once_by_the_flush_that_covers_it_also_where_that_was_first() {
        let times = PutTimes::default();
        let count = || times.snapshot().iter().map(|(_, count)| count).sum::<u64>();
        times.count_when_flushed(70, Instant::now(), || 69);
        times.count_when_flushed(80, Instant::now(), || 69);
        assert_eq!(count(), 0);
        times.flushed(79, || ());
        assert_eq!(count(), 1);
        times.flushed(80, || ());
        times.flushed(90, || ());
        assert_eq!(count(), 2);
        times.count_when_flushed(90, Instant::now(), || 90);
        assert_eq!(count(), 3);
    }
}
