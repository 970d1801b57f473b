//! Tools for threads: wake-ups and parallel work.

pub(crate) mod parallel;
pub(crate) mod signal;
pub(crate) mod thread;
pub(crate) mod wake;
