//! What administrators ask of groups' progress: read it, forget it, take it over.
//!
//! How progress is kept and written is `group_progress`'s business.

use std::collections::BTreeMap;

use crate::{error::Result, files::disk::Disk, progress::receive::Groups};

/// Committed offsets by `topic@group` and queue id, as consumerOffset.json names them.
type Offsets = BTreeMap<String, BTreeMap<u32, u64>>;

impl<D: Disk> Groups<D> {
    /// Committed offsets by `topic@group`, of one group and of one topic where they are given.
    #[must_use]
    pub fn committed_offsets(&self, group: Option<&str>, topic: Option<&str>) -> Offsets {
        self.progress.committed(group, topic)
    }

    /// Forgets what a group has read of all topics, or of one; its leases end.
    ///
    /// It is on disk when the call returns. Returns how many topics the group had read. Errors: `Closed`, `Io`.
    pub fn forget_group(&self, group: &str, topic: Option<&str>) -> Result<usize> {
        self.reader.home.check_open()?;
        let forgotten = self.progress.forget_group(group, topic);
        if forgotten > 0 {
            self.progress_writer.persist()?;
        }
        Ok(forgotten)
    }

    /// Takes over committed offsets of a master, by `topic@group`; what the master does not name stays as it is.
    ///
    /// No group is set past the end of a queue; of a queue without messages here the offset is kept for later.
    /// It is on disk when the call returns. Errors: `Closed`, `Io`.
    pub fn adopt_offsets(&self, offsets: &Offsets) -> Result<()> {
        self.reader.home.check_open()?;
        if self.progress.adopt(offsets, |topic, queue_id| self.reader.queues.offset_limit(topic, queue_id)) {
            self.progress_writer.persist()?;
        }
        Ok(())
    }
}
