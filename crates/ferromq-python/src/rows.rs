//! Encodes rows of Arrow columns as send requests, for `ferromq.spark`: bindings of
//! `ferromq_client::codec::rows`.
//!
//! Buffers are passed as `bytes`, because Arrow's may change during a read.

use ferromq_client::codec::{
    Batch,
    rows::{self, Column, Columns, Common, Entries, Keys, Limits, Places, Texts},
};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    pybacked::PyBackedBytes,
    types::{PyBytes, PyDict},
};

use crate::client::MessageIds;

/// Adds the classes of this file to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyRows>()?;
    module.add_class::<PyPart>()
}

/// A column: index of the first row's value, validity bits, values.
#[derive(FromPyObject)]
struct OwnedColumn(usize, Option<PyBackedBytes>, PyBackedBytes);

impl OwnedColumn {
    fn view(&self) -> Column<'_> {
        Column { first: self.0, validity: self.1.as_deref(), values: &self.2 }
    }
}

/// A column of strings: offsets and bytes.
#[derive(FromPyObject)]
struct OwnedTexts(OwnedColumn, PyBackedBytes);

impl OwnedTexts {
    fn view(&self) -> Texts<'_> {
        Texts { spans: self.0.view(), data: &self.1 }
    }
}

/// The columns other than the bodies.
#[derive(Default)]
struct OwnedColumns {
    topic: Option<OwnedTexts>,
    key: Option<OwnedTexts>,
    keys: Option<(OwnedColumn, OwnedTexts)>,
    tag: Option<OwnedTexts>,
    properties: Option<(OwnedColumn, OwnedTexts, OwnedTexts)>,
    delivery_timestamp: Option<OwnedColumn>,
    delay: Option<(OwnedColumn, i64)>,
    message_group: Option<OwnedTexts>,
    priority: Option<OwnedColumn>,
}

impl OwnedColumns {
    fn of(columns: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut owned = Self::default();
        for (name, value) in columns.iter() {
            match name.extract::<String>()?.as_str() {
                "topic" => owned.topic = value.extract()?,
                "key" => owned.key = value.extract()?,
                "keys" => owned.keys = value.extract()?,
                "tag" => owned.tag = value.extract()?,
                "properties" => owned.properties = value.extract()?,
                "delivery_timestamp" => owned.delivery_timestamp = value.extract()?,
                "delay" => owned.delay = value.extract()?,
                "message_group" => owned.message_group = value.extract()?,
                "priority" => owned.priority = value.extract()?,
                name => return Err(PyValueError::new_err(format!("unknown column {name:?} of rows"))),
            }
        }
        Ok(owned)
    }

    fn view<'a>(&'a self, rows: usize, body: &'a OwnedColumn, body_len: usize) -> Columns<'a> {
        let several = self.keys.as_ref().map(|(spans, keys)| Keys::Several(spans.view(), keys.view()));
        let entries = |(spans, names, values): &'a (OwnedColumn, OwnedTexts, OwnedTexts)| Entries {
            spans: spans.view(),
            names: names.view(),
            values: values.view(),
        };
        Columns {
            rows,
            body: body.view(),
            body_len,
            topic: self.topic.as_ref().map(OwnedTexts::view),
            keys: several.or_else(|| self.key.as_ref().map(|key| Keys::One(key.view()))),
            tag: self.tag.as_ref().map(OwnedTexts::view),
            properties: self.properties.as_ref().map(entries),
            delivery_timestamp: self.delivery_timestamp.as_ref().map(OwnedColumn::view),
            delay: self.delay.as_ref().map(|(column, unit)| (column.view(), *unit)),
            message_group: self.message_group.as_ref().map(OwnedTexts::view),
            priority: self.priority.as_ref().map(OwnedColumn::view),
        }
    }
}

/// Checked rows of Arrow columns, for encoding as send requests.
#[pyclass(name = "Rows", module = "ferromq._ferromq", frozen)]
pub struct PyRows {
    rows: rows::Rows,
    bodies: PyBackedBytes,
}

#[pymethods]
impl PyRows {
    #[new]
    #[pyo3(signature = (count, body, columns, *, first=0, topic=None, numbered=None))]
    fn new(
        count: usize,
        body: OwnedTexts,
        columns: &Bound<'_, PyDict>,
        first: u64,
        topic: Option<&str>,
        numbered: Option<&str>,
    ) -> PyResult<Self> {
        let (OwnedTexts(spans, bodies), owned) = (body, OwnedColumns::of(columns)?);
        let columns = owned.view(count, &spans, bodies.len());
        let rows = rows::Rows::read(&columns, Common { first, topic, numbered });
        rows.map(|rows| Self { rows, bodies }).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Each topic, and its first row.
    #[getter]
    fn topics(&self) -> Vec<(String, u64)> {
        self.rows.topics().to_vec()
    }

    /// Divide all rows into requests, each with one topic and at most one message group; delayed rows are alone.
    fn lanes(&self, max_rows: usize, max_bytes: usize) -> Vec<PyPart> {
        let parts = self.rows.lanes(Limits { rows: max_rows, bytes: max_bytes });
        parts.into_iter().map(|part| self.part(part)).collect()
    }

    /// Divide the rows of one topic into requests in their order, each for one queue, or for a broker that chooses it.
    #[allow(clippy::too_many_arguments)] // one call per batch, without an intermediate object
    fn placed(
        &self,
        topic: u32,
        block: u64,
        queues: Vec<u32>,
        in_order: Vec<u32>,
        brokers: Vec<u32>,
        max_rows: usize,
        max_bytes: usize,
    ) -> PyResult<Vec<PyPart>> {
        let places = Places { block, queues: &queues, in_order: &in_order, brokers: &brokers };
        let parts = self.rows.placed(topic, &places, Limits { rows: max_rows, bytes: max_bytes });
        let parts = parts
            .ok_or_else(|| PyValueError::new_err("queues, in_order or brokers has no entry for a row"))?;
        Ok(parts.into_iter().map(|part| self.part(part)).collect())
    }

    /// Encode a SendMessageRequest. Raises `MessageTooLarge` with the row.
    #[allow(clippy::too_many_arguments)] // as `encode_send`
    fn encode<'py>(
        &self,
        py: Python<'py>,
        part: &PyPart,
        ids: &Bound<'py, MessageIds>,
        queue_id: i32,
        born_timestamp: i64,
        born_host: &str,
        max_body: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let part = &part.part;
        if let Some((row, len)) = self.rows.too_large(part, max_body) {
            let text = format!("row {row}: column 'body' has {len} bytes; the limit is {max_body}");
            return Err(crate::error::raised::MessageTooLarge::new_err(text));
        }
        let ids = ids.get().0;
        if ids.count as usize != part.rows.len() {
            let text = format!(
                "{} message ids for {} rows; their numbers must be equal",
                ids.count,
                part.rows.len()
            );
            return Err(PyValueError::new_err(text));
        }
        let (topic, _) = self.rows.topics().get(part.topic as usize).ok_or_else(foreign_part)?;
        let batch = Batch { topic, queue_id, born_timestamp, born_host, ids, transaction: None };
        Ok(PyBytes::new(py, &self.rows.encode(&batch, part, &self.bodies)))
    }
}

fn foreign_part() -> PyErr {
    PyValueError::new_err("the part belongs to other rows")
}

impl PyRows {
    fn part(&self, part: rows::Part) -> PyPart {
        let group = part.rows.first().and_then(|index| self.rows.group(*index)).map(str::to_owned);
        let topic =
            self.rows.topics().get(part.topic as usize).map(|(name, _)| name.clone()).unwrap_or_default();
        PyPart { first: self.rows.number(0), group, topic, part }
    }
}

/// The rows of one request.
#[pyclass(name = "Part", module = "ferromq._ferromq", frozen)]
pub struct PyPart {
    part: rows::Part,
    first: u64,
    group: Option<String>,
    topic: String,
}

#[pymethods]
impl PyPart {
    #[getter]
    fn topic(&self) -> &str {
        &self.topic
    }

    /// The message group of its first row.
    #[getter]
    fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// The number of its queue, if `placed` chose one.
    #[getter]
    const fn queue(&self) -> u32 {
        self.part.queue
    }

    /// The numbers of its rows in the partition, ascending.
    #[getter]
    fn numbers(&self) -> Vec<u64> {
        self.part.rows.iter().map(|index| self.first.saturating_add((*index).into())).collect()
    }

    fn __len__(&self) -> usize {
        self.part.rows.len()
    }
}
