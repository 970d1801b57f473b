//! Verifies a extent store directory.
//!
//! The checkpoint and consumers' offsets are read first, then queues and index, then the log. What an open broker
//! writes meanwhile lies behind what was read before.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{
    InspectOptions,
    config_files::{self, CommittedOffsets},
    finding::{FindingKind, Sink, VerifyEvent},
    index_scan::IndexScan,
    layout::{StoreLayout, StoreState},
    log_extent::LogExtent,
    own_files::OwnFiles,
    parallel::{on_each, threads},
    queue_scan::{QueueEntries, QueueNumbers, scan_queue},
    verify_log::{self, DerivedData, LogFileScan},
    verify_queue,
};
use ferromq_store::{
    Result,
    files::{Disk, RealDisk},
};

/// What a verification covered, and what it found.
#[derive(Debug, Clone)]
pub struct VerifyReport {
    /// The store directory.
    pub directory: PathBuf,
    /// How the last broker left the store.
    pub state: StoreState,
    /// First physical offset verified.
    pub log_start: u64,
    /// End of the verified log. An open broker may have appended more.
    pub looked_to: u64,
    /// Records before this physical offset must have queue and index entries; the end of the log in a closed store.
    pub promised_to: u64,
    /// Number of commit log files.
    pub log_files: u64,
    /// Bytes of their records.
    pub log_bytes: u64,
    /// Number of records.
    pub records: u64,
    /// Number of consume queues.
    pub queues: u64,
    /// Queue entries of kept records.
    pub queue_entries: u64,
    /// Number of index files.
    pub index_files: u64,
    /// Number of index entries.
    pub index_entries: u64,
    /// Records behind `promised_to`; their entries may be missing.
    pub not_dispatched: u64,
    /// Records of deleted topics.
    pub of_deleted: u64,
    /// Number of findings by kind.
    pub findings: BTreeMap<FindingKind, u64>,
    /// Remarks that are no faults.
    pub notes: Vec<String>,
    /// Whether the verification ran to its end; `false` if the caller stopped it.
    pub is_complete: bool,
    /// Duration of the verification.
    pub elapsed: Duration,
}

impl VerifyReport {
    /// Whether the verification is complete and found nothing.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.is_complete && self.findings.is_empty()
    }
}

/// Verifies every meaningful byte of a store directory and reports each fault to `on_event`.
///
/// It writes nothing and takes no lock, so the store may be open and may be a Java broker's; the report says how far it
/// looked. Memory is bounded whatever the size. `on_event` is called from several threads in any order; the
/// verification stops when it returns `false`. Errors: `Io` if the directory cannot be read, `NoStore` if it is not a
/// store.
pub fn verify(
    directory: &Path,
    options: &InspectOptions,
    on_event: &(dyn Fn(VerifyEvent<'_>) -> bool + Sync),
) -> Result<VerifyReport> {
    verify_on(RealDisk, directory, options, on_event)
}

/// As [`verify`], on another disk.
pub fn verify_on<D: Disk>(
    disk: D,
    directory: &Path,
    options: &InspectOptions,
    on_event: &(dyn Fn(VerifyEvent<'_>) -> bool + Sync),
) -> Result<VerifyReport> {
    let began = Instant::now();
    let sink = Sink::new(on_event);
    let offsets = CommittedOffsets::read(&disk, directory);
    let layout = StoreLayout::read(disk, directory, options)?;
    let own = OwnFiles::read(&layout);
    layout.report(&sink);
    config_files::check_files(&layout, &sink);
    own.report(&sink);
    sink.expect(layout.log.iter().chain(&layout.index).map(|file| file.len).sum());
    sink.expect(layout.queues.iter().flat_map(|queue| &queue.files).map(|file| file.len).sum());

    let threads = threads(options);
    let limit = promised_to(&layout);
    let mut index = IndexScan::open(&layout, options.index_slots, &sink);
    let queues = thread::scope(|scope| {
        scope.spawn(|| index.check(&layout, &sink));
        on_each(threads, &layout.queues, || (), |(), _, queue| scan_queue(&layout, queue, &sink))
    });
    // A Java broker writes index entries after queue entries and notes its progress in the last header.
    let index_limit =
        if layout.state == StoreState::Closed || layout.is_ours() { limit } else { limit.min(index.end()) };
    let names = QueueNumbers::new(&layout.queues);
    let is_deleted = |topic: &str, queue_id: u32, physical_offset: u64| {
        own.is_deleted(topic, queue_id, physical_offset, names.find(topic, queue_id).is_some())
    };
    let derived = DerivedData {
        layout: &layout,
        queues: &queues,
        index: &index,
        limit,
        index_limit,
        unindexed: own.unindexed.clone(),
        is_deleted: &is_deleted,
    };
    let log = on_each(
        threads,
        &layout.log,
        || QueueEntries::new(&layout, &queues, &names),
        |entries, number, _| verify_log::check_log_file(&derived, number, entries, &sink),
    );
    let suspects: Vec<usize> =
        (0..).zip(&queues).filter(|(_, scan)| scan.is_suspect()).map(|(number, _)| number).collect();
    on_each(threads, &suspects, || (), |(), _, number| verify_queue::check_queue(&derived, *number, &sink));

    let extent = LogExtent::of(&layout, &log);
    extent.report(&layout, &log, &sink);
    let mut notes = own.notes(extent.end, &layout);
    if !sink.is_stopped() {
        config_files::check_checkpoint(&layout, &extent, &sink);
        offsets.check(&layout, &names, &queues, &sink);
        own.check(&layout, &names, &queues, extent.end, &sink);
    }
    notes.extend(extent.notes(&layout, limit));
    Ok(VerifyReport {
        looked_to: extent.end,
        promised_to: limit.min(extent.end),
        notes,
        is_complete: !sink.is_stopped(),
        findings: sink.counts(),
        elapsed: began.elapsed(),
        ..totals(&derived, &log)
    })
}

/// A report with the numbers of files, records and entries alone.
fn totals<D: Disk>(derived: &DerivedData<'_, D>, log: &[LogFileScan]) -> VerifyReport {
    let layout = derived.layout;
    VerifyReport {
        directory: layout.root.clone(),
        state: layout.state,
        log_start: layout.log_start(),
        looked_to: 0,
        promised_to: 0,
        log_files: layout.log.len() as u64,
        log_bytes: log.iter().map(|scan| scan.bytes).sum(),
        records: log.iter().map(|scan| scan.records).sum(),
        queues: layout.queues.len() as u64,
        queue_entries: derived.queues.iter().map(|scan| scan.expected).sum(),
        index_files: derived.index.files.len() as u64,
        index_entries: derived.index.entries,
        not_dispatched: log.iter().map(|scan| scan.not_dispatched).sum(),
        of_deleted: log.iter().map(|scan| scan.of_deleted).sum(),
        findings: BTreeMap::new(),
        notes: Vec::new(),
        is_complete: false,
        elapsed: Duration::ZERO,
    }
}

/// Records before this physical offset must have queue and index entries.
fn promised_to<D: Disk>(layout: &StoreLayout<D>) -> u64 {
    if layout.state == StoreState::Closed {
        return u64::MAX;
    }
    if layout.is_ours() {
        return layout.marks.map_or(0, |marks| marks.durable_end.max(0) as u64);
    }
    layout.dispatched
}
