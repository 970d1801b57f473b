//! Which records become rows: looked at in place, before anything is copied.

use std::{collections::HashMap, ops::Range, sync::Arc};

use super::marks::Marks;
use ferromq_store::record::MessageView;

/// What must all hold of a record; the default holds of every one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFilter {
    /// The topic is one of them.
    pub topics: Option<Vec<String>>,
    /// The queue is one of them.
    pub queue_ids: Option<Vec<i32>>,
    /// Store timestamps in milliseconds.
    pub stored: Range<i64>,
    /// Born timestamps in milliseconds.
    pub born: Range<i64>,
    /// The tag is one of them.
    pub tags: Option<Vec<String>>,
    /// One of the message's keys is one of them.
    pub keys: Option<Vec<String>>,
    /// Queue offsets.
    pub offsets: Range<u64>,
    /// The queue of the record still holds it.
    pub starts: Option<Arc<QueueStarts>>,
}

/// Where a queue begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueBegins {
    /// The first queue offset …
    pub offset: u64,
    /// … and the physical offset of its record.
    pub physical_offset: u64,
}

/// Where the queues of a store begin, to leave out records of the log that they no longer hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueStarts {
    /// By topic and queue id: the first queue offset, and the physical offset of its record. A queue without entries
    /// begins behind everything.
    pub queues: HashMap<String, HashMap<i32, QueueBegins>>,
    /// Records from this physical offset on may not have been entered into queues when these were listed.
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

/// A range without an end holds the last number, too, which a producer may give as its time.
fn holds(range: &Range<i64>, ms: i64) -> bool {
    range.start <= ms && (ms < range.end || range.end == i64::MAX)
}

impl RowFilter {
    /// Says whether properties have to be read to decide.
    pub(super) fn needs_marks(&self) -> bool {
        self.tags.is_some() || self.keys.is_some()
    }

    /// What can be said without the properties.
    pub(super) fn holds_of_head(&self, view: &MessageView<'_>) -> bool {
        holds(&self.stored, view.store_timestamp)
            && holds(&self.born, view.born_timestamp)
            && self.offsets.contains(&view.queue_offset)
            && self.queue_ids.as_ref().is_none_or(|ids| ids.contains(&view.queue_id))
            && self.topics.as_ref().is_none_or(|topics| topics.iter().any(|topic| topic == view.topic))
            && self.starts.as_ref().is_none_or(|starts| starts.hold(view))
    }

    /// The rest.
    pub(super) fn holds_of_marks(&self, marks: &Marks<'_>) -> bool {
        let has = |wanted: &[String], found: &str| wanted.iter().any(|wanted| wanted == found);
        self.tags.as_ref().is_none_or(|tags| marks.tag.is_some_and(|tag| has(tags, tag)))
            && self.keys.as_ref().is_none_or(|keys| marks.each_key().any(|key| has(keys, key)))
    }
}
