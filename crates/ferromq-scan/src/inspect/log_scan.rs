//! Reads one commit log file as batches of rows, for jobs that run a task a file.
//!
//! It takes no lock and writes nothing, so it reads live stores, Java stores and archived files alike. A record belongs
//! to the range in which it begins.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use super::{
    finding::FindingKind,
    log_file::{LogFile, Scanned},
};
use crate::columns::{BatchBuilder, ColumnSet, RowBatch, RowFilter};
use ferromq_store::{
    Result, StoreError,
    files::{Allocation, Disk, Region},
    formats::message::{INNER_BATCH, is_consumable},
    record::MessageView,
};

/// How a scan handles bytes that are no sound record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnCorrupt {
    /// End with an error.
    Fail,
    /// Report the damage and continue at the next sound record.
    Skip,
}

/// The columns to build, and the size of a batch.
#[derive(Debug, Clone)]
pub struct ScanOptions {
    /// Columns to build.
    pub wanted: ColumnSet,
    /// Records that become rows.
    pub filter: RowFilter,
    /// Most rows in a batch.
    pub batch_rows: usize,
    /// A batch ends with the row that reaches this size, in bytes; at most 1 GiB.
    pub batch_bytes: usize,
    /// How to handle damage.
    pub on_corrupt: OnCorrupt,
}

/// A batch of rows and the damage between them.
#[derive(Debug)]
pub struct LogBatch {
    /// The rows; empty if all records were filtered out or damaged.
    pub batch: RowBatch,
    /// Physical offset and reason of each damaged record.
    pub corrupt: Vec<(u64, String)>,
}

/// A scan in progress.
pub struct LogScan<D: Disk> {
    disk: D,
    path: PathBuf,
    base: u64,
    file: LogFile<D::Region>,
    /// End of the range, relative to the file.
    end: u64,
    is_short: bool,
    options: ScanOptions,
    is_done: bool,
    corrupt: Vec<(u64, String)>,
}

/// How the builder took a record.
enum Step {
    /// Read; it may have become a row.
    Taken,
    /// Sound, but it cannot become a row.
    Refused(String),
}

impl<D: Disk> LogScan<D> {
    /// Opens the file at `path` for the records that begin in `range`. `base` is the physical offset of its first byte;
    /// `range` holds physical offsets and may begin inside a record.
    ///
    /// # Errors
    /// `Io` if the file cannot be read, `Invalid` if the range begins before the file or an option is out of bounds.
    pub fn open(disk: D, path: &Path, base: u64, range: Range<u64>, options: ScanOptions) -> Result<Self> {
        let invalid = |what, reason| Err(StoreError::Invalid { what, reason });
        if range.start < base || range.end < range.start {
            return invalid("the range of a scan", "it begins before its file, or ends before it begins");
        }
        if options.batch_rows == 0 {
            return invalid("the rows of a batch", "it must be 1 or more");
        }
        if !(1..=1 << 30).contains(&options.batch_bytes) {
            return invalid("the bytes of a batch", "it must be 1 to 1 GiB");
        }
        let region =
            disk.open(path, Allocation::ReadOnly).map_err(|source| StoreError::io("open", path, source))?;
        let mut file = LogFile::new(region, base);
        let (start, end) = (range.start - base, range.end - base);
        let is_short = end > file.len();
        let begin = if start == 0 { Ok(Some(0)) } else { file.begin_from(start) };
        let begin = begin.map_err(|source| StoreError::io("read", path, source))?;
        file.seek(begin.unwrap_or(end));
        let end = end.min(file.len());
        let corrupt = Vec::new();
        Ok(Self { disk, path: path.to_owned(), base, file, end, is_short, options, is_done: false, corrupt })
    }

    /// The next rows; `None` after the last record.
    ///
    /// # Errors
    /// `Io` if the file cannot be read, `CorruptRecord` for damage under [`OnCorrupt::Fail`].
    pub fn next_batch(&mut self) -> Result<Option<LogBatch>> {
        let filter = self.options.filter.clone();
        let (rows, bytes) = (self.options.batch_rows, self.options.batch_bytes);
        let left = usize::try_from(self.end.saturating_sub(self.file.position())).unwrap_or(usize::MAX);
        let room = bytes.saturating_add(bytes / 8).min(left);
        let mut builder = BatchBuilder::new(self.options.wanted, &filter, rows.min(left / 91 + 1), room);
        let mut read = 0;
        while !self.is_done && builder.rows() < rows && builder.bytes() < bytes {
            if self.file.position() >= self.end {
                self.is_done = true;
                break;
            }
            let at = self.file.position();
            let taken = self.file.take_sound(|view| add(&mut builder, view));
            match taken.map_err(|source| StoreError::io("read", &self.path, source))? {
                Some(Step::Taken) => read += 1,
                Some(Step::Refused(reason)) => self.damaged(at, reason)?,
                None => self.pass(at)?,
            }
        }
        self.report_short_file()?;
        let corrupt = std::mem::take(&mut self.corrupt);
        if read == 0 && corrupt.is_empty() {
            return Ok(None);
        }
        Ok(Some(LogBatch { batch: builder.finish(), corrupt }))
    }

    /// The physical offset at which the scan continues.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.base + self.file.position().min(self.end)
    }

    /// Reports a short file after its last byte was read.
    fn report_short_file(&mut self) -> Result<()> {
        match self.is_short && self.is_done {
            true => {
                self.is_short = false;
                self.damaged(self.file.len(), "the file is shorter than it should be".to_owned())
            }
            false => Ok(()),
        }
    }

    fn error(&self, at: u64, reason: String) -> StoreError {
        StoreError::CorruptRecord {
            file: self.path.clone(),
            offset: at,
            physical_offset: self.base + at,
            reason,
        }
    }

    fn damaged(&mut self, at: u64, reason: String) -> Result<()> {
        match self.options.on_corrupt {
            OnCorrupt::Fail => Err(self.error(at, reason)),
            OnCorrupt::Skip => {
                self.corrupt.push((self.base + at, reason));
                Ok(())
            }
        }
    }

    /// Skips bytes that are no sound record.
    fn pass(&mut self, at: u64) -> Result<()> {
        let scanned = self.file.next_scanned();
        let scanned = scanned.map_err(|source| StoreError::io("read", &self.path, source))?;
        let reason = match scanned {
            Some(Scanned::Damaged { kind, .. }) => match kind {
                FindingKind::PropertyChecksum => {
                    "the record does not match the checksum among its properties"
                }
                _ => "the body does not match its checksum",
            }
            .to_owned(),
            Some(Scanned::Unsound { reason, .. }) => reason.to_owned(),
            // A file in use can change between two reads.
            Some(Scanned::Record(_)) => {
                self.file.seek(at);
                return Ok(());
            }
            Some(Scanned::Unwritten { .. }) => {
                self.is_done = true;
                if self.end == self.file.len() && !self.goes_on() {
                    return Ok(());
                }
                "zeros where a record should begin".to_owned()
            }
            Some(Scanned::Full) | None => {
                self.is_done = true;
                return Ok(());
            }
        };
        self.damaged(at, reason)
    }

    /// Whether the next log file holds records, so that this one should be full.
    fn goes_on(&self) -> bool {
        let next = self.path.with_file_name(format!("{:020}", self.base + self.file.len()));
        let mut head = [0; 8];
        let read =
            self.disk.open(&next, Allocation::ReadOnly).and_then(|region| region.read_at(0, &mut head));
        read.is_ok() && head != [0; 8]
    }
}

/// Adds a record if consumers can see it.
fn add(builder: &mut BatchBuilder<'_>, view: &MessageView<'_>) -> Step {
    // A record outside the filter must not end a scan.
    if view.sys_flag & INNER_BATCH != 0 && builder.may_want(view) {
        return Step::Refused("several messages in one record (a batch consume queue's) are not read".into());
    }
    if !is_consumable(view.sys_flag) || view.sys_flag & INNER_BATCH != 0 {
        builder.pass(view);
        return Step::Taken;
    }
    match builder.add(view) {
        Ok(()) => Step::Taken,
        Err(error) => Step::Refused(error.to_string()),
    }
}
