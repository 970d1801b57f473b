//! Turns at flushing: whoever waits for a flush and finds nobody at it flushes itself, the others sleep.
//!
//! It decides who flushes and who sleeps, not what a flush does. Sleepers are woken without a mutex that all
//! of them would queue for, and only those whose flush has ended.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use parking_lot::{Mutex, MutexGuard};

/// Flushes, one at a time, and those who sleep until theirs has ended.
#[derive(Default)]
pub(crate) struct Turns {
    at_it: Mutex<()>,
    /// Flushes begun; each reads how far it goes only after it was counted here.
    begun: AtomicU64,
    finished: AtomicU64,
    /// How far the last flush that began goes.
    goal: AtomicU64,
    /// Who waits for a flush with an even number sleeps on the first, who waits for an odd one on the second.
    even: AtomicU32,
    odd: AtomicU32,
    sleepers: AtomicU32,
}

/// The right to flush. Dropping it wakes those it was for and one who flushes next.
pub(crate) struct FlushTurn<'a> {
    turns: &'a Turns,
    guard: Option<MutexGuard<'a, ()>>,
    has_begun: bool,
}

impl Turns {
    /// Takes a turn, after those of others.
    pub(crate) fn take(&self) -> FlushTurn<'_> {
        FlushTurn { turns: self, guard: Some(self.at_it.lock()), has_begun: false }
    }

    fn try_take(&self) -> Option<FlushTurn<'_>> {
        self.at_it.try_lock().map(|guard| FlushTurn { turns: self, guard: Some(guard), has_begun: false })
    }

    /// Sleeps until `is_decided`, or returns a turn where the caller must flush itself what ends at `end`.
    ///
    /// What `is_decided` looks at changes only before a turn is dropped or [`Self::wake_everyone`].
    pub(crate) fn wait(&self, end: u64, is_decided: impl Fn() -> bool) -> Option<FlushTurn<'_>> {
        if is_decided() {
            return None;
        }
        if let Some(turn) = self.try_take() {
            return Some(turn);
        }
        // From here on every turn that is dropped looks for sleepers.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut slept_for = None;
        let turn = loop {
            // Pairs with `Turn::begin`: a flush counted later than this reads how far it goes later still.
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
        // An earlier flush than it slept for covered it: the wake-up may have been meant for one who flushes next.
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

    /// Wakes all sleepers: something was decided without a flush.
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
    /// Counts a flush as begun. How far it goes must be read after this.
    pub(crate) fn begin(&mut self) {
        if !self.has_begun {
            self.has_begun = true;
            self.turns.begun.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Says how far the flush goes.
    pub(crate) fn goes_to(&self, goal: u64) {
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
        // The next to flush first, so that the disk is at work while the others wake.
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
                // Others look meanwhile, and take the flush under way for one that does not cover them.
                std::thread::yield_now();
                turn.goes_to(to);
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
