//! The store's clock: wall time in milliseconds that never goes back, real or manual.
//!
//! `wall_time` decides which steps of the machine's clock to follow.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

use crate::time::wall_time::{ClockEvent, Reading, WallTime};

type AdvanceListener = Box<dyn Fn() + Send + Sync>;
type ReadingSource = Box<dyn Fn() -> Reading + Send + Sync>;

/// Smaller steps are noise, because the two clocks are read one after the other.
const NO_STEP_US: i64 = 1_000;
/// Excess over the time waited that counts as a jump: the machine slept, or its clock was set.
const JUMP_MS: i64 = 100;

/// The machine's clocks and the steps that are followed.
struct MachineClock {
    read: ReadingSource,
    /// A copy of the offset in `time`, read without its lock.
    offset_us: AtomicI64,
    /// The offset when the clock was created.
    first_offset_us: i64,
    time: Mutex<WallTime>,
    /// The time of the last comparison with elapsed time, and the clock's value.
    looked: Mutex<(Instant, i64)>,
}

struct ClockState {
    /// `None` for a manual clock.
    machine: Option<MachineClock>,
    /// The time of a manual clock, or the total advance of a system clock.
    base_ms: AtomicI64,
    /// The latest time returned.
    latest_ms: AtomicI64,
    listeners: Mutex<Vec<AdvanceListener>>,
}

/// The time of the store, the servers and Python; clones share one clock.
///
/// A system clock follows the machine's wall clock forward, also across sleep, and never back: see decision 028. A
/// manual clock stands still until [`Clock::advance`], which wakes all waiting threads.
#[derive(Clone)]
pub struct Clock(Arc<ClockState>);

impl Clock {
    /// Returns a clock that follows real time.
    #[must_use]
    pub fn system() -> Self {
        Self::of_machine(read_machine)
    }

    /// Returns a clock that follows the clocks of `read`, as [`Clock::system`] follows the machine's.
    #[must_use]
    pub fn of_machine(read: impl Fn() -> Reading + Send + Sync + 'static) -> Self {
        let reading = read();
        let time = WallTime::begin(reading);
        let now_ms = reading.wall_us.div_euclid(1000);
        let machine = MachineClock {
            read: Box::new(read),
            offset_us: AtomicI64::new(time.offset()),
            first_offset_us: time.offset(),
            time: Mutex::new(time),
            looked: Mutex::new((Instant::now(), now_ms)),
        };
        Self::new(Some(machine), 0)
    }

    /// Returns a clock that stands at `start_ms`, in milliseconds since 1970, until it is advanced.
    #[must_use]
    pub fn manual(start_ms: i64) -> Self {
        Self::new(None, start_ms)
    }

    fn new(machine: Option<MachineClock>, base_ms: i64) -> Self {
        Self(Arc::new(ClockState {
            machine,
            base_ms: AtomicI64::new(base_ms),
            latest_ms: AtomicI64::new(i64::MIN),
            listeners: Mutex::new(Vec::new()),
        }))
    }

    /// Returns milliseconds since 1970, never less than before.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        let base = self.0.base_ms.load(Ordering::Acquire);
        let Some(machine) = &self.0.machine else { return base };
        let now = base.saturating_add(machine.now_us().div_euclid(1000));
        // Stored once a millisecond; most calls only load it.
        let latest = self.0.latest_ms.load(Ordering::Acquire);
        if now > latest { self.0.latest_ms.fetch_max(now, Ordering::AcqRel).max(now) } else { latest }
    }

    /// Returns the time for deletion by age, in milliseconds since 1970: [`Clock::now_ms`] without steps of more than
    /// five minutes in the last hour.
    #[must_use]
    pub fn age_ms(&self) -> i64 {
        let base = self.0.base_ms.load(Ordering::Acquire);
        let Some(machine) = &self.0.machine else { return base };
        let (reading, time) = (machine.take(), machine.time.lock());
        base.saturating_add(reading.boot_us.saturating_add(time.age_offset()).div_euclid(1000))
    }

    /// Returns milliseconds since 1970 without the clock's steps since its creation. Differences are elapsed time,
    /// including sleep.
    #[must_use]
    pub fn steady_ms(&self) -> i64 {
        let base = self.0.base_ms.load(Ordering::Acquire);
        let Some(machine) = &self.0.machine else { return base };
        base.saturating_add((machine.read)().boot_us.saturating_add(machine.first_offset_us).div_euclid(1000))
    }

    /// Returns how far [`Clock::now_ms`] is ahead of [`Clock::steady_ms`], in milliseconds.
    #[must_use]
    pub fn stepped_ms(&self) -> i64 {
        let stepped = |machine: &MachineClock| {
            machine.offset_us.load(Ordering::Acquire).saturating_sub(machine.first_offset_us).div_euclid(1000)
        };
        self.0.machine.as_ref().map_or(0, stepped)
    }

    /// Moves either kind of clock forward by `ms` and wakes all waiting threads. Negative values count as 0.
    pub fn advance(&self, ms: i64) {
        self.0.base_ms.fetch_add(ms.max(0), Ordering::AcqRel);
        self.wake();
    }

    /// Calls `listener` after every [`Clock::advance`] and every jump that [`Clock::look`] finds, so that timers check
    /// again.
    pub fn on_advance(&self, listener: impl Fn() + Send + Sync + 'static) {
        self.0.listeners.lock().push(Box::new(listener));
    }

    /// Compares the machine's clocks and wakes all waiting threads after a jump.
    ///
    /// Call it about once a second: neither a sleep of the machine nor a step of its clock wakes a thread.
    pub fn look(&self) {
        let Some(machine) = &self.0.machine else { return };
        machine.take();
        let now = self.now_ms();
        let waited = {
            let mut looked = machine.looked.lock();
            let (at, before) = std::mem::replace(&mut *looked, (Instant::now(), now));
            (now - before).saturating_sub(i64::try_from(at.elapsed().as_millis()).unwrap_or(i64::MAX))
        };
        if waited > JUMP_MS {
            self.wake();
        }
    }

    fn wake(&self) {
        for listener in self.0.listeners.lock().iter() {
            listener();
        }
    }

    /// Whether time moves only by [`Clock::advance`].
    #[must_use]
    pub fn is_manual(&self) -> bool {
        self.0.machine.is_none()
    }
}

impl MachineClock {
    fn now_us(&self) -> i64 {
        let reading = (self.read)();
        let offset = self.offset_us.load(Ordering::Acquire);
        if reading.wall_us.saturating_sub(reading.boot_us).saturating_sub(offset) < NO_STEP_US {
            return reading.boot_us.saturating_add(offset);
        }
        let reading = self.take();
        reading.boot_us.saturating_add(self.offset_us.load(Ordering::Acquire))
    }

    /// Reads the clocks and updates the offset.
    fn take(&self) -> Reading {
        let mut time = self.time.lock();
        let reading = (self.read)();
        let event = time.read(reading);
        self.offset_us.store(time.offset(), Ordering::Release);
        drop(time);
        if let Some(event) = event {
            log_event(event);
        }
        reading
    }
}

#[cold]
fn log_event(event: ClockEvent) {
    let seconds = |us: i64| us / 1_000_000;
    match event {
        ClockEvent::Doubted { ahead_us } => tracing::warn!(
            ahead_seconds = seconds(ahead_us),
            "the wall clock stepped forward by more than a day: it is followed if it lasts a minute"
        ),
        ClockEvent::DoubtEnded => tracing::warn!("the wall clock was set back: its step was not followed"),
        ClockEvent::Followed { ahead_us } => tracing::warn!(
            ahead_seconds = seconds(ahead_us),
            "the wall clock stepped forward and is followed; deletion by age waits for an hour"
        ),
        ClockEvent::Settled => {
            tracing::info!("the step of the wall clock has lasted an hour and now counts for deletion by age")
        }
        ClockEvent::Behind { behind_us } => tracing::warn!(
            behind_seconds = seconds(behind_us),
            "the wall clock was set back: the store's clock stays ahead until a restart"
        ),
    }
}

/// Reads the wall clock first: a pause between the two makes it look late, which is ignored.
fn read_machine() -> Reading {
    let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    let wall_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros);
    Reading { wall_us, boot_us: crate::platform::since_boot().map_or(0, micros) }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").field("now_ms", &self.now_ms()).field("manual", &self.is_manual()).finish()
    }
}
