//! The administrative state of a queue: deleted, closed or set aside.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

use parking_lot::Mutex;

/// Who may use a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueAccess {
    /// Producers and consumers.
    #[default]
    Open,
    /// Consumers only: the queue drains.
    ReadOnly,
    /// Neither producers nor consumers.
    Closed,
}

impl QueueAccess {
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::ReadOnly => 1,
            Self::Closed => 2,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Open, Self::ReadOnly, Self::Closed].into_iter().find(|access| access.to_byte() == byte)
    }
}

/// The administrative state of a queue.
#[derive(Default)]
pub(crate) struct QueueMarks {
    floor_offset: AtomicU64,
    floor_end: AtomicU64,
    /// No message came since the deletion, so the queue does not exist for readers.
    pub(super) is_deleted: AtomicBool,
    /// The files of deleted entries are still to be removed.
    pub(super) must_clear: AtomicBool,
    access: AtomicU8,
    /// The queue cannot be written.
    is_aside: AtomicBool,
    /// The reason why it cannot be written.
    aside: Mutex<Option<Arc<str>>>,
    /// The files could not be read at open; the queue is closed to readers until they can.
    is_unread: AtomicBool,
    /// The queue was set aside at open, so its end is unknown until all entries are written. Nothing durable may depend
    /// on its end meanwhile. Readers check this flag before they read the end.
    is_end_unknown: AtomicBool,
}

impl QueueMarks {
    /// The deleted part of the queue; offset 0 if nothing was deleted.
    pub(crate) fn floor(&self) -> DeletedFloor {
        DeletedFloor {
            offset: self.floor_offset.load(Ordering::Acquire),
            physical_end: self.floor_end.load(Ordering::Acquire),
        }
    }

    pub(super) fn set_floor(&self, floor: DeletedFloor) {
        self.floor_end.store(floor.physical_end, Ordering::Release);
        self.floor_offset.store(floor.offset, Ordering::Release);
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    /// Notes that the queue has messages again.
    pub(crate) fn set_alive(&self) {
        if self.is_deleted() {
            self.is_deleted.store(false, Ordering::Release);
        }
    }

    pub(crate) fn access(&self) -> QueueAccess {
        QueueAccess::from_byte(self.access.load(Ordering::Acquire)).unwrap_or_default()
    }

    pub(crate) fn takes_messages(&self) -> bool {
        self.access.load(Ordering::Relaxed) == 0 && !self.is_aside()
    }

    /// Whether the queue is closed to readers.
    pub(crate) fn is_shut(&self) -> bool {
        self.access() == QueueAccess::Closed || self.is_unread()
    }

    pub(crate) fn is_aside(&self) -> bool {
        self.is_aside.load(Ordering::Acquire)
    }

    pub(crate) fn set_aside(&self, reason: Option<Arc<str>>) {
        let mut aside = self.aside.lock();
        self.is_aside.store(reason.is_some(), Ordering::Release);
        *aside = reason;
    }

    pub(crate) fn aside_reason(&self) -> Option<Arc<str>> {
        self.aside.lock().clone()
    }

    pub(crate) fn is_unread(&self) -> bool {
        self.is_unread.load(Ordering::Acquire)
    }

    pub(crate) fn set_unread(&self) {
        self.is_unread.store(true, Ordering::Release);
    }

    pub(crate) fn is_end_unknown(&self) -> bool {
        self.is_end_unknown.load(Ordering::Acquire)
    }

    pub(crate) fn set_end_unknown(&self, is_unknown: bool) {
        self.is_end_unknown.store(is_unknown, Ordering::Release);
    }

    /// Copies the state when the queue's files are read again.
    pub(super) fn adopt(&self, before: &Self) {
        self.set_end_unknown(before.is_end_unknown());
        self.set_floor(before.floor());
        self.is_deleted.store(before.floor().offset > 0, Ordering::Release);
        self.set_access(before.access());
        self.set_aside(before.aside_reason());
    }

    pub(crate) fn set_access(&self, access: QueueAccess) {
        self.access.store(access.to_byte(), Ordering::Release);
    }
}

/// The deleted part of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletedFloor {
    /// Queue offsets below this were assigned to deleted records.
    pub(crate) offset: u64,
    /// Physical offset at which the deleted records end.
    pub physical_end: u64,
}
