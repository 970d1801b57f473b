//! What waits to be written to one peer: answers, and requests the server sends by itself.
//!
//! Everything queued holds a permit until it is written, so the queue never overflows: answers hold the one
//! their request took when it was read, requests of the server take one here or are refused. The permit also counts
//! the memory of what is queued.

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
    connections::{budget::Share, log_limiter::LogLimiter, progress_deadline::ProgressDeadline},
    remoting::{Fields, Frame, RemotingCommand, codec, codes::response},
};

/// Requests of the server that wait in one connection; more are refused.
const PUSHES: usize = 64;
/// Frames up to this size are copied together, so that many small ones leave in one packet.
const COPY_BELOW: usize = 16 << 10;
const WRITE_BATCH: usize = 64;
/// A buffer larger than this is let go after the write that needed it.
const KEPT_BUFFER: usize = 64 << 10;
/// The same where nothing more waits: most connections are idle.
const KEPT_WHILE_IDLE: usize = 4 << 10;

/// What a request under way, or a frame that is not written yet, holds; dropping it gives all of it back.
pub(crate) struct Permit {
    _turns: [Option<OwnedSemaphorePermit>; 2],
    /// The memory of the request, then of its answer.
    memory: Share,
    /// What the answer took before it was made.
    room: Option<Arc<Share>>,
}

impl Permit {
    /// Turns of the connection and the server, and memory.
    pub(crate) fn new(turns: [Option<OwnedSemaphorePermit>; 2], memory: Share) -> Self {
        Self { _turns: turns, memory, room: None }
    }

    /// The same with what the answer took.
    pub(crate) fn with_room(self, room: Arc<Share>) -> Self {
        Self { room: Some(room), ..self }
    }

    /// The memory of the request.
    pub(crate) fn memory(&self) -> &Share {
        &self.memory
    }

    /// Counts a frame; what was taken for it before is enough where it is as much.
    fn count(&self, frame: usize) {
        let taken = self.memory.taken() + self.room.as_ref().map_or(0, |room| room.taken());
        if frame > taken {
            self.memory.count(frame - taken);
        }
    }
}

/// A frame on its way.
struct Outgoing {
    frame: Frame,
    _permit: Permit,
}

/// What both ends know.
struct Queued {
    begun: Instant,
    /// When something was written last, in milliseconds since `begun`.
    last_write: AtomicU64,
    pushes: Arc<Semaphore>,
}

/// The way in; the connection's writing half ends once every clone is gone and the queue is empty.
#[derive(Clone)]
pub(crate) struct Outbox {
    queue: mpsc::Sender<Outgoing>,
    queued: Arc<Queued>,
}

/// A way in that keeps no connection open.
pub(crate) struct WeakOutbox {
    queue: mpsc::WeakSender<Outgoing>,
    queued: Arc<Queued>,
}

/// The way out.
pub(crate) struct Waiting {
    queue: mpsc::Receiver<Outgoing>,
    queued: Arc<Queued>,
}

/// Makes the two ends for a connection with up to `in_flight` answers.
pub(crate) fn outbox(in_flight: u16) -> (Outbox, Waiting) {
    let (sender, receiver) = mpsc::channel(usize::from(in_flight) + PUSHES);
    let pushes = Arc::new(Semaphore::new(PUSHES));
    let queued = Arc::new(Queued { begun: Instant::now(), last_write: AtomicU64::new(0), pushes });
    (Outbox { queue: sender, queued: Arc::clone(&queued) }, Waiting { queue: receiver, queued })
}

impl Outbox {
    /// Queues an answer under the permit of its request.
    pub(crate) fn answer(&self, response: &RemotingCommand, permit: Permit) {
        let frame = codec::encode(response).or_else(|error| {
            static BAD: LogLimiter = LogLimiter::new();
            BAD.log(|left_out| warn!(%error, code = response.code, left_out, "answer not encodable"));
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

    /// Without a writer the frame is dropped.
    fn put(&self, frame: Frame, permit: Permit) {
        permit.count(frame.len());
        let _ = self.queue.try_send(Outgoing { frame, _permit: permit });
    }

    /// When something was written last, or the connection began.
    pub(crate) fn last_write(&self) -> Instant {
        self.queued.begun + Duration::from_millis(self.queued.last_write.load(Ordering::Relaxed))
    }

    /// Resolves once nothing can be written any more.
    pub(crate) async fn closed(&self) {
        self.queue.closed().await;
    }

    pub(crate) fn downgrade(&self) -> WeakOutbox {
        WeakOutbox { queue: self.queue.downgrade(), queued: Arc::clone(&self.queued) }
    }
}

impl WeakOutbox {
    /// Queues a request of the server, which takes its bytes from `memory` until it is written; false where the
    /// connection ends or too much waits in it.
    pub(crate) fn push(&self, frame: Frame, memory: Share) -> bool {
        let Some(queue) = self.queue.upgrade() else { return false };
        let Ok(turn) = Arc::clone(&self.queued.pushes).try_acquire_owned() else { return false };
        if queue.is_closed() || memory.take(frame.len()).is_err() {
            return false;
        }
        let permit = Permit::new([Some(turn), None], memory);
        Outbox { queue, queued: Arc::clone(&self.queued) }.put(frame, permit);
        true
    }
}

impl Waiting {
    /// Writes until every way in is gone and nothing waits.
    ///
    /// # Errors
    /// The socket's, and `TimedOut` where the peer took neither 512 KiB nor all there was within `patience`.
    pub(crate) async fn write(
        mut self,
        mut socket: impl AsyncWrite + Unpin,
        patience: Duration,
    ) -> io::Result<()> {
        let mut batch = Vec::new();
        let mut together = BytesMut::new();
        while self.queue.recv_many(&mut batch, WRITE_BATCH).await > 0 {
            let mut progress = ProgressDeadline::new(patience);
            for Outgoing { frame, .. } in &mut batch {
                together.put_slice(&frame.head);
                if frame.body.len() <= COPY_BELOW {
                    together.put_slice(&frame.body);
                } else {
                    write_all(&mut socket, &mut together, &mut progress).await?;
                    write_all(&mut socket, &mut frame.body, &mut progress).await?;
                }
            }
            write_all(&mut socket, &mut together, &mut progress).await?;
            // TLS keeps what was written until it is flushed.
            timeout(patience, socket.flush())
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
            batch.clear();
            let kept = if self.queue.is_empty() { KEPT_WHILE_IDLE } else { KEPT_BUFFER };
            // What is written no longer counts as capacity, but is still held.
            if together.try_reclaim(kept + 1) {
                together = BytesMut::new();
            }
            let elapsed = u64::try_from(self.queued.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.queued.last_write.store(elapsed, Ordering::Relaxed);
        }
        // Over TLS the end is written, too, to a peer that may not read.
        timeout(patience, socket.shutdown()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Writes everything as long as the peer keeps `progress`, however long the whole takes.
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

    /// Takes everything, but not its end.
    struct Endless;

    impl AsyncWrite for Endless {
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
    async fn a_peer_that_does_not_take_the_end_is_left() {
        let (outbox, waiting) = outbox(1);
        drop(outbox);
        let ended = waiting.write(Endless, Duration::from_millis(10)).await;
        assert_eq!(ended.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }
}
