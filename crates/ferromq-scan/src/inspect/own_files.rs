//! Our own files in `DIR/ferromq/`: whether each can be read, and whether it still speaks of this log.
//!
//! A file that another broker's work made void is no fault: it is ignored when the store is opened.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::PathBuf,
};

use super::{
    finding::{Finding, FindingKind, Sink},
    layout::{Layout, StoreState},
    probe::Probe,
    queues::{Names, QueueScan},
    verify_config::{self, read_small},
};
use ferromq_store::{
    files::Disk,
    formats::{
        admin_files::{self, QueueName},
        anchor::{self, Anchor},
        last_shutdown, lease_file,
        queue_list::QueueList,
        queue_marks::Floor,
        unindexed_range,
    },
};

/// A file of ours and what can be said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnFile {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Why it cannot be read.
    pub error: Option<String>,
    /// The log has moved on without us, so it is ignored.
    pub is_void: bool,
}

/// All of them, as far as they can be read.
#[derive(Default)]
pub(crate) struct OwnFiles {
    pub(crate) files: Vec<(PathBuf, OwnFile)>,
    closed_at: Option<u64>,
    listed: Option<QueueList>,
    topics: Option<BTreeSet<String>>,
    deleted: BTreeMap<QueueName, Floor>,
    /// Keys of these records need not be in the index.
    pub(crate) unindexed: Range<u64>,
}

impl OwnFiles {
    pub(crate) fn read<D: Disk>(layout: &Layout<D>) -> Self {
        let mut own = Self { topics: verify_config::topics(layout), ..Self::default() };
        let mut probe = Probe::new(layout);
        for path in layout.disk.list(&layout.root.join("ferromq")).unwrap_or_default() {
            let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else {
                continue;
            };
            // Files that are being made.
            if name.ends_with(".new") || name.ends_with(".tmp") {
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
            let is_void = anchor.is_some_and(|anchor| !is_held(layout, &mut probe, anchor));
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

    /// Reads one file; its anchor, where it has one.
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
            "leases" => lease_file::read(bytes).map(|(anchor, _)| Some(anchor)),
            _ => match bytes.first_chunk::<8>() {
                Some(magic) if magic.starts_with(b"FMQ") => {
                    anchor::unseal(magic, bytes).map(|(anchor, _)| Some(anchor))
                }
                _ => Err("no file of this version"),
            },
        }
    }

    /// Tells of those that cannot be read.
    pub(crate) fn tell(&self, sink: &Sink<'_>) {
        for (path, file) in &self.files {
            if let Some(error) = &file.error {
                let expected = format!("a sound file {}", file.name);
                sink.find(&Finding::new(FindingKind::OwnFile, path, 0..file.bytes, expected, error.as_str()));
            }
        }
    }

    /// Says whether the topic of a record without entry was deleted, so that the record is only not yet cleaned.
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

    /// Compares the list of queues with those there are.
    pub(crate) fn check<D: Disk>(
        &self,
        layout: &Layout<D>,
        names: &Names<'_>,
        queues: &[QueueScan],
        end: u64,
        sink: &Sink<'_>,
    ) {
        let Some(listed) = self.listed.as_ref().filter(|_| !self.is_moved_on(end, layout)) else { return };
        let path = layout.root.join("ferromq").join("queues");
        for ((topic, queue_id), extent) in &listed.queues {
            let found = names.find(topic, *queue_id).and_then(|number| queues.get(number));
            let found = found.map_or(0, |scan| scan.max_offset);
            // A queue whose messages were all deleted has no files.
            let was_deleted = self.deleted.contains_key(&(topic.clone(), *queue_id));
            if found < extent.max_offset && extent.min_offset < extent.max_offset && !was_deleted {
                let directory = layout.root.join("consumequeue").join(&**topic).join(queue_id.to_string());
                let expected = format!("the max offset {}, as {} says", extent.max_offset, path.display());
                let found = format!("the max offset {found}");
                sink.find(&Finding::new(FindingKind::QueueShort, &directory, 0..0, expected, found));
            }
        }
    }

    /// Says whether another broker had the store since we closed it.
    fn is_moved_on<D: Disk>(&self, end: u64, layout: &Layout<D>) -> bool {
        layout.state == StoreState::Closed && self.closed_at != Some(end) || !layout.is_ours()
    }

    pub(crate) fn notes<D: Disk>(&self, end: u64, layout: &Layout<D>) -> Vec<String> {
        let void = self.files.iter().filter(|(_, file)| file.is_void);
        let mut notes: Vec<String> =
            void.map(|(_, file)| format!("ferromq/{} is of another log and is ignored", file.name)).collect();
        let unindexed = self.unindexed.start..self.unindexed.end.min(end);
        if !unindexed.is_empty() {
            notes.push(format!(
                "no index was built (index_enabled) for messages from physical offset {} to {}: their keys need not be in the index",
                unindexed.start, unindexed.end
            ));
        }
        if let Some(closed_at) = self.closed_at.filter(|_| self.is_moved_on(end, layout)) {
            notes.push(format!(
                "another broker had the store since ferromq closed it at physical offset {closed_at}"
            ));
        }
        notes
    }
}

/// Says whether the log still holds the record of an anchor, or has long removed it.
fn is_held<D: Disk>(layout: &Layout<D>, probe: &mut Probe<'_, D>, anchor: Anchor) -> bool {
    if anchor == Anchor::NONE || anchor.physical_offset < layout.log_start() {
        return true;
    }
    matches!(probe.record(anchor.physical_offset), Ok(Some(view)) if Anchor::of(&view) == anchor)
}
