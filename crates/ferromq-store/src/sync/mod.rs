//! Tools for threads: wake-ups, parallel work, a hash for shared tables.

pub(crate) mod fast_hash;
pub(crate) mod parallel;
pub(crate) mod signal;
