//! Selects the records that become rows, before anything is copied.

use std::{collections::HashMap, ops::Range, sync::Arc};

use super::row_properties::RowProperties;
use ferromq_store::record::MessageView;

/// Conditions that must all hold for a record. The default selects every record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFilter {
    /// Topics to select.
    pub topics: Option<Vec<String>>,
    /// Queue IDs to select.
    pub queue_ids: Option<Vec<i32>>,
    /// Range of store timestamps, in milliseconds since 1970.
    pub stored: Range<i64>,
    /// Range of born timestamps, in milliseconds since 1970.
    pub born: Range<i64>,
    /// Tags to select.
    pub tags: Option<Vec<String>>,
    /// Keys to select; one of the message's keys must be among them.
    pub keys: Option<Vec<String>>,
    /// Range of queue offsets.
    pub offsets: Range<u64>,
    /// Where the queues begin; older records are left out.
    pub starts: Option<Arc<QueueStarts>>,
}

/// The beginning of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueBegins {
    /// First queue offset.
    pub offset: u64,
    /// Physical offset of its record.
    pub physical_offset: u64,
}

/// Where the queues of a store begin, to leave out records that their queues no longer hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueStarts {
    /// Queue starts by topic and queue ID. An empty queue begins behind the log.
    pub queues: HashMap<String, HashMap<i32, QueueBegins>>,
    /// Records from this physical offset on may have had no queue entries yet.
    pub undecided_from: u64,
}

impl QueueStarts {
    fn hold(&self, view: &MessageView<'_>) -> bool {
        match self.queues.get(view.topic).and_then(|queues| queues.get(&view.queue_id)) {
            Some(begins) => {
                view.queue_offset >= begins.offset && view.physical_offset >= begins.physical_offset
            }
            None => view.physical_offset >= self.undecided_from,
        }
    }
}

impl Default for RowFilter {
    fn default() -> Self {
        Self {
            topics: None,
            queue_ids: None,
            stored: i64::MIN..i64::MAX,
            born: i64::MIN..i64::MAX,
            tags: None,
            keys: None,
            offsets: 0..u64::MAX,
            starts: None,
        }
    }
}

/// An open range includes `i64::MAX`, which is a possible born timestamp.
fn holds(range: &Range<i64>, ms: i64) -> bool {
    range.start <= ms && (ms < range.end || range.end == i64::MAX)
}

impl RowFilter {
    /// Whether the filter needs the properties.
    pub(super) fn needs_properties(&self) -> bool {
        self.tags.is_some() || self.keys.is_some()
    }

    /// Whether the conditions on the fixed fields hold.
    pub(super) fn holds_of_head(&self, view: &MessageView<'_>) -> bool {
        holds(&self.stored, view.store_timestamp)
            && holds(&self.born, view.born_timestamp)
            && self.offsets.contains(&view.queue_offset)
            && self.queue_ids.as_ref().is_none_or(|ids| ids.contains(&view.queue_id))
            && self.topics.as_ref().is_none_or(|topics| topics.iter().any(|topic| topic == view.topic))
            && self.starts.as_ref().is_none_or(|starts| starts.hold(view))
    }

    /// Whether the conditions on the properties hold.
    pub(super) fn holds_of_properties(&self, marks: &RowProperties<'_>) -> bool {
        let has = |wanted: &[String], found: &str| wanted.iter().any(|wanted| wanted == found);
        self.tags.as_ref().is_none_or(|tags| marks.tag.is_some_and(|tag| has(tags, tag)))
            && self.keys.as_ref().is_none_or(|keys| marks.each_key().any(|key| has(keys, key)))
    }
}
