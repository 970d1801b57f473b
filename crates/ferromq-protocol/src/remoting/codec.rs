//! Decodes frames into commands and encodes commands as frames. Pure functions over buffers; no I/O.
//!
//! ```text
//! frame  = length: i32 | form and header length: i32 | header | body       (all big-endian)
//!          length counts everything after itself
//!          second word = form << 24 | header length; form 0 = JSON, 1 = binary
//! ```
//! An announced length allocates nothing: a frame is decoded once all its bytes have arrived.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{HeaderForm, RemotingCommand, binary_header, json_header};
use crate::ProtocolError;

const LENGTH_BYTES: usize = 4;
const WORD_BYTES: usize = 4;
const MAX_HEADER_BYTES: usize = 0x00FF_FFFF;

/// Largest sizes that a decoder accepts, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// A whole frame with its length word; RocketMQ's `frameMaxLength`.
    pub frame: usize,
    /// A header. RocketMQ has no such limit; real headers stay below 40 KiB.
    pub header: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { frame: 16 << 20, header: 1 << 20 }
    }
}

/// An encoded command. Head and body are separate, so that sending does not copy the body.
#[derive(Debug, Clone)]
pub struct Frame {
    /// Length words and header.
    pub head: Bytes,
    /// The body of the command.
    pub body: Bytes,
}

impl Frame {
    /// Length on the wire, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Never true: a frame has at least its length words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The frame in one piece.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut all = BytesMut::with_capacity(self.len());
        all.put_slice(&self.head);
        all.put_slice(&self.body);
        all.freeze()
    }
}

/// Decodes commands from a growing buffer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Decoder {
    limits: Limits,
}

impl Decoder {
    /// Makes a decoder with `limits`.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }

    /// Takes the next command; `None` until all its bytes have arrived.
    ///
    /// After an error the stream must be closed: the start of the next frame is unknown.
    ///
    /// # Errors
    /// `FrameTooLarge` as soon as the length words have arrived; `Malformed` for any other violation.
    pub fn next(&self, buffer: &mut BytesMut) -> Result<Option<RemotingCommand>, ProtocolError> {
        let Some(mut words) = buffer.get(..LENGTH_BYTES) else { return Ok(None) };
        let length = usize::try_from(words.get_i32())
            .map_err(|_| ProtocolError::Malformed("the frame's length is negative"))?;
        if length < WORD_BYTES {
            return Err(ProtocolError::Malformed("the frame is too short for a header length"));
        }
        check_size(LENGTH_BYTES + length, self.limits.frame)?;
        self.check_header(buffer, length)?;
        if buffer.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        buffer.advance(LENGTH_BYTES);
        decode(buffer.split_to(length).freeze(), &self.limits).map(Some)
    }

    /// Rejects a bad header length before the rest of the frame arrives.
    fn check_header(&self, buffer: &BytesMut, length: usize) -> Result<(), ProtocolError> {
        let Some(mut word) = buffer.get(LENGTH_BYTES..LENGTH_BYTES + WORD_BYTES) else { return Ok(()) };
        split_word(word.get_u32(), length - WORD_BYTES, &self.limits).map(|_| ())
    }
}

/// Size of the frame at the start of `buffer`, with its length word; `None` if that is incomplete or negative.
pub fn announced(buffer: &[u8]) -> Option<usize> {
    let length = buffer.first_chunk().map(|word| i32::from_be_bytes(*word))?;
    usize::try_from(length).ok().map(|length| LENGTH_BYTES + length)
}

/// Decodes a frame without its length word.
///
/// # Errors
/// `Malformed` or `FrameTooLarge`.
pub fn decode(mut frame: Bytes, limits: &Limits) -> Result<RemotingCommand, ProtocolError> {
    if frame.len() < WORD_BYTES {
        return Err(ProtocolError::Malformed("the frame is too short for a header length"));
    }
    check_size(LENGTH_BYTES + frame.len(), limits.frame)?;
    let word = frame.get_u32();
    let (form, header_length) = split_word(word, frame.len(), limits)?;
    let header = frame.split_to(header_length);
    let mut command = match form {
        HeaderForm::Json => json_header::decode(&header)?,
        HeaderForm::Binary => binary_header::decode(&header)?,
    };
    command.body = frame;
    Ok(command)
}

/// Encodes a command in its header form, or in JSON if a value does not fit into the binary form.
///
/// # Errors
/// `FrameTooLarge` if the header or the frame is too long for its length word.
pub fn encode(command: &RemotingCommand) -> Result<Frame, ProtocolError> {
    Ok(Frame { head: encode_head(command, command.body.len())?, body: command.body.clone() })
}

/// As [`encode`], without a body; one of `body_length` bytes follows.
///
/// # Errors
/// As [`encode`].
pub fn encode_head(command: &RemotingCommand, body_length: usize) -> Result<Bytes, ProtocolError> {
    let mut head = BytesMut::with_capacity(256);
    head.put_u64(0);
    let form = match command.header_form {
        HeaderForm::Binary if binary_header::fits(command) => {
            binary_header::encode(command, &mut head);
            HeaderForm::Binary
        }
        _ => {
            json_header::encode(command, &mut head);
            HeaderForm::Json
        }
    };
    let header_length = head.len() - LENGTH_BYTES - WORD_BYTES;
    check_size(header_length, MAX_HEADER_BYTES)?;
    let length = WORD_BYTES + header_length + body_length;
    let length_word = i32::try_from(length).map_err(|_| too_large(length, i32::MAX as usize))?;
    let form_number = match form {
        HeaderForm::Json => 0,
        HeaderForm::Binary => 1_u32 << 24,
    };
    let header_word = form_number | u32::try_from(header_length).unwrap_or_default();
    if let Some(mut words) = head.get_mut(..LENGTH_BYTES + WORD_BYTES) {
        words.put_i32(length_word);
        words.put_u32(header_word);
    }
    Ok(head.freeze())
}

fn split_word(word: u32, available: usize, limits: &Limits) -> Result<(HeaderForm, usize), ProtocolError> {
    let form = match word >> 24 {
        0 => HeaderForm::Json,
        1 => HeaderForm::Binary,
        _ => return Err(ProtocolError::Malformed("the header is neither JSON nor binary")),
    };
    let header_length = (word & 0x00FF_FFFF) as usize;
    if header_length > available {
        return Err(ProtocolError::Malformed("the header is longer than its frame"));
    }
    check_size(header_length, limits.header)?;
    Ok((form, header_length))
}

fn check_size(len: usize, limit: usize) -> Result<(), ProtocolError> {
    if len > limit { Err(too_large(len, limit)) } else { Ok(()) }
}

fn too_large(len: usize, limit: usize) -> ProtocolError {
    ProtocolError::FrameTooLarge { len: len as u64, limit: limit as u64 }
}
