//! Encoded routes a name server's control plane pushes, and the answers to request 105 made of them.
//!
//! Which brokers serve a topic is decided by the control plane: what is not here is asked of it. A route that
//! was encoded before a change is never taken after it, see [`Routes::put`].

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    remoting::{RemotingCommand, codes::response},
    tables::Sharded,
};

/// `MQVersion` ordinal of 4.9.4, the first release whose clients read standard JSON.
const FIRST_STANDARD_VERSION: i32 = 401;

/// A route in the two forms clients read.
#[derive(Debug, Clone)]
struct Encoded {
    /// JSON by the book.
    standard: Bytes,
    /// With numbers as bare keys, as fastjson writes maps: older clients.
    legacy: Bytes,
}

/// The routes of a name server.
#[derive(Debug, Default)]
pub struct Routes {
    by_topic: Sharded<Arc<Encoded>>,
    generation: AtomicU64,
    /// Held by those who push and drop; readers never take it.
    changing: Mutex<()>,
}

impl Routes {
    /// The number of drops so far; read before a route is looked up to be put here.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Takes a route, unless one was dropped since `generation` was read: it may be out of date.
    pub fn put(&self, topic: &str, generation: u64, standard: Bytes, legacy: Bytes) {
        let _changing = self.changing.lock();
        if generation == self.generation() {
            self.by_topic.insert(topic, Arc::new(Encoded { standard, legacy }));
        }
    }

    /// Forgets the routes of `topics`, and those that are being made right now.
    pub fn drop_topics<'a>(&self, topics: impl IntoIterator<Item = &'a str>) {
        let _changing = self.changing.lock();
        self.generation.fetch_add(1, Ordering::AcqRel);
        topics.into_iter().for_each(|topic| self.by_topic.remove(topic));
    }

    /// Forgets all routes, and those that are being made right now.
    pub fn drop_all(&self) {
        let _changing = self.changing.lock();
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.by_topic.clear();
    }

    /// Answers a request for a route, where the route is here and all of it is asked for.
    pub(crate) fn answer(&self, request: &RemotingCommand) -> Option<RemotingCommand> {
        // Such a client sees the brokers of its zone only: the control plane picks them.
        if request.field("__ZONE_MODE").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return None;
        }
        let route = self.by_topic.get(request.field("topic")?)?;
        let accepts_standard = request.version >= FIRST_STANDARD_VERSION
            || request.field("acceptStandardJsonOnly").is_some_and(|text| text.eq_ignore_ascii_case("true"));
        let body = if accepts_standard { &route.standard } else { &route.legacy };
        Some(RemotingCommand { body: body.clone(), ..request.respond(response::SUCCESS, None) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::Fields;

    fn ask(topic: &str, version: i32, fields: &[(&str, &str)]) -> RemotingCommand {
        let fields = [("topic", topic)].into_iter().chain(fields.iter().copied());
        let fields: Fields = fields.collect();
        RemotingCommand { version, ..RemotingCommand::request(105, fields, Bytes::new()) }
    }

    fn body(routes: &Routes, request: &RemotingCommand) -> Option<Bytes> {
        routes.answer(request).map(|answer| answer.body)
    }

    #[test]
    fn old_clients_get_the_legacy_form_unless_they_ask_for_the_other() {
        let routes = Routes::default();
        routes.put("t", routes.generation(), "standard".into(), "legacy".into());
        for (version, fields, wanted) in [
            (401, &[][..], "standard"),
            (400, &[], "legacy"),
            (400, &[("acceptStandardJsonOnly", "true")], "standard"),
            (400, &[("acceptStandardJsonOnly", "false")], "legacy"),
        ] {
            assert_eq!(body(&routes, &ask("t", version, fields)).unwrap(), wanted, "{version} {fields:?}");
        }
        assert!(body(&routes, &ask("t", 479, &[("__ZONE_MODE", "true")])).is_none());
        assert!(body(&routes, &ask("other", 479, &[])).is_none());
        assert!(body(&routes, &RemotingCommand::default()).is_none());
    }

    #[test]
    fn a_route_made_before_a_drop_is_not_taken_after_it() {
        let routes = Routes::default();
        let before = routes.generation();
        routes.drop_topics(["other"]);
        routes.put("t", before, "old".into(), "old".into());
        assert!(body(&routes, &ask("t", 479, &[])).is_none());
        routes.put("t", routes.generation(), "new".into(), "new".into());
        assert_eq!(body(&routes, &ask("t", 479, &[])).unwrap(), "new");
        let before = routes.generation();
        routes.drop_all();
        assert!(body(&routes, &ask("t", 479, &[])).is_none());
        routes.put("t", before, "old".into(), "old".into());
        assert!(body(&routes, &ask("t", 479, &[])).is_none());
    }
}
