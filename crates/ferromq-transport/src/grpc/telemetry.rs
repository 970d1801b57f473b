//! Telemetry: a stream of commands each way, passed as bytes between a client and the control plane.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status, Streaming};

use super::{
    call::CLIENT_ID,
    connection::Link,
    counted_body::{Answer, PREFIX, Unread},
    verbs::proto::ProtoDuration,
};
use crate::{
    ColdHandler,
    connections::budget::{Share, kept},
    hot::Counters,
    protobuf::{self, Malformed},
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
    /// The `request_timeout` of each client's settings, with the stream on which it came.
    request_timeouts: RwLock<HashMap<Box<str>, (u64, Duration)>>,
    cold: Arc<dyn ColdHandler>,
    counters: Arc<Counters>,
}

impl TelemetryStreams {
    pub(super) fn new(cold: Arc<dyn ColdHandler>, counters: Arc<Counters>) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), request_timeouts: RwLock::default(), cold, counters })
    }

    /// How long a client says that it waits for an answer, as long as its stream is open.
    pub(super) fn request_timeout(&self, client: &str) -> Option<Duration> {
        self.request_timeouts.read().get(client).map(|(_, timeout)| *timeout)
    }

    /// Keeps what a client's settings say for its receives.
    fn note(&self, stream: u64, fields: &Fields, command: &[u8]) {
        let client = fields.get(CLIENT_ID).unwrap_or("").trim_ascii();
        // What cannot be read, the control plane refuses.
        if let (false, Ok(Some(timeout))) = (client.is_empty(), request_timeout(command)) {
            self.request_timeouts.write().insert(client.into(), (stream, timeout));
        }
    }

    fn forget(&self, stream: u64, fields: &Fields) {
        let client = fields.get(CLIENT_ID).unwrap_or("").trim_ascii();
        let mut timeouts = self.request_timeouts.write();
        // The client may have come back on another stream before this one ended.
        if timeouts.get(client).is_some_and(|(of, _)| *of == stream) {
            timeouts.remove(client);
        }
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
        // The end of the stream alone cuts off a client that does not read.
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
                        streams.note(stream, &fields, &command);
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
        self.streams.forget(self.stream, self.fields);
        self.streams.counters.telemetry_streams.sub(1);
        self.streams.cold.telemetry(self.stream, self.link.id(), self.link.peer(), self.fields, None);
    }
}

/// The `request_timeout` of the settings in a `TelemetryCommand`, where there is one.
fn request_timeout(command: &[u8]) -> Result<Option<Duration>, Malformed> {
    let mut timeout = None;
    for field in protobuf::Fields::new(command) {
        let (2, settings) = field? else { continue };
        for field in protobuf::Fields::new(settings.bytes()?) {
            let (4, duration) = field? else { continue };
            let duration = ProtoDuration::decode(duration.bytes()?);
            timeout = duration.ok().and_then(ProtoDuration::get).filter(|timeout| !timeout.is_zero());
        }
    }
    Ok(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_timeout_is_read_from_settings_alone() {
        let settings = b"\x08\x03\x22\x05\x08\x02\x10\xf4\x03";
        let command = [&[0x12, 9], settings.as_slice()].concat();
        assert_eq!(request_timeout(&command), Ok(Some(Duration::new(2, 500))));
        let answer = [&[0x1a, 9], settings.as_slice()].concat();
        assert_eq!(request_timeout(&answer), Ok(None));
        assert_eq!(request_timeout(&[0x12, 2, 0x22, 0]), Ok(None), "no time at all");
        assert!(request_timeout(&[0x12, 9]).is_err());
    }
}
