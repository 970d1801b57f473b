//! Store timestamps of a queue's messages, remembered from searches by time.
//!
//! A search over a long queue reads cold memory; remembered times narrow it first. A message's time never changes, so
//! the cache stays valid while the queue is open.

use std::{
    ops::{Deref, Range},
    sync::atomic::{AtomicI64, Ordering},
};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Most remembered messages, at 8 bytes each; twice as many before they are thinned out.
const SAMPLES: u64 = 4096;
const MIN_STRIDE: u64 = 64;
/// Stands for a time that is not known.
const UNKNOWN: i64 = i64::MIN;

/// The cache of one queue; empty until the first search.
#[derive(Default)]
pub(crate) struct KnownTimes(RwLock<Times>);

/// Times of the messages whose queue offsets are multiples of `stride`.
#[derive(Default)]
pub(crate) struct Times {
    pub(crate) stride: u64,
    /// Number of the first sample.
    first: u64,
    times: Vec<AtomicI64>,
}

impl KnownTimes {
    /// The table with room for each sample of a range of queue offsets, which must be long enough for samples.
    pub(crate) fn covering(&self, offsets: Range<u64>) -> impl Deref<Target = Times> {
        let known = self.0.read();
        if known.covers(&offsets) {
            return known;
        }
        drop(known);
        let mut known = self.0.write();
        known.cover(&offsets);
        RwLockWriteGuard::downgrade(known) as RwLockReadGuard<'_, Times>
    }
}

impl Times {
    pub(crate) fn get(&self, sample: u64) -> Option<i64> {
        let time = self.place(sample)?.load(Ordering::Relaxed);
        (time != UNKNOWN).then_some(time)
    }

    pub(crate) fn set(&self, sample: u64, time: i64) {
        if let Some(place) = self.place(sample) {
            place.store(time, Ordering::Relaxed);
        }
    }

    fn place(&self, sample: u64) -> Option<&AtomicI64> {
        self.times.get(usize::try_from(sample.checked_sub(self.first)?).ok()?)
    }

    fn covers(&self, offsets: &Range<u64>) -> bool {
        self.stride > 0
            && self.first <= offsets.start / self.stride
            && offsets.end <= (self.first + self.times.len() as u64) * self.stride
    }

    fn cover(&mut self, offsets: &Range<u64>) {
        let needed = |first: u64, stride: u64| offsets.end.div_ceil(stride).saturating_sub(first);
        let is_new = self.stride == 0
            || self.first > offsets.start / self.stride
            || needed(self.first, self.stride) > 2 * SAMPLES;
        if is_new {
            let count = offsets.end.saturating_sub(offsets.start);
            self.stride = (count / SAMPLES).next_power_of_two().max(MIN_STRIDE);
            self.first = offsets.start / self.stride;
            self.times.clear();
        }
        let len = needed(self.first, self.stride).max(self.times.len() as u64);
        self.times.resize_with(usize::try_from(len).unwrap_or(0), || AtomicI64::new(UNKNOWN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_remembered_stays_while_the_queue_grows_and_memory_stays_bounded() {
        let known = KnownTimes::default();
        let mut bytes = 0;
        for end in (5000..3_000_000u64).step_by(3000) {
            let times = known.covering(0..end);
            let sample = (end - 1) / times.stride;
            times.set(sample, end as i64);
            assert_eq!(times.get(sample), Some(end as i64));
            assert!(times.get(0).is_none_or(|time| time == 7));
            times.set(0, 7);
            bytes = bytes.max(times.times.len() * 8);
        }
        assert!(bytes <= 2 * SAMPLES as usize * 8 + 8, "{bytes}");
        // The beginning of the queue was deleted; earlier samples are not used.
        let times = known.covering(2_900_000..3_000_000);
        assert!(times.covers(&(2_900_000..3_000_000)));
    }
}
