//! The acknowledgements of a consumer that wait to be sent.

use parking_lot::Mutex;
use pyo3::{exceptions::PyRuntimeError, intern, prelude::*, types::PyString};

use crate::{
    ahead::{Held, InUse},
    process::here,
};

/// Collects acknowledgements by broker; each costs no call of Python.
#[pyclass(name = "AckQueue", module = "ferromq._ferromq", frozen)]
pub struct PyAckQueue {
    made: u32,
    /// Raises why the consumer may not be used.
    check: Py<PyAny>,
    /// Called with a broker that has its first message, `full` messages, or `most` and more.
    grown: Py<PyAny>,
    /// What is renewed: it is left alone before it ends.
    in_use: Py<InUse>,
    /// Whether it waits for renewals under way. An event loop's does not, and calls `check` each time.
    waits: bool,
    full: usize,
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    brokers: Vec<(Py<PyString>, Vec<Py<PyAny>>)>,
    /// Told of each message, if loops keep order.
    in_order: Option<Py<PyAny>>,
    is_closed: bool,
}

#[pymethods]
impl PyAckQueue {
    #[new]
    #[pyo3(signature = (check, grown, in_use, *, full, most, waits=true))]
    fn new(
        check: Py<PyAny>,
        grown: Py<PyAny>,
        in_use: Py<InUse>,
        full: usize,
        most: usize,
        waits: bool,
    ) -> PyResult<Self> {
        if full == 0 || most < full {
            return Err(PyRuntimeError::new_err(format!(
                "full is {full} and most {most}; they must be 0 < full <= most"
            )));
        }
        Ok(Self { made: here(), check, grown, in_use, waits, full, most, state: Mutex::default() })
    }

    /// Return how many messages of the broker at *endpoint* wait.
    fn count(&self, endpoint: &Bound<'_, PyString>) -> PyResult<usize> {
        Ok(self.state.lock().messages(endpoint)?.map_or(0, |messages| messages.len()))
    }

    /// Return the brokers of which messages wait.
    fn endpoints(&self, py: Python<'_>) -> Vec<Py<PyString>> {
        let state = self.state.lock();
        let waiting = state.brokers.iter().filter(|(_, messages)| !messages.is_empty());
        waiting.map(|(endpoint, _)| endpoint.clone_ref(py)).collect()
    }

    /// Take the first *most* messages of the broker at *endpoint*.
    fn take(&self, endpoint: &Bound<'_, PyString>, most: usize) -> PyResult<Vec<Py<PyAny>>> {
        let mut state = self.state.lock();
        Ok(match state.messages(endpoint)? {
            Some(messages) if messages.len() > most => messages.drain(..most).collect(),
            Some(messages) => std::mem::take(messages),
            None => Vec::new(),
        })
    }

    /// Tell *in_order* of each message from now on.
    fn keep_order(&self, in_order: Option<Py<PyAny>>) {
        self.state.lock().in_order = in_order;
    }

    /// Have messages checked before they are taken from now on.
    fn close(&self) {
        self.state.lock().is_closed = true;
    }
}

impl PyAckQueue {
    /// Takes the acknowledgement of a message of the broker at `endpoint`, if `settle` says that it is not settled yet.
    pub fn put(
        &self,
        message: &Bound<'_, PyAny>,
        endpoint: &Bound<'_, PyString>,
        settle: impl FnOnce() -> bool,
    ) -> PyResult<()> {
        let py = message.py();
        let (is_closed, in_order) = {
            let state = self.state.lock();
            (state.is_closed, state.in_order.as_ref().map(|in_order| in_order.clone_ref(py)))
        };
        if is_closed || self.made != here() || !self.waits {
            self.check.call0(py)?;
        }
        if let Some(held) = self.in_use.get().of(message) {
            Held::leave(&held, self.waits)?;
        }
        if !settle() {
            return Ok(());
        }
        if let Some(in_order) = in_order {
            in_order.call_method1(py, intern!(py, "acknowledged"), (message,))?;
        }
        let count = self.state.lock().add(endpoint, message.clone().unbind())?;
        if count == 1 || count == self.full || count >= self.most {
            self.grown.call1(py, (endpoint,))?;
        }
        Ok(())
    }
}

impl State {
    fn messages(&mut self, endpoint: &Bound<'_, PyString>) -> PyResult<Option<&mut Vec<Py<PyAny>>>> {
        for (known, messages) in &mut self.brokers {
            if known.is(endpoint) || known.bind(endpoint.py()).as_any().eq(endpoint)? {
                return Ok(Some(messages));
            }
        }
        Ok(None)
    }

    /// Adds a message, and returns how many of its broker wait.
    fn add(&mut self, endpoint: &Bound<'_, PyString>, message: Py<PyAny>) -> PyResult<usize> {
        if let Some(messages) = self.messages(endpoint)? {
            messages.push(message);
            return Ok(messages.len());
        }
        self.brokers.push((endpoint.clone().unbind(), vec![message]));
        Ok(1)
    }
}
