//! Flush policies and their text form: when appended bytes are flushed and when a send is acknowledged.
//!
//! Plain data: `flush` and `commit_log` act on it.

use std::{fmt, str::FromStr, time::Duration};

use crate::error::{Result, StoreError};

/// Default time between two background flushes.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_millis(500);
/// Default time after which any dirty page is flushed.
pub(crate) const DEFAULT_THOROUGH: Duration = Duration::from_secs(10);

/// When appended bytes are flushed, and when a send is acknowledged.
///
/// The text forms are `each`, `group`, `every N`, `interval`, and `interval 200ms` for another time. `interval 200ms
/// pages 4` and `interval 200ms pages 4 thorough 5s` leave few dirty pages for later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushPolicy {
    /// Each append has its own flush before it is acknowledged; readers see only flushed messages.
    Each,
    /// Group commit: a send is acknowledged after a flush that covers it. Many sends share one flush, and readers see
    /// only flushed messages.
    Group,
    /// A send is acknowledged once written, unless more than `count` acknowledged messages would be unflushed: then it
    /// waits for its flush.
    EveryN {
        /// Most acknowledged messages that a crash may lose.
        count: u32,
        /// Longest time until written bytes are flushed.
        interval: Duration,
    },
    /// A send is acknowledged once written; the background flushes.
    Interval {
        /// Time between two checks for dirty pages.
        interval: Duration,
        /// A check leaves fewer dirty pages of 4 KiB for later; 0 flushes any.
        least_pages: u32,
        /// Time after which any dirty page is flushed.
        thorough: Duration,
    },
}

impl FlushPolicy {
    /// A background flush every `interval`, however little is dirty.
    #[must_use]
    pub const fn every(interval: Duration) -> Self {
        Self::Interval { interval, least_pages: 0, thorough: DEFAULT_THOROUGH }
    }

    /// Whether a send is acknowledged, and visible to readers, only after a flush that covers it.
    #[must_use]
    pub const fn is_synchronous(&self) -> bool {
        matches!(self, Self::Each | Self::Group)
    }

    /// Time between two background checks; `None` if only waiting sends cause flushes.
    pub(crate) const fn check_interval(&self) -> Option<Duration> {
        match self {
            Self::Each | Self::Group => None,
            Self::EveryN { interval, .. } | Self::Interval { interval, .. } => Some(*interval),
        }
    }

    /// Whether a check may leave dirty pages.
    pub(crate) const fn leaves_pages(&self) -> bool {
        matches!(self, Self::Interval { least_pages: 1.., .. })
    }

    /// Rejects values that make no sense.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |reason| Err(StoreError::Invalid { what: "flush", reason });
        match self {
            Self::EveryN { count: 0, .. } => {
                invalid("a count of 0 acknowledges nothing: use `each` or `group`")
            }
            Self::EveryN { interval, .. } | Self::Interval { interval, .. } if interval.is_zero() => {
                invalid("an interval of 0 is not a pause: use `group`")
            }
            _ => Ok(()),
        }
    }
}

impl Default for FlushPolicy {
    fn default() -> Self {
        Self::every(DEFAULT_INTERVAL)
    }
}

/// A duration in whole seconds if possible, else in milliseconds.
struct Text(Duration);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            ms if ms % 1000 == 0 => write!(f, "{}s", ms / 1000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

impl fmt::Display for FlushPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Each => f.write_str("each"),
            Self::Group => f.write_str("group"),
            Self::EveryN { count, interval } if *interval == DEFAULT_INTERVAL => write!(f, "every {count}"),
            Self::EveryN { count, interval } => write!(f, "every {count} interval {}", Text(*interval)),
            Self::Interval { interval, least_pages, thorough } => {
                f.write_str("interval")?;
                if *interval != DEFAULT_INTERVAL || *least_pages > 0 {
                    write!(f, " {}", Text(*interval))?;
                }
                if *least_pages > 0 {
                    write!(f, " pages {least_pages}")?;
                }
                if *least_pages > 0 && *thorough != DEFAULT_THOROUGH {
                    write!(f, " thorough {}", Text(*thorough))?;
                }
                Ok(())
            }
        }
    }
}

fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u32 = digits.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(u64::from(number))),
        "s" => Some(Duration::from_secs(u64::from(number))),
        _ => None,
    }
}

/// An `interval` policy with `pages`.
fn least(interval: &str, pages: &str, thorough: Option<Duration>) -> Option<FlushPolicy> {
    let (interval, least_pages, thorough) = (duration(interval)?, pages.parse().ok()?, thorough?);
    Some(FlushPolicy::Interval { interval, least_pages, thorough })
}

impl FromStr for FlushPolicy {
    type Err = StoreError;

    /// Parses a text form. Errors: `Invalid`, which lists all of them.
    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let policy = match words[..] {
            ["each"] => Some(Self::Each),
            ["group"] => Some(Self::Group),
            ["interval"] => Some(Self::default()),
            ["interval", time] => duration(time).map(Self::every),
            ["interval", time, "pages", pages] => least(time, pages, Some(DEFAULT_THOROUGH)),
            ["interval", time, "pages", pages, "thorough", thorough] => {
                least(time, pages, duration(thorough))
            }
            ["every", count] => {
                count.parse().ok().map(|count| Self::EveryN { count, interval: DEFAULT_INTERVAL })
            }
            ["every", count, "interval", time] => count
                .parse()
                .ok()
                .zip(duration(time))
                .map(|(count, interval)| Self::EveryN { count, interval }),
            _ => None,
        };
        let policy = policy.ok_or(StoreError::Invalid {
            what: "flush",
            reason: "it must be `each`, `group`, `every N`, `interval` or `interval 200ms`",
        })?;
        policy.check().map(|()| policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_read_back_from_its_name() {
        for name in [
            "each",
            "group",
            "every 1000",
            "every 7 interval 2s",
            "interval",
            "interval 200ms",
            "interval 3s",
            "interval 500ms pages 4",
            "interval 200ms pages 4 thorough 5s",
        ] {
            assert_eq!(name.parse::<FlushPolicy>().unwrap().to_string(), name);
        }
        assert_eq!("interval 500ms".parse::<FlushPolicy>().unwrap(), FlushPolicy::default());
        let every = FlushPolicy::EveryN { count: 1000, interval: Duration::from_millis(500) };
        assert_eq!("every 1000".parse::<FlushPolicy>().unwrap(), every);
    }

    #[test]
    fn what_names_no_policy_is_refused_with_all_the_names() {
        for text in [
            "",
            "sync",
            "async",
            "every",
            "every 0",
            "every -1",
            "every x",
            "interval 0ms",
            "interval 5",
            "interval 5h",
            "each 3",
            "interval 200ms pages",
            "interval 200ms pages many",
            "interval 200ms pages 4 thorough",
        ] {
            match text.parse::<FlushPolicy>() {
                Err(StoreError::Invalid { what: "flush", .. }) => {}
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn only_each_and_group_are_synchronous() {
        let is_synchronous = |name: &str| name.parse::<FlushPolicy>().unwrap().is_synchronous();
        assert!(is_synchronous("each") && is_synchronous("group"));
        assert!(!is_synchronous("every 1") && !is_synchronous("interval"));
    }
}
