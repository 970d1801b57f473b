//! The Python class `ExpiredFile`, the argument of archive hooks.

use std::path::PathBuf;

use ferromq_store::retention::ExpiredFile;
use pyo3::prelude::*;

use crate::shown;

/// A file of the commit log that is about to be deleted. It stays unchanged until the hook returns.
#[pyclass(name = "ExpiredFile", module = "ferromq._ferromq", frozen, get_all)]
pub struct PyExpiredFile {
    /// The file.
    path: PathBuf,
    /// Its first physical offset, in bytes.
    begin: u64,
    /// Its last physical offset + 1, in bytes.
    end: u64,
    /// The store time of its first message, milliseconds since 1970.
    oldest_ms: i64,
    /// The store time of its last message, milliseconds since 1970.
    newest_ms: i64,
}

impl PyExpiredFile {
    /// Copies the description of a file for Python.
    pub fn new(file: &ExpiredFile) -> Self {
        Self {
            path: file.path.clone(),
            begin: file.range.start,
            end: file.range.end,
            oldest_ms: file.oldest_ms,
            newest_ms: file.newest_ms,
        }
    }
}

#[pymethods]
impl PyExpiredFile {
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        shown::html(slf)
    }

    fn __repr__(&self) -> String {
        format!("<ExpiredFile {} physical offsets {} to {}>", self.path.display(), self.begin, self.end)
    }
}
