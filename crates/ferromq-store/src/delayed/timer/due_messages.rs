//! Stores the due messages of the active slot in their queues, or again in the timer's topic.

use std::collections::HashSet;

use crate::{
    delayed::{
        delay_levels,
        due_message::{PAST_RETENTION, TAKEN_OVER, Target, renewed},
        timer::{
            active_slot::record_of, delivery::TimerDelivery, log::Unit, state::TimerState, timed_message,
        },
    },
    error::{Result, StoreError},
    files::disk::Disk,
    record::{encode::NewMessage, log_record::Record, message::MessageView, names::TIMER_TOPIC, properties},
};

/// Most messages and bytes stored at once. Bounds how long a send waits.
const TURN_MESSAGES: usize = 64;
const TURN_BYTES: usize = 1 << 20;
/// Delay before a message whose topic has only closed queues is tried again.
const CLOSED_PAUSE_MS: i64 = 60_000;

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

impl<D: Disk> TimerDelivery<'_, D> {
    /// Delivers the due messages of the active slot, up to the limits of a turn. On an error none is stored: try again.
    pub(super) fn deliver(&mut self, state: &mut TimerState<D>) -> Result<()> {
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
            state.counts.lost += lost;
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
        let now = self.timer.sources.clock.now_ms();
        let listener = self.timer.due.listener();
        let mut sizes = sizes.iter().copied();
        for (view, verdict) in found {
            if let TimerVerdict::Strayed = verdict {
                continue;
            }
            if let TimerVerdict::Recalled = verdict {
                state.counts.recalled += 1;
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
                state.counts.undeliverable += 1;
                continue;
            }
            let counter = match (verdict, sizes.next().unwrap_or(0)) {
                (_, 0) => &mut state.counts.undeliverable,
                (TimerVerdict::Deliver { topic, .. }, size) => {
                    listener.iter().for_each(|listener| listener(topic, size));
                    &mut state.counts.delivered
                }
                (TimerVerdict::Roll(_), _) => &mut state.counts.rolled,
                _ => &mut state.counts.put_back,
            };
            *counter += 1;
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
fn is_recalled(recalled: &HashSet<String>, view: &MessageView<'_>) -> bool {
    let topic = delay_levels::destination(view.properties).map(|(topic, _)| topic);
    let key = properties::get(view.properties, "UNIQ_KEY");
    topic.zip(key).is_some_and(|(topic, key)| recalled.contains(&format!("{topic}+{key}")))
}
