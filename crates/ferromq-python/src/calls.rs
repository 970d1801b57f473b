//! What framed calls and sends share: their time limits, signals while they wait, and their results in Python.

use std::{cell::RefCell, time::Duration};

use ferromq_client::{
    CallError, Response,
    codec::Durability,
    sends::{Cause, Failure, Receipt},
};
use ferromq_protocol::remoting::codes::framed;
use pyo3::{
    IntoPyObjectExt, intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyBytes, PyTuple},
};

use crate::{client::MessageIds, columns::PyRecords, error::raised};

/// Status, text of a failure, and response.
pub type Answer<'py> = (i32, Option<String>, Bound<'py, PyBytes>);

/// Status, text of a failure, and records.
pub type Polled = (i32, Option<String>, PyRecords);

/// What Python gets of a response with records, which are not copied.
pub fn polled(response: Response) -> Polled {
    let Response { code, remark, body, .. } = response;
    (status(code), remark, PyRecords(body))
}

/// What Python gets of a response.
pub fn answer(py: Python<'_>, response: Response) -> Answer<'_> {
    let Response { code, remark, body, .. } = response;
    (status(code), remark, PyBytes::new(py, &body))
}

/// The status of a response: gRPC's, 0 for success.
pub fn status(code: i32) -> i32 {
    if code == 0 { 0 } else { code.saturating_sub(framed::STATUS) }
}

/// The exception of a call without an answer.
pub fn exception(failure: &CallError) -> PyErr {
    match failure {
        CallError::Timeout { .. } | CallError::Interrupted { .. } => {
            raised::RequestTimeout::new_err(failure.to_string())
        }
        _ => raised::ConnectionFailed::new_err(format!("cannot reach broker {failure}")),
    }
}

/// A send that failed: the id of the message, the broker, and what happened.
#[pyclass(name = "FailedSend", module = "ferromq._ferromq", frozen, get_all)]
pub struct FailedSend {
    ids: Py<MessageIds>,
    endpoint: String,
    /// `refused`, `shared`, `not_sent`, `timeout`, `lost` or `rpc`.
    cause: &'static str,
    /// The code of a refusal, or gRPC's status.
    code: i32,
    text: String,
}

/// Python's class of receipts, and how tuples are made of it.
static RECEIPT: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();

/// What Python gets of a send: a `SendReceipt`, or a `FailedSend`.
pub fn sent(py: Python<'_>, outcome: Result<Receipt, Failure>) -> PyResult<Bound<'_, PyAny>> {
    match outcome {
        Ok(Receipt { ids, topic, queue_id, queue_offset, broker_name, offset_id, durability }) => {
            let (class, new) = RECEIPT.get_or_try_init(py, || {
                let class = py.import("ferromq.message")?.getattr("SendReceipt")?;
                PyResult::Ok((class.unbind(), py.get_type::<PyTuple>().getattr("__new__")?.unbind()))
            })?;
            let id = MessageIds(ids).first();
            let durability = durability.map(|durability| match durability {
                Durability::Written => intern!(py, "written"),
                Durability::Flushed => intern!(py, "flushed"),
            });
            let place = offset_id.map(|id| PyBytes::new(py, id.as_bytes()));
            let fields = (id, queue_id, queue_offset, &*topic, py.None(), &*broker_name, durability, place);
            // The class's own `__new__` is a function of Python.
            new.bind(py).call1((class, fields))
        }
        Err(failure) => FailedSend::new(py, failure)?.into_bound_py_any(py),
    }
}

impl FailedSend {
    fn new(py: Python<'_>, failure: Failure) -> PyResult<Self> {
        let Failure { ids, endpoint, cause } = failure;
        let (cause, code, text) = match cause {
            Cause::Refused(status) => ("refused", status.code, status.message),
            Cause::Shared => ("shared", 0, String::new()),
            Cause::Rpc(code, text) => ("rpc", code, text),
            Cause::Call(error) => {
                let cause = match &error {
                    CallError::NotSent { .. } => "not_sent",
                    CallError::Timeout { .. } => "timeout",
                    _ => "lost",
                };
                (cause, 0, error.to_string())
            }
        };
        Ok(Self { ids: Py::new(py, MessageIds(ids))?, endpoint: endpoint.to_string(), cause, code, text })
    }
}

/// Runs a call that waits, without the interpreter lock. A handler of a signal may raise: that ends the call.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    call: impl FnOnce(&dyn Fn() -> bool) -> T + Send,
) -> (PyResult<()>, T) {
    py.detach(|| {
        let raised = RefCell::new(Ok(()));
        let outcome = call(&|| {
            let checked = Python::attach(|py| py.check_signals());
            let is_interrupted = checked.is_err();
            if is_interrupted {
                *raised.borrow_mut() = checked;
            }
            is_interrupted
        });
        (raised.into_inner(), outcome)
    })
}

/// A time limit in seconds.
pub fn limit(timeout: f64) -> Duration {
    Duration::try_from_secs_f64(timeout).unwrap_or(Duration::ZERO).min(MAX_WAIT)
}

/// Longer waits end then; no call of a client lasts that long.
const MAX_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);
