//! Spans of requests, for traces: W3C's context in a request continues as a span of this server.
//!
//! Off unless the control plane exports them: then a request costs one load. Only calls that the client samples have a
//! span. The queue of ended spans is bounded; those that find it full are counted and dropped.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;

use super::{
    latencies::{Exchange, Outcome},
    trace_context::TraceContext,
};

/// Most spans that wait for their export.
pub const LIMIT: usize = 8_192;

/// An ended request that a client traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The client's span.
    pub context: TraceContext,
    /// The id of this one; not 0.
    pub id: u64,
    /// What was asked and answered.
    pub exchange: Exchange,
    /// What became of the response.
    pub outcome: Outcome,
    /// When it ended.
    pub end: SystemTime,
    /// How long it took.
    pub elapsed: Duration,
}

/// The spans that were not exported yet.
#[derive(Debug, Default)]
pub struct Spans {
    is_on: AtomicBool,
    ended: Mutex<VecDeque<Span>>,
    count: AtomicU64,
    random: RandomState,
}

impl Spans {
    /// Begins or ends the recording.
    pub fn turn(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
    }

    /// Whether spans are recorded.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Records a request that has ended now. Returns false if too many spans wait.
    pub fn add(
        &self,
        context: TraceContext,
        exchange: Exchange,
        outcome: Outcome,
        elapsed: Duration,
    ) -> bool {
        let id = self.random.hash_one(self.count.fetch_add(1, Ordering::Relaxed)).max(1);
        let mut ended = self.ended.lock();
        let has_room = ended.len() < LIMIT;
        if has_room {
            ended.push_back(Span { context, id, exchange, outcome, end: SystemTime::now(), elapsed });
        }
        has_room
    }

    /// Takes the spans that have ended, the oldest first.
    #[must_use]
    pub fn take(&self) -> Vec<Span> {
        std::mem::take(&mut *self.ended.lock()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot::latencies::Protocol;

    fn exchange() -> Exchange {
        Exchange { protocol: Protocol::Grpc, request: 0, response: 20_000 }
    }

    #[test]
    fn spans_that_are_not_taken_are_bounded() {
        let (spans, context) = (Spans::default(), TraceContext { trace: 1, parent: 2 });
        let added = (0..LIMIT + 5)
            .filter(|_| spans.add(context, exchange(), Outcome::Success, Duration::from_millis(3)))
            .count();
        assert_eq!(added, LIMIT);
        let taken = spans.take();
        assert_eq!(taken.len(), LIMIT);
        let ids: std::collections::HashSet<u64> = taken.iter().map(|span| span.id).collect();
        assert_eq!(ids.len(), LIMIT);
        assert!(spans.take().is_empty());
        assert!(spans.add(context, exchange(), Outcome::Success, Duration::ZERO));
    }
}
