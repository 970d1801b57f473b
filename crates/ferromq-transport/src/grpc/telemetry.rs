//! Telemetry: a stream of commands in both directions, passed as bytes between a client and the control plane.

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
    call::{CLIENT_ID, MAX_REQUEST},
    connection::Link,
    convert::put_status,
    counted_body::{AnswerStream, PREFIX, StreamAnswer},
    verbs::{limited, proto::ProtoDuration},
};
use crate::{
    ColdHandler,
    access::{Access, UserName, known_method},
    connections::budget::{Share, kept},
    hot::Counters,
    protobuf::{self, Malformed},
    remoting::Fields,
};

/// Most commands that a client may leave unread; then it counts as gone.
const MAX_UNREAD: usize = 64;

/// Stream numbers are unique in the process, like connection numbers.
static NEXT_STREAM: AtomicU64 = AtomicU64::new(1);

/// The sending half of a stream. Dropping it ends the stream.
struct TelemetrySender {
    answers: mpsc::Sender<StreamAnswer>,
    share: Arc<Share>,
    _keep: oneshot::Sender<()>,
}

/// The open telemetry streams of a server, by number.
pub(super) struct TelemetryStreams {
    open: Mutex<HashMap<u64, TelemetrySender>>,
    /// The `request_timeout` of each client's settings, with the stream that sent it.
    request_timeouts: RwLock<HashMap<Box<str>, (u64, Duration)>>,
    cold: Arc<dyn ColdHandler>,
    counters: Arc<Counters>,
    access: Arc<Access>,
}

impl TelemetryStreams {
    pub(super) fn new(cold: Arc<dyn ColdHandler>, counters: Arc<Counters>, access: Arc<Access>) -> Arc<Self> {
        Arc::new(Self { open: Mutex::default(), request_timeouts: RwLock::default(), cold, counters, access })
    }

    /// Returns how long a client waits for an answer by its settings, while its stream is open.
    pub(super) fn request_timeout(&self, client: &str) -> Option<Duration> {
        self.request_timeouts.read().get(client).map(|(_, timeout)| *timeout)
    }

    /// Returns the user of a command, or the command that tells the client why its own is refused.
    fn check(&self, fields: &Fields, link: &Link, command: &[u8]) -> Result<UserName, Bytes> {
        let method = known_method("Telemetry");
        let admission = self.access.admit(method, |name| fields.get(name), link.peer());
        limited::admit(admission, link.users(), method, command).map_err(|refusal| {
            let mut status = Vec::new();
            put_status(&mut status, 1, refusal.code, &refusal.message);
            status.into()
        })
    }

    /// Stores the request timeout of a client's settings, which its receives use.
    fn note_request_timeout(&self, stream: u64, fields: &Fields, command: &[u8]) {
        let client = fields.get(CLIENT_ID).unwrap_or("").trim_ascii();
        // The control plane rejects malformed commands.
        if let (false, Ok(Some(timeout))) = (client.is_empty(), request_timeout(command)) {
            self.request_timeouts.write().insert(client.into(), (stream, timeout));
        }
    }

    fn forget_request_timeout(&self, stream: u64, fields: &Fields) {
        let client = fields.get(CLIENT_ID).unwrap_or("").trim_ascii();
        let mut timeouts = self.request_timeouts.write();
        // The client may have opened another stream before this one ended.
        if timeouts.get(client).is_some_and(|(of, _)| *of == stream) {
            timeouts.remove(client);
        }
    }

    /// Sends a command to a client. Returns false if the stream is gone or the client reads too slowly.
    pub(super) fn send(&self, stream: u64, command: Bytes) -> bool {
        self.open.lock().get(&stream).is_some_and(|to| {
            let unread = to.share.split(0);
            unread.take(command.len()).is_ok() && to.answers.try_send((Ok(command), Some(unread))).is_ok()
        })
    }

    /// Ends a stream with an error. Returns false if it is gone or its buffer is full.
    pub(super) fn end(&self, stream: u64, status: Status) -> bool {
        // A client that does not read gets the end of the stream without the status.
        self.open.lock().remove(&stream).is_some_and(|to| to.answers.try_send((Err(status), None)).is_ok())
    }

    /// Ends all streams. Queued commands are still sent.
    pub(super) fn close(&self) {
        self.open.lock().clear();
    }

    /// Registers a stream and passes the client's commands on until one side ends it. `share` counts commands that have
    /// arrived but are not passed on yet.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the connection has too many open streams.
    pub(super) fn open(
        self: &Arc<Self>,
        link: Link,
        share: Arc<Share>,
        fields: Fields,
        mut commands: Streaming<Bytes>,
    ) -> Result<AnswerStream, Status> {
        let open = link.allowance().stream()?;
        let stream = NEXT_STREAM.fetch_add(1, Ordering::Relaxed);
        let (sender, answers) = mpsc::channel(MAX_UNREAD);
        let (keep, mut removed) = oneshot::channel();
        self.open.lock().insert(
            stream,
            TelemetrySender { answers: sender.clone(), share: Arc::clone(&share), _keep: keep },
        );
        self.counters.telemetry_streams.add(1);
        let streams = Arc::clone(self);
        tokio::spawn(async move {
            let _ended = StreamEnd { streams: &streams, stream, link: &link, fields: &fields };
            loop {
                let command = tokio::select! {
                    command = commands.message() => command,
                    () = sender.closed() => return,
                    _ = &mut removed => return,
                };
                let (command, user) = match command {
                    Ok(Some(command)) => {
                        share.give_back(PREFIX);
                        let user = match streams.check(&fields, &link, &command) {
                            Ok(user) => user,
                            // As RocketMQ's proxy does: the command is dropped, and the stream stays.
                            Err(refusal) => {
                                share.give_back(command.len());
                                if !streams.send(stream, refusal) {
                                    return;
                                }
                                continue;
                            }
                        };
                        streams.note_request_timeout(stream, &fields, &command);
                        // The command counts until the control plane is done with it.
                        let waiting = share.split(command.len());
                        (kept(command, waiting), user)
                    }
                    Err(error) if error.code() == Code::OutOfRange => {
                        let large = Status::resource_exhausted(format!(
                            "a telemetry command is over the limit of {MAX_REQUEST} bytes"
                        ));
                        let _ = sender.try_send((Err(large), None));
                        return;
                    }
                    Err(error) if error.code() == Code::ResourceExhausted => {
                        let _ = sender.try_send((Err(error), None));
                        return;
                    }
                    Ok(None) | Err(_) => return,
                };
                if !streams.cold.telemetry(stream, link.sender(user), &fields, Some(command)) {
                    let full = Status::resource_exhausted(
                        "too many telemetry commands are pending; send fewer at a time",
                    );
                    // A client that does not read gets the end of the stream without the status.
                    let _ = sender.try_send((Err(full), None));
                    return;
                }
            }
        });
        Ok(AnswerStream::new(answers, open))
    }
}

/// Reports the end of a stream exactly once, however its task ends.
struct StreamEnd<'a> {
    streams: &'a TelemetryStreams,
    stream: u64,
    link: &'a Link,
    fields: &'a Fields,
}

impl Drop for StreamEnd<'_> {
    fn drop(&mut self) {
        self.streams.open.lock().remove(&self.stream);
        self.streams.forget_request_timeout(self.stream, self.fields);
        self.streams.counters.telemetry_streams.sub(1);
        self.streams.cold.telemetry(self.stream, self.link.sender(None), self.fields, None);
    }
}

/// Returns the `request_timeout` of the settings in a `TelemetryCommand`, if it has one.
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
