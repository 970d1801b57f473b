//! What verification can find, in words and numbers.
//!
//! How it is found is in the modules that look; this one only holds and counts it.

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
        /// The kinds of findings. [`fmt::Display`] gives the name that reports show.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum FindingKind { $($(#[$doc])* $variant),* }

        impl FindingKind {
            /// All kinds, in the order of the files they speak of.
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
    /// A file, or a part of one, cannot be read.
    Unreadable = "unreadable",
    /// A file that should be there is not.
    MissingFile = "missing-file",
    /// A file begins inside the one before it, or its size does not fit what it holds.
    FileSize = "file-size",
    /// No record begins where one should.
    NoRecord = "no-record",
    /// The lengths of a record contradict each other.
    RecordLengths = "record-lengths",
    /// A record says that it lies elsewhere.
    RecordOffset = "record-offset",
    /// A body does not match its checksum.
    BodyChecksum = "body-checksum",
    /// A record does not match the checksum among its properties.
    PropertyChecksum = "property-checksum",
    /// A half, committed or rolled-back message contradicts its system flag.
    TransactionFlag = "transaction-flag",
    /// Records that were appended as one, of which the last is missing.
    Unfinished = "unfinished",
    /// Bytes behind the last record; the next open cuts them.
    TornTail = "torn-tail",
    /// A queue entry leads to no record.
    EntryWithoutRecord = "entry-without-record",
    /// A queue entry leads to a record of another topic, queue or queue offset.
    EntryOfOtherRecord = "entry-of-other-record",
    /// A queue entry has not the size of its record.
    EntrySize = "entry-size",
    /// A queue entry has not the tag hash of its record.
    EntryTagHash = "entry-tag-hash",
    /// A record has no queue entry.
    RecordWithoutEntry = "record-without-entry",
    /// Two records have one queue offset.
    DuplicateQueueOffset = "duplicate-queue-offset",
    /// A queue lacks entries between others.
    QueueGap = "queue-gap",
    /// An entry that only fills space stands behind a real one.
    FillerInside = "filler-inside",
    /// A queue is shorter than it was when it was last noted.
    QueueShort = "queue-short",
    /// An index entry leads to no record.
    IndexEntryWithoutRecord = "index-entry-without-record",
    /// An index entry leads to a record that has no such key.
    IndexOtherKey = "index-other-key",
    /// The keys of a record are not in the index.
    KeyNotIndexed = "key-not-indexed",
    /// The chain of a slot loops or leaves the slot, or a slot does not lead to its newest entry.
    IndexChain = "index-chain",
    /// The header of an index file contradicts its entries.
    IndexHeader = "index-header",
    /// The checkpoint promises what the log does not hold.
    CheckpointBeyondLog = "checkpoint-beyond-log",
    /// A consumer's offset lies beyond its queue.
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

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing.
    pub kind: FindingKind,
    /// The file.
    pub file: PathBuf,
    /// Bytes inside the file; empty where it is about the file as a whole.
    pub range: Range<u64>,
    /// How many records or entries it is about.
    pub count: u64,
    /// What the format, or another file, says.
    pub expected: String,
    /// What is there.
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

/// Where findings and progress go: counted here, told to the caller, who may end the verification.
pub(crate) struct Sink<'a> {
    tell: &'a (dyn Fn(VerifyEvent<'_>) -> bool + Sync),
    counts: Mutex<BTreeMap<FindingKind, u64>>,
    is_stopped: AtomicBool,
    done: AtomicU64,
    told: AtomicU64,
    total: AtomicU64,
}

/// Bytes between two pictures of the progress.
const PROGRESS_STEP: u64 = 8 << 20;

impl<'a> Sink<'a> {
    pub(crate) fn new(tell: &'a (dyn Fn(VerifyEvent<'_>) -> bool + Sync)) -> Self {
        Self {
            tell,
            counts: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            done: AtomicU64::new(0),
            told: AtomicU64::new(0),
            total: AtomicU64::new(0),
        }
    }

    pub(crate) fn find(&self, finding: &Finding) {
        *self.counts.lock().entry(finding.kind).or_default() += 1;
        if !self.is_stopped() && !(self.tell)(VerifyEvent::Finding(finding)) {
            self.is_stopped.store(true, Ordering::Release);
        }
    }

    /// A file, or a part of it, that cannot be read.
    pub(crate) fn unreadable(&self, path: &Path, range: Range<u64>, error: &std::io::Error) {
        self.find(&Finding::new(FindingKind::Unreadable, path, range, "bytes", error.to_string()));
    }

    pub(crate) fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// `bytes` more were looked at.
    pub(crate) fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let told = self.told.load(Ordering::Relaxed);
        let is_due = done >= told.saturating_add(PROGRESS_STEP) || done >= self.total.load(Ordering::Relaxed);
        if is_due && self.told.compare_exchange(told, done, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let total = self.total.load(Ordering::Relaxed).max(done);
            if !(self.tell)(VerifyEvent::Progress { done, total }) {
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

/// Findings of one kind that follow each other are told as one.
#[derive(Default)]
pub(crate) struct Run {
    open: Option<(Finding, u64)>,
}

impl Run {
    /// Adds what stands at place `ordinal` of a row; its neighbour of the same file and kind is joined.
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

    /// Tells what is open.
    pub(crate) fn end(&mut self, sink: &Sink<'_>) {
        if let Some((mut finding, _)) = self.open.take() {
            if finding.count > 1 {
                finding.found = format!("{} (the first of {})", finding.found, finding.count);
            }
            sink.find(&finding);
        }
    }
}
