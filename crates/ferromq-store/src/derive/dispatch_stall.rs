//! Whether dispatch moves: where it stands still for long, messages are written that reach no reader, so sends are
//! refused until it moves again.

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

/// Dispatch that stands still so long with something to dispatch is stalled.
const LIMIT_MS: i64 = 10_000;
/// A clock may leap: the dispatcher also had so much time to move, whatever the clock says.
const LEAST: Duration = Duration::from_secs(1);

/// What is known of a dispatcher that may stand still.
pub(crate) struct DispatchStall<D: Disk> {
    log: Arc<CommitLog<D>>,
    clock: Clock,
    dispatched: Arc<Dispatched>,
    /// Where dispatch stood with something to dispatch, and since when.
    seen: Mutex<Option<(u64, i64, Instant)>>,
    is_refusing: AtomicBool,
    /// What the dispatcher met there.
    reason: Mutex<Option<Arc<str>>>,
}

impl<D: Disk> DispatchStall<D> {
    pub(crate) fn new(log: Arc<CommitLog<D>>, clock: Clock, dispatched: Arc<Dispatched>) -> Self {
        let (seen, reason, is_refusing) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Self { log, clock, dispatched, seen, is_refusing, reason }
    }

    /// Dispatch moves.
    pub(crate) fn clear(&self) {
        if self.is_refusing.swap(false, Ordering::AcqRel) {
            tracing::info!("dispatch moves again: messages are taken");
        }
        *self.seen.lock() = None;
        *self.reason.lock() = None;
    }

    /// Says why dispatch does not get further.
    pub(crate) fn set_reason(&self, reason: &str) {
        *self.reason.lock() = Some(reason.into());
    }
}

impl<D: Disk> DispatchStall<D> {
    /// Looks whether dispatch has moved since the last look, and refuses messages where it has not for long.
    pub(crate) fn watch(&self) {
        let (now, at) = (self.clock.now_ms(), self.dispatched.end());
        let is_behind = self.log.readable() > at;
        let mut seen = self.seen.lock();
        match *seen {
            Some((place, since, looked)) if is_behind && place == at => {
                drop(seen);
                let stalled_ms = now.saturating_sub(since);
                let is_stalled = stalled_ms >= LIMIT_MS && looked.elapsed() >= LEAST;
                if is_stalled && !self.is_refusing.swap(true, Ordering::AcqRel) {
                    let reason = self.reason();
                    tracing::error!(
                        stalled_ms,
                        physical_offset = at,
                        %reason,
                        "dispatch stands still: messages are refused until it moves"
                    );
                }
            }
            _ => {
                *seen = is_behind.then(|| (at, now, Instant::now()));
                drop(seen);
                if self.is_refusing.swap(false, Ordering::AcqRel) {
                    tracing::info!("dispatch moves again: messages are taken");
                }
            }
        }
    }

    fn reason(&self) -> Arc<str> {
        self.reason.lock().clone().unwrap_or_else(|| "no error is known".into())
    }

    /// How long dispatch has stood still, in milliseconds.
    pub(crate) fn stalled_ms(&self) -> u64 {
        let (at, now) = (self.dispatched.end(), self.clock.now_ms());
        let seen = self.seen.lock().filter(|(place, ..)| *place == at && self.log.readable() > at);
        seen.map_or(0, |(_, since, _)| u64::try_from(now.saturating_sub(since)).unwrap_or(0))
    }

    /// `DispatchStalled` while messages are refused.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_refusing.load(Ordering::Acquire) {
            return Ok(());
        }
        let stalled_ms = i64::try_from(self.stalled_ms()).unwrap_or(i64::MAX);
        let (physical_offset, reason) = (self.dispatched.end(), self.reason());
        Err(StoreError::DispatchStalled { stalled_ms, physical_offset, reason })
    }
}
