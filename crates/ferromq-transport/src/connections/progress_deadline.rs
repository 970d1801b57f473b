//! The time that a peer has to send a frame or take an answer, so that the memory of both is released in time.

use std::time::Duration;

use tokio::time::Instant;

/// A peer must move at least this much of a frame, or all that is left of it, within each time limit.
const STEP_BYTES: usize = 512 << 10;
/// Stands for "never" if a limit is too long to be added to a time.
const FAR_FUTURE: Duration = Duration::from_secs(86_400 * 365);

/// Watches one frame, or one batch of answers. A slow peer meets it; a stalled one does not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgressDeadline {
    limit: Duration,
    begun: Instant,
    moved: usize,
}

impl ProgressDeadline {
    /// Begins a step now.
    pub(crate) fn new(limit: Duration) -> Self {
        Self::from(Instant::now(), limit)
    }

    fn from(begun: Instant, limit: Duration) -> Self {
        Self { limit, begun, moved: 0 }
    }

    /// Counts bytes that were received or sent.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.moved_by(bytes, Instant::now());
    }

    fn moved_by(&mut self, bytes: usize, now: Instant) {
        self.moved += bytes;
        if self.moved >= STEP_BYTES {
            *self = Self::from(now, self.limit);
        }
    }

    /// Excludes a time in which the peer was kept from sending.
    pub(crate) fn pause(&mut self, time: Duration) {
        self.begun = after(self.begun, time);
    }

    /// When the step must be complete.
    pub(crate) fn deadline(&self) -> Instant {
        after(self.begun, self.limit)
    }
}

/// A time later, or one that never comes.
pub(crate) fn after(begun: Instant, time: Duration) -> Instant {
    begun.checked_add(time).unwrap_or_else(|| begun + FAR_FUTURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_ends_once_enough_has_moved_and_pauses_do_not_count() {
        let (limit, begun, seconds) = (Duration::from_secs(30), Instant::now(), Duration::from_secs);
        let mut progress = ProgressDeadline::from(begun, limit);
        progress.moved_by(STEP_BYTES - 1, begun + seconds(20));
        assert_eq!(progress.deadline(), begun + limit);
        progress.pause(seconds(5));
        assert_eq!(progress.deadline(), begun + limit + seconds(5));
        progress.moved_by(1, begun + seconds(30));
        assert_eq!(progress.deadline(), begun + seconds(30) + limit);
        assert!(ProgressDeadline::new(Duration::MAX).deadline() > begun + limit);
    }
}
