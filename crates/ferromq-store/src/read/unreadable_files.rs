//! Tracks messages in the log that cannot be read now. Readers wait for them instead of skipping them.
//!
//! Each file is logged once, and reported as a damage until a read succeeds. Nothing is kept across restarts.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    derive::dispatched::Dispatched,
    error::StoreError,
    files::disk::Disk,
    files::store_directory::StoreDirectory,
    log::commit_log::CommitLog,
    log::damage::{Damage, DamageReason},
    queues::consume_queue::ConsumeQueue,
    queues::queue_table::ConsumeQueues,
};

/// Most places tracked.
const MOST_PLACES: usize = 1_000;

/// Where a read failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The record that begins here.
    Record(u64),
    /// Entries of a queue.
    Queue(String, u32),
}

impl Place {
    fn of<D: Disk>(queue: &ConsumeQueue<D>) -> Self {
        Self::Queue(queue.topic().to_owned(), queue.queue_id())
    }
}

#[derive(Debug, Clone)]
struct Failure {
    file: PathBuf,
    /// A range of the log.
    range: Range<u64>,
    /// The first unreadable entry of a queue.
    queue_offset: u64,
}

/// The places whose last read failed.
pub(crate) struct Unreadable<D: Disk> {
    home: Arc<StoreDirectory<D>>,
    log: Arc<CommitLog<D>>,
    queues: Arc<ConsumeQueues<D>>,
    dispatched: Arc<Dispatched>,
    failures: Mutex<BTreeMap<Place, Failure>>,
    /// Almost always clear, so that readers skip the lock.
    has_any: AtomicBool,
}

impl<D: Disk> Unreadable<D> {
    pub(crate) fn new(
        home: Arc<StoreDirectory<D>>,
        log: Arc<CommitLog<D>>,
        queues: Arc<ConsumeQueues<D>>,
        dispatched: Arc<Dispatched>,
    ) -> Self {
        let (failures, has_any) = (Mutex::default(), AtomicBool::new(false));
        Self { home, log, queues, dispatched, failures, has_any }
    }

    fn note(&self, place: Place, failure: Failure, error: &StoreError) {
        let mut failures = self.failures.lock();
        if failures.contains_key(&place) || failures.len() >= MOST_PLACES {
            return;
        }
        if !failures.values().any(|known| known.file == failure.file) {
            tracing::error!(
                %error,
                file = %failure.file.display(),
                physical_offset = failure.range.start,
                "messages cannot be read now: readers of their queues wait until they can be"
            );
        }
        failures.insert(place, failure);
        self.has_any.store(true, Ordering::Release);
    }

    fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    fn clear_where(&self, place: &Place, is_read: impl Fn(&Failure) -> bool) {
        let mut failures = self.failures.lock();
        if failures.get(place).is_some_and(is_read)
            && let Some(Failure { file, range, .. }) = failures.remove(place)
            && !failures.values().any(|known| known.file == file)
        {
            let physical_offset = range.start;
            tracing::info!(file = %file.display(), physical_offset, "messages can be read again");
        }
        self.has_any.store(!failures.is_empty(), Ordering::Release);
    }

    /// Forgets a record that was read.
    pub(crate) fn clear_record(&self, physical_offset: u64) {
        if self.has_any() {
            self.clear_where(&Place::Record(physical_offset), |_| true);
        }
    }

    /// Forgets failures that lie wholly below the first kept byte.
    pub(crate) fn forget_below(&self, log_start: u64) {
        let mut failures = self.failures.lock();
        failures.retain(|_, failure| failure.range.end > log_start);
        self.has_any.store(!failures.is_empty(), Ordering::Release);
    }
}

impl<D: Disk> Unreadable<D> {
    /// Notes a record that could not be read.
    #[cold]
    pub(crate) fn note_record(&self, range: Range<u64>, error: &StoreError) {
        let files = self.log.files();
        let file = files.path_for(range.start);
        let place = Place::Record(range.start);
        self.note(place, Failure { file, range, queue_offset: 0 }, error);
    }

    /// Notes a consume queue entry that could not be read.
    #[cold]
    pub(crate) fn note_entry(&self, queue: &ConsumeQueue<D>, queue_offset: u64, error: &StoreError) {
        let (file, range) = (queue.directory_in(&self.home.root), self.log.start()..self.dispatched.end());
        self.note(Place::of(queue), Failure { file, range, queue_offset }, error);
    }

    /// Forgets the failure of a queue if its entry was read.
    pub(crate) fn clear_entries(&self, queue: &ConsumeQueue<D>, entries: Range<u64>) {
        if self.has_any() {
            self.clear_where(&Place::of(queue), |known| entries.contains(&known.queue_offset));
        }
    }

    /// Retries each place, and returns those that still fail, one damage per file.
    pub(crate) fn damages(&self) -> Vec<Damage> {
        let known = self.failures.lock().clone();
        let mut damages: BTreeMap<PathBuf, Range<u64>> = BTreeMap::new();
        for (place, failure) in known {
            if self.can_be_read(&place, &failure) {
                self.clear_where(&place, |_| true);
                continue;
            }
            let range = damages.entry(failure.file).or_insert_with(|| failure.range.clone());
            *range = range.start.min(failure.range.start)..range.end.max(failure.range.end);
        }
        let damage = |(file, range)| Damage { file, range, reason: DamageReason::Unreadable };
        damages.into_iter().map(damage).collect()
    }

    fn can_be_read(&self, place: &Place, failure: &Failure) -> bool {
        match place {
            Place::Record(start) => match self.log.files().open(*start) {
                Ok(Some(file)) => file.load(failure.range.clone()).is_ok(),
                Ok(None) => true,
                Err(_) => false,
            },
            Place::Queue(topic, queue_id) => {
                let Some(queue) = self.queues.find(topic, *queue_id) else { return true };
                queue.read_entry(failure.queue_offset).is_ok()
            }
        }
    }
}
