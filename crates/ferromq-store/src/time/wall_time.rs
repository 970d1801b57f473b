//! Decides which steps of the machine's wall clock the store follows, when, and for what.
//!
//! It reads no clock: `clock` reads the machine, and tests supply readings.

/// Largest forward step that is followed at once for everything, in microseconds; ordinary corrections are smaller.
const SMALL_STEP: i64 = 5 * 60 * SECOND;
/// A larger step must last before it is followed at all: no running machine pauses so long.
const DOUBTED_STEP: i64 = 24 * 3600 * SECOND;
/// How long such a step must last.
const DOUBT: i64 = 60 * SECOND;
/// How long a step above `SMALL_STEP` must last before files are deleted by it.
const SETTLING: i64 = 3600 * SECOND;
const SECOND: i64 = 1_000_000;

/// The machine's clocks at one moment, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Wall time since 1970.
    pub wall_us: i64,
    /// Time since the machine started, including sleep. It never goes back.
    pub boot_us: i64,
}

/// An event to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClockEvent {
    /// The wall clock is too far ahead to be followed yet.
    Doubted { ahead_us: i64 },
    /// The clock was set back before it was followed.
    DoubtEnded,
    /// A step above `SMALL_STEP` was followed; deletion by age waits.
    Followed { ahead_us: i64 },
    /// The step has lasted, so files are deleted by it.
    Settled,
    /// The wall clock is behind; time continues by itself.
    Behind { behind_us: i64 },
}

/// The target of a step, and when it was first seen.
#[derive(Debug, Clone, Copy)]
struct ClockStep {
    offset: i64,
    since: i64,
}

/// Wall time minus time since the machine started, as followed. No offset goes back.
#[derive(Debug)]
pub(crate) struct WallTime {
    offset: i64,
    age_offset: i64,
    doubted: Option<ClockStep>,
    unsettled: Option<ClockStep>,
    is_behind: bool,
}

impl WallTime {
    /// Starts at the current wall clock.
    pub(crate) fn begin(reading: Reading) -> Self {
        let offset = reading.wall_us.saturating_sub(reading.boot_us);
        Self { offset, age_offset: offset, doubted: None, unsettled: None, is_behind: false }
    }

    /// Offset to add to the time since the machine started, in microseconds.
    pub(crate) fn offset(&self) -> i64 {
        self.offset
    }

    /// The offset for deletion by age, at most [`Self::offset`].
    pub(crate) fn age_offset(&self) -> i64 {
        self.age_offset
    }

    /// Takes a reading and returns the event to log.
    pub(crate) fn read(&mut self, reading: Reading) -> Option<ClockEvent> {
        let wall = reading.wall_us.saturating_sub(reading.boot_us);
        let before = self.offset;
        let event = self.follow(wall, reading.boot_us);
        let settled = self.settle(wall.min(self.offset), reading.boot_us);
        if self.offset.saturating_sub(before) > SMALL_STEP {
            return Some(ClockEvent::Followed { ahead_us: self.offset - before });
        }
        event.or(settled.then_some(ClockEvent::Settled))
    }

    fn follow(&mut self, wall: i64, boot: i64) -> Option<ClockEvent> {
        let ahead = wall.saturating_sub(self.offset);
        if ahead > DOUBTED_STEP {
            match self.doubted {
                Some(step) if lasts(step, wall) => {
                    if boot - step.since >= DOUBT {
                        self.doubted = None;
                        // A later step is a step of its own.
                        self.offset = wall.min(step.offset.saturating_add(SMALL_STEP));
                    }
                    return None;
                }
                _ => {
                    self.doubted = Some(ClockStep { offset: wall, since: boot });
                    return Some(ClockEvent::Doubted { ahead_us: ahead });
                }
            }
        }
        let was_doubted = self.doubted.take().is_some();
        self.offset = self.offset.max(wall);
        let was_behind = std::mem::replace(&mut self.is_behind, -ahead > SMALL_STEP);
        if self.is_behind && !was_behind {
            return Some(ClockEvent::Behind { behind_us: -ahead });
        }
        was_doubted.then_some(ClockEvent::DoubtEnded)
    }

    /// Whether a step above `SMALL_STEP` has lasted.
    fn settle(&mut self, offset: i64, boot: i64) -> bool {
        let ahead = offset.saturating_sub(self.age_offset);
        if ahead <= SMALL_STEP {
            self.age_offset = self.age_offset.max(offset);
            self.unsettled = None;
            return false;
        }
        match self.unsettled {
            Some(step) if lasts(step, offset) => {
                if boot - step.since < SETTLING {
                    return false;
                }
                self.age_offset = offset.min(step.offset.saturating_add(SMALL_STEP));
                self.unsettled = None;
                true
            }
            _ => {
                self.unsettled = Some(ClockStep { offset, since: boot });
                false
            }
        }
    }
}

/// Whether the clock is still at the step's target or beyond.
fn lasts(step: ClockStep, offset: i64) -> bool {
    offset >= step.offset.saturating_sub(SMALL_STEP)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: i64 = 24 * 3600 * SECOND;
    const START: i64 = 1_700_000_000 * SECOND;

    /// A machine with manual clocks.
    struct Machine {
        reading: Reading,
        time: WallTime,
    }

    impl Machine {
        fn new() -> Self {
            let reading = Reading { wall_us: START, boot_us: 77 * SECOND };
            Self { reading, time: WallTime::begin(reading) }
        }

        fn pass(&mut self, seconds: i64) -> Option<ClockEvent> {
            let mut event = None;
            for _ in 0..seconds {
                self.reading.wall_us += SECOND;
                self.reading.boot_us += SECOND;
                event = event.or(self.time.read(self.reading));
            }
            event
        }

        fn step(&mut self, us: i64) -> Option<ClockEvent> {
            self.reading.wall_us += us;
            self.time.read(self.reading)
        }

        /// Time since the start, in seconds.
        fn now(&self) -> i64 {
            (self.reading.boot_us + self.time.offset() - START) / SECOND
        }

        fn age(&self) -> i64 {
            (self.reading.boot_us + self.time.age_offset() - START) / SECOND
        }
    }

    #[test]
    fn sleep_counts_at_once_for_everything() {
        let mut machine = Machine::new();
        machine.reading.boot_us += 8 * 3600 * SECOND;
        assert_eq!(machine.step(8 * 3600 * SECOND), None);
        assert_eq!((machine.now(), machine.age()), (8 * 3600, 8 * 3600));
    }

    #[test]
    fn a_step_of_hours_is_followed_at_once_and_deletes_after_an_hour() {
        let mut machine = Machine::new();
        assert_eq!(
            machine.step(8 * 3600 * SECOND),
            Some(ClockEvent::Followed { ahead_us: 8 * 3600 * SECOND })
        );
        assert_eq!((machine.now(), machine.age()), (8 * 3600, 0));
        assert_eq!(machine.pass(3599), None);
        assert_eq!((machine.now(), machine.age()), (8 * 3600 + 3599, 3599));
        assert_eq!(machine.pass(1), Some(ClockEvent::Settled));
        assert_eq!(machine.now(), machine.age());
    }

    #[test]
    fn a_clock_ten_years_ahead_for_ten_seconds_is_never_followed() {
        let mut machine = Machine::new();
        assert!(matches!(machine.step(3650 * DAY), Some(ClockEvent::Doubted { .. })));
        machine.pass(10);
        assert_eq!((machine.now(), machine.age()), (10, 10));
        assert_eq!(machine.step(-3650 * DAY), Some(ClockEvent::DoubtEnded));
        machine.pass(3600);
        assert_eq!((machine.now(), machine.age()), (3610, 3610));
    }

    #[test]
    fn a_step_of_years_that_lasts_a_minute_is_followed_and_taken_back_it_deletes_nothing() {
        let mut machine = Machine::new();
        machine.step(3650 * DAY);
        assert!(matches!(machine.pass(60), Some(ClockEvent::Followed { .. })));
        assert_eq!((machine.now(), machine.age()), (3650 * 86_400 + 60, 60));
        assert!(matches!(machine.step(-3650 * DAY), Some(ClockEvent::Behind { .. })));
        assert_eq!(machine.pass(7200), None);
        // Time continues at its pace, so that waits end.
        assert_eq!((machine.now(), machine.age()), (3650 * 86_400 + 7260, 7260));
    }

    #[test]
    fn a_machine_started_without_time_gets_it() {
        let mut machine = Machine::new();
        machine.step(3650 * DAY);
        machine.pass(60 + 3600);
        assert_eq!(machine.now(), 3650 * 86_400 + 3660);
        assert_eq!(machine.now(), machine.age());
    }

    fn steps() -> impl Strategy<Value = Vec<(i64, i64)>> {
        let size = prop_oneof![
            -2 * SMALL_STEP..2 * SMALL_STEP,
            -2 * DAY..2 * DAY,
            Just(3650 * DAY),
            Just(-3650 * DAY)
        ];
        prop::collection::vec((size, prop_oneof![0..5i64, 50..70i64, 3500..3700i64]), 0..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn time_never_goes_back_or_stands_and_age_follows_only_what_lasted_an_hour(steps in steps()) {
            let mut machine = Machine::new();
            let offset = |reading: Reading| reading.wall_us - reading.boot_us;
            let mut furthest = offset(machine.reading);
            for (size, seconds) in steps {
                let (now, age) = (machine.now(), machine.age());
                machine.step(size);
                furthest = furthest.max(offset(machine.reading));
                prop_assert!(machine.now() >= now && machine.age() >= age);
                for _ in 0..seconds {
                    let (now, age) = (machine.now(), machine.age());
                    machine.pass(1);
                    prop_assert!(machine.now() > now && machine.age() > age);
                    prop_assert!(machine.age() <= machine.now());
                    prop_assert!(machine.time.offset() <= furthest, "no time that no clock told");
                }
                // A step on top of a doubted one is doubted after it.
                if seconds > 2 * DOUBT / SECOND {
                    prop_assert!(machine.time.offset() >= offset(machine.reading) - DOUBTED_STEP);
                }
            }
        }
    }
}
