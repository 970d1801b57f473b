//! Verification of a whole store directory: what is looked at in which order, and what follows from all of it.
//!
//! The checkpoint and consumers' offsets are read first, then queues and index, then the log: whatever a broker
//! at work writes meanwhile lies behind what was read before.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    InspectOptions,
    finding::{Finding, FindingKind, Sink},
    index::IndexScan,
    layout::{Layout, StoreState},
    own_files::OwnFiles,
    queues::{Entries, Names, scan},
    verify_config::{self, Offsets},
    verify_log::{self, Derived, LogFileScan},
};
use ferromq_store::{Disk, RealDisk, Result};

/// Told while a verification runs, by the threads that look.
#[derive(Debug)]
pub enum VerifyEvent<'a> {
    /// Something is not as it should be.
    Finding(&'a Finding),
    /// Bytes looked at, of those there are.
    Progress {
        /// Looked at.
        done: u64,
        /// To be looked at.
        total: u64,
    },
}

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

    let whole = Whole::of(&layout, &log);
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

/// How many threads look.
pub(crate) fn threads(options: &InspectOptions) -> usize {
    match options.threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        threads => threads.min(256),
    }
}

/// Calls `work` on each item, on several threads; each has a state of its own.
pub(crate) fn on_each<T: Sync, S, O: Send>(
    threads: usize,
    items: &[T],
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize, &T) -> O + Sync,
) -> Vec<O> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut state = state();
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return done };
            done.push((number, work(&mut state, number, item)));
        }
    };
    let mut done: Vec<(usize, O)> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(items.len())).map(|_| scope.spawn(run)).collect();
        let mut done = run();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, outcome)| outcome).collect()
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

/// What all files of the log are together.
pub(crate) struct Whole {
    /// Number of the last file that holds records.
    last_file: Option<usize>,
    pub(crate) end: u64,
    pub(crate) last_timestamp: i64,
}

impl Whole {
    fn of<D: Disk>(layout: &Layout<D>, log: &[LogFileScan]) -> Self {
        let last_file = log.iter().rposition(|scan| scan.records > 0);
        let end = last_file.and_then(|number| Some(layout.log.get(number)?.base + log.get(number)?.end));
        Self {
            last_file,
            end: end.unwrap_or(layout.log_start()),
            last_timestamp: log.iter().map(|scan| scan.last_timestamp).max().unwrap_or(0),
        }
    }

    /// What lies behind the last record of each file: in the last one the end of the log, in others a hole.
    fn tell<D: Disk>(&self, layout: &Layout<D>, log: &[LogFileScan], sink: &Sink<'_>) {
        for (number, (file, scan)) in layout.log.iter().zip(log).enumerate() {
            let is_inside = self.last_file.is_some_and(|last| number < last);
            if let Some((range, kind, reason)) = &scan.tail {
                let expected = format!("a record at physical offset {}", file.base + range.start);
                if is_inside {
                    sink.find(&Finding::new(*kind, &file.path, range.start..file.len, expected, *reason));
                } else if !layout.is_open() {
                    let expected = "nothing behind the last record";
                    sink.find(&Finding::new(
                        FindingKind::TornTail,
                        &file.path,
                        range.clone(),
                        expected,
                        *reason,
                    ));
                }
            }
            if let Some(at) = scan.unwritten_from.filter(|_| is_inside && !scan.is_gone) {
                let expected = format!("a record at physical offset {}", file.base + at);
                let found = "zeros to the end of the file";
                sink.find(&Finding::new(FindingKind::NoRecord, &file.path, at..file.len, expected, found));
            }
            let (count, at) = scan.continued;
            if count > 0 && self.last_file == Some(number) && !layout.is_open() {
                let expected = "the last of the records that were appended as one";
                let found = format!("{count} records without it");
                let mut finding =
                    Finding::new(FindingKind::Unfinished, &file.path, at..scan.end, expected, found);
                finding.count = count;
                sink.find(&finding);
            }
        }
    }

    fn notes<D: Disk>(&self, layout: &Layout<D>, limit: u64) -> Vec<String> {
        let mut notes = Vec::new();
        match layout.state {
            StoreState::Open => notes.push(format!(
                "a broker has the store open: looked at up to physical offset {}, queues and index up to {}",
                self.end,
                limit.min(self.end)
            )),
            StoreState::Killed => notes.push(format!(
                "the store was not closed: what lies behind physical offset {} is checked again when it is opened",
                limit.min(self.end)
            )),
            StoreState::Closed => {}
        }
        notes
    }
}
