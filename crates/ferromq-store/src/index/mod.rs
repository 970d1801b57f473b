//! The key index: messages found by key.

pub mod index_file;
pub(crate) mod key_index;
pub mod unindexed_range;
