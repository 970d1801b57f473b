//! Inspects a store directory from outside: summaries, verification, dumps and scans.
//!
//! It takes no lock and writes nothing, so it reads a Java broker's directory and an open one, up to the end at the
//! time. It accepts any bytes, and memory is bounded whatever the size.
//! [`ferromq_store::store::message_store::MessageStore`] serves messages and is not used here.

mod buffered_file;
mod config_files;
mod dump;
mod facts;
mod finding;
mod index_scan;
mod layout;
mod log_extent;
mod log_file;
mod log_scan;
mod own_files;
mod parallel;
mod queue_scan;
mod queue_slots;
mod readable_log;
mod record_reader;
mod summary;
mod verify;
mod verify_log;
mod verify_queue;

use std::path::PathBuf;

pub use config_files::ConfigFile;
pub use dump::{Dump, DumpItem, DumpQuery, dump, dump_on};
pub use facts::{FactFault, Facts, LogFacts};
pub use finding::{Finding, FindingKind, VerifyEvent};
pub use layout::StoreState;
pub use log_file::{LogFile, Scanned};
pub use log_scan::{LogBatch, LogScan, OnCorrupt, ScanOptions};
pub use own_files::OwnFile;
pub use readable_log::{LogPart, log_files, log_files_on, queue_starts, queue_starts_on};
pub use summary::{
    CheckpointSummary, IndexSummary, LogSummary, QueueSummary, StoreSummary, TopicSummary, inspect,
    inspect_on,
};
pub use verify::{VerifyReport, verify, verify_on};

use ferromq_store::{formats::index_file::key_hash, record::MessageView};

/// What the store directory itself does not record.
#[derive(Debug, Clone, Default)]
pub struct InspectOptions {
    /// Directories of the commit log; empty means `commitlog` in the store directory.
    pub commit_log_paths: Vec<PathBuf>,
    /// Hash slots of an index file, unless it has four entries a slot.
    pub index_slots: Option<u32>,
    /// Number of threads; 0 means one a processor.
    pub threads: usize,
}

/// Hashes of all keys of a record, as index entries hold them.
fn key_hashes(view: &MessageView<'_>) -> impl Iterator<Item = u32> {
    let topic = view.topic;
    view.marks().each_key().map(move |key| key_hash(topic, key))
}

/// Whether the index may hold this hash for a record: a key, or the tag, which RocketMQ 5.5 indexes as `TOPIC#T#TAG`.
fn may_have_key(view: &MessageView<'_>, hash: u32) -> bool {
    key_hashes(view).any(|key| key == hash)
        || view.marks().tags.is_some_and(|tag| key_hash(view.topic, &format!("T#{tag}")) == hash)
}
