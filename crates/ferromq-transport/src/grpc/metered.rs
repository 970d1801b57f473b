//! Bodies and streams whose bytes are counted in a connection's share of the budget.

use std::{
    error::Error,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::{
    sync::mpsc,
    time::{Sleep, sleep},
};
use tokio_stream::Stream;
use tonic::Status;

use crate::budget::{OpenStream, Share, kept};

/// What gRPC puts before a message.
pub(super) const PREFIX: usize = 5;

/// A request's body whose bytes are counted as they come. The share outlives the body: the request still
/// holds its bytes while it is answered.
pub(super) struct Metered<B> {
    body: B,
    share: Arc<Share>,
    /// How long the client may send nothing in the middle of the body; None where it may be silent.
    stall: Option<Duration>,
    /// Since nothing came.
    silence: Option<Pin<Box<Sleep>>>,
}

impl<B> Metered<B> {
    pub(super) fn new(body: B, share: Arc<Share>, stall: Option<Duration>) -> Self {
        Self { body, share, stall, silence: None }
    }

    /// Fails where nothing came for too long.
    fn check_silence(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let Some(stall) = self.stall else { return Poll::Pending };
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep(stall)));
        silence.as_mut().poll(context).map(|()| {
            Status::deadline_exceeded(format!("the rest of the request did not come within {stall:?}"))
        })
    }
}

impl<B> Body for Metered<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if polled.is_pending() {
            return self.check_silence(context).map(|error| Some(Err(error)));
        }
        self.silence = None;
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
            && let Err(refused) = self.share.take(data.len())
        {
            return Poll::Ready(Some(Err(refused.into())));
        }
        polled.map_err(|error| Status::from_error(error.into()))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The large answers of a connection that its client has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Untaken {
    answers: AtomicUsize,
    /// Grows with each piece that is written.
    written: AtomicUsize,
}

impl Untaken {
    /// One more answer, or piece of one, until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Taking {
        self.answers.fetch_add(1, Ordering::Relaxed);
        Taking(Arc::clone(self))
    }

    /// Resolves once there are answers and no piece was written for `limit`, or up to twice as long.
    pub(super) async fn stands_still(&self, limit: Duration) {
        let mut before = None;
        loop {
            sleep(limit).await;
            let waits = self.answers.load(Ordering::Relaxed) > 0;
            let now = waits.then(|| self.written.load(Ordering::Relaxed));
            if now.is_some() && now == before {
                return;
            }
            before = now;
        }
    }
}

/// An answer, or a piece of one, that is not taken yet.
pub(super) struct Taking(Arc<Untaken>);

impl Drop for Taking {
    fn drop(&mut self) {
        self.0.written.fetch_add(1, Ordering::Relaxed);
        self.0.answers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A response's body whose bytes keep its share until the connection has written them.
pub(super) struct Held {
    body: tonic::body::Body,
    share: Arc<Share>,
    taking: Taking,
}

impl Held {
    pub(super) fn new(body: tonic::body::Body, share: Arc<Share>, untaken: &Arc<Untaken>) -> Self {
        Self { body, share, taking: untaken.begin() }
    }
}

impl Body for Held {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(context));
        // HTTP/2 takes a whole piece where the client lets it write one byte, and keeps it till it is written.
        let piece = || (Arc::clone(&self.share), self.taking.0.begin());
        Poll::Ready(polled.map(|frame| Ok(frame?.map_data(|data| kept(data, piece())))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// One answer on a stream, with what it holds.
pub(super) type Answer = (Result<Bytes, Status>, Option<Share>);

/// The answers of a stream that stays open, as the connection takes them.
pub(super) struct Unread {
    answers: mpsc::Receiver<Answer>,
    _stream: OpenStream,
}

impl Unread {
    pub(super) fn new(answers: mpsc::Receiver<Answer>, stream: OpenStream) -> Self {
        Self { answers, _stream: stream }
    }
}

impl Stream for Unread {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let taken = ready!(self.answers.poll_recv(context));
        Poll::Ready(taken.map(|(answer, _share)| answer))
    }
}
