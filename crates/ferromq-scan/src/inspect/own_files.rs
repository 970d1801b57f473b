//! Checks the files of `DIR/ferromq/`: is each readable, and does its anchor still match this log?
//!
//! Another broker's work can invalidate such a file. That is no fault: the next open ignores the file.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::PathBuf,
};

use super::{
    config_files::{self, read_small},
    finding::{Finding, FindingKind, Sink},
    layout::{StoreLayout, StoreState},
    queue_scan::{QueueNumbers, QueueScan},
    record_reader::RecordReader,
};
use ferromq_store::{
    files::Disk,
    formats::{
        admin_files::{self, QueueName},
        anchor::{self, Anchor},
        checkpoint_files, last_shutdown, lease_file,
        offset_file::parse_json,
        queue_list::QueueList,
        queue_marks::DeletedFloor,
        unindexed_range,
    },
};

/// The directory of what a slave's master reports, which has no effect on the store.
const MASTER: &str = "master";

/// A file of `DIR/ferromq/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnFile {
    /// File name.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Why the file cannot be read.
    pub error: Option<String>,
    /// The log changed under another broker, so the next open ignores the file.
    pub is_void: bool,
}

/// The readable content of the files of `DIR/ferromq/`.
#[derive(Default)]
pub(crate) struct OwnFiles {
    pub(crate) files: Vec<(PathBuf, OwnFile)>,
    closed_at: Option<u64>,
    listed: Option<QueueList>,
    topics: Option<BTreeSet<String>>,
    deleted: BTreeMap<QueueName, DeletedFloor>,
    /// Physical offsets of the records that have no index entries.
    pub(crate) unindexed: Range<u64>,
}

impl OwnFiles {
    pub(crate) fn read<D: Disk>(layout: &StoreLayout<D>) -> Self {
        let mut own = Self { topics: config_files::topics(layout), ..Self::default() };
        let mut probe = RecordReader::new(layout);
        for path in layout.disk.list(&layout.root.join("ferromq")).unwrap_or_default() {
            let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else {
                continue;
            };
            if is_passing(&name) || name == MASTER {
                continue;
            }
            let bytes = match read_small(&layout.disk, &path) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => continue,
                Err(error) => {
                    let file = OwnFile { name, bytes: 0, error: Some(error.to_string()), is_void: false };
                    own.files.push((path, file));
                    continue;
                }
            };
            let read = own.take(&name, &bytes);
            let anchor = read.as_ref().ok().copied().flatten();
            let is_void = anchor.is_some_and(|anchor| !is_same_log(layout, &mut probe, anchor));
            match name.as_str() {
                "deleted" if is_void => own.deleted.clear(),
                "queues" if is_void => own.listed = None,
                unindexed_range::NAME if is_void => own.unindexed = 0..0,
                _ => {}
            }
            let error = read.err().map(str::to_owned);
            own.files.push((path, OwnFile { name, bytes: bytes.len() as u64, error, is_void }));
        }
        own
    }

    /// Decodes one file and returns its anchor, if the format has one.
    fn take(&mut self, name: &str, bytes: &[u8]) -> Result<Option<Anchor>, &'static str> {
        match name {
            "closed" => {
                let (end, anchor) = last_shutdown::decode_closed(bytes)?;
                self.closed_at = Some(end);
                Ok(Some(anchor))
            }
            "queues" => {
                let (anchor, listed) = QueueList::read(bytes)?;
                self.listed = Some(listed);
                Ok(Some(anchor))
            }
            "deleted" => {
                let (anchor, deleted) = admin_files::read_deleted(bytes)?;
                self.deleted = deleted;
                Ok(Some(anchor))
            }
            unindexed_range::NAME => {
                let (anchor, unindexed) = unindexed_range::read(bytes)?;
                self.unindexed = unindexed;
                Ok(Some(anchor))
            }
            checkpoint_files::PRECISION_NAME => checkpoint_files::decode_precision(bytes).map(|_| None),
            "leases" => lease_file::read(bytes).map(|(anchor, _)| Some(anchor)),
            _ if name.ends_with(".json") => parse_json(bytes).map(|_| None),
            _ => match bytes.first_chunk::<8>() {
                Some(magic) if magic.starts_with(b"FMQ") => {
                    anchor::unseal(magic, bytes).map(|(anchor, _)| Some(anchor))
                }
                _ => Err("unknown file type"),
            },
        }
    }

    /// Reports the files that cannot be read.
    pub(crate) fn report(&self, sink: &Sink<'_>) {
        for (path, file) in &self.files {
            if let Some(error) = &file.error {
                let expected = format!("a sound file {}", file.name);
                sink.report(&Finding::new(
                    FindingKind::OwnFile,
                    path,
                    0..file.bytes,
                    expected,
                    error.as_str(),
                ));
            }
        }
    }

    /// Whether a record without an entry belongs to a deleted topic and only awaits cleaning.
    pub(crate) fn is_deleted(
        &self,
        topic: &str,
        queue_id: u32,
        physical_offset: u64,
        has_queue: bool,
    ) -> bool {
        if self
            .deleted
            .get(&(topic.into(), queue_id))
            .is_some_and(|floor| physical_offset < floor.physical_end)
        {
            return true;
        }
        let is_listed =
            self.listed.as_ref().is_some_and(|listed| listed.queues.contains_key(&(topic.into(), queue_id)));
        !has_queue && !is_listed && self.topics.as_ref().is_some_and(|topics| !topics.contains(topic))
    }

    /// Compares the list of queues with the queues on disk.
    pub(crate) fn check<D: Disk>(
        &self,
        layout: &StoreLayout<D>,
        names: &QueueNumbers<'_>,
        queues: &[QueueScan],
        end: u64,
        sink: &Sink<'_>,
    ) {
        let Some(listed) = self.listed.as_ref().filter(|_| !self.was_used_elsewhere(end, layout)) else {
            return;
        };
        let path = layout.root.join("ferromq").join("queues");
        for ((topic, queue_id), extent) in &listed.queues {
            let found = names.find(topic, *queue_id).and_then(|number| queues.get(number));
            let found = found.map_or(0, |scan| scan.max_offset);
            let was_deleted = self.deleted.contains_key(&(topic.clone(), *queue_id));
            if found < extent.max_offset && extent.min_offset < extent.max_offset && !was_deleted {
                let directory = layout.root.join("consumequeue").join(&**topic).join(queue_id.to_string());
                let expected =
                    format!("the max offset {}, as noted in {}", extent.max_offset, path.display());
                let found = format!("the max offset {found}");
                sink.report(&Finding::new(FindingKind::QueueShort, &directory, 0..0, expected, found));
            }
        }
    }

    /// Whether another broker opened the store after ferromq closed it.
    fn was_used_elsewhere<D: Disk>(&self, end: u64, layout: &StoreLayout<D>) -> bool {
        layout.state == StoreState::Closed && self.closed_at != Some(end) || !layout.is_ours()
    }

    pub(crate) fn notes<D: Disk>(&self, end: u64, layout: &StoreLayout<D>) -> Vec<String> {
        let void = self.files.iter().filter(|(_, file)| file.is_void);
        let mut notes: Vec<String> = void
            .map(|(_, file)| format!("ferromq/{} belongs to another log and is ignored", file.name))
            .collect();
        let unindexed = self.unindexed.start..self.unindexed.end.min(end);
        if !unindexed.is_empty() {
            notes.push(format!(
                "no index was built (index_enabled) for messages from physical offset {} to {}: their keys may be missing from the index",
                unindexed.start, unindexed.end
            ));
        }
        if let Some(closed_at) = self.closed_at.filter(|_| self.was_used_elsewhere(end, layout)) {
            notes.push(format!(
                "another broker has used the store since ferromq closed it at physical offset {closed_at}"
            ));
        }
        notes
    }
}

/// Whether a file does not count: a writer is about to rename it, it is the backup of a table, or it was set aside. A
/// journal ends at its first torn line, so any content is sound.
fn is_passing(name: &str) -> bool {
    [".new", ".tmp", ".bak", ".damaged", ".journal"].iter().any(|ending| name.ends_with(ending))
}

/// Whether the log still holds the anchor's record, or has removed it by retention.
fn is_same_log<D: Disk>(layout: &StoreLayout<D>, probe: &mut RecordReader<'_, D>, anchor: Anchor) -> bool {
    if anchor == Anchor::NONE || anchor.physical_offset < layout.log_start() {
        return true;
    }
    matches!(probe.record(anchor.physical_offset), Ok(Some(view)) if Anchor::of(&view) == anchor)
}
