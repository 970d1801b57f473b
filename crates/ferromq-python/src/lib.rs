//! The extension module `ferromq._ferromq`: the list of its classes and functions.
//!
//! Bindings only. The logic is in the other crates, the policy in Python.

mod access;
mod ack_queue;
mod ahead;
mod arrivals;
mod calls;
mod client;
mod client_message;
mod clock;
mod columns;
mod completions;
mod error;
mod expired_file;
mod facts;
mod filters;
mod framed_calls;
mod handler;
mod inspect;
mod local_server;
mod log_scan;
mod logging;
mod message;
mod new_message;
mod options;
mod pool;
mod process;
mod remoting_client;
mod request;
mod rows;
mod sends;
mod server;
mod server_options;
mod shown;
mod store;

use pyo3::{prelude::*, types::PyBytes};

/// Bindings of the Rust core.
#[pymodule(name = "_ferromq", gil_used = false)]
fn ferromq_module(module: &Bound<'_, PyModule>) -> PyResult<()> {
    ahead::register(module)?;
    client::register(module)?;
    rows::register(module)?;
    module.add_class::<clock::PyClock>()?;
    module.add_class::<message::PyStoredMessage>()?;
    module.add_class::<expired_file::PyExpiredFile>()?;
    module.add_class::<store::PyStore>()?;
    module.add_class::<store::PyRecoveryProgress>()?;
    module.add_class::<inspect::PyStoreVerification>()?;
    module.add_class::<inspect::PyStoreDump>()?;
    module.add_class::<inspect::PyLogFile>()?;
    module.add_class::<inspect::PyStoreLock>()?;
    module.add_function(wrap_pyfunction!(inspect::flushed_end, module)?)?;
    module.add_class::<facts::PyLogFacts>()?;
    module.add_function(wrap_pyfunction!(inspect::inspect_store, module)?)?;
    module.add_class::<request::PyRequest>()?;
    module.add_class::<server::PyServer>()?;
    module.add_class::<completions::PyCompletions>()?;
    module.add_class::<ack_queue::PyAckQueue>()?;
    module.add_class::<arrivals::PyArrivals>()?;
    module.add_class::<framed_calls::PyFramedCalls>()?;
    module.add_class::<framed_calls::PyBegunCall>()?;
    module.add_class::<framed_calls::PyFramedTls>()?;
    module.add_class::<framed_calls::PyCancellation>()?;
    module.add_class::<sends::PySends>()?;
    module.add_class::<calls::FailedSend>()?;
    module.add_class::<remoting_client::PyRemotingClient>()?;
    module.add_class::<remoting_client::PyPendingAnswer>()?;
    module.add_class::<columns::PyColumnBuffer>()?;
    module.add_class::<columns::PyRecords>()?;
    module.add_class::<columns::PyMessageColumns>()?;
    module.add_class::<log_scan::PyLogScan>()?;
    module.add_function(wrap_pyfunction!(log_scan::log_files, module)?)?;
    module.add_function(wrap_pyfunction!(log_scan::queue_starts, module)?)?;
    module.add_function(wrap_pyfunction!(columns::record_columns, module)?)?;
    module.add_function(wrap_pyfunction!(blocking, module)?)?;
    module.add_function(wrap_pyfunction!(crc32, module)?)?;
    module.add_function(wrap_pyfunction!(filters::check_filter, module)?)?;
    module.add_function(wrap_pyfunction!(message::decode_records, module)?)?;
    module.add_function(wrap_pyfunction!(logging::init_logging, module)?)?;
    module.add_function(wrap_pyfunction!(logging::change_logging, module)?)?;
    module.add_function(wrap_pyfunction!(logging::keep_warnings, module)?)?;
    module.add_function(wrap_pyfunction!(logging::next_warnings, module)?)?;
    module.add_function(wrap_pyfunction!(logging::end_warnings, module)?)?;
    module.add_function(wrap_pyfunction!(process::forked_child, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    // Handlers import this annotation, which the stub declares.
    let response = module.py().eval(c"bytes | tuple[int, str | None, dict[str, str], bytes]", None, None)?;
    module.add("Response", response)?;
    // PyO3 adds `__all__`. The module is not for `import *`, and the stub would have to repeat every name.
    module.delattr("__all__")
}

/// Call a function that waits, and return its result. Meanwhile, another thread of the pool can answer a request.
#[pyfunction]
fn blocking<'py>(wait: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    pool::blocking(|| wait.call0())
}

/// Return the CRC32 of *data*, as zlib computes it.
#[pyfunction]
fn crc32(data: &Bound<'_, PyBytes>) -> u32 {
    crc32fast::hash(data.as_bytes())
}
