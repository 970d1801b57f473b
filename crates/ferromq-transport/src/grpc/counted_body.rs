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

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use tokio::{
    sync::mpsc,
    time::{Sleep, sleep},
};
use tokio_stream::Stream;
use tonic::Status;

use super::call::SMALL;
use crate::connections::budget::{OpenStream, Share, kept};

/// What gRPC puts before a message.
pub(super) const PREFIX: usize = 5;

/// A request's body whose bytes are counted as they come. The share outlives the body: the request still
/// holds its bytes while it is answered.
pub(super) struct CountedBody<B> {
    body: B,
    share: Arc<Share>,
    /// How long the client may send nothing in the middle of the body; None where it may be silent.
    stall: Option<Duration>,
    /// Since nothing came.
    silence: Option<Pin<Box<Sleep>>>,
}

impl<B> CountedBody<B> {
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

impl<B> Body for CountedBody<B>
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

/// A client that takes fewer bytes a second of the answers it is to have holds their memory for too long. What the
/// system keeps for it leaves in steps of up to 64 KiB, so that four times as much is sure to be enough.
const LEAST_RATE: usize = 1 << 10;

/// The large answers of a connection that its client has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Untaken {
    answers: AtomicUsize,
    /// Bytes of them that were written, and a lot for each that ended.
    written: AtomicUsize,
}

impl Untaken {
    /// One more answer, or piece of one, until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Taking {
        self.answers.fetch_add(1, Ordering::Relaxed);
        Taking(Arc::clone(self))
    }

    /// Resolves once there are answers of which in `limit`, or up to twice as long, none ended and too little was written.
    pub(super) async fn stands_still(&self, limit: Duration) {
        let mut before = None;
        loop {
            sleep(limit).await;
            let now = self.look();
            if before.zip(now).is_some_and(|(before, now)| is_too_little(before, now, limit)) {
                return;
            }
            before = now;
        }
    }

    /// How much was written so far; `None` where nothing is to be taken.
    fn look(&self) -> Option<usize> {
        (self.answers.load(Ordering::Relaxed) > 0).then(|| self.written.load(Ordering::Relaxed))
    }
}

/// Says whether less was written between two looks than there has to be in the time between them.
fn is_too_little(before: usize, now: usize, time: Duration) -> bool {
    let least = LEAST_RATE as f64 * time.as_secs_f64();
    (now.wrapping_sub(before) as f64) < least.max(1.0)
}

/// An answer, or a piece of one, that is not taken yet.
#[derive(Debug)]
pub(super) struct Taking(Arc<Untaken>);

impl Drop for Taking {
    fn drop(&mut self) {
        // All there was of it was taken, however little.
        self.0.written.fetch_add(ENDED, Ordering::Relaxed);
        self.0.answers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// More than has to be written in any time between two looks.
const ENDED: usize = 1 << 40;

/// Bytes of an answer that tell how many of them were written.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    taking: Option<Taking>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(Taking(untaken)) = &self.taking {
            untaken.written.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// A response's body as HTTP/2 writes it: what is large of it is watched.
pub(super) struct Watched {
    body: tonic::body::Body,
    untaken: Arc<Untaken>,
}

impl Watched {
    pub(super) fn new(body: tonic::body::Body, untaken: Arc<Untaken>) -> Self {
        Self { body, untaken }
    }
}

impl Body for Watched {
    type Data = Piece;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(context));
        // HTTP/2 takes a whole piece where the client lets it write one byte, and keeps it till it is written.
        let taking = |bytes: &Bytes| (bytes.len() > SMALL).then(|| self.untaken.begin());
        let piece = |bytes| Piece { taking: taking(&bytes), bytes };
        Poll::Ready(polled.map(|frame| Ok(frame?.map_data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response's body whose bytes keep its share until the connection has written them.
pub(super) struct Held {
    body: tonic::body::Body,
    share: Arc<Share>,
    _taking: Taking,
}

impl Held {
    pub(super) fn new(body: tonic::body::Body, share: Arc<Share>, untaken: &Arc<Untaken>) -> Self {
        Self { body, share, _taking: untaken.begin() }
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
        Poll::Ready(polled.map(|frame| Ok(frame?.map_data(|data| kept(data, Arc::clone(&self.share))))))
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Says whether a connection is cut off at the second of two looks, where `between` happens between them.
    fn stands_still(untaken: &Arc<Untaken>, between: impl FnOnce()) -> bool {
        let before = untaken.look();
        between();
        before.zip(untaken.look()).is_some_and(|(before, now)| is_too_little(before, now, LIMIT))
    }

    fn piece(untaken: &Arc<Untaken>) -> Piece {
        Piece { bytes: vec![0; 4 << 20].into(), taking: Some(untaken.begin()) }
    }

    #[test]
    fn bytes_of_one_large_piece_count_as_they_are_written() {
        let untaken = Arc::<Untaken>::default();
        let mut slow = piece(&untaken);
        assert!(stands_still(&untaken, || ()));
        assert!(!stands_still(&untaken, || slow.advance(30 << 10)));
        assert!(stands_still(&untaken, || slow.advance((30 << 10) - 1)));
        assert_eq!(slow.remaining(), (4 << 20) - (60 << 10) + 1);
    }

    #[test]
    fn an_answer_that_ended_was_taken_however_small_it_was_and_without_answers_nothing_is_waited_for() {
        let untaken = Arc::<Untaken>::default();
        let (first, other) = (piece(&untaken), untaken.begin());
        assert!(!stands_still(&untaken, || drop(first)));
        assert!(stands_still(&untaken, || ()));
        drop(other);
        assert!(!stands_still(&untaken, || ()));
    }

    #[test]
    fn a_short_limit_asks_for_a_byte_at_least() {
        assert!(is_too_little(7, 7, Duration::from_micros(1)));
        assert!(!is_too_little(7, 8, Duration::from_micros(1)));
        assert!(!is_too_little(usize::MAX, 0, Duration::from_micros(1)));
    }
}
