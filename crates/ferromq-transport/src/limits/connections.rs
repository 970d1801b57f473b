//! Open connections by user.
//!
//! A connection counts for a user from its first request that is authenticated as that user, until it closes. One that
//! finds no room stays open, and its requests are refused: it may carry requests of other users, and a client whose
//! connection is closed opens the next one at once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tracing::warn;

use super::EACH;
use crate::{LogLimiter, hot::Counters};

/// Users that one connection counts for. A user beyond that is refused on the connection if it has a limit.
const MOST_USERS: usize = 64;

/// A limit that lifts that of each user.
pub(crate) const UNLIMITED: u64 = i64::MAX as u64;

/// Why a request is refused: its user has too many connections, or its connection too many users.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooManyConnections {
    /// The user has too many connections.
    #[error(
        "connections of the user {user} are at their limit of {limit}; close one of them, or have connections in the \
         option limits raised"
    )]
    OfUser { user: Arc<str>, limit: u64 },
    /// The connection has too many users.
    #[error(
        "the connection carries requests of {MOST_USERS} users already, and the user {user} has a limit of connections; \
         open another connection for it"
    )]
    Shared { user: Arc<str> },
}

/// The most connections of each user, and those that count. Shared by the listeners of a server.
#[derive(Debug, Default)]
pub(crate) struct UserConnections {
    is_on: AtomicBool,
    state: Mutex<State>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct State {
    /// By user, or `*`; `UNLIMITED`: none.
    limits: HashMap<Box<str>, u64>,
    /// The places of each user, oldest first.
    taken: HashMap<Arc<str>, BTreeMap<u64, Arc<Place>>>,
    next: u64,
}

/// A connection that counts for a user.
#[derive(Debug)]
struct Place {
    user: Arc<str>,
    number: u64,
    /// A changed limit has no room for it any more.
    is_revoked: AtomicBool,
}

impl State {
    fn limit(&self, user: &str) -> Option<u64> {
        self.limits.get(user).or_else(|| self.limits.get(EACH)).copied().filter(|limit| *limit < UNLIMITED)
    }

    /// Revokes the newest places of a user that its limit has no room for.
    fn shrink(&mut self, user: &str, limit: u64) {
        let Some(taken) = self.taken.get_mut(user) else { return };
        while taken.len() as u64 > limit
            && let Some((_, place)) = taken.pop_last()
        {
            place.is_revoked.store(true, Ordering::Relaxed);
        }
    }
}

impl UserConnections {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self { counters, ..Self::default() }
    }

    /// Replaces all limits. Open connections keep their places, the oldest ones first.
    pub(super) fn set(&self, limits: HashMap<Box<str>, u64>) {
        let is_on = limits.values().any(|limit| *limit < UNLIMITED);
        let mut state = self.state.lock();
        state.limits = limits;
        let users: Vec<_> = state.taken.keys().cloned().collect();
        for user in users {
            // While there is no limit nothing is counted, so what was counted before is worth nothing later.
            let limit = if is_on { state.limit(&user) } else { Some(0) };
            if let Some(limit) = limit {
                state.shrink(&user, limit);
            }
        }
        state.taken.retain(|_, taken| !taken.is_empty());
        self.is_on.store(is_on, Ordering::Release);
    }

    fn take(&self, user: &Arc<str>, has_room: bool) -> Result<Option<Arc<Place>>, TooManyConnections> {
        let mut state = self.state.lock();
        let limit = state.limit(user);
        if !has_room {
            return match limit {
                Some(_) => Err(TooManyConnections::Shared { user: Arc::clone(user) }),
                None => Ok(None),
            };
        }
        let taken = state.taken.get(user).map_or(0, BTreeMap::len) as u64;
        if let Some(limit) = limit.filter(|limit| taken >= *limit) {
            return Err(TooManyConnections::OfUser { user: Arc::clone(user), limit });
        }
        let number = state.next;
        state.next += 1;
        let place = Arc::new(Place { user: Arc::clone(user), number, is_revoked: AtomicBool::default() });
        state.taken.entry(Arc::clone(user)).or_default().insert(number, Arc::clone(&place));
        Ok(Some(place))
    }

    fn give_back(&self, place: &Place) {
        let mut state = self.state.lock();
        if let Some(taken) = state.taken.get_mut(&place.user) {
            taken.remove(&place.number);
            if taken.is_empty() {
                state.taken.remove(&place.user);
            }
        }
    }
}

/// The users that one connection counts for, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionUsers {
    limits: Arc<UserConnections>,
    places: Mutex<Vec<Arc<Place>>>,
}

impl ConnectionUsers {
    pub(crate) fn new(limits: &Arc<UserConnections>) -> Self {
        Self { limits: Arc::clone(limits), places: Mutex::default() }
    }

    /// Counts the connection for the user of a request, if it does not count already. A request that `is_exempt` is let
    /// through in any case.
    ///
    /// # Errors
    /// `TooManyConnections`; the connection does not count then.
    pub(crate) fn admit(
        &self,
        user: Option<&Arc<str>>,
        is_exempt: impl FnOnce() -> bool,
    ) -> Result<(), TooManyConnections> {
        let Some(user) = user.filter(|_| self.limits.is_on.load(Ordering::Acquire)) else { return Ok(()) };
        match self.count(user) {
            Err(reached) if !is_exempt() => Err(self.refuse(reached)),
            _ => Ok(()),
        }
    }

    fn count(&self, user: &Arc<str>) -> Result<(), TooManyConnections> {
        let mut places = self.places.lock();
        let counts = |place: &Arc<Place>| !place.is_revoked.load(Ordering::Relaxed);
        if places.iter().any(|place| place.user == *user && counts(place)) {
            return Ok(());
        }
        places.retain(counts);
        let place = self.limits.take(user, places.len() < MOST_USERS)?;
        places.extend(place);
        Ok(())
    }

    /// Counts and logs a refusal.
    fn refuse(&self, reached: TooManyConnections) -> TooManyConnections {
        static REFUSED: LogLimiter = LogLimiter::new();
        self.limits.counters.over_user_connections.add(1);
        REFUSED.log(
            |suppressed| warn!(reason = %reached, suppressed, "request refused by a limit of connections"),
        );
        reached
    }

    /// Makes room for other connections, at the end of this one.
    pub(crate) fn leave(&self) {
        for place in self.places.lock().drain(..) {
            self.limits.give_back(&place);
        }
    }
}

impl Drop for ConnectionUsers {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(entries: &[(&str, Option<u64>)]) -> HashMap<Box<str>, u64> {
        entries.iter().map(|(user, limit)| ((*user).into(), limit.unwrap_or(UNLIMITED))).collect()
    }

    fn limited(entries: &[(&str, Option<u64>)]) -> Arc<UserConnections> {
        let connections = Arc::new(UserConnections::default());
        connections.set(limits(entries));
        connections
    }

    fn is_admitted(connection: &ConnectionUsers, user: &str) -> bool {
        connection.admit(Some(&user.into()), || false).is_ok()
    }

    /// How many of 20 connections the user may use.
    fn admitted(connections: &[ConnectionUsers], user: &str) -> Vec<usize> {
        (0..connections.len()).filter(|at| is_admitted(&connections[*at], user)).collect()
    }

    fn open(limits: &Arc<UserConnections>, count: usize) -> Vec<ConnectionUsers> {
        (0..count).map(|_| ConnectionUsers::new(limits)).collect()
    }

    #[test]
    fn a_user_has_its_limit_and_a_closed_connection_makes_room() {
        let limits = limited(&[("ada", Some(2))]);
        let mut connections = open(&limits, 4);
        assert_eq!(admitted(&connections, "ada"), [0, 1]);
        assert_eq!(admitted(&connections, "ada"), [0, 1], "each counts once");
        assert_eq!(admitted(&connections, "bob"), [0, 1, 2, 3]);
        let refused = connections[3].admit(Some(&"ada".into()), || false).unwrap_err().to_string();
        assert!(refused.contains("ada") && refused.contains("limit of 2"), "{refused}");
        assert!(connections[3].admit(None, || false).is_ok());
        assert!(connections[3].admit(Some(&"ada".into()), || true).is_ok(), "an acknowledgement");
        connections.remove(0);
        assert_eq!(admitted(&connections, "ada"), [0, 1]);
        drop(connections);
        assert!(limits.state.lock().taken.is_empty());
    }

    #[test]
    fn the_closest_entry_counts() {
        let limits = limited(&[("*", Some(1)), ("ada", Some(3)), ("root", None)]);
        let connections = open(&limits, 5);
        assert_eq!(["bob", "ada", "root"].map(|user| admitted(&connections, user).len()), [1, 3, 5]);
    }

    #[test]
    fn a_lowered_limit_lets_the_oldest_connections_go_on() {
        let limits = limited(&[("ada", Some(3))]);
        let connections = open(&limits, 4);
        assert_eq!(admitted(&connections, "ada"), [0, 1, 2]);
        limits.set(self::limits(&[("ada", Some(1))]));
        let newest_first: Vec<_> = (0..4).rev().filter(|at| is_admitted(&connections[*at], "ada")).collect();
        assert_eq!(newest_first, [0]);
        limits.set(self::limits(&[("ada", Some(2))]));
        assert_eq!(admitted(&connections, "ada"), [0, 1]);
        limits.set(HashMap::new());
        assert_eq!(admitted(&connections, "ada"), [0, 1, 2, 3]);
        assert!(limits.state.lock().taken.is_empty());
        limits.set(self::limits(&[("ada", Some(1))]));
        assert_eq!(admitted(&connections, "ada"), [0], "what was open before counts with its next request");
    }

    #[test]
    fn a_new_limit_holds_for_connections_that_counted_without_one() {
        let limits = limited(&[("ada", Some(3))]);
        let connections = open(&limits, 3);
        assert_eq!(admitted(&connections, "bob"), [0, 1, 2]);
        limits.set(self::limits(&[("bob", Some(1))]));
        let newest_first: Vec<_> = (0..3).rev().filter(|at| is_admitted(&connections[*at], "bob")).collect();
        assert_eq!(newest_first, [0]);
    }

    #[test]
    fn a_connection_counts_for_a_bounded_number_of_users() {
        let limits = limited(&[("*", Some(9)), ("free", None)]);
        let connection = ConnectionUsers::new(&limits);
        let names: Vec<_> = (0..=MOST_USERS).map(|number| format!("user-{number}")).collect();
        assert_eq!(names.iter().filter(|name| is_admitted(&connection, name)).count(), MOST_USERS);
        let refused = connection.admit(Some(&"one-more".into()), || false).unwrap_err();
        assert_eq!(refused, TooManyConnections::Shared { user: "one-more".into() });
        assert!(is_admitted(&connection, "free") && is_admitted(&connection, "user-0"));
        assert_eq!(connection.places.lock().len(), MOST_USERS);
        drop(connection);
        assert!(limits.state.lock().taken.is_empty());
    }

    #[test]
    fn threads_never_take_more_than_the_limit() {
        let limits = limited(&[("ada", Some(5))]);
        let counts: Vec<_> = std::thread::scope(|scope| {
            let run = || {
                (0..20)
                    .map(|_| ConnectionUsers::new(&limits))
                    .filter(|each| is_admitted(each, "ada"))
                    .collect()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| -> Vec<ConnectionUsers> { thread.join().unwrap() }).collect()
        });
        assert_eq!(counts.iter().map(Vec::len).sum::<usize>(), 5);
        drop(counts);
        assert!(limits.state.lock().taken.is_empty());
    }
}
