//! Finds the end of the log: walks over its records, decides what is damage and what is the torn tail, and writes the
//! unflushed end again.

use std::ops::Range;

use crate::{
    derive::{derived_entries::derive, rebuild::Rebuild},
    error::Result,
    files::{directories::file_name, disk::Disk, mapped_file_queue::MappedFileQueue},
    log::damage::{Damage, DamageReason},
    recovery::{
        last_shutdown::Left,
        log_walk::{Checks, Found, find_record, scan},
        plan::{Opening, Plan},
        progress_log::ProgressLog,
        torn_tail,
    },
};

/// A recovery under way.
pub(super) struct RecoveryRun<'a, D: Disk> {
    pub(super) opening: &'a Opening<D>,
    pub(super) plan: Plan,
    pub(super) progress: ProgressLog,
    pub(super) walked_bytes: u64,
}

impl<D: Disk> RecoveryRun<'_, D> {
    /// Walks over valid records from `from`, skipping damage, to `known_end` or to the end of the log.
    pub(super) fn walk(
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
                    let file = files.path_for(stop);
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
        let file_end = files.open(stop)?.map_or(stop, |file| file.end());
        let next = match find_record(files, stop + 1..file_end, u64::MAX)? {
            Some(next) => Some(next),
            None => first_later_file(files, file_end..span_end)?,
        };
        let Some(next) = next else { return Ok(None) };
        // For a log of this broker without any mark, keep rather than cut.
        let was_on_disk = self.plan.left.has_whole_log()
            || self.plan.left == Left::Killed
            || files.open(next)?.is_some_and(|file| match Checks::ALL.record(&file, next) {
                Some(Found::Message(view)) => view.store_timestamp <= self.plan.trusted_timestamp,
                _ => false,
            });
        Ok(was_on_disk.then_some(next))
    }

    /// If files at the end of the log are missing, continues after them: an offset is assigned only once.
    pub(super) fn continue_after_missing(&self, end: u64) -> Result<u64> {
        let files = self.opening.files.log.files();
        let span_end = files.end();
        let after = torn_tail::continue_after_missing(files, end, self.plan.durable_end)?;
        if after > end {
            let file = files.path_for(after - 1);
            let range = span_end..after;
            self.opening.files.log.damages.add(Damage { file, range, reason: DamageReason::Missing });
        }
        Ok(after)
    }

    /// Rewrites and flushes the unflushed end: after a crash or a failed flush the page cache may differ from the disk.
    pub(super) fn rewrite(&self, end: u64) -> Result<u64> {
        let from = self.plan.flushed.max(self.opening.files.log.start());
        if self.plan.left.is_clean() || from >= end {
            return Ok(0);
        }
        let files = self.opening.files.log.files();
        torn_tail::rewrite(files, from..end)?;
        files.flush(from..end)?;
        Ok(end - from)
    }
}

/// Records ranges of the log whose files are missing or short.
pub(super) fn find_missing_files<D: Disk>(opening: &Opening<D>, durable_end: Option<u64>) {
    let files = opening.files.log.files();
    let mut missing = files.gaps();
    let span_end = files.end();
    missing.extend(durable_end.filter(|end| *end > span_end).map(|end| span_end..end));
    for range in missing {
        // All files of the log have one size, except one that was cut short.
        let is_short = range.start % files.file_size() != 0;
        let name = file_name(range.start);
        let short = range.start.checked_sub(1).and_then(|at| files.path_at(at)).filter(|_| is_short);
        let file = short.unwrap_or_else(|| files.directory().join(name));
        let reason = if is_short { DamageReason::Short } else { DamageReason::Missing };
        opening.files.log.damages.add(Damage { file, range, reason });
    }
}

/// The first file in `range` that begins with a valid message.
fn first_later_file<D: Disk>(files: &MappedFileQueue<D>, range: Range<u64>) -> Result<Option<u64>> {
    for span in files.spans().into_iter().filter(|span| range.contains(&span.start)) {
        let file = files.open(span.start)?;
        let found = file.as_ref().and_then(|file| Checks::ALL.record(file, span.start));
        if matches!(found, Some(Found::Message(_))) {
            return Ok(Some(span.start));
        }
    }
    Ok(None)
}
