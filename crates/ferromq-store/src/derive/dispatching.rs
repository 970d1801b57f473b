//! The state that the dispatching thread works on.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    config::StoreConfig,
    derive::{
        arrival::Arrivals, derived_files::DerivedFiles, dispatch_stall::DispatchStall, dispatched::Dispatched,
    },
    files::{disk::Disk, store_directory::StoreDirectory},
    progress::group_progress::Progress,
    recovery::checkpoint::Checkpoint,
};

/// The state that the dispatching thread works on.
pub(crate) struct Dispatching<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) config: Arc<StoreConfig>,
    pub(crate) files: Arc<DerivedFiles<D>>,
    pub(crate) checkpoint: Arc<Checkpoint<D>>,
    pub(crate) dispatched: Arc<Dispatched>,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) stall: Arc<DispatchStall<D>>,
    pub(crate) progress: Arc<Progress>,
    /// Held during each round.
    pub(crate) rounds: Arc<Mutex<()>>,
}
