//! The kinds of faults that verification finds, and their counts.
//!
//! The modules that check the files decide what is a fault.

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),* $(,)?) => {
        /// The kinds of findings. [`fmt::Display`] writes the name that reports show.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum FindingKind { $($(#[$doc])* $variant),* }

        impl FindingKind {
            /// All kinds, in the order of the files concerned.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name that reports show.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

kinds! {
    /// A file or a part of it cannot be read.
    Unreadable = "unreadable",
    /// A file is missing.
    MissingFile = "missing-file",
    /// A file overlaps the previous one, or its size does not fit its content.
    FileSize = "file-size",
    /// No record begins where one should.
    NoRecord = "no-record",
    /// The lengths of a record contradict each other.
    RecordLengths = "record-lengths",
    /// A record names another physical offset than its own.
    RecordOffset = "record-offset",
    /// A body does not match its checksum.
    BodyChecksum = "body-checksum",
    /// A record does not match the checksum in its properties.
    PropertyChecksum = "property-checksum",
    /// A half, committed or rolled-back message contradicts its system flag.
    TransactionFlag = "transaction-flag",
    /// The last record of an atomic batch is missing.
    Unfinished = "unfinished",
    /// Bytes behind the last record; the next open cuts them off.
    TornTail = "torn-tail",
    /// A queue entry leads to no record.
    EntryWithoutRecord = "entry-without-record",
    /// A queue entry leads to a record of another topic, queue or queue offset.
    EntryOfOtherRecord = "entry-of-other-record",
    /// A queue entry's size differs from its record's.
    EntrySize = "entry-size",
    /// A queue entry's tag hash differs from its record's.
    EntryTagHash = "entry-tag-hash",
    /// A record has no queue entry.
    RecordWithoutEntry = "record-without-entry",
    /// Two records have the same queue offset.
    DuplicateQueueOffset = "duplicate-queue-offset",
    /// A queue lacks entries in its middle.
    QueueGap = "queue-gap",
    /// A filler stands behind a real entry.
    FillerInside = "filler-inside",
    /// A queue is shorter than noted before.
    QueueShort = "queue-short",
    /// An index entry leads to no record.
    IndexEntryWithoutRecord = "index-entry-without-record",
    /// An index entry leads to a record without such a key.
    IndexOtherKey = "index-other-key",
    /// The keys of a record are not in the index.
    KeyNotIndexed = "key-not-indexed",
    /// The chain of a slot loops or leaves the slot, or a slot does not lead to its newest entry.
    IndexChain = "index-chain",
    /// The header of an index file contradicts its entries.
    IndexHeader = "index-header",
    /// The checkpoint claims more than the log holds.
    CheckpointBeyondLog = "checkpoint-beyond-log",
    /// A committed offset lies beyond its queue.
    OffsetBeyondQueue = "offset-beyond-queue",
    /// A file of `config/` cannot be read.
    Config = "config",
    /// A file of `ferromq/` cannot be read.
    OwnFile = "own-file",
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A fault in a store directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Kind of fault.
    pub kind: FindingKind,
    /// The faulty file.
    pub file: PathBuf,
    /// Byte range in the file; empty if the fault concerns the whole file.
    pub range: Range<u64>,
    /// Number of records or entries concerned.
    pub count: u64,
    /// What the format or another file requires.
    pub expected: String,
    /// What the file holds.
    pub found: String,
}

impl Finding {
    pub(crate) fn new(
        kind: FindingKind,
        file: &Path,
        range: Range<u64>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            file: file.to_path_buf(),
            range,
            count: 1,
            expected: expected.into(),
            found: found.into(),
        }
    }
}

/// Events of a running verification, reported from several threads.
#[derive(Debug)]
pub enum VerifyEvent<'a> {
    /// A fault.
    Finding(&'a Finding),
    /// How much of the work is done.
    Progress {
        /// Bytes verified.
        done: u64,
        /// Bytes to verify.
        total: u64,
    },
}

/// Counts findings and progress and passes them to the caller, who may stop the verification.
pub(crate) struct Sink<'a> {
    on_event: &'a (dyn Fn(VerifyEvent<'_>) -> bool + Sync),
    counts: Mutex<BTreeMap<FindingKind, u64>>,
    is_stopped: AtomicBool,
    done: AtomicU64,
    reported: AtomicU64,
    total: AtomicU64,
}

/// Bytes between two progress events.
const PROGRESS_STEP: u64 = 8 << 20;

impl<'a> Sink<'a> {
    pub(crate) fn new(on_event: &'a (dyn Fn(VerifyEvent<'_>) -> bool + Sync)) -> Self {
        Self {
            on_event,
            counts: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            done: AtomicU64::new(0),
            reported: AtomicU64::new(0),
            total: AtomicU64::new(0),
        }
    }

    pub(crate) fn report(&self, finding: &Finding) {
        *self.counts.lock().entry(finding.kind).or_default() += 1;
        if !self.is_stopped() && !(self.on_event)(VerifyEvent::Finding(finding)) {
            self.is_stopped.store(true, Ordering::Release);
        }
    }

    /// Reports a file or a range of it as unreadable.
    pub(crate) fn report_unreadable(&self, path: &Path, range: Range<u64>, error: &std::io::Error) {
        self.report(&Finding::new(FindingKind::Unreadable, path, range, "bytes", error.to_string()));
    }

    pub(crate) fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds verified bytes to the progress.
    pub(crate) fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let reported = self.reported.load(Ordering::Relaxed);
        let is_due =
            done >= reported.saturating_add(PROGRESS_STEP) || done >= self.total.load(Ordering::Relaxed);
        if is_due
            && self.reported.compare_exchange(reported, done, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let total = self.total.load(Ordering::Relaxed).max(done);
            if !(self.on_event)(VerifyEvent::Progress { done, total }) {
                self.is_stopped.store(true, Ordering::Release);
            }
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    pub(crate) fn counts(self) -> BTreeMap<FindingKind, u64> {
        self.counts.into_inner()
    }
}

/// Joins consecutive findings of one kind into one.
#[derive(Default)]
pub(crate) struct FindingRun {
    open: Option<(Finding, u64)>,
}

impl FindingRun {
    /// Adds the finding at position `ordinal`. It joins a finding of the same kind and file at the position before.
    pub(crate) fn add(&mut self, sink: &Sink<'_>, ordinal: u64, finding: Finding) {
        if let Some((open, last)) = &mut self.open
            && last.wrapping_add(1) == ordinal
            && open.kind == finding.kind
            && open.file == finding.file
        {
            open.count += finding.count;
            open.range.end = open.range.end.max(finding.range.end);
            *last = ordinal;
            return;
        }
        self.end(sink);
        self.open = Some((finding, ordinal));
    }

    /// Reports the open finding.
    pub(crate) fn end(&mut self, sink: &Sink<'_>) {
        if let Some((mut finding, _)) = self.open.take() {
            if finding.count > 1 {
                finding.found = format!("{} (the first of {})", finding.found, finding.count);
            }
            sink.report(&finding);
        }
    }
}
