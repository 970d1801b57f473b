//! Prints Rust's logs to stderr as lines `time LEVEL target event key=value …`. Never takes the interpreter lock.

use std::{fmt, io, sync::OnceLock};

use pyo3::{exceptions::PyValueError, prelude::*};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// Replaces the filter. Set once logs are printed.
static REPLACE_FILTER: OnceLock<Box<dyn Fn(EnvFilter) -> bool + Send + Sync>> = OnceLock::new();

struct LineFormat;

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        SystemTime.format_time(&mut out)?;
        write!(out, " {} {} ", metadata.level(), metadata.target())?;
        context.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}

/// Print Rust's logs to stderr with a filter such as `info,ferromq_store=debug`. A second call changes nothing.
#[pyfunction]
pub fn init_logging(filter: &str) -> PyResult<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parse(filter)?)
        .with_ansi(false)
        .with_writer(io::stderr)
        .event_format(LineFormat)
        .with_filter_reloading();
    let handle = builder.reload_handle();
    // Fails if a subscriber is installed: the first caller, the command line, decides.
    if tracing::subscriber::set_global_default(builder.finish()).is_ok() {
        _ = REPLACE_FILTER.set(Box::new(move |filter| handle.reload(filter).is_ok()));
    }
    Ok(())
}

/// Replace the filter of Rust's logs. Returns False and changes nothing if `init_logging` was not called.
#[pyfunction]
pub fn change_logging(filter: &str) -> PyResult<bool> {
    let filter = parse(filter)?;
    Ok(REPLACE_FILTER.get().is_some_and(|replace| replace(filter)))
}

fn parse(filter: &str) -> PyResult<EnvFilter> {
    EnvFilter::try_new(filter)
        .map_err(|error| PyValueError::new_err(format!("{filter:?} is not a valid log filter: {error}")))
}
