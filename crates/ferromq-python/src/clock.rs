//! The Python class `Clock`.

use ferromq_store::time::Clock;
use pyo3::prelude::*;

/// Wall-clock milliseconds that never go back. Store, server and policy share one clock.
#[pyclass(name = "Clock", module = "ferromq._ferromq", frozen)]
pub struct PyClock(pub Clock);

#[pymethods]
impl PyClock {
    /// Return a clock that follows real time.
    #[staticmethod]
    fn system() -> Self {
        Self(Clock::system())
    }

    /// Return a clock that moves only by `advance`.
    #[staticmethod]
    fn manual(start_ms: i64) -> Self {
        Self(Clock::manual(start_ms))
    }

    /// Whether time moves only by `advance`.
    #[getter]
    fn is_manual(&self) -> bool {
        self.0.is_manual()
    }

    /// Return the time in milliseconds since 1970.
    fn now_ms(&self) -> i64 {
        self.0.now_ms()
    }

    /// Move the clock forward and wake all callers that wait on it.
    fn advance(&self, py: Python<'_>, ms: i64) {
        py.detach(|| self.0.advance(ms));
    }

    fn __repr__(&self) -> String {
        let kind = if self.0.is_manual() { "manual" } else { "system" };
        format!("<Clock {kind} now_ms={}>", self.0.now_ms())
    }
}
