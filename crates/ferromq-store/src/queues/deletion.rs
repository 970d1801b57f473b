//! Deleted entries of a queue, while the store runs and after a restart.
//!
//! Records of a deleted topic stay in the log until retention removes them, but no reader finds them, even after a
//! restart. A topic created again continues behind their offsets: each offset is assigned once.

use std::sync::atomic::Ordering;

use crate::{
    error::Result,
    files::{anchor::Anchor, disk::Disk, store_directory::StoreDirectory},
    log::commit_log::CommitLog,
    queues::{
        admin_files::{self},
        consume_queue::ConsumeQueue,
        queue_marks::DeletedFloor,
        queue_table::ConsumeQueues,
    },
};

impl<D: Disk> ConsumeQueue<D> {
    /// Replaces a queue whose files could not be read.
    pub(crate) fn adopt(&self, before: &Self) {
        self.marks.adopt(&before.marks);
        self.begin_empty_at(self.marks.floor().offset);
        self.expect_end(before.next_offset());
    }

    /// Deletes the entries below the floor. Call it between rounds of the dispatcher.
    pub(crate) fn delete_below(&self, floor: DeletedFloor) {
        self.marks.set_floor(floor);
        self.marks.must_clear.store(true, Ordering::Release);
        self.marks.is_deleted.store(true, Ordering::Release);
        self.begin_empty_at(floor.offset);
    }

    /// Removes the files of deleted entries, if that is still to be done.
    pub(crate) fn clear_deleted(&self) -> Result<()> {
        if self.marks.must_clear.load(Ordering::Acquire) {
            self.files.clear()?;
            self.marks.must_clear.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Removes the deleted entries that a crash left behind.
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
            // Another broker created the topic again.
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

    /// Handles a record above the floor's physical end but below its offset: another broker created the topic again,
    /// with offsets from 0 on.
    pub(crate) fn begin_anew(&self, queue_offset: u64, physical_offset: u64) {
        let floor = self.marks.floor();
        if self.marks.is_deleted() && queue_offset < floor.offset && physical_offset >= floor.physical_end {
            self.forget_floor();
            self.begin_empty_at(queue_offset);
        }
    }

    fn forget_floor(&self) {
        self.marks.set_floor(DeletedFloor { offset: 0, physical_end: 0 });
        self.marks.set_alive();
    }
}

/// Reads the deleted and closed queues, before queues are recovered.
pub(crate) fn load_marks<D: Disk>(
    home: &StoreDirectory<D>,
    log: &CommitLog<D>,
    queues: &ConsumeQueues<D>,
) -> Result<()> {
    let is_held = |anchor: Anchor| anchor.is_held_by(log.files());
    for ((topic, queue_id), floor) in admin_files::load_deleted(&home.disk, &home.root, is_held)? {
        let queue = queues.find_or_make(&topic, queue_id);
        queues.deleted_to.fetch_max(floor.physical_end, Ordering::AcqRel);
        queue.marks.set_floor(floor);
        queue.marks.is_deleted.store(true, Ordering::Release);
        queue.begin_empty_at(floor.offset);
    }
    for ((topic, queue_id), access) in admin_files::load_access(&home.disk, &home.root)? {
        queues.find_or_make(&topic, queue_id).marks.set_access(access);
    }
    Ok(())
}
