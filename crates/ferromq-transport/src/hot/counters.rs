//! Counters of a server, for operators and tests. No decision depends on them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use super::{
    latencies::{Latencies, Outcome, Timing},
    spans::Spans,
};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Totals of a server since it started, and its current state.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
            /// How long requests took.
            pub latencies: Latencies,
            /// Spans of requests, for traces.
            pub spans: Spans,
        }

        impl Counters {
            /// Name and value of each counter.
            #[must_use]
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counters! {
    /// Open connections.
    connections,
    /// Connections refused because too many were open.
    refused_connections,
    /// Remoting connections closed for a bad frame.
    malformed,
    /// Remoting requests taken.
    remoting_requests,
    /// Route lookups answered from pushed routes.
    routes,
    /// Messages stored for producers.
    sent,
    /// Requests that stored messages.
    send_requests,
    /// Messages handed out under a lease.
    received,
    /// Messages read from an offset the client keeps.
    pulled,
    /// Messages acknowledged.
    acked,
    /// Receipt handles refused as stale.
    stale_receipts,
    /// Messages returned because their receiver was gone.
    given_back,
    /// Messages stored as dead letters because their last delivery was not acknowledged, or their consumer gave them
    /// up.
    dead,
    /// Leases whose length was changed.
    invisible_changed,
    /// Renewals of leases for receivers that asked for them.
    renewed,
    /// Polls that wait for messages now.
    parked,
    /// Requests handed to the control plane.
    cold_calls,
    /// Unknown names handed to the control plane.
    demoted,
    /// Open telemetry streams.
    telemetry_streams,
    /// Sends and reads refused because a user's limit was used up.
    over_user_limit,
    /// The same for a topic.
    over_topic_limit,
    /// The same for a user in a topic.
    over_user_topic_limit,
    /// Requests refused because their user had too many connections.
    over_user_connections,
    /// Spans dropped because too many waited for their export.
    dropped_spans,
}

impl Counters {
    /// Counts a request that has ended now.
    pub fn record(&self, timing: &Timing, outcome: Outcome) {
        self.record_at(timing, outcome, Instant::now());
    }

    /// Counts a request that ended at `end`.
    pub fn record_at(&self, timing: &Timing, outcome: Outcome, end: Instant) {
        self.latencies.record_at(timing, outcome, end);
        if let Some(context) = timing.context
            && !self.spans.add(context, timing.exchange(), outcome, timing.elapsed(end))
        {
            self.dropped_spans.add(1);
        }
    }
}

/// A number that many threads update.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Subtracts `n`.
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// The current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
