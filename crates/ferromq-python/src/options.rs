//! The options of a store by their Python names: the fields of `StoreConfig`, which has the defaults.
//!
//! Converts types only. The store checks the limits of values.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

use ferromq_store::{
    MessageStore, Result, StoreConfig, StoreError,
    delayed::DelayLevels,
    log::FlushPolicy,
    retention::{DiskUsage, OnExpiry},
};
use pyo3::{
    IntoPyObjectExt,
    exceptions::PyValueError,
    prelude::*,
    types::{PyDict, PyMapping, PyTuple},
};

use crate::error::{raised, store_error};

/// Conversion of an option's value from and to Python.
trait Value: Sized {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self>;
    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>>;
}

struct StoreOption {
    name: &'static str,
    put: fn(&mut StoreConfig, &Bound<'_, PyAny>) -> PyResult<()>,
    show: for<'py> fn(&StoreConfig, Python<'py>) -> PyResult<Bound<'py, PyAny>>,
    copy: fn(&StoreConfig, &mut StoreConfig),
}

macro_rules! options {
    ($($name:literal: $($field:ident).+;)*) => {
        &[$(StoreOption {
            name: $name,
            put: |config, value| {
                config.$($field).+ = Value::take(value)?;
                Ok(())
            },
            show: |config, py| config.$($field).+.show(py),
            copy: |from, to| to.$($field).+.clone_from(&from.$($field).+),
        }),*]
    };
}

const OPTIONS: &[StoreOption] = options! {
    "commit_log_file_size": commit_log_file_size;
    "commit_log_paths": commit_log_paths;
    "consume_queue_file_entries": consume_queue_file_entries;
    "dedup_window": dedup_window;
    "dedup_writers": dedup_writers;
    "delay_levels": delay_levels;
    "disk_reserve": disk_reserve;
    "fast_boot": fast_boot;
    "flush": flush;
    "flush_every": flush_every;
    "index_enabled": index_enabled;
    "index_entries": index_entries;
    "index_slots": index_slots;
    "mapped_bytes": mapped_bytes;
    "max_message_size": max_message_size;
    "open_files": open_files;
    "progress_interval": progress_interval;
    "property_crc": property_crc;
    "read_only_commit_log_paths": read_only_commit_log_paths;
    "retention_age": retention.age;
    "retention_age_by_topic": retention.age_by_topic;
    "retention_disk_usage": retention.disk_usage;
    "retention_hours": retention.hours;
    "retention_on_expiry": retention.on_expiry;
    "retention_total_bytes": retention.total_bytes;
    "store_host": store_host;
    "timer_enabled": timer.enabled;
    "timer_log_file_size": timer.log_file_size;
    "timer_max_delay": timer.max_delay;
    "timer_precision": timer.precision;
    "timer_roll_window": timer.roll_window;
    "timer_wheel_slots": timer.wheel_slots;
};

/// The default options, overridden by `given`; None means the default. Exceptions name the option.
pub fn config(given: Option<&Bound<'_, PyDict>>) -> PyResult<StoreConfig> {
    let mut config = StoreConfig::default();
    for (name, value) in given.into_iter().flatten() {
        let name: String = name.extract()?;
        let option = find_option(value.py(), &name)?;
        if !value.is_none() {
            put(option, &mut config, &value)?;
        }
    }
    Ok(config)
}

/// The exception for a failure to apply `config`. For an invalid option it has name and value.
pub fn refused(py: Python<'_>, config: &StoreConfig, failure: &StoreError) -> PyErr {
    if let StoreError::Invalid { what, reason } = failure
        && let Some(option) = OPTIONS.iter().find(|option| option.name == *what)
    {
        return match (option.show)(config, py) {
            Ok(value) => invalid_option(option.name, &value, reason),
            Err(error) => error,
        };
    }
    store_error(py, failure)
}

/// Options that change while a store is open.
pub struct Change {
    config: StoreConfig,
    names: BTreeSet<String>,
}

impl Change {
    /// Reads the options to change; None clears an optional one. Raises `ConfigError` with the name of an option that
    /// is unknown, invalid or cannot change.
    pub fn read(given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let (mut names, mut config) = (BTreeSet::new(), StoreConfig::default());
        for (name, value) in given {
            let name: String = name.extract()?;
            let option = find_option(value.py(), &name)?;
            if !is_changeable(&name) {
                let changeable: Vec<&str> =
                    OPTIONS.iter().map(|option| option.name).filter(|name| is_changeable(name)).collect();
                return Err(raised::ConfigError::new_err(format!(
                    "{name} cannot change while the store is open; only these can: {}",
                    changeable.join(", ")
                )));
            }
            put(option, &mut config, &value)?;
            names.insert(name);
        }
        Ok(Self { config, names })
    }

    /// Raises `ConfigError` for values that are invalid regardless of the other options.
    pub fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.config.check().map_err(|failure| refused(py, &self.config, &failure))
    }

    /// Applies the change to `store` and its `config`. Errors: `Invalid`, and those of a flush.
    pub fn apply(self, store: &MessageStore, config: &mut StoreConfig) -> Result<()> {
        let mut changed = config.clone();
        for option in OPTIONS.iter().filter(|option| self.names.contains(option.name)) {
            (option.copy)(&self.config, &mut changed);
        }
        changed.check()?;
        for topic in config.flush_every.keys().chain(changed.flush_every.keys()) {
            let count = changed.flush_every.get(topic);
            // Skip unchanged topics: each call flushes.
            if count != config.flush_every.get(topic) {
                store.admin().set_flush_every(topic, count.copied())?;
            }
        }
        if self.names.iter().any(|name| name.starts_with("retention_")) {
            store.admin().set_retention(&changed.retention)?;
        }
        if self.names.contains("flush") {
            store.admin().set_flush(changed.flush)?;
        }
        *config = changed;
        Ok(())
    }
}

fn is_changeable(name: &str) -> bool {
    name.starts_with("flush") || name.starts_with("retention_")
}

fn find_option(py: Python<'_>, name: &str) -> PyResult<&'static StoreOption> {
    OPTIONS.iter().find(|option| option.name == name).ok_or_else(|| unknown_option(py, name))
}

fn put(option: &StoreOption, config: &mut StoreConfig, value: &Bound<'_, PyAny>) -> PyResult<()> {
    (option.put)(config, value)
        .map_err(|error| invalid_option(option.name, value, &error.value(value.py()).to_string()))
}

/// All options by name.
pub fn shown<'py>(py: Python<'py>, config: &StoreConfig) -> PyResult<Bound<'py, PyDict>> {
    let shown = PyDict::new(py);
    for option in OPTIONS {
        shown.set_item(option.name, (option.show)(config, py)?)?;
    }
    Ok(shown)
}

fn unknown_option(py: Python<'_>, name: &str) -> PyErr {
    let names: Vec<&str> = OPTIONS.iter().map(|option| option.name).collect();
    let nearest = py
        .import("difflib")
        .and_then(|difflib| difflib.call_method1("get_close_matches", (name, names.clone(), 1, 0.4)))
        .and_then(|nearest| nearest.extract::<Vec<String>>());
    let hint = match nearest.as_deref() {
        Ok([nearest, ..]) => format!("did you mean {nearest}?"),
        _ => format!("known options are {}", names.join(", ")),
    };
    raised::ConfigError::new_err(format!("unknown option of a store: {name}; {hint}"))
}

fn invalid_option(name: &str, value: &Bound<'_, PyAny>, reason: &str) -> PyErr {
    let shown = value.repr().map_or_else(|_| "?".to_owned(), |shown| shown.to_string());
    raised::ConfigError::new_err(format!("{name} is {shown}; {reason}"))
}

/// Reads a whole number from 0 to `max`.
fn number(value: &Bound<'_, PyAny>, max: u64) -> PyResult<u64> {
    value
        .extract::<u64>()
        .ok()
        .filter(|number| *number <= max)
        .ok_or_else(|| PyValueError::new_err(format!("it must be a whole number from 0 to {max}")))
}

impl Value for u64 {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        number(value, u64::MAX)
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.into_bound_py_any(py)
    }
}

impl Value for u32 {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::try_from(number(value, u64::from(Self::MAX))?)?)
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.into_bound_py_any(py)
    }
}

impl Value for usize {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::try_from(number(value, u64::from(u32::MAX))?)?)
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.into_bound_py_any(py)
    }
}

impl Value for Vec<PathBuf> {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        value.try_iter()?.map(|path| path?.extract()).collect()
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        PyTuple::new(py, self.iter().map(|path| path.as_os_str())).map(Bound::into_any)
    }
}

impl Value for bool {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        value.extract()
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.into_bound_py_any(py)
    }
}

impl Value for Duration {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        value.extract().map_err(|_| PyValueError::new_err("it must be a timedelta of 0 or more"))
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.into_bound_py_any(py)
    }
}

/// None clears the option.
impl<T: Value> Value for Option<T> {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if value.is_none() { Ok(None) } else { T::take(value).map(Some) }
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.as_ref().map_or_else(|| Ok(py.None().into_bound(py)), |value| value.show(py))
    }
}

/// A mapping by name.
impl<T: Value> Value for BTreeMap<String, T> {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let items = value.cast::<PyMapping>()?.items()?;
        items
            .iter()
            .map(|item| {
                let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
                Ok((name, T::take(&value)?))
            })
            .collect()
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shown = PyDict::new(py);
        for (name, value) in self {
            shown.set_item(name, value.show(py)?)?;
        }
        Ok(shown.into_any())
    }
}

/// Hours of the day.
impl Value for Vec<u8> {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let hours = value.try_iter()?.map(|hour| number(&hour?, 23));
        hours.map(|hour| Ok(u8::try_from(hour?)?)).collect()
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        PyTuple::new(py, self.iter().map(|hour| u32::from(*hour))).map(Bound::into_any)
    }
}

/// Three percentages of disk usage, above which expired files are deleted at any hour, the oldest file even if it has
/// not expired, and sends are refused.
impl Value for DiskUsage {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (expired, any, refuse) = value
            .extract()
            .map_err(|_| PyValueError::new_err("it must be three percentages, such as (75, 85, 90)"))?;
        Ok(Self { expired, any, refuse })
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (self.expired, self.any, self.refuse).into_bound_py_any(py)
    }
}

impl Value for OnExpiry {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        match value.extract::<String>()?.as_str() {
            "discard" => Ok(Self::Discard),
            "archive" => Ok(Self::Archive),
            _ => Err(PyValueError::new_err("it must be discard or archive")),
        }
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let name = match self {
            Self::Discard => "discard",
            Self::Archive => "archive",
        };
        name.into_bound_py_any(py)
    }
}

impl Value for SocketAddr {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        address(value.extract()?)
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_string().into_bound_py_any(py)
    }
}

impl Value for FlushPolicy {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        value.extract::<String>()?.parse().map_err(reason)
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_string().into_bound_py_any(py)
    }
}

impl Value for DelayLevels {
    fn take(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        value.extract::<String>()?.parse().map_err(reason)
    }

    fn show<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_string().into_bound_py_any(py)
    }
}

/// An exception with the broken rule. The caller adds the option's name.
fn reason(error: StoreError) -> PyErr {
    match error {
        StoreError::Invalid { reason, .. } => PyValueError::new_err(reason),
        other => PyValueError::new_err(other.to_string()),
    }
}

/// Parses `host:port` with a numeric host.
pub fn address(text: &str) -> PyResult<SocketAddr> {
    text.parse().map_err(|_| {
        PyValueError::new_err(format!(
            "{text:?} is not host:port with a numeric host, such as 127.0.0.1:10911"
        ))
    })
}
