//! What recovery knows about a queue's entries when it opens a store.

/// The entries that recovery may trust.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KnownEntries {
    /// ferromq closed the store: each queue ends at its noted extent.
    Closed,
    /// Entries for records below the limit are complete and durable; later ones may be anything.
    DurableBelow(u64),
    /// Entries for records below the limit are kept up to the first hole. `is_cut` erases the rest.
    Nothing { limit: u64, is_cut: bool },
}

impl KnownEntries {
    /// What stays known for a queue that is read later, while the store is open.
    pub(crate) fn later(self, end: u64) -> Self {
        match self {
            // Its extent no longer holds.
            Self::Closed => Self::DurableBelow(end),
            Self::Nothing { limit, .. } => Self::Nothing { limit, is_cut: true },
            known @ Self::DurableBelow(_) => known,
        }
    }

    /// Entries for records below this physical offset are complete.
    pub(crate) fn whole_below(self) -> u64 {
        match self {
            Self::DurableBelow(limit) => limit,
            Self::Closed | Self::Nothing { .. } => 0,
        }
    }

    pub(super) fn limit(self) -> u64 {
        match self {
            Self::Closed => u64::MAX,
            Self::DurableBelow(limit) | Self::Nothing { limit, .. } => limit,
        }
    }
}
