//! The read buffer of a connection: collects the bytes of frames, within limits of memory and time.

use std::{future::poll_fn, io, pin::pin, time::Duration};

use bytes::{BufMut, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::{Instant, timeout},
};

use ferromq_protocol::ProtocolError;

use crate::{
    TransportError,
    connections::{
        budget::Share,
        progress_deadline::{ProgressDeadline, after},
    },
    remoting::codec,
};

const READ_CHUNK: usize = 16 << 10;
/// A larger frame gets its own buffer, so that a small request that is kept does not keep a large buffer alive.
const OWN_BUFFER: usize = 64 << 10;
/// The start of a frame, up to this size, is copied out of the read buffer while the rest is awaited. Its memory is not
/// counted.
pub(super) const COPY_LIMIT: usize = 1 << 10;
/// First bytes of HTTP/1 requests.
const HTTP_METHODS: [&[u8]; 5] = [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS "];

/// Bytes received and not decoded yet, and their memory.
pub(super) struct Incoming {
    pub(super) buffer: BytesMut,
    memory: Share,
    /// Deadline of the frame that has begun.
    progress: Option<ProgressDeadline>,
    time_limit: Duration,
}

impl Incoming {
    pub(super) fn new(memory: Share, time_limit: Duration) -> Self {
        Self { buffer: BytesMut::new(), memory, progress: None, time_limit }
    }

    /// Takes the memory of a frame that was taken out of the buffer.
    pub(super) fn split_memory(&mut self, frame: usize) -> Share {
        self.progress = None;
        self.memory.split(frame)
    }

    /// Waits for the memory of the next part of a frame. The memory grows with the bytes received.
    ///
    /// Meanwhile the peer is not read, so a disconnect goes unnoticed, and the frame keeps the memory it has. So the
    /// wait fails with `TimedOut` after the time limit for a part of a frame.
    pub(super) async fn make_room(&mut self) -> io::Result<()> {
        let (len, taken) = (self.buffer.len(), self.memory.taken());
        if len <= COPY_LIMIT {
            self.memory.give_back(taken);
        } else if self.readable() == 0 || taken < len {
            let announced = codec::announced(&self.buffer).unwrap_or(0);
            let wanted = match announced > OWN_BUFFER {
                true => (2 * len).max(OWN_BUFFER).min(announced),
                false => len + READ_CHUNK,
            };
            let begun = Instant::now();
            if timeout(self.time_limit, self.memory.wait(wanted.saturating_sub(taken))).await.is_err() {
                let error = format!("no memory for the rest of a frame within {:?}", self.time_limit);
                return Err(io::Error::new(io::ErrorKind::TimedOut, error));
            }
            self.progress.iter_mut().for_each(|progress| progress.pause(begun.elapsed()));
        }
        self.progress = match self.buffer.is_empty() {
            true => None,
            false => Some(self.progress.unwrap_or_else(|| ProgressDeadline::new(self.time_limit))),
        };
        Ok(())
    }

    /// Number of bytes that may be read now.
    fn readable(&self) -> usize {
        match codec::announced(&self.buffer) {
            // A large frame has its own buffer.
            Some(frame) if frame > OWN_BUFFER => {
                frame.min(self.memory.taken().max(COPY_LIMIT + READ_CHUNK)) - self.buffer.len()
            }
            _ => READ_CHUNK,
        }
    }

    /// Reads available bytes. While it waits, a buffer with few bytes shrinks to its content: most connections are
    /// idle.
    pub(super) async fn read(&mut self, socket: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        let readable = self.readable();
        let buffer = &mut self.buffer;
        let read = poll_fn(|context| {
            if buffer.is_empty() && buffer.capacity() > OWN_BUFFER {
                *buffer = BytesMut::new();
            }
            buffer.reserve(readable.min(READ_CHUNK));
            let mut room = (&mut *buffer).limit(readable);
            let read = pin!(socket.read_buf(&mut room)).poll(context);
            if read.is_pending() && buffer.len() <= COPY_LIMIT {
                *buffer = BytesMut::from(&buffer[..]);
            }
            read
        });
        let read = read.await?;
        self.progress.iter_mut().for_each(|progress| progress.moved(read));
        Ok(read)
    }

    /// When to check whether the peer is idle, or too slow with its frame.
    pub(super) fn next_check(&self, since: Instant, idle: Duration) -> Instant {
        let progress = self.progress.unwrap_or_else(|| ProgressDeadline::new(self.time_limit));
        after(since, idle).min(progress.deadline())
    }

    pub(super) fn check_progress(&self) -> Result<(), TransportError> {
        match self.progress {
            Some(progress) if progress.deadline() <= Instant::now() => Err(TransportError::Protocol(
                ProtocolError::Malformed("the rest of the frame arrives too slowly or not at all"),
            )),
            _ => Ok(()),
        }
    }
}

/// Returns an error that names the protocol of bytes that are not remoting; `error` if it is unknown.
pub(super) fn name_other_protocol(buffer: &[u8], grpc_port: u16, error: ProtocolError) -> TransportError {
    let hint = || match grpc_port {
        0 => "this server has no gRPC port".to_owned(),
        port => format!("is it meant for the gRPC port {port}?"),
    };
    let reason = match buffer {
        [b'P', b'R', b'I', b' ', ..] => format!("this is an HTTP/2 client; {}", hint()),
        [0x16, 0x03, ..] => {
            "this is a TLS client, but the port takes plaintext; set tls_mode, or disable TLS in the client"
                .to_owned()
        }
        _ if HTTP_METHODS.iter().any(|method| buffer.starts_with(method)) => {
            "this is an HTTP/1 client; the port takes RocketMQ's remoting protocol".to_owned()
        }
        _ => return error.into(),
    };
    TransportError::OtherProtocol(reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{connections::budget::Budget, remoting::Decoder};

    #[tokio::test]
    async fn a_frame_without_memory_times_out() {
        let budget = Budget::new(1 << 20, 1 << 20);
        let other = budget.of_other().share();
        other.wait(1 << 20).await;
        let mut incoming = Incoming::new(budget.of_other().share(), Duration::from_millis(20));
        incoming.buffer.put_u32(512 << 10);
        incoming.buffer.put_bytes(0, 2 * COPY_LIMIT);
        let ended = timeout(Duration::from_secs(60), incoming.make_room()).await.expect("it ends");
        assert_eq!(ended.expect_err("no memory").kind(), io::ErrorKind::TimedOut);
        drop(other);
        incoming.make_room().await.expect("there is memory");
    }

    #[test]
    fn an_error_names_the_other_protocol() {
        let of = |bytes: &[u8], port| {
            let mut buffer = BytesMut::from(bytes);
            let error = Decoder::default().next(&mut buffer).expect_err("no frame");
            name_other_protocol(&buffer, port, error).to_string()
        };
        assert!(
            of(b"PRI * HTTP/2.0\r\n\r\n", 8081)
                .contains("HTTP/2 client; is it meant for the gRPC port 8081?")
        );
        assert!(of(b"PRI * HTTP/2.0\r\n\r\n", 0).contains("no gRPC port"));
        assert!(of(b"GET / HTTP/1.1\r\n", 0).contains("HTTP/1"));
        assert!(of(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01], 0).contains("TLS"));
        assert!(of(&[0x7f, 0, 0, 0], 0).contains("over the limit"));
    }
}
