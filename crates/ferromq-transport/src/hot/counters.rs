//! Counters of a server, for people and tests. Nothing decides by them.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a server has done since it started, and what it holds now.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
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
    /// Route lookups answered from routes the control plane pushed.
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
    /// Messages given back because their receiver was gone.
    given_back,
    /// Messages kept as dead because their last delivery was not acknowledged, or their consumer gave them up.
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
}

/// One number that many threads add to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Takes `n` away.
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }

    /// The number now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
