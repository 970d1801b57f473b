//! Decoders of a store's files, for programs that read a store directory.
//!
//! `docs/storage-format.md` describes the formats. [`crate::MessageStore`] runs a store.

pub use crate::{
    delayed::timer::checkpoint_files,
    files::anchor,
    index::{index_file, unindexed_range},
    log::flush_mark,
    progress::{lease_file, offset_file},
    queues::{admin_files, consume_queue, queue_list, queue_marks},
    record::{message, property_crc},
    recovery::{checkpoint, last_shutdown},
};
