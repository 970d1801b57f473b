//! Restores the timer wheel at open: from its files, from the timer log, or from its topic's queue.
//!
//! After a kill, slots, chains and checkpoint are unreliable. The units of the timer log and the queue they come from
//! are the truth.

use crate::{
    delayed::timer::{
        checkpoint_files::{TimerCheck, TimerMetrics},
        fill::linked,
        log::Unit,
        state::{TimerSources, TimerState},
        timed_message::{self},
        wheel::{Wheel, noted_precision},
    },
    error::Result,
    files::disk::Disk,
    record::{message::MessageView, names::TIMER_TOPIC},
    recovery::last_shutdown::Left,
};

impl<D: Disk> TimerState<D> {
    /// Runs [`Self::recover_files`]. If space is short, the delivery thread tries it again.
    pub(crate) fn recover(&mut self, sources: &TimerSources<D>) -> Result<()> {
        let was_unrecovered = self.is_unrecovered;
        match self.recover_files(sources) {
            Err(error) if error.is_of_full_disk() => {
                if !was_unrecovered {
                    tracing::warn!(%error, "no space for the timer wheel: timed messages wait until there is");
                }
                // The checkpoint on disk remains valid.
                (self.is_unrecovered, self.is_changed) = (true, false);
                Ok(())
            }
            done => {
                self.is_unrecovered = was_unrecovered && done.is_err();
                done
            }
        }
    }

    /// Reads the files. Cuts off units of messages that the commit log no longer holds, and rebuilds missing or damaged
    /// files from the queue.
    fn recover_files(&mut self, sources: &TimerSources<D>) -> Result<()> {
        let (disk, root) = (&sources.home.disk, &sources.home.root);
        let found = TimerCheck::load(disk, root)?;
        let queue = sources.reader.queues.find(TIMER_TOPIC, 0);
        self.is_unsettled = queue.as_ref().is_some_and(|queue| queue.marks.is_end_unknown());
        let (min, max) = queue.map_or((0, 0), |queue| (queue.min_offset(), queue.max_offset()));
        if found.is_none() && self.log.is_empty() && max == 0 {
            return Ok(());
        }
        self.check = found.unwrap_or_default();
        self.metrics = TimerMetrics::load(disk, root);
        self.wheel = Wheel::open(disk, root, self.config.precision_ms())?;
        let is_ahead = self.begin(sources);
        let is_closed = matches!(sources.left, Left::Closed { .. })
            && found.is_some()
            && self.wheel.is_some()
            && !is_ahead
            && noted_precision(disk, root)? == Some(self.config.precision_ms());
        if !(is_closed && self.log.trust(self.check.log_end)?) {
            self.is_changed = true;
            if !self.rebuild(sources)? {
                tracing::warn!("timer log is missing or damaged: rebuilt from the waiting messages");
                // An unknown end lies at least as far as the checkpoint.
                let end = if self.is_unsettled { max.max(self.check.queue_offset) } else { max };
                self.redo(sources, end)?;
            }
        }
        let known = self.next_offset;
        if self.is_unsettled {
            return Ok(());
        }
        self.next_offset = known.clamp(min, max.max(min));
        if self.next_offset != known {
            self.is_changed = true;
            self.counts.lost += self.next_offset.saturating_sub(known);
            tracing::warn!(known, min, max, "timer's queue offset lies outside of its queue: corrected");
        }
        Ok(())
    }

    /// Sets where delivery continues. Returns whether the files hold a time in the future, which means that the clock
    /// was or is wrong.
    fn begin(&mut self, sources: &TimerSources<D>) -> bool {
        let now = self.floor(sources.clock.now_ms());
        let told = self.floor(self.check.read_time);
        self.read_time = if told > 0 { told.min(now) } else { now - self.wheel_span() / 2 };
        self.next_offset = self.check.queue_offset;
        if told > now {
            tracing::warn!(
                ahead_ms = told - now,
                "timer checkpoint lies in the future because the clock was or is wrong: wheel rebuilt"
            );
        }
        told > now
    }

    fn wheel_span(&self) -> i64 {
        let made = i64::from(self.config.wheel_slots) * 2 * self.config.precision_ms();
        self.wheel.as_ref().map_or(made, Wheel::span_ms)
    }

    /// An empty wheel with as many slots as the one found, if that number is valid.
    fn new_wheel(&self, sources: &TimerSources<D>) -> Result<Wheel<D>> {
        let is_possible = |wheel: &&Wheel<D>| wheel.span_ms() <= timed_message::MAX_SPAN_MS.cast_signed();
        let half = self.wheel.as_ref().filter(is_possible).map_or(self.config.wheel_slots, Wheel::half);
        Wheel::make(&sources.home.disk, &sources.home.root, self.config.precision_ms(), half)
    }

    /// Rebuilds the wheel from the timer log, which it cuts at the first invalid unit. `false` if durable units are
    /// missing.
    fn rebuild(&mut self, sources: &TimerSources<D>) -> Result<bool> {
        let precision = self.config.precision_ms();
        let wheel = self.new_wheel(sources)?;
        let roll_ms = self.roll_slots(wheel.half()) * precision;
        let (log_end, read_time, check) = (sources.reader.log.written(), self.read_time, self.check);
        let (mut last, mut is_beyond, mut moved) = (None, false, Vec::new());
        self.log.recover(|at, unit| {
            if unit.physical_offset.saturating_add(unit.size.into()) > log_end {
                is_beyond = true;
                return Ok(false);
            }
            last = Some(unit);
            let is_done = at < check.log_end && unit.time < check.read_time;
            if is_done || unit.time.div_euclid(precision) * precision < read_time {
                return Ok(true);
            }
            let time = slot_of(&unit, precision, roll_ms).max(read_time);
            let before = wheel.get(time);
            let right = Unit { before: before.map(|slot| slot.last), time, ..unit };
            if right.before != unit.before || time != unit.time.div_euclid(precision) * precision {
                moved.push((at, right));
            }
            wheel.put(linked(before, time, at, &unit))?;
            Ok(true)
        })?;
        for (at, unit) in moved {
            self.log.rewrite(at, &unit)?;
        }
        self.wheel = Some(wheel);
        let is_whole = self.log.end() >= check.log_end && !(self.log.is_empty() && self.next_offset > 0);
        if is_beyond || is_whole {
            self.go_on_after(sources, last)?;
        }
        Ok(is_beyond || is_whole)
    }

    /// Finds the first message of the queue without a unit; `last` is the last unit.
    ///
    /// We add units in the order of the queue. A Java broker adds none for messages that are due at once. So behind its
    /// checkpoint, messages without a unit may precede messages with one; the latter are recorded, to be skipped.
    fn go_on_after(&mut self, sources: &TimerSources<D>, last: Option<Unit>) -> Result<()> {
        let Some(record) = last.and_then(|unit| sources.reader.log.checked_record(unit.physical_offset))
        else {
            return Ok(());
        };
        let Ok(view) = MessageView::decode(record.bytes(), false) else { return Ok(()) };
        if view.topic != TIMER_TOPIC {
            return Ok(());
        }
        let after = view.queue_offset + 1;
        if !matches!(sources.left, Left::KilledOther { .. }) {
            self.next_offset = self.next_offset.max(after);
            return Ok(());
        }
        self.next_offset = self.next_offset.min(after).max(sources.reader.queues.min_offset(TIMER_TOPIC, 0));
        let queue = sources.reader.queues.find(TIMER_TOPIC, 0);
        let first = queue.and_then(|queue| queue.entry(self.next_offset)).map(|entry| entry.physical_offset);
        if let Some(first) = first.filter(|_| self.next_offset < after) {
            self.present = self.log.physical_offsets_from(first)?;
            self.fill_to(sources, after);
        }
        Ok(())
    }

    /// Rebuilds timer log and wheel from the queue, without messages that the checkpoint counts as delivered. If the
    /// queue cannot be read now, the delivery thread continues.
    fn redo(&mut self, sources: &TimerSources<D>, end: u64) -> Result<()> {
        self.log.clear()?;
        self.metrics.clear();
        self.wheel = Some(self.new_wheel(sources)?);
        self.redone = Some((self.check, end));
        self.next_offset = sources.reader.queues.min_offset(TIMER_TOPIC, 0);
        self.fill_to(sources, end);
        Ok(())
    }

    fn fill_to(&mut self, sources: &TimerSources<D>, end: u64) {
        while self.next_offset < end {
            match self.fill(sources) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "not all timed messages are in the wheel, will be retried");
                    break;
                }
            }
        }
    }
}

/// The slot that a unit belongs to: its own, or an earlier one if it was late and entered a later slot.
fn slot_of(unit: &Unit, precision: i64, roll_ms: i64) -> i64 {
    let floor = |time: i64| time.div_euclid(precision) * precision;
    match unit.due {
        _ if unit.is_rolled() => floor(unit.time.min(unit.written_at.saturating_add(roll_ms))),
        due if due > 0 => floor(unit.time).min(timed_message::slot_time(precision, due)),
        _ => floor(unit.time),
    }
}
