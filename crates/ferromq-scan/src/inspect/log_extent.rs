//! Finds the end of the log and reports the bytes behind it.

use super::{
    finding::{Finding, FindingKind, Sink},
    layout::{StoreLayout, StoreState},
    verify_log::{LogFileScan, LogTail, OpenBatch},
};
use ferromq_store::files::Disk;

/// The extent of all log files together.
pub(crate) struct LogExtent {
    /// Number of the last file with records.
    last_file: Option<usize>,
    pub(crate) end: u64,
    pub(crate) last_timestamp: i64,
}

impl LogExtent {
    pub(crate) fn of<D: Disk>(layout: &StoreLayout<D>, log: &[LogFileScan]) -> Self {
        let last_file = log.iter().rposition(|scan| scan.records > 0);
        let end = last_file.and_then(|number| Some(layout.log.get(number)?.base + log.get(number)?.end));
        Self {
            last_file,
            end: end.unwrap_or(layout.log_start()),
            last_timestamp: log.iter().map(|scan| scan.last_timestamp).max().unwrap_or(0),
        }
    }

    /// Reports the bytes behind the last record of each file: a torn tail in the last file, a hole in others.
    pub(crate) fn report<D: Disk>(&self, layout: &StoreLayout<D>, log: &[LogFileScan], sink: &Sink<'_>) {
        for (number, (file, scan)) in layout.log.iter().zip(log).enumerate() {
            let is_inside = self.last_file.is_some_and(|last| number < last);
            if let Some(LogTail { range, kind, reason }) = &scan.tail {
                let expected = format!("a record at physical offset {}", file.base + range.start);
                if is_inside {
                    sink.report(&Finding::new(*kind, &file.path, range.start..file.len, expected, *reason));
                } else if !layout.is_open() {
                    let expected = "nothing behind the last record";
                    sink.report(&Finding::new(
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
                sink.report(&Finding::new(FindingKind::NoRecord, &file.path, at..file.len, expected, found));
            }
            let OpenBatch { records: count, start: at } = scan.open_batch;
            if count > 0 && self.last_file == Some(number) && !layout.is_open() {
                let expected = "the last of the records that were appended as one";
                let found = format!("{count} records without it");
                let mut finding =
                    Finding::new(FindingKind::Unfinished, &file.path, at..scan.end, expected, found);
                finding.count = count;
                sink.report(&finding);
            }
        }
    }

    pub(crate) fn notes<D: Disk>(&self, layout: &StoreLayout<D>, limit: u64) -> Vec<String> {
        let mut notes = Vec::new();
        match layout.state {
            StoreState::Open => notes.push(format!(
                "a broker has the store open: verified up to physical offset {}, queues and index up to {}",
                self.end,
                limit.min(self.end)
            )),
            StoreState::Killed => notes.push(format!(
                "the store was not closed: the next open recovers the bytes behind physical offset {}",
                limit.min(self.end)
            )),
            StoreState::Closed => {}
        }
        notes
    }
}
