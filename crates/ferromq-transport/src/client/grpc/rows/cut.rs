//! Which rows travel together.

use std::{collections::HashMap, hash::Hash};

use super::{Row, Rows};
use crate::client::grpc::{Kind, queue_of_group};

/// What a message costs beside body and headers, about.
const OVERHEAD: usize = 160;

/// How large a request may be.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Rows.
    pub rows: usize,
    /// Bytes, about; a single row may have more.
    pub bytes: usize,
}

/// Rows of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The topic, by its place in [`Rows::topics`].
    pub topic: u32,
    /// The rows, from the first of the batch on, rising.
    pub rows: Vec<u32>,
    /// The queue, by its number, where it was placed; one of its broker where that chooses.
    pub queue: u32,
}

/// Where rows go whose queue does not depend on the attempt.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// Rows of a block go to the same queue.
    pub block: u64,
    /// The number of the queue of each block, from that of the first row of the batch on.
    pub queues: &'a [u32],
    /// The queues as the route tells them, which message groups choose among.
    pub in_order: &'a [u32],
    /// The broker of each queue.
    pub brokers: &'a [u32],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Lane<'a> {
    Plain(u32),
    Group(&'a str),
    Priority,
    /// The broker chooses the queue, in the order of the rows.
    Chosen(u32),
    /// A row that travels alone, as delayed ones do.
    Alone(u32),
}

/// Among which rows the order is kept: those of one are cut where their lane changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Among<'a> {
    Lane(u32, Lane<'a>),
    Topic,
}

/// Where a row travels.
struct Way<'a> {
    among: Among<'a>,
    lane: Lane<'a>,
    queue: u32,
}

/// Requests as they are cut.
#[derive(Default)]
struct Cut<'a> {
    parts: Vec<(Lane<'a>, usize, Part)>,
    open: HashMap<Among<'a>, usize>,
    last: Option<(Among<'a>, usize)>,
}

impl<'a> Cut<'a> {
    fn add(&mut self, limits: Limits, topic: u32, index: u32, size: usize, way: &Way<'a>) {
        let Way { among, lane, queue } = *way;
        // Rows of one lane mostly follow one another.
        let known = self.last.filter(|(before, _)| *before == among).map(|(_, at)| at);
        let at = known.or_else(|| self.open.get(&among).copied()).filter(|at| {
            self.parts.get(*at).is_some_and(|(of, bytes, part)| {
                *of == lane && part.rows.len() < limits.rows && bytes + size <= limits.bytes
            })
        });
        let at = at.unwrap_or_else(|| {
            self.parts.push((lane, 0, Part { topic, rows: Vec::new(), queue }));
            self.open.insert(among, self.parts.len() - 1);
            self.parts.len() - 1
        });
        if let Some((_, bytes, part)) = self.parts.get_mut(at) {
            part.rows.push(index);
            *bytes += size;
        }
        self.last = Some((among, at));
    }

    fn parts(self) -> Vec<Part> {
        self.parts.into_iter().map(|(_, _, part)| part).collect()
    }
}

impl Rows {
    /// Cuts rows into requests, each of one topic, and of one message group or none. By their first rows.
    #[must_use]
    pub fn lanes(&self, limits: Limits) -> Vec<Part> {
        let mut cut = Cut::default();
        for (row, index) in self.rows.iter().zip(0u32..) {
            let lane = match &row.kind {
                Kind::Normal => Lane::Plain(0),
                Kind::Fifo(group) => Lane::Group(group),
                Kind::Priority(_) => Lane::Priority,
                Kind::At(_) | Kind::After(_) => Lane::Alone(index),
            };
            let way = Way { among: Among::Lane(row.topic, lane), lane, queue: 0 };
            cut.add(limits, row.topic, index, row.size(), &way);
        }
        cut.parts()
    }

    /// Cuts the rows of a topic into requests, each to one queue, or to a broker that chooses. By their first rows.
    ///
    /// All rows of a request come before those of the next, whatever their queues: a row that is not stored is then
    /// higher than all that are, also where it belongs to another queue the next time. None where a number is of no queue.
    #[must_use]
    pub fn placed(&self, topic: u32, places: &Places<'_>, limits: Limits) -> Option<Vec<Part>> {
        let rows = || self.rows.iter().zip(0u32..).filter(|(row, _)| row.topic == topic);
        let mut cut = Cut::default();
        for (row, index) in rows() {
            let queue = places.queue_of(self.first, index, &row.kind)?;
            let broker = *places.brokers.get(queue as usize)?;
            let lane = match &row.kind {
                Kind::Normal => Lane::Plain(queue),
                Kind::Fifo(_) | Kind::Priority(_) => Lane::Chosen(broker),
                Kind::At(_) | Kind::After(_) => Lane::Alone(index),
            };
            cut.add(limits, topic, index, row.size(), &Way { among: Among::Topic, lane, queue });
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
