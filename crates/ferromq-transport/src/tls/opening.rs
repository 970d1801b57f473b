//! A connection as a stream, whose first byte decides whether it speaks TLS.
//!
//! The task that serves the connection does the handshake: one that takes long, or never ends, delays no other
//! connection.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};

use super::{CertificateSubject, TlsMode, subject};

/// The first byte of a TLS record that begins a handshake.
const HANDSHAKE: u8 = 0x16;

/// A connection to a listener that takes TLS, plaintext, or both.
pub(crate) enum ListenerStream {
    Opening(Box<Opening>),
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl ListenerStream {
    /// Accepts a connection as `tls` says; without it, as plaintext. The caller limits how long it may take to begin.
    pub(crate) fn new(stream: TcpStream, tls: Option<Arc<(TlsMode, TlsAcceptor)>>) -> Self {
        match tls {
            None => Self::Plain(stream),
            Some(tls) => Self::Opening(Box::new(Opening { stage: Stage::First(stream, tls) })),
        }
    }

    /// The subject of the client's certificate; `None` until the connection is open.
    pub(crate) fn certificate(&self) -> CertificateSubject {
        match self {
            Self::Tls(stream) => subject::of_connection(stream.get_ref().1),
            Self::Opening(_) | Self::Plain(_) => None,
        }
    }

    /// Finishes the handshake before the first read or write.
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Self::Opening(opening) = self {
            *self = ready!(opening.poll(context))?;
        }
        Poll::Ready(Ok(()))
    }
}

/// A connection that is not open yet.
pub(crate) struct Opening {
    stage: Stage,
}

enum Stage {
    First(TcpStream, Arc<(TlsMode, TlsAcceptor)>),
    Handshake(Box<Accept<TcpStream>>),
    /// The handshake ended.
    Over,
}

impl Opening {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<ListenerStream>> {
        loop {
            match &mut self.stage {
                Stage::First(stream, _) => {
                    let first = ready!(poll_first(stream, context));
                    let Stage::First(stream, tls) = std::mem::replace(&mut self.stage, Stage::Over) else {
                        return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
                    };
                    if first?.is_tls(tls.0)? {
                        self.stage = Stage::Handshake(Box::new(tls.1.accept(stream)));
                    } else {
                        return Poll::Ready(Ok(ListenerStream::Plain(stream)));
                    }
                }
                Stage::Handshake(accept) => {
                    let opened = ready!(Pin::new(accept).poll(context));
                    self.stage = Stage::Over;
                    return Poll::Ready(opened.map(|stream| ListenerStream::Tls(Box::new(stream))));
                }
                Stage::Over => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            }
        }
    }
}

/// The first byte of a connection.
pub(super) struct FirstByte(u8);

impl FirstByte {
    /// Returns whether the connection speaks TLS.
    ///
    /// # Errors
    /// `InvalidData` for plaintext if TLS is enforced.
    pub(super) fn is_tls(&self, mode: TlsMode) -> io::Result<bool> {
        if self.0 != HANDSHAKE && mode == TlsMode::Enforcing {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "plaintext, but TLS is enforced"));
        }
        Ok(self.0 == HANDSHAKE)
    }
}

/// Waits for the first byte without consuming it.
pub(super) fn poll_first(stream: &TcpStream, context: &mut Context<'_>) -> Poll<io::Result<FirstByte>> {
    let mut byte = [0];
    match ready!(stream.poll_peek(context, &mut ReadBuf::new(&mut byte))) {
        Ok(0) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
        outcome => Poll::Ready(outcome.map(|_| FirstByte(byte[0]))),
    }
}

impl AsyncRead for ListenerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?;
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
            Self::Opening(_) => Poll::Pending,
        }
    }
}

impl AsyncWrite for ListenerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(context))?;
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(context, bytes),
            Self::Opening(_) => Poll::Pending,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(context))?;
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(context, parts),
            Self::Opening(_) => Poll::Pending,
        }
    }

    /// Asked before the first byte has come; all kinds of connections support it.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(context),
            // Nothing was written yet.
            Self::Opening(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(context),
            // Nothing was sent, so there is nothing to shut down; dropping the connection closes it.
            Self::Opening(_) => Poll::Ready(Ok(())),
        }
    }
}
