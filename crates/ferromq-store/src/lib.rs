//! The message store of ferromq: one commit log, the files derived from it, and consumers' progress.
//!
//! Everything that holds messages or consumers' progress lives here, and every crash promise is made
//! here. The crate is synchronous: it knows neither sockets nor Python. [`MessageStore`] is the door.
#![cfg_attr(test, allow(missing_docs))]

#[cfg(test)]
extern crate self as ferromq_store;

mod anchor;
mod append;
mod archive;
mod boundary;
mod catch_up;
mod checkpoint;
mod clean;
mod clock;
pub mod columns;
mod commit_log;
mod config;
mod consume_queue;
mod counters;
mod damage;
mod dedup;
mod dedup_file;
mod delay;
mod delay_file;
mod derive;
mod disk;
mod dispatch;
mod due;
mod error;
#[cfg(test)]
#[path = "../tests/common/fake_disk.rs"]
mod fake_disk;
mod fast_hash;
mod file_places;
#[cfg(test)]
mod file_tests;
mod filter;
mod flush;
mod flush_mark;
mod flush_policy;
mod freshness;
mod get;
mod group_admin;
mod index;
mod index_file;
pub mod inspect;
mod java_pops;
mod known_times;
mod lease;
mod lease_file;
mod local_time;
mod lookup;
#[allow(unsafe_code)]
mod mapped_file;
mod mapped_file_queue;
mod message;
mod message_id;
mod offset_file;
mod open_files;
mod order;
mod order_file;
mod pace;
mod prepare;
mod progress;
pub mod properties;
mod property_crc;
mod put_times;
mod query;
mod queue_admin;
mod queue_cleaning;
mod queue_list;
mod queue_marks;
mod queue_recovery;
mod readdressed;
mod receive;
mod record;
mod recovery;
mod redo;
mod report;
mod retention;
mod scan;
mod schedule;
mod sequence;
mod set_aside;
mod side_by_side;
mod signal;
mod space;
mod sql;
mod stall;
mod stop;
mod store;
mod tail;
mod time_search;
mod timer;
mod timer_delivery;
mod timer_files;
mod timer_log;
mod timer_persist;
mod timer_recovery;
mod timer_state;
#[cfg(test)]
mod timer_tests;
mod timer_waiting;
mod timer_wheel;
mod trouble;
mod turns;
mod types;
mod unflushed;
mod unindexed;
mod unreadable;
mod wall_time;

pub use archive::ExpiredFile;
pub use clean::{CleanReport, CleaningStats};
pub use clock::Clock;
pub use config::StoreConfig;
pub use damage::{Damage, DamageReason};
pub use delay::{DelayLevels, Delayed, SCHEDULE_TOPIC};
pub use disk::{Allocation, DirectoryLock, Disk, RealDisk, Region, release_in_forked_child};
pub use error::{Result, StoreError};
pub use filter::{FilterError, MessageFilter};
pub use flush_policy::FlushPolicy;
pub use local_time::LocalTime;
pub use mapped_file::MappedRegion;
pub use message::{MessageView, NewMessage, add_reconsume_times};
pub use message_id::OffsetMessageId;
pub use queue_admin::QueueAccess;
pub use readdressed::readdressed;
pub use record::Record;
pub use report::{RecoveryListener, RecoveryProgress, RecoveryReport};
pub use retention::{Decision, DiskUsage, FileFacts, OnExpiry, Retention, RetentionFacts, RetentionPolicy};
pub use schedule::ScheduleStats;
pub use sequence::{MAX_WRITER_LEN, SEQUENCE, Sequence};
pub use space::Space;
pub use sql::SqlFilter;
pub use store::MessageStore;
pub use timer::{TIMER_TOPIC, TimerConfig, is_timed};
pub use timer_state::TimerStats;
pub use types::{
    Ahead, Appended, Arrival, Begin, Boundary, Cold, GetRequest, GetResult, GetStatus, Leased, Location,
    MAX_ATTEMPT_ID, Ordered, QueryResult, ReadAhead, ReceiptHandle, ReceiveRequest, Received, Source,
    StoreStats, TransferLimits,
};
pub use wall_time::Reading;
