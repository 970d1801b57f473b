//! Store directories read from outside, as rows for `ferromq.store_tools`: bindings of `ferromq_scan::inspect`.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use ferromq_scan::inspect::{
    ConfigFile, Dump, DumpItem, DumpQuery, Finding, InspectOptions, LogFile, OwnFile, QueueSummary, Scanned,
    StoreSummary, VerifyEvent, VerifyReport, dump, inspect, verify,
};
use ferromq_store::{
    StoreError,
    files::{Allocation, DirectoryLock, Disk, MappedRegion, RealDisk},
    formats::flush_mark,
};
use parking_lot::Mutex;
use pyo3::{
    exceptions::{PyOSError, PyRuntimeError},
    prelude::*,
    types::{PyDict, PyList},
};

use crate::{error, message::PyStoredMessage};

/// Most events that wait for the caller. Above it, the verification waits.
const MAX_QUEUED_EVENTS: usize = 1024;

fn options(commit_log_paths: Vec<PathBuf>, index_slots: Option<u32>, threads: usize) -> InspectOptions {
    InspectOptions { commit_log_paths, index_slots, threads }
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

fn dict<'py, const N: usize>(
    py: Python<'py>,
    items: [(&str, Bound<'py, PyAny>); N],
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in items {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}

macro_rules! row {
    ($py:expr, $($name:ident: $value:expr),* $(,)?) => {
        dict($py, [$((stringify!($name), $value.into_bound_py_any($py)?)),*])
    };
}
use pyo3::IntoPyObjectExt;

/// Summarize a store directory. Only reads, and takes no lock. The stub describes the result.
#[pyfunction]
#[pyo3(signature = (directory, *, commit_log_paths=Vec::new(), index_slots=None))]
pub fn inspect_store<'py>(
    py: Python<'py>,
    directory: PathBuf,
    commit_log_paths: Vec<PathBuf>,
    index_slots: Option<u32>,
) -> PyResult<Bound<'py, PyDict>> {
    let options = options(commit_log_paths, index_slots, 0);
    let summary =
        py.detach(|| inspect(&directory, &options)).map_err(|failure| error::store_error(py, &failure))?;
    summary_row(py, &summary)
}

/// The end of the log at the last flush of a store, also of an open one. None if it is unknown.
#[pyfunction]
pub fn flushed_end(py: Python<'_>, directory: PathBuf) -> Option<u64> {
    py.detach(|| flush_mark::read(&RealDisk, &directory)).map(|(_, end)| end)
}

/// The lock of a store directory that no broker has open.
#[pyclass(name = "StoreLock", module = "ferromq._ferromq", frozen)]
pub struct PyStoreLock(Mutex<Option<DirectoryLock>>);

#[pymethods]
impl PyStoreLock {
    #[new]
    fn new(py: Python<'_>, directory: PathBuf) -> PyResult<Self> {
        let path = directory.join("lock");
        let lock = py.detach(|| RealDisk.lock(&path)).map_err(|source| match source.kind() {
            std::io::ErrorKind::WouldBlock => error::store_error(py, &StoreError::Locked { path }),
            _ => file_error(&path, &source),
        })?;
        Ok(Self(Mutex::new(Some(lock))))
    }

    /// Whether a broker has the store open, or another holder of its lock exists.
    #[staticmethod]
    fn is_held(py: Python<'_>, directory: PathBuf) -> PyResult<bool> {
        let path = directory.join("lock");
        py.detach(|| RealDisk.is_locked(&path)).map_err(|source| file_error(&path, &source))
    }

    /// Release the lock. Idempotent.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.lock().take()));
    }
}

fn summary_row<'py>(py: Python<'py>, summary: &StoreSummary) -> PyResult<Bound<'py, PyDict>> {
    let topics = PyDict::new(py);
    for topic in &summary.topics {
        let queues: Vec<_> =
            topic.queues.iter().map(|queue| queue_row(py, queue)).collect::<PyResult<_>>()?;
        topics.set_item(&topic.topic, PyList::new(py, queues)?)?;
    }
    let log = &summary.log;
    let gaps: Vec<(u64, u64)> = log.gaps.iter().map(|gap| (gap.start, gap.end)).collect();
    let log = row!(py,
        paths: log.paths.iter().map(|path| path_text(path)).collect::<Vec<_>>(),
        files: log.files,
        file_size: log.file_size,
        bytes: log.bytes,
        start: log.start,
        end: log.end,
        first_time: log.first_time,
        last_time: log.last_time,
        gaps: gaps,
    )?;
    let index = &summary.index;
    let index = row!(py,
        files: index.files,
        bytes: index.bytes,
        entries: index.entries,
        first_time: index.first_time,
        last_time: index.last_time,
    )?;
    let checkpoint = summary.checkpoint.map(|marks| {
        row!(py,
            log_time: marks.log_time,
            queues_time: marks.queues_time,
            index_time: marks.index_time,
            master_flushed_offset: marks.master_flushed_offset,
            durable_end: marks.durable_end,
        )
    });
    let config: Vec<_> =
        summary.config.iter().map(|file| config_file_row(py, file)).collect::<PyResult<_>>()?;
    let own: Vec<_> = summary.own_files.iter().map(|file| own_file_row(py, file)).collect::<PyResult<_>>()?;
    row!(py,
        directory: path_text(&summary.directory),
        state: summary.state.name(),
        abort: summary.abort.as_deref(),
        log: log,
        topics: topics,
        index: index,
        checkpoint: checkpoint.transpose()?,
        config: config,
        own_files: own,
        problems: summary.problems.clone(),
    )
}

fn queue_row<'py>(py: Python<'py>, queue: &QueueSummary) -> PyResult<Bound<'py, PyDict>> {
    row!(py,
        queue_id: queue.queue_id,
        min_offset: queue.min_offset,
        max_offset: queue.max_offset,
        messages: queue.messages,
        bytes: queue.bytes,
        first_time: queue.first_time,
        last_time: queue.last_time,
        files: queue.files,
        file_bytes: queue.file_bytes,
    )
}

fn config_file_row<'py>(py: Python<'py>, file: &ConfigFile) -> PyResult<Bound<'py, PyDict>> {
    row!(py, name: file.name.as_str(), bytes: file.bytes, entries: file.entries, error: file.error.as_deref())
}

fn own_file_row<'py>(py: Python<'py>, file: &OwnFile) -> PyResult<Bound<'py, PyDict>> {
    row!(py, name: file.name.as_str(), bytes: file.bytes, error: file.error.as_deref(), is_void: file.is_void)
}

fn finding_row<'py>(py: Python<'py>, finding: &Finding) -> PyResult<Bound<'py, PyDict>> {
    row!(py,
        kind: finding.kind.name(),
        file: path_text(&finding.file),
        start: finding.range.start,
        end: finding.range.end,
        count: finding.count,
        expected: finding.expected.as_str(),
        found: finding.found.as_str(),
    )
}

fn report_row<'py>(py: Python<'py>, report: &VerifyReport) -> PyResult<Bound<'py, PyDict>> {
    let findings = PyDict::new(py);
    for (kind, count) in &report.findings {
        findings.set_item(kind.name(), count)?;
    }
    row!(py,
        directory: path_text(&report.directory),
        state: report.state.name(),
        log_start: report.log_start,
        looked_to: report.looked_to,
        promised_to: report.promised_to,
        log_files: report.log_files,
        log_bytes: report.log_bytes,
        records: report.records,
        queues: report.queues,
        queue_entries: report.queue_entries,
        index_files: report.index_files,
        index_entries: report.index_entries,
        not_dispatched: report.not_dispatched,
        of_deleted: report.of_deleted,
        findings: findings,
        notes: report.notes.clone(),
        is_complete: report.is_complete,
        seconds: report.elapsed.as_secs_f64(),
    )
}

enum QueuedEvent {
    Finding(Box<Finding>),
    Progress(u64, u64),
    End(Box<Result<VerifyReport, StoreError>>),
}

/// A verification of a store directory on threads of its own. It only reads, and takes no lock.
#[pyclass(name = "StoreVerification", module = "ferromq._ferromq", frozen)]
pub struct PyStoreVerification(Mutex<Option<Receiver<QueuedEvent>>>);

#[pymethods]
impl PyStoreVerification {
    #[new]
    #[pyo3(signature = (directory, *, commit_log_paths=Vec::new(), index_slots=None, threads=0))]
    fn new(
        directory: PathBuf,
        commit_log_paths: Vec<PathBuf>,
        index_slots: Option<u32>,
        threads: usize,
    ) -> PyResult<Self> {
        let (sender, events) = sync_channel(MAX_QUEUED_EVENTS);
        let options = options(commit_log_paths, index_slots, threads);
        let run = move || {
            let report = verify(&directory, &options, &|event| send(&sender, &event));
            // Fails if the caller has called `close`.
            let _ = sender.send(QueuedEvent::End(Box::new(report)));
        };
        thread::Builder::new()
            .name("ferromq-verify".into())
            .spawn(run)
            .map_err(|source| error::os_error("cannot start the verification thread", &source))?;
        Ok(Self(Mutex::new(Some(events))))
    }

    /// Return the next event; None if there was none within *timeout* seconds.
    fn next<'py>(
        &self,
        py: Python<'py>,
        timeout: f64,
    ) -> PyResult<Option<(&'static str, Bound<'py, PyDict>)>> {
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
        let event = py.detach(|| {
            let events = self.0.lock();
            events.as_ref().map_or(Err(RecvTimeoutError::Disconnected), |events| events.recv_timeout(timeout))
        });
        match event {
            Ok(QueuedEvent::Finding(finding)) => Ok(Some(("finding", finding_row(py, &finding)?))),
            Ok(QueuedEvent::Progress(done, total)) => {
                Ok(Some(("progress", row!(py, done: done, total: total)?)))
            }
            Ok(QueuedEvent::End(end)) => match *end {
                Ok(report) => Ok(Some(("report", report_row(py, &report)?))),
                Err(failure) => Err(error::store_error(py, &failure)),
            },
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(PyRuntimeError::new_err("the verification has ended")),
        }
    }

    /// Stop the verification. Idempotent.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.lock().take()));
    }
}

fn send(sender: &SyncSender<QueuedEvent>, event: &VerifyEvent<'_>) -> bool {
    match event {
        VerifyEvent::Finding(finding) => {
            sender.send(QueuedEvent::Finding(Box::new((*finding).clone()))).is_ok()
        }
        VerifyEvent::Progress { done, total } => sender.send(QueuedEvent::Progress(*done, *total)).is_ok(),
    }
}

/// Messages of a topic, read from a store directory on demand, queue after queue.
#[pyclass(name = "StoreDump", module = "ferromq._ferromq", frozen)]
pub struct PyStoreDump(Mutex<Dump>);

#[pymethods]
impl PyStoreDump {
    #[new]
    #[pyo3(signature = (
        directory, topic, *, queue_id=None, from_offset=None, to_offset=None, from_time=None, to_time=None,
        key=None, tag=None, limit=None, commit_log_paths=Vec::new()
    ))]
    #[allow(clippy::too_many_arguments)] // one per keyword argument in Python
    fn new(
        py: Python<'_>,
        directory: PathBuf,
        topic: String,
        queue_id: Option<u32>,
        from_offset: Option<u64>,
        to_offset: Option<u64>,
        from_time: Option<i64>,
        to_time: Option<i64>,
        key: Option<String>,
        tag: Option<String>,
        limit: Option<u64>,
        commit_log_paths: Vec<PathBuf>,
    ) -> PyResult<Self> {
        let query =
            DumpQuery { topic, queue_id, from_offset, to_offset, from_time, to_time, key, tag, limit };
        let options = options(commit_log_paths, None, 0);
        let dump = py
            .detach(|| dump(&directory, &query, &options))
            .map_err(|failure| error::store_error(py, &failure))?;
        Ok(Self(Mutex::new(dump)))
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let item = match py.detach(|| self.0.lock().next()) {
            None => return Ok(None),
            Some(Err(failure)) => return Err(error::store_error(py, &failure)),
            Some(Ok(item)) => item,
        };
        match item {
            DumpItem::Record { bytes, is_sound } => {
                (PyStoredMessage::unchecked(&bytes)?, is_sound).into_bound_py_any(py).map(Some)
            }
            DumpItem::Lost { queue_id, queue_offset, reason } => {
                (queue_id, queue_offset, reason).into_bound_py_any(py).map(Some)
            }
        }
    }
}

/// The records of one commit log file, read on demand.
#[pyclass(name = "LogFile", module = "ferromq._ferromq", frozen)]
pub struct PyLogFile {
    path: PathBuf,
    file: Mutex<LogFile<MappedRegion>>,
}

enum LogFileItem {
    Record(PyResult<PyStoredMessage>, bool),
    Unsound(Box<Finding>),
}

#[pymethods]
impl PyLogFile {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, first_offset: u64) -> PyResult<Self> {
        let opened = py.detach(|| RealDisk.open(&path, Allocation::ReadOnly));
        let region = opened.map_err(|source| file_error(&path, &source))?;
        Ok(Self { path, file: Mutex::new(LogFile::new(region, first_offset)) })
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match py.detach(|| self.read()).map_err(|source| file_error(&self.path, &source))? {
            None => Ok(None),
            Some(LogFileItem::Record(message, is_sound)) => {
                (message?, is_sound).into_bound_py_any(py).map(Some)
            }
            Some(LogFileItem::Unsound(finding)) => finding_row(py, &finding)?.into_bound_py_any(py).map(Some),
        }
    }
}

impl PyLogFile {
    fn read(&self) -> std::io::Result<Option<LogFileItem>> {
        let mut file = self.file.lock();
        loop {
            let at = file.position();
            let is_sound = match file.next_scanned()? {
                None => return Ok(None),
                Some(Scanned::Record(_)) => true,
                Some(Scanned::Damaged { .. }) => false,
                Some(Scanned::Unsound { kind, range, reason, .. }) => {
                    let (expected, found) = ("a record".into(), reason.into());
                    let finding = Finding { kind, file: self.path.clone(), range, count: 1, expected, found };
                    return Ok(Some(LogFileItem::Unsound(Box::new(finding))));
                }
                Some(Scanned::Full | Scanned::Unwritten { .. }) => continue,
            };
            return Ok(Some(LogFileItem::Record(PyStoredMessage::unchecked(file.bytes_at(at)?), is_sound)));
        }
    }
}

pub(crate) fn file_error(path: &Path, source: &std::io::Error) -> PyErr {
    PyOSError::new_err((source.raw_os_error(), source.to_string(), path_text(path)))
}
