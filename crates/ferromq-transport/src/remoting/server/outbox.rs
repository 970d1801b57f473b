//! The write queue of one peer: responses and the server's own requests.
//!
//! Each queued frame holds a permit until it is written, so the queue never overflows. A response holds the permit that
//! its request took when it was read; a server request takes one here or is rejected. The permit also counts the memory
//! of the frame.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout, timeout_at},
};
use tracing::warn;

use crate::{
    connections::{
        budget::Share, log_limiter::LogLimiter, progress_deadline::ProgressDeadline, unwritten::Unwritten,
    },
    hot::{
        Counters,
        latencies::{Outcome, Timing},
    },
    remoting::{Fields, Frame, RemotingCommand, codec, codes::response},
};

/// Server requests in the queue of one connection; more are rejected.
const MAX_PUSHES: usize = 64;
/// Bodies up to this size are copied into one buffer, so that many small frames leave in one packet.
const COPY_BELOW: usize = 16 << 10;
const WRITE_BATCH: usize = 64;
/// A larger buffer is freed after the write that needed it.
const KEPT_BUFFER: usize = 64 << 10;
/// The same while the queue is empty: most connections are idle.
const KEPT_WHILE_IDLE: usize = 4 << 10;

/// Permits and memory of a request in flight, then of its queued response. Dropping it releases them.
pub(crate) struct Permit {
    _permits: [Option<OwnedSemaphorePermit>; 2],
    /// Memory of the request, then of its response.
    memory: Share,
    /// Memory reserved for the response before it was made.
    reserved: Option<Arc<Share>>,
    /// What to undo if the response is not written.
    unwritten: Option<Arc<Unwritten>>,
    /// How long the request takes, if that is measured.
    pub(crate) timing: Option<Timing>,
}

impl Permit {
    /// Joins permits of the connection and of the server with memory.
    pub(crate) fn new(permits: [Option<OwnedSemaphorePermit>; 2], memory: Share) -> Self {
        Self { _permits: permits, memory, reserved: None, unwritten: None, timing: None }
    }

    /// Adds the memory reserved for the response.
    pub(crate) fn with_reserved(self, reserved: Arc<Share>) -> Self {
        Self { reserved: Some(reserved), ..self }
    }

    /// Adds what to undo if the response is not written.
    pub(crate) fn with_unwritten(self, unwritten: Option<Arc<Unwritten>>) -> Self {
        Self { unwritten, ..self }
    }

    /// Marks the request as one that waited for messages.
    pub(crate) fn waited(&mut self) {
        if let Some(timing) = &mut self.timing {
            timing.waited = true;
        }
    }

    fn written(&self) {
        if let Some(unwritten) = &self.unwritten {
            unwritten.written();
        }
    }

    /// The memory of the request.
    pub(crate) fn memory(&self) -> &Share {
        &self.memory
    }

    /// Counts the memory of a frame, as far as it exceeds the memory already taken.
    fn count(&self, frame: usize) {
        let taken = self.memory.taken() + self.reserved.as_ref().map_or(0, |reserved| reserved.taken());
        if frame > taken {
            self.memory.count(frame - taken);
        }
    }
}

/// A frame in the queue.
struct QueuedFrame {
    frame: Frame,
    permit: Permit,
}

/// State shared by both ends.
struct OutboxState {
    begun: Instant,
    /// Time of the last write, in milliseconds since `begun`.
    last_write: AtomicU64,
    pushes: Arc<Semaphore>,
    /// Where the times of requests are counted.
    counters: Option<Arc<Counters>>,
}

impl OutboxState {
    fn count(&self, permit: &Permit, outcome: Outcome, end: std::time::Instant) {
        if let (Some(counters), Some(timing)) = (&self.counters, &permit.timing) {
            counters.record_at(timing, outcome, end);
        }
    }
}

/// The sending end. The writer ends once all clones are dropped and the queue is empty.
#[derive(Clone)]
pub(crate) struct Outbox {
    queue: mpsc::Sender<QueuedFrame>,
    state: Arc<OutboxState>,
}

/// A sending end that does not keep the connection open.
pub(crate) struct WeakOutbox {
    queue: mpsc::WeakSender<QueuedFrame>,
    state: Arc<OutboxState>,
}

/// The writing end.
pub(crate) struct OutboxWriter {
    queue: mpsc::Receiver<QueuedFrame>,
    state: Arc<OutboxState>,
}

/// Makes both ends for a connection with up to `in_flight` queued responses. `counters` get the times of requests.
pub(crate) fn outbox(in_flight: u16, counters: Option<Arc<Counters>>) -> (Outbox, OutboxWriter) {
    let (sender, receiver) = mpsc::channel(usize::from(in_flight) + MAX_PUSHES);
    let pushes = Arc::new(Semaphore::new(MAX_PUSHES));
    let state =
        Arc::new(OutboxState { begun: Instant::now(), last_write: AtomicU64::new(0), pushes, counters });
    (Outbox { queue: sender, state: Arc::clone(&state) }, OutboxWriter { queue: receiver, state })
}

impl Outbox {
    /// Queues a response under the permit of its request.
    pub(crate) fn answer(&self, response: &RemotingCommand, mut permit: Permit) {
        if let Some(timing) = &mut permit.timing {
            timing.response = response.code;
        }
        let frame = codec::encode(response).or_else(|error| {
            static BAD: LogLimiter = LogLimiter::new();
            BAD.log(|suppressed| {
                warn!(%error, code = response.code, suppressed, "response not encodable, error sent instead");
            });
            let remark = Some(error.to_string());
            codec::encode(&RemotingCommand {
                code: response::SYSTEM_ERROR,
                remark,
                fields: Fields::default(),
                body: Bytes::new(),
                ..response.clone()
            })
        });
        if let Ok(frame) = frame {
            self.put(frame, permit);
        }
    }

    /// Drops the response to a one-way request.
    pub(crate) fn drop_one_way(&self, response: &RemotingCommand, mut permit: Permit) {
        if let Some(timing) = &mut permit.timing {
            timing.response = response.code;
        }
        self.state.count(&permit, Outcome::OneWay, std::time::Instant::now());
    }

    /// Queues a frame; drops it if the writer has ended.
    fn put(&self, frame: Frame, permit: Permit) {
        permit.count(frame.len());
        let _ = self.queue.try_send(QueuedFrame { frame, permit });
    }

    /// Time of the last write, or of the connection's start.
    pub(crate) fn last_write(&self) -> Instant {
        self.state.begun + Duration::from_millis(self.state.last_write.load(Ordering::Relaxed))
    }

    /// Resolves once the writer has ended.
    pub(crate) async fn closed(&self) {
        self.queue.closed().await;
    }

    pub(crate) fn downgrade(&self) -> WeakOutbox {
        WeakOutbox { queue: self.queue.downgrade(), state: Arc::clone(&self.state) }
    }
}

impl WeakOutbox {
    /// Queues a server request, whose bytes count in `memory` until it is written. Returns false if the connection has
    /// ended, or if its queue or its memory is full.
    pub(crate) fn push(&self, frame: Frame, memory: Share) -> bool {
        let Some(queue) = self.queue.upgrade() else { return false };
        let Ok(push_permit) = Arc::clone(&self.state.pushes).try_acquire_owned() else { return false };
        if queue.is_closed() || memory.take(frame.len()).is_err() {
            return false;
        }
        let permit = Permit::new([Some(push_permit), None], memory);
        Outbox { queue, state: Arc::clone(&self.state) }.put(frame, permit);
        true
    }
}

impl OutboxWriter {
    /// Writes queued frames until all sending ends are dropped and the queue is empty.
    ///
    /// # Errors
    /// Those of the socket, and `TimedOut` if the peer took neither 512 KiB nor the rest within `time_limit`.
    pub(crate) async fn write(
        mut self,
        mut socket: impl AsyncWrite + Unpin,
        time_limit: Duration,
    ) -> io::Result<()> {
        let mut batch = Vec::new();
        let mut buffer = BytesMut::new();
        while self.queue.recv_many(&mut batch, WRITE_BATCH).await > 0 {
            let written = write_batch(&mut socket, &mut batch, &mut buffer, time_limit).await;
            let outcome = if written.is_ok() { Outcome::Success } else { Outcome::WriteFailed };
            // One reading of the clock for all: they were written together.
            let end = std::time::Instant::now();
            batch.iter().for_each(|QueuedFrame { permit, .. }| self.state.count(permit, outcome, end));
            written?;
            batch.drain(..).for_each(|QueuedFrame { permit, .. }| permit.written());
            let kept = if self.queue.is_empty() { KEPT_WHILE_IDLE } else { KEPT_BUFFER };
            // Written bytes no longer count as capacity, but still occupy memory.
            if buffer.try_reclaim(kept + 1) {
                buffer = BytesMut::new();
            }
            let elapsed = u64::try_from(self.state.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.state.last_write.store(elapsed, Ordering::Relaxed);
        }
        // Over TLS the shutdown is written, too, possibly to a peer that does not read.
        timeout(time_limit, socket.shutdown()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Writes frames, small ones together.
async fn write_batch(
    socket: &mut (impl AsyncWrite + Unpin),
    batch: &mut [QueuedFrame],
    buffer: &mut BytesMut,
    time_limit: Duration,
) -> io::Result<()> {
    let mut progress = ProgressDeadline::new(time_limit);
    for QueuedFrame { frame, .. } in batch {
        buffer.put_slice(&frame.head);
        if frame.body.len() <= COPY_BELOW {
            buffer.put_slice(&frame.body);
        } else {
            // Together: a peer that waits is not woken for the head alone.
            let mut parts = (&mut *buffer).chain(&mut frame.body);
            write_all(socket, &mut parts, &mut progress).await?;
        }
    }
    write_all(socket, buffer, &mut progress).await?;
    // TLS buffers written bytes until a flush.
    timeout(time_limit, socket.flush()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Writes all bytes. Fails once the peer misses a deadline of `progress`; the total time is unlimited.
async fn write_all(
    socket: &mut (impl AsyncWrite + Unpin),
    bytes: &mut impl Buf,
    progress: &mut ProgressDeadline,
) -> io::Result<()> {
    while bytes.has_remaining() {
        match timeout_at(progress.deadline(), socket.write_buf(bytes)).await {
            Ok(written) => progress.moved(written?),
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll},
    };

    use super::*;

    /// Accepts all bytes, but never completes a shutdown.
    struct NeverShutDown;

    impl AsyncWrite for NeverShutDown {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_peer_that_does_not_take_the_shutdown_times_out() {
        let (outbox, writer) = outbox(1, None);
        drop(outbox);
        let ended = writer.write(NeverShutDown, Duration::from_millis(10)).await;
        assert_eq!(ended.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }
}
