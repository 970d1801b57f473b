//! The slot being delivered: its units and recalls, read from the timer log, and what is marked once it is delivered.

use std::{collections::HashSet, sync::Arc};

use crate::{
    delayed::timer::{
        fill::{due_of, keys_of, linked},
        log::Unit,
        slot_backlog::Selection,
        state::{Active, TimerSources, TimerState},
        timed_message,
        wheel::WheelSlot,
    },
    error::Result,
    files::{disk::Disk, mapped_file::MappedFile},
    record::{log_record::Record, message::MessageView},
};

impl<D: Disk> TimerState<D> {
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
            self.counts.lost += lost;
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
}

/// The record of a unit, if the log still holds it. Tries the file of the previous record first.
///
/// Errors: `Io` if it cannot be read now, which is recorded.
pub(super) fn record_of<D: Disk>(
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
