//! Prepares the log ahead of the appender, in the background: the next file, zeros, memory.
//!
//! It never touches bytes that the appender may write. Without it the appender does the same work itself.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::{
    error::{Result, StoreError},
    files::disk::Disk,
    log::commit_log::CommitLog,
};

/// How far ahead of a busy appender pages are faulted in under asynchronous flush. Only appends through the map need it.
const PREFAULT_WINDOW: u64 = 8 << 20;
/// Bytes faulted in at once.
const PREFAULT_STEP: u64 = 1 << 20;
/// An appender that takes longer for half a window is not busy: its own page faults do not slow it.
const BUSY_FOR: Duration = Duration::from_millis(500);
/// How far ahead of the appender zeros are written under synchronous flush.
const ZERO_WINDOW: u64 = 4 << 20;
/// Zeros written and flushed at once.
const ZERO_STEP: u64 = 1 << 20;

impl<D: Disk> CommitLog<D> {
    /// Wakes the preparing thread if work is due. Runs after each append, so it must be very cheap.
    pub(crate) fn ask_for_preparation(&self, end: u64) {
        let span_end = self.files().end();
        let is_file_due = span_end.saturating_sub(end) < self.files().file_size() / 2;
        let is_zeroing_due = self.ahead.zeroed().saturating_sub(end) < ZERO_WINDOW / 2;
        let is_prefault_due = self.ahead.mapped.load(Ordering::Relaxed) == end
            && self.ahead.prefaulted.load(Ordering::Relaxed).saturating_sub(end) < PREFAULT_WINDOW / 2;
        if is_file_due || is_zeroing_due || is_prefault_due {
            self.ahead.asked.store(true, Ordering::Relaxed);
            self.ahead.due.ring();
        }
    }

    /// Does one step of the due work in the background: the next file, page faults, or zeros.
    ///
    /// Returns whether there may be more. A full disk is no error here: the appender reports it.
    pub(crate) fn prepare(&self) -> bool {
        let end = self.written();
        let span_end = self.files().span().map_or(end, |span| span.end);
        if span_end.saturating_sub(end) < self.files().file_size() / 2 {
            match self.file_at(span_end) {
                Ok(_) => self.ahead.is_failing.store(false, Ordering::Relaxed),
                Err(StoreError::Full { .. }) => return false,
                Err(error) => {
                    // The next append asks again.
                    if !self.ahead.is_failing.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "next commit log file not prepared");
                    }
                    return false;
                }
            }
        }
        let span_end = self.files().span().map_or(end, |span| span.end);
        if self.prefault(end, span_end) {
            return true;
        }
        let zeroed = self.ahead.zeroed();
        let goal = span_end.min(end + ZERO_WINDOW);
        if zeroed >= goal || self.is_poisoned() {
            return false;
        }
        match self.zero_until(goal.min(zeroed + ZERO_STEP)) {
            Ok(()) => true,
            Err(StoreError::Full { .. }) => false,
            Err(error) => {
                tracing::error!(%error, "zeroing ahead failed");
                false
            }
        }
    }

    /// Faults in one step of pages for a busy appender. Returns whether there is more to do.
    fn prefault(&self, end: u64, span_end: u64) -> bool {
        let from = self.ahead.prefaulted.load(Ordering::Acquire).max(end);
        let goal = span_end.min(self.ahead.mapped.load(Ordering::Relaxed) + PREFAULT_WINDOW);
        if from >= goal || self.is_sync() {
            return false;
        }
        let was_at = self.ahead.prefaulted_at.lock().replace(Instant::now());
        if was_at.is_none_or(|at| at.elapsed() > BUSY_FOR) {
            self.ahead.prefaulted.store(goal, Ordering::Release);
            return false;
        }
        let Some(file) = self.files().find(from) else { return false };
        let to = goal.min(from + PREFAULT_STEP).min(file.end());
        file.prefault(from..to);
        self.ahead.prefaulted.store(to, Ordering::Release);
        true
    }

    /// Writes and flushes zeros up to `goal`, so that a later flush changes no metadata.
    ///
    /// Never races the appender, which stays below `zeroed`: this touches only bytes from `zeroed` on.
    pub(crate) fn zero_until(&self, goal: u64) -> Result<()> {
        let _zeroing = self.ahead.zeroing.lock();
        let mut at = self.ahead.zeroed();
        while at < goal {
            let file = self.file_at(at)?;
            let end = file.end().min(goal.max(at + ZERO_STEP));
            let range = at..end;
            // A failed write of zeros is harmless; after a failed flush the content of the disk is unknown.
            file.zero(range.clone()).map_err(|error| self.full_or(error, end - at))?;
            if let Err(error) = file.flush(range) {
                self.poison(&error);
                return Err(error);
            }
            at = end;
            self.ahead.zeroed.store(at, Ordering::Release);
        }
        Ok(())
    }
}
