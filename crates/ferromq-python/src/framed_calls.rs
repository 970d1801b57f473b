//! Framed calls of the Python client: bindings of `ferromq_client`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ferromq_client::{
    Begun, CallError, Cancellation, ClientTls, Connections, Patience, Request, Response, TlsError,
    TlsOptions, codec, sends::MAX_REQUEST,
};
use ferromq_protocol::remoting::{Fields, codes::framed};
use parking_lot::Mutex;
use pyo3::{
    exceptions::PyRuntimeError,
    prelude::*,
    pybacked::PyBackedBytes,
    types::{PyList, PyString},
};

use crate::{
    ahead::Ahead,
    calls::{Answer, Polled, answer, exception, interruptible, limit, polled, status},
    client::{Receiver, malformed, views},
    completions::{Outcome, PyCompletions},
    error::raised,
    local_server::LocalBroker,
    process::{Owned, here},
    server::PyServer,
};

/// Calls hot methods of brokers over connections of their own, without HTTP/2.
///
/// A call waits in its thread, without the interpreter lock. Thread-safe.
#[pyclass(name = "FramedCalls", module = "ferromq._ferromq", frozen)]
pub struct PyFramedCalls(Owned<Arc<Connections>>);

impl PyFramedCalls {
    /// The connections, or `ForkedProcess` in a child.
    pub fn connections(&self) -> PyResult<&Arc<Connections>> {
        self.0.get()
    }
}

/// What a client trusts over TLS, and shows to brokers that ask.
#[pyclass(name = "FramedTls", module = "ferromq._ferromq", frozen)]
pub struct PyFramedTls(ClientTls);

impl PyFramedTls {
    pub fn options(&self) -> ClientTls {
        self.0.clone()
    }
}

#[pymethods]
impl PyFramedTls {
    /// *trust*, *certificate* and *key* are contents of PEM files. *server_name* is the name that brokers' certificates must
    /// have; without it, the host of the endpoint.
    ///
    /// Raises `ConfigError` for a file without what it is for, and `Unsupported` for what gRPC may accept nevertheless.
    #[new]
    #[pyo3(signature = (trust, certificate=None, key=None, server_name=None))]
    fn new(
        trust: &[u8],
        certificate: Option<&[u8]>,
        key: Option<&[u8]>,
        server_name: Option<&str>,
    ) -> PyResult<Self> {
        let options = TlsOptions { trust, identity: certificate.zip(key), server_name };
        ClientTls::new(&options).map(Self).map_err(|error| match error {
            TlsError::Invalid(reason) => raised::ConfigError::new_err(reason),
            error => raised::Unsupported::new_err(error.to_string()),
        })
    }
}

/// Ends receives and pulls from another thread.
#[pyclass(name = "Cancellation", module = "ferromq._ferromq", frozen)]
pub struct PyCancellation(Cancellation);

#[pymethods]
impl PyCancellation {
    #[new]
    fn new() -> Self {
        Self(Cancellation::default())
    }

    /// Have the broker answer what is under way at once. Later calls fail.
    fn set(&self, py: Python<'_>) {
        py.detach(|| self.0.set());
    }
}

/// A receive or a pull whose request was sent. Where the object ends first, its answer is given up.
#[pyclass(name = "BegunCall", module = "ferromq._ferromq", frozen)]
pub struct PyBegunCall {
    begun: Mutex<Option<Begun>>,
    until: Instant,
    made: u32,
}

/// The answer may lie in the socket already.
const LEAST_WAIT: Duration = Duration::from_millis(100);

impl Drop for PyBegunCall {
    fn drop(&mut self) {
        if let Some(begun) = self.begun.get_mut().take() {
            if self.made != here() {
                // Its locks may be held by threads of the parent, and the connection is the parent's.
                return std::mem::forget(begun);
            }
            // Leaving the broker may wait for a thread that needs the interpreter lock.
            Python::try_attach(|py| py.detach(|| drop(begun)));
        }
    }
}

impl PyBegunCall {
    fn new(begun: Begun, until: Instant) -> Self {
        Self { begun: Mutex::new(Some(begun)), until, made: here() }
    }

    fn take(&self) -> PyResult<Begun> {
        let begun = self.begun.lock().take();
        begun.ok_or_else(|| PyRuntimeError::new_err("the answer was taken already"))
    }

    /// How long to wait for the answer: what came while the caller did something else is read, however long that took.
    fn until(&self) -> Instant {
        self.until.max(Instant::now() + LEAST_WAIT)
    }
}

#[pymethods]
impl PyBegunCall {
    /// Wait for the answer, and return what `FramedCalls.poll` returns. *cancellation* ends the wait.
    ///
    /// Raises `ConnectionFailed` and `RequestTimeout`, and `RuntimeError` the second time.
    fn wait(&self, py: Python<'_>, cancellation: &PyCancellation) -> PyResult<Polled> {
        let begun = self.take()?;
        waited(py, self.until(), |patience| begun.wait(patience, &cancellation.0)).map(polled)
    }
}

#[pymethods]
impl PyFramedCalls {
    /// The connections speak TLS with *tls*. Each request has *fields* besides its own.
    #[new]
    #[pyo3(signature = (tls=None, fields=Vec::new()), text_signature = "(tls=None, fields=())")]
    fn new(tls: Option<&PyFramedTls>, fields: Vec<(String, String)>) -> Self {
        let connections = match tls {
            Some(tls) => Connections::over_tls(tls.options()),
            None => Connections::new(),
        };
        let connections = connections.with_fields(fields.into());
        Self(Owned::new("client", Arc::new(connections)))
    }

    /// Return whether *method* can be called in frames with *request*.
    #[staticmethod]
    fn takes(method: &str, request: &[u8]) -> bool {
        code(method).is_some() && request.len() <= MAX_REQUEST
    }

    /// Call *method* of the broker at *endpoint*, and return its status, the text of a failure, and its response.
    ///
    /// The status is gRPC's; 0 is success. Raises `ConnectionFailed` and `RequestTimeout`.
    fn call<'py>(
        &self,
        py: Python<'py>,
        endpoint: &str,
        method: &str,
        request: PyBackedBytes,
        timeout: f64,
        client_id: &str,
    ) -> PyResult<Answer<'py>> {
        let connections = self.0.get()?;
        let request = self::request(method, request, client_id)?;
        let until = Instant::now() + limit(timeout);
        let response = waited(py, until, |patience| connections.call(endpoint, request, patience))?;
        Ok(answer(py, response))
    }

    /// Call *method*, a receive or a pull, and return its status, the text of a failure, and the answer with its records.
    ///
    /// *cancellation* ends it. Raises `ConnectionFailed` and `RequestTimeout`.
    #[allow(clippy::too_many_arguments)] // one call each, without an intermediate object
    fn poll(
        &self,
        py: Python<'_>,
        endpoint: &str,
        method: &str,
        request: PyBackedBytes,
        timeout: f64,
        client_id: &str,
        cancellation: &PyCancellation,
    ) -> PyResult<Polled> {
        let connections = self.0.get()?;
        let request = self::request(method, request, client_id)?;
        let until = Instant::now() + limit(timeout);
        let poll = |patience: Patience<'_>| connections.poll(endpoint, request, patience, &cancellation.0);
        waited(py, until, poll).map(polled)
    }

    /// Receive up to *count* messages that *ahead* will hold: wait for *begun*, or else send *request*.
    ///
    /// Return the status of the call, that of its answer, the messages, and the next receive: if *is_followed*, the answer
    /// has messages and *ahead* has room for as many again, its request was sent before the messages were decoded.
    ///
    /// It decodes without the interpreter lock, which a loop over *ahead* hands over as soon as the messages are there.
    /// Raises `ConnectionFailed`, `RequestTimeout`, and `ValueError` for a malformed answer.
    #[allow(clippy::too_many_arguments)] // one call each, without an intermediate object
    #[pyo3(signature = (
        endpoint, request, count, timeout, client_id, cancellation, ahead, receiver, begun=None, *, is_followed
    ))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        endpoint: Bound<'py, PyString>,
        request: PyBackedBytes,
        count: usize,
        timeout: f64,
        client_id: &str,
        cancellation: &PyCancellation,
        ahead: &Ahead,
        receiver: (Bound<'py, PyAny>, Option<Bound<'py, PyString>>),
        begun: Option<&PyBegunCall>,
        is_followed: bool,
    ) -> PyResult<(i32, i32, Bound<'py, PyList>, Option<PyBegunCall>)> {
        let connections = self.0.get()?;
        let request = self::request("ReceiveMessage", request, client_id)?;
        let timeout = limit(timeout);
        let (begun, until) = match begun {
            Some(call) => (Some(call.take()?), call.until()),
            None => (None, Instant::now() + timeout),
        };
        let (address, cancellation) = (endpoint.to_str()?, &cancellation.0);
        let (raised, outcome) = interruptible(py, |is_interrupted| {
            let patience = Patience { until, is_interrupted };
            let response = match begun {
                Some(begun) => begun.wait(patience, cancellation)?,
                None => connections.poll(address, request.clone(), patience, cancellation)?,
            };
            let mut following = None;
            let is_followed = is_followed && has_messages(&response) && !cancellation.is_set();
            if is_followed && ahead.has_room_behind(count) {
                let until = Instant::now() + timeout;
                // What prevents it is met by the next receive, too.
                following = connections
                    .begin(address, request, Patience { until, is_interrupted })
                    .and_then(Result::ok)
                    .map(|begun| PyBegunCall::new(begun, until));
            }
            let decoded = match response.code {
                0 => Some(codec::decode_records(&response.body)),
                _ => None,
            };
            ahead.handover().ask();
            Ok((response.code, decoded, following))
        });
        ahead.handover().take();
        raised?;
        match outcome.map_err(|failure: CallError| exception(&failure))? {
            (_, Some(decoded), following) => {
                let decoded = decoded.map_err(malformed)?;
                let receiver = Receiver::new(receiver.0, endpoint, receiver.1)?;
                Ok((0, decoded.status.code, views(py, decoded.messages, &receiver)?, following))
            }
            (code, None, _) => Ok((status(code), 0, PyList::empty(py), None)),
        }
    }

    /// As `begin`, for a receive behind the acknowledgement *acks*, also at a broker of this process: both go with one
    /// write. Return the acknowledgement's status, the text of a failure and its response, and the receive.
    ///
    /// *timeouts*: of the acknowledgement and of the receive. Raises `ConnectionFailed` and `RequestTimeout`; then the
    /// acknowledgement may have done its work.
    fn begin_behind<'py>(
        &self,
        py: Python<'py>,
        endpoint: &str,
        acks: PyBackedBytes,
        request: PyBackedBytes,
        timeouts: (f64, f64),
        client_id: &str,
    ) -> PyResult<(Answer<'py>, PyBegunCall)> {
        let connections = self.0.get()?;
        let acks = self::request("AckRecords", acks, client_id)?;
        let request = self::request("ReceiveMessage", request, client_id)?;
        let now = Instant::now();
        let (until, end) = (now + limit(timeouts.0), now + limit(timeouts.1));
        let begin = |patience: Patience<'_>| connections.begin_behind(endpoint, acks, request, patience);
        let (acked, begun) = waited(py, until, begin)?;
        Ok((answer(py, acked), PyBegunCall::new(begun, end)))
    }

    /// Send the request of a pull that does not wait for messages, without waiting for the answer.
    ///
    /// Return None if no connection to *endpoint* is open, or if it is a broker of this process. Raises `ConnectionFailed`
    /// and `RequestTimeout`.
    fn begin(
        &self,
        py: Python<'_>,
        endpoint: &str,
        method: &str,
        request: PyBackedBytes,
        timeout: f64,
        client_id: &str,
    ) -> PyResult<Option<PyBegunCall>> {
        let connections = self.0.get()?;
        // Nothing has to end it where its answer is given up.
        let request = Request { is_poll: false, ..self::request(method, request, client_id)? };
        let until = Instant::now() + limit(timeout);
        let begin = |patience: Patience<'_>| connections.begin(endpoint, request, patience).transpose();
        let begun = waited(py, until, begin)?;
        Ok(begun.map(|begun| PyBegunCall::new(begun, until)))
    }

    /// Let the broker at *endpoint* answer the receives under way at once.
    fn release(&self, py: Python<'_>, endpoint: &str) -> PyResult<()> {
        let connections = self.0.get()?;
        py.detach(|| connections.release(endpoint));
        Ok(())
    }

    /// Start a call, whose outcome comes to *completions* under *number*. Return False, and do nothing, if no connection
    /// to *endpoint* is open.
    #[allow(clippy::too_many_arguments)] // one call each, without an intermediate object
    fn start(
        &self,
        endpoint: &str,
        method: &str,
        request: PyBackedBytes,
        timeout: f64,
        client_id: &str,
        completions: &PyCompletions,
        number: u64,
    ) -> PyResult<bool> {
        let connections = self.0.get()?;
        if !connections.is_open(endpoint) {
            return Ok(false);
        }
        let request = self::request(method, request, client_id)?;
        let completions = Arc::clone(completions.queue()?);
        let is_poll = request.is_poll;
        let done = move |answer| {
            completions.put(match is_poll {
                true => Outcome::Polled(number, answer),
                false => Outcome::Called(number, answer),
            });
        };
        connections.start(endpoint, request, Instant::now() + limit(timeout), done);
        Ok(true)
    }

    /// Call the broker at *endpoint* as *server*, which is in this process, without a connection.
    fn attach(&self, endpoint: &str, server: &PyServer) -> PyResult<()> {
        self.0.get()?.attach(endpoint, Arc::new(LocalBroker(server.local_calls()?)));
        Ok(())
    }

    /// Return whether a connection to *endpoint* is open.
    fn is_open(&self, endpoint: &str) -> PyResult<bool> {
        Ok(self.0.get()?.is_open(endpoint))
    }

    /// Return None if the broker at *endpoint* answers frames within *timeout* seconds, and else the reason.
    fn probe(&self, py: Python<'_>, endpoint: &str, timeout: f64) -> PyResult<Option<String>> {
        let connections = self.0.get()?;
        let until = Instant::now() + limit(timeout);
        let request = Request { code: framed::PROBE, ..Request::default() };
        let answer =
            py.detach(|| connections.call(endpoint, request, Patience { until, is_interrupted: &|| false }));
        Ok(match answer {
            Ok(Response { code: 0, .. }) => None,
            Ok(Response { code, remark, .. }) => {
                Some(remark.unwrap_or_else(|| format!("response code {code}")))
            }
            Err(error) => Some(error.to_string()),
        })
    }

    /// End the connection to *endpoint*, and the calls on it.
    fn forget(&self, py: Python<'_>, endpoint: &str) -> PyResult<()> {
        let connections = self.0.get()?;
        py.detach(|| connections.forget(endpoint));
        Ok(())
    }

    /// End all connections, and the calls on them. Later calls raise `ConnectionFailed`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let connections = self.0.get()?;
        py.detach(|| connections.close());
        Ok(())
    }
}

/// Runs a call that waits until `until` at most, without the interpreter lock, and makes its failure an exception.
fn waited<T: Send>(
    py: Python<'_>,
    until: Instant,
    call: impl FnOnce(Patience<'_>) -> Result<T, CallError> + Send,
) -> PyResult<T> {
    let (raised, outcome) = interruptible(py, |is_interrupted| call(Patience { until, is_interrupted }));
    raised?;
    outcome.map_err(|failure| exception(&failure))
}

/// Whether the answer to a receive has messages.
fn has_messages(response: &Response) -> bool {
    let records = codec::split_records(&response.body);
    response.code == 0
        && records.is_ok_and(|answer| answer.status.code == codec::OK && !answer.records.is_empty())
}

fn request(method: &str, request: PyBackedBytes, client_id: &str) -> PyResult<Request> {
    let code = code(method).ok_or_else(|| {
        raised::Unsupported::new_err(format!("{method} cannot be called in frames; call it over gRPC"))
    })?;
    Ok(Request {
        code,
        fields: Fields::from([("client", client_id)]),
        parts: vec![Bytes::from_owner(request)],
        is_poll: matches!(code, framed::RECEIVE_MESSAGE | framed::PULL_MESSAGE),
    })
}

fn code(method: &str) -> Option<i32> {
    Some(match method {
        "SendMessage" => framed::SEND_MESSAGE,
        "AckMessage" => framed::ACK_MESSAGE,
        "ChangeInvisibleDuration" => framed::CHANGE_INVISIBLE_DURATION,
        "UpdateOffset" => framed::UPDATE_OFFSET,
        "ReceiveMessage" => framed::RECEIVE_MESSAGE,
        "PullMessage" => framed::PULL_MESSAGE,
        "AckRecords" => framed::ACK_RECORDS,
        _ => return None,
    })
}
