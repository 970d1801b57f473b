//! The Python class `Store`. Calls that may wait release the interpreter lock.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc};

use ferromq_store::{
    MessageStore, Result, StoreConfig, StoreError,
    filter::MessageFilter,
    log::{Damage, FLUSH_BOUNDS_MS},
    progress::Begin,
    queues::QueueAccess,
    read::{Boundary, QueryResult},
    record::{NewMessage, properties},
    recovery::RecoveryProgress,
};
use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyBytes, PyDict, PyMapping},
};

use crate::{
    clock::PyClock,
    error, filters, handler,
    message::PyStoredMessage,
    new_message::{GivenMessage, encode_properties},
    options::{self, address},
    pool,
    process::Owned,
};

/// Most bytes that `get` copies.
const GET_BYTES: usize = 64 << 20;

/// The values of a queue's access, by name.
const ACCESS: [(&str, QueueAccess); 3] =
    [("open", QueueAccess::Open), ("read_only", QueueAccess::ReadOnly), ("closed", QueueAccess::Closed)];

/// An open store and its options.
struct OpenStore {
    store: Arc<MessageStore>,
    clock: PyClock,
    config: Mutex<StoreConfig>,
    host: SocketAddr,
}

/// Committed offset, whether the group is done with the message, deliveries, end of the lease.
type DeliveryParts = (u64, bool, Option<u32>, Option<i64>);

/// The message store of one directory.
#[pyclass(name = "Store", module = "ferromq._ferromq", frozen)]
pub struct PyStore(Owned<OpenStore>, PathBuf);

impl PyStore {
    /// The store, for its server.
    pub fn shared(&self) -> PyResult<Arc<MessageStore>> {
        Ok(Arc::clone(&self.0.get()?.store))
    }

    /// Runs `call` without the interpreter lock.
    fn run<T: Send>(&self, py: Python<'_>, call: impl FnOnce(&MessageStore) -> T + Send) -> PyResult<T> {
        let open = self.0.get()?;
        Ok(py.detach(|| call(&open.store)))
    }

    /// As [`Self::run`], for calls that can fail.
    fn attempt<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&MessageStore) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.run(py, call)?.map_err(|failure| error::store_error(py, &failure))
    }
}

/// Copies the result of a query. Call it without the interpreter lock: the records may have to be read from disk.
fn copies(mut found: QueryResult, max_bytes: usize) -> PyResult<Vec<PyStoredMessage>> {
    found.limit_bytes(max_bytes);
    found.messages.iter().map(|record| PyStoredMessage::new(record.bytes())).collect()
}

/// Waits as the flush policy promises. Meanwhile, other threads of the pool can run.
fn wait_durable(store: &MessageStore, end: u64) -> Result<()> {
    store.log().durable_now(end).unwrap_or_else(|| pool::blocking(|| store.log().wait_durable(end)))
}

/// How far the recovery of a store is that is being opened on another thread.
#[pyclass(name = "RecoveryProgress", module = "ferromq._ferromq", frozen)]
pub struct PyRecoveryProgress(Arc<RecoveryProgress>);

#[pymethods]
impl PyRecoveryProgress {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    /// Bytes of the log that are walked, and the most that will be; both 0 before the walk.
    fn bytes(&self) -> (u64, u64) {
        self.0.bytes()
    }
}

#[pymethods]
impl PyStore {
    #[new]
    #[pyo3(signature = (directory, clock, *, recovery = None, **options))]
    fn new(
        py: Python<'_>,
        directory: PathBuf,
        clock: &PyClock,
        recovery: Option<&PyRecoveryProgress>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let config = options::config(options)?;
        let (shown, host, clock) = (config.clone(), config.store_host, clock.0.clone());
        let store = py
            .detach(|| match recovery {
                Some(recovery) => {
                    MessageStore::open_watched(&directory, config, clock.clone(), Arc::clone(&recovery.0))
                }
                None => MessageStore::open(&directory, config, clock.clone()),
            })
            .map_err(|failure| options::refused(py, &shown, &failure))?;
        let open =
            OpenStore { store: Arc::new(store), clock: PyClock(clock), config: Mutex::new(shown), host };
        Ok(Self(Owned::new("Store", open), directory))
    }

    /// Return all options of a store with these, including defaults. Raises `ConfigError` for a wrong option.
    #[staticmethod]
    #[pyo3(signature = (**options))]
    fn check<'py>(py: Python<'py>, options: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyDict>> {
        let config = options::config(options)?;
        config.check().map_err(|failure| options::refused(py, &config, &failure))?;
        options::shown(py, &config)
    }

    /// Return all options by name, including defaults.
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        options::shown(py, &self.0.get()?.config.lock())
    }

    /// Change flush and retention of the open store. Raises `ConfigError` for options that cannot change.
    #[pyo3(signature = (**options))]
    fn configure(&self, py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let open = self.0.get()?;
        let Some(options) = options else { return Ok(()) };
        // Reading may run Python code, so the lock is taken later.
        let change = options::Change::read(options)?;
        change.check(py)?;
        py.detach(|| change.apply(&open.store, &mut open.config.lock()))
            .map_err(|failure| error::store_error(py, &failure))
    }

    /// Let the next flush of the log fail, for tests: then the store stops writing until it is opened again.
    fn fail_next_flush(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |store| store.admin().fail_next_flush())
    }

    /// Set the function that takes files before they are deleted.
    fn set_archive(&self, hook: Bound<'_, PyAny>) -> PyResult<()> {
        if !hook.is_callable() {
            return Err(PyTypeError::new_err("the archive hook must be callable"));
        }
        self.0.get()?.store.admin().set_archive(handler::archive_hook(hook.unbind()));
        Ok(())
    }

    /// Delete the queues of a topic and its groups' progress, and return their number. Queue offsets continue.
    fn delete_topic(&self, py: Python<'_>, topic: &str) -> PyResult<usize> {
        self.attempt(py, |store| store.admin().delete_topic(topic))
    }

    /// Delete all other topics; return them.
    #[allow(clippy::needless_pass_by_value)] // PyO3 passes it by value
    fn clean_unused(&self, py: Python<'_>, keep_topics: Vec<String>) -> PyResult<Vec<String>> {
        let keep = keep_topics.iter().map(String::as_str).collect();
        self.attempt(py, |store| store.admin().clean_unused(&keep))
    }

    /// Set `open`, `read_only` (for draining) or `closed`. It survives restarts.
    fn set_queue_access(&self, py: Python<'_>, topic: &str, queue_id: u32, access: &str) -> PyResult<()> {
        let wanted = ACCESS.iter().find(|(name, _)| *name == access).ok_or_else(|| {
            let names = ACCESS.map(|(name, _)| name).join(", ");
            error::raised::ConfigError::new_err(format!(
                "{access:?} is not an access of a queue; allowed: {names}"
            ))
        })?;
        self.attempt(py, |store| store.admin().set_queue_access(topic, queue_id, wanted.1))
    }

    /// Return the access of a queue.
    fn queue_access(&self, py: Python<'_>, topic: &str, queue_id: u32) -> PyResult<&'static str> {
        let access = self.run(py, |store| store.admin().queue_access(topic, queue_id))?;
        Ok(ACCESS.iter().find(|(_, known)| *known == access).map_or("open", |(name, _)| name))
    }

    /// Delete expired files; *now*: at any hour. Return a report: `removed_files`, `archived_files`, …
    #[pyo3(signature = (*, now=false))]
    fn clean<'py>(&self, py: Python<'py>, now: bool) -> PyResult<Bound<'py, PyDict>> {
        let report = self.run(py, |store| store.admin().clean(now))?;
        let named = [
            ("removed_files", report.removed_files),
            ("removed_bytes", report.removed_bytes),
            ("archived_files", report.archived_files),
            ("archived_bytes", report.archived_bytes),
            ("refused_files", report.refused_files),
            ("refused_bytes", report.refused_bytes),
            ("derived_bytes", report.derived_bytes),
            ("min_physical_offset", report.min_physical_offset),
        ];
        let dict = PyDict::new(py);
        for (name, value) in named {
            dict.set_item(name, value)?;
        }
        dict.set_item("next_due_ms", report.next_due_ms)?;
        dict.set_item("failure", report.failure)?;
        Ok(dict)
    }

    /// Store a message, wait as the flush policy promises, and return (queue offset, physical offset).
    #[pyo3(signature = (
        topic, queue_id, body, properties=None, *, flag=0, sys_flag=0, born_timestamp=None, born_host=None,
        reconsume_times=0, prepared_transaction_offset=0
    ))]
    #[allow(clippy::too_many_arguments)] // one per keyword argument in Python
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
            let appended = store.log().append(&[message])?;
            wait_durable(store, appended.end)?;
            Ok(appended.locations.first().copied())
        })?;
        let location =
            location.ok_or_else(|| PyValueError::new_err("the store returned no location of the message"))?;
        Ok((location.queue_offset, location.physical_offset))
    }

    /// Store all of the messages or none, also in a crash. Return queue offset, physical offset, size of each record.
    #[allow(clippy::needless_pass_by_value)] // PyO3 passes it by value
    fn append_as_one(
        &self,
        py: Python<'_>,
        messages: Vec<Bound<'_, PyDict>>,
    ) -> PyResult<Vec<(u64, u64, u32)>> {
        let open = self.0.get()?;
        let given = messages.iter().map(GivenMessage::read).collect::<PyResult<Vec<_>>>()?;
        let now_ms = open.clock.0.now_ms();
        let appended = self.attempt(py, |store| {
            let messages: Vec<_> = given.iter().map(|message| message.view(now_ms, open.host)).collect();
            let appended = store.log().append_as_one(&messages)?;
            wait_durable(store, appended.end)?;
            Ok(appended)
        })?;
        let places = appended.locations.iter();
        Ok(places.map(|place| (place.queue_offset, place.physical_offset, place.len)).collect())
    }

    /// Return the topic, queue and properties that a delayed or timed message has while it waits; None for others.
    #[pyo3(signature = (topic, queue_id, properties, *, sys_flag=0))]
    fn delayed<'py>(
        &self,
        py: Python<'py>,
        topic: &str,
        queue_id: i32,
        properties: &Bound<'py, PyMapping>,
        sys_flag: i32,
    ) -> PyResult<Option<(&'static str, i32, Bound<'py, PyDict>)>> {
        let open = self.0.get()?;
        let properties = encode_properties(properties)?;
        let message = NewMessage {
            topic,
            queue_id,
            flag: 0,
            sys_flag,
            born_timestamp: 0,
            born_host: open.host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: b"",
            properties: &properties,
        };
        let Some(delayed) = self.attempt(py, |store| store.log().delayed(&message))? else { return Ok(None) };
        let kept = PyDict::new(py);
        for (name, value) in properties::iter(&delayed.properties) {
            kept.set_item(name, value)?;
        }
        Ok(Some((delayed.topic, delayed.queue_id, kept)))
    }

    /// Start to deliver delayed messages when they are due, at least once. A slave must not. Idempotent.
    fn start_schedule(&self, py: Python<'_>) -> PyResult<()> {
        self.attempt(py, |store| store.delayed().start_schedule())
    }

    /// Stop the delivery and write its offsets.
    fn stop_schedule(&self, py: Python<'_>) -> PyResult<()> {
        self.attempt(py, |store| store.delayed().stop_schedule())
    }

    /// Return the next queue offset to deliver of each delay level.
    fn delay_offsets(&self, py: Python<'_>) -> PyResult<BTreeMap<u32, u64>> {
        self.attempt(py, |store| store.delayed().delay_offsets())
    }

    /// Return the delay offsets in the form of RocketMQ's delayOffset.json.
    fn delay_offset_json(&self, py: Python<'_>) -> PyResult<String> {
        self.attempt(py, |store| store.delayed().delay_offset_json())
    }

    /// Return the position of the timer wheel, in the 56 bytes that a RocketMQ slave reads.
    fn timer_check_point<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.run(py, |store| store.delayed().timer_check_point())?))
    }

    /// Return the number of waiting timed messages by topic, in the form of RocketMQ's timermetrics.
    fn timer_metrics(&self, py: Python<'_>) -> PyResult<String> {
        self.run(py, |store| store.delayed().timer_metrics())
    }

    /// Return timed messages in the wheel, those not in it yet, and the time before which all are delivered, in ms.
    fn timed_waiting(&self, py: Python<'_>) -> PyResult<(i64, u64, i64)> {
        self.run(py, |store| {
            let (in_wheel, behind) = store.delayed().timed_waiting();
            (in_wheel, behind, store.admin().stats().timer.read_time)
        })
    }

    /// Read messages from a queue and return the status name, messages, and the next offset.
    #[pyo3(signature = (topic, queue_id, offset, max_count=32, tags="*", filter=None))]
    #[allow(clippy::too_many_arguments)] // one per keyword argument in Python
    fn get(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: u32,
        offset: u64,
        max_count: usize,
        tags: &str,
        filter: Option<(String, String)>,
    ) -> PyResult<(&'static str, Vec<PyStoredMessage>, u64)> {
        let filter = match filter {
            Some((kind, expression)) => filters::compile(&kind, &expression)?,
            None => MessageFilter::tags(tags),
        };
        self.run(py, |store| {
            let found = store.queues().get(topic, queue_id, offset, max_count, GET_BYTES, &filter);
            let messages = found.messages.iter().map(|(_, record)| PyStoredMessage::new(record.bytes()));
            Ok((found.status.name(), messages.collect::<PyResult<_>>()?, found.next_offset))
        })?
    }

    /// Return the message whose record begins at *physical_offset*.
    fn message_at(&self, py: Python<'_>, physical_offset: u64) -> PyResult<Option<PyStoredMessage>> {
        let found = self.attempt(py, |store| match store.queues().message_at(physical_offset) {
            Err(StoreError::NoRecord { .. }) => Ok(None),
            found => found.map(|record| Some(PyStoredMessage::new(record.bytes()))),
        })?;
        found.transpose()
    }

    /// Return the offset of the message that contains this offset, or else of the nearest one.
    fn nearest_message(&self, py: Python<'_>, physical_offset: u64) -> PyResult<Option<u64>> {
        self.attempt(py, |store| match store.queues().message_at(physical_offset) {
            Ok(_) => Ok(Some(physical_offset)),
            Err(StoreError::NoRecord { nearest, .. }) => Ok(nearest),
            Err(error) => Err(error),
        })
    }

    /// Return messages with a unique key, newest first, up to *max_bytes* in total, and at least one.
    #[pyo3(signature = (topic, key, max_count=32, begin_ms=0, end_ms=i64::MAX, *, max_bytes=usize::MAX))]
    #[allow(clippy::too_many_arguments)] // one per keyword argument in Python
    fn query_by_unique_key(
        &self,
        py: Python<'_>,
        topic: &str,
        key: &str,
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
        max_bytes: usize,
    ) -> PyResult<Vec<PyStoredMessage>> {
        self.run(py, |store| {
            copies(store.queues().query_by_unique_key(topic, key, max_count, begin_ms, end_ms), max_bytes)
        })?
    }

    /// Return messages with a key or unique key, newest first, up to *max_bytes* in total, and at least one.
    #[pyo3(signature = (topic, key, max_count=32, begin_ms=0, end_ms=i64::MAX, *, max_bytes=usize::MAX))]
    #[allow(clippy::too_many_arguments)] // one per keyword argument in Python
    fn query_by_key(
        &self,
        py: Python<'_>,
        topic: &str,
        key: &str,
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
        max_bytes: usize,
    ) -> PyResult<Vec<PyStoredMessage>> {
        self.run(py, |store| {
            copies(store.queues().query_by_key(topic, key, max_count, begin_ms, end_ms), max_bytes)
        })?
    }

    /// Return the first queue offset that the queue still has.
    fn min_offset(&self, py: Python<'_>, topic: &str, queue_id: u32) -> PyResult<u64> {
        self.run(py, |store| store.queues().min_offset(topic, queue_id))
    }

    /// Return the next queue offset to be written.
    fn max_offset(&self, py: Python<'_>, topic: &str, queue_id: u32) -> PyResult<u64> {
        self.run(py, |store| store.queues().max_offset(topic, queue_id))
    }

    /// Return the first message stored at the time or later; *upper*: the last one stored at the time or before it.
    #[pyo3(signature = (topic, queue_id, timestamp_ms, *, upper=false))]
    fn offset_by_time(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: u32,
        timestamp_ms: i64,
        upper: bool,
    ) -> PyResult<u64> {
        let boundary = if upper { Boundary::Upper } else { Boundary::Lower };
        self.run(py, |store| store.queues().offset_by_time(topic, queue_id, timestamp_ms, boundary))
    }

    /// Return the store time of the first message in a queue.
    fn earliest_time(&self, py: Python<'_>, topic: &str, queue_id: u32) -> PyResult<Option<i64>> {
        self.run(py, |store| store.queues().earliest_time(topic, queue_id))
    }

    /// Return the store time of the message at a queue offset; None if it was deleted.
    fn stored_time(&self, py: Python<'_>, topic: &str, queue_id: u32, offset: u64) -> PyResult<Option<i64>> {
        self.run(py, |store| store.queues().stored_time(topic, queue_id, offset))
    }

    /// Return entries of a consume queue: physical offset, size, tag hash. None if there is no such queue.
    fn queue_entries(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: u32,
        from_offset: u64,
        count: usize,
    ) -> PyResult<Option<Vec<(u64, u32, i64)>>> {
        self.run(py, |store| store.queues().queue_entries(topic, queue_id, from_offset, count))
    }

    /// Return committed offsets by `topic@group` and queue id; only of *group* and *topic* if given.
    #[pyo3(signature = (group=None, topic=None))]
    fn committed_offsets(
        &self,
        py: Python<'_>,
        group: Option<&str>,
        topic: Option<&str>,
    ) -> PyResult<BTreeMap<String, BTreeMap<u32, u64>>> {
        self.run(py, |store| store.groups().committed_offsets(group, topic))
    }

    /// Return the messages that a group has in flight: queue offset, deliveries, and whether the consumer changed when
    /// each comes again.
    fn in_flight(
        &self,
        py: Python<'_>,
        group: &str,
        topic: &str,
        queue_id: u32,
    ) -> PyResult<Vec<(u64, u32, bool)>> {
        self.run(py, |store| store.groups().in_flight(group, topic, queue_id))
    }

    /// Return the state of a message in a group: the committed offset of its queue, whether the group is done with the
    /// message, its deliveries, and the end of its lease in ms since 1970; None without a committed offset.
    fn delivery(
        &self,
        py: Python<'_>,
        group: &str,
        topic: &str,
        queue_id: u32,
        queue_offset: u64,
    ) -> PyResult<Option<DeliveryParts>> {
        let found = self.run(py, |store| store.groups().delivery(group, topic, queue_id, queue_offset))?;
        Ok(found.map(|it| (it.committed, it.is_over, it.attempts, it.leased_until_ms)))
    }

    /// Return the next message that a group has not received, and how many it has in flight.
    fn next_and_in_flight(
        &self,
        py: Python<'_>,
        group: &str,
        topic: &str,
        queue_id: u32,
    ) -> PyResult<(u64, usize)> {
        let ahead = self.run(py, |store| store.groups().ahead(group, topic, queue_id, Begin::AtMin))?;
        Ok((ahead.next_offset, ahead.in_flight))
    }

    /// Delete, durably, a group's progress in all topics or one; return the number of topics.
    #[pyo3(signature = (group, topic=None))]
    fn forget_group(&self, py: Python<'_>, group: &str, topic: Option<&str>) -> PyResult<usize> {
        self.attempt(py, |store| store.groups().forget_group(group, topic))
    }

    /// Replace committed offsets by a master's, durably; others stay.
    fn adopt_offsets(&self, py: Python<'_>, offsets: BTreeMap<String, BTreeMap<u32, u64>>) -> PyResult<()> {
        self.attempt(py, |store| store.groups().adopt_offsets(&offsets))
    }

    /// Return the next queue offset that the group will read.
    fn committed_offset(
        &self,
        py: Python<'_>,
        group: &str,
        topic: &str,
        queue_id: u32,
    ) -> PyResult<Option<u64>> {
        self.run(py, |store| store.groups().committed_offset(group, topic, queue_id))
    }

    /// Set the next queue offset that the group will read.
    fn commit_offset(
        &self,
        py: Python<'_>,
        group: &str,
        topic: &str,
        queue_id: u32,
        offset: u64,
    ) -> PyResult<()> {
        self.attempt(py, |store| store.groups().commit_offset(group, topic, queue_id, offset))
    }

    /// Let the group continue at *offset*. Its leases of the queue end, and messages from there are redelivered.
    fn reset_offset(
        &self,
        py: Python<'_>,
        group: &str,
        topic: &str,
        queue_id: u32,
        offset: u64,
    ) -> PyResult<()> {
        self.attempt(py, |store| store.groups().reset_offset(group, topic, queue_id, offset))
    }

    /// Return the topics that have messages, with the ids of their queues.
    fn queues<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let queues = PyDict::new(py);
        for (topic, ids) in self.run(py, |store| store.queues().list())? {
            queues.set_item(topic, ids)?;
        }
        Ok(queues)
    }

    /// Return counters and positions.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.run(py, |store| store.admin().stats())?;
        let named = [
            ("min_physical_offset", stats.min_physical_offset),
            ("max_physical_offset", stats.max_physical_offset),
            ("flushed_offset", stats.flushed_offset),
            ("dispatched_offset", stats.dispatched_offset),
            ("indexed_offset", stats.indexed_offset),
            ("indexed_timestamp", u64::try_from(stats.indexed_timestamp).unwrap_or(0)),
            ("longest_put_ms", stats.longest_put_ms),
            ("append_lock_ms", stats.append_lock_ms),
            ("found_gets", stats.found_gets),
            ("fruitless_gets", stats.fruitless_gets),
            ("longest_get_ms", stats.longest_get_ms),
            ("timed_entered", stats.timer.queue_offset),
            ("mismatches", stats.mismatches),
            ("gone_leases", stats.gone_leases),
            ("appended", stats.appended),
            ("set_aside_queues", stats.set_aside_queues),
            ("dispatch_stalled_ms", stats.dispatch_stalled_ms),
            ("duplicates", stats.duplicates),
            ("remembered_sequences", stats.remembered_sequences),
            ("flushes", stats.flushes),
            ("recovered_cut_bytes", stats.recovered_cut_bytes),
            ("recovered_messages", stats.recovered_messages),
            ("delayed_delivered", stats.schedule.delivered),
            ("delayed_put_back", stats.schedule.put_back),
            ("delayed_undeliverable", stats.schedule.undeliverable),
            ("timed_delivered", stats.timer.delivered),
            ("timed_rolled", stats.timer.rolled),
            ("timed_recalled", stats.timer.recalled),
            ("timed_put_back", stats.timer.put_back),
            ("timed_undeliverable", stats.timer.undeliverable),
            ("timed_lost", stats.timer.lost),
        ];
        let dict = PyDict::new(py);
        for (name, value) in named {
            dict.set_item(name, value)?;
        }
        for (reason, count) in stats.failed_puts {
            dict.set_item(format!("failed_puts_{reason}"), count)?;
        }
        for (status, count) in stats.missed_gets {
            dict.set_item(format!("missed_gets_{}", status.name().to_lowercase()), count)?;
        }
        Ok(dict)
    }

    /// Raise the error with which the store would refuse any message now; return if it would not.
    fn check_writes(&self, py: Python<'_>) -> PyResult<()> {
        self.attempt(py, |store| store.admin().check_writes())
    }

    /// Return a histogram of the duration of puts: the last millisecond of each bucket, and its count.
    fn put_times(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64)>> {
        self.run(py, |store| store.admin().put_times())
    }

    /// The upper bounds of the buckets of `flush_times`, in milliseconds; the last bucket has none.
    #[classattr]
    const FLUSH_BOUNDS: [u64; FLUSH_BOUNDS_MS.len()] = FLUSH_BOUNDS_MS;

    /// Return a histogram of the duration of flushes: the count of each bucket, and the sum in milliseconds.
    fn flush_times(&self, py: Python<'_>) -> PyResult<(Vec<u64>, f64)> {
        let (counts, sum) = self.run(py, |store| store.admin().flush_times())?;
        Ok((counts, sum.as_secs_f64() * 1e3))
    }

    /// Return the report of the recovery at open.
    fn recovery<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = self.run(py, |store| store.admin().recovery())?;
        let named = [
            ("walked_bytes", report.walked_bytes),
            ("messages", report.messages),
            ("cut_bytes", report.cut_bytes),
            ("cut_messages", report.cut_messages),
            ("redone", report.redone),
            ("rewritten_bytes", report.rewritten_bytes),
        ];
        let dict = PyDict::new(py);
        dict.set_item("is_clean", report.is_clean)?;
        for (name, value) in named {
            dict.set_item(name, value)?;
        }
        dict.set_item("elapsed", report.elapsed)?;
        Ok(dict)
    }

    /// Return the present damages: file, first and last + 1 physical offset, reason.
    fn damages(&self, py: Python<'_>) -> PyResult<Vec<(PathBuf, u64, u64, String)>> {
        let damages = self.run(py, |store| store.admin().damages())?;
        let row =
            |damage: Damage| (damage.file, damage.range.start, damage.range.end, damage.reason.to_string());
        Ok(damages.into_iter().map(row).collect())
    }

    /// Flush all files and release the directory. Idempotent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.attempt(py, |store| {
            let closed = store.close();
            // The hook may refer to this store.
            store.admin().clear_archive();
            closed
        })
    }

    fn __repr__(&self) -> String {
        format!("<Store directory={:?}>", self.1)
    }
}
