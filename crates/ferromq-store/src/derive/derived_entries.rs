//! Derives consume queue entries and index keys from records, on all cores at open. `rebuild` writes the missing ones.

use std::{collections::HashMap, ops::Range};

use crate::{
    delayed::delay_levels::{self, DelayLevels},
    files::{anchor::Anchor, disk::Region, mapped_file::MappedFile},
    index::index_file::{IndexKey, key_hash},
    queues::{consume_queue::check_name, queue_entry::QueueEntry},
    record::message::{self, MessageView, RecordMarks},
    recovery::log_walk::{Checks, Found},
};

/// The consume queue entry of a record at `physical_offset`.
pub(crate) fn entry_of(
    levels: &DelayLevels,
    physical_offset: u64,
    view: &MessageView<'_>,
    marks: &RecordMarks<'_>,
) -> QueueEntry {
    let due_at = delay_levels::due_at(levels, view.topic, marks.delay_level, view.store_timestamp);
    let tag_hash = due_at.unwrap_or_else(|| message::tag_hash(marks.tags));
    QueueEntry { physical_offset, size: view.total_size, tag_hash }
}

/// The index keys of a record.
pub(crate) fn index_keys<'a>(
    view: &MessageView<'a>,
    marks: &RecordMarks<'a>,
) -> impl Iterator<Item = IndexKey> + use<'a> {
    let &MessageView { topic, physical_offset, store_timestamp, .. } = view;
    marks.each_key().map(move |key| IndexKey { hash: key_hash(topic, key), physical_offset, store_timestamp })
}

/// Consecutive entries of one queue.
pub(crate) struct EntryRun {
    pub(crate) topic: Box<str>,
    pub(crate) queue_id: u32,
    /// Queue offset of the first entry.
    pub(crate) first: u64,
    /// In the layout of the file.
    pub(crate) entries: Vec<u8>,
    pub(crate) count: u64,
    /// Physical offset of the first record.
    pub(crate) physical_offset: u64,
}

/// Everything derived from consecutive records.
#[derive(Default)]
pub(crate) struct Derived {
    pub(crate) runs: Vec<EntryRun>,
    pub(crate) keys: Vec<IndexKey>,
    pub(crate) messages: u64,
    pub(crate) last_timestamp: i64,
    pub(crate) last: Option<Anchor>,
}

/// Everything derived from a chunk of the log.
#[derive(Default)]
pub(crate) struct ChunkDerived {
    pub(crate) whole: Derived,
    /// Records at the chunk's end whose batch continues after it, and the offset of the first one.
    pub(crate) continued: Option<(u64, Derived)>,
}

/// Checks the records of `range`. Returns what the valid ones derive to, and where they end.
pub(crate) fn derive<R: Region>(
    file: &MappedFile<R>,
    range: Range<u64>,
    checks: Checks,
    levels: &DelayLevels,
) -> (ChunkDerived, u64) {
    let mut derivation = Derivation::new(levels);
    let to = derivation.take_records(file, range.clone(), checks);
    let continued_from = derivation.continued_from;
    let Some(from) = continued_from else {
        return (ChunkDerived { whole: derivation.derived, continued: None }, to);
    };
    // A batch that crosses the chunk is rare: derive the chunk again in two pieces.
    let unchecked = Checks { crc: false, ..Checks::ALL };
    let [whole, continued] = [range.start..from, from..to].map(|range| {
        let mut derivation = Derivation::new(levels);
        derivation.take_records(file, range, unchecked);
        derivation.derived
    });
    (ChunkDerived { whole, continued: Some((from, continued)) }, to)
}

struct Derivation<'a> {
    levels: &'a DelayLevels,
    derived: Derived,
    /// Index of the last run of each queue.
    open: HashMap<(&'a str, u32), usize>,
    last_run: usize,
    /// The first record of a batch whose last record has not come yet.
    continued_from: Option<u64>,
}

impl<'a> Derivation<'a> {
    fn new(levels: &'a DelayLevels) -> Self {
        Self { levels, derived: Derived::default(), open: HashMap::new(), last_run: 0, continued_from: None }
    }

    fn take_records<R: Region>(&mut self, file: &'a MappedFile<R>, range: Range<u64>, checks: Checks) -> u64 {
        let mut at = range.start;
        while at < range.end {
            let Some(Found::Message(view)) = checks.record(file, at) else { break };
            self.take(&view);
            at += u64::from(view.total_size);
        }
        at
    }

    fn take(&mut self, view: &MessageView<'a>) {
        self.derived.messages += 1;
        self.derived.last_timestamp = self.derived.last_timestamp.max(view.store_timestamp);
        self.derived.last = Some(Anchor::of(view));
        if view.sys_flag & message::CONTINUED == 0 {
            self.continued_from = None;
        } else {
            self.continued_from.get_or_insert(view.physical_offset);
        }
        let marks = view.marks();
        if message::is_consumable(view.sys_flag) {
            match check_name(view.topic, view.queue_id) {
                Ok(queue_id) => {
                    let entry = entry_of(self.levels, view.physical_offset, view, &marks);
                    self.take_entry(view.topic, queue_id, view.queue_offset, entry);
                }
                Err(error) => {
                    tracing::error!(physical_offset = view.physical_offset, %error, "record enters no queue");
                }
            }
        }
        if message::is_indexed(view.sys_flag) {
            self.derived.keys.extend(index_keys(view, &marks));
        }
    }

    fn take_entry(&mut self, topic: &'a str, queue_id: u32, queue_offset: u64, entry: QueueEntry) {
        let is_of = |run: &EntryRun| run.queue_id == queue_id && *run.topic == *topic;
        // Producers send to queues in turn, or to one for a while.
        let turn = [self.last_run + 1, 0, self.last_run];
        let guess = turn.into_iter().find(|number| self.derived.runs.get(*number).is_some_and(is_of));
        let number = guess.or_else(|| self.open.get(&(topic, queue_id)).copied());
        if let Some(number) = number
            && let Some(run) = self.derived.runs.get_mut(number)
            && run.first + run.count == queue_offset
        {
            run.entries.extend_from_slice(&entry.encode());
            run.count += 1;
            self.last_run = number;
            return;
        }
        self.last_run = self.derived.runs.len();
        self.open.insert((topic, queue_id), self.last_run);
        self.derived.runs.push(EntryRun {
            topic: topic.into(),
            queue_id,
            first: queue_offset,
            entries: entry.encode().to_vec(),
            count: 1,
            physical_offset: entry.physical_offset,
        });
    }
}
