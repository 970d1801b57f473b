//! News of messages that readers can see.

/// New messages in one queue, told to the arrival listener once readers can see them.
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// Topic.
    pub topic: &'a str,
    /// Queue.
    pub queue_id: u32,
    /// The queue's new max offset.
    pub max_offset: u64,
}
