//! The message store of ferromq: one commit log, the files derived from it, and consumers' progress.
//!
//! Everything that holds messages or consumers' progress lives here, and every crash promise is made
//! here. The crate is synchronous: it knows neither sockets nor Python. [`MessageStore`] is the door.
#![cfg_attr(test, allow(missing_docs))]

#[cfg(test)]
extern crate self as ferromq_store;

mod config;
mod dedup;
mod delayed;
mod derive;
mod error;
#[cfg(test)]
#[path = "../tests/common/fake_disk.rs"]
mod fake_disk;
mod files;
mod filter;
pub mod formats;
mod index;
mod log;
mod progress;
mod queues;
mod read;
mod record;
mod recovery;
mod retention;
mod store;
mod sync;
mod time;

pub use config::StoreConfig;
pub use dedup::sequence::{MAX_WRITER_LEN, Sequence};
pub use delayed::{
    delay_levels::{DelayLevels, Delayed},
    schedule::ScheduleStats,
    timer::{state::TimerStats, timed_message::TimerConfig},
};
pub use derive::arrival::Arrival;
pub use error::{Result, StoreError};
pub use files::space::Space;
pub use files::{
    disk::{Allocation, Disk, Region},
    mapped_file::MappedRegion,
    real_disk::{DirectoryLock, RealDisk, release_in_forked_child},
};
pub use filter::{filter_error::FilterError, message_filter::MessageFilter, sql::SqlFilter};
pub use log::appended::{Appended, Location};
pub use log::{
    damage::{Damage, DamageReason},
    flush_policy::FlushPolicy,
};
pub use progress::receive_types::{
    Ahead, Begin, Cold, Leased, MAX_ATTEMPT_ID, Ordered, ReadAhead, ReceiptHandle, ReceiveRequest, Received,
};
pub use queues::queue_marks::QueueAccess;
pub use read::types::{Boundary, GetRequest, GetResult, GetStatus, QueryResult, Source, TransferLimits};
pub use record::properties::SEQUENCE;
pub use record::{
    log_record::Record,
    message::{MessageView, NewMessage, add_reconsume_times},
    message_id::OffsetMessageId,
    names, properties,
    readdressed::readdressed,
};
pub use recovery::{
    progress_log::{RecoveryListener, RecoveryProgress},
    recovery_report::RecoveryReport,
};
pub use retention::{
    archive::ExpiredFile,
    cleaner::{CleanReport, CleaningStats},
    policy::{Decision, DiskUsage, FileFacts, OnExpiry, Retention, RetentionFacts, RetentionPolicy},
};
pub use store::{message_store::MessageStore, stats::StoreStats};
pub use time::{clock::Clock, local_time::LocalTime, wall_time::Reading};
