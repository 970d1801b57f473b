//! Reads messages of a queue, single messages, positions, and messages by key.

pub(crate) mod counters;
pub(crate) mod get;
pub(crate) mod lookup;
pub(crate) mod query;
mod queue_read;
pub(crate) mod reader;
#[cfg(test)]
mod tests;
pub(crate) mod types;
pub(crate) mod unreadable_files;

pub use reader::Reader;
pub use types::{Boundary, GetRequest, GetResult, GetStatus, QueryResult, Source, TransferLimits};
