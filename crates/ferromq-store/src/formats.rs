//! Decoders of a store's files, for programs that read a store directory.
//!
//! `docs/storage-format.md` describes the formats. [`crate::MessageStore`] runs a store.

pub use ferromq_protocol::compression;

pub use crate::{
    delayed::timer::checkpoint_files,
    files::anchor,
    index::{index_file, unindexed_range},
    log::flush_mark,
    progress::{lease_file, offset_file},
    queues::{admin_files, queue_entry, queue_list, queue_marks},
    record::{encode, message, property_crc},
    recovery::{checkpoint, last_shutdown},
};
