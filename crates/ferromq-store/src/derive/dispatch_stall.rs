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
    error::{Result, StoreError},
    files::disk::Disk,
    store::message_store::Inner,
};

/// Dispatch that stands still so long with something to dispatch is stalled.
const LIMIT_MS: i64 = 10_000;
/// A clock may leap: the dispatcher also had so much time to move, whatever the clock says.
const LEAST: Duration = Duration::from_secs(1);

/// What is known of a dispatcher that may stand still.
#[derive(Default)]
pub(crate) struct Stall {
    /// Where dispatch stood with something to dispatch, and since when.
    seen: Mutex<Option<(u64, i64, Instant)>>,
    is_refusing: AtomicBool,
    /// What the dispatcher met there.
    reason: Mutex<Option<Arc<str>>>,
}

impl Stall {
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

impl<D: Disk> Inner<D> {
    /// Looks whether dispatch has moved since the last look, and refuses messages where it has not for long.
    pub(crate) fn watch_dispatch(&self) {
        let (now, at) = (self.clock.now_ms(), self.dispatched());
        let is_behind = self.log.readable() > at;
        let mut seen = self.stall.seen.lock();
        match *seen {
            Some((place, since, looked)) if is_behind && place == at => {
                drop(seen);
                let stalled_ms = now.saturating_sub(since);
                let is_stalled = stalled_ms >= LIMIT_MS && looked.elapsed() >= LEAST;
                if is_stalled && !self.stall.is_refusing.swap(true, Ordering::AcqRel) {
                    let reason = self.stall_reason();
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
                if self.stall.is_refusing.swap(false, Ordering::AcqRel) {
                    tracing::info!("dispatch moves again: messages are taken");
                }
            }
        }
    }

    fn stall_reason(&self) -> Arc<str> {
        self.stall.reason.lock().clone().unwrap_or_else(|| "no error is known".into())
    }

    /// How long dispatch has stood still, in milliseconds.
    pub(crate) fn stalled_ms(&self) -> u64 {
        let (at, now) = (self.dispatched(), self.clock.now_ms());
        let seen = self.stall.seen.lock().filter(|(place, ..)| *place == at && self.log.readable() > at);
        seen.map_or(0, |(_, since, _)| u64::try_from(now.saturating_sub(since)).unwrap_or(0))
    }

    /// `DispatchStalled` while messages are refused.
    pub(crate) fn check_dispatch(&self) -> Result<()> {
        if !self.stall.is_refusing.load(Ordering::Acquire) {
            return Ok(());
        }
        let stalled_ms = i64::try_from(self.stalled_ms()).unwrap_or(i64::MAX);
        let (physical_offset, reason) = (self.dispatched(), self.stall_reason());
        Err(StoreError::DispatchStalled { stalled_ms, physical_offset, reason })
    }
}
