//! The timer wheel of a store: recovered, filled from the queue of its topic, emptied slot by slot, and written to
//! disk.
//!
//! It is derived from that queue. The timer log must never cover more than the commit log holds, so both are cut
//! together at open. Memory holds messages only of the slot being delivered.

use std::{collections::HashSet, path::Path, sync::Arc};

use crate::{
    config::StoreConfig,
    delayed::{
        delay_levels,
        timer::{
            checkpoint_files::{TimerCheck, TimerMetrics},
            log::{TimerLog, Unit},
            slot_backlog::{Selection, Waiting},
            timed_message::{self, TimerConfig},
            wheel::{Looked, Wheel, WheelSlot},
        },
    },
    error::{Result, StoreError},
    files::{
        directories::DirectoryNames, disk::Disk, mapped_file::MappedFile, open_files::OpenFiles,
        store_directory::StoreDirectory,
    },
    queues::consume_queue::ConsumeQueue,
    read::{reader::Reader, types::GetStatus},
    record::{
        log_record::Record,
        message::MessageView,
        names::{TIMER_TOPIC, java_hash},
        properties,
    },
    recovery::last_shutdown::Left,
    time::clock::Clock,
};

/// Most messages put into the wheel in one turn, and their bytes. Bounds how long a due message waits.
const TURN_MESSAGES: usize = 256;
const TURN_BYTES: usize = 4 << 20;
/// A unit stores its delay in 32 bits.
const MAX_DELAY_MS: i64 = i32::MAX as i64;

/// The slot being delivered.
pub(crate) struct Active {
    pub(crate) time: i64,
    /// Messages not delivered yet.
    pub(crate) waiting: Waiting,
    /// Keys of recalled messages: topic and unique key.
    pub(crate) recalled: HashSet<String>,
    /// Whether a message was delivered whose unit is still in the chain.
    pub(crate) is_begun: bool,
}

/// Counters of timed messages since the store was opened, and the wheel's progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimerStats {
    /// Messages stored in their destination queue.
    pub delivered: u64,
    /// Messages stored again on their way, because their time lies beyond the wheel.
    pub rolled: u64,
    /// Recalled messages.
    pub recalled: u64,
    /// Messages whose topic had only closed queues; each waits another minute.
    pub put_back: u64,
    /// Messages given up, each with a line in the log: their topic was deleted, or they cannot be stored.
    pub undeliverable: u64,
    /// Messages that waited beyond their retention, or whose record is damaged.
    pub lost: u64,
    /// All messages of spans before it are delivered, milliseconds since 1970; 0 if no message ever waited.
    pub read_time: i64,
    /// The next message of the queue to put into the wheel.
    pub queue_offset: u64,
}

/// The parts of the store that the wheel is built from.
pub(crate) struct TimerSources<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) reader: Arc<Reader<D>>,
    pub(crate) clock: Clock,
    /// How the store was last closed.
    pub(crate) left: Left,
}

pub(crate) struct TimerState<D: Disk> {
    pub(crate) config: TimerConfig,
    pub(crate) log: TimerLog<D>,
    /// Created with the first message.
    pub(crate) wheel: Option<Wheel<D>>,
    pub(crate) check: TimerCheck,
    /// The checkpoint and the end of the queue when the wheel was rebuilt from the queue.
    pub(crate) redone: Option<(TimerCheck, u64)>,
    /// Physical offsets of messages that already have units but come later in the queue.
    pub(crate) present: HashSet<u64>,
    /// How many slots ahead retention is sure to keep a message.
    kept_slots: i64,
    pub(crate) metrics: TimerMetrics,
    /// All messages of spans before it are delivered.
    pub(crate) read_time: i64,
    /// The next message of the queue to put into the wheel.
    pub(crate) next_offset: u64,
    /// The next used slot: `None` if unknown, `Some(None)` if no slot is used.
    next_slot: Option<Option<i64>>,
    /// While the next slot is unknown: no slot from `read_time` up to here is used.
    looked_to: i64,
    pub(crate) active: Option<Active>,
    /// Messages whose record or unit is gone.
    pub(crate) lost: u64,
    /// Messages of the wheel's topic that are not timed messages.
    pub(crate) strange: u64,
    pub(crate) is_changed: bool,
    /// Whether the end of the queue was unknown when the next message was determined.
    pub(crate) is_unsettled: bool,
    /// Whether recovery lacked space. Waiting messages are delivered once it succeeds.
    pub(crate) is_unrecovered: bool,
}

impl<D: Disk> TimerState<D> {
    pub(crate) fn load(
        disk: &D,
        root: &Path,
        names: &Arc<DirectoryNames<D>>,
        open_files: &Arc<OpenFiles<D::Region>>,
        config: &StoreConfig,
    ) -> Result<Self> {
        Ok(Self {
            config: config.timer.clone(),
            log: TimerLog::load(disk, root, names, open_files, config.timer.log_file_size)?,
            wheel: None,
            check: TimerCheck::default(),
            redone: None,
            present: HashSet::new(),
            kept_slots: kept_slots(config),
            metrics: TimerMetrics::default(),
            read_time: 0,
            next_offset: 0,
            next_slot: None,
            looked_to: 0,
            active: None,
            lost: 0,
            strange: 0,
            is_changed: false,
            is_unsettled: false,
            is_unrecovered: false,
        })
    }

    pub(crate) fn floor(&self, time: i64) -> i64 {
        let precision = self.config.precision_ms();
        time.div_euclid(precision) * precision
    }

    /// Whether delivery is so far behind that new messages could share slots with undelivered ones.
    pub(crate) fn is_behind(&self, now_ms: i64) -> bool {
        let Some(wheel) = &self.wheel else { return false };
        let furthest = now_ms + self.roll_slots(wheel.half()) * self.config.precision_ms();
        self.read_time + wheel.span_ms() <= furthest
    }

    /// The furthest slot from now that may be filled.
    pub(crate) fn roll_slots(&self, half: u32) -> i64 {
        self.config.roll_slots(half).min(self.kept_slots)
    }

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
            self.lost += from - self.next_offset;
            self.next_offset = from;
        }
        if from >= queue.max_offset() {
            return Ok(false);
        }
        let found = sources.reader.read_all(TIMER_TOPIC, 0, from, TURN_MESSAGES, TURN_BYTES);
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
            self.lost += missing;
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

    fn put(&mut self, sources: &TimerSources<D>, offset: u64, view: &MessageView<'_>) -> Result<()> {
        let precision = self.config.precision_ms();
        let due = timed_message::due_at(precision, view.properties, view.store_timestamp);
        let (Some(due), Some((topic, _))) = (due, delay_levels::destination(view.properties)) else {
            self.strange += 1;
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

    /// When the next used slot begins; `Some(None)` if none is used. `None` if it needs another call: one call searches
    /// a bounded number of slots.
    pub(crate) fn next_slot(&mut self) -> Option<Option<i64>> {
        if self.next_slot.is_none() {
            let Some(wheel) = &self.wheel else { return Some(None) };
            let end = self.read_time + wheel.span_ms();
            match wheel.look(self.looked_to.max(self.read_time), end) {
                Looked::Found(slot) => self.next_slot = Some(Some(slot.time)),
                Looked::Nothing => self.next_slot = Some(None),
                Looked::Until(time) => self.looked_to = time,
            }
        }
        self.next_slot
    }

    /// Whether the next slot to deliver is known.
    pub(crate) fn is_next_known(&self) -> bool {
        self.active.is_some() || self.next_slot.is_some()
    }

    /// Restarts the search for the next used slot at the first undelivered one.
    fn look_again(&mut self) {
        (self.next_slot, self.looked_to) = (None, self.read_time);
    }

    /// Moves a message whose unit was in another slot to its own time, unless it is there or still to come from the
    /// queue.
    pub(crate) fn put_right(&mut self, sources: &TimerSources<D>, view: &MessageView<'_>) -> Result<()> {
        let precision = self.config.precision_ms();
        let due = timed_message::due_at(precision, view.properties, view.store_timestamp);
        let (Some(due), Some(wheel)) = (due, &self.wheel) else { return Ok(()) };
        let mut is_there = view.queue_offset >= self.next_offset;
        let slot = wheel.get(timed_message::slot_time(precision, due));
        self.chain(slot, |_, unit| is_there |= unit.physical_offset == view.physical_offset)?;
        if is_there { Ok(()) } else { self.put(sources, view.queue_offset, view) }
    }

    /// Begins to deliver the slot at `time`. Reads all its units, so that its recalls are known. Errors: `Io` if a unit
    /// or a recall cannot be read now; then nothing has begun.
    pub(crate) fn activate(&mut self, sources: &TimerSources<D>, time: i64) -> Result<()> {
        let precision = self.config.precision_ms();
        let mut selection = Selection::new(None, self.config.in_memory);
        let mut recalled = HashSet::new();
        let slot = self.wheel.as_ref().and_then(|wheel| wheel.get(time));
        let (mut found, mut file, mut unread) = (0i64, None, None);
        let end = self.chain(slot, |at, unit| {
            if unread.is_some() {
                return;
            }
            if unit.is_delete() && !unit.is_rolled() {
                match record_of(sources, &mut file, unit) {
                    Ok(Some(record)) => {
                        let view = MessageView::decode(record.bytes(), false).ok();
                        recalled.extend(view.iter().filter_map(keys_of).flatten());
                    }
                    Ok(None) => {}
                    Err(error) => unread = Some(error),
                }
                found -= 1;
            } else {
                selection.offer((due_of(unit, precision), at));
                found += if unit.is_delete() { -1 } else { 1 };
            }
        })?;
        if let Some(error) = unread {
            return Err(error);
        }
        self.read_time = time;
        if let (Some(place), Some(slot)) = (end, slot) {
            let lost = i64::from(slot.count).saturating_sub(found).max(1).cast_unsigned();
            tracing::error!(place, time, lost, "chain of the timer log is broken: timed messages are lost");
            self.lost += lost;
        }
        self.active = Some(Active { time, waiting: selection.finish(), recalled, is_begun: false });
        self.is_changed = true;
        Ok(())
    }

    /// Finds the next messages of the active slot once those in memory are delivered. `false` if none are left. Errors:
    /// as [`Self::activate`].
    pub(crate) fn refill(&mut self) -> Result<bool> {
        let Some((time, mut rest)) = self.active.as_ref().and_then(|a| Some((a.time, a.waiting.rest()?)))
        else {
            return Ok(false);
        };
        let precision = self.config.precision_ms();
        let slot = self.wheel.as_ref().and_then(|wheel| wheel.get(time));
        // A break of the chain was logged when the slot was activated.
        self.chain(slot, |at, unit| {
            if !unit.is_delete() || unit.is_rolled() {
                rest.offer((due_of(unit, precision), at));
            }
        })?;
        if let Some(active) = &mut self.active {
            active.waiting = rest.finish();
        }
        Ok(true)
    }

    /// Visits the units of a slot, newest first. Returns the place where the chain breaks.
    fn chain(&self, slot: Option<WheelSlot>, mut visit: impl FnMut(u64, &Unit)) -> Result<Option<u64>> {
        let Some(slot) = slot else { return Ok(None) };
        let mut next = Some(slot.last);
        while let Some(at) = next {
            let unit = self.log.read(at)?.filter(|unit| self.floor(unit.time) == slot.time);
            let Some(unit) = unit.filter(|unit| unit.before.is_none_or(|before| before < at)) else {
                return Ok(Some(at));
            };
            visit(at, &unit);
            next = unit.before;
        }
        Ok(None)
    }

    /// Marks the active slot as delivered.
    pub(crate) fn finish(&mut self) {
        if let Some(active) = self.active.take() {
            self.read_time = active.time + self.config.precision_ms();
            self.look_again();
            self.is_changed = true;
        }
    }

    /// Marks the delivered messages of the active slot, so that a clean stop repeats none: their units move to a past
    /// span. Call it once the delivered messages are durable.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.look_again();
        let Some(active) = self.active.take() else { return Ok(()) };
        if !active.is_begun {
            return Ok(());
        }
        let precision = self.config.precision_ms();
        let (is_any, is_pending) = active.waiting.pending();
        let slot = self.wheel.as_ref().and_then(|wheel| wheel.get(active.time));
        let mut units = Vec::new();
        self.chain(slot, |at, unit| units.push((at, *unit)))?;
        let is_kept = |at: u64, unit: &Unit| match unit.is_delete() && !unit.is_rolled() {
            true => is_any,
            false => is_pending((due_of(unit, precision), at)),
        };
        let past = active.time - precision;
        for (at, unit) in units.iter().filter(|(at, unit)| !is_kept(*at, unit)) {
            self.log.rewrite(*at, &Unit { time: past, ..*unit })?;
        }
        let mut last: Option<WheelSlot> = None;
        for (at, unit) in units.iter().rev().filter(|(at, unit)| is_kept(*at, unit)) {
            self.log.rewrite(*at, &Unit { before: last.map(|slot| slot.last), ..*unit })?;
            last = Some(linked(last, active.time, *at, unit));
        }
        self.is_changed = true;
        match (last, &self.wheel) {
            (Some(slot), Some(wheel)) => wheel.put(slot),
            (None, Some(wheel)) => wheel.blank(active.time),
            _ => Ok(()),
        }
    }

    /// Moves the progress over empty spans, up to the present.
    pub(crate) fn pass_empty(&mut self, now_ms: i64) {
        if self.active.is_none() && self.read_time > 0 {
            // If the next slot is unknown, up to where the search got.
            let next = self.next_slot().map_or(self.looked_to, |next| next.unwrap_or(i64::MAX));
            let passed = self.floor(now_ms).min(next);
            self.is_changed |= passed > self.read_time;
            self.read_time = self.read_time.max(passed);
        }
    }

    pub(crate) fn check(&self) -> TimerCheck {
        TimerCheck {
            read_time: self.read_time,
            log_end: self.check.log_end,
            queue_offset: self.next_offset,
            master_queue_offset: self.next_offset,
            ..self.check
        }
    }
}

/// How many slots ahead a message may wait: two thirds of its retention, which leaves time for a turn of the wheel and
/// a stop of the broker. RocketMQ's 48 hours of a turn are two thirds of its 72.
fn kept_slots(config: &StoreConfig) -> i64 {
    let retention = &config.retention;
    let Some(age) = retention.age_by_topic.get(TIMER_TOPIC).copied().or(retention.age) else {
        return i64::MAX;
    };
    let spans = age.as_millis() * 2 / 3 / config.timer.precision.as_millis().max(1);
    i64::try_from(spans).unwrap_or(i64::MAX).max(2)
}

/// The record of a unit, if the log still holds it. Tries the file of the previous record first.
///
/// Errors: `Io` if it cannot be read now, which is recorded.
pub(crate) fn record_of<D: Disk>(
    sources: &TimerSources<D>,
    file: &mut Option<Arc<MappedFile<D::Region>>>,
    unit: &Unit,
) -> Result<Option<Record<D::Region>>> {
    let (begin, end) = (unit.physical_offset, unit.physical_offset.saturating_add(unit.size.into()));
    match sources.reader.log.record_in(file, begin, unit.size) {
        Ok(record) => {
            sources.reader.unreadable.clear_record(begin);
            Ok(record)
        }
        Err(error) => {
            sources.reader.unreadable.note_record(begin..end, &error);
            Err(error)
        }
    }
}

pub(crate) fn linked(before: Option<WheelSlot>, time: i64, at: u64, unit: &Unit) -> WheelSlot {
    let change = if unit.is_delete() { -1 } else { 1 };
    match before {
        Some(slot) => WheelSlot { last: at, count: slot.count.saturating_add(change), ..slot },
        None => WheelSlot { time, first: at, last: at, count: change },
    }
}

/// When a unit's message is delivered or stored again. A unit of RocketMQ is due when its span ends.
pub(crate) fn due_of(unit: &Unit, precision: i64) -> i64 {
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
fn keys_of(view: &MessageView<'_>) -> Option<[String; 2]> {
    let (topic, _) = delay_levels::destination(view.properties)?;
    let key = properties::get(view.properties, timed_message::DELETES)?;
    Some([format!("{topic}+{key}"), key.to_owned()])
}
