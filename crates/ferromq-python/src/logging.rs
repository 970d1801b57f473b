//! Rust's logs as lines on stderr: `time LEVEL target event key=value …`. Never takes the interpreter.

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

/// Takes another filter into use; there once logs are printed.
static CHANGE: OnceLock<Box<dyn Fn(EnvFilter) -> bool + Send + Sync>> = OnceLock::new();

struct Line;

impl<S, N> FormatEvent<S, N> for Line
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

/// Print Rust's logs to stderr, filtered as `info,ferromq_store=debug`. A second call changes nothing.
#[pyfunction]
pub fn init_logging(filter: &str) -> PyResult<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parse(filter)?)
        .with_ansi(false)
        .with_writer(io::stderr)
        .event_format(Line)
        .with_filter_reloading();
    let handle = builder.reload_handle();
    // Refused where one is installed: the first caller, the command line, has the say.
    if tracing::subscriber::set_global_default(builder.finish()).is_ok() {
        _ = CHANGE.set(Box::new(move |filter| handle.reload(filter).is_ok()));
    }
    Ok(())
}

/// Filter Rust's logs anew, as `init_logging` takes it; False where that was not called, and nothing is changed.
#[pyfunction]
pub fn change_logging(filter: &str) -> PyResult<bool> {
    let filter = parse(filter)?;
    Ok(CHANGE.get().is_some_and(|change| change(filter)))
}

fn parse(filter: &str) -> PyResult<EnvFilter> {
    EnvFilter::try_new(filter)
        .map_err(|error| PyValueError::new_err(format!("{filter:?} is no log filter: {error}")))
}
