//! All consume queues of a store.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};

use crate::{
    config::StoreConfig,
    error::{IoResult, Result, StoreError},
    files::{
        directories::{DirectoryNames, FileDirectories},
        disk::{Allocation, Disk},
        mapped_file_queue::{FileFormat, MappedFileQueue},
        open_files::{FileKind, OpenFiles},
    },
    queues::{
        consume_queue::{ConsumeQueue, NO_BATCH},
        known_entries::KnownEntries,
        queue_entry::ENTRY_LEN,
        queue_list::QueueExtent,
        queue_marks::QueueMarks,
    },
    sync::parallel::side_by_side,
};

/// Queues by topic and queue ID. Clients choose topic names, so the hash is keyed.
type QueueMap<D> = HashMap<Box<str>, BTreeMap<u32, Arc<ConsumeQueue<D>>>>;

/// The queues of all topics.
pub(crate) struct ConsumeQueues<D: Disk> {
    disk: D,
    names: Arc<DirectoryNames<D>>,
    directory: PathBuf,
    file_size: u64,
    open_files: Arc<OpenFiles<D::Region>>,
    table: RwLock<QueueMap<D>>,
    /// Topics whose directories could not be listed; recovery sets their queues aside.
    pub(crate) unlisted: Mutex<Vec<(Box<str>, StoreError)>>,
    /// Queues whose files could not be read; recovery sets them aside.
    pub(crate) unread: Mutex<Vec<(Arc<ConsumeQueue<D>>, StoreError)>>,
    /// Records from this physical offset on were not deleted with their topic.
    pub(crate) deleted_to: AtomicU64,
}

impl<D: Disk> ConsumeQueues<D> {
    /// Opens `consumequeue/TOPIC/QUEUE` of a store directory. Entries are recovered later.
    pub(crate) fn load(
        disk: &D,
        root: &Path,
        names: &Arc<DirectoryNames<D>>,
        open_files: &Arc<OpenFiles<D::Region>>,
        config: &StoreConfig,
    ) -> Result<Self> {
        let mut queues = Self {
            disk: disk.clone(),
            names: Arc::clone(names),
            directory: root.join("consumequeue"),
            file_size: config.consume_queue_file_entries.max(1) * ENTRY_LEN,
            open_files: Arc::clone(open_files),
            table: RwLock::new(HashMap::default()),
            unlisted: Mutex::default(),
            unread: Mutex::default(),
            deleted_to: AtomicU64::new(0),
        };
        let topics = queues.list(&queues.directory)?;
        let found = Mutex::new(BTreeMap::new());
        side_by_side(&topics, |path| {
            let queues = queues.load_topic(path);
            found.lock().insert(path, queues);
        });
        let found: Vec<_> = found.into_inner().into_values().flatten().collect();
        // New queues get the same file size: Java requires one size for all.
        let last = found.iter().rev().find(|(queue, _)| queue.files.span().is_some());
        queues.file_size = last.map_or(queues.file_size, |(queue, _)| queue.files.file_size());
        for (mut queue, error) in found {
            if queue.files.span().is_none() {
                let is_cut = queue.is_cut();
                queue = queues.make(queue.topic(), queue.queue_id());
                queue.is_cut.store(is_cut, Ordering::Relaxed);
            }
            let queue = Arc::new(queue);
            if let Some(error) = error {
                queues.unread.lock().push((Arc::clone(&queue), error));
            }
            let mut table = queues.table.write();
            table.entry(queue.topic().into()).or_default().insert(queue.queue_id(), queue);
        }
        Ok(queues)
    }

    /// The queues in a topic's directory, each with the error if its files cannot be listed.
    fn load_topic(&self, directory: &Path) -> Vec<(ConsumeQueue<D>, Option<StoreError>)> {
        let Some(topic) = directory.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
        let mut found = Vec::new();
        let paths = match self.list(directory) {
            Ok(paths) => paths,
            Err(error) => {
                self.unlisted.lock().push((topic.into(), error));
                return found;
            }
        };
        for path in paths {
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(queue_id) = name.and_then(|name| name.parse().ok()) else { continue };
            let mut queue = self.make(topic, queue_id);
            let error = match queue.load() {
                Ok(is_whole) => {
                    queue.is_cut.store(!is_whole, Ordering::Relaxed);
                    None
                }
                Err(error) => {
                    queue = self.make(topic, queue_id);
                    Some(error)
                }
            };
            found.push((queue, error));
        }
        found
    }

    fn list(&self, directory: &Path) -> Result<Vec<PathBuf>> {
        self.disk.list(directory).or_io("list", directory)
    }

    fn make(&self, topic: &str, queue_id: u32) -> ConsumeQueue<D> {
        let directory = self.directory.join(topic).join(queue_id.to_string());
        ConsumeQueue {
            topic: topic.into(),
            queue_id,
            files: MappedFileQueue::new(
                self.disk.clone(),
                FileDirectories::one(&self.names, directory),
                FileFormat { size: self.file_size, allocation: Allocation::Sparse, kind: FileKind::Derived },
                Arc::clone(&self.open_files),
            ),
            min_offset: AtomicU64::new(0),
            max_offset: AtomicU64::new(0),
            next_offset: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            is_dirty: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            found_end: AtomicU64::new(0),
            checked_to: AtomicU64::new(0),
            batch: AtomicU32::new(NO_BATCH),
            seen_page: AtomicU64::new(0),
            marks: QueueMarks::default(),
        }
    }

    /// Reads the files of a queue again after a failure at open, and replaces the queue.
    pub(crate) fn reload(
        &self,
        before: &ConsumeQueue<D>,
        log_start: u64,
        known: KnownEntries,
    ) -> Result<Arc<ConsumeQueue<D>>> {
        let mut queue = self.make(before.topic(), before.queue_id());
        queue.load()?;
        queue.adopt(before);
        queue.recover(log_start, known, None)?;
        queue.settle_deleted()?;
        let queue = Arc::new(queue);
        let mut table = self.table.write();
        table.entry(before.topic().into()).or_default().insert(before.queue_id(), Arc::clone(&queue));
        Ok(queue)
    }

    pub(crate) fn find(&self, topic: &str, queue_id: u32) -> Option<Arc<ConsumeQueue<D>>> {
        self.find_any(topic, queue_id).filter(|queue| !queue.marks.is_deleted())
    }

    /// As [`Self::find`], but also finds a deleted queue.
    pub(crate) fn find_any(&self, topic: &str, queue_id: u32) -> Option<Arc<ConsumeQueue<D>>> {
        self.table.read().get(topic)?.get(&queue_id).map(Arc::clone)
    }

    /// Finds or creates a queue. Its files are created with its first entry.
    pub(crate) fn find_or_make(&self, topic: &str, queue_id: u32) -> Arc<ConsumeQueue<D>> {
        if let Some(queue) = self.find(topic, queue_id) {
            return queue;
        }
        let mut table = self.table.write();
        let queues = table.entry(topic.into()).or_default();
        Arc::clone(queues.entry(queue_id).or_insert_with(|| Arc::new(self.make(topic, queue_id))))
    }

    /// Number of queues with messages.
    pub(crate) fn count(&self) -> usize {
        let table = self.table.read();
        table.values().flat_map(|queues| queues.values()).filter(|queue| queue.has_messages()).count()
    }

    /// Extents of the queues with messages.
    pub(crate) fn extents(&self) -> BTreeMap<(Box<str>, u32), QueueExtent> {
        let queues = self.all().into_iter().filter(|queue| queue.has_messages());
        queues.map(|queue| (queue.name(), queue.extent())).collect()
    }

    /// All queues in any order.
    pub(crate) fn all(&self) -> Vec<Arc<ConsumeQueue<D>>> {
        self.table.read().values().flat_map(|queues| queues.values().map(Arc::clone)).collect()
    }

    /// All queues of a topic, deleted ones included, in any order.
    pub(crate) fn of_topic(&self, topic: &str) -> Vec<Arc<ConsumeQueue<D>>> {
        self.table.read().get(topic).map_or_else(Vec::new, |queues| queues.values().map(Arc::clone).collect())
    }

    /// Topics with messages, each with its queue IDs in order.
    pub(crate) fn names(&self) -> Vec<(String, Vec<u32>)> {
        let table = self.table.read();
        let mut names: Vec<(String, Vec<u32>)> = table
            .iter()
            .map(|(topic, queues)| {
                let with_messages = queues.values().filter(|queue| queue.has_messages());
                let mut ids: Vec<u32> = with_messages.map(|queue| queue.queue_id()).collect();
                ids.sort_unstable();
                (topic.to_string(), ids)
            })
            .filter(|(_, ids)| !ids.is_empty())
            .collect();
        names.sort();
        names
    }
}
