//! `ferromq/unindexed`: the part of the log without index entries, because the index was disabled.
//!
//! An open store does not use it. It tells verification that the keys are not lost. It holds log offsets, so another
//! broker's work on the index does not invalidate it.

use std::{ops::Range, path::Path};

use crate::{
    error::{IoResult, Result},
    files::store_directory::StoreDirectory,
    files::{
        anchor::{self, Anchor},
        disk::Disk,
    },
    index::key_index::Index,
    log::commit_log::CommitLog,
};

/// Name of the file in `DIR/ferromq/`.
pub const NAME: &str = "unindexed";
const MAGIC: &[u8; 8] = b"FMQUNIX1";

/// Decodes the range and the record at which it was noted. The range ends at `u64::MAX` while the index is disabled.
/// Errors: the broken rule.
pub fn read(bytes: &[u8]) -> std::result::Result<(Anchor, Range<u64>), &'static str> {
    let (anchor, content) = anchor::unseal(MAGIC, bytes)?;
    let ([from, to], []) = content.as_chunks::<8>() else { return Err("wrong length") };
    Ok((anchor, u64::from_be_bytes(*from)..u64::from_be_bytes(*to)))
}

fn load<D: Disk>(disk: &D, path: &Path) -> Result<Option<(Anchor, Range<u64>)>> {
    let Some(bytes) = disk.read_file(path).if_found().or_io("read", path)? else { return Ok(None) };
    match read(&bytes) {
        Ok(found) => Ok(Some(found)),
        Err(reason) => {
            tracing::warn!(file = %path.display(), reason, "note of the unindexed part ignored");
            Ok(None)
        }
    }
}

/// The state that the note records.
pub(crate) struct UnindexedNote<'a, D: Disk> {
    pub(crate) home: &'a StoreDirectory<D>,
    pub(crate) log: &'a CommitLog<D>,
    pub(crate) index: &'a Index<D>,
    /// The last record of the log.
    pub(crate) anchor: Anchor,
}

impl<D: Disk> UnindexedNote<'_, D> {
    /// Notes the unindexed part of the log after a recovery that indexed records from `index_from` on. Only
    /// verification reads the note, so a failure is only logged.
    pub(crate) fn write(&self, index_from: u64) {
        if let Err(error) = self.try_write(index_from) {
            tracing::warn!(%error, "the part of the log without an index cannot be recorded: verification will report its keys as missing");
        }
    }

    fn try_write(&self, index_from: u64) -> Result<()> {
        let path = self.home.root.join("ferromq").join(NAME);
        let found = load(&self.home.disk, &path)?;
        let held = found.clone().filter(|(anchor, _)| anchor.is_held_by(self.log.files()));
        let held = held.map(|(_, range)| range);
        let log_start = self.log.start();
        let wanted = if self.index.is_enabled() {
            held.map(|range| range.start..range.end.min(index_from))
                .filter(|range| range.start < range.end && range.end > log_start)
        } else {
            // The last indexed record may lack some of its keys.
            let indexed_to = self.index.last_physical_offset().unwrap_or(0).max(log_start);
            Some(held.map_or(indexed_to, |range| range.start.min(indexed_to))..u64::MAX)
        };
        let written = match wanted {
            Some(range) if found.as_ref().is_some_and(|(_, found)| *found == range) => Ok(()),
            Some(range) => {
                let content = [range.start.to_be_bytes(), range.end.to_be_bytes()].concat();
                self.home.disk.replace_file(&path, &anchor::seal(MAGIC, self.anchor, &content))
            }
            None if found.is_some() => self.home.disk.remove(&path),
            None => Ok(()),
        };
        written.or_io("write", &path)
    }
}
