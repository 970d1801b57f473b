//! `StoredMessage`: a record that is decoded when an attribute is read.

use std::{fmt::Write, net::SocketAddr};

use ferromq_protocol::compression::decompressed;
use ferromq_store::record::{MessageView, properties};
use ferromq_transport::grpc::{BodyDigest, encode_message};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyDict, PyTuple},
};

use crate::{error::raised::CorruptMessage, shown};

/// A decoded record of the commit log. Attributes are built when they are read.
#[pyclass(name = "StoredMessage", module = "ferromq._ferromq", frozen)]
pub struct PyStoredMessage(Box<[u8]>);

impl PyStoredMessage {
    /// Checks and copies the record at the start of `bytes`.
    pub fn new(bytes: &[u8]) -> PyResult<Self> {
        let size = view(bytes, true)?.total_size as usize;
        Ok(Self(bytes.get(..size).unwrap_or(bytes).into()))
    }

    /// As [`Self::new`], but accepts wrong checksums, to inspect damage.
    pub fn unchecked(bytes: &[u8]) -> PyResult<Self> {
        let size = view(bytes, false)?.total_size as usize;
        Ok(Self(bytes.get(..size).unwrap_or(bytes).into()))
    }

    fn view(&self) -> PyResult<MessageView<'_>> {
        view(&self.0, false)
    }
}

fn view(bytes: &[u8], check_crc: bool) -> PyResult<MessageView<'_>> {
    MessageView::decode(bytes, check_crc).map_err(PyValueError::new_err)
}

#[pymethods]
impl PyStoredMessage {
    /// The topic, with its namespace.
    #[getter]
    fn topic(&self) -> PyResult<&str> {
        Ok(self.view()?.topic)
    }

    /// The number of its queue in the topic, from 0.
    #[getter]
    fn queue_id(&self) -> PyResult<i32> {
        Ok(self.view()?.queue_id)
    }

    /// The position in its queue, from 0.
    #[getter]
    fn queue_offset(&self) -> PyResult<u64> {
        Ok(self.view()?.queue_offset)
    }

    /// The position of the record in the commit log, in bytes.
    #[getter]
    fn physical_offset(&self) -> PyResult<u64> {
        Ok(self.view()?.physical_offset)
    }

    /// The stored body: compressed if `sys_flag` has bit 1.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.view()?.body))
    }

    /// The body as it was sent, decompressed if needed.
    ///
    /// Raises `CorruptMessage`, a `ValueError`, if it is marked as compressed but cannot be decompressed, or would be larger
    /// than 64 MiB.
    #[getter]
    fn plain_body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let view = self.view()?;
        match py.detach(|| decompressed(view.sys_flag, view.body)) {
            Ok(body) => Ok(PyBytes::new(py, &body)),
            Err(text) => Err(CorruptMessage::new_err(format!(
                "message {} of topic {}, queue {}, offset {}: {text}",
                self.message_id()?,
                view.topic,
                view.queue_id,
                view.queue_offset
            ))),
        }
    }

    /// All properties of the record, RocketMQ's own among them.
    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, value) in properties::iter(self.view()?.properties) {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// A number that RocketMQ's producers may give; brokers ignore it.
    #[getter]
    fn flag(&self) -> PyResult<i32> {
        Ok(self.view()?.flag)
    }

    /// RocketMQ's bits: compression, kind of transaction, kind of addresses.
    #[getter]
    fn sys_flag(&self) -> PyResult<i32> {
        Ok(self.view()?.sys_flag)
    }

    /// When it was sent, by the producer's clock: milliseconds since 1970.
    #[getter]
    fn born_timestamp(&self) -> PyResult<i64> {
        Ok(self.view()?.born_timestamp)
    }

    /// The producer's `host:port`.
    #[getter]
    fn born_host(&self) -> PyResult<String> {
        Ok(self.view()?.born_host.to_string())
    }

    /// When it was stored, by the broker's clock: milliseconds since 1970.
    #[getter]
    fn store_timestamp(&self) -> PyResult<i64> {
        Ok(self.view()?.store_timestamp)
    }

    /// The `host:port` of the broker that stored it.
    #[getter]
    fn store_host(&self) -> PyResult<String> {
        Ok(self.view()?.store_host.to_string())
    }

    /// How often it was delivered before: 0 for a message that was not redelivered.
    #[getter]
    fn reconsume_times(&self) -> PyResult<i32> {
        Ok(self.view()?.reconsume_times)
    }

    /// Of a message of a transaction: the physical offset of its half message, in bytes; 0 for others.
    #[getter]
    fn prepared_transaction_offset(&self) -> PyResult<i64> {
        Ok(self.view()?.prepared_transaction_offset)
    }

    /// The producer's UNIQ_KEY, or else RocketMQ's offset message id.
    #[getter]
    fn message_id(&self) -> PyResult<String> {
        let view = self.view()?;
        Ok(properties::get(view.properties, "UNIQ_KEY")
            .map_or_else(|| offset_message_id(&view), str::to_owned))
    }

    /// RocketMQ's offset message id: the broker's address and the physical offset in upper-case hex.
    #[getter]
    fn offset_message_id(&self) -> PyResult<String> {
        Ok(offset_message_id(&self.view()?))
    }

    /// The tag; None without one.
    #[getter]
    fn tag(&self) -> PyResult<Option<&str>> {
        Ok(properties::get(self.view()?.properties, "TAGS"))
    }

    /// The keys, by which queries find the message.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let keys = properties::get(self.view()?.properties, "KEYS").unwrap_or_default();
        PyTuple::new(py, keys.split(' ').filter(|key| !key.is_empty()).collect::<Vec<_>>())
    }

    /// The bytes of the record.
    #[getter]
    fn raw<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0)
    }

    /// Return the encoded protobuf `Message` for gRPC clients, with the body as stored. The stub describes the digest.
    #[pyo3(signature = (*, stored_digest=false))]
    fn grpc_message<'py>(&self, py: Python<'py>, stored_digest: bool) -> PyResult<Bound<'py, PyBytes>> {
        let digest = if stored_digest { BodyDigest::Stored } else { BodyDigest::Md5 };
        Ok(PyBytes::new(py, &encode_message(&self.view()?, digest)))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        shown::html(slf)
    }

    fn __repr__(&self) -> PyResult<String> {
        let view = self.view()?;
        Ok(format!(
            "<StoredMessage topic={} queue_id={} queue_offset={} physical_offset={}>",
            view.topic, view.queue_id, view.queue_offset, view.physical_offset
        ))
    }
}

/// RocketMQ's id of a stored message: the broker's address and the physical offset in upper-case hex.
fn offset_message_id(view: &MessageView<'_>) -> String {
    let mut id = String::with_capacity(56);
    // Writing to a String cannot fail.
    let _ = match view.store_host {
        SocketAddr::V4(host) => write!(id, "{:08X}", host.ip().to_bits()),
        SocketAddr::V6(host) => write!(id, "{:032X}", host.ip().to_bits()),
    };
    let _ = write!(id, "{:08X}{:016X}", view.store_host.port(), view.physical_offset);
    id
}

/// Decode consecutive records. Raises `ValueError` for other bytes, and unless `check` is false for wrong checksums.
#[pyfunction]
#[pyo3(signature = (data, *, check=true))]
pub fn decode_records(data: &[u8], check: bool) -> PyResult<Vec<PyStoredMessage>> {
    let mut messages = Vec::new();
    let mut rest = data;
    while !rest.is_empty() {
        let message = if check { PyStoredMessage::new(rest) } else { PyStoredMessage::unchecked(rest) }?;
        rest = rest.get(message.0.len()..).unwrap_or_default();
        messages.push(message);
    }
    Ok(messages)
}
