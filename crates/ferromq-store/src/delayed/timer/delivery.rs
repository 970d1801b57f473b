//! Delivers messages with a delivery time once they are due.
//!
//! One thread fills the wheel from the queue of its topic and empties it. A message that recalls another counts if it
//! was stored before the other's delivery time. So everything stored by now enters the wheel before anything is
//! delivered.

use std::{
    ops::Range,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    delayed::{
        delay_levels,
        due_message::{DueMessages, PAST_RETENTION, TAKEN_OVER, Target, renewed},
        timer::{
            log::Unit,
            state::{TimerSources, TimerState, TimerStats, record_of},
            timed_message::{self},
            timer_wake::TimerWake,
        },
    },
    derive::dispatched::Dispatched,
    error::{Result, StoreError},
    files::disk::Disk,
    log::damage::{Damage, DamageReason},
    record::{
        log_record::Record,
        message::{MessageView, NewMessage},
        names::TIMER_TOPIC,
        properties,
    },
};

/// Most messages and bytes stored at once. Bounds how long a send waits.
const TURN_MESSAGES: usize = 64;
const TURN_BYTES: usize = 1 << 20;
/// Pause after a failure of the log or of a file, whose end is unknown.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Delay before a message whose topic has only closed queues is tried again.
const CLOSED_PAUSE_MS: i64 = 60_000;
/// Delivers messages with a delivery time.
pub(crate) struct Timer<D: Disk> {
    pub(crate) sources: TimerSources<D>,
    due: Arc<DueMessages<D>>,
    pub(super) dispatched: Arc<Dispatched>,
    /// Wakes and stops the thread.
    pub(crate) wake: Arc<TimerWake>,
    pub(crate) state: Mutex<TimerState<D>>,
    /// Held while the progress is written; locked before `state`.
    pub(crate) persisting: Mutex<()>,
    /// The unreadable file that delays messages, and what is wrong with it.
    held: Mutex<Option<(PathBuf, DamageReason)>>,
    delivered: AtomicU64,
    rolled: AtomicU64,
    recalled: AtomicU64,
    put_back: AtomicU64,
    undeliverable: AtomicU64,
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
            delivered: AtomicU64::new(0),
            rolled: AtomicU64::new(0),
            recalled: AtomicU64::new(0),
            put_back: AtomicU64::new(0),
            undeliverable: AtomicU64::new(0),
        }
    }

    /// The unreadable file that delays messages; `log` is the affected range of the log.
    pub(crate) fn damage(&self, log: Range<u64>) -> Option<Damage> {
        let held = self.held.lock().clone();
        held.map(|(file, reason)| Damage { file, range: log, reason })
    }

    pub(crate) fn stats(&self) -> TimerStats {
        let state = self.state.lock();
        TimerStats {
            delivered: self.delivered.load(Ordering::Relaxed),
            rolled: self.rolled.load(Ordering::Relaxed),
            recalled: self.recalled.load(Ordering::Relaxed),
            put_back: self.put_back.load(Ordering::Relaxed),
            undeliverable: self.undeliverable.load(Ordering::Relaxed) + state.strange,
            lost: state.lost,
            read_time: state.read_time,
            queue_offset: state.next_offset,
        }
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
    timer: &'a Timer<D>,
    /// A failure of delivery or of filling was logged, and nothing succeeded since.
    is_stuck: bool,
    is_unfilled: bool,
    /// Everything stored before this time is in the wheel.
    filled_until: i64,
    /// A time, and the end of the log then. Once dispatch reaches that end, everything stored before that time can
    /// enter the wheel.
    awaited: Option<(i64, u64)>,
    /// A time, and the end of the queue then. Once the wheel holds the queue up to that end, it holds everything stored
    /// before that time.
    goal: Option<(i64, u64)>,
}

enum TimerVerdict {
    Deliver {
        topic: String,
        queue_id: i32,
        properties: Vec<u8>,
    },
    Roll(Vec<u8>),
    PutBack(Vec<u8>),
    Recalled,
    /// The unit belongs to another message. This one has its own unit at its own time.
    Strayed,
    GiveUp(&'static str),
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
                NextTimerTurn::AfterPause => self.pause(),
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

    /// Pauses before the next try. Only a stop shortens the pause.
    fn pause(&self) {
        let (due, begin) = (&self.timer.wake.wake.due, Instant::now());
        while let Some(left) = RETRY_PAUSE.checked_sub(begin.elapsed()).filter(|left| !left.is_zero())
            && !due.is_stopped()
        {
            due.wait(|| false, Some(left));
        }
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

    /// Delivers the due messages of the active slot, up to the limits of a turn. On an error none is stored: try again.
    fn deliver(&mut self, state: &mut TimerState<D>) -> Result<()> {
        let Some(active) = &mut state.active else { return Ok(()) };
        let (mut taken, mut bytes) = (Vec::with_capacity(TURN_MESSAGES), 0);
        while let Some(next) = active.waiting.peek().filter(|(due, _)| *due <= self.filled_until)
            && taken.len() < TURN_MESSAGES
            && bytes < TURN_BYTES
        {
            let unit = match state.log.read(next.1) {
                Ok(unit) => unit,
                Err(error) => {
                    active.waiting.give_back(taken.iter().map(|(next, _): &((i64, u64), _)| *next));
                    return Err(error);
                }
            };
            bytes += unit.map_or(0, |unit| unit.size as usize);
            taken.push((next, unit));
            active.waiting.pop();
        }
        let mut lost = 0;
        let done = self.store(state, &taken, &mut lost);
        match (&done, &mut state.active) {
            (Ok(()), Some(active)) => active.is_begun = true,
            (Err(_), Some(active)) => active.waiting.give_back(taken.iter().map(|(next, _)| *next)),
            _ => {}
        }
        if taken.iter().any(|(_, unit)| unit.is_some_and(|unit| unit.is_rolled())) {
            // A message stored again must reach its slot before that slot's turn.
            (self.filled_until, self.awaited, self.goal) = (i64::MIN, None, None);
        }
        if done.is_ok() {
            state.lost += lost;
            state.is_changed = true;
        }
        done
    }

    fn store(
        &self,
        state: &mut TimerState<D>,
        taken: &[((i64, u64), Option<Unit>)],
        lost: &mut u64,
    ) -> Result<()> {
        let sources = &self.timer.sources;
        let mut file = None;
        let mut records: Vec<(Unit, Record<D::Region>)> = Vec::with_capacity(taken.len());
        for (next, unit) in taken {
            let record = match unit {
                Some(unit) => record_of(sources, &mut file, unit)?,
                None => None,
            };
            match unit.zip(record) {
                Some(found) => records.push(found),
                None => {
                    *lost += 1;
                    tracing::error!(place = next.1, "timed message is removed or damaged: lost");
                }
            }
        }
        let mut found = Vec::with_capacity(records.len());
        for (unit, record) in &records {
            match MessageView::decode(record.bytes(), true) {
                Ok(view) if view.topic == TIMER_TOPIC && view.physical_offset == unit.physical_offset => {
                    let verdict = self.verdict(state, unit, &view);
                    if let TimerVerdict::Strayed = verdict {
                        state.put_right(sources, &view)?;
                    }
                    found.push((view, verdict));
                }
                _ => {
                    *lost += 1;
                    tracing::error!(physical_offset = unit.physical_offset, "timed message is damaged: lost");
                }
            }
        }
        let messages: Vec<NewMessage<'_>> =
            found.iter().filter_map(|(view, verdict)| made(view, verdict)).collect();
        let sizes = self.timer.due.append(&messages)?;
        self.count(state, &found, &sizes);
        Ok(())
    }

    fn verdict(&self, state: &TimerState<D>, unit: &Unit, view: &MessageView<'_>) -> TimerVerdict {
        let now = self.timer.sources.clock.now_ms();
        let due = timed_message::due_at(state.config.precision_ms(), view.properties, view.store_timestamp);
        if !unit.is_rolled() && due.is_some_and(|due| due > now) {
            return TimerVerdict::Strayed;
        }
        let (dequeued, enqueued) = (now.to_string(), unit.written_at.to_string());
        let mut set = vec![
            (timed_message::ENQUEUED_MS, enqueued.as_str()),
            (timed_message::DEQUEUED_MS, dequeued.as_str()),
        ];
        if unit.is_rolled() {
            let known = properties::get(view.properties, timed_message::ROLLS)
                .and_then(|text| text.parse::<u32>().ok());
            let rolls = known.unwrap_or(0).saturating_add(1).to_string();
            set.push((timed_message::ROLLS, rolls.as_str()));
            return TimerVerdict::Roll(self.fitting(view, TIMER_TOPIC, &set, &[]));
        }
        if state
            .active
            .as_ref()
            .is_some_and(|active| !active.recalled.is_empty() && is_recalled(&active.recalled, view))
        {
            return TimerVerdict::Recalled;
        }
        match self.timer.due.target(view) {
            Target::Queue(topic, queue_id) => {
                let properties = self.fitting(view, &topic, &set, &[]);
                TimerVerdict::Deliver { topic, queue_id, properties }
            }
            Target::Undeliverable(reason) => TimerVerdict::GiveUp(reason),
            Target::Closed(topic, _) if self.timer.due.is_past_retention(&topic, view) => {
                TimerVerdict::GiveUp(PAST_RETENTION)
            }
            Target::Closed(..) => {
                let again =
                    timed_message::slot_time(state.config.precision_ms(), now + CLOSED_PAUSE_MS).to_string();
                let kept = [(timed_message::OUT_MS, again.as_str())];
                TimerVerdict::PutBack(self.fitting(view, TIMER_TOPIC, &set, &kept))
            }
        }
    }

    /// The message's properties with `trace` and `kept` added. Without `trace` if they do not fit, and finally without
    /// those that only the wait needed.
    fn fitting(
        &self,
        view: &MessageView<'_>,
        topic: &str,
        trace: &[(&str, &str)],
        kept: &[(&str, &str)],
    ) -> Vec<u8> {
        let whole = properties::replace(view.properties, &[], &[trace, kept].concat());
        let fits = |properties: &[u8]| {
            let checked = self.timer.due.log.check(&renewed(view, topic, 0, properties));
            !matches!(checked, Err(StoreError::TooLarge { .. }))
        };
        if fits(&whole) {
            return whole;
        }
        let plain = properties::replace(view.properties, &[], kept);
        if topic == TIMER_TOPIC || fits(&plain) {
            return plain;
        }
        properties::replace(
            view.properties,
            &[timed_message::OUT_MS, timed_message::REAL_TOPIC, timed_message::REAL_QUEUE],
            &[],
        )
    }

    fn count(&self, state: &mut TimerState<D>, found: &[(MessageView<'_>, TimerVerdict)], sizes: &[u32]) {
        let (timer, now) = (self.timer, self.timer.sources.clock.now_ms());
        let listener = self.timer.due.listener();
        let mut sizes = sizes.iter().copied();
        for (view, verdict) in found {
            if let TimerVerdict::Strayed = verdict {
                continue;
            }
            if let TimerVerdict::Recalled = verdict {
                timer.recalled.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if let Some((topic, _)) = delay_levels::destination(view.properties) {
                let is_delete = properties::get(view.properties, timed_message::DELETES).is_some();
                state.metrics.add(topic, if is_delete { 1 } else { -1 }, now);
            }
            if let TimerVerdict::GiveUp(TAKEN_OVER) = verdict {
                continue;
            }
            if let TimerVerdict::GiveUp(reason) = verdict {
                tracing::warn!(physical_offset = view.physical_offset, reason, "timed message given up");
                timer.undeliverable.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let counter = match (verdict, sizes.next().unwrap_or(0)) {
                (_, 0) => &timer.undeliverable,
                (TimerVerdict::Deliver { topic, .. }, size) => {
                    listener.iter().for_each(|listener| listener(topic, size));
                    &timer.delivered
                }
                (TimerVerdict::Roll(_), _) => &timer.rolled,
                _ => &timer.put_back,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The record to store for a message, if any.
fn made<'a>(view: &MessageView<'a>, verdict: &'a TimerVerdict) -> Option<NewMessage<'a>> {
    match verdict {
        TimerVerdict::Deliver { topic, queue_id, properties } => {
            Some(renewed(view, topic, *queue_id, properties))
        }
        TimerVerdict::Roll(properties) | TimerVerdict::PutBack(properties) => {
            Some(renewed(view, TIMER_TOPIC, 0, properties))
        }
        TimerVerdict::Recalled | TimerVerdict::Strayed | TimerVerdict::GiveUp(_) => None,
    }
}

/// Whether the message was recalled by its unique key, with or without its topic.
fn is_recalled(recalled: &std::collections::HashSet<String>, view: &MessageView<'_>) -> bool {
    let topic = delay_levels::destination(view.properties).map(|(topic, _)| topic);
    let key = properties::get(view.properties, "UNIQ_KEY");
    topic.zip(key).is_some_and(|(topic, key)| recalled.contains(&format!("{topic}+{key}")))
}
