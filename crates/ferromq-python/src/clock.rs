//! `Clock` as Python sees it.

use ferromq_store::time::Clock;
use pyo3::prelude::*;

/// Wall milliseconds that never go back, real or moved by hand; one object for store, server and policy.
#[pyclass(name = "Clock", module = "ferromq._ferromq", frozen)]
pub struct PyClock(pub Clock);

#[pymethods]
impl PyClock {
    /// Return a clock that follows real time.
    #[staticmethod]
    fn system() -> Self {
        Self(Clock::system())
    }

    /// Return a clock that stands still until it is advanced.
    #[staticmethod]
    fn manual(start_ms: i64) -> Self {
        Self(Clock::manual(start_ms))
    }

    /// Whether time moves only by `advance`.
    #[getter]
    fn is_manual(&self) -> bool {
        self.0.is_manual()
    }

    /// Return milliseconds since 1970.
    fn now_ms(&self) -> i64 {
        self.0.now_ms()
    }

    /// Move the clock forward and wake everybody who waits on it.
    fn advance(&self, py: Python<'_>, ms: i64) {
        py.detach(|| self.0.advance(ms));
    }

    fn __repr__(&self) -> String {
        let kind = if self.0.is_manual() { "manual" } else { "system" };
        format!("<Clock {kind} now_ms={}>", self.0.now_ms())
    }
}
