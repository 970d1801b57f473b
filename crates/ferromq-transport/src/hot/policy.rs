//! Policies for producers and clients.
//!
//! The control plane sets them, and knows where the values come from. Restrictions by the broker's own permission and
//! role are part of the permissions of the topics it pushes.

use std::{str::FromStr, time::Duration};

use ferromq_store::record::properties;

/// Longest wait of a client for messages. A time this far ahead exists on every clock.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// Protocols over which a message's type must match its topic's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeChecks {
    /// RocketMQ's proxy checks it.
    pub grpc: bool,
    /// RocketMQ's broker does not check it.
    pub remoting: bool,
}

impl FromStr for TypeChecks {
    type Err = UnknownTypeChecks;

    /// Parses `none`, `grpc` or `all`.
    fn from_str(text: &str) -> Result<Self, UnknownTypeChecks> {
        let (grpc, remoting) = match text {
            "none" => (false, false),
            "grpc" => (true, false),
            "all" => (true, true),
            _ => return Err(UnknownTypeChecks(text.to_owned())),
        };
        Ok(Self { grpc, remoting })
    }
}

/// A text that names no type checks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown type checks {0:?}; use none, grpc or all")]
pub struct UnknownTypeChecks(String);

/// How a broker accepts messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendPolicy {
    region: String,
    is_traced: bool,
    stamp: Vec<u8>,
    /// Whether half messages are refused.
    pub rejects_transactions: bool,
    /// Where messages of another type than their topic's are refused.
    pub type_checks: TypeChecks,
}

impl SendPolicy {
    /// Creates a policy that accepts every message over remoting, and messages of their topic's type over gRPC.
    #[must_use]
    pub fn new(cluster: &str, region: &str, is_traced: bool) -> Self {
        let mut stamp = Vec::new();
        let traced = if is_traced { "true" } else { "false" };
        for (name, value) in [("MSG_REGION", region), ("TRACE_ON", traced), ("CLUSTER", cluster)] {
            properties::push(&mut stamp, name, value);
        }
        let type_checks = TypeChecks { grpc: true, remoting: false };
        Self { region: region.to_owned(), is_traced, stamp, rejects_transactions: false, type_checks }
    }

    /// The broker's region, for the traces of consumers.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Whether messages are traced, in RocketMQ's text form.
    #[must_use]
    pub fn traced(&self) -> &'static str {
        if self.is_traced { "true" } else { "false" }
    }

    /// Properties that are added to each message sent alone; the cluster says where a reply to it goes.
    pub(crate) fn stamp(&self) -> &[u8] {
        &self.stamp
    }
}

impl Default for SendPolicy {
    /// RocketMQ's default names.
    fn default() -> Self {
        Self::new("DefaultCluster", "DefaultRegion", true)
    }
}

/// Limits for gRPC clients, and how an ordered group redelivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPolicy {
    /// Shortest invisible duration of a receive that is not renewed.
    pub min_invisible: Duration,
    /// Longest invisible duration of a receive or a change.
    pub max_invisible: Duration,
    /// How far ahead a delivery time may be; the store has a limit for both protocols.
    pub max_delay: Duration,
    /// Largest request that sends messages, in bytes.
    pub max_send: usize,
    /// Whether topics are created on first use. If not, a send to an unknown topic gets the proxy's type error.
    pub creates_topics: bool,
    /// An ordered group redelivers all messages from the first unacknowledged one on; else only unacknowledged ones.
    pub redelivers_from_first: bool,
}

impl Default for ClientPolicy {
    /// Generous: RocketMQ allows less.
    fn default() -> Self {
        Self {
            min_invisible: Duration::from_millis(1),
            max_invisible: Duration::from_secs(12 * 60 * 60),
            max_delay: Duration::MAX,
            // As in RocketMQ's proxy.
            max_send: 130 << 20,
            creates_topics: true,
            redelivers_from_first: false,
        }
    }
}

/// Bounds on how long a gRPC receive waits for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Shortest wait, whatever the client asks for; a client with less time is refused.
    pub min: Duration,
    /// Longest wait.
    pub max: Duration,
}

impl Default for Waits {
    /// RocketMQ's defaults.
    fn default() -> Self {
        Self { min: Duration::from_secs(5), max: Duration::from_secs(20) }
    }
}
