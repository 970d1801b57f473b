//! The outcomes of what was started without a waiting thread, for an event loop that takes many at once.

use std::{
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, RawFd},
        unix::net::UnixStream,
    },
    sync::Mutex,
};

use crate::sync;

/// A queue of outcomes. Its descriptor becomes readable when the first of several comes.
#[derive(Debug)]
pub struct Completions<T> {
    queue: Mutex<Vec<T>>,
    read: UnixStream,
    write: UnixStream,
}

impl<T> Completions<T> {
    /// Makes an empty queue.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        Ok(Self { queue: Mutex::default(), read, write })
    }

    /// Adds an outcome, and wakes the loop if it took all before.
    pub fn put(&self, outcome: T) {
        let was_empty = {
            let mut queue = sync::lock(&self.queue);
            queue.push(outcome);
            queue.len() == 1
        };
        if was_empty {
            // One byte fits; a descriptor that is still readable wakes the loop as well.
            let _ = (&self.write).write(&[1]);
        }
    }

    /// Takes all outcomes.
    pub fn take(&self) -> Vec<T> {
        // Before the queue: an outcome that comes in between wakes the loop again, for nothing.
        let _ = (&self.read).read(&mut [0; 64]);
        std::mem::take(&mut *sync::lock(&self.queue))
    }
}

impl<T> AsRawFd for Completions<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn all_outcomes_are_taken_and_the_descriptor_is_readable_while_there_are_some() {
        let completions = Arc::new(Completions::new().unwrap());
        let writers: Vec<_> = (0..4_u64)
            .map(|writer| {
                let completions = Arc::clone(&completions);
                thread::spawn(move || (0..10_000).for_each(|n| completions.put(writer * 10_000 + n)))
            })
            .collect();
        // As an event loop waits for the descriptor.
        completions.read.set_nonblocking(false).unwrap();
        let mut seen = Vec::new();
        while seen.len() < 40_000 {
            seen.extend(completions.take());
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..40_000));
    }
}
