//! Locks that a panic does not poison, and one that a caller waits for no longer than it wants.
//!
//! The mutexes of std have no global state. After a fork, a child can use new ones.

use std::{
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Instant,
};

/// Locks, also after a panic of another holder: no holder leaves half a change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], to read.
pub(crate) fn read<T>(shared: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    shared.read().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], to write.
pub(crate) fn write<T>(shared: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `until` at the latest. Spurious wake-ups happen.
pub(crate) fn wait_until<'a, T>(
    wake: &Condvar,
    guard: MutexGuard<'a, T>,
    until: Instant,
) -> MutexGuard<'a, T> {
    let left = until.saturating_duration_since(Instant::now());
    wake.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
}

/// A lock that callers take in turn, each with a time limit.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    state: Mutex<TurnState>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct TurnState {
    is_taken: bool,
    /// How many callers wait: to wake none is a system call, too.
    waiting: usize,
}

impl Turn {
    /// Takes the turn; `None` if it was not free before `until`.
    pub(crate) fn take(&self, until: Instant) -> Option<TurnGuard<'_>> {
        let mut state = lock(&self.state);
        while state.is_taken {
            if Instant::now() >= until {
                return None;
            }
            state.waiting += 1;
            state = wait_until(&self.freed, state, until);
            state.waiting -= 1;
        }
        state.is_taken = true;
        Some(TurnGuard(self))
    }
}

/// The turn; dropping it frees it.
pub(crate) struct TurnGuard<'a>(&'a Turn);

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.is_taken = false;
        if state.waiting > 0 {
            self.0.freed.notify_one();
        }
    }
}

/// Whether a read or a write ended because of its time limit or a signal, and may be repeated.
pub(crate) fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
