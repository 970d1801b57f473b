//! Consume queues: entries by queue offset, recovery, cleaning, deletion, and searches by time.

pub mod admin_files;
pub(crate) mod cleaning;
pub(crate) mod consume_queue;
pub(crate) mod deletion;
pub(crate) mod dirty_queues;
pub(crate) mod known_entries;
pub mod queue_entry;
pub mod queue_list;
pub mod queue_marks;
pub(crate) mod queue_table;
pub(crate) mod recovery;
pub(crate) mod time_search;
pub(crate) mod visible;

pub use queue_marks::QueueAccess;
