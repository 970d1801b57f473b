//! The commit log: appends records, flushes them, prepares files ahead of the appender and tracks damaged ranges.

pub(crate) mod appended;
pub(crate) mod appender;
pub(crate) mod commit_log;
pub(crate) mod damage;
pub(crate) mod flush;
pub mod flush_mark;
pub(crate) mod flush_policy;
pub(crate) mod flush_state;
pub(crate) mod flush_times;
mod free_space;
mod log_reads;
pub(crate) mod nearest_record;
pub(crate) mod prepare_ahead;
pub(crate) mod prepared;
pub(crate) mod put_times;
pub(crate) mod recent_pages;
pub(crate) mod unflushed;

pub use appended::{Appended, Location};
pub use appender::Log;
pub use damage::{Damage, DamageReason};
pub use flush_policy::FlushPolicy;
pub use flush_times::FLUSH_BOUNDS_MS;
