//! Delivers messages with a delivery time once they are due.
//!
//! One thread fills the wheel from the queue of its topic and empties it. A message that recalls another counts if it
//! was stored before the other's delivery time. So everything stored by now enters the wheel before anything is
//! delivered.

use std::{ops::Range, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    delayed::{
        due_message::DueMessages,
        timer::{
            state::{TimerSources, TimerState, TimerStats},
            timer_wake::TimerWake,
        },
    },
    derive::dispatched::Dispatched,
    error::StoreError,
    files::disk::Disk,
    log::damage::{Damage, DamageReason},
    record::names::TIMER_TOPIC,
};

/// Pause after a failure of the log or of a file, whose end is unknown.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Delivers messages with a delivery time.
pub(crate) struct Timer<D: Disk> {
    pub(crate) sources: TimerSources<D>,
    pub(super) due: Arc<DueMessages<D>>,
    pub(super) dispatched: Arc<Dispatched>,
    /// Wakes and stops the thread.
    pub(crate) wake: Arc<TimerWake>,
    pub(crate) state: Mutex<TimerState<D>>,
    /// Held while the progress is written; locked before `state`.
    pub(crate) persisting: Mutex<()>,
    /// The unreadable file that delays messages, and what is wrong with it.
    held: Mutex<Option<(PathBuf, DamageReason)>>,
}

impl<D: Disk> Timer<D> {
    pub(crate) fn new(
        sources: TimerSources<D>,
        due: Arc<DueMessages<D>>,
        dispatched: Arc<Dispatched>,
        wake: Arc<TimerWake>,
        state: TimerState<D>,
    ) -> Self {
        Self {
            sources,
            due,
            dispatched,
            wake,
            state: Mutex::new(state),
            persisting: Mutex::default(),
            held: Mutex::default(),
        }
    }

    /// The unreadable file that delays messages; `log` is the affected range of the log.
    pub(crate) fn damage(&self, log: Range<u64>) -> Option<Damage> {
        let held = self.held.lock().clone();
        held.map(|(file, reason)| Damage { file, range: log, reason })
    }

    pub(crate) fn stats(&self) -> TimerStats {
        let state = self.state.lock();
        TimerStats { read_time: state.read_time, queue_offset: state.next_offset, ..state.counts }
    }
}

/// When the next turn is needed.
pub(crate) enum NextTimerTurn {
    Now,
    At(i64),
    /// Once the dispatcher has reached this offset.
    Dispatched(u64),
    OnArrival,
    AfterPause,
}

/// The delivery thread.
pub(crate) struct TimerDelivery<'a, D: Disk> {
    pub(super) timer: &'a Timer<D>,
    /// A failure of delivery or of filling was logged, and nothing succeeded since.
    is_stuck: bool,
    is_unfilled: bool,
    /// Everything stored before this time is in the wheel.
    pub(super) filled_until: i64,
    /// A time, and the end of the log then. Once dispatch reaches that end, everything stored before that time can
    /// enter the wheel.
    pub(super) awaited: Option<(i64, u64)>,
    /// A time, and the end of the queue then. Once the wheel holds the queue up to that end, it holds everything stored
    /// before that time.
    pub(super) goal: Option<(i64, u64)>,
}

impl<'a, D: Disk> TimerDelivery<'a, D> {
    pub(crate) fn new(timer: &'a Timer<D>) -> Self {
        Self { timer, is_stuck: false, is_unfilled: false, filled_until: i64::MIN, awaited: None, goal: None }
    }

    pub(crate) fn run(mut self) {
        let (timer, clock) = (self.timer, &self.timer.sources.clock);
        let wake = &timer.wake.wake;
        while !wake.due.is_stopped() {
            wake.begin_turn();
            let next = self.turn(&mut timer.state.lock());
            match next {
                NextTimerTurn::Now => {}
                NextTimerTurn::OnArrival => wake.due.wait(|| wake.is_asked(), None),
                NextTimerTurn::AfterPause => wake.due.pause(RETRY_PAUSE),
                NextTimerTurn::At(_) if clock.is_manual() => wake.due.wait(|| wake.is_asked(), None),
                NextTimerTurn::At(time) => {
                    let left = u64::try_from(time.saturating_sub(clock.now_ms())).unwrap_or(0);
                    wake.due.wait(|| wake.is_asked(), Some(Duration::from_millis(left)));
                }
                NextTimerTurn::Dispatched(end) => timer.wake.wait_for(end, || timer.dispatched.end()),
            }
        }
        self.stop();
    }

    /// Stops. A stop is clean if no message is delivered again after it.
    fn stop(&self) {
        let mut state = self.timer.state.lock();
        if state.is_unrecovered {
            return;
        }
        let settled = self.timer.sources.reader.log.flush().and_then(|_| state.settle());
        if let Err(error) = settled {
            tracing::warn!(%error, "progress not written: messages delivered in the last second are delivered again");
        }
        state.pass_empty(self.timer.sources.clock.now_ms());
    }

    /// One turn: puts new messages into the wheel, and delivers due ones.
    pub(crate) fn turn(&mut self, state: &mut TimerState<D>) -> NextTimerTurn {
        if state.is_unrecovered {
            match state.recover(&self.timer.sources) {
                Ok(()) if state.is_unrecovered => return NextTimerTurn::AfterPause,
                Ok(()) => {
                    self.unstuck();
                }
                Err(error) => return self.stuck(&error, "timer wheel not recovered, will be retried"),
            }
        }
        let now = self.timer.sources.clock.now_ms();
        if state.is_behind(now) {
            state.pass_empty(now);
            if !state.is_next_known() {
                return NextTimerTurn::Now;
            }
        }
        if state.is_behind(now) {
            (self.filled_until, self.awaited, self.goal) = (now, None, None);
            return self.empty(state, now);
        }
        if let Some((time, _)) = self.awaited.take_if(|(_, end)| self.timer.dispatched.end() >= *end) {
            let queue = self.timer.sources.reader.queues.find(TIMER_TOPIC, 0);
            self.goal = Some((time, queue.map_or(0, |queue| queue.max_offset())));
        }
        let has_filled = match state.fill(&self.timer.sources) {
            Ok(has_filled) => has_filled,
            Err(error) => return self.unfilled(&error),
        };
        if std::mem::take(&mut self.is_unfilled) {
            tracing::info!("timed messages enter the wheel again");
            self.timer.held.lock().take_if(|(_, reason)| *reason == DamageReason::Unwritten);
        }
        if let Some((time, _)) = self.goal.take_if(|(_, end)| state.next_offset >= *end || !has_filled) {
            self.filled_until = time;
        }
        // Continuous arrivals must not delay due messages.
        let next = self.empty(state, now);
        if has_filled && !matches!(next, NextTimerTurn::AfterPause) { NextTimerTurn::Now } else { next }
    }

    /// Handles a failure to fill the wheel. A message that is not in the wheel yet may recall another, so nothing is
    /// delivered meanwhile.
    fn unfilled(&mut self, error: &StoreError) -> NextTimerTurn {
        if !std::mem::replace(&mut self.is_unfilled, true) {
            tracing::error!(%error, "timed messages cannot enter the wheel: none is delivered until they can");
        }
        self.hold(error, DamageReason::Unwritten);
        NextTimerTurn::AfterPause
    }

    fn hold(&self, error: &StoreError, reason: DamageReason) {
        let file = match error {
            StoreError::Io { path, .. } | StoreError::Corrupt { file: path, .. } => path.clone(),
            _ => return,
        };
        *self.timer.held.lock() = Some((file, reason));
    }

    /// Delivers due messages, up to the limits of a turn.
    fn empty(&mut self, state: &mut TimerState<D>, now: i64) -> NextTimerTurn {
        let Some(active) = &state.active else {
            return match state.next_slot() {
                None => NextTimerTurn::Now,
                Some(None) => NextTimerTurn::OnArrival,
                Some(Some(time)) if time > now => NextTimerTurn::At(time),
                Some(Some(time)) if time > self.filled_until => self.fill_until(now),
                Some(Some(time)) => match state.activate(&self.timer.sources, time) {
                    Ok(()) => self.unstuck(),
                    Err(error) => {
                        self.stuck(&error, "timer log cannot be read for due messages, will be retried")
                    }
                },
            };
        };
        match active.waiting.peek() {
            Some((due, _)) if due > now => NextTimerTurn::At(due),
            Some((due, _)) if due > self.filled_until => self.fill_until(now),
            Some(_) => match self.deliver(state) {
                Ok(()) => self.unstuck(),
                Err(error) => self.stuck(&error, "due messages not delivered, will be retried"),
            },
            None => {
                let end = active.time.saturating_add(state.config.precision_ms());
                match state.refill() {
                    Ok(true) => return self.unstuck(),
                    Ok(false) => {
                        self.unstuck();
                    }
                    Err(error) => {
                        return self
                            .stuck(&error, "timer log cannot be read for due messages, will be retried");
                    }
                }
                if end > now {
                    return NextTimerTurn::At(end);
                }
                state.finish();
                NextTimerTurn::Now
            }
        }
    }

    /// Fills the wheel with everything stored by `now`, before anything is delivered.
    fn fill_until(&mut self, now: i64) -> NextTimerTurn {
        if self.goal.is_some() {
            return NextTimerTurn::Now;
        }
        if let Some((_, end)) = self.awaited {
            return NextTimerTurn::Dispatched(end);
        }
        self.awaited = Some((now, self.timer.sources.reader.log.written()));
        NextTimerTurn::Now
    }

    fn stuck(&mut self, error: &StoreError, what: &str) -> NextTimerTurn {
        if !std::mem::replace(&mut self.is_stuck, true) {
            tracing::warn!(%error, "{what}");
        }
        self.hold(error, DamageReason::Unreadable);
        NextTimerTurn::AfterPause
    }

    fn unstuck(&mut self) -> NextTimerTurn {
        if std::mem::take(&mut self.is_stuck) {
            tracing::info!("timed messages are delivered again");
            self.timer.held.lock().take_if(|(_, reason)| *reason == DamageReason::Unreadable);
        }
        NextTimerTurn::Now
    }
}
