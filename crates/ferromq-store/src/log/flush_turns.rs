//! Decides which thread flushes: the first waiter takes the turn, the others sleep until a flush covers them.
//!
//! Only sleepers whose flush has ended are woken, without a mutex that they would all queue for.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use parking_lot::{Mutex, MutexGuard};

/// Flushes, one at a time, and the threads that sleep until one covers them.
#[derive(Default)]
pub(crate) struct Turns {
    flushing: Mutex<()>,
    /// Flushes begun; each reads its goal only after it is counted here.
    begun: AtomicU64,
    finished: AtomicU64,
    /// How far the last begun flush goes.
    goal: AtomicU64,
    /// Waiters for a flush with an even number sleep on `even`, the others on `odd`.
    even: AtomicU32,
    odd: AtomicU32,
    sleepers: AtomicU32,
}

/// The right to flush. Dropping it wakes the waiters it covered and one that flushes next.
pub(crate) struct FlushTurn<'a> {
    turns: &'a Turns,
    guard: Option<MutexGuard<'a, ()>>,
    has_begun: bool,
}

impl Turns {
    /// Waits for the turn.
    pub(crate) fn take(&self) -> FlushTurn<'_> {
        FlushTurn { turns: self, guard: Some(self.flushing.lock()), has_begun: false }
    }

    fn try_take(&self) -> Option<FlushTurn<'_>> {
        self.flushing.try_lock().map(|guard| FlushTurn { turns: self, guard: Some(guard), has_begun: false })
    }

    /// Sleeps until `is_decided`, or returns a turn: then the caller must flush up to `end` itself.
    ///
    /// The state that `is_decided` reads must change only before a turn is dropped or before [`Self::wake_everyone`].
    pub(crate) fn wait(&self, end: u64, is_decided: impl Fn() -> bool) -> Option<FlushTurn<'_>> {
        if is_decided() {
            return None;
        }
        if let Some(turn) = self.try_take() {
            return Some(turn);
        }
        // From here on every dropped turn looks for sleepers.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut slept_for = None;
        let turn = loop {
            // Pairs with `FlushTurn::begin`: a flush counted after this reads its goal later still.
            fence(Ordering::SeqCst);
            let begun = self.begun.load(Ordering::SeqCst);
            let is_covered = self.goal.load(Ordering::SeqCst) >= end;
            let mine = if is_covered { begun } else { begun + 1 };
            let word = self.word(mine);
            let seen = word.load(Ordering::SeqCst);
            if is_decided() {
                break None;
            }
            if let Some(turn) = self.try_take() {
                break Some(turn);
            }
            if self.finished.load(Ordering::SeqCst) < mine {
                slept_for = Some(mine);
                atomic_wait::wait(word, seen);
            }
        };
        // An earlier flush covered this waiter: pass on a wake-up that may have been for the next to flush.
        if turn.is_none()
            && let Some(number) = slept_for
            && self.finished.load(Ordering::SeqCst) < number
        {
            let word = self.word(number);
            word.fetch_add(1, Ordering::SeqCst);
            atomic_wait::wake_one(word);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        turn
    }

    /// Wakes all sleepers after a decision without a flush.
    pub(crate) fn wake_everyone(&self) {
        for word in [&self.even, &self.odd] {
            word.fetch_add(1, Ordering::SeqCst);
            atomic_wait::wake_all(word);
        }
    }

    fn word(&self, number: u64) -> &AtomicU32 {
        if number.is_multiple_of(2) { &self.even } else { &self.odd }
    }
}

impl FlushTurn<'_> {
    /// Counts a flush as begun. Its goal must be read after this.
    pub(crate) fn begin(&mut self) {
        if !self.has_begun {
            self.has_begun = true;
            self.turns.begun.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Publishes how far the flush goes.
    pub(crate) fn set_goal(&self, goal: u64) {
        self.turns.goal.store(goal, Ordering::SeqCst);
    }
}

impl Drop for FlushTurn<'_> {
    fn drop(&mut self) {
        let turns = self.turns;
        let number = turns.begun.load(Ordering::SeqCst);
        if self.has_begun {
            turns.finished.store(number, Ordering::SeqCst);
        }
        self.guard = None;
        fence(Ordering::SeqCst);
        if turns.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        // The next to flush comes first, so that the disk works while the others wake.
        let next = turns.word(number + 1);
        next.fetch_add(1, Ordering::SeqCst);
        atomic_wait::wake_one(next);
        let mine = turns.word(number);
        mine.fetch_add(1, Ordering::SeqCst);
        atomic_wait::wake_all(mine);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn whoever_waits_is_served_also_when_nobody_comes_after() {
        const THREADS: usize = 4;
        let (turns, written, flushed) = (Turns::default(), AtomicU64::new(0), AtomicU64::new(0));
        let together = Barrier::new(THREADS);
        let wait = |end: u64| {
            let is_covered = || flushed.load(Ordering::SeqCst) >= end;
            while !is_covered() {
                let Some(mut turn) = turns.wait(end, is_covered) else { continue };
                turn.begin();
                let to = written.load(Ordering::SeqCst);
                // The sleepers meanwhile take this flush for one that does not cover them.
                std::thread::yield_now();
                turn.set_goal(to);
                flushed.store(to, Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        together.wait();
                        wait(written.fetch_add(1, Ordering::SeqCst) + 1);
                    }
                });
            }
        });
        assert_eq!(flushed.into_inner(), 20_000 * THREADS as u64);
    }
}
