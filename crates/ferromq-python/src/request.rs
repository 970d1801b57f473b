//! The Python class `Request`.

use ferromq_transport::{ColdRequest, Verb, remoting::Fields};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};

/// A cold request.
#[pyclass(name = "Request", module = "ferromq._ferromq", frozen)]
pub struct PyRequest {
    /// Remoting request code, or the bare gRPC method name.
    #[pyo3(get)]
    route: Py<PyAny>,
    /// Number of the connection.
    #[pyo3(get)]
    connection: u64,
    /// `host:port` of the client.
    #[pyo3(get)]
    peer: String,
    /// The user that access control verified.
    #[pyo3(get)]
    user: Option<String>,
    /// The subject of the certificate that the client has shown.
    #[pyo3(get)]
    certificate: Option<String>,
    /// The language in the header of a remoting client (`JAVA`); `OTHER` for gRPC.
    #[pyo3(get)]
    language: &'static str,
    /// The `MQVersion` ordinal in the header of a remoting client; 0 for gRPC.
    #[pyo3(get)]
    version: i32,
    /// Whether the sender expects no answer.
    #[pyo3(get)]
    is_one_way: bool,
    /// Remoting extFields, or gRPC metadata with names in lower case.
    #[pyo3(get)]
    fields: Py<PyDict>,
    /// The body, or the encoded gRPC message.
    #[pyo3(get)]
    body: Py<PyBytes>,
}

impl PyRequest {
    /// Converts a request to Python's objects.
    pub fn new(py: Python<'_>, request: ColdRequest) -> PyResult<Self> {
        let route = match request.verb {
            Verb::Code(code) => code.into_pyobject(py)?.into_any().unbind(),
            Verb::Rpc(name) => name.into_pyobject(py)?.into_any().unbind(),
        };
        Ok(Self {
            route,
            connection: request.sender.connection,
            peer: request.sender.peer.to_string(),
            user: request.sender.user.as_deref().map(str::to_owned),
            certificate: request.sender.certificate.as_deref().map(str::to_owned),
            language: request.language.name(),
            version: request.version,
            is_one_way: request.is_one_way,
            fields: dict(py, &request.fields)?.unbind(),
            body: PyBytes::new(py, &request.body).unbind(),
        })
    }
}

#[pymethods]
impl PyRequest {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "<Request route={} connection={} peer={}>",
            self.route.bind(py).repr()?,
            self.connection,
            self.peer
        ))
    }
}

/// A dict of the fields. The last of several fields with the same name wins.
pub fn dict<'py>(py: Python<'py>, fields: &Fields) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in fields {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
