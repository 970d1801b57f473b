//! What the connections of both protocols share: sockets, slots, memory, time limits and log limits.

pub(crate) mod answer_memory;
pub(crate) mod budget;
pub(crate) mod log_limiter;
pub(crate) mod progress_deadline;
pub(crate) mod read_closed;
pub(crate) mod slots;
pub(crate) mod sockets;
pub(crate) mod unwritten;
