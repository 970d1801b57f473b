//! Rows of Arrow columns that become send requests, for `ferromq.spark`. No logic: what becomes of a row is in
//! `ferromq_transport::client::grpc::rows`.
//!
//! Buffers come as `bytes`: those of Arrow may change while somebody looks.

use ferromq_transport::client::grpc::{
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

/// Adds this file's names to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyRows>()?;
    module.add_class::<PyPart>()
}

/// First row, validity and values of a column.
#[derive(FromPyObject)]
struct OwnColumn(usize, Option<PyBackedBytes>, PyBackedBytes);

impl OwnColumn {
    fn view(&self) -> Column<'_> {
        Column { first: self.0, validity: self.1.as_deref(), values: &self.2 }
    }
}

/// A column of texts.
#[derive(FromPyObject)]
struct OwnTexts(OwnColumn, PyBackedBytes);

impl OwnTexts {
    fn view(&self) -> Texts<'_> {
        Texts { spans: self.0.view(), data: &self.1 }
    }
}

/// The columns beside the bodies.
#[derive(Default)]
struct Own {
    topic: Option<OwnTexts>,
    key: Option<OwnTexts>,
    keys: Option<(OwnColumn, OwnTexts)>,
    tag: Option<OwnTexts>,
    properties: Option<(OwnColumn, OwnTexts, OwnTexts)>,
    delivery_timestamp: Option<OwnColumn>,
    delay: Option<(OwnColumn, i64)>,
    message_group: Option<OwnTexts>,
    priority: Option<OwnColumn>,
}

impl Own {
    fn of(columns: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut own = Self::default();
        for (name, value) in columns.iter() {
            match name.extract::<String>()?.as_str() {
                "topic" => own.topic = value.extract()?,
                "key" => own.key = value.extract()?,
                "keys" => own.keys = value.extract()?,
                "tag" => own.tag = value.extract()?,
                "properties" => own.properties = value.extract()?,
                "delivery_timestamp" => own.delivery_timestamp = value.extract()?,
                "delay" => own.delay = value.extract()?,
                "message_group" => own.message_group = value.extract()?,
                "priority" => own.priority = value.extract()?,
                name => return Err(PyValueError::new_err(format!("rows have no column {name:?}"))),
            }
        }
        Ok(own)
    }

    fn view<'a>(&'a self, rows: usize, body: &'a OwnColumn, body_len: usize) -> Columns<'a> {
        let several = self.keys.as_ref().map(|(spans, keys)| Keys::Several(spans.view(), keys.view()));
        let entries = |(spans, names, values): &'a (OwnColumn, OwnTexts, OwnTexts)| Entries {
            spans: spans.view(),
            names: names.view(),
            values: values.view(),
        };
        Columns {
            rows,
            body: body.view(),
            body_len,
            topic: self.topic.as_ref().map(OwnTexts::view),
            keys: several.or_else(|| self.key.as_ref().map(|key| Keys::One(key.view()))),
            tag: self.tag.as_ref().map(OwnTexts::view),
            properties: self.properties.as_ref().map(entries),
            delivery_timestamp: self.delivery_timestamp.as_ref().map(OwnColumn::view),
            delay: self.delay.as_ref().map(|(column, unit)| (column.view(), *unit)),
            message_group: self.message_group.as_ref().map(OwnTexts::view),
            priority: self.priority.as_ref().map(OwnColumn::view),
        }
    }
}

/// Rows that are ready to be sent.
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
        body: OwnTexts,
        columns: &Bound<'_, PyDict>,
        first: u64,
        topic: Option<&str>,
        numbered: Option<&str>,
    ) -> PyResult<Self> {
        let (OwnTexts(spans, bodies), own) = (body, Own::of(columns)?);
        let columns = own.view(count, &spans, bodies.len());
        let rows = rows::Rows::read(&columns, Common { first, topic, numbered });
        rows.map(|rows| Self { rows, bodies }).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    #[getter]
    fn topics(&self) -> Vec<(String, u64)> {
        self.rows.topics().to_vec()
    }

    fn lanes(&self, max_rows: usize, max_bytes: usize) -> Vec<PyPart> {
        let parts = self.rows.lanes(Limits { rows: max_rows, bytes: max_bytes });
        parts.into_iter().map(|part| self.part(part)).collect()
    }

    #[allow(clippy::too_many_arguments)] // one call a batch, without an object in between
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
        let parts = parts.ok_or_else(|| PyValueError::new_err("a block or queue has no number"))?;
        Ok(parts.into_iter().map(|part| self.part(part)).collect())
    }

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
            return Err(PyValueError::new_err("as many message ids as rows are needed"));
        }
        let (topic, _) = self.rows.topics().get(part.topic as usize).ok_or_else(of_others)?;
        let batch = Batch { topic, queue_id, born_timestamp, born_host, ids, transaction: None };
        Ok(PyBytes::new(py, &self.rows.encode(&batch, part, &self.bodies)))
    }
}

fn of_others() -> PyErr {
    PyValueError::new_err("the part is of other rows")
}

impl PyRows {
    fn part(&self, part: rows::Part) -> PyPart {
        let group = part.rows.first().and_then(|index| self.rows.group(*index)).map(str::to_owned);
        let topic =
            self.rows.topics().get(part.topic as usize).map(|(name, _)| name.clone()).unwrap_or_default();
        PyPart { first: self.rows.number(0), group, topic, part }
    }
}

/// Rows of one request.
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

    #[getter]
    fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    #[getter]
    const fn queue(&self) -> u32 {
        self.part.queue
    }

    #[getter]
    fn numbers(&self) -> Vec<u64> {
        self.part.rows.iter().map(|index| self.first.saturating_add((*index).into())).collect()
    }

    fn __len__(&self) -> usize {
        self.part.rows.len()
    }
}
