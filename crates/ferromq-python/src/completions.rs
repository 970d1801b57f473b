//! The outcomes of calls that an event loop has started: bindings of `ferromq_client::Completions`.

use std::{os::fd::AsRawFd, sync::Arc};

use ferromq_client::{
    CallError, Completions, Response,
    sends::{Failure, Receipt},
};
use pyo3::{IntoPyObjectExt, prelude::*};

use crate::{calls, error, process::Owned};

/// What was started, by its number.
pub enum Outcome {
    Called(u64, Result<Response, CallError>),
    Polled(u64, Result<Response, CallError>),
    Sent(u64, Result<Receipt, Failure>),
    /// Brokers have messages.
    Arrived(u64),
}

/// The outcomes of framed calls and sends that were started. A descriptor becomes readable when there are some.
#[pyclass(name = "Completions", module = "ferromq._ferromq", frozen)]
pub struct PyCompletions(Owned<Arc<Completions<Outcome>>>);

impl PyCompletions {
    /// The queue, or `ForkedProcess` in a child.
    pub fn queue(&self) -> PyResult<&Arc<Completions<Outcome>>> {
        self.0.get()
    }
}

#[pymethods]
impl PyCompletions {
    #[new]
    fn new() -> PyResult<Self> {
        let completions = Completions::new()
            .map_err(|source| error::os_error("cannot make a queue of completions", &source))?;
        Ok(Self(Owned::new("client", Arc::new(completions))))
    }

    /// Return the descriptor.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.0.get()?.as_raw_fd())
    }

    /// Take all outcomes: the number of each, and what `FramedCalls.call`, `FramedCalls.poll` or `Sends.send`
    /// would return or raise.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u64, Bound<'py, PyAny>)>> {
        let outcomes = self.0.get()?.take();
        let value = |outcome| match outcome {
            Outcome::Called(number, Ok(response)) => {
                Ok((number, calls::answer(py, response).into_bound_py_any(py)?))
            }
            Outcome::Polled(number, Ok(response)) => {
                Ok((number, calls::polled(response).into_bound_py_any(py)?))
            }
            Outcome::Called(number, Err(failure)) | Outcome::Polled(number, Err(failure)) => {
                Ok((number, calls::exception(&failure).into_bound_py_any(py)?))
            }
            Outcome::Arrived(number) => Ok((number, py.None().into_bound(py))),
            Outcome::Sent(number, outcome) => Ok((number, calls::sent(py, outcome)?)),
        };
        outcomes.into_iter().map(value).collect()
    }
}
