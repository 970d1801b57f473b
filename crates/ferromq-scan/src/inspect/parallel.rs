//! Runs work on several threads.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use super::InspectOptions;

pub(crate) fn threads(options: &InspectOptions) -> usize {
    match options.threads {
        0 => thread::available_parallelism().map_or(1, usize::from),
        threads => threads.min(256),
    }
}

/// Calls `work` on each item, on several threads; each thread has its own state.
pub(crate) fn on_each<T: Sync, S, O: Send>(
    threads: usize,
    items: &[T],
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize, &T) -> O + Sync,
) -> Vec<O> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut state = state();
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return done };
            done.push((number, work(&mut state, number, item)));
        }
    };
    let mut done: Vec<(usize, O)> = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(items.len())).map(|_| scope.spawn(run)).collect();
        let mut done = run();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}
