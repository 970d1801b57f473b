//! The deadline of a call, from gRPC's `grpc-timeout`.

use std::time::{Duration, Instant};

use http::HeaderMap;

/// The time at which a client gives up; never if `None`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// The deadline of a request that has just arrived.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        // A time past the clock's range is no deadline.
        Self(timeout(headers).and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// The time of the deadline.
    pub(super) fn at(self) -> Option<Instant> {
        self.0
    }

    /// Returns whether the client has stopped waiting. Then nothing new must start.
    pub(super) fn has_passed(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// Returns the output of `answer`, or `None` if the deadline comes first.
    pub(super) async fn limit<T>(self, answer: impl Future<Output = T>) -> Option<T> {
        match self.remaining() {
            None => Some(answer.await),
            Some(remaining) => tokio::time::timeout(remaining, answer).await.ok(),
        }
    }

    /// The time until the deadline.
    pub(super) fn remaining(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// Parses `grpc-timeout`: at most eight digits and a unit.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = Some(number).filter(|n| n.len() <= 8)?.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(text: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().unwrap());
        headers
    }

    #[test]
    fn the_deadline_of_a_call_is_read_in_all_units() {
        let read = |text: &str| timeout(&headers(text));
        assert_eq!(read("3S"), Some(Duration::from_secs(3)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
        assert_eq!(read("20000m"), Some(Duration::from_secs(20)));
        assert_eq!(read("5u"), Some(Duration::from_micros(5)));
        for bad in ["", "S", "5", "-1S", "123456789S", "5x"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_deadline_has_passed_once_its_time_has_come() {
        assert!(Deadline::of(&headers("0n")).has_passed());
        assert!(!Deadline::of(&headers("99999999H")).has_passed());
        assert!(!Deadline::of(&HeaderMap::new()).has_passed());
        assert_eq!(Deadline::of(&HeaderMap::new()).remaining(), None);
        assert_eq!(Deadline::of(&headers("0m")).remaining(), Some(Duration::ZERO));
    }
}
