//! Encodes and decodes batches of messages for the Python client: bindings of `ferromq_client::codec`.
//!
//! The functions keep the interpreter lock: copying a batch of 256 KiB takes less time than getting the lock back from
//! a busy thread.

use std::sync::atomic::{AtomicBool, Ordering};

use ferromq_client::codec::{self, Batch, Body, Headers, Kind, Received};
use ferromq_protocol::protobuf::Malformed;
use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyIndexError, PyTypeError, PyValueError},
    intern,
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyString, PyTuple},
};

use crate::client_message::{Message, dict};

/// Adds the classes and functions of this file to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Message>()?;
    module.add_class::<MessageIds>()?;
    module.add_class::<MessageView>()?;
    module.add_function(wrap_pyfunction!(batch_end, module)?)?;
    module.add_function(wrap_pyfunction!(encode_send, module)?)?;
    module.add_function(wrap_pyfunction!(has_lanes, module)?)?;
    module.add_function(wrap_pyfunction!(queue_of_group, module)?)?;
    module.add_function(wrap_pyfunction!(decode_sent, module)?)?;
    module.add_function(wrap_pyfunction!(encode_acks, module)?)?;
    module.add_function(wrap_pyfunction!(decode_acked, module)?)?;
    module.add_function(wrap_pyfunction!(decode_received, module)?)
}

fn malformed(error: Malformed) -> PyErr {
    PyValueError::new_err(format!("malformed response from the broker: {}", error.0))
}

/// The message ids of a batch, built when they are read.
#[pyclass(frozen, module = "ferromq._ferromq")]
pub struct MessageIds(pub(crate) codec::MessageIds);

#[pymethods]
impl MessageIds {
    /// Reserve *count* ids that are unique in this process; *process*: 8 bytes, *seconds*: since 2021.
    #[staticmethod]
    fn reserve(process: [u8; 8], seconds: u32, count: u32) -> Self {
        Self(codec::MessageIds::reserve(process, seconds, count))
    }

    fn __len__(&self) -> usize {
        self.0.count as usize
    }

    fn __getitem__(&self, index: u32) -> PyResult<String> {
        let out_of_range = || {
            PyIndexError::new_err(format!(
                "index {index} is out of range; the batch has {} ids",
                self.0.count
            ))
        };
        let id = self.0.get(index).ok_or_else(out_of_range)?;
        Ok(id.iter().copied().map(char::from).collect())
    }
}

/// An item of a batch: a `Message`, or only a body.
pub enum Item<'a, 'py> {
    Bare(&'a Bound<'py, PyBytes>),
    Full(&'a Message, Python<'py>),
}

static NO_HEADERS: std::sync::LazyLock<Headers> = std::sync::LazyLock::new(Headers::default);

impl<'a, 'py> Item<'a, 'py> {
    /// Takes a `Message` or bytes. Raises `TypeError` for other objects.
    pub fn of(item: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(body) = item.cast::<PyBytes>() {
            Ok(Self::Bare(body))
        } else if let Ok(message) = item.cast::<Message>() {
            Ok(Self::Full(message.get(), item.py()))
        } else {
            let kind = item.get_type().name()?;
            Err(PyTypeError::new_err(format!("a message to send must be a Message or bytes, not {kind}")))
        }
    }

    /// Headers and body.
    pub fn parts(&self) -> (&Headers, &[u8]) {
        match self {
            Self::Bare(body) => (&NO_HEADERS, body.as_bytes()),
            Self::Full(message, py) => (&message.headers, message.body.as_bytes(*py)),
        }
    }
}

/// Estimated bytes of an encoded message besides its body and headers.
const OVERHEAD: usize = 160;

/// Return the end of the batch that begins at *start*: after *max_count* messages or about *max_bytes*, at least one.
#[pyfunction]
fn batch_end(
    messages: &Bound<'_, PyList>,
    start: usize,
    max_count: usize,
    max_bytes: usize,
) -> PyResult<usize> {
    let mut bytes = 0usize;
    let mut end = start;
    for item in messages.iter().skip(start).take(max_count) {
        let item = Item::of(&item)?;
        let (headers, body) = item.parts();
        bytes = bytes.saturating_add(headers.len() + body.len() + OVERHEAD);
        if bytes > max_bytes && end > start {
            break;
        }
        end += 1;
    }
    Ok(end)
}

/// Return whether any of the messages has a `lane`. Raises `TypeError` for other objects.
#[pyfunction]
fn has_lanes(messages: &Bound<'_, PyList>) -> PyResult<bool> {
    for item in messages.iter() {
        if *Item::of(&item)?.parts().0.kind() != Kind::Normal {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Return the index of a message group's queue among *queues* writable ones, in the route's order, as in RocketMQ's
/// clients.
#[pyfunction]
fn queue_of_group(group: &str, queues: u32) -> u32 {
    codec::queue_of_group(group, queues)
}

/// Encode a SendMessageRequest. Raises `MessageTooLarge`, and `TypeError` or `ValueError` with the message.
#[pyfunction]
#[pyo3(signature = (topic, messages, ids, queue_id, born_timestamp, born_host, max_body, transaction=None))]
#[allow(clippy::too_many_arguments)] // one call per batch, without an intermediate object
fn encode_send<'py>(
    py: Python<'py>,
    topic: &str,
    messages: &Bound<'py, PyList>,
    ids: &Bound<'py, MessageIds>,
    queue_id: i32,
    born_timestamp: i64,
    born_host: &str,
    max_body: usize,
    transaction: Option<u64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let ids = ids.get().0;
    if ids.count as usize != messages.len() {
        let text =
            format!("{} message ids for {} messages; their numbers must be equal", ids.count, messages.len());
        return Err(PyValueError::new_err(text));
    }
    let items: Vec<_> = messages.iter().collect();
    let items = items.iter().map(Item::of).collect::<PyResult<Vec<_>>>()?;
    for (index, item) in items.iter().enumerate() {
        let len = item.parts().1.len();
        if len == 0 {
            return Err(PyValueError::new_err(format!(
                "the body of message {index} of the batch is empty; RocketMQ requires at least one byte"
            )));
        }
        if len > max_body {
            let text =
                format!("the body of message {index} of the batch has {len} bytes; the limit is {max_body}");
            return Err(crate::error::raised::MessageTooLarge::new_err(text));
        }
    }
    let batch = Batch { topic, queue_id, born_timestamp, born_host, ids, transaction };
    Ok(PyBytes::new(py, &codec::encode_send(&batch, items.iter().map(Item::parts))))
}

type SendFailure = (usize, i32, String);
type SendHandles = (usize, String, String);
type SentParts = (i32, String, Vec<i64>, Vec<SendFailure>, Vec<SendHandles>, Option<i32>);

/// Decode a SendMessageResponse: code, text, queue offsets, failed messages, handles, queue of the first message.
#[pyfunction]
fn decode_sent(answer: &[u8]) -> PyResult<SentParts> {
    let sent = codec::decode_sent(answer).map_err(malformed)?;
    let failures =
        sent.failures.into_iter().map(|(index, status)| (index, status.code, status.message)).collect();
    Ok((sent.status.code, sent.status.message, sent.queue_offsets, failures, sent.handles, sent.queue_id))
}

/// A received message under a lease. Attributes are built when they are read.
#[pyclass(frozen, module = "ferromq")]
pub struct MessageView {
    answer: Py<PyBytes>,
    received: Received,
    lease: Py<PyAny>,
    endpoint: Py<PyString>,
    renewed: Mutex<Option<String>>,
    settled: AtomicBool,
}

impl MessageView {
    fn bytes<'a>(&'a self, py: Python<'a>) -> &'a [u8] {
        self.answer.as_bytes(py)
    }

    fn handle(&self, py: Python<'_>) -> String {
        let renewed = self.renewed.lock().clone();
        renewed.unwrap_or_else(|| self.received.receipt_handle.text(self.bytes(py)).to_owned())
    }
}

#[pymethods]
impl MessageView {
    #[getter]
    fn topic<'a>(&'a self, py: Python<'a>) -> &'a str {
        self.received.topic.text(self.bytes(py))
    }

    #[getter]
    fn message_id<'a>(&'a self, py: Python<'a>) -> &'a str {
        self.received.message_id.text(self.bytes(py))
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        match self.received.body(self.bytes(py)) {
            Ok(Body::Plain(body)) => Ok(PyBytes::new(py, body)),
            Ok(Body::Unpacked(body)) => Ok(PyBytes::new(py, &body)),
            Err(text) => Err(crate::error::raised::CorruptMessage::new_err(format!(
                "message {} of topic {}, queue {}, offset {}: {text}; raw_body has the bytes as received",
                self.message_id(py),
                self.topic(py),
                self.received.queue_id,
                self.received.queue_offset
            ))),
        }
    }

    #[getter]
    fn raw_body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.received.raw_body(self.bytes(py)))
    }

    #[getter]
    fn tag<'a>(&'a self, py: Python<'a>) -> Option<&'a str> {
        self.received.tag.map(|tag| tag.text(self.bytes(py)))
    }

    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.received.keys(self.bytes(py)).collect::<Vec<_>>())
    }

    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dict(py, self.received.properties(self.bytes(py)))
    }

    #[getter]
    fn message_group<'a>(&'a self, py: Python<'a>) -> Option<&'a str> {
        self.received.message_group.map(|group| group.text(self.bytes(py)))
    }

    #[getter]
    const fn delivery_timestamp(&self) -> Option<i64> {
        self.received.delivery_timestamp
    }

    #[getter]
    const fn priority(&self) -> Option<i32> {
        self.received.priority
    }

    #[getter]
    fn queue_id(&self) -> i32 {
        self.received.queue_id
    }

    #[getter]
    fn queue_offset(&self) -> i64 {
        self.received.queue_offset
    }

    #[getter]
    fn delivery_attempt(&self) -> i32 {
        self.received.delivery_attempt
    }

    #[getter]
    fn born_timestamp(&self) -> i64 {
        self.received.born_timestamp
    }

    #[getter]
    fn born_host<'a>(&'a self, py: Python<'a>) -> &'a str {
        self.received.born_host.text(self.bytes(py))
    }

    #[getter]
    fn store_timestamp(&self) -> i64 {
        self.received.store_timestamp
    }

    #[getter]
    fn store_host<'a>(&'a self, py: Python<'a>) -> &'a str {
        self.received.store_host.text(self.bytes(py))
    }

    #[getter]
    fn invisible_ms(&self) -> i64 {
        self.received.invisible_ms
    }

    #[getter]
    fn receipt_handle(&self, py: Python<'_>) -> String {
        self.handle(py)
    }

    #[getter]
    fn endpoint(&self, py: Python<'_>) -> Py<PyString> {
        self.endpoint.clone_ref(py)
    }

    /// Acknowledge the message soon, together with others.
    fn ack<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().lease.bind(slf.py()).call_method1(intern!(slf.py(), "ack_later"), (slf,))
    }

    /// Let the lease end *duration* (float: seconds) from now; zero releases the message at once.
    fn change_invisible_duration<'py>(
        slf: &Bound<'py, Self>,
        duration: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let name = intern!(slf.py(), "change_invisible_duration");
        slf.get().lease.bind(slf.py()).call_method1(name, (slf, duration))
    }

    /// Replace the receipt handle by a new one from the broker.
    fn renew(&self, receipt_handle: String) {
        *self.renewed.lock() = Some(receipt_handle);
    }

    /// Set `is_settled`, and return whether it was unset.
    fn settle(&self) -> bool {
        !self.settled.swap(true, Ordering::AcqRel)
    }

    /// Unset `is_settled` after the broker refused or did not answer.
    fn unsettle(&self) {
        self.settled.store(false, Ordering::Release);
    }

    /// Whether this client has acknowledged the message or forwarded it to the dead letters, or is doing so.
    #[getter]
    fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Received { queue_id, queue_offset, delivery_attempt, .. } = self.received;
        format!(
            "<MessageView topic={:?} queue_id={queue_id} queue_offset={queue_offset} attempt={delivery_attempt} \
             message_id={}>",
            self.topic(py),
            self.message_id(py),
        )
    }
}

/// Encode an AckMessageRequest.
#[pyfunction]
fn encode_acks<'py>(
    py: Python<'py>,
    group: &str,
    topic: &str,
    messages: Vec<Bound<'py, MessageView>>,
) -> Bound<'py, PyBytes> {
    let handles: Vec<_> = messages.iter().map(|message| message.get().handle(py)).collect();
    let entries = messages
        .iter()
        .zip(&handles)
        .map(|(message, handle)| (message.get().message_id(py), handle.as_str()));
    PyBytes::new(py, &codec::encode_acks(group, topic, entries))
}

type AckFailure = (String, i32, String);

/// Decode an AckMessageResponse: code, text; message id, code and text of each failed entry.
#[pyfunction]
fn decode_acked(answer: &[u8]) -> PyResult<(i32, String, Vec<AckFailure>)> {
    let (status, failures) = codec::decode_acked(answer).map_err(malformed)?;
    let failures = failures.into_iter().map(|(id, status)| (id, status.code, status.message)).collect();
    Ok((status.code, status.message, failures))
}

type ReceivedParts<'py> = (Option<(i32, String)>, Bound<'py, PyList>, Option<i64>);

/// Decode a ReceiveMessage or PullMessage stream: its status (code, text), its messages, and a pull's next offset.
#[pyfunction]
fn decode_received<'py>(
    py: Python<'py>,
    packets: Vec<Bound<'py, PyBytes>>,
    packed: bool,
    lease: &Bound<'py, PyAny>,
    endpoint: &Bound<'py, PyString>,
) -> PyResult<ReceivedParts<'py>> {
    let (mut status, mut next_offset) = (None, None);
    let views = PyList::empty(py);
    for packet in packets {
        let response = codec::decode_received(packet.as_bytes(), packed).map_err(malformed)?;
        status = response.status.map(|status| (status.code, status.message)).or(status);
        next_offset = response.next_offset.or(next_offset);
        for received in response.messages {
            views.append(MessageView {
                answer: packet.clone().unbind(),
                received,
                lease: lease.clone().unbind(),
                endpoint: endpoint.clone().unbind(),
                renewed: Mutex::new(None),
                settled: AtomicBool::new(false),
            })?;
        }
    }
    Ok((status, views, next_offset))
}
