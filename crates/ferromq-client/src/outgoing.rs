//! The frames that wait to be written by the writer thread of a connection.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, PoisonError},
};

use bytes::Bytes;

use crate::sync;

/// A frame with a body of several parts, none of which is copied.
pub(crate) struct Frame {
    pub(crate) head: Bytes,
    pub(crate) parts: Vec<Bytes>,
}

impl Frame {
    fn len(&self) -> usize {
        self.head.len() + self.parts.iter().map(Bytes::len).sum::<usize>()
    }
}

/// Bytes that may wait in one connection. More are refused.
pub const MAX_QUEUED: usize = 64 << 20;
/// Frames that are written at once, at most.
const BATCH: usize = 64;

#[derive(Default)]
pub(crate) struct Outgoing {
    state: Mutex<State>,
    /// Frames came, or the connection ended.
    filled: Condvar,
}

#[derive(Default)]
struct State {
    frames: VecDeque<Frame>,
    bytes: usize,
    is_closed: bool,
    /// No more frames come; those that wait are written.
    is_finished: bool,
}

impl Outgoing {
    /// Queues a frame. Returns false if the connection has ended, or [`MAX_QUEUED`] bytes are queued.
    pub(crate) fn put(&self, frame: Frame) -> bool {
        let mut state = sync::lock(&self.state);
        if state.is_closed || state.is_finished || state.bytes > MAX_QUEUED {
            return false;
        }
        state.bytes += frame.len();
        state.frames.push_back(frame);
        self.filled.notify_one();
        true
    }

    /// Takes the next frames; none once the connection has ended, or [`Self::finish`] was called and all are taken.
    pub(crate) fn take(&self) -> Vec<Frame> {
        let mut state = sync::lock(&self.state);
        while state.frames.is_empty() && !state.is_closed && !state.is_finished {
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return Vec::new();
        }
        let count = state.frames.len().min(BATCH);
        let taken: Vec<Frame> = state.frames.drain(..count).collect();
        state.bytes -= taken.iter().map(Frame::len).sum::<usize>();
        taken
    }

    /// Takes no more frames.
    pub(crate) fn finish(&self) {
        sync::lock(&self.state).is_finished = true;
        self.filled.notify_all();
    }

    /// Wakes all that wait; the frames are dropped.
    pub(crate) fn close(&self) {
        let mut state = sync::lock(&self.state);
        state.is_closed = true;
        state.frames.clear();
        self.filled.notify_all();
    }
}
