//! The public store: opening and closing it, and a handle for each concern.

pub(crate) mod admin;
mod assembly;
mod backup;
pub(crate) mod message_store;
pub(crate) mod queue_admin;
pub(crate) mod stats;
pub(crate) mod storage;
