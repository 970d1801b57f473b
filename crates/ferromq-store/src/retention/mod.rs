//! Retention: which files of the commit log are deleted, when, and how they are archived first; free disk space.

pub(crate) mod archive;
pub(crate) mod cleaner;
pub(crate) mod disk_space;
pub(crate) mod policy;
pub(crate) mod rules;

pub use archive::ExpiredFile;
pub use cleaner::{CleanReport, CleaningStats};
pub use policy::{Decision, DiskUsage, FileFacts, OnExpiry, Retention, RetentionFacts, RetentionPolicy};
