//! Telemetry: a stream of commands each way, passed as bytes between a client and the control plane.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status, Streaming};

use super::{
    connection::Link,
    metered::{Answer, PREFIX, Unread},
};
use crate::{
    ColdHandler,
    budget::{Share, kept},
    hot::Counters,
    remoting::Fields,
};

/// Commands a client may leave unread before it counts as gone.
const MAX_UNREAD: usize = 64;

/// Stream numbers are unique in the process, as connection numbers are.
static NEXT_STREAM: AtomicU64 = AtomicU64::new(1);

/// The way to a client. Dropping it ends the stream.
struct Registered {
    answers: mpsc::Sender<Answer>,
    share: Arc<Share>,
    _keep: oneshot::Sender<()>,
}

/// The open telemetry streams of a server, by number.
pub(super) struct TelemetryStreams {
    open: Mutex<HashMap<u64, Registered>>,
    cold: Arc<dyn ColdHandler>,
    counters: Arc<Counters>,
}

impl TelemetryStreams {
    pub(super) fn new(cold: Arc<dyn ColdHandler>, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), cold, counters })
    }

    /// Sends a command to a client; false where the stream is gone or the client reads too slowly.
    pub(super) fn send(&self, stream: u64, command: Bytes) -> bool {
        self.open.lock().get(&stream).is_some_and(|to| {
            let unread = to.share.split(0);
            unread.take(command.len()).is_ok() && to.answers.try_send((Ok(command), Some(unread))).is_ok()
        })
    }

    /// Ends a stream with an error; false where it is gone.
    pub(super) fn end(&self, stream: u64, status: Status) -> bool {
        // Whoever does not read is cut off by the end of the stream alone.
        self.open.lock().remove(&stream).is_some_and(|to| to.answers.try_send((Err(status), None)).is_ok())
    }

    /// Ends all streams; commands already queued still go out.
    pub(super) fn close(&self) {
        self.open.lock().clear();
    }

    /// Registers a stream and hands on what the client sends until one side ends it. `share` counts what came and
    /// is not handed on yet.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` where the connection has too many streams open.
    pub(super) fn open(
        self: &Arc<Self>,
        link: Link,
        share: Arc<Share>,
        fields: Fields,
        mut commands: Streaming<Bytes>,
    ) -> Result<Unread, Status> {
        let open = link.allowance().stream()?;
        let stream = NEXT_STREAM.fetch_add(1, Ordering::Relaxed);
        let (sender, answers) = mpsc::channel(MAX_UNREAD);
        let (keep, mut removed) = oneshot::channel();
        self.open
            .lock()
            .insert(stream, Registered { answers: sender.clone(), share: Arc::clone(&share), _keep: keep });
        self.counters.telemetry_streams.add(1);
        let streams = Arc::clone(self);
        tokio::spawn(async move {
            let _ended = Ended { streams: &streams, stream, link: &link, fields: &fields };
            loop {
                let command = tokio::select! {
                    command = commands.message() => command,
                    () = sender.closed() => return,
                    _ = &mut removed => return,
                };
                let command = match command {
                    Ok(Some(command)) => {
                        share.give_back(PREFIX);
                        // It is counted until the control plane is done with it.
                        let waiting = share.split(command.len());
                        kept(command, waiting)
                    }
                    Err(error) if error.code() == Code::OutOfRange => {
                        let large = Status::resource_exhausted("a telemetry command is over the limit");
                        let _ = sender.try_send((Err(large), None));
                        return;
                    }
                    Err(error) if error.code() == Code::ResourceExhausted => {
                        let _ = sender.try_send((Err(error), None));
                        return;
                    }
                    Ok(None) | Err(_) => return,
                };
                if !streams.cold.telemetry(stream, link.id(), link.peer(), &fields, Some(command)) {
                    let full = Status::resource_exhausted("too many telemetry commands wait for an answer");
                    // A client that does not read either is cut off by the end of the stream alone.
                    let _ = sender.try_send((Err(full), None));
                    return;
                }
            }
        });
        Ok(Unread::new(answers, open))
    }
}

/// Tells the end of a stream once, however its task ends.
struct Ended<'a> {
    streams: &'a TelemetryStreams,
    stream: u64,
    link: &'a Link,
    fields: &'a Fields,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.streams.open.lock().remove(&self.stream);
        self.streams.counters.telemetry_streams.sub(1);
        self.streams.cold.telemetry(self.stream, self.link.id(), self.link.peer(), self.fields, None);
    }
}
