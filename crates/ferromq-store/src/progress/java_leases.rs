//! Leases of a Java broker's pop consumers, by queue.

use crate::progress::lease::Lease;
use std::collections::BTreeMap;

/// The leases of one queue of a group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct JavaLeases {
    /// The first message of all pops that are known.
    pub(crate) first: u64,
    pub(crate) leases: BTreeMap<u64, Lease>,
    /// There are more leases than are remembered: everything from `first` on comes again.
    pub(crate) is_rewound: bool,
}

/// Group, topic and queue.
pub(crate) type OfQueue = (String, String, u32);

/// Topics of the revive log, one a cluster.
pub(crate) const REVIVE_PREFIX: &str = "rmq_sys_REVIVE_LOG_";
