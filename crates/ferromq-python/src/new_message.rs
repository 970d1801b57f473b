//! Converts messages to store from Python: mappings with the names of `Store.append`'s parameters.

use std::net::SocketAddr;

use ferromq_store::record::{NewMessage, properties};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    pybacked::PyBackedBytes,
    types::{PyDict, PyMapping},
};

use crate::{options::address, remoting_client::texts};

const NAMES: [&str; 10] = [
    "topic",
    "queue_id",
    "body",
    "properties",
    "flag",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "reconsume_times",
    "prepared_transaction_offset",
];

/// A message to store. The defaults are those of `Store.append`.
pub struct GivenMessage {
    topic: String,
    queue_id: i32,
    body: PyBackedBytes,
    properties: Vec<u8>,
    flag: i32,
    sys_flag: i32,
    born_timestamp: Option<i64>,
    born_host: Option<SocketAddr>,
    reconsume_times: i32,
    prepared_transaction_offset: i64,
}

impl GivenMessage {
    /// Converts a mapping. An exception names a missing or unknown key.
    pub fn read(given: &Bound<'_, PyDict>) -> PyResult<Self> {
        for name in given.keys() {
            if !NAMES.contains(&name.extract::<String>()?.as_str()) {
                return Err(PyTypeError::new_err(format!(
                    "a message to store has no key {name}; allowed: {}",
                    NAMES.join(", ")
                )));
            }
        }
        let required = |name: &str| {
            let missing = || PyTypeError::new_err(format!("a message to store needs the key {name}"));
            given.get_item(name)?.ok_or_else(missing)
        };
        let number = |name: &str| given.get_item(name)?.map_or(Ok(0), |value| value.extract());
        let properties = given.get_item("properties")?;
        let born_host: Option<String> =
            given.get_item("born_host")?.map_or(Ok(None), |value| value.extract())?;
        Ok(Self {
            topic: required("topic")?.extract()?,
            queue_id: required("queue_id")?.extract()?,
            body: required("body")?.extract()?,
            properties: match properties {
                Some(properties) => encode_properties(properties.cast::<PyMapping>()?)?,
                None => Vec::new(),
            },
            flag: number("flag")?,
            sys_flag: number("sys_flag")?,
            born_timestamp: given.get_item("born_timestamp")?.map_or(Ok(None), |value| value.extract())?,
            born_host: born_host.map(|host| address(&host)).transpose()?,
            reconsume_times: number("reconsume_times")?,
            prepared_transaction_offset: given
                .get_item("prepared_transaction_offset")?
                .map_or(Ok(0), |value| value.extract())?,
        })
    }

    /// The message for the store, with `now_ms` and `host` as defaults of its birth.
    pub fn view(&self, now_ms: i64, host: SocketAddr) -> NewMessage<'_> {
        NewMessage {
            topic: &self.topic,
            queue_id: self.queue_id,
            flag: self.flag,
            sys_flag: self.sys_flag,
            born_timestamp: self.born_timestamp.unwrap_or(now_ms),
            born_host: self.born_host.unwrap_or(host),
            reconsume_times: self.reconsume_times,
            prepared_transaction_offset: self.prepared_transaction_offset,
            body: &self.body,
            properties: &self.properties,
        }
    }
}

/// RocketMQ's text form of properties.
pub fn encode_properties(mapping: &Bound<'_, PyMapping>) -> PyResult<Vec<u8>> {
    let mut encoded = Vec::new();
    for (name, value) in texts(mapping)? {
        if [&name, &value].into_iter().any(|text| text.contains(['\u{1}', '\u{2}'])) {
            return Err(PyValueError::new_err(format!(
                "the property {name:?} contains a separator (\\x01 or \\x02)"
            )));
        }
        properties::push(&mut encoded, &name, &value);
    }
    Ok(encoded)
}
