//! Verifies a consume queue whose entries do not all lead to their records.

use std::{io, path::Path};

use super::{
    finding::{Finding, FindingKind, FindingRun, Sink},
    layout::StoreLayout,
    queue_scan::walk_file,
    queue_slots::QueueSlot,
    record_reader::RecordReader,
    verify_log::{DerivedData, is_tag_hash_of},
};
use ferromq_store::{
    files::Disk,
    formats::{
        message,
        queue_entry::{ENTRY_LEN, QueueEntry},
    },
};

/// Prefix of queues whose entries lead to records of other topics.
const LIGHT_QUEUES: &str = "%LMQ%";

/// Reads a queue again and reports each entry that does not lead to its record.
pub(crate) fn check_queue<D: Disk>(derived: &DerivedData<'_, D>, number: usize, sink: &Sink<'_>) {
    let layout = derived.layout;
    let (Some(queue), Some(scan)) = (layout.queues.get(number), derived.queues.get(number)) else { return };
    let mut probe = RecordReader::new(layout);
    let mut run = FindingRun::default();
    for file in &queue.files {
        let walked = walk_file(layout, file, scan.min_offset, |offset, slot| {
            let QueueSlot::Entry(entry) = slot else { return true };
            if let Some(EntryFault { kind, expected, found }) =
                entry_fault(layout, &mut probe, &queue.topic, queue.queue_id, offset, entry)
            {
                let at = offset * ENTRY_LEN - file.base;
                let found = format!(
                    "the entry of queue offset {offset} leads to physical offset {}: {found}",
                    entry.physical_offset
                );
                run.add(sink, offset, Finding::new(kind, &file.path, at..at + ENTRY_LEN, expected, found));
            }
            !sink.is_stopped()
        });
        if let Err(error) = walked {
            report_io(layout, sink, &file.path, file.len, &error);
        }
    }
    run.end(sink);
}

fn report_io<D: Disk>(layout: &StoreLayout<D>, sink: &Sink<'_>, path: &Path, len: u64, error: &io::Error) {
    if error.kind() != io::ErrorKind::NotFound || !layout.is_open() {
        sink.report_unreadable(path, 0..len, error);
    }
}

struct EntryFault {
    kind: FindingKind,
    expected: String,
    found: String,
}

impl EntryFault {
    fn new(kind: FindingKind, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { kind, expected: expected.into(), found: found.into() }
    }
}

fn entry_fault<D: Disk>(
    layout: &StoreLayout<D>,
    probe: &mut RecordReader<'_, D>,
    topic: &str,
    queue_id: u32,
    offset: u64,
    entry: QueueEntry,
) -> Option<EntryFault> {
    let is_light = topic.starts_with(LIGHT_QUEUES);
    let view = match probe.record(entry.physical_offset) {
        Ok(Some(view)) => view,
        // An open broker removed the file meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound && layout.is_open() => return None,
        Err(error) => {
            return Some(EntryFault::new(FindingKind::EntryWithoutRecord, "a record", error.to_string()));
        }
        Ok(None) => return Some(EntryFault::new(FindingKind::EntryWithoutRecord, "a record", "no record")),
    };
    let is_own =
        view.topic == topic && u32::try_from(view.queue_id) == Ok(queue_id) && view.queue_offset == offset;
    if !is_own && !is_light {
        let expected = format!("a record of {topic} queue {queue_id} at queue offset {offset}");
        let found =
            format!("one of {} queue {} at queue offset {}", view.topic, view.queue_id, view.queue_offset);
        return Some(EntryFault::new(FindingKind::EntryOfOtherRecord, expected, found));
    }
    if entry.size != view.total_size {
        let (expected, found) = (format!("the size {}", view.total_size), format!("the size {}", entry.size));
        return Some(EntryFault::new(FindingKind::EntrySize, expected, found));
    }
    if !is_tag_hash_of(entry.tag_hash, &view) {
        let expected = format!("the tag hash {}", message::tag_hash(view.marks().tags));
        let found = format!("the tag hash {}", entry.tag_hash);
        return Some(EntryFault::new(FindingKind::EntryTagHash, expected, found));
    }
    if !message::is_consumable(view.sys_flag) {
        let found = format!("system flag {}", view.sys_flag);
        return Some(EntryFault::new(FindingKind::TransactionFlag, "a record that enters queues", found));
    }
    None
}
