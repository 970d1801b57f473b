//! Deletes topics, and closes and opens single queues, while the store runs.
//!
//! Records of a deleted topic stay in the log until retention removes them, but no queue lists them, even after a
//! restart. A topic created again continues after their offsets: an offset is assigned only once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
};

use parking_lot::{Mutex, MutexGuard};

use crate::{
    dedup::writers::Dedup,
    derive::{
        arrival::{Arrival, Arrivals},
        dispatched::Dispatched,
    },
    error::{Result, StoreError},
    files::{disk::Disk, store_directory::StoreDirectory},
    log::commit_log::CommitLog,
    progress::{group_progress::Progress, progress_files::ProgressWriter},
    queues::{
        admin_files::{self, QueueName},
        consume_queue::{ConsumeQueue, check_name},
        queue_marks::{DeletedFloor, QueueAccess},
        queue_table::ConsumeQueues,
    },
    recovery::checkpointer::Checkpointer,
    retention::cleaner::Cleaner,
};

/// Deletes, closes and opens queues.
pub(crate) struct QueueAdmin<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) log: Arc<CommitLog<D>>,
    pub(crate) queues: Arc<ConsumeQueues<D>>,
    pub(crate) dedup: Arc<Dedup>,
    pub(crate) dispatched: Arc<Dispatched>,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) progress_writer: Arc<ProgressWriter<D>>,
    pub(crate) checkpointer: Arc<Checkpointer<D>>,
    pub(crate) cleaner: Arc<Cleaner<D>>,
    /// Held during each round of the dispatcher.
    pub(crate) rounds: Arc<Mutex<()>>,
    /// Serializes changes of queues.
    pub(crate) changing: Mutex<()>,
}

impl<D: Disk> QueueAdmin<D> {
    /// Implements [`Admin::delete_topic`](crate::Admin::delete_topic).
    pub(crate) fn delete_topic(&self, topic: &str) -> Result<usize> {
        self.home.check_open()?;
        if let Some(aside) = self.queues.of_topic(topic).iter().find(|queue| queue.marks.is_end_unknown()) {
            // Its offsets must not be assigned again.
            return Err(aside.refusal());
        }
        self.delete(|name| name == topic).map(|deleted| deleted.len())
    }

    /// Implements [`Admin::clean_unused`](crate::Admin::clean_unused).
    pub(crate) fn clean_unused(&self, keep: &BTreeSet<&str>) -> Result<Vec<String>> {
        self.home.check_open()?;
        let deleted = self.delete(|name| !keep.contains(name))?;
        let topics: BTreeSet<Box<str>> = deleted.into_iter().map(|(topic, _)| topic).collect();
        Ok(topics.into_iter().map(String::from).collect())
    }

    /// Implements [`Admin::set_queue_access`](crate::Admin::set_queue_access).
    pub(crate) fn set_queue_access(&self, topic: &str, queue_id: u32, access: QueueAccess) -> Result<()> {
        self.home.check_open()?;
        check_name(topic, i32::try_from(queue_id).unwrap_or(-1))?;
        let changing = self.change_queues()?;
        let mut closed = self.closed_queues();
        closed.insert((topic.into(), queue_id), access);
        closed.retain(|_, access| *access != QueueAccess::Open);
        admin_files::save_access(&self.home.disk, &self.home.root, &closed)?;
        let queue = self.queues.find_or_make(topic, queue_id);
        {
            let _appends = self.log.tail.lock();
            queue.marks.set_access(access);
        }
        drop(changing);
        tracing::info!(topic, queue_id, ?access, "queue access set");
        if access != QueueAccess::Closed
            && let Some(listener) = self.arrivals.listener()
        {
            // Wakes readers that wait for messages of the queue.
            listener(&Arrival { topic, queue_id, max_offset: queue.max_offset() });
        }
        Ok(())
    }

    /// Whether a queue is open or closed.
    pub(crate) fn queue_access(&self, topic: &str, queue_id: u32) -> QueueAccess {
        let found = self.home.check_open().ok().and_then(|()| self.queues.find_any(topic, queue_id));
        found.map_or(QueueAccess::Open, |queue| queue.marks.access())
    }
}

impl<D: Disk> QueueAdmin<D> {
    fn closed_queues(&self) -> BTreeMap<QueueName, QueueAccess> {
        let closed = self.queues.all().into_iter().filter(|queue| queue.marks.access() != QueueAccess::Open);
        closed.map(|queue| (queue.name(), queue.marks.access())).collect()
    }

    /// Waits for the turn to change queues. `Closed` if the store was closed meanwhile: `close` waits for changes under
    /// way and allows no new one.
    fn change_queues(&self) -> Result<MutexGuard<'_, ()>> {
        let turn = self.changing.lock();
        if self.home.is_closed() { Err(StoreError::Closed) } else { Ok(turn) }
    }

    fn delete(&self, is_doomed: impl Fn(&str) -> bool) -> Result<Vec<QueueName>> {
        let _changing = self.change_queues()?;
        let mut doomed = self.queues.all();
        doomed.retain(|queue| {
            is_doomed(queue.topic()) && !queue.marks.is_deleted() && !queue.marks.is_end_unknown()
        });
        let dispatching = self.rounds.lock();
        // A listener may have closed the store during the awaited round.
        if self.home.is_closed() {
            return Err(StoreError::Closed);
        }
        let mut floors = self.floors();
        let new: Vec<(Arc<ConsumeQueue<D>>, DeletedFloor)> = {
            let _appends = self.log.tail.lock();
            let physical_end = self.log.written();
            let floor = |queue: &ConsumeQueue<D>| DeletedFloor { offset: queue.next_offset(), physical_end };
            let doomed = doomed.into_iter().map(|queue| (Arc::clone(&queue), floor(&queue)));
            let new: Vec<_> = doomed.filter(|(_, floor)| floor.offset > 0).collect();
            let queues: Vec<_> = new.iter().map(|(queue, _)| (queue.topic(), queue.queue_id())).collect();
            self.dedup.forget(&queues);
            new
        };
        if new.is_empty() {
            return Ok(Vec::new());
        }
        // A crash must not cut records below the floors: their offsets would be assigned again.
        self.log.flush()?;
        floors.extend(new.iter().map(|(queue, floor)| (queue.name(), *floor)));
        admin_files::save_deleted(&self.home.disk, &self.home.root, self.dispatched.anchor(), &floors)?;
        for (queue, floor) in &new {
            self.queues.deleted_to.fetch_max(floor.physical_end, Ordering::AcqRel);
            queue.delete_below(*floor);
        }
        for (queue, _) in &new {
            // The next entry retries.
            if let Err(error) = queue.clear_deleted() {
                tracing::warn!(%error, topic = queue.topic(), "files of a deleted queue stay for now");
            }
        }
        let names: Vec<QueueName> = new.iter().map(|(queue, _)| queue.name()).collect();
        self.remove_directories(&names);
        drop(dispatching);
        self.forget(&names)?;
        tracing::info!(queues = names.len(), first = ?names.first(), "queues deleted");
        Ok(names)
    }

    fn floors(&self) -> BTreeMap<QueueName, DeletedFloor> {
        let queues = self.queues.all().into_iter();
        let floors = queues.map(|queue| (queue.name(), queue.marks.floor()));
        floors.filter(|(_, floor)| floor.offset > 0).collect()
    }

    /// Removes settings and progress of deleted queues. A crash may keep them: they are harmless.
    fn forget(&self, names: &[QueueName]) -> Result<()> {
        self.cleaner.forget_topics();
        for (topic, queue_id) in names {
            if let Some(queue) = self.queues.find_any(topic, *queue_id) {
                queue.marks.set_access(QueueAccess::Open);
            }
        }
        admin_files::save_access(&self.home.disk, &self.home.root, &self.closed_queues())?;
        let topics: BTreeSet<&str> = names.iter().map(|(topic, _)| &**topic).collect();
        self.progress.forget(|topic, _| topics.contains(topic));
        self.progress_writer.persist()?;
        self.checkpointer.write_sequences()?;
        self.checkpointer.write(false)
    }

    fn remove_directories(&self, names: &[QueueName]) {
        let directory = self.home.root.join("consumequeue");
        let queues =
            names.iter().map(|(topic, queue_id)| directory.join(&**topic).join(queue_id.to_string()));
        let topics: BTreeSet<&str> = names.iter().map(|(topic, _)| &**topic).collect();
        for path in queues.chain(topics.iter().map(|topic| directory.join(topic))) {
            // It may contain other queues of the topic, or unknown files.
            let _ = self.home.disk.remove_dir(&path);
        }
    }
}
