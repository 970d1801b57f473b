//! Wakes one background thread, cheaply when that thread is already awake.
//!
//! It carries no data: the thread looks at published offsets itself.

use std::{
    sync::atomic::{AtomicBool, Ordering, fence},
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

/// A doorbell with one listener.
#[derive(Default)]
pub(crate) struct Signal {
    rung: Mutex<bool>,
    condvar: Condvar,
    /// True only while the listener sleeps or is about to: an awake listener costs the ringer one load.
    asleep: AtomicBool,
    stopped: AtomicBool,
}

impl Signal {
    /// Wakes the listener if it sleeps. What it shall see must be published before.
    pub(crate) fn ring(&self) {
        // Pairs with the fence in `wait`: either the listener sees the work, or we see it asleep.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            *self.rung.lock() = true;
            self.condvar.notify_one();
        }
    }

    /// Tells the listener to end once it has nothing left to do.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        *self.rung.lock() = true;
        self.condvar.notify_one();
    }

    /// There is a listener again after [`Self::stop`].
    pub(crate) fn begin(&self) {
        self.stopped.store(false, Ordering::SeqCst);
    }

    /// Says whether [`Self::stop`] was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Sleeps until rung, stopped or `timeout`; returns at once where there is work already.
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
}
