//! A thread that waits for the answer of its call.

use std::{
    sync::{Condvar, Mutex},
    time::Instant,
};

use crate::{CallError, Response, sync};

/// Where a calling thread waits, unless it reads for all itself.
#[derive(Default)]
pub(crate) struct Waiter {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<Result<Response, CallError>>,
    /// The thread that read for all has stopped, and this one shall go on.
    is_reader: bool,
    /// Whether the thread waits: to wake none is a system call, too.
    is_waiting: bool,
}

/// Why a wait ended.
pub(crate) enum Woken {
    /// The call has ended.
    Done(Result<Response, CallError>),
    /// This thread shall read for all, until [`Waiter::take_reader`] is called.
    Reader,
    /// Neither, until the time given.
    Late,
}

impl Waiter {
    /// Ends the call.
    pub(crate) fn end(&self, outcome: Result<Response, CallError>) {
        let mut state = sync::lock(&self.state);
        state.outcome = Some(outcome);
        if state.is_waiting {
            self.changed.notify_one();
        }
    }

    /// Makes the thread read for all.
    pub(crate) fn make_reader(&self) {
        let mut state = sync::lock(&self.state);
        state.is_reader = true;
        if state.is_waiting {
            self.changed.notify_one();
        }
    }

    /// Returns whether the thread was made the reader since the last call.
    pub(crate) fn take_reader(&self) -> bool {
        std::mem::take(&mut sync::lock(&self.state).is_reader)
    }

    /// Whether the call has ended.
    pub(crate) fn has_ended(&self) -> bool {
        sync::lock(&self.state).outcome.is_some()
    }

    /// The outcome, if the call has ended.
    pub(crate) fn outcome(&self) -> Option<Result<Response, CallError>> {
        sync::lock(&self.state).outcome.take()
    }

    /// Waits for the outcome or for the turn to read.
    pub(crate) fn wait(&self, until: Instant) -> Woken {
        let mut state = sync::lock(&self.state);
        loop {
            if let Some(outcome) = state.outcome.take() {
                return Woken::Done(outcome);
            }
            if state.is_reader {
                return Woken::Reader;
            }
            if Instant::now() >= until {
                return Woken::Late;
            }
            state.is_waiting = true;
            state = sync::wait_until(&self.changed, state, until);
            state.is_waiting = false;
        }
    }
}
