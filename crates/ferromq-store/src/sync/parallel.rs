//! Work on many things at once, each of which mostly waits for the disk. What is done is the caller's business.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Items worth a thread of their own: each takes some microseconds where nothing is read from the disk.
const ITEMS_A_THREAD: usize = 64;
/// More than there are cores: a disk answers several reads in the time of one.
const MOST_THREADS: usize = 16;

/// Calls `work` with each item, in no order where there are many.
pub(crate) fn side_by_side<'a, T: Sync>(items: &'a [T], work: impl Fn(&'a T) + Sync) {
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(item);
        }
    };
    thread::scope(|scope| {
        for number in 1..MOST_THREADS.min(items.len() / ITEMS_A_THREAD + 1) {
            let thread = thread::Builder::new().name(format!("ferromq-open-{number}"));
            // With fewer threads it only takes longer.
            let _ = thread.spawn_scoped(scope, run);
        }
        run();
    });
}
