//! Opens and recovers the files of a store. The order of the steps is a crash promise.

use std::{path::Path, sync::Arc};

use crate::{
    config::StoreConfig,
    dedup::{sequences_file::SequencesFile, writers::Dedup},
    delayed::{delay_levels::DelayLevels, timer::state::TimerState},
    derive::{
        arrival::Arrivals, derived_files::DerivedFiles, dispatch::Dispatcher, dispatched::Dispatched,
        set_aside::SetAside,
    },
    error::{IoResult, Result, StoreError},
    files::{
        directories::{DirectoryNames, FileDirectories, sync_parent},
        disk::{Allocation, Disk},
        mapped_file_queue::{FileFormat, MappedFileQueue},
        open_files::{FileKind, OpenFileLimits, OpenFiles},
        store_directory::StoreDirectory,
    },
    index::key_index::Index,
    log::{commit_log::CommitLog, damage::Damage, flush_mark::FlushMark},
    queues::queue_table::ConsumeQueues,
    read::{counters::Counters, reader::Reader, unreadable_files::Unreadable},
    recovery::{
        checkpoint::Checkpoint,
        checkpointer::Checkpointer,
        last_shutdown::{Left, mark_open, read_left, remove_abort},
        plan::Opening,
        progress_log::RecoveryProgress,
        recover,
        recovery_report::RecoveryReport,
    },
    retention::archive::Archive,
    store::backup,
    time::clock::Clock,
};

/// The open files of a store.
pub(super) struct Storage<D: Disk> {
    pub(super) home: Arc<StoreDirectory<D>>,
    pub(super) config: Arc<StoreConfig>,
    pub(super) clock: Clock,
    pub(super) files: Arc<DerivedFiles<D>>,
    pub(super) checkpoint: Arc<Checkpoint<D>>,
    pub(super) checkpointer: Arc<Checkpointer<D>>,
    pub(super) dispatched: Arc<Dispatched>,
    pub(super) arrivals: Arc<Arrivals>,
    pub(super) dedup: Arc<Dedup>,
    pub(super) sequences: Arc<SequencesFile<D>>,
    pub(super) reader: Arc<Reader<D>>,
    /// The state the last shutdown left.
    pub(super) left: Left,
}

/// The open files of a store, and those that a single component takes over.
pub(super) struct Opened<D: Disk> {
    pub(super) storage: Storage<D>,
    pub(super) archive: Archive,
    pub(super) timer: TimerState<D>,
}

/// The log, the files derived from it, and the checkpoint.
type Files<D> = (Arc<CommitLog<D>>, Arc<ConsumeQueues<D>>, Arc<Index<D>>, Arc<Checkpoint<D>>);

/// Creates the directory and its folders, and locks it.
pub(super) fn lock_directory<D: Disk>(disk: D, directory: &Path) -> Result<StoreDirectory<D>> {
    disk.create_dir(directory).or_io("create", directory)?;
    let directory = &disk.absolute(directory).or_io("find the absolute path of", directory)?;
    sync_parent(&disk, directory)?;
    let staging = directory.join("ferromq");
    for needed in [&staging, &directory.join("config")] {
        disk.create_dir(needed).or_io("create", needed)?;
    }
    let lock_path = directory.join("lock");
    let lock = disk.lock(&lock_path).map_err(|source| match source.kind() {
        std::io::ErrorKind::WouldBlock => StoreError::Locked { path: lock_path.clone() },
        _ => StoreError::io("lock", &lock_path, source),
    })?;
    backup::take_as_store(&disk, directory)?;
    Ok(StoreDirectory::new(disk, directory, lock))
}

impl<D: Disk> Storage<D> {
    /// Opens the files as they were left. Writes nothing but missing directories and small files that must exist.
    pub(super) fn open(home: StoreDirectory<D>, config: StoreConfig, clock: Clock) -> Result<Opened<D>> {
        let (home, config) = (Arc::new(home), Arc::new(config));
        let (disk, root) = (&home.disk, &*home.root);
        let open_files = OpenFiles::new(OpenFileLimits::of(&config));
        let names = DirectoryNames::of(root);
        let form = FileFormat {
            size: config.commit_log_file_size,
            allocation: Allocation::Reserved,
            kind: FileKind::Log,
        };
        let places = FileDirectories::of_log(disk, &names, &config)?;
        let mut log_files = MappedFileQueue::new(disk.clone(), places, form, Arc::clone(&open_files));
        log_files.load()?;
        let archive = Archive::load(disk, root, &log_files)?;
        let left = read_left(disk, root, &log_files)?;
        let flush_mark = FlushMark::open(disk, root, log_files.span().is_none())?;
        let log = Arc::new(CommitLog::new(disk.clone(), log_files, flush_mark, &config));
        let timer = TimerState::load(disk, root, &names, &open_files, &config)?;
        let queues = Arc::new(ConsumeQueues::load(disk, root, &names, &open_files, &config)?);
        let index = Arc::new(Index::load(disk, root, &config));
        let checkpoint = Arc::new(Checkpoint::open(disk, root)?);
        let storage = Self::of(home, config, clock, (log, queues, index, checkpoint), left);
        Ok(Opened { storage, archive, timer })
    }

    fn of(
        home: Arc<StoreDirectory<D>>,
        config: Arc<StoreConfig>,
        clock: Clock,
        (log, queues, index, checkpoint): Files<D>,
        left: Left,
    ) -> Self {
        let dedup = Arc::new(Dedup::new(&config));
        let (dispatched, arrivals) = (Arc::new(Dispatched::default()), Arc::new(Arrivals::default()));
        let (levels, shared) = (config.delay_levels.clone(), Arc::clone(&checkpoint));
        let opened = (log, queues, index, shared);
        let files = Arc::new(derived_files(&home, levels, &clock, opened, &dispatched, &arrivals));
        let sequences = Arc::new(SequencesFile {
            home: Arc::clone(&home),
            clock: clock.clone(),
            log: Arc::clone(&files.log),
            queues: Arc::clone(&files.queues),
            dedup: Arc::clone(&dedup),
        });
        let checkpointer = Arc::new(Checkpointer::new(
            Arc::clone(&home),
            Arc::clone(&files),
            Arc::clone(&checkpoint),
            Arc::clone(&dispatched),
            Arc::clone(&sequences),
        ));
        let reader = Arc::new(reader(&home, &files, &dispatched, &arrivals));
        Self {
            home,
            config,
            clock,
            files,
            checkpoint,
            checkpointer,
            dispatched,
            arrivals,
            dedup,
            sequences,
            reader,
            left,
        }
    }

    /// Recovers the log and what is derived from it, up to the first checkpoint.
    ///
    /// The order is a crash promise: leave an abort file before any other write; recover; load sequences, which need
    /// the recovered log; write a checkpoint, so that the next kill recovers from here.
    pub(super) fn recover(
        &self,
        watched: Option<Arc<RecoveryProgress>>,
    ) -> Result<(RecoveryReport, Dispatcher<D>)> {
        let (home, left) = (&self.home, self.left);
        mark_open(home, left)?;
        let opening = Opening {
            home: Arc::clone(home),
            config: Arc::clone(&self.config),
            files: Arc::clone(&self.files),
            checkpoint: Arc::clone(&self.checkpoint),
            checkpointer: Arc::clone(&self.checkpointer),
            dispatched: Arc::clone(&self.dispatched),
            left,
            watched,
        };
        let (mut report, dispatcher) = recover::recover(&opening).inspect_err(|error| {
            if left.is_clean() && matches!(error, StoreError::Corrupt { .. }) {
                // Nothing was written yet: leave the files as they were closed, for a repair.
                remove_abort(home).unwrap_or_else(|error| tracing::warn!(%error, "abort file stays"));
            }
        })?;
        report.damages = all_damages(&self.files, &self.reader.unreadable, &self.sequences, None);
        recover::log_report(&report, self.dispatched.end());
        self.files.aside.end_opening();
        self.sequences.load()?;
        if let Some(error) = wants_space(self.checkpointer.write(false))? {
            tracing::warn!(%error, "no space for the checkpoint: written once there is some");
        }
        Ok((report, dispatcher))
    }
}

fn derived_files<D: Disk>(
    home: &Arc<StoreDirectory<D>>,
    delay_levels: DelayLevels,
    clock: &Clock,
    (log, queues, index, checkpoint): Files<D>,
    dispatched: &Arc<Dispatched>,
    arrivals: &Arc<Arrivals>,
) -> DerivedFiles<D> {
    let dirty = Arc::default();
    let aside = SetAside::new(
        Arc::clone(home),
        Arc::clone(&log),
        checkpoint,
        Arc::clone(&dirty),
        Arc::clone(dispatched),
        Arc::clone(arrivals),
    );
    let clock = clock.clone();
    DerivedFiles { log, queues, index, aside: Arc::new(aside), dirty, clock, delay_levels }
}

fn reader<D: Disk>(
    home: &Arc<StoreDirectory<D>>,
    files: &DerivedFiles<D>,
    dispatched: &Arc<Dispatched>,
    arrivals: &Arc<Arrivals>,
) -> Reader<D> {
    let (log, queues) = (Arc::clone(&files.log), Arc::clone(&files.queues));
    let unreadable =
        Unreadable::new(Arc::clone(home), Arc::clone(&log), Arc::clone(&queues), Arc::clone(dispatched));
    Reader {
        home: Arc::clone(home),
        log,
        queues,
        index: Arc::clone(&files.index),
        arrivals: Arc::clone(arrivals),
        unreadable: Arc::new(unreadable),
        counters: Arc::new(Counters::default()),
    }
}

/// All known damages of the log and of derived files. `timer` is the damage of the timer's files.
pub(super) fn all_damages<D: Disk>(
    files: &DerivedFiles<D>,
    unreadable: &Unreadable<D>,
    sequences: &SequencesFile<D>,
    timer: Option<Damage>,
) -> Vec<Damage> {
    let (log, aside) = (files.log.damages.all(), files.aside.damages());
    let unreadable = unreadable.damages();
    let timer = timer.filter(|damage| !unreadable.iter().any(|known| known.file == damage.file));
    log.into_iter().chain(timer).chain(aside).chain(unreadable).chain(sequences.damage()).collect()
}

/// Turns an error of a full disk into `Some`: the caller can write later or leave it to recovery.
pub(super) fn wants_space(done: Result<()>) -> Result<Option<StoreError>> {
    match done {
        Err(error) if error.is_of_full_disk() => Ok(Some(error)),
        done => done.map(|()| None),
    }
}
