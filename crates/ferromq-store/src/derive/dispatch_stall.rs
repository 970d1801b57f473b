//! Refuses sends while dispatch makes no progress: their messages would reach no reader.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    derive::dispatched::Dispatched,
    error::{Result, StoreError},
    files::disk::Disk,
    log::commit_log::CommitLog,
    time::clock::Clock,
};

/// Dispatch is stalled after so long without progress.
const LIMIT_MS: i64 = 10_000;
/// Least real time without progress, because the clock may jump.
const LEAST: Duration = Duration::from_secs(1);

/// The progress of dispatch, and whether sends are refused.
pub(crate) struct DispatchStall<D: Disk> {
    log: Arc<CommitLog<D>>,
    clock: Clock,
    dispatched: Arc<Dispatched>,
    /// The offset at which dispatch did not progress, and since when.
    seen: Mutex<Option<(u64, i64, Instant)>>,
    is_refusing: AtomicBool,
    /// The dispatcher's error there.
    reason: Mutex<Option<Arc<str>>>,
}

impl<D: Disk> DispatchStall<D> {
    pub(crate) fn new(log: Arc<CommitLog<D>>, clock: Clock, dispatched: Arc<Dispatched>) -> Self {
        let (seen, reason, is_refusing) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Self { log, clock, dispatched, seen, is_refusing, reason }
    }

    /// Accepts messages again: dispatch progresses.
    pub(crate) fn clear(&self) {
        if self.is_refusing.swap(false, Ordering::AcqRel) {
            tracing::info!("dispatch progresses again: messages are accepted");
        }
        *self.seen.lock() = None;
        *self.reason.lock() = None;
    }

    /// Sets why dispatch does not progress.
    pub(crate) fn set_reason(&self, reason: &str) {
        *self.reason.lock() = Some(reason.into());
    }
}

impl<D: Disk> DispatchStall<D> {
    /// Checks for progress since the last check; refuses messages after a long time without any.
    pub(crate) fn watch(&self) {
        let (now, at) = (self.clock.now_ms(), self.dispatched.end());
        let is_behind = self.log.readable() > at;
        let mut seen = self.seen.lock();
        match *seen {
            Some((place, since, first_seen)) if is_behind && place == at => {
                drop(seen);
                let stalled_ms = now.saturating_sub(since);
                let is_stalled = stalled_ms >= LIMIT_MS && first_seen.elapsed() >= LEAST;
                if is_stalled && !self.is_refusing.swap(true, Ordering::AcqRel) {
                    let reason = self.reason();
                    tracing::error!(
                        stalled_ms,
                        physical_offset = at,
                        %reason,
                        "dispatch makes no progress: messages are refused until it does"
                    );
                }
            }
            _ => {
                *seen = is_behind.then(|| (at, now, Instant::now()));
                drop(seen);
                if self.is_refusing.swap(false, Ordering::AcqRel) {
                    tracing::info!("dispatch progresses again: messages are accepted");
                }
            }
        }
    }

    fn reason(&self) -> Arc<str> {
        self.reason.lock().clone().unwrap_or_else(|| "cause unknown".into())
    }

    /// Milliseconds without progress.
    pub(crate) fn stalled_ms(&self) -> u64 {
        let (at, now) = (self.dispatched.end(), self.clock.now_ms());
        let seen = self.seen.lock().filter(|(place, ..)| *place == at && self.log.readable() > at);
        seen.map_or(0, |(_, since, _)| u64::try_from(now.saturating_sub(since)).unwrap_or(0))
    }

    /// Returns `DispatchStalled` while messages are refused.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_refusing.load(Ordering::Acquire) {
            return Ok(());
        }
        let stalled_ms = i64::try_from(self.stalled_ms()).unwrap_or(i64::MAX);
        let (physical_offset, reason) = (self.dispatched.end(), self.reason());
        Err(StoreError::DispatchStalled { stalled_ms, physical_offset, reason })
    }
}
