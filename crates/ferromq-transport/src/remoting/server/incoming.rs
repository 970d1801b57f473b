//! What a connection reads: bytes become frames within limits of memory and time.

use std::{future::poll_fn, io, pin::pin, time::Duration};

use bytes::{BufMut, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::{Instant, timeout},
};

use crate::{
    TransportError,
    connections::{
        budget::Share,
        progress_deadline::{ProgressDeadline, after},
    },
    remoting::codec,
};

const READ_CHUNK: usize = 16 << 10;
/// A frame larger than this has its memory for itself, so that a small one that stays keeps no large one.
const OWN_MEMORY: usize = 64 << 10;
/// The begin of a frame that is no larger is copied out of its buffer while the rest is waited for, and not counted.
pub(super) const BEGIN: usize = 1 << 10;
/// How requests of HTTP/1 begin.
const HTTP_METHODS: [&[u8]; 5] = [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS "];

/// The bytes of frames that are not complete yet, and the memory they hold.
pub(super) struct Incoming {
    pub(super) buffer: BytesMut,
    memory: Share,
    /// Of the frame that has begun.
    progress: Option<ProgressDeadline>,
    limit: Duration,
}

impl Incoming {
    pub(super) fn new(memory: Share, limit: Duration) -> Self {
        Self { buffer: BytesMut::new(), memory, progress: None, limit }
    }

    /// Hands on the memory of a frame that was taken out of the buffer.
    pub(super) fn taken(&mut self, frame: usize) -> Share {
        self.progress = None;
        self.memory.split(frame)
    }

    /// Waits for the memory that the frame which has begun may take next: it grows as its bytes come.
    ///
    /// The peer is not read meanwhile, so that one which has left is not noticed, and the frame keeps the memory it has:
    /// where the wait takes as long as a part of the frame may, it fails.
    pub(super) async fn make_room(&mut self) -> io::Result<()> {
        let (len, taken) = (self.buffer.len(), self.memory.taken());
        if len <= BEGIN {
            self.memory.give_back(taken);
        } else if self.most() == 0 || taken < len {
            let announced = codec::announced(&self.buffer).unwrap_or(0);
            let wanted = match announced > OWN_MEMORY {
                true => (2 * len).max(OWN_MEMORY).min(announced),
                false => len + READ_CHUNK,
            };
            let begun = Instant::now();
            if timeout(self.limit, self.memory.wait(wanted.saturating_sub(taken))).await.is_err() {
                let error = format!("no memory for the rest of a frame in {:?}", self.limit);
                return Err(io::Error::new(io::ErrorKind::TimedOut, error));
            }
            self.progress.iter_mut().for_each(|progress| progress.pause(begun.elapsed()));
        }
        self.progress = match self.buffer.is_empty() {
            true => None,
            false => Some(self.progress.unwrap_or_else(|| ProgressDeadline::new(self.limit))),
        };
        Ok(())
    }

    /// How many bytes may be read now.
    fn most(&self) -> usize {
        match codec::announced(&self.buffer) {
            // A frame that is large has its memory for itself.
            Some(frame) if frame > OWN_MEMORY => {
                frame.min(self.memory.taken().max(BEGIN + READ_CHUNK)) - self.buffer.len()
            }
            _ => READ_CHUNK,
        }
    }

    /// Reads what is there. While nothing comes a buffer that holds little takes no more memory than that: most
    /// connections are idle.
    pub(super) async fn read(&mut self, socket: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        let most = self.most();
        let buffer = &mut self.buffer;
        let read = poll_fn(|context| {
            if buffer.is_empty() && buffer.capacity() > OWN_MEMORY {
                *buffer = BytesMut::new();
            }
            buffer.reserve(most.min(READ_CHUNK));
            let mut room = (&mut *buffer).limit(most);
            let read = pin!(socket.read_buf(&mut room)).poll(context);
            if read.is_pending() && buffer.len() <= BEGIN {
                *buffer = BytesMut::from(&buffer[..]);
            }
            read
        });
        let read = read.await?;
        self.progress.iter_mut().for_each(|progress| progress.moved(read));
        Ok(read)
    }

    /// When to look whether the peer is idle, or keeps sending the frame.
    pub(super) fn look_from(&self, since: Instant, idle: Duration) -> Instant {
        let progress = self.progress.unwrap_or_else(|| ProgressDeadline::new(self.limit));
        after(since, idle).min(progress.deadline())
    }

    pub(super) fn check_progress(&self) -> Result<(), TransportError> {
        match self.progress {
            Some(progress) if progress.deadline() <= Instant::now() => {
                Err(TransportError::Malformed("the rest of the frame does not come, or comes too slowly"))
            }
            _ => Ok(()),
        }
    }
}

/// Names the other protocol of bytes that are no frame; else `error`.
pub(super) fn foreign(buffer: &[u8], grpc_port: u16, error: TransportError) -> TransportError {
    let hint = || match grpc_port {
        0 => "there is no gRPC port here".to_owned(),
        port => format!("is it meant for the gRPC port {port}?"),
    };
    let what = match buffer {
        [b'P', b'R', b'I', b' ', ..] => format!("this is an HTTP/2 client; {}", hint()),
        [0x16, 0x03, ..] => {
            "this is a TLS client, and the port takes plaintext; set tls_mode, or have it speak plaintext"
                .to_owned()
        }
        _ if HTTP_METHODS.iter().any(|method| buffer.starts_with(method)) => {
            "this is an HTTP/1 client; the port takes RocketMQ's remoting protocol".to_owned()
        }
        _ => return error,
    };
    TransportError::OtherProtocol(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{connections::budget::Budget, remoting::Decoder};

    #[tokio::test]
    async fn a_frame_that_gets_no_memory_in_its_time_ends_its_connection() {
        let budget = Budget::new(1 << 20, 1 << 20);
        let other = budget.of_other().share();
        other.wait(1 << 20).await;
        let mut incoming = Incoming::new(budget.of_other().share(), Duration::from_millis(20));
        incoming.buffer.put_u32(512 << 10);
        incoming.buffer.put_bytes(0, 2 * BEGIN);
        let ended = timeout(Duration::from_secs(60), incoming.make_room()).await.expect("it ends");
        assert_eq!(ended.expect_err("no memory").kind(), io::ErrorKind::TimedOut);
        drop(other);
        incoming.make_room().await.expect("there is memory");
    }

    #[test]
    fn bytes_of_another_protocol_are_called_by_its_name() {
        let of = |bytes: &[u8], port| {
            let mut buffer = BytesMut::from(bytes);
            let error = Decoder::default().next(&mut buffer).expect_err("no frame");
            foreign(&buffer, port, error).to_string()
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
