//! Delivers messages that wait at a delay level once they are due.
//!
//! One thread walks the queues of [`SCHEDULE_TOPIC`], each in order of due time, and sleeps until the next message is
//! due or arrives. It writes its progress only after the delivered messages are durable: a kill may repeat some
//! deliveries and loses none.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    delayed::{
        delay_levels::{self, Delayed},
        due_message::{DueMessages, PAST_RETENTION, Target, renewed},
        level_progress::LevelOffsets,
    },
    error::Result,
    files::disk::Disk,
    queues::consume_queue::ConsumeQueue,
    read::{
        reader::Reader,
        types::{GetRequest, GetStatus},
    },
    record::{log_record::Record, message::MessageView, names::SCHEDULE_TOPIC},
    sync::wake::Wake,
};

/// Most messages of a level in one turn. Bounds how long the other levels wait.
const TURN_MESSAGES: usize = 64;
/// Most bytes of a level in one turn, unless the first message alone exceeds them.
const TURN_BYTES: usize = 1 << 20;
/// Pause after a failure of the log or of a queue, whose end is unknown.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
pub(crate) struct Schedule<D: Disk> {
    pub(crate) due: Arc<DueMessages<D>>,
    pub(crate) offsets: Arc<LevelOffsets<D>>,
    pub(crate) reader: Arc<Reader<D>>,
    /// Wakes and stops the delivery thread.
    pub(crate) wake: Arc<Wake>,
    pub(crate) counts: Mutex<ScheduleStats>,
}

/// What the delivery thread did since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScheduleStats {
    /// Messages stored in their destination queue.
    pub delivered: u64,
    /// Messages whose topic had only closed queues. They wait again, at the next level if there is one.
    pub put_back: u64,
    /// Messages given up, each with a line in the log: their topic was deleted, their record is lost or cannot be
    /// stored, or their topic's queues stayed closed until the message's retention ended.
    pub undeliverable: u64,
}

impl<D: Disk> Schedule<D> {
    pub(crate) fn stats(&self) -> ScheduleStats {
        *self.counts.lock()
    }

    pub(crate) fn run(&self) {
        Delivery { schedule: self, is_stuck: false, seen: BTreeMap::new() }.run();
    }
}

/// When a level needs its next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextLevelTurn {
    /// More messages may be due.
    Now,
    /// No message is due before this time.
    At(i64),
    /// No message waits.
    OnArrival,
    /// Something failed.
    AfterPause,
}

enum LevelVerdict {
    Deliver { topic: String, queue_id: i32 },
    PutBack(Delayed),
    GiveUp(&'static str),
}

/// The delivery thread.
struct Delivery<'a, D: Disk> {
    schedule: &'a Schedule<D>,
    /// A failure was logged, and no turn succeeded since.
    is_stuck: bool,
    seen: BTreeMap<u32, Seen>,
}

/// Messages whose due time lies further ahead than their level is long: another clock or level table gave it. They wait
/// for the level's length from now on, so that none comes early and none waits for the other clock.
#[derive(Default)]
struct Seen {
    end: u64,
    due_at: i64,
}

impl Seen {
    /// When the message at `queue_offset` is due, among those below `end`; `latest` for a message first seen now.
    fn due_at(&mut self, queue_offset: u64, end: u64, latest: i64) -> i64 {
        if queue_offset >= self.end || self.due_at > latest {
            *self = Self { end, due_at: latest };
        }
        self.due_at
    }
}

impl<D: Disk> Delivery<'_, D> {
    fn run(mut self) {
        let (schedule, clock) = (self.schedule, &self.schedule.due.clock);
        while !schedule.wake.due.is_stopped() {
            schedule.wake.begin_turn();
            let levels = schedule.offsets.levels();
            let (mut is_busy, mut pause) = (false, None::<Duration>);
            for level in levels {
                let wait = match self.turn(level) {
                    NextLevelTurn::Now => {
                        is_busy = true;
                        continue;
                    }
                    NextLevelTurn::OnArrival => continue,
                    NextLevelTurn::AfterPause => RETRY_PAUSE,
                    NextLevelTurn::At(_) if clock.is_manual() => continue,
                    NextLevelTurn::At(due_at) => {
                        let left = due_at.saturating_sub(clock.now_ms());
                        Duration::from_millis(u64::try_from(left).unwrap_or(0))
                    }
                };
                pause = Some(pause.map_or(wait, |pause| pause.min(wait)));
            }
            if !is_busy {
                schedule.wake.due.wait(|| schedule.wake.is_asked(), pause);
            }
        }
    }

    /// Delivers the due messages of a level, up to the limits of a turn.
    fn turn(&mut self, level: u32) -> NextLevelTurn {
        let schedule = self.schedule;
        let Some(queue) = schedule.reader.queues.find(SCHEDULE_TOPIC, level - 1) else {
            return NextLevelTurn::OnArrival;
        };
        schedule.offsets.settle_level(level, &queue);
        let Some(from) = schedule.offsets.offset(level) else { return NextLevelTurn::OnArrival };
        let (due_count, next) = self.look(&queue, level, from);
        if due_count == 0 {
            return next;
        }
        let found = schedule.reader.read_internal(&GetRequest::all(
            SCHEDULE_TOPIC,
            level - 1,
            from,
            due_count,
            TURN_BYTES,
        ));
        if found.status == GetStatus::QueueClosed || found.next_offset == from {
            return NextLevelTurn::AfterPause;
        }
        // A read skips lost records, and so may return messages that are not due.
        let due_end = from + due_count as u64;
        let early = found.messages.iter().map(|(offset, _)| *offset).find(|offset| *offset >= due_end);
        let next_offset = early.unwrap_or(found.next_offset);
        let due = found.messages.into_iter().take_while(|(offset, _)| *offset < due_end);
        let records: Vec<Record<D::Region>> = due.map(|(_, record)| record).collect();
        let lost = next_offset.saturating_sub(from).saturating_sub(records.len() as u64);
        if let Err(error) = self.deliver(level, &records) {
            if !std::mem::replace(&mut self.is_stuck, true) {
                tracing::warn!(%error, level, "due messages not delivered, will be retried");
            }
            return NextLevelTurn::AfterPause;
        }
        self.is_stuck = false;
        if lost > 0 {
            tracing::error!(level, from, lost, "records of waiting messages are lost");
            schedule.counts.lock().undeliverable += lost;
        }
        schedule.offsets.set_offset(level, next_offset);
        NextLevelTurn::Now
    }

    /// How many messages from `from` on are due, up to the limits of a turn, and when to look again if none is.
    fn look(&mut self, queue: &ConsumeQueue<D>, level: u32, from: u64) -> (usize, NextLevelTurn) {
        let from_kept = from.max(queue.min_offset());
        if from_kept > from {
            // Read them to confirm that they are gone.
            return (TURN_MESSAGES, NextLevelTurn::Now);
        }
        let now = self.schedule.due.clock.now_ms();
        let latest =
            now.saturating_add(self.schedule.due.config.delay_levels.duration_ms(level).unwrap_or(0));
        let (mut count, mut next) = (0, NextLevelTurn::OnArrival);
        let walked = queue.walk_to(from, u64::MAX, |at, entry| {
            let mut due_at = entry.filter(|entry| !entry.leads_nowhere()).map_or(now, |entry| entry.tag_hash);
            if due_at > latest {
                let seen = self.seen.entry(level).or_default();
                due_at = seen.due_at(at, queue.max_offset(), latest);
            }
            if due_at > now {
                next = NextLevelTurn::At(due_at);
                return false;
            }
            count += 1;
            count < TURN_MESSAGES
        });
        match walked {
            // Deliver the readable ones first.
            _ if count > 0 => (count, next),
            Ok(()) => (0, next),
            Err(error) => {
                self.schedule.reader.unreadable.note_entry(queue, from, &error);
                (0, NextLevelTurn::AfterPause)
            }
        }
    }

    /// Stores due messages. When it returns, all that can be stored are. On an error none is: try again.
    fn deliver(&self, level: u32, records: &[Record<D::Region>]) -> Result<()> {
        let views: Vec<MessageView<'_>> =
            records.iter().filter_map(|record| MessageView::decode(record.bytes(), false).ok()).collect();
        let verdicts: Vec<LevelVerdict> = views.iter().map(|view| self.verdict(level, view)).collect();
        let mut messages = Vec::with_capacity(views.len());
        for (view, verdict) in views.iter().zip(&verdicts) {
            match verdict {
                // The property DELAY stays for consumers. Only a send evaluates it, so the message does not wait again.
                LevelVerdict::Deliver { topic, queue_id } => {
                    messages.push(renewed(view, topic, *queue_id, view.properties));
                }
                LevelVerdict::PutBack(Delayed { queue_id, properties, .. }) => {
                    messages.push(renewed(view, SCHEDULE_TOPIC, *queue_id, properties));
                }
                LevelVerdict::GiveUp(_) => {}
            }
        }
        let sizes = self.schedule.due.append(&messages)?;
        self.count(&views, &verdicts, &sizes, records.len() - views.len());
        Ok(())
    }

    fn verdict(&self, level: u32, view: &MessageView<'_>) -> LevelVerdict {
        let highest = self.schedule.due.config.delay_levels.count();
        match self.schedule.due.target(view) {
            Target::Queue(topic, queue_id) => LevelVerdict::Deliver { topic, queue_id },
            Target::Undeliverable(reason) => LevelVerdict::GiveUp(reason),
            // A message that cannot wait at a higher level would be stored again forever.
            Target::Closed(topic, _)
                if level >= highest && self.schedule.due.is_past_retention(&topic, view) =>
            {
                LevelVerdict::GiveUp(PAST_RETENTION)
            }
            Target::Closed(topic, queue_id) => {
                let higher = (level + 1).min(highest);
                LevelVerdict::PutBack(delay_levels::at_level(higher, &topic, queue_id, view.properties))
            }
        }
    }

    fn count(&self, views: &[MessageView<'_>], verdicts: &[LevelVerdict], sizes: &[u32], unreadable: usize) {
        let listener = self.schedule.due.listener();
        let mut counts = self.schedule.stats();
        counts.undeliverable += unreadable as u64;
        let mut sizes = sizes.iter().copied();
        for (view, verdict) in views.iter().zip(verdicts) {
            if let LevelVerdict::GiveUp(reason) = verdict {
                counts.undeliverable += 1;
                tracing::warn!(physical_offset = view.physical_offset, reason, "waiting message given up");
                continue;
            }
            match (verdict, sizes.next().unwrap_or(0)) {
                (_, 0) => counts.undeliverable += 1,
                (LevelVerdict::Deliver { topic, .. }, size) => {
                    counts.delivered += 1;
                    listener.iter().for_each(|listener| listener(topic, size));
                }
                _ => counts.put_back += 1,
            }
        }
        *self.schedule.counts.lock() = counts;
    }
}
