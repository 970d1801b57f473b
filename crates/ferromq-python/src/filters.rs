//! Compiles the filter expressions of Python callers.

use ferromq_store::filter::MessageFilter;
use pyo3::{exceptions::PyValueError, prelude::*};

/// Compiles an expression. Raises `ValueError` with the position of the error.
pub fn compile(kind: &str, expression: &str) -> PyResult<MessageFilter> {
    MessageFilter::parse(kind, expression).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Raise `ValueError` with position and reason unless *expression* is a filter of its *kind*, `TAG` or `SQL92`.
#[pyfunction]
pub fn check_filter(py: Python<'_>, kind: &str, expression: &str) -> PyResult<()> {
    py.detach(|| compile(kind, expression)).map(drop)
}
