//! Starts and joins the store's threads.

use std::{path::Path, thread::JoinHandle};

use crate::error::{IoResult, Result};

/// Starts a thread for the store in the directory `root`.
pub(crate) fn spawn(name: &str, root: &Path, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.or_io("start a thread for", root)
}

/// Waits for a thread, unless it is the caller: a listener may hold the last reference to the store.
pub(crate) fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread
        && !is_current(&thread)
    {
        // The thread printed its panic.
        let _ = thread.join();
    }
}

pub(crate) fn is_current(thread: &JoinHandle<()>) -> bool {
    thread.thread().id() == std::thread::current().id()
}
