//! Consume queues with unflushed entries.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{files::disk::Disk, queues::consume_queue::ConsumeQueue};

/// Consume queues that the next checkpoint flushes.
pub(crate) struct DirtyQueues<D: Disk>(Mutex<Vec<Arc<ConsumeQueue<D>>>>);

impl<D: Disk> Default for DirtyQueues<D> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<D: Disk> DirtyQueues<D> {
    pub(crate) fn add(&self, queue: Arc<ConsumeQueue<D>>) {
        self.0.lock().push(queue);
    }

    pub(crate) fn take(&self) -> Vec<Arc<ConsumeQueue<D>>> {
        std::mem::take(&mut *self.0.lock())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
