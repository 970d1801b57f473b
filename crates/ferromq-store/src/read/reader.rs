//! The handle for reads.

use std::{ops::Range, sync::Arc};

use crate::{
    derive::arrival::{Arrival, Arrivals},
    files::{disk::Disk, store_directory::StoreDirectory},
    index::key_index::Index,
    log::{
        commit_log::CommitLog,
        damage::{Damage, DamageReason},
    },
    queues::queue_table::ConsumeQueues,
    read::{counters::Counters, unreadable_files::Unreadable},
    recovery::torn_tail,
};

/// Reads messages and positions of queues: the handle [`MessageStore::queues`](crate::MessageStore::queues).
///
/// After a close it finds no messages.
pub struct Reader<D: Disk> {
    pub(crate) home: Arc<StoreDirectory<D>>,
    pub(crate) log: Arc<CommitLog<D>>,
    pub(crate) queues: Arc<ConsumeQueues<D>>,
    pub(crate) index: Arc<Index<D>>,
    pub(crate) arrivals: Arc<Arrivals>,
    /// Messages that cannot be read now.
    pub(crate) unreadable: Arc<Unreadable<D>>,
    pub(crate) counters: Arc<Counters>,
}

impl<D: Disk> Reader<D> {
    /// Sets the listener for new messages. The dispatching thread calls it, so it must return quickly.
    pub fn on_arrival(&self, listener: impl Fn(&Arrival<'_>) + Send + Sync + 'static) {
        self.arrivals.set_listener(Some(Arc::new(listener)));
    }

    /// The reader, unless the store is closed.
    pub(crate) fn if_open(&self) -> Option<&Self> {
        (!self.home.is_closed()).then_some(self)
    }

    /// Notes damage where no record lies at a consume queue entry's offset. Returns whether the log is damaged there;
    /// otherwise the consume queue is.
    #[cold]
    pub(crate) fn note_damage_at(&self, physical_offset: u64) -> bool {
        // A read error may pass: only damage is noted.
        let found = torn_tail::damage_at(self.log.files(), physical_offset, self.log.written());
        let Ok(Some(range)) = found else { return false };
        self.note_damage(range);
        true
    }

    /// Notes a damaged record that was read.
    #[cold]
    pub(crate) fn note_damage(&self, range: Range<u64>) {
        let files = self.log.files();
        let file = files.path_for(range.start);
        self.log.damages.add(Damage { file, range, reason: DamageReason::Corrupt });
    }
}
