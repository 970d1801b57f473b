//! Retention policies: the options, the facts a policy gets, and the built-in policies.
//!
//! Decisions only. `cleaner` calls the policies, archives and deletes.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use crate::error::{Result, StoreError};

/// When files are deleted, and what happens to them before.
#[derive(Debug, Clone)]
pub struct Retention {
    /// Age of its newest message at which a file is removed; `None` keeps files at any age.
    pub age: Option<Duration>,
    /// Ages of single topics instead of `age`. A file is removed when every topic in it allows it.
    pub age_by_topic: BTreeMap<String, Duration>,
    /// Hours of the day, 0 to 23 in local time, in which files are removed by age; empty for any. When space is short
    /// they are removed at once.
    pub hours: Vec<u8>,
    /// Most bytes of the commit log. Above it, the oldest files are removed at any age.
    pub total_bytes: Option<u64>,
    /// Thresholds of disk usage, as in RocketMQ. They delete messages that have not expired.
    pub disk_usage: Option<DiskUsage>,
    /// What happens to a file before it is deleted.
    pub on_expiry: OnExpiry,
    /// Further policies, called after the built-in ones.
    pub policies: Vec<Arc<dyn RetentionPolicy>>,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            age: Some(Duration::from_hours(72)),
            age_by_topic: BTreeMap::new(),
            hours: Vec::new(),
            total_bytes: None,
            disk_usage: None,
            on_expiry: OnExpiry::Discard,
            policies: Vec::new(),
        }
    }
}

impl Retention {
    /// Checks the ranges of ages, hours and thresholds.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |what, reason| Err(StoreError::Invalid { what, reason });
        if self.hours.iter().any(|hour| *hour > 23) {
            return invalid("retention_hours", "an hour of the day is 0 to 23");
        }
        if self.age.is_some_and(|age| age.is_zero()) {
            return invalid("retention_age", "it must be more than 0");
        }
        if self.age_by_topic.values().any(Duration::is_zero) {
            return invalid("retention_age_by_topic", "an age must be more than 0");
        }
        let Some(DiskUsage { expired, any, refuse }) = self.disk_usage else { return Ok(()) };
        let steps = [expired, any, refuse];
        if !steps.iter().all(|percent| (1.0..=100.0).contains(percent)) {
            return invalid(
                "retention_disk_usage",
                "the steps are percentages from 1 to 100, not fractions: 75, 85, 90",
            );
        }
        if any < expired || refuse < expired {
            return invalid(
                "retention_disk_usage",
                "no step may be lower than the first, which deletes what has expired",
            );
        }
        Ok(())
    }

    /// The policies that these options describe, in order.
    pub(crate) fn to_policies(&self) -> Vec<Arc<dyn RetentionPolicy>> {
        let mut policies: Vec<Arc<dyn RetentionPolicy>> = Vec::new();
        if self.age.is_some() || !self.age_by_topic.is_empty() {
            policies.push(Arc::new(ByAge {
                age: self.age,
                by_topic: self.age_by_topic.clone(),
                hours: self.hours.clone(),
            }));
        }
        if let Some(bytes) = self.total_bytes {
            policies.push(Arc::new(ByTotalSize(bytes)));
        }
        if let Some(steps) = self.disk_usage {
            policies.push(Arc::new(ByDiskUsage(steps)));
        }
        policies.extend(self.policies.iter().map(Arc::clone));
        policies
    }
}

/// Percentages of the file system in use that trigger RocketMQ's three steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskUsage {
    /// Above it, expired files are removed at any hour (`diskMaxUsedSpaceRatio`).
    pub expired: f64,
    /// Above it, the oldest files are removed at any age (`diskSpaceCleanForciblyRatio`).
    pub any: f64,
    /// Above it, sends are refused (`diskSpaceWarningLevelRatio`).
    pub refuse: f64,
}

impl Default for DiskUsage {
    fn default() -> Self {
        Self { expired: 75.0, any: 85.0, refuse: 90.0 }
    }
}

/// What happens to a file that a policy removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnExpiry {
    /// It is deleted.
    #[default]
    Discard,
    /// It is deleted once the archive hook has taken it. Without a hook, or while the hook fails, it stays.
    Archive,
}

/// A policy's decision about the oldest file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Remove the file.
    Remove,
    /// This policy has no reason to remove the file.
    Keep {
        /// When that may change, milliseconds since 1970, if time alone decides.
        until_ms: Option<i64>,
    },
    /// Keep the file, whatever other policies decide.
    Hold,
}

/// Decides about the oldest file of the commit log, never about the active file.
///
/// A file is removed when one policy returns [`Decision::Remove`] and none returns [`Decision::Hold`].
pub trait RetentionPolicy: Send + Sync {
    /// Its name in reports and logs.
    fn name(&self) -> &str;
    /// Decides about `file`.
    fn decide(&self, file: &FileFacts<'_>, store: &RetentionFacts) -> Decision;
}

impl fmt::Debug for dyn RetentionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RetentionPolicy({})", self.name())
    }
}

/// Topics, each with the store time of a message.
pub(crate) type TopicTimes = BTreeMap<Box<str>, i64>;

/// The facts about a file that a policy gets.
pub struct FileFacts<'a> {
    path: PathBuf,
    range: Range<u64>,
    oldest_ms: i64,
    topics: OnceLock<TopicTimes>,
    find_topics: Box<dyn Fn() -> TopicTimes + 'a>,
}

impl<'a> FileFacts<'a> {
    /// Facts of a file. `find_topics` returns its topics, each with the store time of its newest message; it runs at
    /// most once, on first use.
    pub fn new(
        path: PathBuf,
        range: Range<u64>,
        oldest_ms: i64,
        find_topics: impl Fn() -> BTreeMap<Box<str>, i64> + 'a,
    ) -> Self {
        Self { path, range, oldest_ms, topics: OnceLock::new(), find_topics: Box::new(find_topics) }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The physical offsets it holds.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Store time of its first message, milliseconds since 1970.
    #[must_use]
    pub fn oldest_ms(&self) -> i64 {
        self.oldest_ms
    }

    /// Store time of its last message. The first call reads the consume queues, as in [`Self::topics`].
    #[must_use]
    pub fn newest_ms(&self) -> i64 {
        self.topics().values().copied().max().unwrap_or(self.oldest_ms)
    }

    /// The topics with messages in this file, each with the store time of its newest message here.
    #[must_use]
    pub fn topics(&self) -> &BTreeMap<Box<str>, i64> {
        self.topics.get_or_init(|| (self.find_topics)())
    }
}

/// The facts about the store that a policy gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetentionFacts {
    /// The current time, milliseconds since 1970.
    pub now_ms: i64,
    /// The hour of the day, 0 to 23, in local time.
    pub local_hour: u8,
    /// Bytes of the commit log's files, including this one and files prepared ahead.
    pub total_bytes: u64,
    /// Percent of the file system in use, if known. Files just removed already count as free.
    pub disk_used_percent: Option<f64>,
    /// Whether sends are refused for lack of space, or soon will be.
    pub is_space_short: bool,
    /// Whether a caller asked for this cleaning, which ignores the hours.
    pub is_asked: bool,
}

/// Removes files whose messages have all reached their age.
struct ByAge {
    age: Option<Duration>,
    by_topic: BTreeMap<String, Duration>,
    hours: Vec<u8>,
}

impl ByAge {
    /// When a file with these newest messages expires; `None` for never.
    fn expires_at<'a>(&self, topics: impl Iterator<Item = (Option<&'a str>, i64)>) -> Option<i64> {
        let mut latest = i64::MIN;
        for (topic, newest_ms) in topics {
            let own = topic.and_then(|topic| self.by_topic.get(topic).copied());
            let age = i64::try_from(own.or(self.age)?.as_millis()).ok()?;
            latest = latest.max(newest_ms.checked_add(age)?);
        }
        Some(latest)
    }

    /// Lower bound of the expiry, from the shortest age and the first message.
    fn earliest(&self, file: &FileFacts<'_>) -> Option<i64> {
        let shortest = self.age.iter().chain(self.by_topic.values()).min()?;
        file.oldest_ms().checked_add(i64::try_from(shortest.as_millis()).ok()?)
    }
}

impl RetentionPolicy for ByAge {
    fn name(&self) -> &str {
        "age"
    }

    fn decide(&self, file: &FileFacts<'_>, store: &RetentionFacts) -> Decision {
        // The first message usually decides, without a look into the queues.
        match self.earliest(file) {
            None => return Decision::Keep { until_ms: None },
            Some(earliest) if earliest > store.now_ms => return Decision::Keep { until_ms: Some(earliest) },
            Some(_) => {}
        }
        let topics = file.topics();
        let expires_at = if topics.is_empty() {
            // No queue leads to a message in this file any more.
            self.expires_at([(None, file.newest_ms())].into_iter())
        } else {
            self.expires_at(topics.iter().map(|(topic, newest)| (Some(&**topic), *newest)))
        };
        let is_time = store.is_asked
            || store.is_space_short
            || self.hours.is_empty()
            || self.hours.contains(&store.local_hour);
        match expires_at {
            Some(at) if at <= store.now_ms && is_time => Decision::Remove,
            Some(at) if at <= store.now_ms => Decision::Keep { until_ms: Some(next_hour(store.now_ms)) },
            until_ms => Decision::Keep { until_ms },
        }
    }
}

/// The next quarter of an hour: time zones differ in quarters.
fn next_hour(now_ms: i64) -> i64 {
    const QUARTER: i64 = 15 * 60 * 1000;
    (now_ms.div_euclid(QUARTER) + 1) * QUARTER
}

/// Removes the oldest files while the commit log exceeds its size.
struct ByTotalSize(u64);

impl RetentionPolicy for ByTotalSize {
    fn name(&self) -> &str {
        "total size"
    }

    fn decide(&self, _: &FileFacts<'_>, store: &RetentionFacts) -> Decision {
        if store.total_bytes > self.0 { Decision::Remove } else { Decision::Keep { until_ms: None } }
    }
}

/// Removes files at any age while the file system is too full.
struct ByDiskUsage(DiskUsage);

pub(crate) const BY_DISK_USAGE: &str = "disk usage";

impl RetentionPolicy for ByDiskUsage {
    fn name(&self) -> &str {
        BY_DISK_USAGE
    }

    fn decide(&self, _: &FileFacts<'_>, store: &RetentionFacts) -> Decision {
        match store.disk_used_percent {
            Some(used) if used > self.0.any => Decision::Remove,
            _ => Decision::Keep { until_ms: None },
        }
    }
}

/// Calls all `policies` in order. Returns the name of the first that removes the file, or when to call them again.
pub(crate) fn decide<'a>(
    policies: &'a [Arc<dyn RetentionPolicy>],
    file: &FileFacts<'_>,
    store: &RetentionFacts,
) -> RetentionVerdict<'a> {
    let mut removed_by = None;
    let mut next_ms = None;
    for policy in policies {
        match policy.decide(file, store) {
            Decision::Hold => return RetentionVerdict::Keep { until_ms: None },
            Decision::Remove => removed_by = removed_by.or(Some(policy.name())),
            Decision::Keep { until_ms: Some(at) } => {
                next_ms = Some(next_ms.map_or(at, |next: i64| next.min(at)))
            }
            Decision::Keep { until_ms: None } => {}
        }
    }
    removed_by.map_or(RetentionVerdict::Keep { until_ms: next_ms }, RetentionVerdict::RemovedBy)
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RetentionVerdict<'a> {
    RemovedBy(&'a str),
    Keep { until_ms: Option<i64> },
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn file(topics: &[(&str, i64)]) -> FileFacts<'static> {
        let topics: TopicTimes = topics.iter().map(|(topic, hour)| ((*topic).into(), hour * HOUR)).collect();
        FileFacts::new("f".into(), 0..100, 0, move || topics.clone())
    }

    fn at(hour: i64) -> RetentionFacts {
        RetentionFacts {
            now_ms: hour * HOUR,
            local_hour: (hour % 24) as u8,
            total_bytes: 1000,
            disk_used_percent: Some(80.0),
            is_space_short: false,
            is_asked: false,
        }
    }

    fn verdict(retention: &Retention, file: &FileFacts<'_>, store: &RetentionFacts) -> String {
        let policies = retention.to_policies();
        match decide(&policies, file, store) {
            RetentionVerdict::RemovedBy(name) => name.to_owned(),
            RetentionVerdict::Keep { until_ms: Some(at) } => format!("{}", at as f64 / HOUR as f64),
            RetentionVerdict::Keep { until_ms: None } => "keep".to_owned(),
        }
    }

    #[test]
    fn a_file_goes_when_its_newest_message_is_72_hours_old() {
        let retention = Retention::default();
        assert_eq!(
            verdict(&retention, &file(&[("a", 5)]), &at(71)),
            "72",
            "the first message is not old enough"
        );
        assert_eq!(verdict(&retention, &file(&[("a", 5), ("b", 9)]), &at(80)), "81");
        assert_eq!(verdict(&retention, &file(&[("a", 5), ("b", 9)]), &at(81)), "age");
    }

    #[test]
    fn a_file_goes_when_every_topic_in_it_allows_it() {
        let by_topic = [("brief", 1), ("long", 100)].map(|(t, h)| (t.to_owned(), Duration::from_hours(h)));
        let retention = Retention { age_by_topic: by_topic.into(), ..Retention::default() };
        assert_eq!(verdict(&retention, &file(&[("brief", 5)]), &at(6)), "age");
        assert_eq!(verdict(&retention, &file(&[("brief", 5), ("other", 3)]), &at(74)), "75");
        assert_eq!(verdict(&retention, &file(&[("brief", 5), ("other", 3)]), &at(75)), "age");
        assert_eq!(verdict(&retention, &file(&[("brief", 5), ("long", 3)]), &at(75)), "103");
        let only = Retention { age: None, ..retention };
        assert_eq!(verdict(&only, &file(&[("brief", 5), ("other", 3)]), &at(9999)), "keep");
        assert_eq!(verdict(&only, &file(&[("brief", 5), ("long", 3)]), &at(103)), "age");
    }

    #[test]
    fn expired_files_wait_for_their_hour_unless_space_is_short_or_a_caller_asks() {
        let retention = Retention { hours: vec![4, 16], ..Retention::default() };
        let expired = file(&[("a", 0)]);
        assert_eq!(verdict(&retention, &expired, &at(75)), "75.25");
        assert_eq!(verdict(&retention, &expired, &at(76)), "age", "76 is 4 o'clock");
        assert_eq!(verdict(&retention, &expired, &at(88)), "age", "88 is 16 o'clock");
        assert_eq!(verdict(&retention, &expired, &RetentionFacts { is_asked: true, ..at(75) }), "age");
        assert_eq!(verdict(&retention, &expired, &RetentionFacts { is_space_short: true, ..at(75) }), "age");
    }

    #[test]
    fn size_and_disk_usage_remove_unexpired_files_only_when_configured() {
        let young = file(&[("a", 0)]);
        let full = RetentionFacts { disk_used_percent: Some(85.1), is_space_short: true, ..at(1) };
        assert_eq!(verdict(&Retention::default(), &young, &full), "72");
        let usage = Retention { disk_usage: Some(DiskUsage::default()), ..Retention::default() };
        assert_eq!(verdict(&usage, &young, &full), "disk usage");
        assert_eq!(verdict(&usage, &young, &at(1)), "72");
        let size = |bytes| Retention { total_bytes: Some(bytes), ..Retention::default() };
        assert_eq!(verdict(&size(999), &young, &at(1)), "total size");
        assert_eq!(verdict(&size(1000), &young, &at(1)), "72");
    }

    #[test]
    fn a_policy_that_holds_a_file_overrules_all_others() {
        struct Held;
        impl RetentionPolicy for Held {
            fn name(&self) -> &str {
                "held"
            }
            fn decide(&self, _: &FileFacts<'_>, _: &RetentionFacts) -> Decision {
                Decision::Hold
            }
        }
        let retention =
            Retention { total_bytes: Some(0), policies: vec![Arc::new(Held)], ..Retention::default() };
        assert_eq!(verdict(&retention, &file(&[("a", 0)]), &at(1000)), "keep");
    }

    #[test]
    fn invalid_options_are_refused_by_name() {
        let refused = |retention: Retention| match retention.check() {
            Err(StoreError::Invalid { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        Retention { disk_usage: Some(DiskUsage::default()), hours: vec![0, 23], ..Retention::default() }
            .check()
            .unwrap();
        assert_eq!(refused(Retention { hours: vec![24], ..Retention::default() }), "retention_hours");
        for steps in [
            (80.0, 70.0, 90.0),
            (70.0, 95.0, 60.0),
            (0.0, 1.0, 2.0),
            (70.0, 80.0, 101.0),
            (f64::NAN, 80.0, 90.0),
        ] {
            let usage = DiskUsage { expired: steps.0, any: steps.1, refuse: steps.2 };
            let retention = Retention { disk_usage: Some(usage), ..Retention::default() };
            assert_eq!(refused(retention), "retention_disk_usage");
        }
    }
}
