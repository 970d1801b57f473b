//! Waits for messages at several brokers at once: bindings of `ferromq_client::Arrivals`.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use ferromq_client::{Arrivals, Connections, Patience, Request, Watched, codec::decode_records};
use ferromq_protocol::remoting::{Fields, codes::framed};
use pyo3::{prelude::*, pybacked::PyBackedBytes};

use crate::{
    calls::{interruptible, limit},
    completions::{Outcome, PyCompletions},
    framed_calls::PyFramedTls,
    process::Owned,
};

/// `Code.MESSAGE_NOT_FOUND`: the time of a request was over.
const MESSAGE_NOT_FOUND: i32 = 40_401;

/// Waits until brokers have messages, and leases none of them. Thread-safe.
#[pyclass(name = "Arrivals", module = "ferromq._ferromq", frozen)]
pub struct PyArrivals {
    arrivals: Owned<Arc<Arrivals>>,
    client_id: String,
}

type Asked = (String, String, PyBackedBytes);

#[pymethods]
impl PyArrivals {
    /// The connections speak TLS with *tls*. Each request has *fields* besides its own.
    #[new]
    #[pyo3(
        signature = (client_id, tls=None, fields=Vec::new()),
        text_signature = "(client_id, tls=None, fields=())"
    )]
    fn new(client_id: String, tls: Option<&PyFramedTls>, fields: Vec<(String, String)>) -> Self {
        let connections = match tls {
            Some(tls) => Connections::over_tls(tls.options()),
            None => Connections::new(),
        };
        let arrivals = Arrivals::over(connections.with_fields(fields.into()));
        Self { arrivals: Owned::new("client", Arc::new(arrivals)), client_id }
    }

    /// Wait until one of the brokers has messages, and return the names of those that have.
    ///
    /// *watched*: name, endpoint and an encoded ReceiveMessageRequest. It returns after *timeout* seconds, and after
    /// `cancel`. A request that was refused counts as one that has messages.
    fn wait(&self, py: Python<'_>, watched: Vec<Asked>, timeout: f64) -> PyResult<Vec<String>> {
        let (arrivals, watched) = (self.arrivals.get()?, self.requests(watched));
        let until = Instant::now() + limit(timeout);
        let (raised, answers) =
            interruptible(py, |is_interrupted| arrivals.wait(&watched, Patience { until, is_interrupted }));
        raised?;
        Ok(arrived(answers))
    }

    /// Begin to wait. Once a broker has messages, *completions* has None under *number*, and `take` the names.
    fn watch(&self, watched: Vec<Asked>, completions: &PyCompletions, number: u64) -> PyResult<()> {
        let (arrivals, watched) = (self.arrivals.get()?, self.requests(watched));
        let completions = Arc::clone(completions.queue()?);
        arrivals.watch(&watched, move || completions.put(Outcome::Arrived(number)));
        Ok(())
    }

    /// Return the names of the brokers that have had messages since the last call.
    fn take(&self) -> PyResult<Vec<String>> {
        Ok(arrived(self.arrivals.get()?.take()))
    }

    /// End the wait of a thread.
    fn cancel(&self) -> PyResult<()> {
        self.arrivals.get()?.interrupt();
        Ok(())
    }

    /// End all waits.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let arrivals = self.arrivals.get()?;
        py.detach(|| arrivals.close());
        Ok(())
    }
}

impl PyArrivals {
    fn requests(&self, watched: Vec<Asked>) -> Vec<Watched> {
        let request = |body| Request {
            code: framed::AWAIT_MESSAGES,
            fields: Fields::from([("client", self.client_id.as_str())]),
            parts: vec![Bytes::from_owner(body)],
            is_poll: true,
        };
        watched
            .into_iter()
            .map(|(name, address, body)| Watched { name, address, request: request(body) })
            .collect()
    }
}

/// The names of the requests that were answered for a message, or refused: a receive says why.
fn arrived(answers: Vec<(String, ferromq_client::Response)>) -> Vec<String> {
    let is_empty =
        |body: &Bytes| decode_records(body).is_ok_and(|answer| answer.status.code == MESSAGE_NOT_FOUND);
    answers.into_iter().filter(|(_, answer)| !is_empty(&answer.body)).map(|(name, _)| name).collect()
}
