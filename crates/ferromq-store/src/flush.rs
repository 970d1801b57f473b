//! When appended bytes become durable and who is told: asynchronous flush and group commit.
//!
//! It decides when to flush; how is the commit log's business. The checkpoint is `store`'s.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{Disk, Result, StoreError, commit_log::CommitLog};

type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Those who wait for a flush.
#[derive(Default)]
pub(crate) struct Flusher {
    waiters: parking_lot::Mutex<Vec<(u64, Done)>>,
    /// Threads that block; one system call wakes them all.
    blocked: Mutex<()>,
    flushed: Condvar,
    has_ended: AtomicBool,
}

impl Flusher {
    /// Calls `done` once everything below `end` is durable, or can no longer become so.
    pub(crate) fn when_durable<D: Disk>(&self, log: &CommitLog<D>, end: u64, done: Done) {
        let mut waiters = self.waiters.lock();
        let outcome = self.outcome(log, end);
        if outcome.is_none() {
            waiters.push((end, done));
            drop(waiters);
            log.flush_due.ring();
            return;
        }
        drop(waiters);
        done(outcome.unwrap_or(Ok(())));
    }

    /// As [`Self::when_durable`], blocking.
    pub(crate) fn wait_durable<D: Disk>(&self, log: &CommitLog<D>, end: u64) -> Result<()> {
        if let Some(outcome) = self.outcome(log, end) {
            return outcome;
        }
        log.flush_due.ring();
        let mut guard = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = self.outcome(log, end) {
                return outcome;
            }
            guard = self.flushed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// `None` while the flush that covers `end` may still come.
    fn outcome<D: Disk>(&self, log: &CommitLog<D>, end: u64) -> Option<Result<()>> {
        if log.flushed() >= end {
            Some(Ok(()))
        } else if log.is_poisoned() {
            Some(Err(StoreError::Poisoned))
        } else if self.has_ended.load(Ordering::Acquire) {
            Some(Err(StoreError::Closed))
        } else {
            None
        }
    }

    fn tell<D: Disk>(&self, log: &CommitLog<D>) {
        // Taken and let go so that nobody falls asleep between looking and waiting.
        drop(self.blocked.lock().unwrap_or_else(PoisonError::into_inner));
        self.flushed.notify_all();
        let told: Vec<(Done, Result<()>)> = {
            let mut waiters = self.waiters.lock();
            waiters
                .extract_if(.., |(end, _)| self.outcome(log, *end).is_some())
                .map(|(end, done)| (done, self.outcome(log, end).unwrap_or(Ok(()))))
                .collect()
        };
        for (done, outcome) in told {
            done(outcome);
        }
    }

    /// No flush will come any more: whoever still waits gets an error.
    pub(crate) fn end<D: Disk>(&self, log: &CommitLog<D>) {
        self.has_ended.store(true, Ordering::Release);
        self.tell(log);
    }

    /// Flushes as soon as there is something (`interval` `None`) or at intervals, until stopped.
    ///
    /// `after` follows each flush, whoever flushed.
    pub(crate) fn run<D: Disk>(&self, log: &CommitLog<D>, interval: Option<Duration>, after: impl Fn()) {
        let mut seen = log.decisions();
        loop {
            let is_due = || log.written() > log.flushed() && !log.is_poisoned();
            let is_decided = || log.decisions() != seen;
            log.flush_due.wait(|| is_decided() || (interval.is_none() && is_due()), interval);
            if is_due() {
                // A failure was logged by the log and poisoned it; those who wait are told below.
                let _ = log.flush();
            }
            if is_decided() {
                seen = log.decisions();
                self.tell(log);
                after();
            }
            if log.flush_due.is_stopped() {
                return;
            }
        }
    }
}
