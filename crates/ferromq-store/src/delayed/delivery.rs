//! The handle for delayed messages.

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

/// Delivers messages that wait at a delay level or for a delivery time: the handle
/// [`MessageStore::delayed`](crate::MessageStore::delayed).
pub struct DelayedDelivery<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) levels: Arc<LevelOffsets<D>>,
    pub(crate) schedule: Arc<Schedule<D>>,
    pub(crate) timer: Arc<Timer<D>>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<D: Disk> DelayedDelivery<D> {
    /// Starts the delivery of delayed messages. Only a master may do so; a slave receives them from its master.
    ///
    /// Idempotent. Each message is delivered at its time or later, at least once. After a kill, messages delivered
    /// since `config/delayOffset.json` and `config/timercheck` were last written are delivered again. Errors: `Corrupt`
    /// and `Io` of `config/delayOffset.json`, `Closed`.
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

    /// Stops the delivery and writes its progress. Idempotent; `close` does it too.
    pub fn stop_schedule(&self) -> Result<()> {
        if self.home.is_closed() {
            return Ok(());
        }
        self.end();
        let written = self.levels.persist().and(self.timer.persist());
        self.levels.end();
        written
    }

    /// Stops the delivery threads and waits for their end.
    pub(crate) fn end(&self) {
        let mut threads = self.threads.lock();
        self.schedule.wake.due.stop();
        self.timer.wake.wake.due.stop();
        threads.drain(..).for_each(|thread| join(Some(thread)));
    }

    /// Sets the listener that is called for each delivered message with its topic and the bytes of its record.
    pub fn on_delivery(&self, listener: impl Fn(&str, u32) + Send + Sync + 'static) {
        *self.schedule.due.listener.write() = Some(Arc::new(listener));
    }

    /// Next queue offset to deliver of each delay level; those of `config/delayOffset.json` while delivery is not
    /// running.
    ///
    /// Errors: `Corrupt` and `Io` of that file.
    pub fn delay_offsets(&self) -> Result<BTreeMap<u32, u64>> {
        self.levels.all()
    }

    /// Like [`Self::delay_offsets`], in the form of that file.
    pub fn delay_offset_json(&self) -> Result<String> {
        self.levels.json()
    }

    /// The timer wheel's checkpoint in the form that a RocketMQ slave reads (56 bytes).
    #[must_use]
    pub fn timer_check_point(&self) -> Vec<u8> {
        self.timer.state.lock().check().encode()
    }

    /// The number of waiting timed messages by topic, as RocketMQ's `timermetrics` (JSON).
    #[must_use]
    pub fn timer_metrics(&self) -> String {
        self.timer.state.lock().metrics.encode()
    }

    /// The number of undelivered messages in the wheel, and of messages in its topic's queue that are not in the wheel
    /// yet.
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
