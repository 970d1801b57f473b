//! RocketMQ's `config/timercheck`, the wheel's progress, and `config/timermetrics`, waiting messages by topic.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use crate::{
    error::{IoResult, Result},
    files::disk::Disk,
    progress::offset_file::{load_with_backup, parse_json, save_with_backup},
};

const LEN: usize = 4096;
const FIELDS: usize = 56;

/// The content of `config/timercheck`: 7 numbers of 8 bytes, big-endian, in 4,096 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimerCheck {
    /// All messages of spans before this time are delivered.
    pub(crate) read_time: i64,
    /// End of the durable timer log.
    pub(crate) log_end: u64,
    /// The next message to put into the wheel, in queue 0 of the wheel's topic.
    pub queue_offset: u64,
    /// The master's value of it.
    pub(crate) master_queue_offset: u64,
    pub(crate) state_version: i64,
    pub(crate) changed_at: i64,
    pub(crate) counter: i64,
}

impl TimerCheck {
    fn path(root: &Path) -> PathBuf {
        root.join("config").join("timercheck")
    }

    /// Reads the file; `None` if it is missing or too short.
    pub fn load<D: Disk>(disk: &D, root: &Path) -> Result<Option<Self>> {
        let path = Self::path(root);
        let bytes = disk.read_file(&path).if_found().or_io("read", &path)?;
        Ok(bytes.and_then(|bytes| Self::decode(&bytes)))
    }

    pub(crate) fn save<D: Disk>(&self, disk: &D, root: &Path) -> Result<()> {
        let path = Self::path(root);
        let mut bytes = self.encode();
        bytes.resize(LEN, 0);
        disk.replace_file(&path, &bytes).or_io("write", &path)
    }

    /// The fields, as RocketMQ sends them to a slave.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let numbers = [
            self.read_time,
            self.log_end.cast_signed(),
            self.queue_offset.cast_signed(),
            self.master_queue_offset.cast_signed(),
            self.state_version,
            self.changed_at,
            self.counter,
        ];
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<FIELDS>()?;
        let mut numbers = bytes.as_chunks::<8>().0.iter().map(|number| i64::from_be_bytes(*number));
        let mut next = || numbers.next().unwrap_or(0);
        Some(Self {
            read_time: next().max(0),
            log_end: next().max(0).cast_unsigned(),
            queue_offset: next().max(0).cast_unsigned(),
            master_queue_offset: next().max(0).cast_unsigned(),
            state_version: next(),
            changed_at: next(),
            counter: next(),
        })
    }
}

/// The name of the file below `ferromq/` that holds the span of a slot of the wheel.
pub const PRECISION_NAME: &str = "timerprecision";

/// Decodes [`PRECISION_NAME`]: milliseconds, 8 bytes; 0 while the wheel is being made.
pub fn decode_precision(bytes: &[u8]) -> std::result::Result<i64, &'static str> {
    let millis = bytes.try_into().map(i64::from_be_bytes).map_err(|_| "it does not have 8 bytes")?;
    if millis >= 0 { Ok(millis) } else { Err("the span of a slot is negative") }
}

/// The content of `config/timermetrics`: waiting messages by destination topic, and when their number changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TimerMetrics {
    counts: BTreeMap<String, (i64, i64)>,
    counter: i64,
    state_version: i64,
    changed_at: i64,
    other: Map<String, Value>,
}

impl TimerMetrics {
    /// The path of the file in a store directory.
    pub fn path(root: &Path) -> PathBuf {
        root.join("config").join("timermetrics")
    }

    /// Reads the file or its backup. If both are unreadable, logs that and counts from zero.
    pub(crate) fn load<D: Disk>(disk: &D, root: &Path) -> Self {
        match load_with_backup(disk, &Self::path(root), Self::parse) {
            Ok(found) => found.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "timer metrics cannot be read: counting from zero");
                Self::default()
            }
        }
    }

    pub(crate) fn save<D: Disk>(&self, disk: &D, root: &Path) -> Result<()> {
        save_with_backup(disk, &Self::path(root), self.encode().as_bytes())
    }

    pub(crate) fn add(&mut self, topic: &str, change: i64, now_ms: i64) {
        if !self.counts.contains_key(topic) {
            self.counts.insert(topic.to_owned(), (0, 0));
        }
        if let Some((count, changed_at)) = self.counts.get_mut(topic) {
            *count = count.saturating_add(change);
            *changed_at = now_ms;
        }
        self.counter += 1;
        self.changed_at = now_ms;
    }

    /// Messages that wait for a topic.
    #[cfg(test)]
    pub(crate) fn count(&self, topic: &str) -> i64 {
        self.counts.get(topic).map_or(0, |(count, _)| *count)
    }

    pub(crate) fn clear(&mut self) {
        self.counts.clear();
    }

    /// Parses the bytes of the file; the error names the fault.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Self, &'static str> {
        let Value::Object(mut other) = parse_json(bytes)? else { return Err("not a JSON object") };
        let mut metrics = Self::default();
        match other.remove("timingCount") {
            Some(Value::Object(table)) => {
                for (topic, metric) in table {
                    let number = |name| metric.get(name).and_then(Value::as_i64);
                    let count = number("count").ok_or("a count is not a number")?;
                    metrics.counts.insert(topic, (count, number("timeStamp").unwrap_or(0)));
                }
            }
            None | Some(Value::Null) => {}
            Some(_) => return Err("timingCount is not an object"),
        }
        if let Some(version) = other.remove("dataVersion") {
            let number = |name| version.get(name).and_then(Value::as_i64).unwrap_or(0);
            metrics.counter = number("counter");
            metrics.state_version = number("stateVersion");
            metrics.changed_at = number("timestamp");
        }
        metrics.other = other;
        Ok(metrics)
    }

    pub(crate) fn encode(&self) -> String {
        let Self { counter, state_version, changed_at, .. } = self;
        let counts = self
            .counts
            .iter()
            .map(|(topic, (count, at))| (topic.clone(), json!({ "count": count, "timeStamp": at })));
        let mut all = self.other.clone();
        let version = json!({ "counter": counter, "stateVersion": state_version, "timestamp": changed_at });
        all.insert("dataVersion".to_owned(), version);
        all.insert("timingCount".to_owned(), Value::Object(counts.collect()));
        Value::Object(all).to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_metrics_of_java_are_read_and_written_again() {
        let java = r#"{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":17},"timingCount":{"orders":{"count":2,"timeStamp":9}}}"#;
        let mut metrics = TimerMetrics::parse(java.as_bytes()).unwrap();
        assert_eq!(metrics.encode(), java);
        metrics.add("orders", -1, 20);
        metrics.add("flights", 1, 21);
        assert_eq!((metrics.count("orders"), metrics.count("flights"), metrics.count("x")), (1, 1, 0));
        assert_eq!(TimerMetrics::parse(metrics.encode().as_bytes()).unwrap(), metrics);
    }

    proptest! {
        #[test]
        fn a_checkpoint_is_read_as_it_was_written(numbers in prop::array::uniform7(0..i64::MAX)) {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
            let check = TimerCheck::decode(&bytes).unwrap();
            prop_assert_eq!(check.encode(), bytes);
        }

        #[test]
        fn any_bytes_as_checkpoint_or_metrics_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = TimerCheck::decode(&bytes);
            let _ = TimerMetrics::parse(&bytes);
        }
    }
}
