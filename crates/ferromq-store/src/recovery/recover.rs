//! Recovers a store between opening its files and the first append: finds the log's end, cuts the torn tail, records
//! damage, and rebuilds derived files.
//!
//! `plan` decides how far to walk, `log_end` walks, `derived` recovers queues and index, and `rebuild` writes the missing
//! entries.

use std::{collections::BTreeSet, time::Instant};

use crate::{
    derive::{
        dispatch::{Dispatcher, Resume},
        rebuild::Rebuild,
    },
    error::Result,
    files::{anchor::Anchor, disk::Disk},
    index::unindexed_range::UnindexedNote,
    queues::{admin_files::QueueName, deletion::load_marks, queue_list::QueueList},
    recovery::{
        derived::{lost_queues, settle_queue_ends},
        last_shutdown::Left,
        log_end::{RecoveryRun, find_missing_files},
        plan::{Opening, plan},
        progress_log::ProgressLog,
        recovery_report::RecoveryReport,
        torn_tail,
    },
};

/// A clock further ahead was wrong: its timestamps must not hold back later messages.
const MOST_AHEAD_MS: i64 = 86_400_000;

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
    let found = plan.left.is_whole_of_other().then(|| opening.files.queues.found_ends(files.end()));
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
        progress: ProgressLog::new(files.end().saturating_sub(plan.walk_from), opening.watched.clone()),
        walked_bytes: 0,
    };
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
