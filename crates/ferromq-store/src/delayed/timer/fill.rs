//! Puts messages from the queue of the timer's topic into the wheel and the timer log.

use crate::{
    delayed::{
        delay_levels,
        timer::{
            log::Unit,
            state::{TimerSources, TimerState},
            timed_message,
            wheel::{Wheel, WheelSlot},
        },
    },
    error::{Result, StoreError},
    files::disk::Disk,
    queues::consume_queue::ConsumeQueue,
    read::types::{GetRequest, GetStatus},
    record::{
        message::MessageView,
        names::{TIMER_TOPIC, java_hash},
        properties,
    },
};

/// Most messages put into the wheel in one turn, and their bytes. Bounds how long a due message waits.
const TURN_MESSAGES: usize = 256;
const TURN_BYTES: usize = 4 << 20;
/// A unit stores its delay in 32 bits.
const MAX_DELAY_MS: i64 = i32::MAX as i64;

impl<D: Disk> TimerState<D> {
    /// Puts messages of the queue into the wheel, up to the limits of a turn. `false` if no message waits to be put there.
    pub(crate) fn fill(&mut self, sources: &TimerSources<D>) -> Result<bool> {
        let Some(queue) = sources.reader.queues.find(TIMER_TOPIC, 0) else { return Ok(false) };
        self.settle_end(&queue);
        let from = self.next_offset.max(queue.min_offset());
        if from > self.next_offset {
            tracing::error!(
                lost = from - self.next_offset,
                "messages were removed before they entered the wheel"
            );
            self.counts.lost += from - self.next_offset;
            self.next_offset = from;
        }
        if from >= queue.max_offset() {
            return Ok(false);
        }
        let found =
            sources.reader.read_internal(&GetRequest::all(TIMER_TOPIC, 0, from, TURN_MESSAGES, TURN_BYTES));
        if found.status == GetStatus::QueueClosed || found.next_offset == from {
            let (what, reason) = ("timer queue", "it is closed, or cannot be read now");
            return Err(StoreError::Invalid { what, reason });
        }
        self.make_wheel(sources)?;
        let mut next = from;
        for (offset, record) in &found.messages {
            next = next.max(*offset);
            let Ok(view) = MessageView::decode(record.bytes(), false) else { continue };
            // After a failure, the earlier messages are in the wheel and must not enter it again.
            self.next_offset = *offset;
            if !self.present.remove(&view.physical_offset) {
                self.put(sources, *offset, &view)?;
            }
        }
        let missing = (found.next_offset - from).saturating_sub(found.messages.len() as u64);
        if missing > 0 {
            tracing::error!(from, missing, "records of timed messages are lost");
            self.counts.lost += missing;
        }
        self.next_offset = found.next_offset;
        self.redone = self.redone.filter(|(_, end)| self.next_offset < *end);
        self.is_changed = true;
        Ok(true)
    }

    /// Once the end of the queue becomes known: messages beyond it must not count as delivered.
    fn settle_end(&mut self, queue: &ConsumeQueue<D>) {
        if !self.is_unsettled || queue.marks.is_end_unknown() {
            return;
        }
        self.is_unsettled = false;
        let (known, end) = (self.next_offset, queue.found_end());
        if known > end {
            (self.next_offset, self.is_changed) = (end, true);
            tracing::warn!(known, end, "timer's queue offset lies outside of its queue: corrected");
        }
    }

    fn make_wheel(&mut self, sources: &TimerSources<D>) -> Result<()> {
        if self.wheel.is_none() {
            let (precision, half) = (self.config.precision_ms(), self.config.wheel_slots);
            self.wheel = Some(Wheel::make(&sources.home.disk, &sources.home.root, precision, half)?);
        }
        if self.read_time == 0 {
            self.read_time = self.floor(sources.clock.now_ms());
        }
        Ok(())
    }

    pub(super) fn put(
        &mut self,
        sources: &TimerSources<D>,
        offset: u64,
        view: &MessageView<'_>,
    ) -> Result<()> {
        let precision = self.config.precision_ms();
        let due = timed_message::due_at(precision, view.properties, view.store_timestamp);
        let (Some(due), Some((topic, _))) = (due, delay_levels::destination(view.properties)) else {
            self.counts.undeliverable += 1;
            tracing::error!(
                physical_offset = view.physical_offset,
                "message of the timer topic has no delivery time or topic: given up"
            );
            return Ok(());
        };
        let Some(wheel) = &self.wheel else { return Ok(()) };
        let done = self.redone.map(|(check, _)| check);
        let written_at =
            self.floor(if done.is_some() { view.store_timestamp } else { sources.clock.now_ms() });
        let out = timed_message::slot_time(precision, due);
        let stop = rolled_time(self.roll_slots(wheel.half()), precision, written_at, out);
        if done.is_some_and(|done| offset < done.queue_offset && stop.unwrap_or(out) < done.read_time) {
            return Ok(());
        }
        // A late message goes with those that are due now.
        let time = stop.unwrap_or(out).max(self.read_time);
        let deletes = properties::get(view.properties, timed_message::DELETES);
        let unit = Unit {
            before: None,
            magic: Unit::magic(stop.is_some(), deletes.is_some()),
            // The unit stores the delay relative to this time.
            written_at: written_at.clamp(time - MAX_DELAY_MS, time + MAX_DELAY_MS),
            time,
            physical_offset: view.physical_offset,
            size: view.total_size,
            topic_hash: java_hash(0, topic),
            due: if stop.is_some() { 0 } else { due },
        };
        let at = self.enter(unit)?;
        self.metrics.add(topic, if unit.is_delete() { -1 } else { 1 }, sources.clock.now_ms());
        if let Some(active) = self.active.as_mut().filter(|active| active.time == time) {
            match deletes.filter(|_| !unit.is_rolled()) {
                Some(_) => active.recalled.extend(keys_of(view).into_iter().flatten()),
                None => active.waiting.push((due_of(&unit, precision), at)),
            }
        }
        Ok(())
    }

    /// Appends a unit to the timer log and to the chain of its slot. Returns its place.
    fn enter(&mut self, unit: Unit) -> Result<u64> {
        let Some(wheel) = &self.wheel else {
            let (what, reason) = ("timer wheel", "it does not exist yet");
            return Err(StoreError::Invalid { what, reason });
        };
        let (time, at) = (unit.time, self.log.next_place()?);
        let before = wheel.get(time);
        let unit = Unit { before: before.map(|slot| slot.last), ..unit };
        self.log.append(&unit)?;
        if let Err(error) = wheel.put(linked(before, time, at, &unit)) {
            self.log.take_back(at);
            return Err(error);
        }
        match &mut self.next_slot {
            Some(next) => *next = Some(next.map_or(time, |next| next.min(time))),
            None => self.looked_to = self.looked_to.min(time),
        }
        Ok(at)
    }
}

/// The slot after a unit at `at` was added to it.
pub(super) fn linked(before: Option<WheelSlot>, time: i64, at: u64, unit: &Unit) -> WheelSlot {
    let change = if unit.is_delete() { -1 } else { 1 };
    match before {
        Some(slot) => WheelSlot { last: at, count: slot.count.saturating_add(change), ..slot },
        None => WheelSlot { time, first: at, last: at, count: change },
    }
}

/// When a unit's message is delivered or stored again. A unit of RocketMQ is due when its span ends.
pub(super) fn due_of(unit: &Unit, precision: i64) -> i64 {
    let end = unit.time.saturating_add(precision);
    match unit.due {
        _ if unit.is_rolled() => unit.time,
        due if due > 0 && due <= end => due,
        _ => end,
    }
}

/// Where a message beyond the wheel stops on its way, as in RocketMQ: near its time, with enough left for another turn.
fn rolled_time(slots: i64, precision: i64, now: i64, out: i64) -> Option<i64> {
    let ahead = out - now;
    if ahead < slots * precision {
        return None;
    }
    let is_near = ahead - slots * precision < slots / 3 * precision;
    Some(now + if is_near { slots / 2 * precision } else { slots * precision })
}

/// Keys by which a message recalls another: topic and unique key joined by `+`. RocketMQ 5.5.0 writes the unique key
/// alone, later versions both.
pub(super) fn keys_of(view: &MessageView<'_>) -> Option<[String; 2]> {
    let (topic, _) = delay_levels::destination(view.properties)?;
    let key = properties::get(view.properties, timed_message::DELETES)?;
    Some([format!("{topic}+{key}"), key.to_owned()])
}
