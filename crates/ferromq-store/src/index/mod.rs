//! The key index, which finds messages by key.

pub mod index_file;
pub(crate) mod key_index;
pub mod unindexed_range;
