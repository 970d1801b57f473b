//! tonic's codec for messages that stay bytes.

use bytes::{Buf, BufMut, Bytes};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// Hands on what is between two gRPC frames, unread.
#[derive(Debug, Clone, Copy, Default)]
pub struct BytesCodec;

/// Streams are written in pieces of at most this many bytes, so that a batch costs few system calls.
const YIELD_THRESHOLD: usize = 256 << 10;
/// Buffers grow by this much: an answer to a single send is below 100 bytes.
const BUFFER: usize = 1 << 10;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(item.len());
        out.put(item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_THRESHOLD)
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        // The buffer holds exactly one message; this splits it off without a copy.
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD_THRESHOLD)
    }
}

/// As [`BytesCodec`], for streams that stay open: what a client does not read waits where it is counted, and not in a
/// buffer that is filled ahead.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OneByOne(BytesCodec);

impl Codec for OneByOne {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = BytesCodec;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> BytesCodec {
        self.0
    }
}

impl Encoder for OneByOne {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        self.0.encode(item, out)
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, 1)
    }
}
