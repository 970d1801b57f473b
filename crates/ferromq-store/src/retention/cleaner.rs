//! Cleaning: removes the oldest files of the commit log that may go, and the entries derived from them.
//!
//! `policy` decides whether a file may go, `archive` hands it to the hook first. Cleaning has its own thread. It holds
//! no lock that an append, a read or a check of the disk waits for.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::PathBuf,
    sync::Arc,
    thread::{self, ThreadId},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    dedup::sequences_file::SequencesFile,
    derive::{derived_files::DerivedFiles, dispatched::Dispatched},
    error::Result,
    files::{anchor::Anchor, disk::Disk, space::Space, store_directory::StoreDirectory},
    read::unreadable_files::Unreadable,
    record::message::MessageView,
    recovery::{checkpoint::Checkpoint, checkpointer::Checkpointer},
    retention::{
        archive::{Archive, ExpiredFile, NotTaken},
        disk_space::DiskSpace,
        policy::{BY_DISK_USAGE, FileFacts, OnExpiry, RetentionFacts, RetentionVerdict, TopicTimes, decide},
    },
    sync::wake::Wake,
    time::local_time::LocalTime,
};

/// How often files are checked, as in RocketMQ.
const INTERVAL_MS: i64 = 10_000;
/// Most files that disk usage removes per interval, as in RocketMQ.
const MOST_BY_USAGE: u64 = 10;

/// The outcome of a cleaning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Files of the commit log that were removed.
    pub removed_files: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Files the archive hook took.
    pub archived_files: u64,
    /// Their bytes.
    pub archived_bytes: u64,
    /// Files that should go but stay because the hook has not taken them. Younger files wait behind them.
    pub refused_files: u64,
    /// Their bytes.
    pub refused_bytes: u64,
    /// Bytes of consume queue and index files that were removed.
    pub derived_bytes: u64,
    /// First byte kept in the commit log.
    pub min_physical_offset: u64,
    /// When the oldest file may go, milliseconds since 1970, if time alone decides.
    pub next_due_ms: Option<i64>,
    /// Why cleaning stopped before it removed everything that may go.
    pub failure: Option<String>,
}

/// The outcome of all cleanings since open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleaningStats {
    /// Sums over all cleanings; `next_due_ms`, `failure` and `min_physical_offset` are of the last one.
    pub total: CleanReport,
    /// When the last one ended, milliseconds since 1970.
    pub last_ms: Option<i64>,
}

impl CleaningStats {
    fn add(&mut self, report: &CleanReport, now_ms: i64) {
        let total = &mut self.total;
        total.removed_files += report.removed_files;
        total.removed_bytes += report.removed_bytes;
        total.archived_files += report.archived_files;
        total.archived_bytes += report.archived_bytes;
        total.refused_files += report.refused_files;
        total.refused_bytes += report.refused_bytes;
        total.derived_bytes += report.derived_bytes;
        total.min_physical_offset = report.min_physical_offset;
        total.next_due_ms = report.next_due_ms;
        total.failure.clone_from(&report.failure);
        self.last_ms = Some(now_ms);
    }
}

/// State that one pass leaves for the next.
#[derive(Default)]
struct Pass {
    /// Derived files below this offset were removed.
    swept_to: Option<u64>,
    round: Round,
}

/// Space measured and removed within one interval. A file system may free space late, while another process still reads
/// a removed file; until the interval ends, removed bytes count as free.
#[derive(Default)]
struct Round {
    began_ms: i64,
    /// The space at its beginning.
    space: Option<Space>,
    removed_bytes: u64,
    /// Files removed whatever their age.
    by_usage: u64,
}

impl Round {
    /// Measures again once the interval is over.
    fn renew(&mut self, now_ms: i64, space: Option<Space>) {
        if self.space.is_none() || now_ms.abs_diff(self.began_ms) >= INTERVAL_MS.unsigned_abs() {
            *self = Self { began_ms: now_ms, space, ..Self::default() };
        }
    }

    /// The space `now`, plus the bytes that the file system has still to free.
    fn space(&self, now: Option<Space>) -> Option<Space> {
        let (began, now) = (self.space?, now?);
        let given_back = now.free.saturating_sub(began.free);
        Some(now.after_removal(self.removed_bytes.saturating_sub(given_back)))
    }
}

/// Removes expired files. Its thread and callers that ask for a cleaning share it.
pub(crate) struct Cleaner<D: Disk> {
    parts: CleanerParts<D>,
    zone: LocalTime,
    pub(crate) archive: Archive,
    /// The topics of the file that begins at an offset. They change only when a topic is deleted.
    topics: Mutex<Option<(u64, TopicTimes)>>,
    /// One pass at a time.
    pass: Mutex<Pass>,
    /// The thread that runs the pass.
    owner: Mutex<Option<ThreadId>>,
    stats: Mutex<CleaningStats>,
}

/// What cleaning reads and changes.
pub(crate) struct CleanerParts<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) files: Arc<DerivedFiles<D>>,
    pub(crate) checkpoint: Arc<Checkpoint<D>>,
    pub(crate) checkpointer: Arc<Checkpointer<D>>,
    pub(crate) sequences: Arc<SequencesFile<D>>,
    pub(crate) dispatched: Arc<Dispatched>,
    pub(crate) unreadable: Arc<Unreadable<D>>,
    pub(crate) space: Arc<DiskSpace<D>>,
    /// Wakes and stops the cleaning thread.
    pub(crate) wake: Arc<Wake>,
}

impl<D: Disk> Cleaner<D> {
    pub(crate) fn new(parts: CleanerParts<D>, archive: Archive) -> Self {
        Self {
            parts,
            zone: LocalTime::of_process(),
            archive,
            topics: Mutex::default(),
            pass: Mutex::default(),
            owner: Mutex::default(),
            stats: Mutex::default(),
        }
    }

    pub(crate) fn stats(&self) -> CleaningStats {
        self.stats.lock().clone()
    }

    /// Drops the cached topics, after a change to queues or topics.
    pub(crate) fn forget_topics(&self) {
        *self.topics.lock() = None;
    }

    /// Waits until no pass is running. Returns at once within a pass: a hook may close the store.
    pub(crate) fn wait_idle(&self) {
        if !self.is_mine() {
            drop(self.pass.lock());
        }
    }

    /// Whether the calling thread runs the pass; such a thread must not wait for its end.
    fn is_mine(&self) -> bool {
        *self.owner.lock() == Some(thread::current().id())
    }

    fn begin_turn(&self) -> CleaningTurn<'_> {
        *self.owner.lock() = Some(thread::current().id());
        CleaningTurn { owner: &self.owner }
    }
}

/// Marks the calling thread as the pass's owner until it is dropped, also when a policy panics.
struct CleaningTurn<'a> {
    owner: &'a Mutex<Option<ThreadId>>,
}

impl Drop for CleaningTurn<'_> {
    fn drop(&mut self) {
        *self.owner.lock() = None;
    }
}

/// The oldest file, if it may be removed.
struct Oldest {
    path: PathBuf,
    range: Range<u64>,
    /// Where the log begins after its removal.
    next: u64,
}

impl<D: Disk> Cleaner<D> {
    /// Cleans at intervals and on request, until stopped.
    pub(crate) fn run(&self) {
        let (wake, clock) = (&self.parts.wake, &self.parts.files.clock);
        let mut next_ms = clock.now_ms() + INTERVAL_MS;
        while !wake.due.is_stopped() {
            let is_due = || wake.is_asked() || clock.now_ms() >= next_ms;
            let left = u64::try_from(next_ms - clock.now_ms()).unwrap_or(0).max(1);
            let timeout = (!clock.is_manual()).then(|| Duration::from_millis(left));
            wake.due.wait(is_due, timeout);
            if is_due() && !wake.due.is_stopped() {
                wake.begin_turn();
                next_ms = clock.now_ms() + INTERVAL_MS;
                // A running pass does the same work. Its hook may be closing the store and waiting for this thread.
                if let Some(mut pass) = self.pass.try_lock() {
                    self.clean_pass(&mut pass, false);
                }
            }
        }
    }

    /// One pass over all files that may go.
    pub(crate) fn clean(&self, is_asked: bool) -> CleanReport {
        if self.is_mine() {
            let failure = Some("a cleaning is under way, and this call comes from within it".to_owned());
            return CleanReport {
                min_physical_offset: self.parts.files.log.start(),
                failure,
                ..CleanReport::default()
            };
        }
        self.clean_pass(&mut self.pass.lock(), is_asked)
    }

    fn clean_pass(&self, pass: &mut Pass, is_asked: bool) -> CleanReport {
        let turn = self.begin_turn();
        let mut report = CleanReport::default();
        let done = self
            .remove_expired(&mut pass.round, is_asked, &mut report)
            .and_then(|()| self.sweep(pass, &mut report));
        if let Err(error) = done {
            report.failure = Some(error.to_string());
        }
        report.min_physical_offset = self.parts.files.log.start();
        drop(turn);
        let mut stats = self.stats.lock();
        // Log each failure once, however often it is retried.
        match (&report.failure, &stats.total.failure) {
            (Some(reason), before) if before.as_ref() != Some(reason) => {
                tracing::warn!(
                    reason,
                    physical_offset = report.min_physical_offset,
                    "cleaning failed and will be retried"
                );
            }
            (None, Some(_)) => tracing::info!("cleaning works again"),
            _ => {}
        }
        stats.add(&report, self.parts.files.clock.now_ms());
        report
    }

    fn remove_expired(&self, round: &mut Round, is_asked: bool, report: &mut CleanReport) -> Result<()> {
        while !self.parts.wake.due.is_stopped()
            && let Some(oldest) = self.oldest_file()?
        {
            let bytes = oldest.range.end - oldest.range.start;
            let facts = self.facts(&oldest);
            let rules = self.parts.space.rules.get();
            let policy = match decide(&rules.policies, &facts, &self.store_facts(round, is_asked)) {
                RetentionVerdict::RemovedBy(policy) => policy,
                RetentionVerdict::Keep { until_ms } => {
                    report.next_due_ms = until_ms;
                    break;
                }
            };
            let is_by_usage = policy == BY_DISK_USAGE;
            if is_by_usage && round.by_usage == MOST_BY_USAGE {
                report.next_due_ms = Some(round.began_ms + INTERVAL_MS);
                break;
            }
            match self.archive(&facts, is_asked) {
                Ok(was_taken) => {
                    report.archived_files += u64::from(was_taken);
                    report.archived_bytes += if was_taken { bytes } else { 0 };
                }
                Err(NotTaken { reason, retry_ms }) => {
                    report.refused_files += 1;
                    report.refused_bytes += bytes;
                    report.next_due_ms = retry_ms;
                    report.failure = Some(format!("{} is not archived: {reason}", oldest.path.display()));
                    break;
                }
            }
            // The hook may have run for minutes.
            if self.parts.wake.due.is_stopped() {
                break;
            }
            self.remove(&oldest)?;
            tracing::info!(file = %oldest.path.display(), policy, bytes, "file removed");
            round.by_usage += u64::from(is_by_usage);
            round.removed_bytes += bytes;
            report.removed_files += 1;
            report.removed_bytes += bytes;
        }
        Ok(())
    }

    /// Removes a file. Readers see the new beginning of the log first, so that none reads the removed range.
    fn remove(&self, oldest: &Oldest) -> Result<()> {
        for queue in self.parts.files.queues.all() {
            // The sweep reports an unreadable queue and moves its offset later.
            let _ = queue.move_min_offset(oldest.next);
        }
        self.parts.files.aside.note_removed_log(oldest.next);
        self.parts.files.log.files().remove_below(oldest.range.end).map(drop)
    }

    /// Removes derived entries of deleted files, including those that an earlier pass or a crash left.
    fn sweep(&self, pass: &mut Pass, report: &mut CleanReport) -> Result<()> {
        let start = self.parts.files.log.start();
        if pass.swept_to == Some(start) {
            return Ok(());
        }
        let mut failed = Ok(());
        for queue in self.parts.files.queues.all() {
            if self.parts.wake.due.is_stopped() {
                return Ok(());
            }
            let swept = queue.move_min_offset(start).and_then(|()| queue.remove_passed_files());
            match swept {
                Ok(bytes) => report.derived_bytes += bytes,
                // The sweep goes on with the other queues; this one follows at the next pass.
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        match self.parts.files.index.remove_below(start) {
            Ok(bytes) => report.derived_bytes += bytes,
            Err(error) => failed = failed.and(Err(error)),
        }
        self.parts.files.log.damages.forget_below(start);
        self.parts.unreadable.forget_below(start);
        if failed.is_ok() {
            pass.swept_to = Some(start);
        }
        failed
    }

    /// The oldest file, unless it is the active one or recovery still needs it.
    fn oldest_file(&self) -> Result<Option<Oldest>> {
        let files = self.parts.files.log.files();
        let spans = files.spans();
        let [range, next, ..] = &spans[..] else { return Ok(None) };
        if range.end >= self.parts.files.log.written() || range.end > self.parts.dispatched.end() {
            return Ok(None);
        }
        if range.end as i64 > self.parts.checkpoint.marks().durable_end
            || range.end > self.parts.sequences.dedup.saved_to()
        {
            let is_behind = || {
                let needed =
                    self.parts.files.aside.first_from().map_or(range.end, |from| from.min(range.end));
                self.parts.checkpoint.marks().durable_end < needed as i64
            };
            let mut written = self.parts.checkpointer.write(false);
            if written.is_ok() && is_behind() {
                // A queue returned to service during the write. The next write flushes it.
                written = self.parts.checkpointer.write(false);
            }
            let last_ms = || {
                self.parts.files.log.stored_at(next.start).unwrap_or_else(|| self.parts.files.clock.now_ms())
            };
            // No other unwritten state needs the file.
            if is_behind() || self.needs_for_sequences(range.end, last_ms()) {
                written?;
            }
        }
        let Some(path) = files.path_at(range.start) else { return Ok(None) };
        Ok(Some(Oldest { path, range: range.clone(), next: next.start }))
    }

    /// Whether the file that ends at `end` must stay for the snapshot of numbered messages. It need not when space is
    /// short, because the snapshot itself may then fail.
    fn needs_for_sequences(&self, end: u64, last_ms: i64) -> bool {
        let space = &self.parts.space;
        self.parts.sequences.needs(end, last_ms) && !space.space().is_some_and(|found| space.is_short(&found))
    }

    fn facts(&self, oldest: &Oldest) -> FileFacts<'_> {
        let (range, next) = (oldest.range.clone(), oldest.next);
        let found =
            self.parts.files.log.stored_at(range.start).or_else(|| self.parts.files.log.stored_at(next));
        let oldest_ms = found.unwrap_or_else(|| self.parts.files.clock.now_ms());
        FileFacts::new(oldest.path.clone(), range.clone(), oldest_ms, move || {
            let mut known = self.topics.lock();
            if let Some((start, topics)) = known.as_ref()
                && *start == range.start
            {
                return topics.clone();
            }
            match self.topics_in(&range, next) {
                Ok(topics) => {
                    *known = Some((range.start, topics.clone()));
                    topics
                }
                // An unreadable queue may have messages there that must stay.
                Err(error) => {
                    tracing::warn!(%error, physical_offset = range.start, "topics of a file unknown: file kept");
                    BTreeMap::from([("".into(), self.parts.files.clock.now_ms())])
                }
            }
        })
    }

    /// Topics with messages in a range of the log, each with the store time of the last one.
    fn topics_in(&self, range: &Range<u64>, next: u64) -> Result<BTreeMap<Box<str>, i64>> {
        let mut last: BTreeMap<Box<str>, (u64, u32)> = BTreeMap::new();
        for queue in self.parts.files.queues.all() {
            let entry = queue.last_entry_below(range.end)?;
            if let Some(entry) = entry.filter(|entry| entry.physical_offset >= range.start) {
                let known = last.entry(queue.topic().into()).or_default();
                *known = (*known).max((entry.physical_offset, entry.size));
            }
        }
        // An unreadable record counts as young as the next readable one.
        let mut file = None;
        let youngest =
            || self.parts.files.log.stored_at(next).unwrap_or_else(|| self.parts.files.clock.now_ms());
        let times = last.into_iter().map(|(topic, (physical_offset, size))| {
            let stored = self.parts.files.log.store_timestamp(&mut file, physical_offset, size);
            (topic, stored.unwrap_or_else(youngest))
        });
        Ok(times.collect())
    }

    fn store_facts(&self, round: &mut Round, is_asked: bool) -> RetentionFacts {
        let now_ms = self.parts.files.clock.now_ms();
        let now = self.parts.space.space();
        round.renew(now_ms, now);
        let space = round.space(now);
        RetentionFacts {
            now_ms: self.parts.files.clock.age_ms(),
            local_hour: self.zone.hour(now_ms),
            total_bytes: self.parts.files.log.files().spans().iter().map(|span| span.end - span.start).sum(),
            disk_used_percent: space.as_ref().map(|space| space.used_percent()),
            is_space_short: space.is_some_and(|space| self.parts.space.is_short(&space)),
            is_asked,
        }
    }

    /// Hands a file to the archive hook if archiving is on. Returns whether the hook took it now.
    fn archive(&self, facts: &FileFacts<'_>, is_asked: bool) -> std::result::Result<bool, NotTaken> {
        if self.parts.space.rules.get().on_expiry == OnExpiry::Discard {
            return Ok(false);
        }
        let file = ExpiredFile {
            path: facts.path().to_path_buf(),
            range: facts.range(),
            oldest_ms: facts.oldest_ms(),
            newest_ms: facts.newest_ms(),
        };
        let record = self.parts.files.log.checked_record(file.range.start);
        let view = record.as_ref().and_then(|record| MessageView::decode(record.bytes(), false).ok());
        let anchor = view.map_or(Anchor::NONE, |view| Anchor::of(&view));
        let place = (&self.parts.home.disk, &*self.parts.home.root, || self.parts.home.is_released());
        self.archive.take(place, &file, anchor, self.parts.files.clock.now_ms(), is_asked)
    }
}
