//! The key index: messages found by key.

pub(crate) mod index_file;
pub(crate) mod key_index;
pub(crate) mod unindexed_range;
