//! How long a receive waits for messages: by RocketMQ's rule, or as long as our own client asks for.

use std::time::Duration;

use http::HeaderMap;

use crate::{
    grpc::convert::{Refusal, code},
    hot::{MAX_WAIT, Waits},
};

/// The default request timeout of RocketMQ's clients.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// An answer that says "nothing" must arrive before the client gives up.
const ANSWER_TIME: Duration = Duration::from_millis(100);
const CLIENT_VERSION: &str = "x-mq-client-version";
/// The first version that knows the code `ILLEGAL_POLLING_TIME`. Versions are compared as texts, as RocketMQ does.
const KNOWS_CODE: &str = "5.0.3";
/// RocketMQ's words.
const TOO_SHORT: &str =
    "The deadline time remaining is not enough for polling, please check network condition";

/// How the wait of a client is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::grpc) enum Polling {
    /// As long as it asks for.
    Asked,
    /// As long as RocketMQ's proxy has it wait.
    Bounded {
        waits: Waits,
        /// Of the client's settings: half of it is left for the answer.
        request_timeout: Duration,
        /// What it is refused with where its deadline is too near.
        too_short: i32,
    },
}

impl Polling {
    /// RocketMQ's rule, for the client that sent `headers`.
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

    /// How long to wait for a message where `left` is left until the client gives up.
    ///
    /// # Errors
    /// `ILLEGAL_POLLING_TIME`, or `BAD_REQUEST`, where RocketMQ's rule leaves the client too little time.
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

/// The longest wait whose end a client still hears of.
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
    fn our_own_client_waits_as_long_as_it_asks_for_but_hears_of_the_end() {
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
    fn a_wait_that_is_not_sent_is_what_is_left_less_half_of_the_request_timeout() {
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
