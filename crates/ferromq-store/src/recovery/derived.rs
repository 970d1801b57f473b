//! Recovers consume queues and the index: cuts what may not be durable, and settles where each queue continues.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    derive::{rebuild::Rebuild, set_aside::IndexRepair},
    error::Result,
    files::disk::Disk,
    queues::{
        admin_files::QueueName, known_entries::KnownEntries, queue_entry::QueueEntry, queue_list::QueueList,
        recovery::FoundEnds,
    },
    recovery::{last_shutdown::Left, log_end::RecoveryRun, plan::Opening},
};

impl<D: Disk> RecoveryRun<'_, D> {
    /// Cuts derived files to entries that are known to be durable. Returns the offset from which records may be missing
    /// in any of them, and in the index; `u64::MAX` for a disabled index.
    pub(super) fn recover_derived(
        &mut self,
        known_end: Option<u64>,
        listed: Option<&QueueList>,
        has_list: bool,
    ) -> Result<(u64, u64)> {
        let Self { opening, plan, .. } = self;
        let log_start = opening.files.log.start();
        let limit = known_end.unwrap_or(plan.walk_from);
        let known = match plan.left {
            Left::Closed { .. } => KnownEntries::Closed,
            Left::Killed => KnownEntries::DurableBelow(limit),
            Left::ClosedByOther => KnownEntries::Nothing { limit, is_cut: false },
            Left::KilledOther { .. } => KnownEntries::Nothing { limit, is_cut: true },
        };
        let extent = |topic: &str, id| {
            let listed = listed.filter(|listed| plan.left.is_ours() && listed.log_start <= log_start)?;
            listed.queues.get(&(Box::from(topic), id)).copied()
        };
        opening.files.aside.set_known(known.later(limit));
        set_unlisted_aside(opening, listed);
        let queues_to =
            opening.files.queues.recover(log_start, known, extent).clamp(log_start, limit.max(log_start));
        for (queue, error) in std::mem::take(&mut *opening.files.queues.unread.lock()) {
            // The extent noted last keeps consumers' offsets valid.
            if let Some(listed) = listed.and_then(|listed| listed.queues.get(&queue.name())) {
                queue.set_extent(*listed);
            }
            opening.files.aside.put_unread(&queue, &error);
        }
        for queue in opening.files.queues.all().iter().filter(|queue| !queue.marks.is_aside()) {
            if let Err(error) = queue.settle_deleted() {
                opening.files.aside.put_unread(queue, &error);
            }
        }
        let names = listed.filter(|_| plan.left.is_ours()).map(|listed| &listed.indexes);
        let (is_index_whole, indexed_to) = recover_index(opening, names, limit, plan.left);
        let indexed_to = indexed_to.unwrap_or(log_start);
        // Only this broker's own marks prove that no keys of old messages are missing.
        let index_from = match plan.left {
            _ if !opening.files.index.is_enabled() => u64::MAX,
            _ if !is_index_whole => indexed_to,
            Left::Closed { .. } | Left::Killed => limit,
            Left::ClosedByOther => indexed_to.max(queues_to),
            Left::KilledOther { .. } => indexed_to,
        };
        let index_from = index_from.max(log_start);
        let queues_from = match plan.left {
            // Without a list, every queue found in the log must exist.
            _ if !has_list || plan.left.is_ours() && listed.is_none() => log_start,
            Left::Closed { .. } | Left::Killed => limit,
            // Another broker used the store since; the last file of a queue shows a gap.
            Left::ClosedByOther => queues_to.min(plan.walk_from),
            Left::KilledOther { .. } => queues_to,
        };
        Ok((queues_from.min(index_from).max(log_start), index_from))
    }

    /// Rebuilds the queues in `lost` from the end of their entries. Returns how many entries it wrote.
    pub(super) fn rebuild_lost(&mut self, lost: &BTreeSet<QueueName>, end: u64) -> Result<u64> {
        if lost.is_empty() {
            return Ok(0);
        }
        let opening = self.opening;
        let log_start = opening.files.log.start();
        let mut from = end;
        for (topic, queue_id) in lost {
            let queue = opening.files.queues.find(topic, *queue_id);
            if queue.as_ref().is_some_and(|queue| queue.marks.is_aside()) {
                continue;
            }
            let last = queue.map_or(Ok(None), |queue| queue.last_entry())?;
            from = from.min(last.map_or(log_start, QueueEntry::end));
        }
        if from == end {
            return Ok(0);
        }
        tracing::warn!(queues = lost.len(), first = ?lost.first(), from, "consume queues are incomplete: rebuilding them");
        let mut rebuild = Rebuild::new(&opening.files, from.max(log_start), u64::MAX, true);
        self.walk(from.max(log_start), Some(end), Some(&mut rebuild))?;
        rebuild.take_continued()?;
        rebuild.write()?;
        Ok(rebuild.redone)
    }
}

/// Sets the next offset of each queue after every offset that was assigned, even if its entry is missing.
pub(super) fn settle_queue_ends<D: Disk>(
    opening: &Opening<D>,
    listed: Option<&QueueList>,
    found: Option<&FoundEnds<D>>,
    end: u64,
) -> Result<()> {
    if let Some(listed) = listed {
        keep_offsets(opening, listed, end)?;
    }
    for (queue, offset) in found.iter().flat_map(|found| &found.queues) {
        // The walk skips the record of the last entry if it is damaged.
        if !queue.marks.is_aside() {
            queue.keep_offsets(*offset, end)?;
        }
    }
    let all = opening.files.queues.all();
    all.iter().filter(|queue| !queue.marks.is_unread()).for_each(|queue| queue.continue_after_entries());
    for ((topic, queue_id), extent) in listed.iter().flat_map(|listed| &listed.queues) {
        if let Some(aside) =
            opening.files.queues.find(topic, *queue_id).filter(|queue| queue.marks.is_end_unknown())
        {
            aside.expect_end(extent.max_offset);
        }
    }
    Ok(())
}

/// Sets aside the known queues of topics whose directories cannot be listed.
fn set_unlisted_aside<D: Disk>(opening: &Opening<D>, listed: Option<&QueueList>) {
    for (topic, error) in std::mem::take(&mut *opening.files.queues.unlisted.lock()) {
        let all = listed.iter().flat_map(|listed| &listed.queues);
        for ((_, queue_id), extent) in all.filter(|((name, _), _)| *name == topic) {
            let queue = opening.files.queues.find_or_make(&topic, *queue_id);
            queue.set_extent(*extent);
            opening.files.aside.put_unread(&queue, &error);
        }
        tracing::error!(%error, %topic, "queues of a topic cannot be listed");
    }
}

/// Cuts excess index entries. Returns whether the index was complete, and where it ends; sets it aside if it cannot be
/// read or written now.
fn recover_index<D: Disk>(
    opening: &Opening<D>,
    names: Option<&BTreeMap<u64, u64>>,
    limit: u64,
    left: Left,
) -> (bool, Option<u64>) {
    let log_start = opening.files.log.start();
    let recovered = opening.files.index.check_usable().and_then(|()| {
        let is_whole = opening.files.index.remove_unfit(names, log_start)?;
        let trusted = opening.checkpoint.marks().index_timestamp;
        Ok((is_whole, opening.files.index.recover(limit, trusted, left)?))
    });
    recovered.unwrap_or_else(|error| {
        // Our own index was complete up to the start of the walk.
        let from = if left.is_ours() { limit.max(log_start) } else { log_start };
        opening.files.aside.put_index(from, IndexRepair::Reload, &error);
        // The walk has no keys for it.
        (true, Some(limit))
    })
}

/// Queues with fewer entries than noted, or with missing files; cut so that the rest can follow.
pub(super) fn lost_queues<D: Disk>(
    opening: &Opening<D>,
    listed: Option<&QueueList>,
) -> Result<Vec<QueueName>> {
    let log_start = opening.files.log.start();
    let queues = opening.files.queues.all();
    let mut lost: Vec<_> = queues.iter().filter(|queue| queue.is_cut()).map(|queue| queue.name()).collect();
    for ((topic, queue_id), extent) in listed.iter().flat_map(|listed| &listed.queues) {
        let Some(queue) = opening.files.queues.find(topic, *queue_id) else {
            lost.push((topic.clone(), *queue_id));
            continue;
        };
        if queue.marks.is_aside() {
            continue;
        }
        let has_log_start = listed.is_some_and(|listed| listed.log_start == log_start);
        if has_log_start && queue.min_offset() > extent.min_offset {
            // Entries cannot be added before existing ones.
            queue.clear()?;
        }
        if queue.max_offset() < extent.max_offset {
            lost.push((topic.clone(), *queue_id));
        }
    }
    Ok(lost)
}

/// A queue without messages continues at its old offset: an offset is assigned only once.
fn keep_offsets<D: Disk>(opening: &Opening<D>, listed: &QueueList, end: u64) -> Result<()> {
    for ((topic, queue_id), extent) in &listed.queues {
        let queue = opening.files.queues.find_or_make(topic, *queue_id);
        if !queue.marks.is_aside() {
            queue.keep_offsets(extent.max_offset, end)?;
        }
    }
    Ok(())
}
