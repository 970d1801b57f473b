//! The small files of a store directory: the checkpoint and what lies in `config/`.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    finding::{Finding, FindingKind, Sink},
    layout::Layout,
    log_extent::LogExtent,
    queues::{Names, QueueScan},
};
use ferromq_store::{
    files::{Allocation, Disk, Region},
    formats::{
        checkpoint_files::{TimerCheck, TimerMetrics},
        offset_file::{OffsetFile, parse_json},
    },
    record::names::{SCHEDULE_TOPIC, TIMER_TOPIC},
};

/// Larger files than this are not read whole.
const MAX_SMALL_FILE: u64 = 256 << 20;

/// Reads a small file whole; `None` where there is none.
pub(crate) fn read_small<D: Disk>(disk: &D, path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Maps of empty files are refused by some systems.
    let region = match disk.open(path, Allocation::ReadOnly) {
        Ok(region) => region,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if region.len() > MAX_SMALL_FILE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{} bytes are too many", region.len()),
        ));
    }
    let mut bytes = vec![0; region.len() as usize];
    region.read_at(0, &mut bytes)?;
    Ok(Some(bytes))
}

/// A file of `config/` and what can be said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Entries of its table, where it has one.
    pub entries: Option<u64>,
    /// Why it cannot be read.
    pub error: Option<String>,
}

/// Tables of RocketMQ's files, by the name of the file.
const TABLES: [(&str, &str); 4] = [
    ("topics.json", "topicConfigTable"),
    ("subscriptionGroup.json", "subscriptionGroupTable"),
    ("consumerOffset.json", "offsetTable"),
    ("delayOffset.json", "offsetTable"),
];

/// All json files of `config/`, each read.
pub(crate) fn config_files<D: Disk>(disk: &D, root: &Path) -> Vec<(PathBuf, ConfigFile)> {
    let mut files = Vec::new();
    for path in disk.list(&root.join("config")).unwrap_or_default() {
        let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else { continue };
        if !name.ends_with(".json") {
            continue;
        }
        let (bytes, parsed) = match read_small(disk, &path) {
            Ok(Some(bytes)) => (bytes.len() as u64, parse_json(&bytes).map_err(str::to_owned)),
            Ok(None) => continue,
            Err(error) => (0, Err(error.to_string())),
        };
        let table = TABLES.iter().find(|(file, _)| *file == name).map(|(_, table)| *table);
        let entries = parsed.as_ref().ok().and_then(|value| value.get(table?)?.as_object());
        let entries = entries.map(|entries| entries.len() as u64);
        files.push((path, ConfigFile { name, bytes, entries, error: parsed.err() }));
    }
    files
}

/// Tells of files of `config/` that cannot be read.
pub(crate) fn check_files<D: Disk>(layout: &Layout<D>, sink: &Sink<'_>) {
    for (path, file) in config_files(&layout.disk, &layout.root) {
        if let Some(error) = file.error {
            sink.find(&Finding::new(FindingKind::Config, &path, 0..file.bytes, "a JSON object", error));
        }
    }
    check_timers(layout, sink);
}

/// Tells of files of timed messages that neither we nor RocketMQ can use: ours are made anew at open.
fn check_timers<D: Disk>(layout: &Layout<D>, sink: &Sink<'_>) {
    let path = TimerMetrics::path(&layout.root);
    if let Ok(Some(bytes)) = read_small(&layout.disk, &path)
        && let Err(error) = TimerMetrics::parse(&bytes)
    {
        let len = bytes.len() as u64;
        sink.find(&Finding::new(FindingKind::Config, &path, 0..len, "the counts of timed messages", error));
    }
    let path = layout.root.join("timerwheel");
    match layout.disk.len(&path) {
        Ok(len) if len == 0 || len % 64 != 0 => {
            let found = format!("{len} bytes");
            sink.find(&Finding::new(FindingKind::FileSize, &path, 0..len, "a multiple of 64 bytes", found));
        }
        _ => {}
    }
}

/// Names of the topics in `config/topics.json`; `None` where it is not there or cannot be read.
pub(crate) fn topics<D: Disk>(layout: &Layout<D>) -> Option<std::collections::BTreeSet<String>> {
    let bytes = read_small(&layout.disk, &layout.root.join("config").join("topics.json")).ok()??;
    let topics = parse_json(&bytes).ok()?;
    Some(topics.get("topicConfigTable")?.as_object()?.keys().cloned().collect())
}

/// Consumers' offsets, read before the queues: those of a broker at work only grow.
pub(crate) struct Offsets {
    consumers: (PathBuf, BTreeMap<String, BTreeMap<u32, u64>>),
    delays: (PathBuf, BTreeMap<u32, u64>),
    timer: Option<u64>,
}

impl Offsets {
    pub(crate) fn read<D: Disk>(disk: &D, root: &Path) -> Self {
        let path = OffsetFile::path(root);
        let consumers =
            read_small(disk, &path).ok().flatten().and_then(|bytes| OffsetFile::parse(&bytes).ok());
        let delay_path = root.join("config").join("delayOffset.json");
        let delays = read_small(disk, &delay_path).ok().flatten().and_then(|bytes| delay_offsets(&bytes));
        Self {
            consumers: (path, consumers.map(|file| file.offsets).unwrap_or_default()),
            delays: (delay_path, delays.unwrap_or_default()),
            timer: TimerCheck::load(disk, root).ok().flatten().map(|check| check.queue_offset),
        }
    }

    /// Tells of offsets beyond the end of their queue.
    pub(crate) fn check<D: Disk>(
        &self,
        layout: &Layout<D>,
        names: &Names<'_>,
        queues: &[QueueScan],
        sink: &Sink<'_>,
    ) {
        let root = &layout.root;
        let end = |topic: &str, queue_id| {
            names
                .find(topic, queue_id)
                .and_then(|number| queues.get(number))
                .map_or(0, |scan| scan.max_offset)
        };
        let tell = |path: &Path, what: &str, topic: &str, queue_id: u32, offset: u64| {
            let end = end(topic, queue_id);
            if offset > end {
                let expected = format!("at most {end}, the max offset of {topic} queue {queue_id}");
                let found = format!("{what}: {offset}");
                let path = path.file_name().map_or(path.to_path_buf(), |name| root.join("config").join(name));
                sink.find(&Finding::new(FindingKind::OffsetBeyondQueue, &path, 0..0, expected, found));
            }
        };
        for (name, offsets) in &self.consumers.1 {
            let Some((topic, group)) = name.split_once('@') else { continue };
            for (queue_id, offset) in offsets {
                tell(&self.consumers.0, &format!("offset of the group {group}"), topic, *queue_id, *offset);
            }
        }
        for (level, offset) in &self.delays.1 {
            let what = format!("offset of the delay level {level}");
            tell(&self.delays.0, &what, SCHEDULE_TOPIC, level.saturating_sub(1), *offset);
        }
        if let Some(offset) = self.timer {
            tell(Path::new("timercheck"), "offset of the timer", TIMER_TOPIC, 0, offset);
        }
    }
}

fn delay_offsets(bytes: &[u8]) -> Option<BTreeMap<u32, u64>> {
    let value = parse_json(bytes).ok()?;
    let table = value.get("offsetTable").and_then(Value::as_object)?;
    Some(table.iter().filter_map(|(level, offset)| Some((level.parse().ok()?, offset.as_u64()?))).collect())
}

/// Compares what the checkpoint promises with the log.
pub(crate) fn check_checkpoint<D: Disk>(layout: &Layout<D>, whole: &LogExtent, sink: &Sink<'_>) {
    let path = layout.root.join("checkpoint");
    let Some(marks) = layout.marks else {
        let found =
            if matches!(read_small(&layout.disk, &path), Ok(Some(_))) { "a shorter file" } else { "none" };
        let finding =
            Finding::new(FindingKind::MissingFile, &path, 0..0, "a checkpoint of 4,096 bytes", found);
        sink.find(&finding);
        return;
    };
    // Where all of the log was deleted nobody knows the times.
    let newest = (whole.last_timestamp > 0).then_some(whole.last_timestamp);
    let times = [
        (0, "log", marks.log_timestamp),
        (8, "consume queues", marks.queues_timestamp),
        (16, "index", marks.index_timestamp),
    ];
    for (at, what, time) in times {
        if let Some(newest) = newest.filter(|newest| time > *newest) {
            let expected = format!("at most {newest}, when the last message was stored");
            let found = format!("{what} durable up to {time}");
            sink.find(&Finding::new(FindingKind::CheckpointBeyondLog, &path, at..at + 8, expected, found));
        }
    }
    let durable = marks.durable_end.max(0) as u64;
    if durable > whole.end {
        let expected = format!("at most {}, the end of the log", whole.end);
        let found = format!("durable up to physical offset {durable}");
        sink.find(&Finding::new(FindingKind::CheckpointBeyondLog, &path, 32..40, expected, found));
    }
}
