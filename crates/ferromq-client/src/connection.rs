//! One connection, which many calls share.
//!
//! A caller that waits for its answer reads from the socket itself, and delivers the answers of the others: a single
//! call costs no change of threads. When it has its own answer, another waiting caller goes on reading. Calls with a
//! callback have no waiting thread; the first of them starts a thread that reads, and one that writes.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, TryLockError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ferromq_protocol::remoting::{Fields, HeaderForm, Limits, RemotingCommand, codec};

use crate::{
    CallError, ClientTls, Patience, Release, Request, Response, TICK,
    frames::{FrameReader, Step},
    outgoing::{Frame, Outgoing},
    socket::Socket,
    sync::{self, Turn},
    tls::Ciphertext,
    waiter::{Waiter, Woken},
};

/// An answer has at most this size: a receive's 4 MiB of bodies and what describes them.
const LIMITS: Limits = Limits { frame: 130 << 20, header: 1 << 20 };

/// What ends a call without a waiting thread. It is called once, on a thread of the connection.
pub(crate) type Callback = Box<dyn FnOnce(Result<Response, CallError>) + Send>;

pub(crate) struct Connection {
    address: Arc<str>,
    socket: Socket,
    /// Fields that each request has besides its own.
    fields: Arc<Fields>,
    /// The thread that holds it reads for all.
    reading: Mutex<Reading>,
    /// A frame is written whole before the next.
    writing: Turn,
    calls: Mutex<Calls>,
    outgoing: Outgoing,
    /// How many frames have come; a call during which none came found the server silent.
    received: AtomicU64,
    /// The server was silent for as long as a call lasted. New calls use another connection.
    is_retired: AtomicBool,
}

/// What was read and is not delivered yet.
struct Reading {
    frames: FrameReader,
    ciphertext: Ciphertext,
}

#[derive(Default)]
struct Calls {
    next_opaque: i32,
    pending: HashMap<i32, Pending>,
    /// Why the connection has ended.
    ended: Option<Arc<str>>,
    has_threads: bool,
}

/// What had come when a call began.
#[derive(Clone, Copy)]
struct Seen {
    received: u64,
    at: Instant,
}

/// What one read brought.
#[derive(PartialEq, Eq)]
enum Read {
    /// A part of a frame, or a frame, which was delivered.
    Progress,
    /// Nothing: the limit is over, or a signal came.
    Nothing,
    /// The connection has ended.
    Ended,
}

enum Pending {
    Thread(Arc<Waiter>),
    /// Its thread does something else, and waits later: it cannot read for others.
    Sent(Arc<Waiter>),
    Callback {
        done: Callback,
        until: Instant,
        seen: Seen,
        is_poll: bool,
    },
}

/// A call whose request was sent, or is about to be. If it is dropped before its answer came, the server's poll ends.
pub(crate) struct SentCall {
    connection: Arc<Connection>,
    waiter: Arc<Waiter>,
    opaque: i32,
    seen: Seen,
    is_poll: bool,
    is_answered: bool,
}

impl SentCall {
    /// Waits for the answer.
    pub(crate) fn wait(mut self, patience: Patience<'_>) -> Result<Response, CallError> {
        if let Some(pending) = sync::lock(&self.connection.calls).pending.get_mut(&self.opaque) {
            *pending = Pending::Thread(Arc::clone(&self.waiter));
        }
        self.seen = self.connection.seen();
        let outcome = self.connection.wait(&self.waiter, patience);
        self.is_answered = outcome.is_ok();
        outcome.inspect_err(|error| self.suspect(error))
    }

    /// The connection that it was sent on.
    pub(crate) const fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    fn suspect(&self, error: &CallError) {
        self.connection.suspect(error, self.seen);
    }
}

impl Drop for SentCall {
    fn drop(&mut self) {
        if !self.is_answered {
            sync::lock(&self.connection.calls).pending.remove(&self.opaque);
            if self.is_poll {
                self.connection.release();
            }
        }
        if self.waiter.take_reader() {
            self.connection.pass_on_reading();
        }
    }
}

impl Connection {
    /// Connects to the first of `targets` that takes it.
    ///
    /// # Errors
    /// Those of [`Socket::open`] with the last of them.
    pub(crate) fn open(
        address: &Arc<str>,
        targets: &[SocketAddr],
        tls: Option<&ClientTls>,
        patience: Patience<'_>,
    ) -> io::Result<Self> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for target in targets {
            match Socket::open(address, target, tls, patience) {
                Ok(socket) => return Ok(Self::new(Arc::clone(address), socket)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn new(address: Arc<str>, socket: Socket) -> Self {
        let reading = Reading { frames: FrameReader::new(LIMITS), ciphertext: Ciphertext::default() };
        Self {
            address,
            socket,
            fields: Arc::default(),
            reading: Mutex::new(reading),
            writing: Turn::default(),
            calls: Mutex::default(),
            outgoing: Outgoing::default(),
            received: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
        }
    }

    pub(crate) fn with_fields(self, fields: Arc<Fields>) -> Self {
        Self { fields, ..self }
    }

    /// Whether a new call may use it. Looks for a server that has closed it while no thread waited for an answer, and reads
    /// what has come for calls whose threads wait later.
    pub(crate) fn is_usable(&self) -> bool {
        if self.is_retired.load(Ordering::Relaxed) {
            return false;
        }
        let (is_ended, is_idle) = {
            let calls = sync::lock(&self.calls);
            let is_unread = calls.pending.values().all(|pending| matches!(pending, Pending::Sent(_)));
            (calls.ended.is_some(), is_unread && !calls.has_threads)
        };
        if is_ended || !is_idle {
            return !is_ended;
        }
        // A thread that reads meanwhile sees the end itself.
        let Ok(mut reading) = self.reading.try_lock() else { return true };
        let mut is_open = true;
        while is_open && self.has_pending() && self.socket.has_come().is_ok_and(|has_come| has_come) {
            is_open = self.read(&mut reading, TICK) != Read::Ended;
        }
        is_open = is_open && self.socket.is_open(&mut reading.ciphertext);
        drop(reading);
        self.pass_on_reading();
        is_open
    }

    fn has_pending(&self) -> bool {
        !sync::lock(&self.calls).pending.is_empty()
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn call(
        self: &Arc<Self>,
        request: Request,
        patience: Patience<'_>,
    ) -> Result<Response, CallError> {
        self.send(request, patience)?.wait(patience)
    }

    /// Sends a request, and leaves the wait for the answer to the caller.
    pub(crate) fn send(
        self: &Arc<Self>,
        request: Request,
        patience: Patience<'_>,
    ) -> Result<SentCall, CallError> {
        let (call, frame) = self.begin(request)?;
        self.send_now(&[frame], patience).inspect_err(|error| call.suspect(error))?;
        Ok(call)
    }

    /// As [`Self::send`], for two requests with one write.
    pub(crate) fn send_both(
        self: &Arc<Self>,
        requests: (Request, Request),
        patience: Patience<'_>,
    ) -> Result<(SentCall, SentCall), CallError> {
        let (first, first_frame) = self.begin(requests.0)?;
        let (second, second_frame) = self.begin(requests.1)?;
        self.send_now(&[first_frame, second_frame], patience).inspect_err(|error| first.suspect(error))?;
        Ok((first, second))
    }

    fn begin(self: &Arc<Self>, request: Request) -> Result<(SentCall, Frame), CallError> {
        let waiter = Arc::new(Waiter::default());
        let (seen, is_poll) = (self.seen(), request.is_poll);
        let (opaque, frame) = self.register(request, Pending::Sent(Arc::clone(&waiter)))?;
        let connection = Arc::clone(self);
        Ok((SentCall { connection, waiter, opaque, seen, is_poll, is_answered: false }, frame))
    }

    /// Sends a request; `done` is called with its outcome, on a thread of the connection, or here if it fails at once.
    pub(crate) fn start(self: &Arc<Self>, request: Request, until: Instant, done: Callback) {
        self.start_threads();
        let (seen, is_poll) = (self.seen(), request.is_poll);
        let Ok((opaque, frame)) = self.register(request, Pending::Callback { done, until, seen, is_poll })
        else {
            return;
        };
        if self.outgoing.put(frame) {
            return;
        }
        // If the connection has ended meanwhile, its end calls `done`.
        let pending = sync::lock(&self.calls).pending.remove(&opaque);
        if let Some(Pending::Callback { done, .. }) = pending {
            let reason = "too much waits to be sent".into();
            done(Err(CallError::NotSent { address: Arc::clone(&self.address), reason }));
        }
    }

    /// Gives a call its number. If the connection has ended, or the frame is too large, the call ends here.
    fn register(&self, mut request: Request, pending: Pending) -> Result<(i32, Frame), CallError> {
        self.fields.iter().for_each(|(name, value)| request.fields.push(name, value));
        let mut calls = sync::lock(&self.calls);
        let opaque = calls.next_opaque;
        let command = RemotingCommand {
            opaque,
            header_form: HeaderForm::Binary,
            ..RemotingCommand::request(request.code, request.fields, Bytes::new())
        };
        let body_length = request.parts.iter().map(Bytes::len).sum();
        let refused =
            |reason: &str| CallError::NotSent { address: Arc::clone(&self.address), reason: reason.into() };
        let outcome = match &calls.ended {
            Some(reason) => Err(refused(reason)),
            None => codec::encode_head(&command, body_length).map_err(|error| refused(&error.to_string())),
        };
        match outcome {
            Ok(head) => {
                calls.next_opaque = calls.next_opaque.wrapping_add(1) & i32::MAX;
                calls.pending.insert(opaque, pending);
                Ok((opaque, Frame { head, parts: request.parts }))
            }
            Err(error) => {
                drop(calls);
                if let Pending::Callback { done, .. } = pending {
                    done(Err(error.clone()));
                }
                Err(error)
            }
        }
    }

    /// Writes a frame in the calling thread.
    fn send_now(&self, frames: &[Frame], patience: Patience<'_>) -> Result<(), CallError> {
        let late = || CallError::Timeout { address: Arc::clone(&self.address) };
        let Some(_turn) = self.writing.take(patience.until) else { return Err(late()) };
        if self.is_retired.load(Ordering::Relaxed) {
            let reason = "the connection is being closed".into();
            return Err(CallError::NotSent { address: Arc::clone(&self.address), reason });
        }
        let pause = || match () {
            () if (patience.is_interrupted)() => Err(io::ErrorKind::Interrupted.into()),
            () if Instant::now() >= patience.until => Err(io::ErrorKind::TimedOut.into()),
            () => Ok(()),
        };
        match self.socket.write(frames, pause) {
            Ok(()) => Ok(()),
            Err(error) => {
                // A part of the frame may be out: what follows could not be read.
                let reason = self.end(&format!("writing failed: {error}"));
                match error.kind() {
                    io::ErrorKind::TimedOut => Err(late()),
                    io::ErrorKind::Interrupted => Err(self.interrupted()),
                    _ => Err(CallError::Lost { address: Arc::clone(&self.address), reason }),
                }
            }
        }
    }

    /// Waits for the answer of a call, and reads for all calls unless another thread does.
    fn wait(&self, waiter: &Waiter, patience: Patience<'_>) -> Result<Response, CallError> {
        loop {
            if let Some(outcome) = waiter.outcome() {
                return outcome;
            }
            let now = Instant::now();
            if now >= patience.until {
                return Err(CallError::Timeout { address: Arc::clone(&self.address) });
            }
            // Before the lock: the thread that has it passes the reading on when it leaves.
            _ = waiter.take_reader();
            let is_pause = match self.reading.try_lock() {
                Ok(mut reader) => {
                    let read = self.read_for(waiter, &mut reader, patience.until);
                    drop(reader);
                    self.pass_on_reading();
                    read == Read::Nothing
                }
                Err(TryLockError::Poisoned(_)) => {
                    _ = self.end("a reader of the connection failed");
                    false
                }
                Err(TryLockError::WouldBlock) => match waiter.wait(patience.until.min(now + TICK)) {
                    Woken::Done(outcome) => return outcome,
                    Woken::Reader => false,
                    Woken::Late => true,
                },
            };
            if is_pause && (patience.is_interrupted)() {
                return Err(self.interrupted());
            }
        }
    }

    /// Reads until the call has ended or is late, or for a while.
    fn read_for(&self, waiter: &Waiter, reader: &mut Reading, until: Instant) -> Read {
        let tick = Instant::now() + TICK;
        // The answer may have come before this thread could read.
        while !waiter.has_ended() {
            let now = Instant::now();
            if now >= until.min(tick) {
                return Read::Nothing;
            }
            match self.read(reader, (until - now).min(TICK)) {
                Read::Progress => {}
                read => return read,
            }
        }
        Read::Progress
    }

    /// Reads once, and delivers the frame.
    fn read(&self, reader: &mut Reading, limit: Duration) -> Read {
        let Reading { frames, ciphertext } = reader;
        match frames.step(&mut self.socket.reader(ciphertext), limit) {
            Ok(Step::Nothing) => Read::Nothing,
            Ok(Step::Part) => Read::Progress,
            Ok(Step::Frame(command)) => {
                self.received.fetch_add(1, Ordering::Relaxed);
                self.deliver(command);
                Read::Progress
            }
            Err(error) => {
                let is_closed = error.kind() == io::ErrorKind::UnexpectedEof;
                self.end(&if is_closed {
                    "the server closed the connection".to_owned()
                } else {
                    error.to_string()
                });
                Read::Ended
            }
        }
    }

    fn deliver(&self, command: RemotingCommand) {
        if !command.is_response() {
            // The server's own requests concern clients that registered for them; none of these did.
            return;
        }
        let pending = sync::lock(&self.calls).pending.remove(&command.opaque);
        let RemotingCommand { code, remark, fields, body, .. } = command;
        let answer = Ok(Response { code, remark, fields, body });
        match pending {
            Some(Pending::Thread(waiter) | Pending::Sent(waiter)) => waiter.end(answer),
            Some(Pending::Callback { done, .. }) => done(answer),
            // The caller has given up.
            None => {}
        }
    }

    /// Makes another waiting thread read, if there is one.
    fn pass_on_reading(&self) {
        let calls = sync::lock(&self.calls);
        if calls.has_threads {
            return;
        }
        let waiting = calls.pending.values().find_map(|pending| match pending {
            Pending::Thread(waiter) => Some(waiter),
            Pending::Sent(_) | Pending::Callback { .. } => None,
        });
        if let Some(waiter) = waiting {
            waiter.make_reader();
        }
    }

    fn seen(&self) -> Seen {
        Seen { received: self.received.load(Ordering::Relaxed), at: Instant::now() }
    }

    /// Notes a call that failed although the server had time: a connection on which nothing came is not used again.
    fn suspect(&self, error: &CallError, seen: Seen) {
        let is_silent =
            self.received.load(Ordering::Relaxed) == seen.received && seen.at.elapsed() >= SILENCE;
        if is_silent && matches!(error, CallError::Timeout { .. }) {
            self.is_retired.store(true, Ordering::Relaxed);
        }
    }

    fn end_writing(&self) {
        // After a frame that another thread is writing.
        let turn = self.writing.take(Instant::now() + RELEASE_LIMIT);
        self.socket.end_writing(turn.is_some());
    }

    fn interrupted(&self) -> CallError {
        CallError::Interrupted { address: Arc::clone(&self.address) }
    }

    fn start_threads(self: &Arc<Self>) {
        {
            let mut calls = sync::lock(&self.calls);
            if calls.has_threads || calls.ended.is_some() {
                return;
            }
            calls.has_threads = true;
        }
        let (reader, writer) = (Arc::clone(self), Arc::clone(self));
        let started =
            thread::Builder::new().name("ferromq-read".to_owned()).spawn(move || reader.read_all()).and_then(
                |_| thread::Builder::new().name("ferromq-write".to_owned()).spawn(move || writer.write_all()),
            );
        if let Err(error) = started {
            self.end(&format!("no thread could be started: {error}"));
        }
    }

    /// Reads for all calls until the connection ends.
    fn read_all(&self) {
        let _end = EndOnDrop(self);
        let Ok(mut reader) = self.reading.lock() else {
            _ = self.end("a reader of the connection failed");
            return;
        };
        let mut look = Instant::now() + TICK;
        while self.read(&mut reader, TICK) != Read::Ended {
            if Instant::now() >= look {
                self.expire();
                look = Instant::now() + TICK;
            }
        }
    }

    fn write_all(&self) {
        let end = EndOnDrop(self);
        loop {
            let frames = self.outgoing.take();
            if frames.is_empty() {
                // Released: answers still come.
                self.end_writing();
                return std::mem::forget(end);
            }
            // Calls that waited too long are ended by the reader; the connection by the system's limits.
            let Some(_turn) = self.writing.take(Instant::now() + WRITE_LIMIT) else {
                _ = self.end("the server does not read");
                return;
            };
            let until = Instant::now() + WRITE_LIMIT;
            let pause = || if Instant::now() < until { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) };
            if let Err(error) = self.socket.write(&frames, pause) {
                _ = self.end(&format!("writing failed: {error}"));
                return;
            }
        }
    }

    /// Ends calls without a thread whose time is over.
    fn expire(&self) {
        let now = Instant::now();
        let late: Vec<_> = {
            let mut calls = sync::lock(&self.calls);
            calls
                .pending
                .extract_if(|_, pending| matches!(pending, Pending::Callback { until, .. } if *until <= now))
                .collect()
        };
        for (_, pending) in late {
            if let Pending::Callback { done, seen, is_poll, .. } = pending {
                let error = CallError::Timeout { address: Arc::clone(&self.address) };
                self.suspect(&error, seen);
                if is_poll {
                    self.release();
                }
                done(Err(error));
            }
        }
    }

    /// Ends the connection and all its calls. Returns the reason, which is that of the first call of this method.
    pub(crate) fn end(&self, reason: &str) -> Arc<str> {
        let (reason, pending) = {
            let mut calls = sync::lock(&self.calls);
            let reason = Arc::clone(calls.ended.get_or_insert_with(|| reason.into()));
            (reason, std::mem::take(&mut calls.pending))
        };
        self.outgoing.close();
        self.socket.close();
        for pending in pending.into_values() {
            let lost = CallError::Lost { address: Arc::clone(&self.address), reason: Arc::clone(&reason) };
            match pending {
                Pending::Thread(waiter) | Pending::Sent(waiter) => waiter.end(Err(lost)),
                Pending::Callback { done, .. } => done(Err(lost)),
            }
        }
        reason
    }
}

impl Release for Connection {
    /// Sends nothing more. The server answers the polls under way at once, and the other calls as before; then it closes
    /// the connection.
    fn release(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
        self.outgoing.finish();
        if !sync::lock(&self.calls).has_threads {
            self.end_writing();
        }
    }
}

/// A server that says nothing for this long while a call waits may be gone.
const SILENCE: Duration = Duration::from_secs(1);
/// A frame under way is written in this time before the connection is released.
const RELEASE_LIMIT: Duration = Duration::from_millis(200);
/// A server takes something of what is written to it in this time.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// Ends the connection with the thread that serves it, also if a callback panics.
struct EndOnDrop<'a>(&'a Connection);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        _ = self.0.end("a thread of the connection has ended");
    }
}
