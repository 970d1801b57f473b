//! Prints Rust's logs to stderr, as lines `time LEVEL target event key=value …` or as JSON, or passes warnings to Python.
//! Never takes the interpreter lock.

use std::{
    collections::VecDeque,
    fmt::{self, Write},
    io,
    sync::OnceLock,
};

use parking_lot::{Condvar, Mutex};
use pyo3::{exceptions::PyValueError, prelude::*};
use serde_json::{Map, Value};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    reload,
};

type Output = Box<dyn Layer<Registry> + Send + Sync>;

/// Where logs go; set with the first output. None: another subscriber is in the process.
static OUTPUT: OnceLock<Option<reload::Handle<Output, Registry>>> = OnceLock::new();
/// How lines look; set once logs are printed.
static PRINTED: OnceLock<LineFormat> = OnceLock::new();
/// Warnings for Python.
static WARNINGS: Warnings = Warnings { waiting: Mutex::new(Waiting::new()), changed: Condvar::new() };
/// Warnings that wait for Python; further ones are counted.
const MAX_WAITING: usize = 256;

/// How a line looks.
#[derive(Clone, Copy)]
enum LineFormat {
    Text,
    Json,
}

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
        match self {
            Self::Text => {
                SystemTime.format_time(&mut out)?;
                write!(out, " {} {} ", metadata.level(), metadata.target())?;
                context.field_format().format_fields(out.by_ref(), event)?;
            }
            Self::Json => {
                let (mut time, mut parts) = (String::new(), Parts::default());
                SystemTime.format_time(&mut Writer::new(&mut time))?;
                event.record(&mut parts);
                let line = serde_json::json!({
                    "time": time,
                    "level": metadata.level().as_str(),
                    "target": metadata.target(),
                    "message": parts.message,
                    "fields": parts.fields,
                });
                write!(out, "{line}")?;
            }
        }
        writeln!(out)
    }
}

/// The message of an event, and its other fields.
#[derive(Default)]
struct Parts {
    message: String,
    fields: Map<String, Value>,
}

impl Parts {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.fields.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Parts {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.put(field, value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// Print Rust's logs to stderr with a filter such as `info,ferromq_store=debug`; *format* is text or json. A second call
/// changes nothing.
#[pyfunction]
pub fn init_logging(filter: &str, format: &str) -> PyResult<()> {
    let format = match format {
        "text" => LineFormat::Text,
        "json" => LineFormat::Json,
        other => {
            return Err(PyValueError::new_err(format!(
                "the log format is {other:?}; it may be text or json"
            )));
        }
    };
    let filter = parse(filter)?;
    // The first caller, the command line, decides.
    if PRINTED.get().is_none() && put(printing(format, filter)) {
        _ = PRINTED.set(format);
    }
    Ok(())
}

/// Replace the filter of Rust's logs. Returns False and changes nothing if `init_logging` was not called.
#[pyfunction]
pub fn change_logging(filter: &str) -> PyResult<bool> {
    let filter = parse(filter)?;
    Ok(PRINTED.get().is_some_and(|format| put(printing(*format, filter))))
}

fn printing(format: LineFormat, filter: EnvFilter) -> Output {
    let lines =
        tracing_subscriber::fmt::layer().with_ansi(false).with_writer(io::stderr).event_format(format);
    filter.and_then(lines).boxed()
}

/// Makes an output the only one. Returns false if the logs are another subscriber's.
fn put(output: Output) -> bool {
    let mut first = Some(output);
    let handle = OUTPUT.get_or_init(|| {
        let (layer, handle) = reload::Layer::new(first.take()?);
        tracing::subscriber::set_global_default(Registry::default().with(layer)).ok().map(|()| handle)
    });
    match (handle, first) {
        (Some(handle), Some(output)) => handle.reload(output).is_ok(),
        (handle, _) => handle.is_some(),
    }
}

fn parse(filter: &str) -> PyResult<EnvFilter> {
    EnvFilter::try_new(filter)
        .map_err(|error| PyValueError::new_err(format!("{filter:?} is not a valid log filter: {error}")))
}

/// Level (Python's number), target and text of a line.
type Line = (u8, String, String);

struct Waiting {
    lines: VecDeque<Line>,
    left_out: u64,
    is_ended: bool,
}

impl Waiting {
    const fn new() -> Self {
        Self { lines: VecDeque::new(), left_out: 0, is_ended: false }
    }
}

struct Warnings {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Warnings {
    fn put(&self, line: Line) {
        let mut waiting = self.waiting.lock();
        if waiting.lines.len() < MAX_WAITING {
            waiting.lines.push_back(line);
        } else {
            waiting.left_out += 1;
        }
        self.changed.notify_one();
    }
}

/// Puts warnings and errors into [`WARNINGS`].
struct ToPython;

impl<S: Subscriber> Layer<S> for ToPython {
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let (metadata, mut parts) = (event.metadata(), Parts::default());
        event.record(&mut parts);
        for (name, value) in &parts.fields {
            _ = match value {
                Value::String(text) => write!(parts.message, " {name}={text}"),
                other => write!(parts.message, " {name}={other}"),
            };
        }
        let level = if *metadata.level() == Level::ERROR { 40 } else { 30 };
        WARNINGS.put((level, metadata.target().to_owned(), parts.message));
    }
}

/// Keep Rust's warnings for `next_warnings`. Returns False and changes nothing if the logs are printed.
#[pyfunction]
pub fn keep_warnings(py: Python<'_>) -> bool {
    py.detach(|| {
        WARNINGS.waiting.lock().is_ended = false;
        PRINTED.get().is_none() && put(ToPython.boxed())
    })
}

/// Wait for warnings. Returns level, logger and text of each, and how many were left out; None after `end_warnings`.
#[pyfunction]
pub fn next_warnings(py: Python<'_>) -> Option<(Vec<Line>, u64)> {
    py.detach(|| {
        let mut waiting = WARNINGS.waiting.lock();
        WARNINGS.changed.wait_while(&mut waiting, |waiting| waiting.lines.is_empty() && !waiting.is_ended);
        let left_out = std::mem::take(&mut waiting.left_out);
        let lines: Vec<_> = waiting.lines.drain(..).collect();
        (!lines.is_empty()).then_some((lines, left_out))
    })
}

/// End the wait of `next_warnings`, until the next `keep_warnings`.
#[pyfunction]
pub fn end_warnings(py: Python<'_>) {
    py.detach(|| {
        WARNINGS.waiting.lock().is_ended = true;
        WARNINGS.changed.notify_all();
    });
}
