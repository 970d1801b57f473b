//! Checks the small files of a store directory: the checkpoint and the files of `config/`.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    finding::{Finding, FindingKind, Sink},
    layout::StoreLayout,
    log_extent::LogExtent,
    queue_scan::{QueueNumbers, QueueScan},
};
use ferromq_store::{
    files::{Allocation, Disk, Region},
    formats::{
        checkpoint_files::{TimerCheck, TimerMetrics},
        offset_file::{OffsetFile, parse_json},
    },
    record::names::{SCHEDULE_TOPIC, TIMER_TOPIC},
};

/// Larger files are refused.
const MAX_SMALL_FILE: u64 = 256 << 20;

/// Reads a small file; `None` if it does not exist.
pub(crate) fn read_small<D: Disk>(disk: &D, path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Reads instead of mapping: some systems refuse to map an empty file.
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

/// A file of `config/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile {
    /// File name.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Number of entries in its table, if it has one.
    pub entries: Option<u64>,
    /// Why the file cannot be read.
    pub error: Option<String>,
}

/// The table in each of RocketMQ's files.
const TABLES: [(&str, &str); 4] = [
    ("topics.json", "topicConfigTable"),
    ("subscriptionGroup.json", "subscriptionGroupTable"),
    ("consumerOffset.json", "offsetTable"),
    ("delayOffset.json", "offsetTable"),
];

/// Reads all JSON files of `config/`.
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

/// Reports the files of `config/` that cannot be read.
pub(crate) fn check_files<D: Disk>(layout: &StoreLayout<D>, sink: &Sink<'_>) {
    for (path, file) in config_files(&layout.disk, &layout.root) {
        if let Some(error) = file.error {
            sink.report(&Finding::new(FindingKind::Config, &path, 0..file.bytes, "a JSON object", error));
        }
    }
    check_timers(layout, sink);
}

/// Reports timer files that neither ferromq nor RocketMQ can read. ferromq rebuilds its own at open.
fn check_timers<D: Disk>(layout: &StoreLayout<D>, sink: &Sink<'_>) {
    let path = TimerMetrics::path(&layout.root);
    if let Ok(Some(bytes)) = read_small(&layout.disk, &path)
        && let Err(error) = TimerMetrics::parse(&bytes)
    {
        let len = bytes.len() as u64;
        sink.report(&Finding::new(FindingKind::Config, &path, 0..len, "the counts of timed messages", error));
    }
    let path = layout.root.join("timerwheel");
    match layout.disk.len(&path) {
        Ok(len) if len == 0 || len % 64 != 0 => {
            let found = format!("{len} bytes");
            sink.report(&Finding::new(FindingKind::FileSize, &path, 0..len, "a multiple of 64 bytes", found));
        }
        _ => {}
    }
}

/// QueueNumbers of the topics in `config/topics.json`; `None` if the file is missing or unreadable.
pub(crate) fn topics<D: Disk>(layout: &StoreLayout<D>) -> Option<std::collections::BTreeSet<String>> {
    let bytes = read_small(&layout.disk, &layout.root.join("config").join("topics.json")).ok()??;
    let topics = parse_json(&bytes).ok()?;
    Some(topics.get("topicConfigTable")?.as_object()?.keys().cloned().collect())
}

/// Committed offsets. They only grow, so they are read before the queues.
pub(crate) struct CommittedOffsets {
    consumers: (PathBuf, BTreeMap<String, BTreeMap<u32, u64>>),
    delays: (PathBuf, BTreeMap<u32, u64>),
    timer: Option<u64>,
}

impl CommittedOffsets {
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

    /// Reports offsets beyond the end of their queue.
    pub(crate) fn check<D: Disk>(
        &self,
        layout: &StoreLayout<D>,
        names: &QueueNumbers<'_>,
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
        let check = |path: &Path, what: &str, topic: &str, queue_id: u32, offset: u64| {
            let end = end(topic, queue_id);
            if offset > end {
                let expected = format!("at most {end}, the max offset of {topic} queue {queue_id}");
                let found = format!("{what}: {offset}");
                let path = path.file_name().map_or(path.to_path_buf(), |name| root.join("config").join(name));
                sink.report(&Finding::new(FindingKind::OffsetBeyondQueue, &path, 0..0, expected, found));
            }
        };
        for (name, offsets) in &self.consumers.1 {
            let Some((topic, group)) = name.split_once('@') else { continue };
            for (queue_id, offset) in offsets {
                check(&self.consumers.0, &format!("offset of the group {group}"), topic, *queue_id, *offset);
            }
        }
        for (level, offset) in &self.delays.1 {
            let what = format!("offset of the delay level {level}");
            check(&self.delays.0, &what, SCHEDULE_TOPIC, level.saturating_sub(1), *offset);
        }
        if let Some(offset) = self.timer {
            check(Path::new("timercheck"), "offset of the timer", TIMER_TOPIC, 0, offset);
        }
    }
}

fn delay_offsets(bytes: &[u8]) -> Option<BTreeMap<u32, u64>> {
    let value = parse_json(bytes).ok()?;
    let table = value.get("offsetTable").and_then(Value::as_object)?;
    Some(table.iter().filter_map(|(level, offset)| Some((level.parse().ok()?, offset.as_u64()?))).collect())
}

/// Compares the checkpoint with the log.
pub(crate) fn check_checkpoint<D: Disk>(layout: &StoreLayout<D>, extent: &LogExtent, sink: &Sink<'_>) {
    let path = layout.root.join("checkpoint");
    let Some(marks) = layout.marks else {
        let found =
            if matches!(read_small(&layout.disk, &path), Ok(Some(_))) { "a shorter file" } else { "none" };
        let finding =
            Finding::new(FindingKind::MissingFile, &path, 0..0, "a checkpoint of 4,096 bytes", found);
        sink.report(&finding);
        return;
    };
    // An empty log has no times to compare.
    let newest = (extent.last_timestamp > 0).then_some(extent.last_timestamp);
    let times = [
        (0, "log", marks.log_timestamp),
        (8, "consume queues", marks.queues_timestamp),
        (16, "index", marks.index_timestamp),
    ];
    for (at, what, time) in times {
        if let Some(newest) = newest.filter(|newest| time > *newest) {
            let expected = format!("at most {newest}, when the last message was stored");
            let found = format!("{what} durable up to {time}");
            sink.report(&Finding::new(FindingKind::CheckpointBeyondLog, &path, at..at + 8, expected, found));
        }
    }
    let durable = marks.durable_end.max(0) as u64;
    if durable > extent.end {
        let expected = format!("at most {}, the end of the log", extent.end);
        let found = format!("durable up to physical offset {durable}");
        sink.report(&Finding::new(FindingKind::CheckpointBeyondLog, &path, 32..40, expected, found));
    }
}
