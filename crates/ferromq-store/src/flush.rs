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

use crate::{Disk, Result, StoreError, commit_log::CommitLog, signal::Signal};

type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Those who wait for a flush, and the doorbell of the thread that flushes.
#[derive(Default)]
pub(crate) struct Flusher {
    waiters: parking_lot::Mutex<Vec<(u64, Done)>>,
    /// Threads that block; one system call wakes them all.
    blocked: Mutex<()>,
    flushed: Condvar,
    has_ended: AtomicBool,
    pub(crate) signal: Signal,
}

impl Flusher {
    /// Calls `done` once everything below `end` is durable, or can no longer become so.
    pub(crate) fn when_durable<D: Disk>(&self, log: &CommitLog<D>, end: u64, done: Done) {
        let mut waiters = self.waiters.lock();
        let outcome = self.outcome(log, end);
        if outcome.is_none() {
            waiters.push((end, done));
            drop(waiters);
            self.signal.ring();
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
        self.signal.ring();
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

    /// Flushes once and tells those whose promise holds now, or never will. Says whether it went well.
    pub(crate) fn flush<D: Disk>(&self, log: &CommitLog<D>) -> bool {
        let is_well = log.flush().is_ok();
        self.tell(log);
        is_well
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

    /// Flushes whenever somebody waits (`interval` `None`), or at intervals, until stopped; `after` follows each flush.
    pub(crate) fn run<D: Disk>(&self, log: &CommitLog<D>, interval: Option<Duration>, after: impl Fn()) {
        loop {
            let is_due = || log.written() > log.flushed() && !log.is_poisoned();
            match interval {
                None => self.signal.wait(is_due, None),
                Some(interval) => self.signal.wait(|| false, Some(interval)),
            }
            if is_due() {
                self.flush(log);
                after();
            }
            if self.signal.is_stopped() {
                return;
            }
        }
    }
}
