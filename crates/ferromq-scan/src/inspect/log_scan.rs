//! One commit log file as batches of rows: for jobs that take a file each.
//!
//! Read-only and without a lock, so that live stores, Java brokers' and archived files are read alike. A record belongs
//! to the file, and to the range of it, in which it begins.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use super::{
    finding::FindingKind,
    log_file::{LogFile, Scanned},
};
use crate::columns::{Batch, BatchBuilder, RowFilter, Wanted};
use ferromq_store::{
    Result, StoreError,
    files::{Allocation, Disk, Region},
    formats::message::{INNER_BATCH, is_consumable},
    record::MessageView,
};

/// What becomes of places where no sound record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnCorrupt {
    /// The scan ends with an error.
    Fail,
    /// The scan goes on at the next sound record, and tells of the place.
    Skip,
}

/// What is read, and into batches of which size.
#[derive(Debug, Clone)]
pub struct ScanOptions {
    /// The columns that are made.
    pub wanted: Wanted,
    /// The records that become rows.
    pub filter: RowFilter,
    /// Rows of a batch, at most.
    pub batch_rows: usize,
    /// A batch ends with the row that makes it as large as this; at most 1 GiB.
    pub batch_bytes: usize,
    /// What becomes of damage.
    pub on_corrupt: OnCorrupt,
}

/// Rows, and the places that are no rows because they are damaged.
#[derive(Debug)]
pub struct LogBatch {
    /// The rows; there may be none where all that was read is filtered out or damaged.
    pub batch: Batch,
    /// Physical offset and reason of each damaged place.
    pub corrupt: Vec<(u64, String)>,
}

/// A scan that is under way.
pub struct LogScan<D: Disk> {
    disk: D,
    path: PathBuf,
    base: u64,
    file: LogFile<D::Region>,
    /// Places inside the file.
    end: u64,
    is_short: bool,
    options: ScanOptions,
    is_done: bool,
    corrupt: Vec<(u64, String)>,
}

/// What the record at a place became.
enum Step {
    /// It was looked at.
    Taken,
    /// It is sound, but cannot be a row.
    Refused(String),
}

impl<D: Disk> LogScan<D> {
    /// Opens the file at `path`, whose first byte has the physical offset `base`, for the records that begin in `range`
    /// (physical offsets). A range that begins inside a record begins with the next one.
    ///
    /// # Errors
    /// `Io` where the file cannot be read, `Invalid` for a range that begins before the file or an option out of bounds.
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

    /// The next rows; `None` where there are no more records.
    ///
    /// # Errors
    /// `Io` where the file cannot be read, `CorruptRecord` where it is damaged and that is not to be skipped.
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
        self.tell_shortness()?;
        let corrupt = std::mem::take(&mut self.corrupt);
        if read == 0 && corrupt.is_empty() {
            return Ok(None);
        }
        Ok(Some(LogBatch { batch: builder.finish(), corrupt }))
    }

    /// Where the scan goes on, a physical offset.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.base + self.file.position().min(self.end)
    }

    /// A file that is too short is told once all of it was read.
    fn tell_shortness(&mut self) -> Result<()> {
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

    /// Goes on behind what is no sound record.
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
            // It became sound meanwhile: nobody writes below what was flushed, but a file may be given that is alive.
            Some(Scanned::Record(_)) => {
                self.file.seek(at);
                return Ok(());
            }
            Some(Scanned::Unwritten { .. }) => {
                self.is_done = true;
                if self.end == self.file.len() && !self.goes_on() {
                    return Ok(());
                }
                "zeros where a record should be".to_owned()
            }
            Some(Scanned::Full) | None => {
                self.is_done = true;
                return Ok(());
            }
        };
        self.damaged(at, reason)
    }

    /// Says whether the next file of the log is there and has records, so that this one should be full.
    fn goes_on(&self) -> bool {
        let next = self.path.with_file_name(format!("{:020}", self.base + self.file.len()));
        let mut head = [0; 8];
        let read =
            self.disk.open(&next, Allocation::ReadOnly).and_then(|region| region.read_at(0, &mut head));
        read.is_ok() && head != [0; 8]
    }
}

/// Adds a record that consumers see.
fn add(builder: &mut BatchBuilder<'_>, view: &MessageView<'_>) -> Step {
    // What nobody asked for must not end a scan.
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
