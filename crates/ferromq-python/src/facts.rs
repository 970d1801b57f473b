//! Commit log files as columns, for `ferromq.pipeline.audit`: bindings of `ferromq_scan::inspect`.

use std::path::PathBuf;

use ferromq_scan::inspect::{FactFault, Facts, LogFacts};
use ferromq_store::files::{Allocation, Disk, MappedRegion, RealDisk};
use parking_lot::Mutex;
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};

use crate::inspect::file_error;

/// Records of one commit log file as columns without their bodies, read on demand.
#[pyclass(name = "LogFacts", module = "ferromq._ferromq", frozen)]
pub struct PyLogFacts {
    path: PathBuf,
    rows: usize,
    file: Mutex<LogFacts<MappedRegion>>,
}

#[pymethods]
impl PyLogFacts {
    #[new]
    #[pyo3(signature = (path, first_offset, *, until=u64::MAX, batch_rows=8192))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        first_offset: u64,
        until: u64,
        batch_rows: usize,
    ) -> PyResult<Self> {
        let opened = py.detach(|| RealDisk.open(&path, Allocation::ReadOnly));
        let region = opened.map_err(|source| file_error(&path, &source))?;
        Ok(Self { path, rows: batch_rows, file: Mutex::new(LogFacts::new(region, first_offset, until)) })
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let read = py.detach(|| self.file.lock().next_facts(self.rows));
        read.map_err(|source| file_error(&self.path, &source))?
            .map(|facts| facts_dict(py, &facts))
            .transpose()
    }
}

fn facts_dict<'py>(py: Python<'py>, facts: &Facts) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("rows", facts.topic.len())?;
    dict.set_item("topics", &facts.topics)?;
    for (name, column) in [
        ("topic", &facts.topic),
        ("queue_id", &facts.queue_id),
        ("sys_flag", &facts.sys_flag),
        ("size", &facts.size),
        ("key_ends", &facts.key_ends),
        ("keys", &facts.keys),
        ("tag_key", &facts.tag_key),
    ] {
        let bytes: Vec<u8> = column.iter().flat_map(|value| value.to_ne_bytes()).collect();
        dict.set_item(name, PyBytes::new(py, &bytes))?;
    }
    for (name, column) in [
        ("queue_offset", &facts.queue_offset),
        ("physical_offset", &facts.physical_offset),
        ("tag_hash", &facts.tag_hash),
        ("store_timestamp", &facts.store_timestamp),
    ] {
        let bytes: Vec<u8> = column.iter().flat_map(|value| value.to_ne_bytes()).collect();
        dict.set_item(name, PyBytes::new(py, &bytes))?;
    }
    dict.set_item("faults", facts.faults.iter().map(fault).collect::<Vec<_>>())?;
    dict.set_item("end", facts.end)?;
    dict.set_item("unwritten_from", facts.unwritten_from)?;
    dict.set_item("continued", facts.continued)?;
    Ok(dict)
}

type Fault<'a> = (&'static str, Option<usize>, u64, u64, &'a str, bool);

fn fault(fault: &FactFault) -> Fault<'_> {
    let FactFault { kind, row, range, reason, is_last } = fault;
    (kind.name(), *row, range.start, range.end, reason, *is_last)
}
