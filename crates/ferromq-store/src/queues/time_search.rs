//! Finds a queue offset by store timestamp.
//!
//! ferromq's timestamps never go back within a queue. In a Java broker's log they may; any crossing of the searched
//! time is then a valid answer. Lost and unreadable messages have no time; the search steps over runs of them.

use std::sync::Arc;

use crate::{
    files::{disk::Disk, mapped_file::MappedFile},
    log::commit_log::CommitLog,
    queues::consume_queue::ConsumeQueue,
};

type File<D> = Option<Arc<MappedFile<<D as Disk>::Region>>>;

/// A search in one queue. It holds the files of the last read, which the next read usually needs.
pub(crate) struct TimeSearch<'a, D: Disk> {
    log: &'a CommitLog<D>,
    queue: &'a ConsumeQueue<D>,
    begin: u64,
    end: u64,
    entries: File<D>,
    records: File<D>,
}

impl<'a, D: Disk> TimeSearch<'a, D> {
    pub(crate) fn new(log: &'a CommitLog<D>, queue: &'a ConsumeQueue<D>) -> Self {
        let (begin, end) = (queue.min_offset(), queue.max_offset());
        Self { log, queue, begin, end, entries: None, records: None }
    }

    /// Time of the first message with a time.
    pub(crate) fn earliest(&mut self) -> Option<i64> {
        self.known_from(self.begin, self.end).map(|(_, time)| time)
    }

    /// The first message stored at or after `time`; the end of the queue if all are older.
    pub(crate) fn first_since(&mut self, time: i64) -> u64 {
        let (mut low, mut high) = (self.begin, self.end);
        let mut answer = high;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.known_from(middle, high) {
                Some((at, stored)) if stored < time => low = at + 1,
                Some((at, _)) => (answer, high) = (at, middle),
                None => high = middle,
            }
        }
        answer
    }

    /// The last message stored at or before `time`.
    pub(crate) fn last_until(&mut self, time: i64) -> Option<u64> {
        let end = match time.checked_add(1) {
            Some(later) => self.first_since(later),
            None => self.end,
        };
        self.known_before(end)
    }

    /// Store timestamp of the message at a queue offset.
    pub(crate) fn time(&mut self, queue_offset: u64) -> Option<i64> {
        let entry = self.queue.entry_in(&mut self.entries, queue_offset)?;
        self.log.store_timestamp(&mut self.records, entry.physical_offset, entry.size)
    }

    /// The first message of `from..end` with a time.
    fn known_from(&mut self, from: u64, end: u64) -> Option<(u64, i64)> {
        let (mut unknown, mut step) = (from, 1);
        let first = self.time(from).map(|time| (from, time));
        if first.is_some() || from >= end {
            return first.filter(|_| from < end);
        }
        // Steps over the run in growing strides, then bisects to its end.
        let (mut known, mut found) = loop {
            let at = (unknown + step).min(end - 1);
            match self.time(at) {
                Some(time) => break (at, time),
                None if at + 1 >= end => return None,
                None => (unknown, step) = (at, step * 2),
            }
        };
        while known - unknown > 1 {
            let middle = unknown + (known - unknown) / 2;
            match self.time(middle) {
                Some(time) => (known, found) = (middle, time),
                None => unknown = middle,
            }
        }
        Some((known, found))
    }

    /// The last message before `end` with a time.
    fn known_before(&mut self, end: u64) -> Option<u64> {
        let last = end.checked_sub(1).filter(|last| *last >= self.begin)?;
        if self.time(last).is_some() {
            return Some(last);
        }
        let (mut unknown, mut step) = (last, 1);
        let mut known = loop {
            let at = unknown.saturating_sub(step).max(self.begin);
            match self.time(at) {
                Some(_) => break at,
                None if at == self.begin => return None,
                None => (unknown, step) = (at, step * 2),
            }
        };
        while unknown - known > 1 {
            let middle = known + (unknown - known) / 2;
            match self.time(middle) {
                Some(_) => known = middle,
                None => unknown = middle,
            }
        }
        Some(known)
    }
}
