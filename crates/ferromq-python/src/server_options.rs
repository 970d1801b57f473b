//! The limits of a server by their Python names.

use std::time::Duration;

use ferromq_transport::ServerOptions;
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::PyDict,
};

/// Divisor of a server's memory: a connection may hold a quarter of it.
const MEMORY_PER_CONNECTION_DIVISOR: usize = 4;

/// Reads the limits of a server from keyword arguments.
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
            "max_connections_by_address" => {
                options.max_connections_by_address = Some(at_least_one(&name, &value)?);
            }
            "backlog" => {
                options.backlog = i32::try_from(at_least_one(&name, &value)?)
                    .map_err(|error| PyValueError::new_err(error.to_string()))?;
            }
            "send_buffer" => options.send_buffer = Some(at_least_one(&name, &value)?),
            "receive_buffer" => options.receive_buffer = Some(at_least_one(&name, &value)?),
            "frame" => options.connection.frames.frame = at_least_one(&name, &value)?,
            "memory" => {
                options.memory = at_least_one(&name, &value)?;
                options.connection_memory = options.memory / MEMORY_PER_CONNECTION_DIVISOR;
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

/// Reads a limit of connections, requests or bytes. With 0 a server could serve nothing.
fn at_least_one(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    match value.extract::<usize>() {
        Ok(0) | Err(_) => Err(PyValueError::new_err(format!("{name} must be 1 or more"))),
        Ok(number) => Ok(number),
    }
}
