//! State of one process that a forked child must not use: the network runtime, and objects with threads.
//!
//! A forked child has the memory of its parent but none of its threads: locks may be held forever, and sockets are
//! shared. So objects of the parent raise `ForkedProcess` in the child. The child starts a runtime of its own for new
//! objects.

use std::{
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{self, raised::ForkedProcess};

/// The runtime and the process that made it.
static RUNTIME: Mutex<Option<(u32, Runtime)>> = Mutex::new(None);

/// How many forks lie between the first process and this one: those of Python's `os.fork`, after which C programs that fork
/// by themselves have to call `PyOS_AfterFork_Child`. Reading it is no system call, unlike `process::id`.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// What tells this process from those that it was forked from.
pub fn here() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Starting the runtime takes far less. A longer wait means that the process was forked while the lock was held.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The runtime of this process, started by the first call, with a thread per core and at least two.
pub fn runtime() -> PyResult<Handle> {
    let Some(mut slot) = RUNTIME.try_lock_for(LOCK_TIMEOUT) else {
        return Err(ForkedProcess::new_err(
            "this process was forked while its parent started the network runtime; start ferromq after the fork",
        ));
    };
    forget_parents_runtime(&mut slot);
    if let Some((_, runtime)) = slot.as_ref() {
        return Ok(runtime.handle().clone());
    }
    let threads = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("ferromq-io")
        .enable_all()
        .build()
        .map_err(|source| error::os_error("cannot start the network threads", &source))?;
    let handle = runtime.handle().clone();
    *slot = Some((here(), runtime));
    Ok(handle)
}

/// Release, in a forked child, the files and the runtime of the parent. Python calls it there after a fork.
#[pyfunction]
pub fn forked_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    ferromq_store::files::release_in_forked_child();
    if let Some(mut slot) = RUNTIME.try_lock() {
        forget_parents_runtime(&mut slot);
    }
}

fn forget_parents_runtime(slot: &mut Option<(u32, Runtime)>) {
    if slot.as_ref().is_some_and(|(owner, _)| *owner != here()) {
        // A drop would wait for threads that only the parent has.
        std::mem::forget(slot.take());
    }
}

/// A value that only the process that created it may use or drop.
pub struct Owned<T> {
    what: &'static str,
    made: u32,
    process: u32,
    value: Option<T>,
}

impl<T> Owned<T> {
    /// Binds `value` to this process. `what` names it in the error in a child.
    pub fn new(what: &'static str, value: T) -> Self {
        Self { what, made: here(), process: process::id(), value: Some(value) }
    }

    /// The value, or `ForkedProcess` in a child.
    pub fn get(&self) -> PyResult<&T> {
        self.here().ok_or_else(|| {
            ForkedProcess::new_err(format!(
                "this {} belongs to process {}, which forked this one; make a new one after the fork",
                self.what, self.process
            ))
        })
    }

    /// The value; `None` in a child.
    pub fn here(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.made == here())
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.made != here() {
            // A drop could wait forever for held locks and missing threads.
            std::mem::forget(self.value.take());
        }
    }
}
