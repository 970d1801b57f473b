//! Makes appended bytes durable and notifies waiting callers: policies, group commit, background flushes.
//!
//! `unflushed` decides which appends wait under a limit.

use std::{
    io,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering, mpsc},
    time::{Duration, Instant},
};

use crate::{
    error::{IoResult, Result, StoreError},
    files::disk::Disk,
    log::{
        commit_log::CommitLog, flush_policy::FlushPolicy, flush_state::Done, flush_times::FlushTimes,
        put_times::PutTimes, unflushed::AppendVerdict,
    },
    time::clock::Clock,
};

/// RocketMQ's unit of dirty data.
const PAGE: u64 = 4 << 10;

/// Pause before a retry of a flush that lacked a descriptor or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);

impl<D: Disk> CommitLog<D> {
    /// End of what is durable.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushing.flushed.load(Ordering::Acquire)
    }

    /// End of what readers may see: under a synchronous policy only what is durable.
    pub(crate) fn readable(&self) -> u64 {
        if self.flushing.is_sync() {
            self.flushed().max(self.flushing.seen.load(Ordering::Acquire))
        } else {
            self.written()
        }
    }

    pub(crate) fn is_sync(&self) -> bool {
        self.flushing.is_sync()
    }

    /// How long puts took.
    pub(crate) fn put_times(&self) -> &PutTimes {
        &self.flushing.put_times
    }

    /// How long flushes took.
    pub(crate) fn flush_times(&self) -> &FlushTimes {
        &self.flushing.flush_times
    }

    pub(crate) fn policy(&self) -> FlushPolicy {
        self.flushing.settings.lock().policy
    }

    pub(crate) fn flushes(&self) -> u64 {
        self.flushing.flushes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.flushing.failure.get().is_some()
    }

    /// Stops all writing: the content of the disk is unknown.
    pub(crate) fn poison(&self, cause: &StoreError) {
        // Keeps the first failure.
        let _ = self.flushing.failure.set(cause.to_string().into());
        self.notify();
    }

    /// Notifies the dispatcher and the callbacks after a flush or a failure.
    fn notify(&self) {
        self.flushing.decisions.fetch_add(1, Ordering::SeqCst);
        if self.flushing.has_callbacks.load(Ordering::SeqCst) {
            self.flushing.due.ring();
        }
        self.arrived.ring();
    }

    /// Changes the policy or the limit of a topic. Everything appended before is durable when this returns.
    pub(crate) fn change_flush(
        &self,
        policy: Option<FlushPolicy>,
        topic: Option<(&str, Option<u32>)>,
    ) -> Result<()> {
        let flushing = &self.flushing;
        {
            let mut settings = flushing.settings.lock();
            if let Some(policy) = policy {
                policy.check()?;
                settings.policy = policy;
            }
            match topic {
                Some((_, Some(0))) => {
                    let reason = "a limit of 0 acknowledges nothing: use `each` or `group`";
                    return Err(StoreError::Invalid { what: "flush", reason });
                }
                Some((topic, Some(count))) => drop(settings.by_topic.insert(topic.to_owned(), count)),
                Some((topic, None)) => drop(settings.by_topic.remove(topic)),
                None => {}
            }
            let mut tail = self.tail.lock();
            // Appends that the old policy held stay held.
            flushing.changed_at.store(tail.end, Ordering::Release);
            tail.unflushed = flushing.count(&settings);
            let is_sync = settings.policy.is_synchronous();
            if is_sync != flushing.is_sync() {
                self.ahead.change(tail.end, is_sync);
                // Readers keep what they saw; later records wait for their flush.
                flushing.seen.store(tail.end, Ordering::Release);
                flushing.is_sync.store(is_sync, Ordering::Release);
            }
        }
        flushing.ask(self.written());
        self.ahead.due.ring();
        self.flush().map(drop)
    }

    /// Records the verdict for an append that ends at `end`.
    pub(crate) fn note_append(&self, verdict: AppendVerdict, end: u64) {
        if verdict.is_held {
            self.flushing.newest_held.fetch_max(end, Ordering::AcqRel);
        }
        if verdict.is_due && !self.is_sync() {
            self.flushing.ask(end);
        }
    }

    /// Asks the flushing thread to flush up to `end`, even if no caller waits.
    pub(crate) fn ask_for_flush(&self, end: u64) {
        self.flushing.ask(end);
    }

    /// Makes everything written so far durable and returns its end. A failed fsync poisons the log; a shortage of
    /// descriptors or memory does not, and a retry may succeed.
    pub(crate) fn flush(&self) -> Result<u64> {
        let goal = self.written();
        loop {
            let flushed = self.flush_once()?;
            if flushed >= goal {
                return Ok(flushed);
            }
        }
    }

    /// Lets the next flush fail, as a disk that reports an error does.
    pub(crate) fn fail_next_flush(&self) {
        self.flushing.fails_next.store(true, Ordering::Relaxed);
    }

    fn flush_files(&self, range: Range<u64>) -> Result<()> {
        if self.flushing.fails_next.load(Ordering::Relaxed) {
            return Err(io::Error::other("a test made it fail")).or_io("flush", self.files().directory());
        }
        self.files().flush(range)
    }

    /// Flushes what is written; under `each` only the oldest unflushed append.
    fn flush_once(&self) -> Result<u64> {
        let turn = self.flushing.turn.lock();
        if self.is_poisoned() {
            return Err(StoreError::Poisoned);
        }
        let from = self.flushed();
        // This order matters: an append after counting began is not in `written`, so no held append is skipped.
        let written = self.written();
        let is_counting = self.flushing.is_counting.load(Ordering::SeqCst);
        let to = if is_counting {
            let mut tail = self.tail.lock();
            let end = tail.end;
            tail.unflushed.as_mut().map_or(end, |unflushed| {
                unflushed.release(from);
                unflushed.begin_flush(end)
            })
        } else {
            written
        };
        if from >= to {
            return Ok(from);
        }
        let begun = Instant::now();
        if let Err(error) = self.flush_files(from..to) {
            if error.is_shortage() {
                // No fsync was tried, so nothing is lost.
                if !self.flushing.is_short.swap(true, Ordering::AcqRel) {
                    tracing::warn!(%error, physical_offset = from, "the log cannot be flushed now, retrying");
                }
                return Err(error);
            }
            tracing::error!(%error, physical_offset = from, "flush failed, writing stops");
            self.poison(&error);
            return Err(error);
        }
        if self.flushing.is_short.swap(false, Ordering::AcqRel) {
            tracing::info!(physical_offset = from, "the log can be flushed again");
        }
        self.flushing.flush_times.count(begun.elapsed());
        self.flushing.flushes.fetch_add(1, Ordering::Relaxed);
        // An older mark is still correct.
        if let Err(error) = self.flush_mark.note_flush(to) {
            tracing::warn!(%error, "end of the last flush not recorded");
        }
        self.flushing.put_times.flushed(to, || self.flushing.flushed.store(to, Ordering::Release));
        self.files().keep_open_from(to);
        if is_counting && let Some(unflushed) = &mut self.tail.lock().unflushed {
            unflushed.end_flush(to);
        }
        drop(turn);
        self.notify();
        Ok(to)
    }

    /// Whether the append that ends at `end` must be flushed before it is acknowledged.
    fn must_wait(&self, end: u64) -> bool {
        if self.is_sync() {
            return true;
        }
        if self.flushed() >= end {
            return false;
        }
        let is_of_before = || self.flushing.changed_at.load(Ordering::Acquire) >= end;
        is_of_before()
            || self.flushing.newest_held.load(Ordering::Acquire) >= end && {
                let tail = self.tail.lock();
                // The policy may have changed just before the lock.
                is_of_before() || tail.unflushed.as_ref().is_some_and(|unflushed| unflushed.holds(end))
            }
    }

    /// The outcome of the append that ends at `end`; `None` while a flush may still cover it.
    fn outcome(&self, end: u64) -> Option<Result<()>> {
        if self.flushed() >= end {
            Some(Ok(()))
        } else if let Some(cause) = self.flushing.failure.get() {
            Some(Err(StoreError::NotDurable { cause: Arc::clone(cause) }))
        } else if self.flushing.has_ended.load(Ordering::Acquire) {
            Some(Err(StoreError::Closed))
        } else {
            None
        }
    }

    /// The outcome of an append that need not wait: `NotDurable` if a failed flush may have lost it.
    fn answer_now(&self, end: u64) -> Result<()> {
        match self.flushing.failure.get() {
            Some(cause) if self.flushed() < end => Err(StoreError::NotDurable { cause: Arc::clone(cause) }),
            _ => Ok(()),
        }
    }

    /// Waits until the append that ends at `end` may be acknowledged.
    pub(crate) fn wait_durable(&self, end: u64) -> Result<()> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.when_durable(end, Box::new(move |outcome| drop(sender.send(outcome))));
        receiver.recv().unwrap_or(Err(StoreError::Closed))
    }

    /// The outcome of the append that ends at `end`, if it need not wait.
    pub(crate) fn durable_now(&self, end: u64) -> Option<Result<()>> {
        (!self.must_wait(end)).then(|| self.answer_now(end))
    }

    /// Calls `done` once the append that ends at `end` may be acknowledged.
    pub(crate) fn when_durable(&self, end: u64, done: Done) {
        if !self.must_wait(end) {
            done(self.answer_now(end));
            return;
        }
        let mut callbacks = self.flushing.callbacks.lock();
        if let Some(outcome) = self.outcome(end) {
            drop(callbacks);
            done(outcome);
            return;
        }
        callbacks.push((end, done));
        self.flushing.has_callbacks.store(true, Ordering::SeqCst);
        drop(callbacks);
        self.flushing.ask(end);
    }

    fn run_callbacks(&self) {
        let decided: Vec<(Done, Result<()>)> = {
            let mut callbacks = self.flushing.callbacks.lock();
            let decided = callbacks
                .extract_if(.., |(end, _)| self.outcome(*end).is_some())
                .map(|(end, done)| (done, self.outcome(end).unwrap_or(Ok(()))))
                .collect();
            self.flushing.has_callbacks.store(!callbacks.is_empty(), Ordering::SeqCst);
            decided
        };
        for (done, outcome) in decided {
            // A panic must not end the flushing thread: later appends wait for it.
            if catch_unwind(AssertUnwindSafe(|| done(outcome))).is_err() {
                tracing::error!("the callback of an append panicked: its caller may never get the outcome");
            }
        }
    }

    /// Fails all remaining waiters: no flush follows.
    pub(crate) fn end_flushes(&self) {
        self.flushing.has_ended.store(true, Ordering::Release);
        self.run_callbacks();
    }

    /// Flushes on request and by time, and runs callbacks, until stopped.
    pub(crate) fn run_flushes(&self, clock: &Clock) {
        let flushing = &self.flushing;
        let decisions = || flushing.decisions.load(Ordering::SeqCst);
        // 0, so that decisions made before this thread began are notified too.
        let mut seen = 0;
        let mut checked_ms = clock.now_ms();
        let mut flushed_ms = checked_ms;
        loop {
            let policy = self.policy();
            let interval = policy.check_interval();
            let left =
                interval.map(|interval| millis(interval).saturating_sub(clock.now_ms() - checked_ms).max(0));
            let is_wanted =
                || flushing.wanted.load(Ordering::Acquire) > self.flushed() && !self.is_poisoned();
            let is_time = || interval.is_some_and(|interval| clock.now_ms() - checked_ms >= millis(interval));
            // A manual clock rings when it advances.
            let pause = left.filter(|_| !clock.is_manual()).map(|left| Duration::from_millis(left as u64));
            flushing.due.wait(|| is_wanted() || is_time() || decisions() != seen, pause);
            if flushing.due.is_stopped() {
                return;
            }
            let is_time = is_time();
            if is_time {
                checked_ms = clock.now_ms();
            }
            let is_dirty = self.written() > self.flushed() && !self.is_poisoned();
            if is_wanted() || (is_time && is_dirty && self.has_enough(&policy, checked_ms - flushed_ms)) {
                // Other failures are logged and poison the log; the callbacks get them below.
                if self.flush_once().is_err_and(|error| error.is_shortage()) {
                    // Ends early if the log closes.
                    flushing.due.pause(SHORTAGE_PAUSE);
                }
                flushed_ms = clock.now_ms();
            }
            if decisions() != seen {
                seen = decisions();
                self.run_callbacks();
            }
        }
    }

    /// Whether enough is dirty for a flush `elapsed_ms` after the last one.
    fn has_enough(&self, policy: &FlushPolicy, elapsed_ms: i64) -> bool {
        match policy {
            FlushPolicy::Interval { least_pages, thorough, .. } => {
                let dirty = self.written() / PAGE - self.flushed() / PAGE;
                dirty >= u64::from(*least_pages) || elapsed_ms >= millis(*thorough)
            }
            _ => true,
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
