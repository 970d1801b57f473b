//! The handle for messages that consumers see later.

use std::{collections::BTreeMap, sync::Arc, thread::JoinHandle};

use parking_lot::Mutex;

use crate::{
    delayed::{
        level_progress::LevelOffsets,
        schedule::Schedule,
        timer::delivery::{Timer, TimerDelivery},
    },
    error::Result,
    files::{disk::Disk, store_directory::StoreDirectory},
    record::names::TIMER_TOPIC,
    sync::thread::{join, spawn},
};

/// Delivers messages that wait for a delay level or a time: the handle
/// [`MessageStore::delayed`](crate::MessageStore::delayed).
pub struct DelayedDelivery<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) levels: Arc<LevelOffsets<D>>,
    pub(crate) schedule: Arc<Schedule<D>>,
    pub(crate) timer: Arc<Timer<D>>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<D: Disk> DelayedDelivery<D> {
    /// Begins to deliver messages that wait at a delay level or for a time of their own; only a master may, a slave gets them from its master.
    ///
    /// Idempotent. Each message comes at its time or after it, at least once; after a kill what was delivered since
    /// `config/delayOffset.json` and `config/timercheck` were last written comes again. Errors: `Corrupt` and `Io` of that file, `Closed`.
    pub fn start_schedule(&self) -> Result<()> {
        self.home.check_open()?;
        let mut threads = self.threads.lock();
        if !threads.is_empty() {
            return Ok(());
        }
        self.levels.begin()?;
        self.schedule.wake.due.begin();
        let schedule = Arc::clone(&self.schedule);
        threads.push(spawn("ferromq-schedule", &self.home.root, move || schedule.run())?);
        self.timer.wake.wake.due.begin();
        let timer = Arc::clone(&self.timer);
        threads.push(spawn("ferromq-timer", &self.home.root, move || TimerDelivery::new(&timer).run())?);
        Ok(())
    }

    /// Ends what [`Self::start_schedule`] began, and writes how far it got. Idempotent; `close` does it too.
    pub fn stop_schedule(&self) -> Result<()> {
        if self.home.is_closed() {
            return Ok(());
        }
        self.end();
        let written = self.levels.persist().and(self.timer.persist());
        self.levels.end();
        written
    }

    /// Stops the delivering threads and waits for their end.
    pub(crate) fn end(&self) {
        let mut threads = self.threads.lock();
        self.schedule.wake.due.stop();
        self.timer.wake.wake.due.stop();
        threads.drain(..).for_each(|thread| join(Some(thread)));
    }

    /// Sets the listener the delivering thread tells of each message it delivered: its topic, and the bytes of its record.
    pub fn on_delivery(&self, listener: impl Fn(&str, u32) + Send + Sync + 'static) {
        *self.schedule.due.listener.write() = Some(Arc::new(listener));
    }

    /// Next queue offset to deliver of each delay level, of `config/delayOffset.json` where this store delivers nothing.
    ///
    /// Errors: `Corrupt` and `Io` of that file.
    pub fn delay_offsets(&self) -> Result<BTreeMap<u32, u64>> {
        self.levels.all()
    }

    /// As [`Self::delay_offsets`], in the form of that file.
    pub fn delay_offset_json(&self) -> Result<String> {
        self.levels.json()
    }

    /// How far the wheel of timed messages is, in the form a RocketMQ slave reads it (56 bytes).
    #[must_use]
    pub fn timer_check_point(&self) -> Vec<u8> {
        self.timer.state.lock().check().encode()
    }

    /// How many timed messages wait by topic, as RocketMQ's `timermetrics` (JSON).
    #[must_use]
    pub fn timer_metrics(&self) -> String {
        self.timer.state.lock().metrics.encode()
    }

    /// Messages of which memory knows: those of the slot that is being delivered.
    #[must_use]
    pub fn timed_in_memory(&self) -> usize {
        self.timer.state.lock().active.as_ref().map_or(0, |active| active.waiting.len())
    }

    /// Messages in the wheel that are not done, and how many of its topic's queue are not in it yet.
    #[must_use]
    pub fn timed_waiting(&self) -> (i64, u64) {
        let state = self.timer.state.lock();
        let in_wheel = state.wheel.as_ref().map_or(0, |wheel| wheel.count(state.read_time));
        (
            in_wheel,
            self.timer.sources.reader.queues.max_offset(TIMER_TOPIC, 0).saturating_sub(state.next_offset),
        )
    }
}
