//! The bytes all gRPC connections of a server may hold at a time: requests that arrive or are answered, and
//! answers no client has taken yet.
//!
//! What one connection may hold is the business of HTTP/2's windows and of the limits in `service`.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

/// Bytes that are left, for everybody.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicUsize,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(bytes) })
    }

    /// Nothing taken yet.
    pub(super) fn share(self: &Arc<Self>) -> Share {
        Share { budget: Arc::clone(self), taken: AtomicUsize::new(0) }
    }
}

/// What one holder took of a budget; dropping it gives that back.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    taken: AtomicUsize,
}

impl Share {
    /// Takes `bytes` more, or none of them.
    pub(super) fn take(&self, bytes: usize) -> Result<(), Status> {
        let left = &self.budget.left;
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)) {
            Ok(_) => {
                self.taken.fetch_add(bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(_) => Err(Status::resource_exhausted("the server holds as many bytes as it may; try again")),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.left.fetch_add(*self.taken.get_mut(), Ordering::Relaxed);
    }
}

/// A request's body whose bytes are taken from a budget as they come. The share outlives the body: the
/// request still holds its bytes while it is answered.
pub(super) struct Metered {
    body: tonic::body::Body,
    share: Arc<Share>,
}

impl Metered {
    pub(super) fn new(body: tonic::body::Body, share: Arc<Share>) -> Self {
        Self { body, share }
    }
}

impl Body for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
            && let Err(refused) = self.share.take(data.len())
        {
            return Poll::Ready(Some(Err(refused)));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response's body that keeps its share until the connection has taken it.
pub(super) struct Held {
    body: tonic::body::Body,
    _share: Arc<Share>,
}

impl Held {
    pub(super) fn new(body: tonic::body::Body, share: Arc<Share>) -> Self {
        Self { body, _share: share }
    }
}

impl Body for Held {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
