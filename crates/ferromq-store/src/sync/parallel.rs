//! Runs work on many items that mostly wait for the disk.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Items per thread: each takes microseconds if it reads nothing from disk.
const ITEMS_A_THREAD: usize = 64;
/// More threads than cores, because a disk serves several reads at once.
const MOST_THREADS: usize = 16;

/// Calls `work` with each item, in parallel and in any order if there are many.
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
            // With fewer threads the work takes longer.
            let _ = thread.spawn_scoped(scope, run);
        }
        run();
    });
}
