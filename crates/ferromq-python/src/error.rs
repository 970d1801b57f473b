//! Maps Rust's errors to the exceptions of `ferromq.errors`. No other file does.

use std::io;

use ferromq_protocol::ProtocolError;
use ferromq_store::StoreError;
use ferromq_transport::TransportError;
use pyo3::{
    exceptions::{PyLookupError, PyOSError, PyRuntimeError, PyValueError},
    prelude::*,
};

/// The exception classes, which `ferromq.errors` defines.
pub mod raised {
    macro_rules! exceptions {
        ($($name:ident),* $(,)?) => {
            $(pyo3::import_exception!(ferromq.errors, $name);)*
        };
    }

    exceptions!(
        ConfigError,
        ConnectionFailed,
        CorruptMessage,
        CorruptStore,
        Forbidden,
        ForkedProcess,
        GroupNotFound,
        IllegalName,
        MessageTooLarge,
        NotDurable,
        LeaseExpired,
        RequestTimeout,
        StoreClosed,
        StoreError,
        StoreFull,
        StoreLocked,
        Throttled,
        TopicNotFound,
        Unsupported,
    );
}

/// The exception of a store error. Its cause is the `OSError`, if there is one.
pub fn store_error(py: Python<'_>, error: &StoreError) -> PyErr {
    let text = error.to_string();
    match error {
        StoreError::Io { path, source, .. } => {
            let raised = raised::StoreError::new_err(text);
            let path = path.display().to_string();
            let cause = PyOSError::new_err((source.raw_os_error(), source.to_string(), path));
            raised.set_cause(py, Some(cause));
            raised
        }
        StoreError::Corrupt { .. } | StoreError::CorruptRecord { .. } => raised::CorruptStore::new_err(text),
        StoreError::TooLarge { .. } => raised::MessageTooLarge::new_err(text),
        StoreError::Invalid { what: "topic", .. } => raised::IllegalName::new_err(text),
        StoreError::Invalid { what: "queue id" | "properties" | "system flag", .. } => {
            PyValueError::new_err(text)
        }
        StoreError::TooFarAhead { .. } => PyValueError::new_err(text),
        StoreError::Invalid { what, .. } if what.contains(' ') => PyValueError::new_err(text),
        // All other names are options of the store.
        StoreError::Invalid { .. } => raised::ConfigError::new_err(text),
        StoreError::NoStore { .. }
        | StoreError::NoSuchQueue { .. }
        | StoreError::QueueSetAside { .. }
        | StoreError::DispatchStalled { .. } => raised::StoreError::new_err(text),
        StoreError::Locked { .. } => raised::StoreLocked::new_err(text),
        StoreError::Full { .. } => raised::StoreFull::new_err(text),
        StoreError::Poisoned | StoreError::Closed => raised::StoreClosed::new_err(text),
        StoreError::NotDurable { .. } => raised::NotDurable::new_err(text),
        StoreError::NoRecord { .. } => PyLookupError::new_err(text),
        StoreError::QueueClosed { .. } => raised::Forbidden::new_err(text),
        StoreError::StaleReceipt => raised::LeaseExpired::new_err(text),
        // The enum may grow; a caller must not mistake a new error for a known one.
        _ => PyRuntimeError::new_err(text),
    }
}

/// The exception of a transport error. Its cause is the `OSError`, if there is one.
pub fn transport_error(py: Python<'_>, error: &TransportError) -> PyErr {
    let text = error.to_string();
    match error {
        TransportError::Io { source, .. } => {
            let raised = raised::ConnectionFailed::new_err(text);
            raised.set_cause(py, Some(PyOSError::new_err((source.raw_os_error(), source.to_string()))));
            raised
        }
        TransportError::Protocol(ProtocolError::FrameTooLarge { .. }) => {
            raised::MessageTooLarge::new_err(text)
        }
        TransportError::Protocol(_) | TransportError::OtherProtocol(_) | TransportError::Unanswered => {
            raised::ConnectionFailed::new_err(text)
        }
        TransportError::Unsupported(_) => raised::Unsupported::new_err(text),
        TransportError::NoSuchTopic(_) => raised::TopicNotFound::new_err(text),
        TransportError::NoSuchGroup(_) => raised::GroupNotFound::new_err(text),
        TransportError::Forbidden(_) => raised::Forbidden::new_err(text),
        TransportError::Busy(_) => raised::Throttled::new_err(text),
        TransportError::Timeout { .. } => raised::RequestTimeout::new_err(text),
        TransportError::Tls { .. } => raised::ConfigError::new_err(text),
        TransportError::HotVerb(_) => PyValueError::new_err(text),
        TransportError::Store(error) => store_error(py, error),
        _ => PyRuntimeError::new_err(text),
    }
}

/// An `OSError` with errno. `what` names the failed operation.
pub fn os_error(what: &str, source: &io::Error) -> PyErr {
    match source.raw_os_error() {
        Some(number) => PyOSError::new_err((number, format!("{what}: {source}"))),
        None => PyOSError::new_err(format!("{what}: {source}")),
    }
}
