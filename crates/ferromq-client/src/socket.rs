//! The socket of a connection, in plaintext or under TLS. One thread reads at a time, and one writes.

use std::{
    io::{self, IoSlice, Read as _},
    mem::MaybeUninit,
    net::{Shutdown, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use bytes::Bytes;
use socket2::{SockRef, TcpKeepalive};

use crate::{
    ClientTls, Patience, TICK,
    frames::TimedRead,
    outgoing::Frame,
    sync::is_pause,
    tls::{Ciphertext, Session},
};

/// A peer that is gone without a word is found out by the system: after 10 s of silence it asks, three times.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(10))
    .with_interval(Duration::from_secs(5))
    .with_retries(3);
/// Looks at the next byte without taking it, and without waiting: `MSG_PEEK | MSG_DONTWAIT`.
const PEEK_NOW: i32 = 0x02 | NOW;
/// Does not wait: `MSG_DONTWAIT`.
const NOW: i32 = 0x40;
/// A connection that the server has closed is an error, whatever the program does about SIGPIPE: `MSG_NOSIGNAL`.
const NO_SIGNAL: i32 = 0x4000;

pub(crate) struct Socket {
    stream: TcpStream,
    session: Option<Session>,
}

impl Socket {
    /// Connects to `target`, and does the handshake with the server that `address` names.
    ///
    /// # Errors
    /// Those of the socket; `TimedOut`, and `Interrupted` during a handshake; `InvalidData` if the server is not trusted.
    pub(crate) fn open(
        address: &str,
        target: &SocketAddr,
        tls: Option<&ClientTls>,
        patience: Patience<'_>,
    ) -> io::Result<Self> {
        let left = patience.until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let stream = TcpStream::connect_timeout(target, left)?;
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE)?;
        let session = tls.map(|tls| tls.open(address, &stream, patience)).transpose()?;
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(TICK))?;
        Ok(Self { stream, session })
    }

    /// Whether a connection without calls is still open, as far as it shows without waiting.
    pub(crate) fn is_open(&self, ciphertext: &mut Ciphertext) -> bool {
        let Ok(has_come) = self.has_come() else { return false };
        match &self.session {
            None => true,
            Some(session) => session.is_open(ciphertext, has_come.then_some(&self.stream)),
        }
    }

    /// Whether bytes wait to be read.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn has_come(&self) -> io::Result<bool> {
        let mut byte = [MaybeUninit::uninit()];
        match SockRef::from(&self.stream).recv_with_flags(&mut byte, PEEK_NOW) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes frames with few system calls. `pause` is called when the socket takes only a part, or nothing for a while, and
    /// when a signal came; its error ends the write.
    pub(crate) fn write(
        &self,
        frames: &[Frame],
        mut pause: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let parts = frames.iter().flat_map(|frame| std::iter::once(&frame.head).chain(&frame.parts));
        let mut slices: Vec<_> = parts.filter(|part| !part.is_empty()).map(slice).collect();
        let Some(session) = &self.session else { return self.send(&mut slices, &mut pause) };
        let (mut rest, mut records) = (slices.as_mut_slice(), Vec::new());
        while !rest.is_empty() {
            records.clear();
            let taken = session.encrypt(rest, &mut records)?;
            IoSlice::advance_slices(&mut rest, taken);
            self.send(&mut [IoSlice::new(&records)], &mut pause)?;
        }
        Ok(())
    }

    fn send(
        &self,
        mut rest: &mut [IoSlice<'_>],
        pause: &mut impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        while !rest.is_empty() {
            match SockRef::from(&self.stream).send_vectored_with_flags(rest, NO_SIGNAL) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    IoSlice::advance_slices(&mut rest, written);
                    if !rest.is_empty() {
                        pause()?;
                    }
                }
                Err(error) if is_pause(&error) => pause()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends nothing more, and reads on. `is_whole`: no frame is cut.
    pub(crate) fn end_writing(&self, is_whole: bool) {
        if let Some(session) = self.session.as_ref().filter(|_| is_whole) {
            let mut record = Vec::new();
            // The end of the connection says the same to a server that reads nothing now.
            let _ = session
                .end(&mut record)
                .and_then(|()| SockRef::from(&self.stream).send_with_flags(&record, NO_SIGNAL | NOW));
        }
        // It fails if the connection has ended.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Ends the connection, and the reads and writes under way.
    pub(crate) fn close(&self) {
        // It fails if the server was faster.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// The reading end. `ciphertext` is what the last one left.
    pub(crate) fn reader<'a>(&'a self, ciphertext: &'a mut Ciphertext) -> Reader<'a> {
        Reader { socket: self, ciphertext }
    }

    /// Reads what is there; the limit is [`TICK`] most often.
    fn receive(&self, out: &mut [u8], limit: Duration) -> io::Result<usize> {
        let mut stream = &self.stream;
        if limit >= TICK {
            return stream.read(out);
        }
        stream.set_read_timeout(Some(limit.max(Duration::from_millis(1))))?;
        let read = stream.read(out);
        stream.set_read_timeout(Some(TICK))?;
        read
    }
}

fn slice(part: &Bytes) -> IoSlice<'_> {
    IoSlice::new(part)
}

pub(crate) struct Reader<'a> {
    socket: &'a Socket,
    ciphertext: &'a mut Ciphertext,
}

impl TimedRead for Reader<'_> {
    fn read_within(&mut self, out: &mut [u8], limit: Duration) -> io::Result<usize> {
        let Some(session) = &self.socket.session else { return self.socket.receive(out, limit) };
        let until = Instant::now() + limit;
        let mut left = limit;
        loop {
            match session.decrypt(self.ciphertext, out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !left.is_zero() => {}
                read => return read,
            }
            self.ciphertext.fill(|room| self.socket.receive(room, left))?;
            left = until.saturating_duration_since(Instant::now());
        }
    }
}
