//! The limits of a server as Python names them.

use std::time::Duration;

use ferromq_transport::ServerOptions;
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::PyDict,
};

/// A connection may hold so much of the memory of all: a quarter.
const CONNECTIONS_OF_MEMORY: usize = 4;

/// Reads the limits of a server by their names.
pub fn server_options(limits: &Bound<'_, PyDict>) -> PyResult<ServerOptions> {
    let mut options = ServerOptions::default();
    for (name, value) in limits {
        let name: String = name.extract()?;
        match name.as_str() {
            "idle" => {
                let idle = Duration::try_from_secs_f64(value.extract()?)
                    .map_err(|error| PyValueError::new_err(error.to_string()))?;
                options.connection.idle = idle;
            }
            "max_connections" => options.max_connections = Some(at_least_one(&name, &value)?),
            "memory" => {
                options.memory = at_least_one(&name, &value)?;
                options.connection_memory = options.memory / CONNECTIONS_OF_MEMORY;
            }
            "one_way" => options.one_way = at_least_one(&name, &value)?,
            "calls" => options.calls = at_least_one(&name, &value)?,
            _ => {
                let text = format!("Server() got an unexpected keyword argument '{name}'");
                return Err(PyTypeError::new_err(text));
            }
        }
    }
    Ok(options)
}

/// A number of connections, requests or bytes; without any nothing would be served.
fn at_least_one(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    match value.extract::<usize>() {
        Ok(0) | Err(_) => Err(PyValueError::new_err(format!("{name} must be 1 or more"))),
        Ok(number) => Ok(number),
    }
}
