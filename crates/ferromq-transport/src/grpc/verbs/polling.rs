//! The wait of a receive for messages: by RocketMQ's rule, or as long as ferromq's own client requests.

use std::time::Duration;

use http::HeaderMap;

use crate::{
    grpc::convert::{Refusal, code},
    hot::{MAX_WAIT, Waits},
};

/// The default request timeout of RocketMQ's clients.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Time kept for the answer, so that an empty one arrives before the client gives up.
const ANSWER_TIME: Duration = Duration::from_millis(100);
const CLIENT_VERSION: &str = "x-mq-client-version";
/// The first version that knows the code `ILLEGAL_POLLING_TIME`. Versions are compared as texts, as in RocketMQ.
const KNOWS_CODE: &str = "5.0.3";
/// RocketMQ's text.
const TOO_SHORT: &str =
    "The deadline time remaining is not enough for polling, please check network condition";

/// The rule for the wait of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::grpc) enum Polling {
    /// As long as the client requests.
    Asked,
    /// As long as RocketMQ's proxy would wait.
    Bounded {
        waits: Waits,
        /// From the client's settings; half of it is kept for the answer.
        request_timeout: Duration,
        /// Code of the refusal if the deadline is too near.
        too_short: i32,
    },
}

impl Polling {
    /// Returns RocketMQ's rule for the client that sent `headers`.
    pub(in crate::grpc) fn bounded(
        waits: Waits,
        request_timeout: Option<Duration>,
        headers: &HeaderMap,
    ) -> Self {
        let version = headers.get(CLIENT_VERSION).map(|version| version.as_bytes().trim_ascii());
        let too_short = match version {
            Some(version) if version >= KNOWS_CODE.as_bytes() => code::ILLEGAL_POLLING_TIME,
            _ => code::BAD_REQUEST,
        };
        Self::Bounded { waits, request_timeout: request_timeout.unwrap_or(REQUEST_TIMEOUT), too_short }
    }

    /// Returns how long to wait for messages if the client gives up after `left`.
    ///
    /// # Errors
    /// `ILLEGAL_POLLING_TIME`, or `BAD_REQUEST` for older clients, if RocketMQ's rule leaves too little time.
    pub(in crate::grpc) fn wait(
        self,
        asked: Option<Duration>,
        left: Option<Duration>,
    ) -> Result<Duration, Refusal> {
        let wait = match self {
            Self::Asked => asked.unwrap_or(Waits::default().max),
            Self::Bounded { waits, too_short, .. } if left.is_some_and(|left| left < waits.min) => {
                return Err(Refusal::new(too_short, TOO_SHORT));
            }
            Self::Bounded { waits, request_timeout, .. } => {
                let of_deadline = || left.map_or(waits.max, |left| left.saturating_sub(request_timeout / 2));
                asked.unwrap_or_else(of_deadline).max(waits.min).min(waits.max)
            }
        };
        Ok(wait.min(longest_wait(left)))
    }
}

/// Returns the longest wait whose answer still reaches the client in time.
fn longest_wait(left: Option<Duration>) -> Duration {
    left.map_or(MAX_WAIT, |left| left.saturating_sub(ANSWER_TIME.min(left / 2)).min(MAX_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn bounded(request_timeout: Option<u64>) -> Polling {
        Polling::bounded(Waits::default(), request_timeout.map(seconds), &HeaderMap::new())
    }

    #[test]
    fn our_own_client_waits_as_long_as_it_requests_but_gets_its_answer_in_time() {
        let wait = |asked, left| Polling::Asked.wait(asked, left).unwrap();
        assert_eq!(wait(Some(seconds(0)), Some(seconds(1))), seconds(0));
        assert_eq!(wait(Some(seconds(5)), None), seconds(5));
        assert_eq!(wait(Some(seconds(40)), Some(seconds(60))), seconds(40));
        assert_eq!(wait(Some(seconds(5)), Some(seconds(3))), Duration::from_millis(2_900));
        assert_eq!(wait(None, Some(Duration::from_millis(20))), Duration::from_millis(10));
        assert_eq!(wait(Some(Duration::MAX), None), MAX_WAIT);
        assert_eq!(wait(Some(Duration::MAX), Some(Duration::MAX)), MAX_WAIT);
    }

    #[test]
    fn a_missing_wait_is_the_remaining_time_less_half_of_the_request_timeout() {
        let wait = |timeout, left| bounded(timeout).wait(None, left).unwrap();
        assert_eq!(wait(Some(3), Some(seconds(10))), Duration::from_millis(8_500));
        assert_eq!(wait(None, Some(seconds(10))), Duration::from_millis(8_500));
        assert_eq!(wait(Some(20), Some(seconds(8))), seconds(5));
        assert_eq!(wait(Some(0), Some(seconds(8))), Duration::from_millis(7_900));
        assert_eq!(wait(Some(3), Some(seconds(60))), seconds(20));
        assert_eq!(wait(Some(3), None), seconds(20));
        assert_eq!(wait(Some(u64::MAX), Some(Duration::MAX)), seconds(20));
    }

    #[test]
    fn a_wait_that_is_sent_has_the_same_bounds() {
        let wait = |asked, left| bounded(None).wait(Some(asked), left).unwrap();
        assert_eq!(wait(seconds(0), Some(seconds(10))), seconds(5));
        assert_eq!(wait(seconds(7), Some(seconds(10))), seconds(7));
        assert_eq!(wait(seconds(9), Some(seconds(7))), Duration::from_millis(6_900));
        assert_eq!(wait(seconds(40), Some(seconds(60))), seconds(20));
        assert_eq!(wait(Duration::MAX, None), seconds(20));
        assert_eq!(wait(seconds(1), None), seconds(5));
    }

    #[test]
    fn a_deadline_that_is_too_near_is_refused_with_a_code_the_client_knows() {
        let refused = |version: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(version) = version {
                headers.insert(CLIENT_VERSION, version.parse().unwrap());
            }
            let polling = Polling::bounded(Waits::default(), None, &headers);
            polling.wait(Some(seconds(1)), Some(Duration::from_millis(4_999))).unwrap_err()
        };
        for version in ["5.0.3", "5.0.7", "5.1.0", "6"] {
            assert_eq!(refused(Some(version)), Refusal::new(40_018, TOO_SHORT), "{version}");
        }
        for version in [
            None,
            Some(""),
            Some("1.0.7"),
            Some("5.0.2"),
            Some("5.0.10"),
            Some("5.0.3".trim_end_matches('3')),
        ] {
            assert_eq!(refused(version), Refusal::new(40_000, TOO_SHORT), "{version:?}");
        }
        assert!(bounded(None).wait(None, Some(seconds(5))).is_ok());
    }
}
