//! The files derived from the log, and what it takes to write them.

use std::sync::Arc;

use crate::{
    delayed::delay_levels::DelayLevels,
    derive::set_aside::SetAside,
    files::disk::Disk,
    index::key_index::Index,
    log::commit_log::CommitLog,
    queues::{dirty_queues::DirtyQueues, queue_table::ConsumeQueues},
    time::clock::Clock,
};

/// The log, and the consume queues and the index derived from it.
pub(crate) struct DerivedFiles<D: Disk> {
    pub(crate) log: Arc<CommitLog<D>>,
    pub(crate) queues: Arc<ConsumeQueues<D>>,
    pub(crate) index: Arc<Index<D>>,
    /// Queues, and the index, that cannot be written now.
    pub(crate) aside: Arc<SetAside<D>>,
    pub(crate) dirty: Arc<DirtyQueues<D>>,
    pub(crate) clock: Clock,
    pub(crate) delay_levels: DelayLevels,
}
