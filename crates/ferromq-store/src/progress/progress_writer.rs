//! Writes the progress of consumer groups to its files.

use std::sync::Arc;

use crate::{
    derive::dispatched::Dispatched,
    error::Result,
    files::{disk::Disk, store_directory::StoreDirectory},
    log::commit_log::CommitLog,
    progress::group_progress::Progress,
};

pub(crate) struct ProgressWriter<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) log: Arc<CommitLog<D>>,
    pub(crate) dispatched: Arc<Dispatched>,
    pub(crate) progress: Arc<Progress>,
}

impl<D: Disk> ProgressWriter<D> {
    /// Writes changed progress, after making the log durable.
    pub(crate) fn persist(&self) -> Result<()> {
        let _held = self.home.hold()?;
        let (home, anchor) = (&self.home, self.dispatched.anchor());
        self.progress.persist(&home.disk, &home.root, anchor, || self.log.flush())
    }
}
