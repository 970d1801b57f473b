//! The store's door: open, append, read, receive, acknowledge, close.

pub(crate) mod group_admin;
pub(crate) mod message_store;
pub(crate) mod stats;
