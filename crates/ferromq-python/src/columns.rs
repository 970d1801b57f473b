//! Records as buffers of Arrow columns, for `ferromq.spark`: bindings of `ferromq_scan::columns`.

use std::{collections::HashMap, sync::Arc};

use ferromq_scan::columns::{
    Buffers, ColumnSet, ColumnsError, MessageColumns, QueueBegins, QueueStarts, RowBatch, RowFilter,
    record_columns as decode,
};
use parking_lot::Mutex;
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyDict, PyList},
};

/// Read-only bytes of a column, which Arrow reads in place.
#[pyclass(name = "ColumnBuffer", module = "ferromq._ferromq", frozen)]
pub struct PyColumnBuffer(Vec<u8>);

#[pymethods]
impl PyColumnBuffer {
    /// The address of the bytes, valid as long as this object lives.
    #[getter]
    fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0)
    }
}

/// Records of an answer, not copied.
#[pyclass(name = "Records", module = "ferromq._ferromq", frozen)]
pub struct PyRecords(pub(crate) bytes::Bytes);

#[pymethods]
impl PyRecords {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0)
    }
}

/// Records in an argument.
#[derive(FromPyObject)]
pub enum RecordBytes<'py> {
    Records(Bound<'py, PyRecords>),
    Bytes(Bound<'py, PyBytes>),
}

impl RecordBytes<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Records(records) => &records.get().0,
            Self::Bytes(bytes) => bytes.as_bytes(),
        }
    }
}

/// Decode records into the buffers of Arrow columns, and check their checksums. The stub describes the result.
#[pyfunction]
#[pyo3(signature = (parts, *, columns, filter=None, end=None))]
pub fn record_columns<'py>(
    py: Python<'py>,
    parts: Vec<RecordBytes<'py>>,
    columns: Vec<String>,
    filter: Option<&Bound<'py, PyDict>>,
    end: Option<u64>,
) -> PyResult<Bound<'py, PyDict>> {
    let (wanted, filter) = (parse_columns(&columns)?, parse_filter(filter)?);
    let slices: Vec<&[u8]> = parts.iter().map(RecordBytes::bytes).collect();
    let batch = py.detach(|| decode(&slices, wanted, &filter, end)).map_err(|error| columns_error(&error))?;
    batch_dict(py, batch)
}

/// The records of one answer or several, as buffers of Arrow columns in the making.
#[pyclass(name = "MessageColumns", module = "ferromq._ferromq", frozen)]
pub struct PyMessageColumns(Mutex<Option<MessageColumns>>);

#[pymethods]
impl PyMessageColumns {
    /// Begin *columns* of about *bytes* bytes of records. Raises `ValueError` for an unknown column.
    #[new]
    #[pyo3(signature = (bytes, *, columns))]
    fn new(bytes: usize, columns: Vec<String>) -> PyResult<Self> {
        Ok(Self(Mutex::new(Some(MessageColumns::new(parse_columns(&columns)?, bytes)))))
    }

    /// Add the records of an answer. Raises `ValueError` for bytes that are no records.
    fn add(&self, py: Python<'_>, records: &Bound<'_, PyRecords>) -> PyResult<()> {
        let records = &records.get().0;
        let add = || self.0.lock().as_mut().map(|columns| columns.add(records));
        match py.detach(add) {
            Some(added) => added.map_err(|error| columns_error(&error)),
            None => Err(finished()),
        }
    }

    /// Return the rows. The stub describes the result.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = self.0.lock().take().ok_or_else(finished)?;
        batch_dict(py, columns.finish())
    }
}

fn finished() -> PyErr {
    PyValueError::new_err("the columns were finished already")
}

pub(crate) fn parse_columns(columns: &[String]) -> PyResult<ColumnSet> {
    ColumnSet::parse(columns.iter().map(String::as_str)).map_err(|error| columns_error(&error))
}

pub(crate) fn columns_error(error: &ColumnsError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

pub(crate) fn parse_filter(given: Option<&Bound<'_, PyDict>>) -> PyResult<RowFilter> {
    let mut filter = RowFilter::default();
    let Some(given) = given else { return Ok(filter) };
    for (name, value) in given.iter() {
        if value.is_none() {
            continue;
        }
        match name.extract::<String>()?.as_str() {
            "topics" => filter.topics = Some(value.extract()?),
            "queue_ids" => filter.queue_ids = Some(value.extract()?),
            "tags" => filter.tags = Some(value.extract()?),
            "keys" => filter.keys = Some(value.extract()?),
            "store_from_ms" => filter.stored.start = value.extract()?,
            "store_to_ms" => filter.stored.end = value.extract()?,
            "born_from_ms" => filter.born.start = value.extract()?,
            "born_to_ms" => filter.born.end = value.extract()?,
            "offset_from" => filter.offsets.start = value.extract()?,
            "starts" => filter.starts = Some(Arc::new(parse_starts(&value)?)),
            "offset_to" => filter.offsets.end = value.extract()?,
            name => {
                let text = format!(
                    "unknown filter {name:?}; allowed: topics, queue_ids, tags, keys, store_from_ms, store_to_ms, \
                     born_from_ms, born_to_ms, offset_from, offset_to, starts"
                );
                return Err(PyValueError::new_err(text));
            }
        }
    }
    Ok(filter)
}

/// Reads the result of `queue_starts`.
fn parse_starts(value: &Bound<'_, PyAny>) -> PyResult<QueueStarts> {
    let queues: HashMap<String, HashMap<i32, (u64, u64)>> = value.get_item("queues")?.extract()?;
    let begins = |(offset, physical_offset)| QueueBegins { offset, physical_offset };
    let topic = |queues: HashMap<i32, _>| queues.into_iter().map(|(id, at)| (id, begins(at))).collect();
    Ok(QueueStarts {
        queues: queues.into_iter().map(|(name, queues)| (name, topic(queues))).collect(),
        undecided_from: value.get_item("undecided_from")?.extract()?,
    })
}

pub(crate) fn batch_dict(py: Python<'_>, batch: RowBatch) -> PyResult<Bound<'_, PyDict>> {
    let columns = PyDict::new(py);
    for (name, buffers) in batch.columns {
        columns.set_item(name, column(py, buffers)?)?;
    }
    let answer = PyDict::new(py);
    answer.set_item("rows", batch.rows)?;
    answer.set_item("read", batch.read)?;
    answer.set_item("next_offset", batch.next_offset)?;
    answer.set_item("columns", columns)?;
    Ok(answer)
}

type Column<'py> = (usize, Option<Bound<'py, PyColumnBuffer>>, Bound<'py, PyList>);

fn column(py: Python<'_>, buffers: Buffers) -> PyResult<Column<'_>> {
    let validity = buffers.validity.map(|bits| Bound::new(py, PyColumnBuffer(bits))).transpose()?;
    let data: Vec<_> = buffers
        .data
        .into_iter()
        .map(|bytes| Bound::new(py, PyColumnBuffer(bytes)))
        .collect::<PyResult<_>>()?;
    Ok((buffers.null_count, validity, PyList::new(py, data)?))
}
