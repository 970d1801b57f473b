//! Limits log lines that peers can cause at will: some are written in each interval, the rest is counted.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The interval in which [`LINES`] of a kind are written.
const WHILE: Duration = Duration::from_secs(10);
const LINES: u32 = 5;

/// One kind of log line.
#[derive(Debug, Default)]
pub struct LogLimiter(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    begun: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl LogLimiter {
    /// Nothing logged yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(State { begun: None, said: 0, left_out: 0 }))
    }

    /// Calls `line` with the number of lines left out since the last one, unless there were enough for now.
    pub fn log(&self, line: impl FnOnce(u64)) {
        self.log_at(Instant::now(), line);
    }

    fn log_at(&self, now: Instant, line: impl FnOnce(u64)) {
        let left_out = {
            let mut state = self.0.lock();
            if state.begun.is_none_or(|begun| now.saturating_duration_since(begun) >= WHILE) {
                (state.begun, state.said) = (Some(now), 0);
            }
            if state.said >= LINES {
                state.left_out += 1;
                return;
            }
            state.said += 1;
            std::mem::take(&mut state.left_out)
        };
        line(left_out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_a_number() {
        let (limiter, mut said, now) = (LogLimiter::default(), Vec::new(), Instant::now());
        for _ in 0..1_000 {
            limiter.log_at(now, |left_out| said.push(left_out));
        }
        assert_eq!(said, [0; 5]);
        for _ in 0..2 {
            limiter.log_at(now + WHILE, |left_out| said.push(left_out));
        }
        assert_eq!(said[5..], [995, 0]);
    }
}
