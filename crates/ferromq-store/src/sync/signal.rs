//! Wakes one background thread; cheap if the thread is awake.
//!
//! It carries no data: the thread reads published offsets.

use std::{
    sync::atomic::{AtomicBool, Ordering, fence},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// A wake-up signal with one listener.
#[derive(Default)]
pub(crate) struct Signal {
    rung: Mutex<bool>,
    condvar: Condvar,
    /// True while the listener sleeps or is about to, so that signalling an awake listener costs one load.
    asleep: AtomicBool,
    stopped: AtomicBool,
}

impl Signal {
    /// Wakes the listener if it sleeps. Publish what it must see before.
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `wait`: the listener sees the work, or the caller sees it asleep.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            *self.rung.lock() = true;
            self.condvar.notify_one();
        }
    }

    /// Asks the listener to end after its remaining work.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        *self.rung.lock() = true;
        self.condvar.notify_one();
    }

    /// Accepts a new listener after [`Self::stop`].
    pub(crate) fn begin(&self) {
        self.stopped.store(false, Ordering::SeqCst);
    }

    /// Whether [`Self::stop`] was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Sleeps until signalled, stopped or `timeout`; returns at once if there is work.
    pub(crate) fn wait(&self, has_work: impl Fn() -> bool, timeout: Option<Duration>) {
        let mut rung = self.rung.lock();
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_work() && !self.is_stopped() && !*rung {
            match timeout {
                Some(timeout) => {
                    self.condvar.wait_for(&mut rung, timeout);
                }
                None => self.condvar.wait(&mut rung),
            }
        }
        *rung = false;
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Sleeps for this long, or until stopped.
    pub(crate) fn pause(&self, time: Duration) {
        let begin = Instant::now();
        while let Some(left) = time.checked_sub(begin.elapsed()).filter(|left| !left.is_zero())
            && !self.is_stopped()
        {
            self.wait(|| false, Some(left));
        }
    }
}
