//! `Store` as Python sees it. Every call that may wait releases the interpreter.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use ferromq_store::{
    FlushMode, GetStatus, MessageStore, NewMessage, Result, StoreConfig, TagFilter, properties,
};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyDict, PyMapping},
};

use crate::{clock::PyClock, error, message::PyStoredMessage, process::Owned, remoting_client::texts};

/// Most bytes one `get` copies.
const GET_BYTES: usize = 64 << 20;

/// What is kept of an open store.
struct Open {
    store: Arc<MessageStore>,
    clock: PyClock,
    host: SocketAddr,
}

/// The message store of one directory.
#[pyclass(name = "Store", module = "ferromq._ferromq", frozen)]
pub struct PyStore(Owned<Open>);

impl PyStore {
    /// The store, for a server over it.
    pub fn shared(&self) -> PyResult<Arc<MessageStore>> {
        Ok(Arc::clone(&self.0.get()?.store))
    }

    /// Runs `call` without the interpreter.
    fn run<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&MessageStore) -> T + Send) -> PyResult<T> {
        let open = self.0.get()?;
        Ok(py.detach(|| call(&open.store)))
    }

    /// As `run`, for calls that can fail.
    fn attempt<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&MessageStore) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.run(py, call)?.map_err(|failure| error::of_store(py, &failure))
    }
}

#[pymethods]
impl PyStore {
    #[new]
    #[pyo3(signature = (
        directory, clock, *, commit_log_file_size=None, consume_queue_file_entries=None, index_slots=None,
        index_entries=None, sync_flush=false, flush_interval_ms=None, max_message_size=None, disk_reserve=None,
        progress_interval_ms=None, store_host=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        directory: PathBuf,
        clock: &PyClock,
        commit_log_file_size: Option<u64>,
        consume_queue_file_entries: Option<u64>,
        index_slots: Option<u32>,
        index_entries: Option<u32>,
        sync_flush: bool,
        flush_interval_ms: Option<u64>,
        max_message_size: Option<u32>,
        disk_reserve: Option<u64>,
        progress_interval_ms: Option<u64>,
        store_host: Option<&str>,
    ) -> PyResult<Self> {
        let defaults = StoreConfig::default();
        let flush = match (sync_flush, flush_interval_ms) {
            (true, _) => FlushMode::Sync,
            (false, Some(ms)) => FlushMode::Async { interval: Duration::from_millis(ms) },
            (false, None) => defaults.flush,
        };
        let config = StoreConfig {
            commit_log_file_size: commit_log_file_size.unwrap_or(defaults.commit_log_file_size),
            consume_queue_file_entries: consume_queue_file_entries
                .unwrap_or(defaults.consume_queue_file_entries),
            index_slots: index_slots.unwrap_or(defaults.index_slots),
            index_entries: index_entries.unwrap_or(defaults.index_entries),
            flush,
            max_message_size: max_message_size.unwrap_or(defaults.max_message_size),
            disk_reserve: disk_reserve.unwrap_or(defaults.disk_reserve),
            progress_interval: progress_interval_ms.map_or(defaults.progress_interval, Duration::from_millis),
            store_host: store_host.map_or(Ok(defaults.store_host), address)?,
        };
        let (host, clock) = (config.store_host, clock.0.clone());
        let store = py
            .detach(|| MessageStore::open(&directory, config, clock.clone()))
            .map_err(|failure| error::of_store(py, &failure))?;
        Ok(Self(Owned::new("Store", Open { store: Arc::new(store), clock: PyClock(clock), host })))
    }

    /// Store one message, wait until it is durable; return (queue offset, physical offset).
    #[pyo3(signature = (
        topic, queue_id, body, properties=None, *, flag=0, sys_flag=0, born_timestamp=None, born_host=None,
        reconsume_times=0, prepared_transaction_offset=0
    ))]
    #[allow(clippy::too_many_arguments)]
    fn append(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: i32,
        body: &[u8],
        properties: Option<&Bound<'_, PyMapping>>,
        flag: i32,
        sys_flag: i32,
        born_timestamp: Option<i64>,
        born_host: Option<&str>,
        reconsume_times: i32,
        prepared_transaction_offset: i64,
    ) -> PyResult<(u64, u64)> {
        let open = self.0.get()?;
        let message = NewMessage {
            topic,
            queue_id,
            flag,
            sys_flag,
            born_timestamp: born_timestamp.unwrap_or_else(|| open.clock.0.now_ms()),
            born_host: born_host.map_or(Ok(open.host), address)?,
            reconsume_times,
            prepared_transaction_offset,
            body,
            properties: &properties.map_or(Ok(Vec::new()), encode_properties)?,
        };
        let location = self.attempt(py, |store| {
            let appended = store.append(&[message])?;
            store.wait_durable(appended.end)?;
            Ok(appended.locations.first().copied())
        })?;
        let location = location.ok_or_else(|| PyValueError::new_err("the store gave no location"))?;
        Ok((location.queue_offset, location.physical_offset))
    }

    /// Read from a queue: status name, messages, next offset.
    #[pyo3(signature = (topic, queue_id, offset, max_count=32, tags="*"))]
    fn get(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: u32,
        offset: u64,
        max_count: usize,
        tags: &str,
    ) -> PyResult<(&'static str, Vec<PyStoredMessage>, u64)> {
        let filter = TagFilter::parse(tags);
        let found =
            self.run(py, |store| store.get(topic, queue_id, offset, max_count, GET_BYTES, &filter))?;
        let messages = found.messages.iter().map(|(_, record)| PyStoredMessage::new(record.bytes()));
        Ok((status_name(found.status), messages.collect::<PyResult<_>>()?, found.next_offset))
    }

    /// Return the message whose record begins at *physical_offset*.
    fn message_at(&self, py: Python<'_>, physical_offset: u64) -> PyResult<Option<PyStoredMessage>> {
        let record = self.run(py, |store| store.record_at(physical_offset))?;
        record.map(|record| PyStoredMessage::new(record.bytes())).transpose()
    }

    /// Return messages with a key or unique key, newest first.
    #[pyo3(signature = (topic, key, max_count=32, begin_ms=0, end_ms=i64::MAX))]
    fn query_by_key(
        &self,
        py: Python<'_>,
        topic: &str,
        key: &str,
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> PyResult<Vec<PyStoredMessage>> {
        let records = self.run(py, |store| store.query_by_key(topic, key, max_count, begin_ms, end_ms))?;
        records.iter().map(|record| PyStoredMessage::new(record.bytes())).collect()
    }

    /// Return the first queue offset kept.
    fn min_offset(&self, py: Python<'_>, topic: &str, queue_id: u32) -> PyResult<u64> {
        self.run(py, |store| store.min_offset(topic, queue_id))
    }

    /// Return the next queue offset to be written.
    fn max_offset(&self, py: Python<'_>, topic: &str, queue_id: u32) -> PyResult<u64> {
        self.run(py, |store| store.max_offset(topic, queue_id))
    }

    /// Return the first queue offset stored at or after a time.
    fn offset_by_time(&self, py: Python<'_>, topic: &str, queue_id: u32, timestamp_ms: i64) -> PyResult<u64> {
        self.run(py, |store| store.offset_by_time(topic, queue_id, timestamp_ms))
    }

    /// Return the next queue offset the group will read.
    fn committed_offset(
        &self,
        py: Python<'_>,
        group: &str,
        topic: &str,
        queue_id: u32,
    ) -> PyResult<Option<u64>> {
        self.run(py, |store| store.committed_offset(group, topic, queue_id))
    }

    /// Set the next queue offset the group will read.
    fn commit_offset(
        &self,
        py: Python<'_>,
        group: &str,
        topic: &str,
        queue_id: u32,
        offset: u64,
    ) -> PyResult<()> {
        self.attempt(py, |store| store.commit_offset(group, topic, queue_id, offset))
    }

    /// Return topics that have messages, each with the ids of its queues.
    fn queues<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let queues = PyDict::new(py);
        for (topic, ids) in self.run(py, MessageStore::queues)? {
            queues.set_item(topic, ids)?;
        }
        Ok(queues)
    }

    /// Return counters and positions.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.run(py, MessageStore::stats)?;
        let named = [
            ("min_physical_offset", stats.min_physical_offset),
            ("max_physical_offset", stats.max_physical_offset),
            ("flushed_offset", stats.flushed_offset),
            ("dispatched_offset", stats.dispatched_offset),
            ("appended", stats.appended),
            ("flushes", stats.flushes),
            ("recovered_cut_bytes", stats.recovered_cut_bytes),
            ("recovered_messages", stats.recovered_messages),
        ];
        let dict = PyDict::new(py);
        for (name, value) in named {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// Flush everything and let the directory go. Idempotent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.attempt(py, MessageStore::close)
    }
}

fn status_name(status: GetStatus) -> &'static str {
    match status {
        GetStatus::Found => "FOUND",
        GetStatus::NoMatchedMessage => "NO_MATCHED_MESSAGE",
        GetStatus::MessageWasRemoving => "MESSAGE_WAS_REMOVING",
        GetStatus::OffsetFoundNull => "OFFSET_FOUND_NULL",
        GetStatus::OffsetOverflowBadly => "OFFSET_OVERFLOW_BADLY",
        GetStatus::OffsetOverflowOne => "OFFSET_OVERFLOW_ONE",
        GetStatus::OffsetTooSmall => "OFFSET_TOO_SMALL",
        GetStatus::NoMatchedLogicQueue => "NO_MATCHED_LOGIC_QUEUE",
        GetStatus::NoMessageInQueue => "NO_MESSAGE_IN_QUEUE",
    }
}

fn address(text: &str) -> PyResult<SocketAddr> {
    text.parse().map_err(|_| PyValueError::new_err(format!("{text:?} is no host:port with a numeric host")))
}

fn encode_properties(mapping: &Bound<'_, PyMapping>) -> PyResult<Vec<u8>> {
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
