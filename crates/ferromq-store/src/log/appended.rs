//! The result of an append.

/// Where an appended message lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Index in its queue.
    pub queue_offset: u64,
    /// Byte position in the commit log.
    pub physical_offset: u64,
    /// Length of the record in bytes.
    pub len: u32,
}

impl Location {
    /// The location of a duplicate, see [`Log::append_once`](crate::log::Log::append_once): its position in the log is
    /// not known.
    pub const THERE_ALREADY: Self = Self { queue_offset: u64::MAX, physical_offset: u64::MAX, len: 0 };
}

/// The outcome of an append.
#[derive(Debug, Clone)]
pub struct Appended {
    /// One location per message, in the order given.
    pub locations: Vec<Location>,
    /// The broker's time, milliseconds since 1970.
    pub store_timestamp: i64,
    /// End of the last record: pass it to [`Log::when_durable`](crate::log::Log::when_durable).
    pub end: u64,
}
