//! Opening a store: the end of the log, the torn tail, and the files that say how far the disk is.

pub mod checkpoint;
pub(crate) mod checkpointer;
pub mod last_shutdown;
pub(crate) mod log_walk;
pub(crate) mod progress_log;
pub(crate) mod recover;
pub(crate) mod recovery_report;
pub(crate) mod torn_tail;

pub use progress_log::{RecoveryListener, RecoveryProgress};
pub use recovery_report::RecoveryReport;
