//! How notebooks show the classes of the core: as tables, which Python makes.

use pyo3::{PyTypeInfo, intern, prelude::*};

/// The attributes of an object as a table in HTML.
pub fn html<'py, T: PyTypeInfo>(object: &Bound<'py, T>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    py.import(intern!(py, "ferromq.terminal.objects"))?.call_method1(intern!(py, "html_of"), (object,))
}
