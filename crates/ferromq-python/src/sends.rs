//! Sends of single messages: bindings of `ferromq_client::sends`.

use std::{
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use ferromq_client::{
    Patience,
    sends::{Outgoing, SendQueue, Sends, TopicRoute},
};
use pyo3::prelude::*;

use crate::{
    calls::{self, interruptible, limit},
    client::{Item, MessageIds},
    completions::{Outcome, PyCompletions},
    framed_calls::PyFramedCalls,
    process::Owned,
};

/// 2021-01-01T00:00:00Z, from which the seconds in message ids count.
const ID_EPOCH: u64 = 1_609_459_200;

/// Sends single messages to topics whose route it was given. Messages of waiting threads share requests.
#[pyclass(name = "Sends", module = "ferromq._ferromq", frozen)]
pub struct PySends(Owned<Arc<Sends>>);

#[pymethods]
impl PySends {
    #[new]
    fn new(calls: &PyFramedCalls, client_id: String, process: [u8; 8], host: String) -> PyResult<Self> {
        let connections = Arc::clone(calls.connections()?);
        Ok(Self(Owned::new("client", Arc::new(Sends::new(connections, client_id, process, host)))))
    }

    /// Let messages of *topic* go to *queues* (id, endpoint, broker name) for the next *seconds*; message groups to *group_queues*.
    ///
    /// *brokers* are those to send to from here; a message whose turn is at another one goes another way. *first* is the
    /// turn of the first message; a body has at most *max_body* bytes.
    #[allow(clippy::too_many_arguments)] // one call for each route
    fn put_route(
        &self,
        topic: &str,
        queues: Vec<(i32, String, String)>,
        group_queues: Vec<(i32, String, String)>,
        seconds: f64,
        max_body: usize,
        brokers: Vec<String>,
        first: usize,
    ) -> PyResult<()> {
        let queues_of = |queues: Vec<(i32, String, String)>| {
            let queue = |(queue_id, endpoint, name): (i32, String, String)| SendQueue {
                queue_id,
                endpoint: endpoint.into(),
                broker_name: name.into(),
            };
            queues.into_iter().map(queue).collect()
        };
        let route = TopicRoute {
            queues: queues_of(queues),
            group_queues: queues_of(group_queues),
            until: Instant::now() + limit(seconds),
            max_body,
            brokers: brokers.into_iter().map(Into::into).collect(),
            first,
        };
        self.0.get()?.put_route(topic, route);
        Ok(())
    }

    /// Forget the routes with a queue at *endpoint*, all of them for None.
    #[pyo3(signature = (endpoint))]
    fn drop_routes(&self, endpoint: Option<&str>) -> PyResult<()> {
        self.0.get()?.drop_routes(endpoint);
        Ok(())
    }

    /// Send no message to a broker for *seconds*: they go to others, or another way.
    fn avoid(&self, endpoint: &str, seconds: f64) -> PyResult<()> {
        self.0.get()?.avoid(endpoint, Instant::now() + limit(seconds));
        Ok(())
    }

    /// Send messages to a broker again: it answers.
    fn trust(&self, endpoint: &str) -> PyResult<()> {
        self.0.get()?.trust(endpoint);
        Ok(())
    }

    /// Send a message and wait for its `SendReceipt`.
    ///
    /// Returns None, and does nothing, without a route for it, and a `FailedSend` for a failure. Waits without the
    /// interpreter lock, *timeout* seconds at most.
    fn send<'py>(
        &self,
        py: Python<'py>,
        topic: &str,
        message: &Bound<'py, PyAny>,
        born_timestamp: i64,
        timeout: f64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let sends = self.0.get()?;
        let item = Item::of(message)?;
        let (headers, body) = item.parts();
        let outgoing = Outgoing { topic, headers, body, born_timestamp };
        let until = Instant::now() + limit(timeout);
        let (raised, outcome) = interruptible(py, |is_interrupted| {
            sends.send(&outgoing, id_seconds(), Patience { until, is_interrupted })
        });
        raised?;
        outcome.map(|outcome| calls::sent(py, outcome)).transpose()
    }

    /// Start a send, whose outcome comes to *completions* under *number*, and return the id and the broker.
    ///
    /// Return None, and do nothing, without a route for it, and if no connection to its broker is open.
    fn start(
        &self,
        topic: &str,
        message: &Bound<'_, PyAny>,
        born_timestamp: i64,
        timeout: f64,
        completions: &PyCompletions,
        number: u64,
    ) -> PyResult<Option<(MessageIds, String)>> {
        let item = Item::of(message)?;
        let (headers, body) = item.parts();
        let outgoing = Outgoing { topic, headers, body, born_timestamp };
        let completions = Arc::clone(completions.queue()?);
        let done = move |outcome| completions.put(Outcome::Sent(number, outcome));
        let until = Instant::now() + limit(timeout);
        let started = self.0.get()?.start(&outgoing, id_seconds(), until, done);
        Ok(started.map(|(ids, endpoint)| (MessageIds(ids), endpoint.to_string())))
    }

    /// Return whether there is a route of *topic*, and it is not too old.
    fn has_route(&self, topic: &str) -> PyResult<bool> {
        Ok(self.0.get()?.has_route(topic))
    }
}

/// The seconds since [`ID_EPOCH`].
fn id_seconds() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    u32::try_from(now.saturating_sub(ID_EPOCH)).unwrap_or_default()
}
