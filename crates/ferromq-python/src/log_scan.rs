//! Commit log files as columns, for `ferromq.spark`: bindings of `ferromq_scan::inspect`.

use std::path::PathBuf;

use ferromq_scan::inspect::{self, InspectOptions, LogScan, OnCorrupt, ScanOptions};
use ferromq_store::files::RealDisk;
use parking_lot::Mutex;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};

use crate::{
    columns::{batch_dict, parse_columns, parse_filter},
    error,
};

/// The records of one commit log file as batches of columns. It only reads, and takes no lock.
#[pyclass(name = "LogScan", module = "ferromq._ferromq", frozen)]
pub struct PyLogScan(Mutex<LogScan<RealDisk>>);

#[pymethods]
impl PyLogScan {
    #[new]
    #[pyo3(signature = (
        path, first_offset, begin, end, *, columns, filter=None, batch_rows=8192, batch_bytes=8388608,
        on_corrupt="fail"
    ))]
    #[allow(clippy::too_many_arguments)] // one per argument in Python
    fn new(
        py: Python<'_>,
        path: PathBuf,
        first_offset: u64,
        begin: u64,
        end: u64,
        columns: Vec<String>,
        filter: Option<&Bound<'_, PyDict>>,
        batch_rows: usize,
        batch_bytes: usize,
        on_corrupt: &str,
    ) -> PyResult<Self> {
        let on_corrupt = match on_corrupt {
            "fail" => OnCorrupt::Fail,
            "skip" => OnCorrupt::Skip,
            other => {
                let text = format!("on_corrupt is {other:?}; allowed: fail, skip");
                return Err(PyValueError::new_err(text));
            }
        };
        let (wanted, filter) = (parse_columns(&columns)?, parse_filter(filter)?);
        let options = ScanOptions { wanted, filter, batch_rows, batch_bytes, on_corrupt };
        let scan = py.detach(|| LogScan::open(RealDisk, &path, first_offset, begin..end, options));
        Ok(Self(Mutex::new(scan.map_err(|failure| error::store_error(py, &failure))?)))
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let next = py.detach(|| self.0.lock().next_batch());
        let Some(found) = next.map_err(|failure| error::store_error(py, &failure))? else { return Ok(None) };
        let answer = batch_dict(py, found.batch)?;
        answer.set_item("corrupt", found.corrupt)?;
        Ok(Some(answer))
    }

    /// The physical offset of the next record.
    #[getter]
    fn position(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.0.lock().position())
    }
}

fn options(commit_log_paths: Vec<PathBuf>) -> InspectOptions {
    InspectOptions { commit_log_paths, ..InspectOptions::default() }
}

/// Return the readable commit log files of a store directory, see the stub.
#[pyfunction]
#[pyo3(signature = (directory, *, commit_log_paths=Vec::new()))]
pub fn log_files(
    py: Python<'_>,
    directory: PathBuf,
    commit_log_paths: Vec<PathBuf>,
) -> PyResult<Vec<(String, u64, u64)>> {
    let found = py.detach(|| inspect::log_files(&directory, &options(commit_log_paths)));
    let found = found.map_err(|failure| error::store_error(py, &failure))?;
    Ok(found.into_iter().map(|part| (part.path.display().to_string(), part.base, part.end)).collect())
}

/// Return the starts of a store's queues, see the stub.
#[pyfunction]
#[pyo3(signature = (directory, *, commit_log_paths=Vec::new()))]
pub fn queue_starts<'py>(
    py: Python<'py>,
    directory: PathBuf,
    commit_log_paths: Vec<PathBuf>,
) -> PyResult<Bound<'py, PyDict>> {
    let found = py.detach(|| inspect::queue_starts(&directory, &options(commit_log_paths)));
    let found = found.map_err(|failure| error::store_error(py, &failure))?;
    let topics = PyDict::new(py);
    for (topic, queues) in found.queues {
        let ids = PyDict::new(py);
        for (id, begins) in queues {
            ids.set_item(id, (begins.offset, begins.physical_offset))?;
        }
        topics.set_item(topic, ids)?;
    }
    let answer = PyDict::new(py);
    answer.set_item("queues", topics)?;
    answer.set_item("undecided_from", found.undecided_from)?;
    Ok(answer)
}
