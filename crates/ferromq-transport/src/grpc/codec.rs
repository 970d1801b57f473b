//! Codecs for tonic that keep messages as bytes.

use bytes::{Buf, BufMut, Bytes};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// Passes gRPC messages through unparsed.
#[derive(Debug, Clone, Copy, Default)]
pub struct BytesCodec;

/// Bytes of a stream that are gathered before a write, so that a batch costs few system calls.
const YIELD_THRESHOLD: usize = 256 << 10;
/// Step by which buffers grow. The answer to a single send has less than 100 bytes.
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

/// As [`BytesCodec`], for streams that stay open. It does not buffer ahead: answers that a client has not read stay in
/// a queue that counts them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UnbufferedCodec(BytesCodec);

impl Codec for UnbufferedCodec {
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

impl Encoder for UnbufferedCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        self.0.encode(item, out)
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, 1)
    }
}
