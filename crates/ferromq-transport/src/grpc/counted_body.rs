//! Bodies and streams whose bytes count in a connection's share of the memory budget.

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

use super::call::SMALL_ANSWER;
use crate::connections::budget::{OpenStream, Share, kept};

/// Length of the gRPC prefix of a message: a flag and the message's length.
pub(super) const PREFIX: usize = 5;

/// A request body that counts its bytes as they arrive. The share outlives the body, because the request holds its
/// bytes until it is answered.
pub(super) struct CountedBody<B> {
    body: B,
    share: Arc<Share>,
    /// Longest pause of the client in the middle of the body; unlimited if `None`.
    stall: Option<Duration>,
    /// Timer of the current pause.
    silence: Option<Pin<Box<Sleep>>>,
}

impl<B> CountedBody<B> {
    pub(super) fn new(body: B, share: Arc<Share>, stall: Option<Duration>) -> Self {
        Self { body, share, stall, silence: None }
    }

    /// Fails if the pause exceeds `stall`.
    fn check_silence(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let Some(stall) = self.stall else { return Poll::Pending };
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep(stall)));
        silence.as_mut().poll(context).map(|()| {
            Status::deadline_exceeded(format!("the rest of the request did not arrive within {stall:?}"))
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

/// Least bytes a second that a client must read of its pending answers; a slower one holds their memory for too long.
/// The kernel's send buffer drains in steps of up to 64 KiB, so a client four times as fast always passes.
const MIN_RATE: usize = 1 << 10;

/// The large answers of a connection that its client has not read yet.
#[derive(Debug, Default)]
pub(super) struct UnsentAnswers {
    answers: AtomicUsize,
    /// Bytes written of all answers so far, plus `ENDED` for each finished one.
    written: AtomicUsize,
}

impl UnsentAnswers {
    /// Adds an answer, or a piece of one, until the guard is dropped.
    pub(super) fn add(self: &Arc<Self>) -> UnsentGuard {
        self.answers.fetch_add(1, Ordering::Relaxed);
        UnsentGuard(Arc::clone(self))
    }

    /// Resolves once answers are pending and, for `limit` or up to twice as long, none ended and too few bytes were
    /// written.
    pub(super) async fn stalled(&self, limit: Duration) {
        let mut before = None;
        loop {
            sleep(limit).await;
            let now = self.progress();
            if before.zip(now).is_some_and(|(before, now)| is_stalled(before, now, limit)) {
                return;
            }
            before = now;
        }
    }

    /// Bytes written so far; `None` if no answer is pending.
    fn progress(&self) -> Option<usize> {
        (self.answers.load(Ordering::Relaxed) > 0).then(|| self.written.load(Ordering::Relaxed))
    }
}

/// Returns whether too few bytes were written in `time`, between the readings `before` and `now`.
fn is_stalled(before: usize, now: usize, time: Duration) -> bool {
    let least = MIN_RATE as f64 * time.as_secs_f64();
    (now.wrapping_sub(before) as f64) < least.max(1.0)
}

/// Keeps an answer, or a piece of one, pending until it is dropped.
#[derive(Debug)]
pub(super) struct UnsentGuard(Arc<UnsentAnswers>);

impl Drop for UnsentGuard {
    fn drop(&mut self) {
        // A finished answer is progress, however small it was.
        self.0.written.fetch_add(ENDED, Ordering::Relaxed);
        self.0.answers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// More bytes than [`MIN_RATE`] requires between any two readings.
const ENDED: usize = 1 << 40;

/// Bytes of an answer that report their progress.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    guard: Option<UnsentGuard>,
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
        if let Some(UnsentGuard(unsent)) = &self.guard {
            unsent.written.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// A response body that adds its large pieces to the pending answers.
pub(super) struct WatchedBody {
    body: tonic::body::Body,
    unsent: Arc<UnsentAnswers>,
}

impl WatchedBody {
    pub(super) fn new(body: tonic::body::Body, unsent: Arc<UnsentAnswers>) -> Self {
        Self { body, unsent }
    }
}

impl Body for WatchedBody {
    type Data = Piece;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Status>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(context));
        // HTTP/2 takes a whole piece even if the client's window allows one byte, and keeps it until it is written.
        let guard = |bytes: &Bytes| (bytes.len() > SMALL_ANSWER).then(|| self.unsent.add());
        let piece = |bytes| Piece { guard: guard(&bytes), bytes };
        Poll::Ready(polled.map(|frame| Ok(frame?.map_data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response body whose bytes hold its share until the connection has written them.
pub(super) struct CountedAnswer {
    body: tonic::body::Body,
    share: Arc<Share>,
    _guard: UnsentGuard,
}

impl CountedAnswer {
    pub(super) fn new(body: tonic::body::Body, share: Arc<Share>, unsent: &Arc<UnsentAnswers>) -> Self {
        Self { body, share, _guard: unsent.add() }
    }
}

impl Body for CountedAnswer {
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

/// One answer on a stream, and the memory counted for it.
pub(super) type StreamAnswer = (Result<Bytes, Status>, Option<Share>);

/// The answers of a long-lived stream.
pub(super) struct AnswerStream {
    answers: mpsc::Receiver<StreamAnswer>,
    _stream: OpenStream,
}

impl AnswerStream {
    pub(super) fn new(answers: mpsc::Receiver<StreamAnswer>, stream: OpenStream) -> Self {
        Self { answers, _stream: stream }
    }
}

impl Stream for AnswerStream {
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

    /// Returns whether a connection stalls if `between` happens between two readings.
    fn stalls(unsent: &Arc<UnsentAnswers>, between: impl FnOnce()) -> bool {
        let before = unsent.progress();
        between();
        before.zip(unsent.progress()).is_some_and(|(before, now)| is_stalled(before, now, LIMIT))
    }

    fn piece(unsent: &Arc<UnsentAnswers>) -> Piece {
        Piece { bytes: vec![0; 4 << 20].into(), guard: Some(unsent.add()) }
    }

    #[test]
    fn bytes_of_one_large_piece_count_as_they_are_written() {
        let unsent = Arc::<UnsentAnswers>::default();
        let mut slow = piece(&unsent);
        assert!(stalls(&unsent, || ()));
        assert!(!stalls(&unsent, || slow.advance(30 << 10)));
        assert!(stalls(&unsent, || slow.advance((30 << 10) - 1)));
        assert_eq!(slow.remaining(), (4 << 20) - (60 << 10) + 1);
    }

    #[test]
    fn an_ended_answer_is_progress_however_small_and_without_answers_nothing_stalls() {
        let unsent = Arc::<UnsentAnswers>::default();
        let (first, other) = (piece(&unsent), unsent.add());
        assert!(!stalls(&unsent, || drop(first)));
        assert!(stalls(&unsent, || ()));
        drop(other);
        assert!(!stalls(&unsent, || ()));
    }

    #[test]
    fn a_short_limit_requires_at_least_one_byte() {
        assert!(is_stalled(7, 7, Duration::from_micros(1)));
        assert!(!is_stalled(7, 8, Duration::from_micros(1)));
        assert!(!is_stalled(usize::MAX, 0, Duration::from_micros(1)));
    }
}
