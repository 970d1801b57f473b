//! A histogram of how long flushes of the log took, since open.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Upper bounds of the buckets but the last, in milliseconds.
pub const FLUSH_BOUNDS_MS: [u64; 11] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000];
const BUCKETS: usize = FLUSH_BOUNDS_MS.len() + 1;

/// The histogram.
#[derive(Debug, Default)]
pub(crate) struct FlushTimes {
    buckets: [AtomicU64; BUCKETS],
    micros: AtomicU64,
}

impl FlushTimes {
    /// Counts a flush.
    pub(crate) fn count(&self, took: Duration) {
        let bucket = FLUSH_BOUNDS_MS.partition_point(|bound| Duration::from_millis(*bound) < took);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The flushes of each bucket, and the sum of their times.
    pub(crate) fn snapshot(&self) -> ([u64; BUCKETS], Duration) {
        let counts = self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed));
        (counts, Duration::from_micros(self.micros.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_counted_in_the_first_bucket_that_holds_its_time() {
        let times = FlushTimes::default();
        for (micros, bucket) in [(0, 0), (1_000, 0), (1_001, 1), (5_000_000, 10), (5_000_001, 11)] {
            let before = times.snapshot().0[bucket];
            times.count(Duration::from_micros(micros));
            assert_eq!(times.snapshot().0[bucket], before + 1, "{micros} µs");
        }
        assert_eq!(times.snapshot().1, Duration::from_micros(10_002_002));
    }
}
