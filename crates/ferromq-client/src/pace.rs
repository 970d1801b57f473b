//! How many messages a consumer holds: by the rate at which its workers finish them.

/// Seconds of work that is held at most, and as a share of a lease.
const AHEAD: f64 = 0.5;
const SHARE: f64 = 0.2;
/// Seconds of work after which its rate is measured anew, however few messages they were.
const WINDOW: f64 = 0.25;
/// Most messages of one receive.
pub const MAX_BATCH: usize = 1000;
/// Most messages that are held: while some are used, others arrive, and a receive follows them.
const MOST: usize = 3 * MAX_BATCH;

/// The measured rate of workers, and what follows from it. Times are in seconds, of any clock that does not go back.
///
/// One message is held for each worker before there is a rate, and then no more than the workers finish, at that rate, in
/// half a second or a fifth of a lease.
#[derive(Debug)]
pub struct Pace {
    horizon: f64,
    prefetch: Option<usize>,
    /// How many messages are held at the measured rate; 0 before the first measurement.
    limit: usize,
    /// How many messages were finished since the rate was measured.
    count: usize,
    /// Seconds in which at least one was in use meanwhile, and since when one is.
    busy: f64,
    since: f64,
    /// How many were in use at once meanwhile.
    workers: usize,
}

impl Pace {
    /// For leases of `invisible` seconds; at most `prefetch` messages are held.
    #[must_use]
    pub fn new(invisible: f64, prefetch: Option<usize>) -> Self {
        let horizon = AHEAD.min(invisible * SHARE);
        Self { horizon, prefetch, limit: 0, count: 0, busy: 0.0, since: 0.0, workers: 0 }
    }

    /// How many messages to receive now, while `hungry` workers wait for one, and others have one `in_use`.
    #[must_use]
    pub fn room(&self, hungry: usize, at_least: usize, waiting: usize, in_use: usize) -> usize {
        let workers = hungry + in_use;
        let most = workers.max(self.limit).max(at_least).min(self.prefetch.unwrap_or(usize::MAX));
        let room = most.saturating_sub(waiting + in_use);
        if workers > 0 && room > 0 && (hungry > waiting || 2 * room >= most) {
            return room.min(MAX_BATCH);
        }
        0
    }

    /// Whether a receive of `count` messages may follow one of as many, while so many are `held`. If far more would fit, a
    /// larger one is better.
    #[must_use]
    pub fn has_room_for_two(&self, count: usize, held: usize) -> bool {
        let most = self.limit.min(self.prefetch.unwrap_or(usize::MAX));
        held + 2 * count <= most && most < 4 * count
    }

    /// Notes that one more is in use, `in_use` together.
    pub fn begin(&mut self, in_use: usize, now: f64) {
        if in_use == 1 {
            self.since = now;
        }
        self.workers = self.workers.max(in_use);
    }

    /// Notes that one is no longer in use, and learns from it if it was used at all. Returns whether it is time to look at
    /// [`Self::room`] and [`Self::has_surplus`].
    pub fn end(&mut self, is_used: bool, waiting: usize, in_use: usize, now: f64) -> bool {
        self.busy += now - self.since;
        self.since = now;
        self.count += usize::from(is_used);
        // Of several workers that end at once only the first has a duration: each must have ended once.
        let is_round = self.count >= self.workers.max(1);
        if is_round && (self.count >= self.limit / 2 || self.busy >= WINDOW) {
            // Grows fast, but on evidence: twice what was just seen to work.
            let seen = 2 * self.limit.max(self.count);
            self.limit = self.fitting().min(seen).min(MOST);
            (self.count, self.busy, self.workers) = (0, 0.0, in_use);
            return true;
        }
        2 * waiting <= self.limit
    }

    /// How many messages are finished within the horizon.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // bounded
    fn fitting(&self) -> usize {
        if self.busy <= 0.0 {
            return MOST;
        }
        (self.count as f64 / self.busy * self.horizon).min(MOST as f64) as usize
    }

    /// Whether far more waits than the workers finish in time: they have become slower.
    #[must_use]
    pub fn has_surplus(&self, waiting: usize) -> bool {
        waiting > 2 * self.limit.max(1)
    }

    /// How many of those that wait are to be given back.
    #[must_use]
    pub fn surplus(&self, waiting: usize) -> usize {
        if self.has_surplus(waiting) { waiting - self.limit.max(1) } else { 0 }
    }

    /// Notes that messages were given back: fewer are held.
    pub fn slow_down(&mut self) {
        self.limit /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_BATCH, MOST, Pace};

    /// Uses messages one after the other, `seconds` each, and returns how many were held at most.
    fn held(pace: &mut Pace, count: usize, seconds: f64) -> usize {
        let (mut now, mut waiting, mut most) = (0.0, 0, 0);
        for _ in 0..count {
            waiting += pace.room(1, 1, waiting, 0);
            most = most.max(waiting);
            waiting -= 1;
            pace.begin(1, now);
            now += seconds;
            pace.end(true, waiting, 0, now);
        }
        most
    }

    #[test]
    fn no_more_is_held_than_is_finished_in_time() {
        for (seconds, most) in [(0.5, 1), (0.01, 50), (0.001, 500), (0.000_001, MOST)] {
            let found = held(&mut Pace::new(30.0, None), 10_000, seconds);
            assert!(found <= most && 2 * found >= most, "{found} of {most} messages of {seconds} s");
        }
    }

    #[test]
    fn a_receive_follows_where_both_fit() {
        let mut pace = Pace::new(30.0, None);
        assert!(!pace.has_room_for_two(1, 0), "no rate is known");
        held(&mut pace, 10_000, 0.000_1);
        assert!(pace.has_room_for_two(MAX_BATCH, MOST - 2 * MAX_BATCH));
        assert!(!pace.has_room_for_two(MAX_BATCH, MOST - 2 * MAX_BATCH + 1));
        let mut few = Pace::new(30.0, Some(10));
        held(&mut few, 10_000, 0.000_1);
        assert!(few.has_room_for_two(5, 0) && !few.has_room_for_two(5, 1));
        assert!(!few.has_room_for_two(2, 0), "a larger one fits");
    }

    #[test]
    fn a_short_lease_and_a_prefetch_hold_less() {
        assert!(held(&mut Pace::new(0.5, None), 1000, 0.01) <= 10);
        assert_eq!(held(&mut Pace::new(30.0, Some(7)), 1000, 0.000_1), 7);
    }

    #[test]
    fn what_waits_for_slower_workers_is_surplus() {
        let mut pace = Pace::new(30.0, None);
        held(&mut pace, 5000, 0.000_1);
        assert_eq!((pace.has_surplus(MAX_BATCH), pace.surplus(MAX_BATCH)), (false, 0));
        held(&mut pace, 5, 1.0);
        assert!(pace.has_surplus(MAX_BATCH));
        assert_eq!(pace.surplus(MAX_BATCH), MAX_BATCH - 1);
    }
}
