//! Leases of a Java broker's pop consumers, by queue.

use crate::progress::lease::Lease;
use std::collections::BTreeMap;

/// The leases of one queue of a group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct JavaLeases {
    /// The first message of all known pops.
    pub(crate) first: u64,
    pub(crate) leases: BTreeMap<u64, Lease>,
    /// Whether there were too many leases to remember: everything from `first` on is redelivered.
    pub(crate) is_rewound: bool,
}

/// Group, topic and queue.
pub(crate) type OfQueue = (String, String, u32);

/// Prefix of the revive topics, one for each cluster.
pub(crate) const REVIVE_PREFIX: &str = "rmq_sys_REVIVE_LOG_";
