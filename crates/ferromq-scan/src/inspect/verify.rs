//! Verification of a whole store directory: what is looked at in which order, and what follows from all of it.
//!
//! The checkpoint and consumers' offsets are read first, then queues and index, then the log: whatever a broker
//! at work writes meanwhile lies behind what was read before.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{
    InspectOptions,
    finding::{FindingKind, Sink, VerifyEvent},
    index::IndexScan,
    layout::{Layout, StoreState},
    log_extent::LogExtent,
    own_files::OwnFiles,
    parallel::{on_each, threads},
    queues::{Entries, Names, scan},
    verify_config::{self, Offsets},
    verify_log::{self, Derived},
};
use ferromq_store::{
    Result,
    files::{Disk, RealDisk},
};

/// What a verification looked at, and how much it found.
#[derive(Debug, Clone)]
pub struct VerifyReport {
    /// The store directory.
    pub directory: PathBuf,
    /// How it was left.
    pub state: StoreState,
    /// First physical offset that was looked at.
    pub log_start: u64,
    /// End of the log that was looked at: what a broker at work appended since is not known.
    pub looked_to: u64,
    /// Records before it had to be in queues and index; the end of the log where the store is closed.
    pub promised_to: u64,
    /// Commit log files.
    pub log_files: u64,
    /// Bytes of their records.
    pub log_bytes: u64,
    /// Records.
    pub records: u64,
    /// Consume queues.
    pub queues: u64,
    /// Entries that lead to records that are kept.
    pub queue_entries: u64,
    /// Index files.
    pub index_files: u64,
    /// Entries in them.
    pub index_entries: u64,
    /// Records behind `promised_to`, whose entries may be missing.
    pub not_dispatched: u64,
    /// Records of topics that were deleted.
    pub of_deleted: u64,
    /// How many findings of each kind.
    pub findings: BTreeMap<FindingKind, u64>,
    /// What is worth knowing and no fault.
    pub notes: Vec<String>,
    /// Whether all was looked at; not where the caller ended it.
    pub is_complete: bool,
    /// How long it took.
    pub elapsed: Duration,
}

impl VerifyReport {
    /// Says whether nothing was found.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.is_complete && self.findings.is_empty()
    }
}

/// Looks at every byte of a store directory that means something, and tells of what is not as it should be.
///
/// Nothing is written and no lock is taken, so it may be the directory of a Java broker, or one that is open: then it
/// says up to where it looked. Memory is bounded, whatever the size. `tell` is called from several threads, in
/// no order; where it returns `false` the verification ends.
///
/// Errors: `Io` where the directory cannot be read, `NoStore` where it is no store.
pub fn verify(
    directory: &Path,
    options: &InspectOptions,
    tell: &(dyn Fn(VerifyEvent<'_>) -> bool + Sync),
) -> Result<VerifyReport> {
    verify_on(RealDisk, directory, options, tell)
}

/// As [`verify`], on another disk.
pub fn verify_on<D: Disk>(
    disk: D,
    directory: &Path,
    options: &InspectOptions,
    tell: &(dyn Fn(VerifyEvent<'_>) -> bool + Sync),
) -> Result<VerifyReport> {
    let began = Instant::now();
    let sink = Sink::new(tell);
    let offsets = Offsets::read(&disk, directory);
    let layout = Layout::read(disk, directory, options)?;
    let own = OwnFiles::read(&layout);
    layout.tell(&sink);
    verify_config::check_files(&layout, &sink);
    own.tell(&sink);
    sink.expect(layout.log.iter().chain(&layout.index).map(|file| file.len).sum());
    sink.expect(layout.queues.iter().flat_map(|queue| &queue.files).map(|file| file.len).sum());

    let threads = threads(options);
    let limit = promised_to(&layout);
    let mut index = IndexScan::open(&layout, options.index_slots, &sink);
    let queues = thread::scope(|scope| {
        scope.spawn(|| index.check(&layout, &sink));
        on_each(threads, &layout.queues, || (), |(), _, queue| scan(&layout, queue, &sink))
    });
    // A Java broker enters keys after queues, and notes in the last header how far it is.
    let index_limit =
        if layout.state == StoreState::Closed || layout.is_ours() { limit } else { limit.min(index.end()) };
    let names = Names::new(&layout.queues);
    let is_deleted = |topic: &str, queue_id: u32, physical_offset: u64| {
        own.is_deleted(topic, queue_id, physical_offset, names.find(topic, queue_id).is_some())
    };
    let derived = Derived {
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
        || Entries::new(&layout, &queues, &names),
        |entries, number, _| verify_log::check(&derived, number, entries, &sink),
    );
    let suspects: Vec<usize> =
        (0..).zip(&queues).filter(|(_, scan)| scan.is_suspect()).map(|(number, _)| number).collect();
    on_each(threads, &suspects, || (), |(), _, number| verify_log::check_queue(&derived, *number, &sink));

    let whole = LogExtent::of(&layout, &log);
    whole.tell(&layout, &log, &sink);
    let mut notes = own.notes(whole.end, &layout);
    if !sink.is_stopped() {
        verify_config::check_checkpoint(&layout, &whole, &sink);
        offsets.check(&layout, &names, &queues, &sink);
        own.check(&layout, &names, &queues, whole.end, &sink);
    }
    notes.extend(whole.notes(&layout, limit));
    Ok(VerifyReport {
        directory: layout.root.clone(),
        state: layout.state,
        log_start: layout.log_start(),
        looked_to: whole.end,
        promised_to: limit.min(whole.end),
        log_files: layout.log.len() as u64,
        log_bytes: log.iter().map(|scan| scan.bytes).sum(),
        records: log.iter().map(|scan| scan.records).sum(),
        queues: layout.queues.len() as u64,
        queue_entries: queues.iter().map(|scan| scan.expected).sum(),
        index_files: index.files.len() as u64,
        index_entries: index.entries,
        not_dispatched: log.iter().map(|scan| scan.not_dispatched).sum(),
        of_deleted: log.iter().map(|scan| scan.of_deleted).sum(),
        notes,
        is_complete: !sink.is_stopped(),
        findings: sink.counts(),
        elapsed: began.elapsed(),
    })
}

/// Records before it must be in queues and index.
fn promised_to<D: Disk>(layout: &Layout<D>) -> u64 {
    if layout.state == StoreState::Closed {
        return u64::MAX;
    }
    if layout.is_ours() {
        return layout.marks.map_or(0, |marks| marks.durable_end.max(0) as u64);
    }
    layout.dispatched
}
