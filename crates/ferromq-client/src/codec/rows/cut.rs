//! Groups rows into requests.

use std::{collections::HashMap, hash::Hash};

use super::{Row, Rows};
use crate::codec::{Kind, queue_of_group};

/// Approximate bytes of a message beside its body and headers.
const OVERHEAD: usize = 160;

/// Limits of a request.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Number of rows.
    pub rows: usize,
    /// Approximate bytes; a single row may exceed them.
    pub bytes: usize,
}

/// Rows of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Index of the topic in [`Rows::topics`].
    pub topic: u32,
    /// Indices of the rows in the batch, ascending.
    pub rows: Vec<u32>,
    /// Number of the queue, or of any queue of the broker that chooses one; 0 from [`Rows::lanes`].
    pub queue: u32,
}

/// An assignment of rows to queues that does not depend on the attempt.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// Number of rows per block. The rows of a block go to the same queue.
    pub block: u64,
    /// Number of the queue of each block, from the block of the batch's first row.
    pub queues: &'a [u32],
    /// Numbers of the queues in the order of the route, for the choice of message groups.
    pub in_order: &'a [u32],
    /// Broker of each queue.
    pub brokers: &'a [u32],
}

/// Rows of one request have the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum BatchKey<'a> {
    Plain(u32),
    Group(&'a str),
    Priority,
    /// The broker chooses the queue, in the order of the rows.
    Chosen(u32),
    /// A row in a request of its own, as delayed ones are.
    Alone(u32),
}

/// Rows whose order is kept: a new request begins when their batch key changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum OrderScope<'a> {
    Key(u32, BatchKey<'a>),
    Topic,
}

/// Order scope, batch key and queue of a row.
struct RowPlacement<'a> {
    scope: OrderScope<'a>,
    key: BatchKey<'a>,
    queue: u32,
}

/// Builds requests row by row.
#[derive(Default)]
struct RequestCutter<'a> {
    parts: Vec<(BatchKey<'a>, usize, Part)>,
    open: HashMap<OrderScope<'a>, usize>,
    last: Option<(OrderScope<'a>, usize)>,
}

impl<'a> RequestCutter<'a> {
    fn add(&mut self, limits: Limits, topic: u32, index: u32, size: usize, placement: &RowPlacement<'a>) {
        let RowPlacement { scope, key, queue } = *placement;
        // Rows of one scope are mostly adjacent.
        let known = self.last.filter(|(before, _)| *before == scope).map(|(_, at)| at);
        let at = known.or_else(|| self.open.get(&scope).copied()).filter(|at| {
            self.parts.get(*at).is_some_and(|(of, bytes, part)| {
                *of == key && part.rows.len() < limits.rows && bytes + size <= limits.bytes
            })
        });
        let at = at.unwrap_or_else(|| {
            self.parts.push((key, 0, Part { topic, rows: Vec::new(), queue }));
            self.open.insert(scope, self.parts.len() - 1);
            self.parts.len() - 1
        });
        if let Some((_, bytes, part)) = self.parts.get_mut(at) {
            part.rows.push(index);
            *bytes += size;
        }
        self.last = Some((scope, at));
    }

    fn parts(self) -> Vec<Part> {
        self.parts.into_iter().map(|(_, _, part)| part).collect()
    }
}

impl Rows {
    /// Groups rows into requests, each of one topic, and of one message group or none, in the order of their first
    /// rows.
    #[must_use]
    pub fn lanes(&self, limits: Limits) -> Vec<Part> {
        let mut cut = RequestCutter::default();
        for (row, index) in self.rows.iter().zip(0u32..) {
            let key = match &row.kind {
                Kind::Normal => BatchKey::Plain(0),
                Kind::Fifo(group) => BatchKey::Group(group),
                Kind::Priority(_) => BatchKey::Priority,
                Kind::At(_) | Kind::After(_) => BatchKey::Alone(index),
            };
            let placement = RowPlacement { scope: OrderScope::Key(row.topic, key), key, queue: 0 };
            cut.add(limits, row.topic, index, row.size(), &placement);
        }
        cut.parts()
    }

    /// Groups the rows of a topic into requests, each for one queue or for a broker that chooses the queue, in the
    /// order of their first rows.
    ///
    /// All rows of a request come before those of the next, whatever their queues. So a row that was not stored has a
    /// higher number than all that were, even if it goes to another queue next time. `None` if a queue does not exist.
    #[must_use]
    pub fn placed(&self, topic: u32, places: &Places<'_>, limits: Limits) -> Option<Vec<Part>> {
        let rows = || self.rows.iter().zip(0u32..).filter(|(row, _)| row.topic == topic);
        let mut cut = RequestCutter::default();
        for (row, index) in rows() {
            let queue = places.queue_of(self.first, index, &row.kind)?;
            let broker = *places.brokers.get(queue as usize)?;
            let key = match &row.kind {
                Kind::Normal => BatchKey::Plain(queue),
                Kind::Fifo(_) | Kind::Priority(_) => BatchKey::Chosen(broker),
                Kind::At(_) | Kind::After(_) => BatchKey::Alone(index),
            };
            cut.add(limits, topic, index, row.size(), &RowPlacement { scope: OrderScope::Topic, key, queue });
        }
        Some(cut.parts())
    }
}

impl Row {
    fn size(&self) -> usize {
        self.end - self.begin + self.body.len() + OVERHEAD
    }
}

impl Places<'_> {
    fn queue_of(&self, first: u64, index: u32, kind: &Kind) -> Option<u32> {
        if let Kind::Fifo(group) = kind {
            let count = u32::try_from(self.in_order.len()).ok()?;
            return self.in_order.get(queue_of_group(group, count) as usize).copied();
        }
        let block = self.block.max(1);
        let at = first.saturating_add(index.into()) / block - first / block;
        self.queues.get(usize::try_from(at).ok()?).copied()
    }
}
