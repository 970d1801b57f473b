//! Consumers' progress: leases, committed offsets, ordered receives, and their files.

pub(crate) mod group_progress;
pub(crate) mod java_leases;
pub(crate) mod java_pops;
pub(crate) mod lease;
pub mod lease_file;
pub mod offset_file;
pub(crate) mod order_file;
pub(crate) mod receive;
pub(crate) mod receive_ordered;
pub(crate) mod receive_types;
