//! Looking at a store directory from outside: what is in it, whether it is sound, which records it holds.
//!
//! Read-only: no lock is taken and nothing is written, so it works on a Java broker's directory and on one that is
//! open, up to where it was when it was looked at. Any bytes may be found; memory is bounded whatever the size.
//! A store that serves messages is [`ferromq_store::store::message_store::MessageStore`]; nothing of it is used here.

mod dump;
mod facts;
mod finding;
mod index;
mod layout;
mod log_ends;
mod log_extent;
mod log_file;
mod log_scan;
mod own_files;
mod parallel;
mod probe;
mod queue_slots;
mod queues;
mod summary;
mod verify;
mod verify_config;
mod verify_log;
mod window;

use std::path::PathBuf;

pub use dump::{Dump, DumpItem, DumpQuery, dump, dump_on};
pub use facts::{FactFault, Facts, LogFacts};
pub use finding::{Finding, FindingKind, VerifyEvent};
pub use layout::StoreState;
pub use log_ends::{LogPart, log_files, log_files_on, queue_starts, queue_starts_on};
pub use log_file::{LogFile, Scanned};
pub use log_scan::{LogBatch, LogScan, OnCorrupt, ScanOptions};
pub use own_files::OwnFile;
pub use summary::{
    CheckpointSummary, IndexSummary, LogSummary, QueueSummary, StoreSummary, TopicSummary, inspect,
    inspect_on,
};
pub use verify::{VerifyReport, verify, verify_on};
pub use verify_config::ConfigFile;

use ferromq_store::{formats::index_file::key_hash, record::MessageView};

/// What a store directory alone does not tell.
#[derive(Debug, Clone, Default)]
pub struct InspectOptions {
    /// Directories of the commit log; empty means `commitlog` in the store directory.
    pub commit_log_paths: Vec<PathBuf>,
    /// Hash slots of an index file, where there are not a quarter as many as entries.
    pub index_slots: Option<u32>,
    /// Threads that look; 0 means one a processor.
    pub threads: usize,
}

/// Hashes of all keys of a record, as index entries hold them.
fn key_hashes(view: &MessageView<'_>) -> impl Iterator<Item = u32> {
    let topic = view.topic;
    view.marks().each_key().map(move |key| key_hash(topic, key))
}

/// Says whether the index may lead to a record by this hash: by a key, or by the tag, which brokers of RocketMQ 5.5
/// enter as `TOPIC#T#TAG`.
fn may_have_key(view: &MessageView<'_>, hash: u32) -> bool {
    key_hashes(view).any(|key| key == hash)
        || view.marks().tags.is_some_and(|tag| key_hash(view.topic, &format!("T#{tag}")) == hash)
}
