//! What a broker says of itself to those who send: its cluster and region, and what it takes.
//!
//! The control plane sets it; where the values come from is its business. What the broker's own permission and role
//! forbid is in the permissions of the topics it pushes.

use ferromq_store::properties;

/// How a broker takes messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendPolicy {
    region: String,
    is_traced: bool,
    stamp: Vec<u8>,
    /// Half messages are refused.
    pub rejects_transactions: bool,
}

impl SendPolicy {
    /// Makes a policy that takes everything.
    #[must_use]
    pub fn new(cluster: &str, region: &str, is_traced: bool) -> Self {
        let mut stamp = Vec::new();
        let traced = if is_traced { "true" } else { "false" };
        for (name, value) in [("MSG_REGION", region), ("TRACE_ON", traced), ("CLUSTER", cluster)] {
            properties::push(&mut stamp, name, value);
        }
        Self { region: region.to_owned(), is_traced, stamp, rejects_transactions: false }
    }

    /// Where the broker stands: consumers trace by it.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Whether messages are traced, as RocketMQ writes it.
    #[must_use]
    pub fn traced(&self) -> &'static str {
        if self.is_traced { "true" } else { "false" }
    }

    /// The properties every message of a remoting producer gets: the cluster is where an answer to it goes.
    pub(crate) fn stamp(&self) -> &[u8] {
        &self.stamp
    }
}

impl Default for SendPolicy {
    /// RocketMQ's own names.
    fn default() -> Self {
        Self::new("DefaultCluster", "DefaultRegion", true)
    }
}
