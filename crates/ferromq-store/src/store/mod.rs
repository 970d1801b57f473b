//! The store's door: open, append, read, receive, acknowledge, close.

pub(crate) mod append;
pub(crate) mod counters;
pub(crate) mod get;
pub(crate) mod group_admin;
pub(crate) mod lookup;
pub(crate) mod message_store;
pub(crate) mod put_times;
pub(crate) mod query;
pub(crate) mod receive;
pub(crate) mod receive_ordered;
pub(crate) mod types;
pub(crate) mod unreadable_files;
