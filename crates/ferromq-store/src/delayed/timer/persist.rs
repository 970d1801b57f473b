//! Writes the progress of the timer wheel while delivery runs. It waits for the disk without the lock that delivery
//! needs.

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

/// The state to write, as of one moment.
pub(crate) struct Snapshot<D: Disk> {
    check: TimerCheck,
    metrics: TimerMetrics,
    log: Arc<MappedFileQueue<D>>,
    units: Range<u64>,
    wheel: Option<Arc<MappedFile<D::Region>>>,
}

impl<D: Disk> Timer<D> {
    /// Writes the wheel's progress if it changed, after making everything that it covers durable.
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
    /// Writes delivered messages first, then the progress that counts them as delivered.
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
    /// The state to write; `None` if nothing changed. Later changes belong to the next write.
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
