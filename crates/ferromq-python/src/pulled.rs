//! PullMessage answers as the buffers of Arrow columns, for `ferromq.spark`.

use ferromq_transport::grpc::columns::{Buffers, Pulled, decode};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyDict, PyList},
};

/// Decodes the messages of one PullMessage stream; see the stub for what comes back.
#[pyfunction]
pub fn pull_columns<'py>(
    py: Python<'py>,
    parts: Vec<Bound<'py, PyBytes>>,
    packed: bool,
    until: i64,
) -> PyResult<Bound<'py, PyDict>> {
    let slices: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    let pulled: Pulled = py
        .detach(|| decode(slices, packed, until))
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    let columns = PyDict::new(py);
    for (name, buffers) in pulled.columns {
        columns.set_item(name, column(py, &buffers)?)?;
    }
    let answer = PyDict::new(py);
    answer.set_item("rows", pulled.rows)?;
    answer.set_item("status", pulled.status)?;
    answer.set_item("next_offset", pulled.next_offset)?;
    answer.set_item("columns", columns)?;
    Ok(answer)
}

fn column<'py>(
    py: Python<'py>,
    buffers: &Buffers,
) -> PyResult<(usize, Option<Bound<'py, PyBytes>>, Bound<'py, PyList>)> {
    let validity = buffers.validity.as_deref().map(|bits| PyBytes::new(py, bits));
    let data = PyList::new(py, buffers.data.iter().map(|bytes| PyBytes::new(py, bytes)))?;
    Ok((buffers.null_count, validity, data))
}
