//! Writes down how far the wheel of timed messages is, while it goes on: the disk is waited for without the lock that
//! delivery needs.

use std::{ops::Range, sync::Arc};

use crate::{
    delayed::timer::{
        checkpoint_files::{TimerCheck, TimerMetrics},
        delivery::Timer,
        state::{TimerSources, TimerState},
    },
    error::Result,
    files::{disk::Disk, mapped_file::MappedFile, mapped_file_queue::MappedFileQueue},
};

/// What is to be written, as it was at one moment.
pub(crate) struct Snapshot<D: Disk> {
    check: TimerCheck,
    metrics: TimerMetrics,
    log: Arc<MappedFileQueue<D>>,
    units: Range<u64>,
    wheel: Option<Arc<MappedFile<D::Region>>>,
}

impl<D: Disk> Timer<D> {
    /// Writes down how far the wheel is, where that has changed; what it tells of is durable before.
    pub(crate) fn persist(&self) -> Result<()> {
        let _held = self.sources.home.hold()?;
        let _one_at_a_time = self.persisting.lock();
        let Some(snapshot) = self.state.lock().snapshot(self.sources.clock.now_ms()) else { return Ok(()) };
        let written = snapshot.write(&self.sources);
        let mut state = self.state.lock();
        match written {
            Ok(()) => {
                state.check = snapshot.check;
                state.log.clean(self.sources.reader.log.start())
            }
            Err(error) => {
                state.is_changed = true;
                state.log.not_flushed(snapshot.units.start);
                Err(error)
            }
        }
    }
}

impl<D: Disk> Snapshot<D> {
    /// What was delivered first, then what that makes true.
    fn write(&self, sources: &TimerSources<D>) -> Result<()> {
        sources.reader.log.flush()?;
        self.log.flush(self.units.clone())?;
        if let Some(wheel) = &self.wheel {
            wheel.flush(wheel.base()..wheel.end())?;
        }
        self.check.save(&sources.home.disk, &sources.home.root)?;
        self.metrics.save(&sources.home.disk, &sources.home.root)
    }
}

impl<D: Disk> TimerState<D> {
    /// What is to be written; `None` where nothing has changed. Later changes are those of the next time.
    fn snapshot(&mut self, now_ms: i64) -> Option<Snapshot<D>> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        let check = TimerCheck {
            log_end: self.log.end(),
            counter: self.check.counter + 1,
            changed_at: now_ms,
            ..self.check()
        };
        let (log, units) = self.log.begin_flush();
        let wheel = self.wheel.as_ref().map(|wheel| wheel.file());
        Some(Snapshot { check, metrics: self.metrics.clone(), log, units, wheel })
    }
}
