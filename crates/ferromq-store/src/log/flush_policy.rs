//! When appended bytes reach the disk, and when a send may be answered: the policies and their text names.
//!
//! Only plain data: `flush` and `commit_log` act on it.

use std::{fmt, str::FromStr, time::Duration};

use crate::error::{Result, StoreError};

/// Time between two flushes in the background, where nothing else is said.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_millis(500);
/// Time after which less than the least pages are flushed too, where nothing else is said.
pub(crate) const DEFAULT_THOROUGH: Duration = Duration::from_secs(10);

/// When appended bytes reach the disk, and when a send may be answered.
///
/// The text names are `each`, `group`, `every N`, `interval`, and `interval 200ms` for another time. An interval may
/// leave few dirty pages for later: `interval 200ms pages 4`, or `interval 200ms pages 4 thorough 5s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushPolicy {
    /// Each append is flushed by a flush of its own before it is answered; readers see only what is flushed.
    Each,
    /// Group commit: a send is answered once a flush that covers it has returned, many sends share one
    /// flush, and readers see only what is flushed.
    Group,
    /// A send is answered once written, but never are more than `count` answered messages unflushed: the one
    /// that would be too many waits for its flush.
    EveryN {
        /// Most answered messages that may be lost.
        count: u32,
        /// Longest time until what is written is flushed.
        interval: Duration,
    },
    /// A send is answered once written; the background flushes.
    Interval {
        /// Time between two looks whether to flush.
        interval: Duration,
        /// Fewer dirty pages of 4 KiB are left for a later look, 0 for none.
        least_pages: u32,
        /// Time after which whatever is dirty is flushed.
        thorough: Duration,
    },
}

impl FlushPolicy {
    /// A flush in the background every `interval`, however little is dirty.
    #[must_use]
    pub const fn every(interval: Duration) -> Self {
        Self::Interval { interval, least_pages: 0, thorough: DEFAULT_THOROUGH }
    }

    /// Says whether a send is answered only after a flush that covers it, and readers see no more than that.
    #[must_use]
    pub const fn is_synchronous(&self) -> bool {
        matches!(self, Self::Each | Self::Group)
    }

    /// Time between two looks of the background whether to flush; none where only those who wait say so.
    pub(crate) const fn look(&self) -> Option<Duration> {
        match self {
            Self::Each | Self::Group => None,
            Self::EveryN { interval, .. } | Self::Interval { interval, .. } => Some(*interval),
        }
    }

    /// Says whether a look may leave something unflushed.
    pub(crate) const fn leaves_pages(&self) -> bool {
        matches!(self, Self::Interval { least_pages: 1.., .. })
    }

    /// Checks that the numbers make a policy.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |reason| Err(StoreError::Invalid { what: "flush", reason });
        match self {
            Self::EveryN { count: 0, .. } => invalid("a count of 0 answers nothing: use `each` or `group`"),
            Self::EveryN { interval, .. } | Self::Interval { interval, .. } if interval.is_zero() => {
                invalid("an interval of 0 never rests: use `group`")
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

/// A duration as people write it: whole seconds where it is such, milliseconds otherwise.
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

/// A policy that leaves few dirty pages for later.
fn least(interval: &str, pages: &str, thorough: Option<Duration>) -> Option<FlushPolicy> {
    let (interval, least_pages, thorough) = (duration(interval)?, pages.parse().ok()?, thorough?);
    Some(FlushPolicy::Interval { interval, least_pages, thorough })
}

impl FromStr for FlushPolicy {
    type Err = StoreError;

    /// Reads a text name. Errors: `Invalid`, which names all of them.
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
