//! The Python class `RemotingClient`.

use std::{path::PathBuf, time::Duration};

use bytes::Bytes;
use ferromq_protocol::signing::Signer;
use ferromq_transport::{
    TransportError,
    client::{Credentials, RemotingClient},
    remoting::RemotingCommand,
    tls::ClientTls,
};
use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::{PyBytes, PyDict, PyMapping},
};
use tokio::{runtime::Handle, task::JoinHandle};

use crate::{
    columns::PyRecords,
    error,
    process::{Owned, runtime},
    request::dict,
};

/// A response: (code, remark, extFields, body).
pub type Answer<'py> = (i32, Option<String>, Bound<'py, PyDict>, Bound<'py, PyBytes>);

/// Outgoing remoting calls over one kept connection for each peer.
#[pyclass(name = "RemotingClient", module = "ferromq._ferromq", frozen)]
pub struct PyRemotingClient(Owned<(Handle, RemotingClient)>);

#[pymethods]
impl PyRemotingClient {
    #[new]
    #[pyo3(signature = (*, tls=false, trust=None, check_name=true, certificate=None, key=None, credentials=None))]
    #[allow(clippy::too_many_arguments)] // one per keyword argument in Python
    fn new(
        py: Python<'_>,
        tls: bool,
        trust: Option<PathBuf>,
        check_name: bool,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        credentials: Option<(String, String)>,
    ) -> PyResult<Self> {
        let runtime = runtime()?;
        let credentials = credentials.map(|(access_key, secret_key)| {
            let signer = Signer::new(&secret_key);
            Credentials { access_key, signer }
        });
        let client = if tls {
            let options = ClientTls { trust, check_name, identity: certificate.zip(key) };
            py.detach(|| RemotingClient::with_tls(runtime.clone(), &options, credentials))
                .map_err(|failure| error::transport_error(py, &failure))?
        } else {
            RemotingClient::new(runtime.clone(), credentials)
        };
        Ok(Self(Owned::new("RemotingClient", (runtime, client))))
    }

    /// Call *code* at *address* and return (code, remark, extFields, body).
    ///
    /// Raises `ConnectionFailed` or `RequestTimeout`.
    #[pyo3(
        signature = (address, code, fields=None, body=b"".as_slice(), *, timeout=3.0),
        text_signature = "($self, address, code, fields=None, body=b'', *, timeout=3.0)"
    )]
    fn call<'py>(
        &self,
        py: Python<'py>,
        address: &str,
        code: i32,
        fields: Option<&Bound<'py, PyMapping>>,
        body: &[u8],
        timeout: f64,
    ) -> PyResult<Answer<'py>> {
        let (runtime, client) = self.0.get()?;
        let timeout =
            Duration::try_from_secs_f64(timeout).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let request = request_of(code, fields, body)?;
        py.detach(|| runtime.block_on(client.call(address, request, timeout)))
            .map_err(|failure| error::transport_error(py, &failure))
            .and_then(|response| answer(py, &response))
    }

    /// Start a call; `PendingAnswer.wait` returns its answer later.
    #[pyo3(signature = (address, code, fields=None, *, timeout=3.0))]
    fn begin(
        &self,
        py: Python<'_>,
        address: &str,
        code: i32,
        fields: Option<&Bound<'_, PyMapping>>,
        timeout: f64,
    ) -> PyResult<PyPendingAnswer> {
        let (runtime, client) = self.0.get()?;
        let timeout =
            Duration::try_from_secs_f64(timeout).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let request = request_of(code, fields, b"")?;
        let (client, address) = (client.clone(), address.to_owned());
        let call = async move { client.call(&address, request, timeout).await };
        let task = py.detach(|| runtime.spawn(call));
        Ok(PyPendingAnswer(Owned::new("PendingAnswer", (runtime.clone(), Mutex::new(Some(task))))))
    }

    /// Close all connections. Later calls fail.
    fn close(&self, py: Python<'_>) {
        if let Some((_, client)) = self.0.here() {
            py.detach(|| client.close());
        }
    }
}

type Task = JoinHandle<Result<RemotingCommand, TransportError>>;

/// A call started by `RemotingClient.begin`.
#[pyclass(name = "PendingAnswer", module = "ferromq._ferromq", frozen)]
pub struct PyPendingAnswer(Owned<(Handle, Mutex<Option<Task>>)>);

#[pymethods]
impl PyPendingAnswer {
    /// Wait for the answer and return (code, remark, extFields, body), once.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<(i32, Option<String>, Bound<'py, PyDict>, PyRecords)> {
        let (runtime, task) = self.0.get()?;
        let task = task.lock().take();
        let task = task.ok_or_else(|| {
            PyRuntimeError::new_err("the answer has already been returned; wait can be called once")
        })?;
        let answer = py
            .detach(|| runtime.block_on(task))
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))?
            .map_err(|failure| error::transport_error(py, &failure))?;
        Ok((answer.code, answer.remark.clone(), dict(py, &answer.fields)?, PyRecords(answer.body)))
    }
}

/// Builds a request from Python's arguments.
pub fn request_of(
    code: i32,
    fields: Option<&Bound<'_, PyMapping>>,
    body: &[u8],
) -> PyResult<RemotingCommand> {
    let fields = fields.map_or(Ok(Vec::new()), texts)?;
    Ok(RemotingCommand::request(code, fields, Bytes::copy_from_slice(body)))
}

/// Converts a response to Python's objects.
pub fn answer<'py>(py: Python<'py>, response: &RemotingCommand) -> PyResult<Answer<'py>> {
    let body = PyBytes::new(py, &response.body);
    Ok((response.code, response.remark.clone(), dict(py, &response.fields)?, body))
}

/// The entries of a mapping of strings.
pub fn texts(mapping: &Bound<'_, PyMapping>) -> PyResult<Vec<(String, String)>> {
    mapping.items()?.iter().map(|item| item.extract()).collect()
}
