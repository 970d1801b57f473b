//! Builds the components of a store from its recovered files.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::{
    delayed::{
        delivery::DelayedDelivery,
        due_message::DueMessages,
        level_progress::LevelOffsets,
        schedule::Schedule,
        timer::{
            delivery::Timer,
            state::{TimerSources, TimerState},
        },
    },
    derive::{dispatch_stall::DispatchStall, dispatching::Dispatching},
    error::Result,
    files::disk::Disk,
    log::appender::Log,
    progress::{group_progress::Progress, java_pops, progress_files::ProgressWriter},
    retention::{
        archive::Archive,
        cleaner::{Cleaner, CleanerParts},
        disk_space::DiskSpace,
    },
    store::{queue_admin::QueueAdmin, storage::Storage},
    sync::{signal::Signal, wake::Wake},
};

impl<D: Disk> Storage<D> {
    pub(super) fn stall(&self) -> Arc<DispatchStall<D>> {
        let (log, clock) = (Arc::clone(&self.files.log), self.clock.clone());
        Arc::new(DispatchStall::new(log, clock, Arc::clone(&self.dispatched)))
    }

    pub(super) fn levels(&self) -> Arc<LevelOffsets<D>> {
        let (log, queues) = (Arc::clone(&self.files.log), Arc::clone(&self.files.queues));
        let count = self.config.delay_levels.count();
        Arc::new(LevelOffsets::new(Arc::clone(&self.home), log, queues, self.clock.clone(), count))
    }

    pub(super) fn appender(
        &self,
        stall: &Arc<DispatchStall<D>>,
        levels: &Arc<LevelOffsets<D>>,
        cleaning: &Arc<Wake>,
    ) -> Arc<Log<D>> {
        Arc::new(Log {
            home: Arc::clone(&self.home),
            clock: self.clock.clone(),
            config: Arc::clone(&self.config),
            log: Arc::clone(&self.files.log),
            queues: Arc::clone(&self.files.queues),
            dedup: Arc::clone(&self.dedup),
            stall: Arc::clone(stall),
            levels: Arc::clone(levels),
            cleaning: Arc::clone(cleaning),
            counters: Arc::clone(&self.reader.counters),
        })
    }

    pub(super) fn timer_sources(&self) -> TimerSources<D> {
        let (home, reader) = (Arc::clone(&self.home), Arc::clone(&self.reader));
        TimerSources { home, reader, clock: self.clock.clone(), left: self.left }
    }

    /// Loads consumers' progress. Also returns whether leases of another broker were taken over and must be saved.
    pub(super) fn load_progress(&self) -> Result<(Arc<Progress>, bool)> {
        let progress = Progress::load(
            &self.home.disk,
            &self.home.root,
            |topic, queue_id| self.files.queues.offset_limit(topic, queue_id),
            |anchor| self.left.trusts(anchor, self.files.log.files()),
            self.clock.now_ms(),
        )?;
        let is_taken_over =
            !self.left.is_ours() && java_pops::take_over(&self.reader, &self.config, &self.clock, &progress)?;
        Ok((Arc::new(progress), is_taken_over))
    }

    pub(super) fn progress_writer(&self, progress: &Arc<Progress>) -> Arc<ProgressWriter<D>> {
        Arc::new(ProgressWriter {
            home: Arc::clone(&self.home),
            log: Arc::clone(&self.files.log),
            dispatched: Arc::clone(&self.dispatched),
            progress: Arc::clone(progress),
            due: Signal::default(),
        })
    }

    pub(super) fn delayed(
        &self,
        log: &Arc<Log<D>>,
        levels: Arc<LevelOffsets<D>>,
        sources: TimerSources<D>,
        timer: TimerState<D>,
    ) -> Arc<DelayedDelivery<D>> {
        let due = Arc::new(DueMessages {
            log: Arc::clone(log),
            queues: Arc::clone(&self.files.queues),
            clock: self.clock.clone(),
            config: Arc::clone(&self.config),
            listener: RwLock::default(),
        });
        let schedule = Arc::new(Schedule {
            due: Arc::clone(&due),
            offsets: Arc::clone(&levels),
            reader: Arc::clone(&self.reader),
            wake: Arc::clone(&self.arrivals.levels),
            counts: Mutex::default(),
        });
        let (dispatched, wake) = (Arc::clone(&self.dispatched), Arc::clone(&self.arrivals.timer));
        let timer = Arc::new(Timer::new(sources, due, dispatched, wake, timer));
        let (home, threads) = (Arc::clone(&self.home), Mutex::default());
        Arc::new(DelayedDelivery { home, levels, schedule, timer, threads })
    }

    pub(super) fn space(&self, cleaning: &Arc<Wake>) -> Arc<DiskSpace<D>> {
        let (home, log) = (Arc::clone(&self.home), Arc::clone(&self.files.log));
        Arc::new(DiskSpace::new(home, log, &self.config, Arc::clone(cleaning)))
    }

    pub(super) fn cleaner(
        &self,
        space: &Arc<DiskSpace<D>>,
        cleaning: &Arc<Wake>,
        archive: Archive,
    ) -> Arc<Cleaner<D>> {
        let parts = CleanerParts {
            home: Arc::clone(&self.home),
            files: Arc::clone(&self.files),
            checkpoint: Arc::clone(&self.checkpoint),
            checkpointer: Arc::clone(&self.checkpointer),
            sequences: Arc::clone(&self.sequences),
            dispatched: Arc::clone(&self.dispatched),
            unreadable: Arc::clone(&self.reader.unreadable),
            space: Arc::clone(space),
            wake: Arc::clone(cleaning),
        };
        Arc::new(Cleaner::new(parts, archive))
    }

    pub(super) fn dispatching(
        &self,
        stall: &Arc<DispatchStall<D>>,
        progress: &Arc<Progress>,
    ) -> Arc<Dispatching<D>> {
        Arc::new(Dispatching {
            home: Arc::clone(&self.home),
            config: Arc::clone(&self.config),
            files: Arc::clone(&self.files),
            checkpoint: Arc::clone(&self.checkpoint),
            dispatched: Arc::clone(&self.dispatched),
            arrivals: Arc::clone(&self.arrivals),
            stall: Arc::clone(stall),
            progress: Arc::clone(progress),
            rounds: Arc::default(),
        })
    }

    pub(super) fn queue_admin(
        &self,
        dispatching: &Dispatching<D>,
        progress_writer: &Arc<ProgressWriter<D>>,
        cleaner: &Arc<Cleaner<D>>,
    ) -> QueueAdmin<D> {
        QueueAdmin {
            home: Arc::clone(&self.home),
            log: Arc::clone(&self.files.log),
            queues: Arc::clone(&self.files.queues),
            dedup: Arc::clone(&self.dedup),
            dispatched: Arc::clone(&self.dispatched),
            arrivals: Arc::clone(&self.arrivals),
            progress: Arc::clone(&dispatching.progress),
            progress_writer: Arc::clone(progress_writer),
            checkpointer: Arc::clone(&self.checkpointer),
            cleaner: Arc::clone(cleaner),
            rounds: Arc::clone(&dispatching.rounds),
            changing: Mutex::default(),
        }
    }
}
