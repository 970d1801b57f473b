//! Counts acknowledged messages that no flush has covered yet, for policies that limit them.
//!
//! Lives under the append lock, and only if the policy needs it.

use std::collections::{BTreeMap, VecDeque};

use crate::record::encode::NewMessage;

/// Messages appended and flushed since the limit was set.
#[derive(Debug, Default)]
struct Count {
    limit: u32,
    appended: u64,
    /// Messages that the running flush covers.
    covered: u64,
    flushed: u64,
}

impl Count {
    fn unflushed(&self) -> u64 {
        self.appended - self.flushed
    }

    fn is_over(&self) -> bool {
        self.unflushed() > u64::from(self.limit)
    }

    /// Half of the limit: a flush that begins now should end before the limit is reached.
    fn is_half(&self) -> bool {
        self.unflushed().saturating_mul(2) >= u64::from(self.limit)
    }
}

/// What to do after an append.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AppendVerdict {
    /// It must be flushed before it is acknowledged.
    pub(crate) is_held: bool,
    /// A flush should begin in the background.
    pub(crate) is_due: bool,
}

/// The message counts of a log and the appends held until their flush.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    /// Each append has its own flush.
    is_each: bool,
    all: Option<Count>,
    topics: BTreeMap<Box<str>, Count>,
    /// Ends of held appends, oldest first.
    held: VecDeque<u64>,
}

impl Unflushed {
    /// Begins to count; `None` if there is nothing to count.
    pub(crate) fn new(
        is_each: bool,
        limit: Option<u32>,
        topics: &BTreeMap<String, u32>,
    ) -> Option<Box<Self>> {
        if !is_each && limit.is_none() && topics.is_empty() {
            return None;
        }
        let count = |limit| Count { limit, ..Count::default() };
        Some(Box::new(Self {
            is_each,
            all: limit.map(count),
            topics: topics.iter().map(|(topic, limit)| (topic.as_str().into(), count(*limit))).collect(),
            held: VecDeque::new(),
        }))
    }

    /// Counts an append that ends at `end`.
    pub(crate) fn add(&mut self, messages: &[NewMessage<'_>], end: u64) -> AppendVerdict {
        let mut verdict = AppendVerdict { is_held: self.is_each, is_due: false };
        let mut look = |count: &Count| {
            verdict.is_held |= count.is_over();
            verdict.is_due |= count.is_half();
        };
        if let Some(all) = &mut self.all {
            all.appended += messages.len() as u64;
            look(all);
        }
        for message in messages {
            // Checked after each message: the last one of a topic sees the full count.
            if let Some(count) = self.topics.get_mut(message.topic) {
                count.appended += 1;
                look(count);
            }
        }
        if verdict.is_held {
            self.held.push_back(end);
        }
        verdict
    }

    /// Whether the append that ends at `end` must be flushed before it is acknowledged.
    pub(crate) fn holds(&self, end: u64) -> bool {
        self.held.binary_search(&end).is_ok()
    }

    /// Begins a flush of everything counted so far. Returns how far it may go.
    pub(crate) fn begin_flush(&mut self, written: u64) -> u64 {
        for count in self.all.iter_mut().chain(self.topics.values_mut()) {
            count.covered = count.appended;
        }
        if self.is_each { self.held.front().map_or(written, |end| *end) } else { written }
    }

    /// Ends a successful flush.
    pub(crate) fn end_flush(&mut self, flushed: u64) {
        for count in self.all.iter_mut().chain(self.topics.values_mut()) {
            count.flushed = count.covered;
        }
        self.release(flushed);
    }

    /// Releases appends that end at or before `flushed`.
    pub(crate) fn release(&mut self, flushed: u64) {
        while self.held.front().is_some_and(|end| *end <= flushed) {
            self.held.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_append_that_is_flushed_already_keeps_no_flush_from_going_on() {
        let mut unflushed = Unflushed::new(true, None, &BTreeMap::new()).unwrap();
        unflushed.add(&[], 10);
        unflushed.add(&[], 20);
        assert_eq!(unflushed.begin_flush(30), 10, "a flush of its own");
        // A flush that began before the policy was `each` went further.
        unflushed.release(20);
        assert_eq!(unflushed.begin_flush(30), 30);
        unflushed.end_flush(30);
    }
}
