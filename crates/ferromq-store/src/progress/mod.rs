//! Consumer progress: leases, committed offsets, ordered receives, and their files.

pub(crate) mod group_admin;
pub(crate) mod group_progress;
pub(crate) mod java_leases;
pub(crate) mod java_pops;
pub(crate) mod lease;
pub mod lease_file;
mod lease_verbs;
pub mod offset_file;
pub(crate) mod order_file;
pub(crate) mod progress_files;
pub(crate) mod receive;
pub(crate) mod receive_ordered;
pub(crate) mod receive_types;
mod taking;

pub use lease::Delivery;
pub use receive::Groups;
pub use receive_types::{
    Ahead, Begin, Cold, Leased, MAX_ATTEMPT_ID, Ordered, ReadAhead, ReceiptHandle, ReceiveRequest, Received,
};
