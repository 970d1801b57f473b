//! The timer wheel of a store, and how far its messages are delivered.
//!
//! `recovery` restores it, `fill` fills it from the queue of its topic, `active_slot` empties it slot by slot, and
//! `persist` writes it. It is derived from that queue. The timer log must never cover more than the commit log holds, so
//! both are cut together at open. Memory holds messages only of the slot being delivered.

use std::{collections::HashSet, path::Path, sync::Arc};

use crate::{
    config::StoreConfig,
    delayed::timer::{
        checkpoint_files::{TimerCheck, TimerMetrics},
        log::TimerLog,
        slot_backlog::Waiting,
        timed_message::TimerConfig,
        wheel::{Looked, Wheel},
    },
    error::Result,
    files::{
        directories::DirectoryNames, disk::Disk, open_files::OpenFiles, store_directory::StoreDirectory,
    },
    read::reader::Reader,
    record::names::TIMER_TOPIC,
    recovery::last_shutdown::Left,
    time::clock::Clock,
};

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
    pub(super) next_slot: Option<Option<i64>>,
    /// While the next slot is unknown: no slot from `read_time` up to here is used.
    pub(super) looked_to: i64,
    pub(crate) active: Option<Active>,
    /// Without `read_time` and `queue_offset`.
    pub(crate) counts: TimerStats,
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
            counts: TimerStats::default(),
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
    pub(super) fn look_again(&mut self) {
        (self.next_slot, self.looked_to) = (None, self.read_time);
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
