//! Charges what a read handed out to the rates of its request.
//!
//! The meter travels with the task that answers, as the share of the memory does, so that no verb passes it on.

use std::sync::Arc;

use ferromq_store::time::Clock;

use super::{Bucket, Direction, nanoseconds};

tokio::task_local! {
    static METER: Meter;
}

/// The rates that a read is charged to.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    pub(super) buckets: [Option<Arc<Bucket>>; 3],
    pub(super) clock: Clock,
}

impl Meter {
    /// Runs a read that is charged to these rates.
    pub(crate) fn scope<F: Future>(self, reading: F) -> impl Future<Output = F::Output> {
        METER.scope(self, reading)
    }

    fn charge(&self, messages: u64, bytes: u64) {
        let now = nanoseconds(&self.clock);
        for bucket in self.buckets.iter().flatten() {
            bucket.of(Direction::Receive).take(messages, bytes, now);
        }
    }
}

/// Charges messages that a read hands out. Without limits, and outside of [`Meter::scope`], nothing is charged.
pub(crate) fn charge(messages: usize, bytes: usize) {
    // It fails outside of the scope alone.
    let _ = METER.try_with(|meter| meter.charge(messages as u64, bytes as u64));
}
