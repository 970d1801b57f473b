//! Recovery at open: finds the end of the log, cuts a torn tail, and reads the files that tell what is durable.

pub mod checkpoint;
pub(crate) mod checkpointer;
mod derived;
pub mod last_shutdown;
mod log_end;
pub(crate) mod log_walk;
pub(crate) mod plan;
pub(crate) mod progress_log;
pub(crate) mod recover;
pub(crate) mod recovery_report;
pub(crate) mod torn_tail;

pub use progress_log::RecoveryProgress;
pub use recovery_report::RecoveryReport;
