//! What belongs to one process: the network runtime, and objects whose threads a fork leaves behind.
//!
//! A forked child has the memory of its parent but none of its threads: locks may be held by nobody and
//! sockets are shared. So a child never touches what its parent made; it gets an error that says so, and
//! a runtime of its own for what it makes anew.

use std::{process, time::Duration};

use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{self, raised::ForkedProcess};

/// The runtime and the process that made it.
static RUNTIME: Mutex<Option<(u32, Runtime)>> = Mutex::new(None);

/// Making the runtime takes well under this; longer means that a fork caught the lock held.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// The runtime of this process, made at the first call: one thread a core, at least two.
pub fn runtime() -> PyResult<Handle> {
    let Some(mut kept) = RUNTIME.try_lock_for(LOCK_PATIENCE) else {
        return Err(ForkedProcess::new_err(
            "this process was forked while its parent started the network runtime; start ferromq after the fork",
        ));
    };
    forget_foreign(&mut kept);
    if let Some((_, runtime)) = kept.as_ref() {
        return Ok(runtime.handle().clone());
    }
    let threads = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("ferromq-io")
        .enable_all()
        .build()
        .map_err(|source| error::of_os("cannot start the network threads", &source))?;
    let handle = runtime.handle().clone();
    *kept = Some((process::id(), runtime));
    Ok(handle)
}

/// Lets go, in a forked child, of what belongs to the parent.
#[pyfunction]
pub fn forked_child() {
    ferromq_store::files::release_in_forked_child();
    if let Some(mut kept) = RUNTIME.try_lock() {
        forget_foreign(&mut kept);
    }
}

fn forget_foreign(kept: &mut Option<(u32, Runtime)>) {
    if kept.as_ref().is_some_and(|(owner, _)| *owner != process::id()) {
        // Dropping it would wait for threads that only the parent has.
        std::mem::forget(kept.take());
    }
}

/// A value that only the process that made it may touch, or drop.
pub struct Owned<T> {
    what: &'static str,
    process: u32,
    value: Option<T>,
}

impl<T> Owned<T> {
    /// Keeps `value` for this process; `what` names it in the error a child gets.
    pub fn new(what: &'static str, value: T) -> Self {
        Self { what, process: process::id(), value: Some(value) }
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

    /// The value, where this is its process.
    pub fn here(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.process == process::id())
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            // Its locks may be held and its threads are gone: dropping could wait for ever.
            std::mem::forget(self.value.take());
        }
    }
}
