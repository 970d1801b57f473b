//! `Message`: a message to send, checked and encoded when it is created.

use std::time::Duration;

use ferromq_client::codec::{Algorithm, Headers, Kind};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    intern,
    prelude::*,
    types::{PyByteArray, PyBytes, PyDict, PyMapping, PyMemoryView, PyString, PyTuple},
};

use crate::shown;

/// A message to send.
#[pyclass(frozen, module = "ferromq")]
pub struct Message {
    pub(crate) body: Py<PyBytes>,
    pub(crate) headers: Headers,
}

#[pymethods]
impl Message {
    #[new]
    #[pyo3(signature = (body, *, keys=None, tag=None, properties=None, message_group=None, delivery_timestamp=None,
                        delay=None, priority=None))]
    #[allow(clippy::too_many_arguments)] // one per keyword argument in Python
    fn new(
        body: &Bound<'_, PyAny>,
        keys: Option<&Bound<'_, PyAny>>,
        tag: Option<&str>,
        properties: Option<&Bound<'_, PyAny>>,
        message_group: Option<String>,
        delivery_timestamp: Option<&Bound<'_, PyAny>>,
        delay: Option<&Bound<'_, PyAny>>,
        priority: Option<i32>,
    ) -> PyResult<Self> {
        let body = bytes_of(body)?;
        let kind = kind_of(message_group, delivery_timestamp, delay, priority)?;
        if keys.is_none() && tag.is_none() && properties.is_none() && kind == Kind::Normal {
            return Ok(Self { body: body.unbind(), headers: Headers::default() });
        }
        let keys = keys.map(keys_of).transpose()?.unwrap_or_default();
        let properties = properties.map(properties_of).transpose()?.unwrap_or_default();
        let headers = Headers::new(
            tag,
            keys.iter().map(String::as_str),
            properties.iter().map(|(name, value)| (name.as_str(), value.as_str())),
        )
        .and_then(|headers| headers.of_kind(kind))
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { body: body.unbind(), headers })
    }

    /// The body.
    #[getter]
    fn body(&self, py: Python<'_>) -> Py<PyBytes> {
        self.body.clone_ref(py)
    }

    /// The tag; None without one.
    #[getter]
    fn tag(&self) -> Option<&str> {
        self.headers.tag()
    }

    /// The keys, by which queries find the message.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.headers.keys().collect::<Vec<_>>())
    }

    /// The properties that are delivered with it.
    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dict(py, self.headers.properties())
    }

    /// Return the message with a compressed body if that is over so many bytes, and smaller for it; else this one.
    fn compressed<'py>(slf: Bound<'py, Self>, algorithm: &str, over: usize) -> PyResult<Bound<'py, Self>> {
        let py = slf.py();
        let message = slf.get();
        let algorithm = match algorithm {
            "zlib" => Algorithm::Zlib,
            "lz4" => Algorithm::Lz4,
            "zstd" => Algorithm::Zstd,
            _ => return Err(PyValueError::new_err(format!("{algorithm:?} is no compression"))),
        };
        let body = message.body.as_bytes(py);
        if body.len() <= over || message.headers.compression().is_some() {
            return Ok(slf);
        }
        let compressed = py.detach(|| algorithm.compress(body));
        if compressed.len() >= body.len() {
            return Ok(slf);
        }
        let headers = message.headers.clone().of_compression(algorithm);
        Bound::new(py, Self { body: PyBytes::new(py, &compressed).unbind(), headers })
    }

    /// Return a copy with more properties.
    fn with_properties(&self, py: Python<'_>, added: &Bound<'_, PyAny>) -> PyResult<Self> {
        let added = properties_of(added)?;
        let headers = self.headers.with_properties(added.iter().map(|(name, value)| (&**name, &**value)));
        let headers = headers.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { body: self.body.clone_ref(py), headers })
    }

    /// The batch key, equal for all messages of a request: None, `delayed`, `priority`, or `group:` and the group.
    #[getter]
    fn lane(&self) -> Option<String> {
        match self.headers.kind() {
            Kind::Normal => None,
            Kind::Fifo(group) => Some(format!("group:{group}")),
            Kind::At(_) | Kind::After(_) => Some("delayed".to_owned()),
            Kind::Priority(_) => Some("priority".to_owned()),
        }
    }

    /// The message group, whose messages are delivered in the order of sending; None without one.
    #[getter]
    fn message_group(&self) -> Option<&str> {
        if let Kind::Fifo(group) = self.headers.kind() { Some(group) } else { None }
    }

    /// The earliest delivery time, milliseconds since 1970; None without one.
    #[getter]
    const fn delivery_timestamp(&self) -> Option<i64> {
        if let Kind::At(millis) = self.headers.kind() { Some(*millis) } else { None }
    }

    /// The time from its sending to its earliest delivery; None without one.
    #[getter]
    fn delay(&self) -> Option<Duration> {
        if let Kind::After(millis) = self.headers.kind() {
            Some(Duration::from_millis((*millis).into()))
        } else {
            None
        }
    }

    /// The priority, 0 or more, higher ones first; None without one.
    #[getter]
    const fn priority(&self) -> Option<i32> {
        if let Kind::Priority(priority) = self.headers.kind() { Some(*priority) } else { None }
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        if self.headers.compression().is_some() {
            return Err(PyTypeError::new_err("a compressed message cannot be pickled or copied"));
        }
        let options = PyDict::new(py);
        options.set_item("keys", self.keys(py)?)?;
        options.set_item("tag", self.tag())?;
        options.set_item("properties", self.properties(py)?)?;
        options.set_item("message_group", self.message_group())?;
        options.set_item("delivery_timestamp", self.delivery_timestamp())?;
        options.set_item("delay", self.delay())?;
        options.set_item("priority", self.priority())?;
        Ok((PyTuple::new(py, [self.body(py)])?, options))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        shown::html(slf)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let len = self.body.as_bytes(py).len();
        let (keys, tag) = (self.keys(py)?.repr()?, self.tag().into_pyobject(py)?.repr()?);
        let kind = match self.headers.kind() {
            Kind::Normal => String::new(),
            Kind::Fifo(group) => format!(", message_group={}", group.into_pyobject(py)?.repr()?),
            Kind::At(millis) => format!(", delivery_timestamp={millis}"),
            Kind::After(millis) => format!(", delay={}", f64::from(*millis) / 1000.0),
            Kind::Priority(priority) => format!(", priority={priority}"),
        };
        Ok(format!("Message(<{len} bytes>, keys={keys}, tag={tag}{kind})"))
    }
}

/// The kind of delivery. The four arguments exclude each other.
fn kind_of(
    message_group: Option<String>,
    delivery_timestamp: Option<&Bound<'_, PyAny>>,
    delay: Option<&Bound<'_, PyAny>>,
    priority: Option<i32>,
) -> PyResult<Kind> {
    let given = [
        ("message_group", message_group.is_some()),
        ("delivery_timestamp", delivery_timestamp.is_some()),
        ("delay", delay.is_some()),
        ("priority", priority.is_some()),
    ];
    let given: Vec<_> = given.into_iter().filter_map(|(name, is_given)| is_given.then_some(name)).collect();
    if given.len() > 1 {
        return Err(PyValueError::new_err(format!(
            "a message can have only one of message_group, delivery_timestamp, delay and priority, not {}",
            given.join(" and ")
        )));
    }
    if let Some(group) = message_group {
        Ok(Kind::Fifo(group))
    } else if let Some(when) = delivery_timestamp {
        instant_of(when).map(Kind::At)
    } else if let Some(delay) = delay {
        delay_of(delay).map(Kind::After)
    } else if let Some(priority) = priority {
        if priority < 0 {
            let text =
                format!("priority must be 0 or more, not {priority}; higher priorities are delivered first");
            return Err(PyValueError::new_err(text));
        }
        Ok(Kind::Priority(priority))
    } else {
        Ok(Kind::Normal)
    }
}

/// Milliseconds since 1970 of an aware `datetime` or a number.
fn instant_of(when: &Bound<'_, PyAny>) -> PyResult<i64> {
    let py = when.py();
    if let Ok(millis) = when.extract::<i64>() {
        if millis < 0 {
            let text = format!("delivery_timestamp must be 0 or more milliseconds since 1970, not {millis}");
            return Err(PyValueError::new_err(text));
        }
        return Ok(millis);
    }
    let Ok(zone) = when.getattr(intern!(py, "tzinfo")) else {
        let kind = when.get_type().name()?;
        let text = format!("delivery_timestamp must be a datetime or milliseconds since 1970, not {kind}");
        return Err(PyTypeError::new_err(text));
    };
    if zone.is_none() {
        let text =
            "delivery_timestamp has no time zone; give one, as in datetime.now(UTC) + timedelta(hours=1)";
        return Err(PyValueError::new_err(text));
    }
    let seconds: f64 = when.call_method0(intern!(py, "timestamp"))?.extract()?;
    #[allow(clippy::cast_possible_truncation)] // a datetime ends with the year 9999
    Ok((seconds * 1000.0).round() as i64)
}

/// Milliseconds of a `timedelta` or a number of seconds.
fn delay_of(delay: &Bound<'_, PyAny>) -> PyResult<u32> {
    let seconds: f64 = match delay.call_method0(intern!(delay.py(), "total_seconds")) {
        Ok(seconds) => seconds.extract()?,
        Err(_) => delay.extract().map_err(|_| {
            let kind = delay.get_type();
            PyTypeError::new_err(format!("delay must be a timedelta or seconds, not {kind}"))
        })?,
    };
    let millis = (seconds * 1000.0).round();
    if !(1.0..=f64::from(u32::MAX)).contains(&millis) {
        let text = format!("delay must be more than zero and at most 49 days, not {seconds} s");
        return Err(PyValueError::new_err(text));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked above
    Ok(millis as u32)
}

pub(crate) fn dict<'py, 'a>(
    py: Python<'py>,
    entries: impl Iterator<Item = (&'a str, &'a str)>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in entries {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}

fn bytes_of<'py>(body: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = if let Ok(bytes) = body.cast::<PyBytes>() {
        bytes.clone()
    } else if body.is_instance_of::<PyByteArray>() || body.is_instance_of::<PyMemoryView>() {
        body.py().get_type::<PyBytes>().call1((body,))?.cast_into()?
    } else {
        let kind = body.get_type().name()?;
        let way_out = if body.is_instance_of::<PyString>() { ": encode it with .encode()" } else { "" };
        return Err(PyTypeError::new_err(format!(
            "the body of a message must be bytes, not {kind}{way_out}"
        )));
    };
    if bytes.as_bytes().is_empty() {
        return Err(PyValueError::new_err(
            "the body of a message is empty; RocketMQ requires at least one byte",
        ));
    }
    Ok(bytes)
}

/// The keys of a message: one string or several.
fn keys_of(keys: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    if let Ok(key) = keys.cast::<PyString>() {
        return Ok(vec![key.extract()?]);
    }
    keys.try_iter()?
        .map(|key| {
            let key = key?;
            key.extract().map_err(|_| wrong_type("a key", &key))
        })
        .collect()
}

fn properties_of(properties: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    let properties =
        properties.cast::<PyMapping>().map_err(|_| wrong_type("properties", properties))?.items()?;
    properties
        .iter()
        .map(|item| {
            let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let name = name.extract().map_err(|_| wrong_type("the name of a property", &name))?;
            let value = value.extract().map_err(|_| wrong_type("the value of a property", &value))?;
            Ok((name, value))
        })
        .collect()
}

fn wrong_type(what: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let kind = value.get_type();
    let expected = if what == "properties" { "a mapping of str to str" } else { "str" };
    PyTypeError::new_err(format!("{what} must be {expected}, not {kind}"))
}
