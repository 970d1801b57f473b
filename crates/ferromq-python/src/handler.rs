//! Calls Python functions for cold requests. No other file attaches to the interpreter.
//!
//! Network threads never wait here: they look up the function of a route and queue a job for a bounded pool of threads.
//! A thread of the pool waits for the interpreter, calls the function and returns the response.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ferromq_store::retention::ExpiredFile;
use ferromq_transport::{
    ColdHandler, ColdRequest, ColdResponse, Demoted, LogLimiter, Missing, Reply, Sender, TransportError,
    Verb, remoting::Fields,
};
use parking_lot::{Mutex, RwLock};
use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::PyTypeError,
    prelude::*,
    types::{PyBytes, PyDict, PyTuple},
};
use tokio::sync::oneshot;

use crate::{
    expired_file::PyExpiredFile,
    pool::Pool,
    request::{PyRequest, dict},
};

type Function = Py<PyAny>;

/// The functions that Python registered. Their lock is held for a look-up only, never while Python code runs.
#[derive(Default)]
struct Functions {
    cold: HashMap<Verb, Function>,
    missing: Option<Function>,
    telemetry: Option<Function>,
    close: Option<Function>,
}

/// Closed connections that are not yet reported to Python.
#[derive(Default)]
struct ClosedConnections {
    connections: Vec<u64>,
    /// Whether a job that reports them is queued or running.
    has_job: bool,
}

impl ClosedConnections {
    /// Takes the unreported connections. `None` ends the job.
    fn take(&mut self) -> Option<Vec<u64>> {
        self.has_job = !self.connections.is_empty();
        self.has_job.then(|| std::mem::take(&mut self.connections))
    }
}

/// The control plane of one server.
pub struct Handlers {
    functions: Arc<RwLock<Functions>>,
    closed: Arc<Mutex<ClosedConnections>>,
    failures: Arc<LogLimiter>,
    pool: Pool,
}

impl Handlers {
    /// Starts the pool of threads.
    pub fn start(threads: usize) -> io::Result<Self> {
        let pool = Pool::start(threads)?;
        Ok(Self { functions: Arc::default(), closed: Arc::default(), failures: Arc::default(), pool })
    }

    /// Answers `verb` with `function` from now on.
    pub fn register(&self, verb: Verb, function: Function) {
        let replaced = self.functions.write().cold.insert(verb, function);
        // Dropped after the lock is released: a destructor may run Python code that calls this object.
        drop(replaced);
    }

    /// Sets the function for unknown topics and groups.
    pub fn set_missing(&self, function: Function) {
        let replaced = self.functions.write().missing.replace(function);
        drop(replaced);
    }

    /// Sets the function for telemetry messages.
    pub fn set_telemetry(&self, function: Function) {
        let replaced = self.functions.write().telemetry.replace(function);
        drop(replaced);
    }

    /// Sets the function for closed connections.
    pub fn set_close(&self, function: Function) {
        let replaced = self.functions.write().close.replace(function);
        drop(replaced);
    }

    /// Waits up to `patience` for running and queued calls. Returns false if some did not end.
    pub fn stop(&self, patience: Duration) -> bool {
        self.pool.stop(patience)
    }

    /// Drops all functions, so that the objects that they refer to can be freed.
    pub fn clear(&self) {
        let functions = std::mem::take(&mut *self.functions.write());
        drop(functions);
    }

    /// Visits the functions for the garbage collector; none while another thread changes them.
    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(functions) = self.functions.try_read() else { return Ok(()) };
        let named = [&functions.missing, &functions.telemetry, &functions.close];
        functions
            .cold
            .values()
            .chain(named.into_iter().flatten())
            .try_for_each(|function| visit.call(function))
    }

    /// Makes a job that looks up a function when it runs, and calls it if there is one.
    fn job<R>(
        &self,
        what: impl Into<String>,
        find: impl FnOnce(&Functions) -> Option<&Function> + Send + 'static,
        call: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<R> + Send + 'static,
        done: impl FnOnce(Result<R, TransportError>) + Send + 'static,
    ) -> impl FnOnce() + Send + 'static
    where
        R: Send,
    {
        let (functions, failures, what) =
            (Arc::clone(&self.functions), Arc::clone(&self.failures), what.into());
        move || {
            // `None`: the interpreter is shutting down.
            let outcome = Python::try_attach(|py| {
                let function = find(&functions.read()).map(|function| function.clone_ref(py));
                let Some(function) = function else { return Err(TransportError::Unanswered) };
                call(py, function.bind(py)).map_err(|error| report(py, &failures, &what, &error))
            });
            done(outcome.unwrap_or(Err(TransportError::Unanswered)));
        }
    }
}

impl ColdHandler for Handlers {
    fn serves(&self, verb: &Verb) -> bool {
        self.functions.read().cold.contains_key(verb)
    }

    fn call(&self, request: ColdRequest, reply: Reply) {
        // The reply is shared with the job, so that a rejected job can still be answered.
        let reply = Arc::new(parking_lot::Mutex::new(Some(reply)));
        let answer = Arc::clone(&reply);
        let (verb, expires) = (request.verb.clone(), request.expires);
        let memory = request.memory();
        let job = self.job(
            verb.to_string(),
            // A request whose client has given up is not started.
            move |functions| {
                functions.cold.get(&verb).filter(|_| expires.is_none_or(|at| at > Instant::now()))
            },
            move |py, function| {
                let is_rpc = matches!(request.verb, Verb::Rpc(_));
                let argument = PyRequest::new(py, request)?;
                response(&function.call1((argument,))?, is_rpc)
            },
            move |outcome| reply_once(&answer, outcome),
        );
        let refused = Arc::clone(&reply);
        let job = move || match memory.has_room() {
            true => job(),
            false => reply_once(&refused, Err(TransportError::Busy("clients do not read their responses"))),
        };
        if !self.pool.submit(job) {
            reply_once(&reply, Err(TransportError::Busy("too many requests wait for a handler")));
        }
    }

    fn demote(&self, missing: Missing, peer: SocketAddr, done: oneshot::Sender<Demoted>) {
        // The sender is shared with the job, so that a rejected job can still be answered.
        let done = Arc::new(parking_lot::Mutex::new(Some(done)));
        let answer = Arc::clone(&done);
        let job = self.job(
            "missing name",
            |functions| functions.missing.as_ref(),
            move |_, function| {
                let (kind, name, default_topic, queues, sys_flag) = match missing {
                    Missing::Topic(name) => ("topic", name, String::new(), 0, 0),
                    Missing::TopicToSend { name, default_topic, queues, sys_flag } => {
                        ("topic_to_send", name, default_topic, queues, sys_flag)
                    }
                    Missing::TopicOfGroup { name, queues, sys_flag } => {
                        ("topic_of_group", name, String::new(), queues, sys_flag)
                    }
                    Missing::Group(name) => ("group", name, String::new(), 0, 0),
                    Missing::TypeOfTopic { name, kind } => {
                        ("type_of_topic", name, kind.as_str().to_owned(), 0, 0)
                    }
                };
                let wanted = (default_topic, queues, sys_flag);
                let answer = function.call1((kind, name, peer.to_string(), wanted))?;
                Ok(if answer.is_none() {
                    Demoted::Failed
                } else if answer.is_truthy()? {
                    Demoted::Done
                } else {
                    Demoted::Refused
                })
            },
            move |outcome| {
                send_once(&answer, outcome.unwrap_or(Demoted::Failed));
            },
        );
        if !self.pool.submit(job) {
            send_once(&done, Demoted::Busy);
        }
    }

    fn telemetry(&self, stream: u64, sender: Sender, fields: &Fields, body: Option<Bytes>) -> bool {
        if self.functions.read().telemetry.is_none() {
            return false;
        }
        let (fields, is_last) = (fields.clone(), body.is_none());
        let job = self.job(
            "telemetry",
            |functions| functions.telemetry.as_ref(),
            move |py, function| {
                let body = body.map(|body| PyBytes::new(py, &body));
                let Sender { connection, peer, user, certificate } = sender;
                let sender = (connection, peer.to_string(), user.as_deref(), certificate.as_deref());
                function.call1((stream, sender, dict(py, &fields)?, body)).map(drop)
            },
            drop,
        );
        self.pool.submit_to(stream, is_last, job)
    }

    fn on_close(&self, connection: u64) {
        if self.functions.read().close.is_none() {
            return;
        }
        let mut closed = self.closed.lock();
        closed.connections.push(connection);
        if std::mem::replace(&mut closed.has_job, true) {
            return;
        }
        drop(closed);
        let (closed, failures) = (Arc::clone(&self.closed), Arc::clone(&self.failures));
        let job = self.job(
            "closed connection",
            |functions| functions.close.as_ref(),
            move |py, function| {
                loop {
                    let Some(connections) = ClosedConnections::take(&mut closed.lock()) else {
                        return Ok(());
                    };
                    for connection in connections {
                        if let Err(error) = function.call1((connection,)) {
                            report(py, &failures, "closed connection", &error);
                        }
                    }
                }
            },
            drop,
        );
        // One job reports all of them in sequence, so that many closed connections do not delay other requests.
        self.pool.submit_always(job);
    }
}

/// As [`send_once`], for a cold request.
fn reply_once(
    reply: &parking_lot::Mutex<Option<Reply>>,
    outcome: Result<Option<ColdResponse>, TransportError>,
) {
    if let Some(reply) = reply.lock().take() {
        reply.send(outcome);
    }
}

/// A sender of one outcome, shared by a job and the code that queues it.
type OnceSender<T> = parking_lot::Mutex<Option<oneshot::Sender<T>>>;

fn send_once<T>(answer: &OnceSender<T>, outcome: T) {
    if let Some(answer) = answer.lock().take() {
        // The receiver is dropped if the connection is closed.
        let _ = answer.send(outcome);
    }
}

/// Converts the result of a handler.
fn response(returned: &Bound<'_, PyAny>, is_rpc: bool) -> PyResult<Option<ColdResponse>> {
    if returned.is_none() {
        return Ok(None);
    }
    if is_rpc && let Ok(body) = returned.cast::<PyBytes>() {
        return Ok(Some(ColdResponse {
            body: Bytes::copy_from_slice(body.as_bytes()),
            ..ColdResponse::default()
        }));
    }
    if !is_rpc && let Ok(parts) = returned.cast::<PyTuple>() {
        let (code, remark, fields, body) =
            parts.extract::<(i32, Option<String>, Bound<'_, PyDict>, Bound<'_, PyBytes>)>()?;
        let fields = fields
            .iter()
            .map(|(name, value)| Ok((name.extract::<String>()?, value.extract::<String>()?)))
            .collect::<PyResult<Fields>>()?;
        return Ok(Some(ColdResponse {
            code,
            remark,
            fields,
            body: Bytes::copy_from_slice(body.as_bytes()),
        }));
    }
    let wanted = if is_rpc { "bytes" } else { "(code, remark, fields, body)" };
    Err(PyTypeError::new_err(format!(
        "a handler must return {wanted} or None, not {}",
        returned.get_type().name()?
    )))
}

/// The archive hook of a store that calls `function`. An exception is logged and keeps the file.
pub fn archive_hook(
    function: Function,
) -> impl Fn(&ExpiredFile) -> Result<(), String> + Send + Sync + 'static {
    move |file| {
        let outcome = Python::try_attach(|py| {
            let called =
                PyExpiredFile::new(file).into_pyobject(py).and_then(|file| function.call1(py, (file,)));
            called.map(drop).map_err(|error| {
                log(py, "archive hook failed file=%s", &file.path.display().to_string(), &error);
                error.to_string()
            })
        });
        outcome.unwrap_or_else(|| Err("the interpreter is shutting down".to_owned()))
    }
}

/// Logs an exception of a handler, at a limited rate: clients may cause one with each request.
fn report(py: Python<'_>, failures: &LogLimiter, what: &str, error: &PyErr) -> TransportError {
    failures.log(|suppressed| match suppressed {
        0 => log(py, "cold handler failed route=%s", what, error),
        _ => log(py, &format!("cold handler failed route=%s suppressed={suppressed}"), what, error),
    });
    TransportError::Handler(error.to_string())
}

/// Logs an exception with its traceback through Python's logging.
fn log(py: Python<'_>, event: &str, what: &str, error: &PyErr) {
    let logged = py.import("logging").and_then(|logging| {
        let logger = logging.call_method1("getLogger", ("ferromq.server",))?;
        let options = PyDict::new(py);
        options.set_item("exc_info", error.value(py))?;
        logger.call_method("error", (event, what), Some(&options))
    });
    if let Err(failure) = logged {
        failure.write_unraisable(py, None);
    }
}
