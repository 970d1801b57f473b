//! Deleting topics, and closing and opening single queues, while the store runs.
//!
//! Records of a deleted topic stay in the log until retention takes them; nobody is led to them any more, also after
//! a restart, and a topic made again goes on behind their offsets: an offset is given out once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
};

use parking_lot::MutexGuard;

use crate::{
    derive::arrival::Arrival,
    error::{Result, StoreError},
    files::disk::Disk,
    queues::{
        admin_files::{self, QueueName},
        consume_queue::{ConsumeQueue, check_name},
        queue_marks::{Floor, QueueAccess},
    },
    record::message::MessageView,
    store::message_store::{Inner, MessageStore},
};

impl<D: Disk> ConsumeQueue<D> {
    /// The queue takes the place of one whose files could not be read.
    pub(crate) fn adopt(&self, before: &Self) {
        self.marks.adopt(&before.marks);
        self.begin_empty_at(self.marks.floor().offset);
        self.expect_end(before.next_offset());
    }

    /// Deletes what is below the floor. No round of the dispatcher is under way.
    fn delete_below(&self, floor: Floor) {
        self.marks.set_floor(floor);
        self.marks.must_clear.store(true, Ordering::Release);
        self.marks.is_deleted.store(true, Ordering::Release);
        self.begin_empty_at(floor.offset);
    }

    /// Removes the files of what was deleted, where that is still to be done.
    pub(crate) fn clear_deleted(&self) -> Result<()> {
        if self.marks.must_clear.load(Ordering::Acquire) {
            self.files.clear()?;
            self.marks.must_clear.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// After a restart: removes what a crash left of deleted entries.
    pub(crate) fn settle_deleted(&self) -> Result<()> {
        let floor = self.marks.floor();
        if floor.offset == 0 {
            return Ok(());
        }
        let (min, max) = (self.min_offset(), self.max_offset());
        if min >= floor.offset && max > floor.offset {
            self.marks.set_alive();
            return Ok(());
        }
        let is_other =
            min < max && self.read_entry(min)?.is_some_and(|e| e.physical_offset >= floor.physical_end);
        if is_other {
            // Another broker made the topic anew.
            self.forget_floor();
        } else if max > floor.offset {
            self.min_offset.fetch_max(floor.offset, Ordering::AcqRel);
            self.marks.set_alive();
        } else {
            self.delete_below(floor);
            self.clear_deleted()?;
        }
        Ok(())
    }

    /// A record that is none of the deleted ones says that another broker made the topic anew, with offsets from 0 on.
    pub(crate) fn begin_anew(&self, queue_offset: u64, physical_offset: u64) {
        let floor = self.marks.floor();
        if self.marks.is_deleted() && queue_offset < floor.offset && physical_offset >= floor.physical_end {
            self.forget_floor();
            self.begin_empty_at(queue_offset);
        }
    }

    fn forget_floor(&self) {
        self.marks.set_floor(Floor { offset: 0, physical_end: 0 });
        self.marks.set_alive();
    }
}

impl<D: Disk> MessageStore<D> {
    /// Deletes a topic: its queues, the offsets groups have committed in it, and who may use its queues.
    ///
    /// Messages appended to it later, also by a producer at it now, begin behind the deleted ones. Returns how many
    /// queues were deleted. Errors: `Closed`, `Poisoned`, `Io`, `QueueSetAside` for one that was set aside while the store
    /// was opened; nothing is deleted unless all of it was noted durably.
    pub fn delete_topic(&self, topic: &str) -> Result<usize> {
        let inner = self.open_inner().ok_or(StoreError::Closed)?;
        if let Some(aside) = inner.queues.of_topic(topic).iter().find(|queue| queue.marks.is_end_unknown()) {
            // Its offsets must not be given out again.
            return Err(aside.refusal());
        }
        inner.delete(|name| name == topic).map(|deleted| deleted.len())
    }

    /// Deletes all topics but those to `keep`; system topics must be among them. Returns the deleted ones. A queue that was
    /// set aside while the store was opened stays, until it is complete.
    pub fn clean_unused(&self, keep: &BTreeSet<&str>) -> Result<Vec<String>> {
        let inner = self.open_inner().ok_or(StoreError::Closed)?;
        let deleted = inner.delete(|name| !keep.contains(name))?;
        let topics: BTreeSet<Box<str>> = deleted.into_iter().map(|(topic, _)| topic).collect();
        Ok(topics.into_iter().map(String::from).collect())
    }

    /// Closes a queue for sends or for everybody, or opens it again. It stays so through restarts.
    ///
    /// Once this returns, no send is under way any more that a closed queue would take.
    pub fn set_queue_access(&self, topic: &str, queue_id: u32, access: QueueAccess) -> Result<()> {
        let inner = self.open_inner().ok_or(StoreError::Closed)?;
        check_name(topic, i32::try_from(queue_id).unwrap_or(-1))?;
        let changing = inner.change_queues()?;
        let mut closed = inner.closed_queues();
        closed.insert((topic.into(), queue_id), access);
        closed.retain(|_, access| *access != QueueAccess::Open);
        admin_files::save_access(&inner.disk, &inner.root, &closed)?;
        let queue = inner.queues.find_or_make(topic, queue_id);
        {
            let _appends = inner.log.tail.lock();
            queue.marks.set_access(access);
        }
        drop(changing);
        tracing::info!(topic, queue_id, ?access, "queue access set");
        if access != QueueAccess::Closed
            && let Some(listener) = inner.listener()
        {
            // Whoever waits for messages in it looks again.
            listener(&Arrival { topic, queue_id, max_offset: queue.max_offset() });
        }
        Ok(())
    }

    /// Who may use a queue.
    #[must_use]
    pub fn queue_access(&self, topic: &str, queue_id: u32) -> QueueAccess {
        let found = self.open_inner().and_then(|inner| inner.queues.find_any(topic, queue_id));
        found.map_or(QueueAccess::Open, |queue| queue.marks.access())
    }
}

impl<D: Disk> Inner<D> {
    /// Reads what was deleted and closed, before queues are recovered.
    pub(crate) fn load_marks(&self) -> Result<()> {
        let is_held = |anchor: crate::files::anchor::Anchor| anchor.is_held_by(self.log.files());
        for ((topic, queue_id), floor) in admin_files::load_deleted(&self.disk, &self.root, is_held)? {
            let queue = self.queues.find_or_make(&topic, queue_id);
            self.queues.deleted_to.fetch_max(floor.physical_end, Ordering::AcqRel);
            queue.marks.set_floor(floor);
            queue.marks.is_deleted.store(true, Ordering::Release);
            queue.begin_empty_at(floor.offset);
        }
        for ((topic, queue_id), access) in admin_files::load_access(&self.disk, &self.root)? {
            self.queues.find_or_make(&topic, queue_id).marks.set_access(access);
        }
        Ok(())
    }

    /// Says whether a record belongs to what was deleted with its topic.
    pub(crate) fn is_of_deleted(&self, view: &MessageView<'_>) -> bool {
        let queue = u32::try_from(view.queue_id).ok().and_then(|id| self.queues.find_any(view.topic, id));
        queue.map(|queue| queue.marks.floor()).is_some_and(|floor| {
            view.queue_offset < floor.offset && view.physical_offset < floor.physical_end
        })
    }

    /// As [`Self::is_of_deleted`], at no cost for records behind everything deleted.
    pub(crate) fn is_record_of_deleted(&self, physical_offset: u64, record: &[u8]) -> bool {
        physical_offset < self.queues.deleted_to.load(Ordering::Acquire)
            && MessageView::decode(record, false).is_ok_and(|view| self.is_of_deleted(&view))
    }

    /// Says whether the queue is closed to readers now.
    pub(crate) fn is_shut(&self, topic: &str, queue_id: u32) -> bool {
        self.queues.find(topic, queue_id).is_some_and(|queue| queue.marks.is_shut())
    }

    fn closed_queues(&self) -> BTreeMap<QueueName, QueueAccess> {
        let closed = self.queues.all().into_iter().filter(|queue| queue.marks.access() != QueueAccess::Open);
        closed.map(|queue| (name_of(&queue), queue.marks.access())).collect()
    }

    /// Waits for its turn to change queues. `Closed` where the store was closed meanwhile: `close` waits for turns, and
    /// begins none.
    fn change_queues(&self) -> Result<MutexGuard<'_, ()>> {
        let turn = self.changing_queues.lock();
        if self.is_closed() { Err(StoreError::Closed) } else { Ok(turn) }
    }

    fn delete(&self, is_doomed: impl Fn(&str) -> bool) -> Result<Vec<QueueName>> {
        let _changing = self.change_queues()?;
        let mut doomed = self.queues.all();
        doomed.retain(|queue| {
            is_doomed(queue.topic()) && !queue.marks.is_deleted() && !queue.marks.is_end_unknown()
        });
        let dispatching = self.dispatching.lock();
        // A listener may have closed the store in the round that was waited for.
        if self.is_closed() {
            return Err(StoreError::Closed);
        }
        let mut floors = self.floors();
        let new: Vec<(Arc<ConsumeQueue<D>>, Floor)> = {
            let _appends = self.log.tail.lock();
            let physical_end = self.log.written();
            let floor = |queue: &ConsumeQueue<D>| Floor { offset: queue.next_offset(), physical_end };
            let doomed = doomed.into_iter().map(|queue| (Arc::clone(&queue), floor(&queue)));
            let new: Vec<_> = doomed.filter(|(_, floor)| floor.offset > 0).collect();
            let queues: Vec<_> = new.iter().map(|(queue, _)| (queue.topic(), queue.queue_id())).collect();
            self.dedup.forget(&queues);
            new
        };
        if new.is_empty() {
            return Ok(Vec::new());
        }
        // A crash must not cut records the floors tell of: their places would be given to others.
        self.log.flush()?;
        floors.extend(new.iter().map(|(queue, floor)| (name_of(queue), *floor)));
        admin_files::save_deleted(&self.disk, &self.root, self.anchor(), &floors)?;
        for (queue, floor) in &new {
            self.queues.deleted_to.fetch_max(floor.physical_end, Ordering::AcqRel);
            queue.delete_below(*floor);
        }
        for (queue, _) in &new {
            // The next entry tries again.
            if let Err(error) = queue.clear_deleted() {
                tracing::warn!(%error, topic = queue.topic(), "files of a deleted queue stay for now");
            }
        }
        let names: Vec<QueueName> = new.iter().map(|(queue, _)| name_of(queue)).collect();
        self.remove_directories(&names);
        drop(dispatching);
        self.forget(&names)?;
        tracing::info!(queues = names.len(), first = ?names.first(), "queues deleted");
        Ok(names)
    }

    fn floors(&self) -> BTreeMap<QueueName, Floor> {
        let queues = self.queues.all().into_iter();
        let floors = queues.map(|queue| (name_of(&queue), queue.marks.floor()));
        floors.filter(|(_, floor)| floor.offset > 0).collect()
    }

    /// What is known of deleted queues elsewhere. All of it is harmless where a crash keeps it.
    fn forget(&self, names: &[QueueName]) -> Result<()> {
        self.cleaner.forget_topics();
        for (topic, queue_id) in names {
            if let Some(queue) = self.queues.find_any(topic, *queue_id) {
                queue.marks.set_access(QueueAccess::Open);
            }
        }
        admin_files::save_access(&self.disk, &self.root, &self.closed_queues())?;
        let topics: BTreeSet<&str> = names.iter().map(|(topic, _)| &**topic).collect();
        self.progress().forget_topics(&topics);
        self.persist_progress()?;
        self.write_sequences()?;
        self.write_checkpoint(false)
    }

    fn remove_directories(&self, names: &[QueueName]) {
        let directory = self.root.join("consumequeue");
        let queues =
            names.iter().map(|(topic, queue_id)| directory.join(&**topic).join(queue_id.to_string()));
        let topics: BTreeSet<&str> = names.iter().map(|(topic, _)| &**topic).collect();
        for path in queues.chain(topics.iter().map(|topic| directory.join(topic))) {
            // Other queues of the topic may be in it, or files nobody knows.
            let _ = self.disk.remove_dir(&path);
        }
    }
}

fn name_of<D: Disk>(queue: &ConsumeQueue<D>) -> QueueName {
    (queue.topic().into(), queue.queue_id())
}
