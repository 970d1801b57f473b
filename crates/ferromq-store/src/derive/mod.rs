//! Derives consume queues and the index from the log: dispatch while the store runs, rebuilding after a loss.

pub(crate) mod arrival;
pub(crate) mod catch_up;
pub(crate) mod derived_entries;
pub(crate) mod derived_files;
pub(crate) mod dispatch;
pub(crate) mod dispatch_stall;
pub(crate) mod dispatched;
pub(crate) mod dispatching;
pub(crate) mod rebuild;
pub(crate) mod set_aside;

pub use arrival::Arrival;
