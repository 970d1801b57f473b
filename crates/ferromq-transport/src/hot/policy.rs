//! Policies for producers and clients.
//!
//! The control plane sets it; where the values come from is its business. What the broker's own permission and role
//! forbid is in the permissions of the topics it pushes.

use std::{str::FromStr, time::Duration};

use ferromq_store::record::properties;

/// The longest wait of a client for messages. A time this far ahead exists on every clock.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// Over which protocols a topic's type is held against a message's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeChecks {
    /// What RocketMQ's proxy does.
    pub grpc: bool,
    /// What its broker does not do.
    pub remoting: bool,
}

impl FromStr for TypeChecks {
    type Err = UnknownChecks;

    /// Reads `none`, `grpc` or `all`.
    fn from_str(text: &str) -> Result<Self, UnknownChecks> {
        let (grpc, remoting) = match text {
            "none" => (false, false),
            "grpc" => (true, false),
            "all" => (true, true),
            _ => return Err(UnknownChecks(text.to_owned())),
        };
        Ok(Self { grpc, remoting })
    }
}

/// A word that says nothing about checks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not say where message types are checked; use none, grpc or all")]
pub struct UnknownChecks(String);

/// How a broker takes messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendPolicy {
    region: String,
    is_traced: bool,
    stamp: Vec<u8>,
    /// Half messages are refused.
    pub rejects_transactions: bool,
    /// Where messages are refused that are not of their topic's type.
    pub type_checks: TypeChecks,
}

impl SendPolicy {
    /// Makes a policy that takes everything over remoting, and over gRPC what is of its topic's type.
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

    /// The properties every message gets that comes alone: the cluster is where an answer to it goes.
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

/// What clients may ask for over gRPC, and what comes again in an ordered group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPolicy {
    /// Shortest invisible duration of a receive that is not renewed.
    pub min_invisible: Duration,
    /// Longest invisible duration of a receive or a change.
    pub max_invisible: Duration,
    /// How far ahead a time of delivery may be; the store has a limit for both protocols.
    pub max_delay: Duration,
    /// Whether topics are created on first use. If not, a send to an unknown topic gets the proxy's type error.
    pub creates_topics: bool,
    /// An ordered group gets all messages again from the first one that is not acknowledged, not those alone that are
    /// not.
    pub redelivers_from_first: bool,
}

impl Default for ClientPolicy {
    /// Generous: RocketMQ allows less.
    fn default() -> Self {
        Self {
            min_invisible: Duration::from_millis(1),
            max_invisible: Duration::from_secs(12 * 60 * 60),
            max_delay: Duration::MAX,
            creates_topics: true,
            redelivers_from_first: false,
        }
    }
}

/// How long a receive may wait for messages over gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// The shortest wait, whatever is asked for; a client with less time is refused.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
}

impl Default for Waits {
    /// RocketMQ's own.
    fn default() -> Self {
        Self { min: Duration::from_secs(5), max: Duration::from_secs(20) }
    }
}
