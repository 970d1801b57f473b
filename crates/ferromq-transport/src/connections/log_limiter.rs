//! Limits log lines that peers can cause at will: some are written in each interval, the others are counted.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The interval in which up to [`LINES`] of a kind are written.
const INTERVAL: Duration = Duration::from_secs(10);
const LINES: u32 = 5;

/// One kind of log line.
#[derive(Debug, Default)]
pub struct LogLimiter(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    begun: Option<Instant>,
    logged: u32,
    suppressed: u64,
}

impl LogLimiter {
    /// A limiter that has logged nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(State { begun: None, logged: 0, suppressed: 0 }))
    }

    /// Calls `line` with the number of lines left out since the last one, unless the interval's lines are used up.
    pub fn log(&self, line: impl FnOnce(u64)) {
        self.log_at(Instant::now(), line);
    }

    fn log_at(&self, now: Instant, line: impl FnOnce(u64)) {
        let suppressed = {
            let mut state = self.0.lock();
            if state.begun.is_none_or(|begun| now.saturating_duration_since(begun) >= INTERVAL) {
                (state.begun, state.logged) = (Some(now), 0);
            }
            if state.logged >= LINES {
                state.suppressed += 1;
                return;
            }
            state.logged += 1;
            std::mem::take(&mut state.suppressed)
        };
        line(suppressed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_logs_a_few_lines_and_a_count() {
        let (limiter, mut logged, now) = (LogLimiter::default(), Vec::new(), Instant::now());
        for _ in 0..1_000 {
            limiter.log_at(now, |suppressed| logged.push(suppressed));
        }
        assert_eq!(logged, [0; 5]);
        for _ in 0..2 {
            limiter.log_at(now + INTERVAL, |suppressed| logged.push(suppressed));
        }
        assert_eq!(logged[5..], [995, 0]);
    }
}
