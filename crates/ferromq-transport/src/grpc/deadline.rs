//! How long a client waits for its answer: gRPC's `grpc-timeout`.

use std::time::{Duration, Instant};

use http::HeaderMap;

/// When a client gives up, if it ever does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// Of a request that came just now.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        // What no clock can tell is no deadline.
        Self(timeout(headers).and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// When it is.
    pub(super) fn at(self) -> Option<Instant> {
        self.0
    }

    /// The client no longer waits: nothing more is begun.
    pub(super) fn is_over(self) -> bool {
        self.0.is_some_and(|at| at <= Instant::now())
    }

    /// What `answer` gives before the time is over, if it does.
    pub(super) async fn limit<T>(self, answer: impl Future<Output = T>) -> Option<T> {
        match self.left() {
            None => Some(answer.await),
            Some(left) => tokio::time::timeout(left, answer).await.ok(),
        }
    }

    /// The time that is left.
    pub(super) fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// At most eight digits and a unit.
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
    fn a_deadline_is_over_once_its_time_has_come() {
        assert!(Deadline::of(&headers("0n")).is_over());
        assert!(!Deadline::of(&headers("99999999H")).is_over());
        assert!(!Deadline::of(&HeaderMap::new()).is_over());
        assert_eq!(Deadline::of(&HeaderMap::new()).left(), None);
        assert_eq!(Deadline::of(&headers("0m")).left(), Some(Duration::ZERO));
    }
}
