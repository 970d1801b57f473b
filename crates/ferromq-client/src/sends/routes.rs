//! Where messages of a topic go.

use std::{
    collections::HashMap,
    sync::{
        Arc, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use super::{AsyncGather, Gather, has_passed};
use crate::{
    codec::{Kind, queue_of_group},
    sync,
};

/// A queue that takes messages, and the broker it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendQueue {
    /// Its number in the topic at that broker.
    pub queue_id: i32,
    /// The broker, `host:port`.
    pub endpoint: Arc<str>,
    /// The broker's name.
    pub broker_name: Arc<str>,
}

/// The queues of a topic.
#[derive(Debug, Clone)]
pub struct TopicRoute {
    /// Those that messages without a group use in turn.
    pub queues: Vec<SendQueue>,
    /// Those that message groups are spread over, in the route's order.
    pub group_queues: Vec<SendQueue>,
    /// When the route is too old.
    pub until: Instant,
    /// Largest body in bytes.
    pub max_body: usize,
    /// The first turn: clients that send one message each begin at different queues.
    pub first: usize,
}

#[derive(Debug, Default)]
pub(super) struct Routes(RwLock<HashMap<Box<str>, Arc<Entry>>>);

/// A route in use.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) topic: Arc<str>,
    route: TopicRoute,
    turn: AtomicUsize,
    /// By broker: messages without a group, and those with one. A broker gives a topic without a type that of the first
    /// message, so the two do not share requests.
    gathers: HashMap<Arc<str>, [Gathers; 2]>,
}

/// The messages of threads, and of event loops.
#[derive(Debug, Default)]
pub(super) struct Gathers {
    pub(super) threads: Gather,
    pub(super) loops: Arc<AsyncGather>,
}

impl Routes {
    pub(super) fn put(&self, topic: &str, route: TopicRoute) {
        let endpoints =
            route.queues.iter().chain(&route.group_queues).map(|queue| Arc::clone(&queue.endpoint));
        let gathers = endpoints.map(|endpoint| (endpoint, <[Gathers; 2]>::default())).collect();
        let turn = AtomicUsize::new(route.first);
        let entry = Arc::new(Entry { topic: topic.into(), route, turn, gathers });
        sync::write(&self.0).insert(topic.into(), entry);
    }

    pub(super) fn clear(&self) {
        sync::write(&self.0).clear();
    }

    pub(super) fn get(&self, topic: &str) -> Option<Arc<Entry>> {
        let entry = sync::read(&self.0).get(topic).map(Arc::clone)?;
        (!has_passed(entry.route.until)).then_some(entry)
    }
}

impl Entry {
    /// The queue of a message, and where it waits for company. `None` if there is no queue for a message of this kind, or
    /// the broker does not take a body of its size.
    pub(super) fn choose(&self, kind: &Kind, body: usize) -> Option<(&SendQueue, &Gathers)> {
        let queues = self.queues(kind);
        if queues.is_empty() || !(1..=self.route.max_body).contains(&body) {
            return None;
        }
        let index = match kind {
            Kind::Fifo(group) => queue_of_group(group, u32::try_from(queues.len()).ok()?) as usize,
            _ => self.turn.fetch_add(1, Ordering::Relaxed) % queues.len(),
        };
        let queue = queues.get(index)?;
        let [plain, grouped] = self.gathers.get(&queue.endpoint)?;
        Some((queue, if matches!(kind, Kind::Fifo(_)) { grouped } else { plain }))
    }

    fn queues(&self, kind: &Kind) -> &[SendQueue] {
        if matches!(kind, Kind::Fifo(_)) { &self.route.group_queues } else { &self.route.queues }
    }
}
