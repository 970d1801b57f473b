//! Encodes and decodes batches of messages for the Python client: bindings of `ferromq_client::codec`.
//!
//! The functions keep the interpreter lock: copying a batch of 256 KiB takes less time than getting the lock back from
//! a busy thread.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use ferromq_client::codec::{self, Batch, Body, Headers, Kind, Received, RecordMessage, SendEncoding};
use ferromq_protocol::{protobuf::Malformed, record::names::without_namespace};
use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyIndexError, PyTypeError, PyValueError},
    intern,
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyString, PyTuple},
};

use crate::{
    ack_queue::PyAckQueue,
    client_message::{Message, dict},
    columns::PyRecords,
    shown,
};

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
    module.add_function(wrap_pyfunction!(any_settled, module)?)?;
    module.add_function(wrap_pyfunction!(settle_all, module)?)?;
    module.add_function(wrap_pyfunction!(unsettle_all, module)?)?;
    module.add_function(wrap_pyfunction!(renew, module)?)?;
    module.add_function(wrap_pyfunction!(encode_acks, module)?)?;
    module.add_function(wrap_pyfunction!(encode_record_acks, module)?)?;
    module.add_function(wrap_pyfunction!(decode_record_acks, module)?)?;
    module.add_function(wrap_pyfunction!(decode_acked, module)?)?;
    module.add_function(wrap_pyfunction!(decode_received, module)?)?;
    module.add_function(wrap_pyfunction!(decode_records_answer, module)?)?;
    module.add_function(wrap_pyfunction!(split_records, module)?)
}

pub fn malformed(error: Malformed) -> PyErr {
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

    #[new]
    const fn new(process: [u8; 8], seconds: u32, first: u32, count: u32) -> Self {
        Self(codec::MessageIds { process, seconds, first, count })
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>, u32, u32, u32) {
        let codec::MessageIds { process, seconds, first, count } = self.0;
        (PyBytes::new(py, &process), seconds, first, count)
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
        self.text(index).ok_or_else(out_of_range)
    }
}

impl MessageIds {
    fn text(&self, index: u32) -> Option<String> {
        let id = self.0.get(index)?;
        Some(id.iter().copied().map(char::from).collect())
    }

    /// The first id.
    pub fn first(&self) -> String {
        self.text(0).unwrap_or_default()
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
    let encoding = SendEncoding::new(&batch);
    let parts = || items.iter().map(Item::parts);
    PyBytes::new_with(py, encoding.len(parts()), |out| {
        encoding.put(out, parts());
        Ok(())
    })
}

type SendFailure = (usize, i32, String);
type SendHandles = (usize, String, String);
type SentRecords<'py> = (Option<&'static str>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);
type SentParts<'py> =
    (i32, String, Vec<i64>, Vec<SendFailure>, Vec<SendHandles>, Option<i32>, SentRecords<'py>);

/// Decode a SendMessageResponse: code, text, queue offsets, failed messages, handles, queue of the first message, and
/// durability, address and physical offsets of the records.
#[pyfunction]
fn decode_sent<'py>(py: Python<'py>, answer: &[u8]) -> PyResult<SentParts<'py>> {
    let sent = codec::decode_sent(answer).map_err(malformed)?;
    let failures =
        sent.failures.into_iter().map(|(index, status)| (index, status.code, status.message)).collect();
    let (host, offsets) = sent.records;
    let durability = sent.durability.map(codec::Durability::name);
    let records = (durability, PyBytes::new(py, &host), PyBytes::new(py, &offsets));
    Ok((
        sent.status.code,
        sent.status.message,
        sent.queue_offsets,
        failures,
        sent.handles,
        sent.queue_id,
        records,
    ))
}

/// A received message under a lease. Attributes are built when they are read.
#[pyclass(frozen, module = "ferromq")]
pub struct MessageView {
    message: Source,
    receiver: Arc<Receiver>,
    renewed: Mutex<Option<String>>,
    settled: AtomicBool,
}

/// A message as its broker sent it.
enum Source {
    /// Encoded, in a part of a stream.
    Encoded(Py<PyBytes>, Received),
    /// A record of the log, in an answer to a framed call.
    Record(RecordMessage),
}

/// What all messages of an answer have in common.
pub struct Receiver {
    lease: Py<PyAny>,
    /// Where their acknowledgements wait, if the lease says so.
    acks: Option<Py<PyAckQueue>>,
    endpoint: Py<PyString>,
    /// The namespace without which the topic is named.
    namespace: Option<Py<PyString>>,
}

impl Receiver {
    pub fn new(
        lease: Bound<'_, PyAny>,
        endpoint: Bound<'_, PyString>,
        namespace: Option<Bound<'_, PyString>>,
    ) -> PyResult<Arc<Self>> {
        let acks = lease.getattr_opt(intern!(lease.py(), "acks"))?;
        Ok(Arc::new(Self {
            acks: acks.and_then(|acks| acks.cast_into::<PyAckQueue>().ok()).map(Bound::unbind),
            lease: lease.unbind(),
            endpoint: endpoint.unbind(),
            namespace: namespace.filter(|name| name.len().is_ok_and(|len| len > 0)).map(Bound::unbind),
        }))
    }
}

impl MessageView {
    fn new(message: Source, receiver: &Arc<Receiver>) -> Self {
        Self {
            message,
            receiver: Arc::clone(receiver),
            renewed: Mutex::new(None),
            settled: AtomicBool::new(false),
        }
    }

    fn handle(&self, py: Python<'_>) -> String {
        let renewed = self.renewed.lock().clone();
        renewed.unwrap_or_else(|| match &self.message {
            Source::Encoded(answer, received) => received.receipt_handle.text(answer.as_bytes(py)).to_owned(),
            Source::Record(record) => record.receipt_handle(),
        })
    }

    /// The record, if the message came as one and has its first lease.
    fn leased_record(&self) -> Option<&RecordMessage> {
        match &self.message {
            Source::Record(record) if self.renewed.lock().is_none() => Some(record),
            _ => None,
        }
    }

    /// Settles the message; false if it was.
    fn settle_now(&self) -> bool {
        !self.settled.swap(true, Ordering::AcqRel)
    }

    /// The broker's endpoint.
    fn endpoint_of<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        self.receiver.endpoint.bind(py).clone()
    }

    fn place(&self) -> (i32, i64, i32) {
        match &self.message {
            Source::Encoded(_, message) => (message.queue_id, message.queue_offset, message.delivery_attempt),
            Source::Record(message) => (message.queue_id, message.queue_offset, message.delivery_attempt),
        }
    }
}

#[pymethods]
impl MessageView {
    /// The topic, named without the namespace of its consumer.
    #[getter]
    fn topic<'a>(&'a self, py: Python<'a>) -> PyResult<Cow<'a, str>> {
        let whole = match &self.message {
            Source::Encoded(answer, message) => message.topic.text(answer.as_bytes(py)),
            Source::Record(message) => message.topic(),
        };
        Ok(match &self.receiver.namespace {
            Some(namespace) => without_namespace(namespace.to_str(py)?, whole),
            None => whole.into(),
        })
    }

    /// The message id, which the producer chose.
    #[getter]
    fn message_id<'a>(&'a self, py: Python<'a>) -> Cow<'a, str> {
        match &self.message {
            Source::Encoded(answer, message) => message.message_id.text(answer.as_bytes(py)).into(),
            Source::Record(message) => message.message_id(),
        }
    }

    /// The body as it was sent, decompressed if needed.
    ///
    /// Raises `CorruptMessage`, a `ValueError`, if the body does not match the checksum that the broker sent, or is marked
    /// as compressed but cannot be decompressed. If a handler does not catch it, the message is redelivered, and becomes a
    /// dead letter in the end.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let body = match &self.message {
            Source::Encoded(answer, message) => message.body(answer.as_bytes(py)),
            Source::Record(message) => message.body(),
        };
        match body {
            Ok(Body::Plain(body)) => Ok(PyBytes::new(py, body)),
            Ok(Body::Unpacked(body)) => Ok(PyBytes::new(py, &body)),
            Err(text) => Err(crate::error::raised::CorruptMessage::new_err(format!(
                "message {} of topic {}, queue {}, offset {}: {text}; raw_body has the bytes as received",
                self.message_id(py),
                self.topic(py)?,
                self.queue_id(),
                self.queue_offset()
            ))),
        }
    }

    /// The body as received, compressed or not.
    #[getter]
    fn raw_body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        match &self.message {
            Source::Encoded(answer, message) => PyBytes::new(py, message.raw_body(answer.as_bytes(py))),
            Source::Record(message) => PyBytes::new(py, message.raw_body()),
        }
    }

    /// The tag; None without one.
    #[getter]
    fn tag<'a>(&'a self, py: Python<'a>) -> Option<&'a str> {
        match &self.message {
            Source::Encoded(answer, message) => message.tag.map(|tag| tag.text(answer.as_bytes(py))),
            Source::Record(message) => message.tag(),
        }
    }

    /// The keys, by which queries find the message.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let keys: Vec<_> = match &self.message {
            Source::Encoded(answer, message) => message.keys(answer.as_bytes(py)).collect(),
            Source::Record(message) => message.keys().collect(),
        };
        PyTuple::new(py, keys)
    }

    /// The properties that the producer gave.
    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        match &self.message {
            Source::Encoded(answer, message) => dict(py, message.properties(answer.as_bytes(py))),
            Source::Record(message) => dict(py, message.properties()),
        }
    }

    /// The message group, whose messages are delivered in the order of sending; None without one.
    #[getter]
    fn message_group<'a>(&'a self, py: Python<'a>) -> Option<&'a str> {
        match &self.message {
            Source::Encoded(answer, message) => {
                message.message_group.map(|group| group.text(answer.as_bytes(py)))
            }
            Source::Record(message) => message.message_group(),
        }
    }

    /// The earliest delivery time of a timed message, milliseconds since 1970; None for others.
    #[getter]
    fn delivery_timestamp(&self) -> Option<i64> {
        match &self.message {
            Source::Encoded(_, message) => message.delivery_timestamp,
            Source::Record(message) => message.delivery_timestamp(),
        }
    }

    /// The priority, 0 or more, higher ones first; None without one.
    #[getter]
    fn priority(&self) -> Option<i32> {
        match &self.message {
            Source::Encoded(_, message) => message.priority,
            Source::Record(message) => message.priority(),
        }
    }

    /// The number of its queue in the topic on its broker, from 0.
    #[getter]
    fn queue_id(&self) -> i32 {
        self.place().0
    }

    /// The position in its queue, from 0.
    #[getter]
    fn queue_offset(&self) -> i64 {
        self.place().1
    }

    /// The number of this delivery: 1 for the first one.
    #[getter]
    fn delivery_attempt(&self) -> i32 {
        self.place().2
    }

    /// When it was sent, by the producer's clock: milliseconds since 1970.
    #[getter]
    fn born_timestamp(&self) -> i64 {
        match &self.message {
            Source::Encoded(_, message) => message.born_timestamp,
            Source::Record(message) => message.born_timestamp,
        }
    }

    /// The producer's address, or what it gave in its place.
    #[getter]
    fn born_host<'a>(&'a self, py: Python<'a>) -> Cow<'a, str> {
        match &self.message {
            Source::Encoded(answer, message) => message.born_host.text(answer.as_bytes(py)).into(),
            Source::Record(message) => message.born_host(),
        }
    }

    /// When it was stored, by the broker's clock: milliseconds since 1970.
    #[getter]
    fn store_timestamp(&self) -> i64 {
        match &self.message {
            Source::Encoded(_, message) => message.store_timestamp,
            Source::Record(message) => message.store_timestamp,
        }
    }

    /// The `host:port` of the broker that stored it.
    #[getter]
    fn store_host<'a>(&'a self, py: Python<'a>) -> Cow<'a, str> {
        match &self.message {
            Source::Encoded(answer, message) => message.store_host.text(answer.as_bytes(py)).into(),
            Source::Record(message) => message.store_host().into(),
        }
    }

    /// The length of its first lease in milliseconds.
    #[getter]
    fn invisible_ms(&self) -> i64 {
        match &self.message {
            Source::Encoded(_, message) => message.invisible_ms,
            Source::Record(message) => message.invisible_ms(),
        }
    }

    /// The key of the lease. It changes with the lease's duration.
    #[getter]
    fn receipt_handle(&self, py: Python<'_>) -> String {
        self.handle(py)
    }

    /// The `host:port` of the broker that delivered it and takes its acknowledgement.
    #[getter]
    fn endpoint(&self, py: Python<'_>) -> Py<PyString> {
        self.receiver.endpoint.clone_ref(py)
    }

    /// Acknowledge the message soon, together with others.
    fn ack(slf: &Bound<'_, Self>) -> PyResult<()> {
        if let Some(acks) = &slf.get().receiver.acks {
            let view = slf.get();
            return acks.get().put(slf.as_any(), view.receiver.endpoint.bind(slf.py()), || view.settle_now());
        }
        slf.get().receiver.lease.bind(slf.py()).call_method1(intern!(slf.py(), "ack_later"), (slf,))?;
        Ok(())
    }

    /// Let the lease end *duration* (float: seconds) from now; zero releases the message at once.
    fn change_invisible_duration<'py>(
        slf: &Bound<'py, Self>,
        duration: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let name = intern!(slf.py(), "change_invisible_duration");
        slf.get().receiver.lease.bind(slf.py()).call_method1(name, (slf, duration))
    }

    /// Whether this client has acknowledged the message or forwarded it to the dead letters, or is doing so.
    #[getter]
    fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// Return the message itself: there is one lease, and nothing else of it changes.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a received message cannot be pickled, because its lease belongs to this process: send message.body, and \
             the attributes that you need",
        ))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        shown::html(slf)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (queue_id, queue_offset, delivery_attempt) = self.place();
        Ok(format!(
            "<MessageView topic={:?} queue_id={queue_id} queue_offset={queue_offset} attempt={delivery_attempt} \
             message_id={}>",
            self.topic(py)?,
            self.message_id(py),
        ))
    }
}

/// Replace the receipt handle of a message by a new one from the broker.
#[pyfunction]
fn renew(message: &Bound<'_, MessageView>, receipt_handle: String) {
    *message.get().renewed.lock() = Some(receipt_handle);
}

/// Unset `is_settled` of messages after the broker refused or did not answer.
#[pyfunction]
fn unsettle_all(messages: Vec<Bound<'_, MessageView>>) {
    for message in messages {
        message.get().settled.store(false, Ordering::Release);
    }
}

/// Return whether any of the messages is settled.
#[pyfunction]
fn any_settled(messages: Vec<Bound<'_, MessageView>>) -> bool {
    messages.iter().any(|message| message.get().is_settled())
}

/// Settle messages, and return those that were not, by the broker that they came from.
#[pyfunction]
fn settle_all<'py>(py: Python<'py>, messages: Vec<Bound<'py, MessageView>>) -> PyResult<Bound<'py, PyDict>> {
    let brokers = PyDict::new(py);
    let mut last: Option<(Bound<'py, PyString>, Bound<'py, PyList>)> = None;
    for message in messages {
        if !message.get().settle_now() {
            continue;
        }
        let endpoint = message.get().endpoint_of(py);
        // Most messages come from the broker of the one before.
        match &last {
            Some((known, some)) if known.is(&endpoint) => some.append(message)?,
            _ => {
                let some = match brokers.get_item(&endpoint)? {
                    Some(some) => some.cast_into::<PyList>()?,
                    None => PyList::empty(py),
                };
                some.append(message)?;
                brokers.set_item(&endpoint, &some)?;
                last = Some((endpoint, some));
            }
        }
    }
    Ok(brokers)
}

/// Encode an AckMessageRequest.
#[pyfunction]
fn encode_acks<'py>(
    py: Python<'py>,
    group: &str,
    topic: &str,
    messages: Vec<Bound<'py, MessageView>>,
) -> Bound<'py, PyBytes> {
    let entry = |message: &MessageView| (message.message_id(py).into_owned(), message.handle(py));
    let entries: Vec<_> = messages.iter().map(|message| entry(message.get())).collect();
    let entries = entries.iter().map(|(id, handle)| (&**id, &**handle));
    PyBytes::new(py, &codec::encode_acks(group, topic, entries))
}

/// Encode an acknowledgement for a framed call, or return None: not all messages came as records with their first leases.
#[pyfunction]
fn encode_record_acks<'py>(
    py: Python<'py>,
    group: &str,
    topic: &str,
    messages: Vec<Bound<'py, MessageView>>,
) -> Option<Bound<'py, PyBytes>> {
    let records: Option<Vec<_>> = messages.iter().map(|message| message.get().leased_record()).collect();
    let request = codec::encode_record_acks(group, topic, records?.into_iter())?;
    Some(PyBytes::new(py, &request))
}

type RecordAckFailure = (usize, i32, String);

/// Decode the answer to `AckRecords`: code, text; index, code and text of each failed message.
#[pyfunction]
fn decode_record_acks(answer: &[u8]) -> PyResult<(i32, String, Vec<RecordAckFailure>)> {
    let (status, failures) = codec::decode_record_acks(answer).map_err(malformed)?;
    let failures = failures.into_iter().map(|(index, status)| (index, status.code, status.message)).collect();
    Ok((status.code, status.message, failures))
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
#[pyo3(signature = (packets, packed, lease, endpoint, namespace=None))]
fn decode_received<'py>(
    py: Python<'py>,
    packets: Vec<Bound<'py, PyBytes>>,
    packed: bool,
    lease: Bound<'py, PyAny>,
    endpoint: Bound<'py, PyString>,
    namespace: Option<Bound<'py, PyString>>,
) -> PyResult<ReceivedParts<'py>> {
    let receiver = Receiver::new(lease, endpoint, namespace)?;
    let (mut status, mut next_offset) = (None, None);
    let views = PyList::empty(py);
    for packet in packets {
        let response = codec::decode_received(packet.as_bytes(), packed).map_err(malformed)?;
        status = response.status.map(|status| (status.code, status.message)).or(status);
        next_offset = response.next_offset.or(next_offset);
        for received in response.messages {
            let message = Source::Encoded(packet.clone().unbind(), received);
            views.append(MessageView::new(message, &receiver))?;
        }
    }
    Ok((status, views, next_offset))
}

/// Decode the answer to a framed receive or pull: its status (code, text), its messages, and a pull's next offset.
#[pyfunction]
#[pyo3(signature = (answer, lease, endpoint, namespace=None))]
fn decode_records_answer<'py>(
    py: Python<'py>,
    answer: &Bound<'py, PyRecords>,
    lease: Bound<'py, PyAny>,
    endpoint: Bound<'py, PyString>,
    namespace: Option<Bound<'py, PyString>>,
) -> PyResult<ReceivedParts<'py>> {
    let receiver = Receiver::new(lease, endpoint, namespace)?;
    let decoded = codec::decode_records(&answer.get().0).map_err(malformed)?;
    let views = views(py, decoded.messages, &receiver)?;
    Ok((Some((decoded.status.code, decoded.status.message)), views, decoded.next_offset))
}

/// The messages of an answer for Python.
pub fn views<'py>(
    py: Python<'py>,
    records: Vec<RecordMessage>,
    receiver: &Arc<Receiver>,
) -> PyResult<Bound<'py, PyList>> {
    let views = PyList::empty(py);
    for record in records {
        views.append(MessageView::new(Source::Record(record), receiver))?;
    }
    Ok(views)
}

type RecordParts = ((i32, String), Option<i64>, PyRecords);

/// Split the answer to a framed receive or pull: its status (code, text), a pull's next offset, and its records.
#[pyfunction]
fn split_records(answer: &Bound<'_, PyRecords>) -> PyResult<RecordParts> {
    let codec::RecordBytes { status, next_offset, records } =
        codec::split_records(&answer.get().0).map_err(malformed)?;
    Ok(((status.code, status.message), next_offset, PyRecords(records)))
}
