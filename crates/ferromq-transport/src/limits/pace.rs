//! One rate and how far it is used up.
//!
//! A rate that was idle lets through what it allows in [`BURST`]. A request is let through while any of that is left,
//! whatever its size. What it takes beyond is borrowed from the time that follows: a batch larger than the burst is not
//! refused for ever.

use std::sync::atomic::{AtomicI64, Ordering};

const SECOND: i64 = 1_000_000_000;
/// How much of a rate an idle one has saved, in nanoseconds.
pub(super) const BURST: i64 = SECOND;

/// A rate. All times are nanoseconds of the server's clock.
#[derive(Debug)]
pub(super) struct Pace {
    /// Units a second; 0 without a limit.
    per_second: u64,
    /// Up to when the units taken so far use up the rate.
    taken_until: AtomicI64,
}

impl Pace {
    pub(super) fn new(per_second: Option<u64>) -> Self {
        Self { per_second: per_second.unwrap_or(0), taken_until: AtomicI64::new(0) }
    }

    pub(super) fn per_second(&self) -> u64 {
        self.per_second
    }

    /// How long until something may be taken, in nanoseconds; 0: now.
    pub(super) fn wait(&self, now: i64) -> i64 {
        if self.per_second == 0 {
            return 0;
        }
        let ahead = self.taken_until.load(Ordering::Relaxed).saturating_sub(now);
        // At the end of the burst nothing is left; a moment later something is.
        ahead.saturating_sub(BURST).saturating_add(1).max(0)
    }

    pub(super) fn take(&self, units: u64, now: i64) {
        if self.per_second == 0 || units == 0 {
            return;
        }
        let nanoseconds = u128::from(units) * u128::from(SECOND.unsigned_abs());
        // Rounded up, so that no remainder lets one more through.
        let time = nanoseconds.div_ceil(u128::from(self.per_second));
        let time = i64::try_from(time).unwrap_or(i64::MAX);
        let taken = |until: i64| Some(until.max(now).saturating_add(time));
        // Never fails: `taken` always returns a value.
        let _ = self.taken_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
    }

    /// Whether it is as good as new: nothing is lost if it is forgotten.
    pub(super) fn is_idle(&self, now: i64) -> bool {
        self.taken_until.load(Ordering::Relaxed) <= now
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_batch_larger_than_the_burst_is_let_through_and_then_paid_for() {
        let pace = Pace::new(Some(10));
        assert_eq!(pace.wait(0), 0);
        pace.take(100, 0);
        assert_eq!(pace.wait(0), 9 * SECOND + 1);
        assert_eq!(pace.wait(9 * SECOND + 1), 0);
    }

    #[test]
    fn without_a_rate_nothing_is_limited() {
        let pace = Pace::new(None);
        pace.take(u64::MAX, 0);
        assert!(pace.wait(0) == 0 && pace.is_idle(0));
    }

    proptest! {
        /// Whatever the requests, no more than burst, rate and the last request are let through.
        #[test]
        fn the_rate_holds(rate in 1_u64..5_000, asks in prop::collection::vec((0_i64..50, 1_u64..200), 1..300)) {
            let (pace, mut now, mut taken, mut last) = (Pace::new(Some(rate)), 0_i64, 0_u64, 0);
            for (pause_ms, units) in asks {
                now += pause_ms * 1_000_000;
                if pace.wait(now) == 0 {
                    pace.take(units, now);
                    (taken, last) = (taken + units, units);
                }
            }
            let allowed = rate as f64 * ((now + BURST) as f64 / SECOND as f64);
            prop_assert!(taken as f64 <= allowed + last as f64 + 1.0, "{taken} of {allowed}");
        }

        /// After the wait that it names, a pace lets the next request through.
        #[test]
        fn the_wait_is_long_enough(rate in 1_u64..=u64::MAX, units in 1_u64..=u64::MAX, now in 0_i64..i64::MAX / 4) {
            let pace = Pace::new(Some(rate));
            pace.take(units, now);
            let wait = pace.wait(now);
            prop_assert_eq!(pace.wait(now.saturating_add(wait)) == 0, wait < i64::MAX - now);
        }
    }
}
