//! The one clock: wall milliseconds that never go back, real or moved by hand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

type Listener = Box<dyn Fn() + Send + Sync>;

struct Inner {
    started: Instant,
    /// Wall milliseconds at `started` for a system clock, "now" for a manual one.
    base_ms: AtomicI64,
    manual: bool,
    listeners: Mutex<Vec<Listener>>,
}

/// The source of time for the store, the servers and the policy in Python; clones share one clock.
///
/// A system clock reads wall time once and adds monotonic time since, so it never goes back. A manual
/// clock stands still until [`Clock::advance`], which wakes everyone who waits.
#[derive(Clone)]
pub struct Clock(Arc<Inner>);

impl Clock {
    /// Returns a clock that follows real time.
    #[must_use]
    pub fn system() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
        Self::new(i64::try_from(wall).unwrap_or(i64::MAX), false)
    }

    /// Returns a clock that stands at `start_ms` (milliseconds since 1970) until it is advanced.
    #[must_use]
    pub fn manual(start_ms: i64) -> Self {
        Self::new(start_ms, true)
    }

    fn new(base_ms: i64, manual: bool) -> Self {
        Self(Arc::new(Inner {
            started: Instant::now(),
            base_ms: AtomicI64::new(base_ms),
            manual,
            listeners: Mutex::new(Vec::new()),
        }))
    }

    /// Returns milliseconds since 1970; never less than an earlier answer.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        let base = self.0.base_ms.load(Ordering::Acquire);
        if self.0.manual {
            return base;
        }
        base.saturating_add(i64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// Moves the clock forward by `ms` and wakes everyone who waits; works on both kinds of clock.
    ///
    /// Negative values are taken as 0: this clock never goes back.
    pub fn advance(&self, ms: i64) {
        self.0.base_ms.fetch_add(ms.max(0), Ordering::AcqRel);
        for listener in self.0.listeners.lock().iter() {
            listener();
        }
    }

    /// Calls `listener` after every [`Clock::advance`], for timers that must look again.
    pub fn on_advance(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.0.listeners.lock().push(Box::new(listener));
    }

    /// Says whether time moves only by [`Clock::advance`].
    #[must_use]
    pub fn is_manual(&self) -> bool {
        self.0.manual
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("now_ms", &self.now_ms()).field("manual", &self.0.manual).finish()
    }
}
