//! How long puts took, in buckets of milliseconds, since the store was opened.
//!
//! A put that is answered when it is flushed takes until then. Rates and shares are made of the counts by whoever looks
//! twice.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// The last millisecond of each bucket but the last one, which has no end: the bounds of both tables that RocketMQ keeps,
/// one of 13 classes, and a finer one for percentiles.
const BOUNDS: [u64; BUCKETS - 1] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26, 28, 30, 32, 34, 36,
    38, 40, 42, 44, 46, 48, 49, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 99, 100, 110, 120, 130, 140, 150,
    160, 170, 180, 190, 199, 200, 250, 300, 350, 400, 450, 499, 500, 600, 700, 800, 900, 999, 1000, 1999,
    2000, 2999, 3000, 3999, 4000, 4999, 5000, 6000, 7000, 8000, 9000, 9999, 10000,
];
const BUCKETS: usize = 87;

thread_local! {
    /// The last put of the thread that waits for its flush: of which store, where it ends, and when it began.
    static BEGUN: Cell<Option<(usize, u64, Instant)>> = const { Cell::new(None) };
}

/// Counts of puts by their time.
pub(crate) struct PutTimes {
    buckets: [AtomicU64; BUCKETS],
    longest_ms: AtomicU64,
}

impl Default for PutTimes {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], longest_ms: AtomicU64::new(0) }
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

    /// A put began then and ends with the flush that covers `end`; the same thread soon waits for it.
    pub(crate) fn begin(&self, end: u64, begun: Instant) {
        BEGUN.set(Some((self.id(), end, begun)));
    }

    /// When the put that ends at `end` began, where this thread made it last and nothing counted it.
    pub(crate) fn take_begun(&self, end: u64) -> Option<Instant> {
        let (_, _, begun) = BEGUN.get().filter(|(id, of, _)| (*id, *of) == (self.id(), end))?;
        BEGUN.set(None);
        Some(begun)
    }

    /// The last millisecond of each bucket with its count; the last bucket ends with the longest put.
    pub(crate) fn snapshot(&self) -> Vec<(u64, u64)> {
        let last = self.longest_ms().max(BOUNDS.last().map_or(0, |bound| bound + 1));
        let bounds = BOUNDS.into_iter().chain([last]);
        bounds.zip(&self.buckets).map(|(bound, count)| (bound, count.load(Ordering::Relaxed))).collect()
    }

    pub(crate) fn longest_ms(&self) -> u64 {
        self.longest_ms.load(Ordering::Relaxed)
    }

    /// Differs between the stores of a process.
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Whole milliseconds.
pub(crate) fn millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

/// Makes `longest` at least `ms`; most often it is.
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
    fn a_put_that_waits_for_its_flush_is_found_once_by_its_store_and_end() {
        let (times, other) = (PutTimes::default(), PutTimes::default());
        let begun = Instant::now();
        times.begin(70, begun);
        assert_eq!((other.take_begun(70), times.take_begun(71)), (None, None));
        assert_eq!((times.take_begun(70), times.take_begun(70)), (Some(begun), None));
    }
}
