//! Where messages of a topic go.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use super::{AsyncGather, Gather};
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
    /// The brokers to send to from here. A message whose turn is at another one goes another way.
    pub brokers: HashSet<Arc<str>>,
    /// The first turn: clients that send one message each begin at different queues.
    pub first: usize,
}

#[derive(Debug, Default)]
pub(super) struct Routes(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    topics: HashMap<Box<str>, Arc<Entry>>,
    /// Brokers that did not answer, and until when messages go to others.
    failing: HashMap<Arc<str>, Instant>,
}

/// A route, and the brokers that did not answer a moment ago.
#[derive(Debug)]
pub(super) struct Found {
    entry: Arc<Entry>,
    failing: Vec<Arc<str>>,
}

/// A route in use.
#[derive(Debug)]
pub(super) struct Entry {
    topic: Arc<str>,
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
        let gathers =
            route.brokers.iter().map(|endpoint| (Arc::clone(endpoint), Default::default())).collect();
        let turn = AtomicUsize::new(route.first);
        let entry = Arc::new(Entry { topic: topic.into(), route, turn, gathers });
        sync::write(&self.0).topics.insert(topic.into(), entry);
    }

    /// Forgets the routes with a queue at this broker; all of them for `None`.
    pub(super) fn drop(&self, endpoint: Option<&str>) {
        sync::write(&self.0).topics.retain(|_, entry| endpoint.is_some_and(|broker| !entry.has(broker)));
    }

    /// Lets messages go to other brokers until then. Forgets those whose time has passed.
    pub(super) fn avoid(&self, endpoint: &str, now: Instant, until: Instant) {
        let failing = &mut sync::write(&self.0).failing;
        failing.retain(|_, until| now < *until);
        failing.insert(endpoint.into(), until);
    }

    /// Ends [`Self::avoid`].
    pub(super) fn trust(&self, endpoint: &str) {
        sync::write(&self.0).failing.remove(endpoint);
    }

    pub(super) fn get(&self, topic: &str, now: Instant) -> Option<Found> {
        let table = sync::read(&self.0);
        let entry = table.topics.get(topic).filter(|entry| now < entry.route.until).map(Arc::clone)?;
        let failing = table.failing.iter().filter(|(_, until)| now < **until);
        Some(Found { entry, failing: failing.map(|(endpoint, _)| Arc::clone(endpoint)).collect() })
    }
}

impl Found {
    pub(super) fn topic(&self) -> &Arc<str> {
        &self.entry.topic
    }

    /// The queue of a message, and where it waits for company; at no failing broker. `None` if there is no such queue for
    /// a message of this kind, or the broker is not called from here or does not take a body of its size.
    pub(super) fn choose(&self, kind: &Kind, body: usize) -> Option<(&SendQueue, &Gathers)> {
        let Entry { route, turn, gathers, .. } = &*self.entry;
        if !(1..=route.max_body).contains(&body) {
            return None;
        }
        let answers = |queue: &&SendQueue| !self.failing.contains(&queue.endpoint);
        if let Kind::Fifo(group) = kind {
            // A message group stays in its queue: elsewhere it would be out of order.
            let index = queue_of_group(group, u32::try_from(route.group_queues.len()).ok()?);
            let queue = route.group_queues.get(index as usize).filter(answers)?;
            let [_, grouped] = gathers.get(&queue.endpoint)?;
            return Some((queue, grouped));
        }
        let turn = turn.fetch_add(1, Ordering::Relaxed).checked_rem(route.queues.len())?;
        let (before, after) = route.queues.split_at_checked(turn)?;
        let queue = after.iter().chain(before).find(answers)?;
        let [plain, _] = gathers.get(&queue.endpoint)?;
        Some((queue, plain))
    }
}

impl Entry {
    fn has(&self, endpoint: &str) -> bool {
        let mut queues = self.route.queues.iter().chain(&self.route.group_queues);
        queues.any(|queue| &*queue.endpoint == endpoint)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const AGE: Duration = Duration::from_secs(30);

    fn queues(brokers: &str) -> Vec<SendQueue> {
        let queue = |(index, broker): (usize, char)| SendQueue {
            queue_id: i32::try_from(index).unwrap(),
            endpoint: broker.to_string().into(),
            broker_name: broker.to_string().into(),
        };
        brokers.chars().enumerate().map(queue).collect()
    }

    /// Routes with a topic `orders`, of one queue for each letter of `brokers`; those in `called` are called from here.
    fn routes(brokers: &str, called: &str, now: Instant) -> Routes {
        let routes = Routes::default();
        let route = TopicRoute {
            queues: queues(brokers),
            group_queues: queues(brokers),
            until: now + AGE,
            max_body: 100,
            brokers: called.chars().map(|broker| broker.to_string().into()).collect(),
            first: 0,
        };
        routes.put("orders", route);
        routes
    }

    /// The brokers of the next messages; `-` for one that goes another way.
    fn turns(routes: &Routes, now: Instant, kind: &Kind) -> String {
        let found = routes.get("orders", now).unwrap();
        let broker =
            |_| found.choose(kind, 1).map_or("-".to_owned(), |(queue, _)| queue.endpoint.to_string());
        (0..6).map(broker).collect()
    }

    #[test]
    fn messages_avoid_a_failing_broker_until_its_time_has_passed() {
        let now = Instant::now();
        let routes = routes("abc", "abc", now);
        assert_eq!(turns(&routes, now, &Kind::Normal), "abcabc");
        routes.avoid("b", now, now + AGE / 3);
        assert_eq!(turns(&routes, now, &Kind::Normal), "accacc");
        assert_eq!(turns(&routes, now + AGE / 3, &Kind::Normal), "abcabc");
    }

    #[test]
    fn a_broker_that_answers_is_used_again_at_once() {
        let now = Instant::now();
        let routes = routes("ab", "ab", now);
        routes.avoid("b", now, now + AGE);
        assert_eq!(turns(&routes, now, &Kind::Normal), "aaaaaa");
        routes.trust("b");
        assert_eq!(turns(&routes, now, &Kind::Normal), "ababab");
    }

    #[test]
    fn messages_go_another_way_if_all_brokers_are_failing() {
        let now = Instant::now();
        let routes = routes("ab", "ab", now);
        for broker in ["a", "b"] {
            routes.avoid(broker, now, now + AGE / 2);
        }
        assert_eq!(turns(&routes, now, &Kind::Normal), "------");
        assert_eq!(turns(&routes, now + AGE / 2, &Kind::Normal), "ababab");
    }

    #[test]
    fn a_message_whose_turn_is_at_a_broker_that_is_not_called_from_here_goes_another_way() {
        let now = Instant::now();
        let routes = routes("ab", "a", now);
        assert_eq!(turns(&routes, now, &Kind::Normal), "a-a-a-");
        routes.avoid("b", now, now + AGE);
        assert_eq!(turns(&routes, now, &Kind::Normal), "aaaaaa");
    }

    #[test]
    fn a_message_group_stays_at_its_broker_and_goes_another_way_while_that_is_failing() {
        let now = Instant::now();
        let routes = routes("ab", "ab", now);
        let kinds = ["a", "b", "c", "d"].map(|group| Kind::Fifo(group.to_owned()));
        let own = kinds.clone().map(|kind| turns(&routes, now, &kind));
        assert!(own.iter().all(|own| own == "aaaaaa" || own == "bbbbbb"));
        assert!(own.contains(&"bbbbbb".to_owned()) && own.contains(&"aaaaaa".to_owned()));
        routes.avoid("b", now, now + AGE);
        for (kind, own) in kinds.iter().zip(own) {
            let expected = if own == "bbbbbb" { "------".to_owned() } else { own };
            assert_eq!(turns(&routes, now, kind), expected);
        }
    }

    #[test]
    fn only_topics_of_a_dropped_broker_are_forgotten() {
        let now = Instant::now();
        let routes = routes("ab", "ab", now);
        routes.drop(Some("c"));
        assert!(routes.get("orders", now).is_some());
        assert!(routes.get("orders", now + AGE).is_none(), "too old");
        routes.drop(Some("b"));
        assert!(routes.get("orders", now).is_none());
    }

    #[test]
    fn all_topics_are_forgotten_without_a_broker() {
        let now = Instant::now();
        let routes = routes("a", "a", now);
        routes.drop(None);
        assert!(routes.get("orders", now).is_none());
    }
}
