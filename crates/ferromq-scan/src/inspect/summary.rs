//! Summarizes a store directory: files, times, topics and queues, index, checkpoint, configuration.
//!
//! It reads queue entries and the ends of the log, not every record. `verify` checks them all.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use super::{
    InspectOptions,
    config_files::{ConfigFile, config_files},
    finding::Sink,
    index_scan::IndexScan,
    layout::{StoreLayout, StoreState},
    log_file::{LogFile, Scanned},
    own_files::{OwnFile, OwnFiles},
    parallel::{on_each, threads},
    queue_scan::{QueueScan, scan_queue},
    record_reader::RecordReader,
};
use ferromq_store::{
    Result,
    files::{Disk, RealDisk},
};

/// The content of a store directory. Times are store timestamps in milliseconds since 1970.
#[derive(Debug, Clone)]
pub struct StoreSummary {
    /// The store directory.
    pub directory: PathBuf,
    /// How the last broker left the store.
    pub state: StoreState,
    /// Content of the abort file: the process that has, or had, the store open.
    pub abort: Option<String>,
    /// The commit log.
    pub log: LogSummary,
    /// Topics with queues on disk, by name.
    pub topics: Vec<TopicSummary>,
    /// The index.
    pub index: IndexSummary,
    /// The checkpoint, if it exists.
    pub checkpoint: Option<CheckpointSummary>,
    /// Files of `config/`.
    pub config: Vec<ConfigFile>,
    /// Files of `ferromq/`.
    pub own_files: Vec<OwnFile>,
    /// Files that are missing, overlap or cannot be opened.
    pub problems: Vec<String>,
}

/// The commit log.
#[derive(Debug, Clone, Default)]
pub struct LogSummary {
    /// Its directories.
    pub paths: Vec<PathBuf>,
    /// Files.
    pub files: u64,
    /// Size of the newest file, in bytes; new files get the same size.
    pub file_size: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// First physical offset kept.
    pub start: u64,
    /// End of the last record.
    pub end: u64,
    /// Store timestamp of the first record.
    pub first_time: Option<i64>,
    /// Store timestamp of the last record.
    pub last_time: Option<i64>,
    /// Physical offsets missing between files.
    pub gaps: Vec<Range<u64>>,
}

/// A topic and its queues.
#[derive(Debug, Clone)]
pub struct TopicSummary {
    /// Topic name.
    pub topic: String,
    /// Queues by ID.
    pub queues: Vec<QueueSummary>,
}

/// A consume queue.
#[derive(Debug, Clone, Default)]
pub struct QueueSummary {
    /// Queue ID.
    pub queue_id: u32,
    /// First queue offset kept.
    pub min_offset: u64,
    /// Next queue offset to be written.
    pub max_offset: u64,
    /// Number of messages kept.
    pub messages: u64,
    /// Bytes of their records.
    pub bytes: u64,
    /// Store timestamp of the first message.
    pub first_time: Option<i64>,
    /// Store timestamp of the last message.
    pub last_time: Option<i64>,
    /// Files of the queue.
    pub files: u64,
    /// Bytes of the files.
    pub file_bytes: u64,
}

/// The index.
#[derive(Debug, Clone, Default)]
pub struct IndexSummary {
    /// Files.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Entries counted by the headers.
    pub entries: u64,
    /// Store timestamp of the first entry.
    pub first_time: Option<i64>,
    /// Store timestamp of the last entry.
    pub last_time: Option<i64>,
}

/// The checkpoint.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckpointSummary {
    /// Messages stored up to this time are durable in the commit log.
    pub log_time: i64,
    /// Messages stored up to this time are durable in the consume queues.
    pub queues_time: i64,
    /// Messages stored up to this time are durable in full or closed index files.
    pub index_time: i64,
    /// The master's flushed physical offset.
    pub master_flushed_offset: i64,
    /// End of the durable and dispatched log; 0 if the broker does not note it.
    pub durable_end: i64,
}

/// Summarizes a store directory of ferromq or a Java broker, closed or open. Read-only. Errors: `Io` if the directory
/// cannot be read, `NoStore` if it is not a store.
pub fn inspect(directory: &Path, options: &InspectOptions) -> Result<StoreSummary> {
    inspect_on(RealDisk, directory, options)
}

/// As [`inspect`], on another disk.
pub fn inspect_on<D: Disk>(disk: D, directory: &Path, options: &InspectOptions) -> Result<StoreSummary> {
    let layout = StoreLayout::read(disk, directory, options)?;
    // `verify` reports faults; a summary names only files that cannot be opened.
    let sink = Sink::new(&|_| true);
    let scans =
        on_each(threads(options), &layout.queues, || (), |(), _, queue| scan_queue(&layout, queue, &sink));
    let index = IndexScan::open(&layout, options.index_slots, &sink);
    let mut probe = RecordReader::new(&layout);
    let topics = topics(&layout, &scans, &mut probe);
    Ok(StoreSummary {
        directory: layout.root.clone(),
        state: layout.state,
        abort: layout.abort.clone(),
        log: log(&layout, &scans, &mut probe),
        topics,
        index: IndexSummary {
            files: layout.index.len() as u64,
            bytes: layout.index.iter().map(|file| file.len).sum(),
            entries: index.entries,
            first_time: index
                .files
                .iter()
                .find(|file| file.count > 1)
                .map(|file| file.header.begin_timestamp),
            last_time: index.files.iter().rfind(|file| file.count > 1).map(|file| file.header.end_timestamp),
        },
        checkpoint: layout.marks.map(|marks| CheckpointSummary {
            log_time: marks.log_timestamp,
            queues_time: marks.queues_timestamp,
            index_time: marks.index_timestamp,
            master_flushed_offset: marks.master_flushed_offset,
            durable_end: marks.durable_end,
        }),
        config: config_files(&layout.disk, &layout.root).into_iter().map(|(_, file)| file).collect(),
        own_files: OwnFiles::read(&layout).files.into_iter().map(|(_, file)| file).collect(),
        problems: layout
            .findings
            .iter()
            .map(|finding| format!("{}: {} {}", finding.file.display(), finding.kind, finding.found))
            .collect(),
    })
}

fn topics<D: Disk>(
    layout: &StoreLayout<D>,
    scans: &[QueueScan],
    probe: &mut RecordReader<'_, D>,
) -> Vec<TopicSummary> {
    let mut topics: Vec<TopicSummary> = Vec::new();
    for (queue, scan) in layout.queues.iter().zip(scans) {
        let mut time = |entry: Option<ferromq_store::formats::queue_entry::QueueEntry>| {
            probe.record(entry?.physical_offset).ok().flatten().map(|view| view.store_timestamp)
        };
        let summary = QueueSummary {
            queue_id: queue.queue_id,
            min_offset: scan.min_offset,
            max_offset: scan.max_offset,
            messages: scan.expected,
            bytes: scan.bytes,
            first_time: time(scan.first),
            last_time: time(scan.last),
            files: queue.files.len() as u64,
            file_bytes: queue.files.iter().map(|file| file.len).sum(),
        };
        match topics.last_mut().filter(|topic| topic.topic == queue.topic) {
            Some(topic) => topic.queues.push(summary),
            None => topics.push(TopicSummary { topic: queue.topic.clone(), queues: vec![summary] }),
        }
    }
    topics
}

fn log<D: Disk>(layout: &StoreLayout<D>, scans: &[QueueScan], probe: &mut RecordReader<'_, D>) -> LogSummary {
    let start = layout.log_start();
    let first_time = probe.record(start).ok().flatten().map(|view| view.store_timestamp);
    let last_entry = scans.iter().filter_map(|scan| scan.last).max_by_key(|entry| entry.physical_offset);
    let mut last_time = last_entry
        .and_then(|entry| probe.record(entry.physical_offset).ok()?.map(|view| view.store_timestamp));
    // Few records lie behind the last dispatched one, so the walk is short.
    let dispatched = last_entry.map_or(start, |entry| entry.end()).max(start);
    let mut end = dispatched;
    for file in layout.log.iter().filter(|file| file.end() > dispatched) {
        let Ok(region) = layout.open(&file.path) else { break };
        let mut log = LogFile::new(region, file.base);
        log.seek(dispatched.saturating_sub(file.base));
        let mut is_full = false;
        while let Ok(Some(scanned)) = log.next_scanned() {
            match scanned {
                Scanned::Record(view) | Scanned::Damaged { view, .. } => {
                    end = view.physical_offset + u64::from(view.total_size);
                    last_time = Some(view.store_timestamp);
                }
                Scanned::Full => is_full = true,
                Scanned::Unsound { .. } | Scanned::Unwritten { .. } => break,
            }
        }
        if !is_full {
            break;
        }
        end = file.end();
    }
    let pairs = layout.log.iter().zip(layout.log.iter().skip(1));
    LogSummary {
        paths: layout.log_paths.clone(),
        files: layout.log.len() as u64,
        file_size: layout.log.last().map_or(0, |file| file.len),
        bytes: layout.log.iter().map(|file| file.len).sum(),
        start,
        end,
        first_time,
        last_time,
        gaps: pairs
            .filter(|(file, next)| file.end() < next.base)
            .map(|(file, next)| file.end()..next.base)
            .collect(),
    }
}
