//! Recovers a store between opening its files and the first append: finds the log's end, cuts the torn tail, records
//! damage, and rebuilds derived files.
//!
//! `last_shutdown` decides how far to walk, `log_walk` walks, `derived_entries` derives entries, and `rebuild` writes
//! the missing ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
    time::Instant,
};

use crate::{
    config::StoreConfig,
    derive::{
        derived_entries::derive,
        derived_files::DerivedFiles,
        dispatch::{Dispatcher, Resume},
        dispatched::Dispatched,
        rebuild::Rebuild,
        set_aside::IndexRepair,
    },
    error::Result,
    files::{
        anchor::Anchor, disk::Disk, mapped_file_queue::MappedFileQueue, store_directory::StoreDirectory,
    },
    index::unindexed_range::UnindexedNote,
    log::damage::{Damage, DamageReason},
    queues::{
        admin_files::QueueName,
        consume_queue::{ConsumeQueue, QueueEntry},
        deletion::load_marks,
        known_entries::KnownEntries,
        queue_list::QueueList,
        recovery::FoundEnds,
    },
    recovery::{
        checkpoint::Checkpoint,
        checkpointer::Checkpointer,
        last_shutdown::{self, Left},
        log_walk::{Checks, Found, find_record, scan},
        progress_log::ProgressLog,
        recovery_report::RecoveryReport,
        torn_tail,
    },
};

/// A clock further ahead was wrong: its timestamps must not hold back later messages.
const MOST_AHEAD_MS: i64 = 86_400_000;

/// Where the walk begins, and what is known before it.
#[derive(Debug, Clone, Copy)]
struct Plan {
    left: Left,
    /// The walk skips records before this offset.
    walk_from: u64,
    /// Lower bound of what was durable, if known: a break before it is damage and never cut.
    durable_end: Option<u64>,
    /// End of the last known flush; records kept after it are written and flushed again.
    flushed: u64,
    /// Another broker's records up to this store timestamp were durable.
    trusted_timestamp: i64,
    checks: Checks,
}

/// The state that a recovery reads and repairs.
pub(crate) struct Opening<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) config: Arc<StoreConfig>,
    pub(crate) files: Arc<DerivedFiles<D>>,
    pub(crate) checkpoint: Arc<Checkpoint<D>>,
    pub(crate) checkpointer: Arc<Checkpointer<D>>,
    pub(crate) dispatched: Arc<Dispatched>,
    /// The state the last shutdown left.
    pub(crate) left: Left,
}

/// Recovers log, consume queues and index, and returns the dispatcher that continues from there.
///
/// The order of the steps is a crash promise: derived files are cut before the walk adds to them, nothing is appended
/// before the torn tail is cut and the kept one is flushed, and queues assign offsets only after all that were
/// assigned.
pub(crate) fn recover<D: Disk>(opening: &Opening<D>) -> Result<(RecoveryReport, Dispatcher<D>)> {
    let began = Instant::now();
    let log = &opening.files.log;
    let files = log.files();
    let mut plan = plan(opening)?;
    let found = plan.left.is_whole_of_other().then(|| {
        let span_end = files.span().map_or(0, |span| span.end);
        opening.files.queues.found_ends(span_end)
    });
    if let Some(found) = found.as_ref().filter(|found| found.log_end > 0) {
        plan.durable_end = plan.durable_end.max(Some(found.log_end));
    }
    load_marks(&opening.home, log, &opening.files.queues)?;
    let (listed, has_list) = opening.checkpointer.load_list(opening.left)?;
    log.damages.load(&opening.home.disk, &opening.home.root, |anchor| opening.left.trusts(anchor, files))?;
    find_missing_files(opening, plan.durable_end);
    let mut run = RecoveryRun {
        opening,
        plan,
        progress: ProgressLog::new(opening.config.on_recovery.clone()),
        walked_bytes: 0,
    };
    run.progress.begin(files.span().map_or(0, |span| span.end.saturating_sub(plan.walk_from)));
    let mut walked = run.walk_to_end(listed.as_ref(), has_list)?;
    let end = run.continue_after_missing(walked.end)?;
    let cut = if plan.has_sound_tail() { torn_tail::Cut::default() } else { torn_tail::cut(files, end)? };
    log.begin_at(end, resumed_timestamp(opening.files.clock.now_ms(), walked.last_timestamp))?;
    let rewritten_bytes = run.rewrite(end)?;
    walked.lost.extend(lost_queues(opening, listed.as_ref())?);
    let redone = walked.redone + run.rebuild_lost(&walked.lost, end)?;
    settle_queue_ends(opening, listed.as_ref(), found.as_ref(), end)?;
    opening.dispatched.set(end, walked.last_timestamp, walked.last);
    log.damages.forget_below(log.start());
    let anchor = opening.dispatched.anchor();
    UnindexedNote { home: &opening.home, log, index: &opening.files.index, anchor }.write(walked.index_from);
    run.progress.end(run.walked_bytes);
    let report = RecoveryReport {
        is_clean: plan.left.is_clean(),
        walked_bytes: run.walked_bytes,
        messages: walked.messages,
        cut_bytes: cut.bytes,
        cut_messages: cut.messages,
        redone,
        rewritten_bytes,
        elapsed: began.elapsed(),
        damages: Vec::new(),
    };
    Ok((report, Dispatcher::new(Resume::default())))
}

/// Sets the next offset of each queue after every offset that was assigned, even if its entry is missing.
fn settle_queue_ends<D: Disk>(
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

/// The least store timestamp of the next message: goes back only if a wrong clock stored the last one.
fn resumed_timestamp(now_ms: i64, last_timestamp: i64) -> i64 {
    let ahead_ms = last_timestamp.saturating_sub(now_ms);
    if ahead_ms <= MOST_AHEAD_MS {
        return last_timestamp;
    }
    tracing::warn!(
        ahead_ms,
        "the last message was stored by a clock more than a day ahead: store timestamps continue from the present"
    );
    now_ms
}

/// Logs a recovery after which the log ends at `end`.
pub(crate) fn log_report(report: &RecoveryReport, end: u64) {
    let seconds = report.elapsed.as_secs_f64().max(1e-6);
    tracing::info!(
        clean = report.is_clean,
        messages = report.messages,
        redone = report.redone,
        cut_bytes = report.cut_bytes,
        cut_messages = report.cut_messages,
        rewritten_bytes = report.rewritten_bytes,
        damages = report.damages.len(),
        physical_offset = end,
        elapsed_us = report.elapsed.as_micros() as u64,
        mib_per_second = report.walked_bytes as f64 / 1_048_576.0 / seconds,
        "store recovered"
    );
}

impl Plan {
    /// Whether the bytes after the end are as this broker left them.
    fn has_sound_tail(&self) -> bool {
        matches!(self.left, Left::Closed { .. })
    }

    /// The newest store timestamp known without a walk: store timestamps never go back.
    fn last_timestamp<D: Disk>(&self, opening: &Opening<D>) -> i64 {
        let noted = match self.left {
            Left::Killed => opening.checkpoint.marks().log_timestamp,
            _ => 0,
        };
        self.left.anchor().map_or(0, |anchor| anchor.store_timestamp).max(noted)
    }
}

fn plan<D: Disk>(opening: &Opening<D>) -> Result<Plan> {
    let files = opening.files.log.files();
    let marks = opening.checkpoint.marks();
    let left = opening.left;
    let trusted_timestamp = marks.walk_from_timestamp();
    let flush_mark = opening.files.log.flush_mark.found().filter(|_| left == Left::Killed);
    let flush_end = flush_mark.filter(|(anchor, _)| left.trusts(*anchor, files)).map(|(_, end)| end);
    // The checkpoint has no checksum: trust it only up to the end of the files or of the flush mark, which has one.
    let span_end = files.span().map_or(0, |span| span.end);
    let believable = flush_mark.map_or(0, |(_, end)| end).max(span_end);
    let noted_end = (marks.durable_end as u64).min(believable);
    let durable_end = match left {
        Left::Closed { end, .. } => Some(end),
        // The checkpoint lags behind the last flush; if both are lost, the durable end is unknown.
        Left::Killed => flush_end.max(Some(noted_end).filter(|end| *end > 0)),
        // RocketMQ stores the log's end at its start in that field. If this broker closed the store before, damage
        // across that end looks like an append of the other broker.
        Left::ClosedByOther | Left::KilledOther { is_log_whole: true } => {
            last_shutdown::closed_end(&opening.home.disk, &opening.home.root, files)?
                .map(|end| end.min(span_end))
        }
        Left::KilledOther { is_log_whole: false } => None,
    };
    let log_start = opening.files.log.start();
    let walk_from = match left {
        Left::Closed { end, .. } => end.max(log_start),
        Left::Killed => log_start.max(noted_end),
        Left::ClosedByOther | Left::KilledOther { .. } => start_of_walk(files, left, trusted_timestamp)?,
    };
    let flushed = walk_from.max(flush_end.unwrap_or(0));
    let is_checked = !opening.config.fast_boot;
    let torn_from = if is_checked && !left.is_clean() { walk_from } else { u64::MAX };
    let checks = Checks { crc: is_checked, torn_from, limit: u64::MAX };
    Ok(Plan { left, walk_from, durable_end, flushed, trusted_timestamp, checks })
}

/// The file at which the walk begins: everything before it is durable.
fn start_of_walk<D: Disk>(files: &MappedFileQueue<D>, left: Left, timestamp: i64) -> Result<u64> {
    let checks = Checks { crc: true, torn_from: u64::MAX, limit: u64::MAX };
    for span in files.spans().into_iter().rev() {
        let Some(file) = files.open(span.start)? else { continue };
        if let Some(Found::Message(view)) = checks.record(&file, span.start)
            && (left.has_whole_log() || view.store_timestamp <= timestamp)
        {
            return Ok(span.start);
        }
    }
    Ok(files.span().map_or(0, |span| span.start))
}

/// Records ranges of the log whose files are missing or short.
fn find_missing_files<D: Disk>(opening: &Opening<D>, durable_end: Option<u64>) {
    let files = opening.files.log.files();
    let mut missing = files.gaps();
    let span_end = files.span().map_or(0, |span| span.end);
    missing.extend(durable_end.filter(|end| *end > span_end).map(|end| span_end..end));
    for range in missing {
        // All files of the log have one size, except one that was cut short.
        let is_short = range.start % files.file_size() != 0;
        let name = crate::files::directories::file_name(range.start);
        let short = range.start.checked_sub(1).and_then(|at| files.path_at(at)).filter(|_| is_short);
        let file = short.unwrap_or_else(|| files.directory().join(name));
        let reason = if is_short { DamageReason::Short } else { DamageReason::Missing };
        opening.files.log.damages.add(Damage { file, range, reason });
    }
}

/// The first file in `range` that begins with a valid message.
fn first_later_file<D: Disk>(files: &MappedFileQueue<D>, range: Range<u64>) -> Result<Option<u64>> {
    let checks = Checks { crc: true, torn_from: u64::MAX, limit: u64::MAX };
    for span in files.spans().into_iter().filter(|span| range.contains(&span.start)) {
        let file = files.open(span.start)?;
        let found = file.as_ref().and_then(|file| checks.record(file, span.start));
        if matches!(found, Some(Found::Message(_))) {
            return Ok(Some(span.start));
        }
    }
    Ok(None)
}

/// A recovery under way.
struct RecoveryRun<'a, D: Disk> {
    opening: &'a Opening<D>,
    plan: Plan,
    progress: ProgressLog,
    walked_bytes: u64,
}

/// The result of the walk to the end of the log.
struct WalkedLog {
    end: u64,
    /// Keys of records before it are in the index.
    index_from: u64,
    messages: u64,
    redone: u64,
    last: Option<Anchor>,
    last_timestamp: i64,
    /// Queues whose entries end before those of the walk begin.
    lost: BTreeSet<QueueName>,
}

impl<D: Disk> RecoveryRun<'_, D> {
    /// Cuts excess entries, then walks to the end of the log and writes the missing ones.
    fn walk_to_end(&mut self, listed: Option<&QueueList>, has_list: bool) -> Result<WalkedLog> {
        let (opening, plan) = (self.opening, self.plan);
        // Another broker's clean close does not record the end of the log.
        let known_end = match plan.left {
            Left::Closed { end, .. } => Some(end),
            Left::ClosedByOther => Some(self.walk(plan.walk_from, None, None)?),
            Left::Killed | Left::KilledOther { .. } => None,
        };
        let (from, index_from) = self.recover_derived(known_end, listed, has_list)?;
        let mut rebuild = Rebuild::new(&opening.files, from, index_from, false);
        let end = self.walk(from, known_end, Some(&mut rebuild))?;
        let end = rebuild.continued_from().unwrap_or(end);
        rebuild.write()?;
        Ok(WalkedLog {
            end,
            index_from,
            messages: rebuild.messages,
            redone: rebuild.redone,
            last: rebuild.last.or(plan.left.anchor()),
            last_timestamp: rebuild.last_timestamp.max(plan.last_timestamp(opening)),
            lost: std::mem::take(&mut rebuild.lost),
        })
    }

    /// Walks over valid records from `from`, skipping damage, to `known_end` or to the end of the log.
    fn walk(
        &mut self,
        from: u64,
        known_end: Option<u64>,
        mut rebuild: Option<&mut Rebuild<'_, D>>,
    ) -> Result<u64> {
        let damages = &self.opening.files.log.damages;
        let mut at = from;
        loop {
            if known_end.is_some_and(|end| at >= end) {
                return Ok(at);
            }
            if let Some(damage) = damages.at(at) {
                // A batch appended as one that is damaged in part was durable: keep the rest.
                rebuild.as_mut().map_or(Ok(()), |rebuild| rebuild.take_continued())?;
                at = damage.end;
                continue;
            }
            let limit = known_end.unwrap_or(u64::MAX);
            let limit = damages.overlapping(&(at..limit)).map_or(limit, |damage| damage.start);
            let stop = self.scan(at..limit, rebuild.as_deref_mut())?;
            if stop >= limit {
                at = stop;
                continue;
            }
            match self.after_break(stop)? {
                Some(next) => {
                    let files = self.opening.files.log.files();
                    let file = files.path_at(stop).unwrap_or_else(|| files.directory().to_path_buf());
                    damages.add(Damage { file, range: stop..next, reason: DamageReason::Corrupt });
                    at = stop;
                }
                None => return Ok(stop),
            }
        }
    }

    fn scan(&mut self, range: Range<u64>, mut rebuild: Option<&mut Rebuild<'_, D>>) -> Result<u64> {
        let Self { opening, plan, progress, walked_bytes } = self;
        let checks = plan.checks;
        let levels = &opening.files.delay_levels;
        let check = |file: &_, range| derive(file, range, checks, levels);
        scan(opening.files.log.files(), range.start, range.end, check, |derived, range| {
            *walked_bytes += range.end - range.start;
            progress.step(*walked_bytes);
            match rebuild.as_deref_mut() {
                Some(rebuild) => rebuild.take(derived, range),
                None => Ok(()),
            }
        })
    }

    /// The next valid record after a break at `stop`; `None` if the log ends there.
    fn after_break(&self, stop: u64) -> Result<Option<u64>> {
        let files = self.opening.files.log.files();
        let Some(span) = files.span().filter(|span| stop < span.end) else { return Ok(None) };
        match self.plan.durable_end.map(|end| end.min(span.end)) {
            Some(durable_end) if stop < durable_end => {
                Ok(Some(find_record(files, stop + 1..durable_end, u64::MAX)?.unwrap_or(durable_end)))
            }
            Some(_) if self.plan.left.is_ours() => Ok(None),
            _ => self.after_break_of_other(stop, span.end),
        }
    }

    /// No durable end is known. A break followed by a durable record is corruption, not the tail.
    fn after_break_of_other(&self, stop: u64, span_end: u64) -> Result<Option<u64>> {
        let files = self.opening.files.log.files();
        let checks = Checks { crc: true, torn_from: u64::MAX, limit: u64::MAX };
        let file_end = files.open(stop)?.map_or(stop, |file| file.end());
        let next = match find_record(files, stop + 1..file_end, u64::MAX)? {
            Some(next) => Some(next),
            None => first_later_file(files, file_end..span_end)?,
        };
        let Some(next) = next else { return Ok(None) };
        // For a log of this broker without any mark, keep rather than cut.
        let was_on_disk = self.plan.left.has_whole_log()
            || self.plan.left == Left::Killed
            || files.open(next)?.is_some_and(|file| match checks.record(&file, next) {
                Some(Found::Message(view)) => view.store_timestamp <= self.plan.trusted_timestamp,
                _ => false,
            });
        Ok(was_on_disk.then_some(next))
    }

    /// Cuts derived files to entries that are known to be durable. Returns the offset from which records may be missing
    /// in any of them, and in the index; `u64::MAX` for a disabled index.
    fn recover_derived(
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
            if let Some(listed) = listed.and_then(|listed| listed.queues.get(&name_of(&queue))) {
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

    /// If files at the end of the log are missing, continues after them: an offset is assigned only once.
    fn continue_after_missing(&self, end: u64) -> Result<u64> {
        let files = self.opening.files.log.files();
        let span_end = files.span().map_or(0, |span| span.end);
        let after = torn_tail::continue_after_missing(files, end, self.plan.durable_end)?;
        if after > end {
            let file = files.path_at(after - 1).unwrap_or_else(|| files.directory().to_path_buf());
            let range = span_end..after;
            self.opening.files.log.damages.add(Damage { file, range, reason: DamageReason::Missing });
        }
        Ok(after)
    }

    /// Rewrites and flushes the unflushed end: after a crash or a failed flush the page cache may differ from the disk.
    fn rewrite(&self, end: u64) -> Result<u64> {
        let from = self.plan.flushed.max(self.opening.files.log.start());
        if self.plan.left.is_clean() || from >= end {
            return Ok(0);
        }
        let files = self.opening.files.log.files();
        torn_tail::rewrite(files, from..end)?;
        files.flush(from..end)?;
        Ok(end - from)
    }

    /// Rebuilds the queues in `lost` from the end of their entries. Returns how many entries it wrote.
    fn rebuild_lost(&mut self, lost: &BTreeSet<QueueName>, end: u64) -> Result<u64> {
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

fn name_of<D: Disk>(queue: &ConsumeQueue<D>) -> QueueName {
    (queue.topic().into(), queue.queue_id())
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
fn lost_queues<D: Disk>(opening: &Opening<D>, listed: Option<&QueueList>) -> Result<Vec<QueueName>> {
    let log_start = opening.files.log.start();
    let mut lost: Vec<QueueName> = Vec::new();
    for queue in opening.files.queues.all() {
        if queue.is_cut() {
            lost.push((queue.topic().into(), queue.queue_id()));
        }
    }
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
