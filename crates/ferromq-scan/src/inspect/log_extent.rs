//! Where the log ends, and what lies behind its end.

use super::{
    finding::{Finding, FindingKind, Sink},
    layout::{Layout, StoreState},
    verify_log::LogFileScan,
};
use ferromq_store::files::Disk;

/// What all files of the log are together.
pub(crate) struct LogExtent {
    /// Number of the last file that holds records.
    last_file: Option<usize>,
    pub(crate) end: u64,
    pub(crate) last_timestamp: i64,
}

impl LogExtent {
    pub(crate) fn of<D: Disk>(layout: &Layout<D>, log: &[LogFileScan]) -> Self {
        let last_file = log.iter().rposition(|scan| scan.records > 0);
        let end = last_file.and_then(|number| Some(layout.log.get(number)?.base + log.get(number)?.end));
        Self {
            last_file,
            end: end.unwrap_or(layout.log_start()),
            last_timestamp: log.iter().map(|scan| scan.last_timestamp).max().unwrap_or(0),
        }
    }

    /// What lies behind the last record of each file: in the last one the end of the log, in others a hole.
    pub(crate) fn tell<D: Disk>(&self, layout: &Layout<D>, log: &[LogFileScan], sink: &Sink<'_>) {
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

    pub(crate) fn notes<D: Disk>(&self, layout: &Layout<D>, limit: u64) -> Vec<String> {
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
