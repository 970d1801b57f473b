//! RocketMQ's timer wheel, which delivers messages at a time of their own.

mod active_slot;
pub mod checkpoint_files;
pub(crate) mod delivery;
mod due_messages;
mod fill;
pub(crate) mod log;
pub(crate) mod persist;
pub(crate) mod recovery;
pub(crate) mod slot_backlog;
pub(crate) mod state;
#[cfg(test)]
mod tests;
pub mod timed_message;
pub(crate) mod timer_wake;
pub(crate) mod wheel;
