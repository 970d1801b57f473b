//! Decides from what the last shutdown left where the walk over the log begins, and what is durable.

use std::sync::Arc;

use crate::{
    config::StoreConfig,
    derive::{derived_files::DerivedFiles, dispatched::Dispatched},
    error::Result,
    files::{disk::Disk, mapped_file_queue::MappedFileQueue, store_directory::StoreDirectory},
    recovery::{
        checkpoint::Checkpoint,
        checkpointer::Checkpointer,
        last_shutdown::{self, Left},
        log_walk::{Checks, Found},
        progress_log::RecoveryProgress,
    },
};

/// The state that a recovery reads and repairs.
pub(crate) struct Opening<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) config: Arc<StoreConfig>,
    pub(crate) files: Arc<DerivedFiles<D>>,
    pub(crate) checkpoint: Arc<Checkpoint<D>>,
    pub(crate) checkpointer: Arc<Checkpointer<D>>,
    pub(crate) dispatched: Arc<Dispatched>,
    /// The state the last shutdown left.
    pub(crate) left: Left,
    pub(crate) watched: Option<Arc<RecoveryProgress>>,
}

/// Where the walk begins, and what is known before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) left: Left,
    /// The walk skips records before this offset.
    pub(super) walk_from: u64,
    /// Lower bound of what was durable, if known: a break before it is damage and never cut.
    pub(super) durable_end: Option<u64>,
    /// End of the last known flush; records kept after it are written and flushed again.
    pub(super) flushed: u64,
    /// Another broker's records up to this store timestamp were durable.
    pub(super) trusted_timestamp: i64,
    pub(super) checks: Checks,
}

impl Plan {
    /// Whether the bytes after the end are as this broker left them.
    pub(super) fn has_sound_tail(&self) -> bool {
        matches!(self.left, Left::Closed { .. })
    }

    /// The newest store timestamp known without a walk: store timestamps never go back.
    pub(super) fn last_timestamp<D: Disk>(&self, opening: &Opening<D>) -> i64 {
        let noted = match self.left {
            Left::Killed => opening.checkpoint.marks().log_timestamp,
            _ => 0,
        };
        self.left.anchor().map_or(0, |anchor| anchor.store_timestamp).max(noted)
    }
}

/// Decides where the walk begins, from what the last shutdown left.
pub(super) fn plan<D: Disk>(opening: &Opening<D>) -> Result<Plan> {
    let files = opening.files.log.files();
    let marks = opening.checkpoint.marks();
    let left = opening.left;
    let trusted_timestamp = marks.walk_from_timestamp();
    let flush_mark = opening.files.log.flush_mark.found().filter(|_| left == Left::Killed);
    let flush_end = flush_mark.filter(|(anchor, _)| left.trusts(*anchor, files)).map(|(_, end)| end);
    // The checkpoint has no checksum: trust it only up to the end of the files or of the flush mark, which has one.
    let span_end = files.end();
    let believable = flush_mark.map_or(0, |(_, end)| end).max(span_end);
    let noted_end = (marks.durable_end as u64).min(believable);
    let durable_end = match left {
        Left::Closed { end, .. } => Some(end),
        // The checkpoint lags behind the last flush; if both are lost, the durable end is unknown.
        Left::Killed => flush_end.max(Some(noted_end).filter(|end| *end > 0)),
        // RocketMQ stores the log's end at its start in that field. If this broker closed the store before, damage
        // across that end looks like an append of the other broker.
        Left::ClosedByOther | Left::KilledOther { is_log_whole: true } => {
            last_shutdown::closed_end(&opening.home.disk, &opening.home.root, files)?
                .map(|end| end.min(span_end))
        }
        Left::KilledOther { is_log_whole: false } => None,
    };
    let log_start = opening.files.log.start();
    let walk_from = match left {
        Left::Closed { end, .. } => end.max(log_start),
        Left::Killed => log_start.max(noted_end),
        Left::ClosedByOther | Left::KilledOther { .. } => start_of_walk(files, left, trusted_timestamp)?,
    };
    let flushed = walk_from.max(flush_end.unwrap_or(0));
    let is_checked = !opening.config.fast_boot;
    let torn_from = if is_checked && !left.is_clean() { walk_from } else { u64::MAX };
    let checks = Checks { crc: is_checked, torn_from, limit: u64::MAX };
    Ok(Plan { left, walk_from, durable_end, flushed, trusted_timestamp, checks })
}

/// The file at which the walk begins: everything before it is durable.
fn start_of_walk<D: Disk>(files: &MappedFileQueue<D>, left: Left, timestamp: i64) -> Result<u64> {
    for span in files.spans().into_iter().rev() {
        let Some(file) = files.open(span.start)? else { continue };
        if let Some(Found::Message(view)) = Checks::ALL.record(&file, span.start)
            && (left.has_whole_log() || view.store_timestamp <= timestamp)
        {
            return Ok(span.start);
        }
    }
    Ok(files.span().map_or(0, |span| span.start))
}
