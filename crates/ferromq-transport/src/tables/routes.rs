//! Encoded routes that a name server's control plane pushes, and the answers to request 105 made from them.
//!
//! The control plane decides which brokers serve a topic, and answers requests for routes that are not here. A route
//! that was encoded before a change is never accepted after it, see [`Routes::put`].

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

/// A route in the two forms that clients read.
#[derive(Debug, Clone)]
struct EncodedRoute {
    /// Standard JSON.
    standard: Bytes,
    /// With numbers as bare keys, as fastjson writes maps, for older clients.
    legacy: Bytes,
}

/// The routes of a name server.
#[derive(Debug, Default)]
pub struct Routes {
    by_topic: Sharded<Arc<EncodedRoute>>,
    generation: AtomicU64,
    /// Serializes pushes and drops; readers never take it.
    changing: Mutex<()>,
}

impl Routes {
    /// Number of drops so far. Read it before you look up a route to put here.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Adds a route, unless one was dropped since `generation` was read: the route may be out of date.
    pub fn put(&self, topic: &str, generation: u64, standard: Bytes, legacy: Bytes) {
        let _changing = self.changing.lock();
        if generation == self.generation() {
            self.by_topic.insert(topic, Arc::new(EncodedRoute { standard, legacy }));
        }
    }

    /// Removes the routes of `topics`, and rejects those that are being encoded now.
    pub fn drop_topics<'a>(&self, topics: impl IntoIterator<Item = &'a str>) {
        let _changing = self.changing.lock();
        self.generation.fetch_add(1, Ordering::AcqRel);
        topics.into_iter().for_each(|topic| self.by_topic.remove(topic));
    }

    /// Removes all routes, and rejects those that are being encoded now.
    pub fn drop_all(&self) {
        let _changing = self.changing.lock();
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.by_topic.clear();
    }

    /// Answers a request for a route, if the route is here and the client asks for all of it.
    pub(crate) fn answer(&self, request: &RemotingCommand) -> Option<RemotingCommand> {
        // A client in zone mode sees only the brokers of its zone; the control plane picks them.
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
    fn old_clients_get_the_legacy_form_unless_they_accept_the_standard_one() {
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
    fn a_route_encoded_before_a_drop_is_not_accepted_after_it() {
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
