//! Delivers messages that wait at a delay level once they are due, and remembers how far it got.
//!
//! One thread walks the queues of [`SCHEDULE_TOPIC`], each of which is in order of due time. It sleeps until the next
//! message is due or one comes. How far it got is written only after what it delivered is durable, so a kill may deliver
//! some messages again, and loses none. What a waiting message looks like is `delay_levels`'s business.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Mutex, RwLock};

use crate::{
    delayed::{
        delay_levels::{self, Delayed},
        due_message::{OUTLIVED, Target, renewed},
        level_offsets::DelayFile,
        timer::delivery::TimerDelivery,
    },
    error::Result,
    files::disk::Disk,
    queues::consume_queue::ConsumeQueue,
    read::types::GetStatus,
    record::{log_record::Record, message::MessageView, names::SCHEDULE_TOPIC},
    store::message_store::{Inner, MessageStore, join, spawn},
    sync::signal::Signal,
};

/// Most messages of a level in one turn: bounds how long another level waits for its turn.
const TURN_MESSAGES: usize = 64;
/// Most bytes of a level in one turn, unless its first message alone has more.
const TURN_BYTES: usize = 1 << 20;
/// Pause where the log takes nothing or a queue cannot be read, and nobody can tell when that ends.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// What is shared between the delivering thread and whoever asks for it.
#[derive(Default)]
pub(crate) struct Schedule {
    /// Wakes the delivering thread.
    pub(crate) due: Signal,
    /// Something came, or time was moved, since the thread last looked.
    asked: AtomicBool,
    /// Next queue offset to deliver by level, while the thread runs.
    offsets: Mutex<Option<BTreeMap<u32, u64>>>,
    /// Levels whose queue had no known end when the offsets were corrected.
    unsettled: Mutex<BTreeSet<u32>>,
    /// The offsets have moved since they were written.
    is_file_due: AtomicBool,
    /// The file names offsets past the end of their queues, and there was no space to correct it: what came to wait would
    /// be taken for delivered after a kill.
    is_file_wrong: AtomicBool,
    /// What is on disk; held by whoever writes.
    file: Mutex<DelayFile>,
    delivered: AtomicU64,
    put_back: AtomicU64,
    undeliverable: AtomicU64,
    pub(crate) listener: RwLock<Option<DeliveryListener>>,
}

/// Told the topic and the size of each record delivered.
pub(crate) type DeliveryListener = Arc<dyn Fn(&str, u32) + Send + Sync>;

/// What the delivering thread did since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScheduleStats {
    /// Messages stored in the queue they were meant for.
    pub delivered: u64,
    /// Messages whose topic had only closed queues: they wait once more, a level higher where there is one.
    pub put_back: u64,
    /// Messages given up, each with a line in the log: their topic was deleted, their record is lost or not to be stored,
    /// or their topic's queues stayed closed for as long as messages are kept.
    pub undeliverable: u64,
}

impl Schedule {
    /// Messages came that wait, or the clock was moved. Costs a load where the thread is awake or does not run.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.due.ring();
    }

    /// Says whether the offsets on disk are to be corrected before a message comes to wait.
    pub(crate) fn is_file_wrong(&self) -> bool {
        self.is_file_wrong.load(Ordering::Acquire)
    }

    pub(crate) fn stats(&self) -> ScheduleStats {
        ScheduleStats {
            delivered: self.delivered.load(Ordering::Relaxed),
            put_back: self.put_back.load(Ordering::Relaxed),
            undeliverable: self.undeliverable.load(Ordering::Relaxed),
        }
    }
}

impl<D: Disk> MessageStore<D> {
    /// Begins to deliver messages that wait at a delay level or for a time of their own; only a master may, a slave gets them from its master.
    ///
    /// Idempotent. Each message comes at its time or after it, at least once; after a kill what was delivered since
    /// `config/delayOffset.json` and `config/timercheck` were last written comes again. Errors: `Corrupt` and `Io` of that file, `Closed`.
    pub fn start_schedule(&self) -> Result<()> {
        self.check_open()?;
        let mut threads = self.schedule_threads();
        if !threads.is_empty() {
            return Ok(());
        }
        let inner = self.inner();
        let schedule = &inner.schedule;
        let file = DelayFile::load(&inner.disk, &inner.root)?;
        let offsets = inner.corrected(&file.offsets);
        schedule.is_file_due.store(offsets != file.offsets, Ordering::Release);
        let is_corrected = file.offsets.iter().any(|(level, known)| offsets.get(level) != Some(known));
        *schedule.file.lock() = file;
        *schedule.offsets.lock() = Some(offsets);
        // Before anything new waits.
        schedule.is_file_wrong.store(is_corrected, Ordering::Release);
        match inner.correct_schedule() {
            Err(error) if error.is_of_full_disk() => {
                tracing::warn!(%error, "no space to correct delay offsets: no message comes to wait before there is");
            }
            Err(error) => {
                *schedule.offsets.lock() = None;
                return Err(error);
            }
            Ok(()) => {}
        }
        schedule.due.begin();
        threads.push(spawn(self.shared(), "ferromq-schedule", |inner| {
            Delivery { inner, is_stuck: false, seen: BTreeMap::new() }.run()
        })?);
        inner.timer.due.begin();
        threads.push(spawn(self.shared(), "ferromq-timer", |inner| TimerDelivery::new(inner).run())?);
        Ok(())
    }

    /// Ends what [`Self::start_schedule`] began, and writes how far it got. Idempotent; `close` does it too.
    pub fn stop_schedule(&self) -> Result<()> {
        let inner = self.inner();
        if self.check_open().is_err() {
            return Ok(());
        }
        self.end_schedule(&mut self.schedule_threads());
        let written = inner.persist_schedule().and(inner.persist_timers());
        // What is wrong on disk is still to be corrected before a message comes to wait.
        if !inner.schedule.is_file_wrong() {
            *inner.schedule.offsets.lock() = None;
        }
        written
    }

    /// Stops the delivering threads and waits for their end.
    pub(crate) fn end_schedule(&self, threads: &mut Vec<JoinHandle<()>>) {
        let inner = self.inner();
        inner.schedule.due.stop();
        inner.timer.due.stop();
        threads.drain(..).for_each(|thread| join(Some(thread)));
    }

    /// Sets the listener the delivering thread tells of each message it delivered: its topic, and the bytes of its record.
    pub fn on_delivery(&self, listener: impl Fn(&str, u32) + Send + Sync + 'static) {
        *self.inner().schedule.listener.write() = Some(Arc::new(listener));
    }

    /// Next queue offset to deliver of each delay level, of `config/delayOffset.json` where this store delivers nothing.
    ///
    /// Errors: `Corrupt` and `Io` of that file.
    pub fn delay_offsets(&self) -> Result<BTreeMap<u32, u64>> {
        let inner = self.inner();
        if let Some(offsets) = inner.schedule.offsets.lock().clone() {
            return Ok(offsets);
        }
        Ok(DelayFile::load(&inner.disk, &inner.root)?.offsets)
    }

    /// As [`Self::delay_offsets`], in the form of that file.
    pub fn delay_offset_json(&self) -> Result<String> {
        let inner = self.inner();
        let Some(offsets) = inner.schedule.offsets.lock().clone() else {
            return Ok(DelayFile::load(&inner.disk, &inner.root)?.encode());
        };
        let mut file = inner.schedule.file.lock().clone();
        file.offsets = offsets;
        Ok(file.encode())
    }
}

impl<D: Disk> Inner<D> {
    /// Writes how far each level is delivered, where that has changed; what it tells of is durable before.
    pub(crate) fn persist_schedule(&self) -> Result<()> {
        let _held = self.hold()?;
        let schedule = &self.schedule;
        let mut file = schedule.file.lock();
        if !schedule.is_file_due.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let Some(offsets) = schedule.offsets.lock().clone() else { return Ok(()) };
        let mut newer = file.clone();
        newer.advance(offsets, self.clock.now_ms());
        let written = self.log.flush().and_then(|_| newer.save(&self.disk, &self.root));
        match written {
            Ok(()) => {
                *file = newer;
                schedule.is_file_wrong.store(false, Ordering::Release);
            }
            Err(_) => schedule.is_file_due.store(true, Ordering::Release),
        }
        written
    }

    /// Writes the offsets where those on disk lie past the end of their queues. To be asked before a message comes to wait;
    /// costs a load where they are right. `Full` where there is no space.
    pub(crate) fn correct_schedule(&self) -> Result<()> {
        if !self.schedule.is_file_wrong() {
            return Ok(());
        }
        self.persist_schedule().map_err(|error| self.log.full_or(error, 0))
    }

    /// The offsets of all levels, configured or with messages that wait, none outside of its queue: where the log was cut
    /// what was delivered of the lost end is not counted against what comes in its place.
    fn corrected(&self, offsets: &BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
        let names = self.queues.names();
        let waiting = names.iter().filter(|(topic, _)| topic == SCHEDULE_TOPIC).flat_map(|(_, ids)| ids);
        let levels: BTreeSet<u32> =
            (1..=self.config.delay_levels.count()).chain(waiting.map(|queue_id| queue_id + 1)).collect();
        let correct = |level: u32| {
            let known = offsets.get(&level).copied();
            let queue = self.queues.find(SCHEDULE_TOPIC, level - 1);
            if let Some(queue) = queue.as_ref().filter(|queue| queue.marks.is_end_unknown()) {
                self.schedule.unsettled.lock().insert(level);
                return (level, known.unwrap_or_else(|| queue.min_offset()));
            }
            let (min, max) = queue.map_or((0, 0), |queue| (queue.min_offset(), queue.max_offset()));
            let offset = known.unwrap_or(min).clamp(min, max.max(min));
            if known.is_some_and(|known| known != offset) {
                tracing::warn!(level, known, offset, "delay offset lies outside of its queue: corrected");
            }
            (level, offset)
        };
        levels.into_iter().map(correct).collect()
    }

    /// Corrects the offset of a level whose queue had no known end before, once it has.
    fn settle_level(&self, level: u32, queue: &ConsumeQueue<D>) {
        let mut unsettled = self.schedule.unsettled.lock();
        if !unsettled.contains(&level) || queue.marks.is_end_unknown() {
            return;
        }
        unsettled.remove(&level);
        let (end, mut offsets) = (queue.found_end(), self.schedule.offsets.lock());
        let known = offsets.as_mut().and_then(|offsets| offsets.get_mut(&level));
        if let Some(known) = known.filter(|known| **known > end) {
            tracing::warn!(level, known, offset = end, "delay offset lies outside of its queue: corrected");
            *known = end;
            self.schedule.is_file_due.store(true, Ordering::Release);
        }
    }
}

/// When a level has to be looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// There may be more that is due.
    Now,
    /// Nothing is due before.
    At(i64),
    /// Nothing waits.
    OnArrival,
    /// Something failed.
    AfterPause,
}

/// What becomes of a message that is due.
enum Verdict {
    Deliver { topic: String, queue_id: i32 },
    PutBack(Delayed),
    GiveUp(&'static str),
}

/// The delivering thread.
struct Delivery<'a, D: Disk> {
    inner: &'a Inner<D>,
    /// A failure was told of, and nothing went well since.
    is_stuck: bool,
    /// By level.
    seen: BTreeMap<u32, Seen>,
}

/// Messages whose due time is further away than their level is long: another clock or another table gave it. They wait
/// as long as the level takes from when they are seen on, and so none comes early, and none waits for that clock.
#[derive(Default)]
struct Seen {
    end: u64,
    due_at: i64,
}

impl Seen {
    /// When the message at `queue_offset` is due, of those below `end`; `latest` for one seen now.
    fn due_at(&mut self, queue_offset: u64, end: u64, latest: i64) -> i64 {
        if queue_offset >= self.end || self.due_at > latest {
            *self = Self { end, due_at: latest };
        }
        self.due_at
    }
}

impl<D: Disk> Delivery<'_, D> {
    fn run(mut self) {
        let schedule = &self.inner.schedule;
        while !schedule.due.is_stopped() {
            schedule.asked.store(false, Ordering::Release);
            let levels: Vec<u32> =
                schedule.offsets.lock().iter().flat_map(|offsets| offsets.keys().copied()).collect();
            let (mut is_busy, mut pause) = (false, None::<Duration>);
            for level in levels {
                let wait = match self.turn(level) {
                    Next::Now => {
                        is_busy = true;
                        continue;
                    }
                    Next::OnArrival => continue,
                    Next::AfterPause => RETRY_PAUSE,
                    Next::At(_) if self.inner.clock.is_manual() => continue,
                    Next::At(due_at) => {
                        let left = due_at.saturating_sub(self.inner.clock.now_ms());
                        Duration::from_millis(u64::try_from(left).unwrap_or(0))
                    }
                };
                pause = Some(pause.map_or(wait, |pause| pause.min(wait)));
            }
            if !is_busy {
                schedule.due.wait(|| schedule.asked.load(Ordering::Acquire), pause);
            }
        }
    }

    /// Delivers what is due of a level, as much as a turn holds.
    fn turn(&mut self, level: u32) -> Next {
        let inner = self.inner;
        let Some(queue) = inner.queues.find(SCHEDULE_TOPIC, level - 1) else { return Next::OnArrival };
        inner.settle_level(level, &queue);
        let Some(from) = self.offset(level) else { return Next::OnArrival };
        let (due_count, next) = self.look(&queue, level, from);
        if due_count == 0 {
            return next;
        }
        let found = inner.read_all(SCHEDULE_TOPIC, level - 1, from, due_count, TURN_BYTES);
        if found.status == GetStatus::QueueClosed || found.next_offset == from {
            return Next::AfterPause;
        }
        // A read passes over what is lost, and so may get to messages that are not due.
        let due_end = from + due_count as u64;
        let early = found.messages.iter().map(|(offset, _)| *offset).find(|offset| *offset >= due_end);
        let next_offset = early.unwrap_or(found.next_offset);
        let due = found.messages.into_iter().take_while(|(offset, _)| *offset < due_end);
        let records: Vec<Record<D::Region>> = due.map(|(_, record)| record).collect();
        let lost = next_offset.saturating_sub(from).saturating_sub(records.len() as u64);
        if let Err(error) = self.deliver(level, &records) {
            if !std::mem::replace(&mut self.is_stuck, true) {
                tracing::warn!(%error, level, "due messages not delivered, trying again");
            }
            return Next::AfterPause;
        }
        self.is_stuck = false;
        if lost > 0 {
            tracing::error!(level, from, lost, "records of waiting messages are lost");
            inner.schedule.undeliverable.fetch_add(lost, Ordering::Relaxed);
        }
        if let Some(offsets) = inner.schedule.offsets.lock().as_mut() {
            offsets.insert(level, next_offset);
        }
        inner.schedule.is_file_due.store(true, Ordering::Release);
        Next::Now
    }

    fn offset(&self, level: u32) -> Option<u64> {
        self.inner.schedule.offsets.lock().as_ref()?.get(&level).copied()
    }

    /// How many messages from `from` on are due, as many as a turn holds, and when to look again where none is.
    fn look(&mut self, queue: &ConsumeQueue<D>, level: u32, from: u64) -> (usize, Next) {
        let from_kept = from.max(queue.min_offset());
        if from_kept > from {
            // Read to find out that they are gone.
            return (TURN_MESSAGES, Next::Now);
        }
        let now = self.inner.clock.now_ms();
        let latest = now.saturating_add(self.inner.config.delay_levels.duration_ms(level).unwrap_or(0));
        let (mut count, mut next) = (0, Next::OnArrival);
        let walked = queue.walk_to(from, u64::MAX, |at, entry| {
            let mut due_at = entry.filter(|entry| !entry.leads_nowhere()).map_or(now, |entry| entry.tag_hash);
            if due_at > latest {
                let seen = self.seen.entry(level).or_default();
                due_at = seen.due_at(at, queue.max_offset(), latest);
            }
            if due_at > now {
                next = Next::At(due_at);
                return false;
            }
            count += 1;
            count < TURN_MESSAGES
        });
        match walked {
            // What can be read of them comes first.
            _ if count > 0 => (count, next),
            Ok(()) => (0, next),
            Err(error) => {
                self.inner.note_unreadable_entry(queue, from, &error);
                (0, Next::AfterPause)
            }
        }
    }

    /// Stores messages that are due. All that can be are stored when this returns; an error: none is, try again.
    fn deliver(&self, level: u32, records: &[Record<D::Region>]) -> Result<()> {
        let views: Vec<MessageView<'_>> =
            records.iter().filter_map(|record| MessageView::decode(record.bytes(), false).ok()).collect();
        let verdicts: Vec<Verdict> = views.iter().map(|view| self.verdict(level, view)).collect();
        let mut messages = Vec::with_capacity(views.len());
        for (view, verdict) in views.iter().zip(&verdicts) {
            match verdict {
                // The level stays for consumers. Only a send looks at it, so the message does not wait again.
                Verdict::Deliver { topic, queue_id } => {
                    messages.push(renewed(view, topic, *queue_id, view.properties));
                }
                Verdict::PutBack(Delayed { queue_id, properties, .. }) => {
                    messages.push(renewed(view, SCHEDULE_TOPIC, *queue_id, properties));
                }
                Verdict::GiveUp(_) => {}
            }
        }
        let sizes = self.inner.append_due(&messages)?;
        self.count(&views, &verdicts, &sizes, records.len() - views.len());
        Ok(())
    }

    fn verdict(&self, level: u32, view: &MessageView<'_>) -> Verdict {
        let highest = self.inner.config.delay_levels.count();
        match self.inner.target(view) {
            Target::Queue(topic, queue_id) => Verdict::Deliver { topic, queue_id },
            Target::Nowhere(reason) => Verdict::GiveUp(reason),
            // Where it cannot wait at a higher level it would be stored again and again for ever.
            Target::Closed(topic, _) if level >= highest && self.inner.is_outlived(&topic, view) => {
                Verdict::GiveUp(OUTLIVED)
            }
            Target::Closed(topic, queue_id) => {
                let higher = (level + 1).min(highest);
                Verdict::PutBack(delay_levels::at_level(higher, &topic, queue_id, view.properties))
            }
        }
    }

    fn count(&self, views: &[MessageView<'_>], verdicts: &[Verdict], sizes: &[u32], unreadable: usize) {
        let schedule = &self.inner.schedule;
        let (mut delivered, mut put_back, mut given_up) = (0, 0, unreadable as u64);
        let listener = schedule.listener.read().clone();
        let mut sizes = sizes.iter().copied();
        for (view, verdict) in views.iter().zip(verdicts) {
            if let Verdict::GiveUp(reason) = verdict {
                given_up += 1;
                tracing::warn!(physical_offset = view.physical_offset, reason, "waiting message given up");
                continue;
            }
            match (verdict, sizes.next().unwrap_or(0)) {
                (_, 0) => given_up += 1,
                (Verdict::Deliver { topic, .. }, size) => {
                    delivered += 1;
                    listener.iter().for_each(|listener| listener(topic, size));
                }
                _ => put_back += 1,
            }
        }
        schedule.delivered.fetch_add(delivered, Ordering::Relaxed);
        schedule.put_back.fetch_add(put_back, Ordering::Relaxed);
        schedule.undeliverable.fetch_add(given_up, Ordering::Relaxed);
    }
}
