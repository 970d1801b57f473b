//! What is known of a queue's entries when a store is opened.

/// What is known of the entries when the store is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KnownEntries {
    /// We closed the store: each queue ends where its extent says.
    Closed,
    /// Entries that lead below the limit are whole and durable; others may be anything.
    DurableBelow(u64),
    /// Nothing: entries that lead below the limit are kept up to the first hole. Where `is_cut`, the rest is erased.
    Nothing { limit: u64, is_cut: bool },
}

impl KnownEntries {
    /// What is still known of a queue that is read later, while the store is open.
    pub(crate) fn later(self, end: u64) -> Self {
        match self {
            // Its extent is no longer looked at.
            Self::Closed => Self::DurableBelow(end),
            Self::Nothing { limit, .. } => Self::Nothing { limit, is_cut: true },
            known @ Self::DurableBelow(_) => known,
        }
    }

    /// No entry is missing that leads below it.
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
