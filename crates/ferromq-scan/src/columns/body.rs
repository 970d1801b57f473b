//! Bodies that travelled compressed, as RocketMQ's clients decompress them.
//!
//! The system flag says that a body is compressed (bit 1) and how (bits 8 to 10). Which message it is, is the caller's.

use std::{borrow::Cow, io::Read};

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use lz4_flex::frame::FrameDecoder;

use ferromq_store::formats::message::MAX_DECOMPRESSED;

const COMPRESSED: i32 = 1;
const KIND_AT: u32 = 8;
const KIND_BITS: i32 = 7;

/// Body and system flag of a row: the body decompressed and the flag without the bits that said so, or both as they are
/// stored where it does not decompress. So the flag says of the body at hand whether it is compressed.
pub(super) fn of_row(sys_flag: i32, body: &[u8]) -> (Cow<'_, [u8]>, i32) {
    match decompressed(sys_flag, body) {
        Ok(plain) if sys_flag & COMPRESSED != 0 => (plain, sys_flag & !(COMPRESSED | KIND_BITS << KIND_AT)),
        Ok(plain) => (plain, sys_flag),
        Err(_) => (Cow::Borrowed(body), sys_flag),
    }
}

/// What the producer gave: the body itself, or decompressed where the system flag says that it is compressed.
///
/// # Errors
/// A sentence that says of what kind the body should be, and what is wrong with it.
pub fn decompressed(sys_flag: i32, body: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    if sys_flag & COMPRESSED == 0 {
        return Ok(Cow::Borrowed(body));
    }
    let read = match sys_flag >> KIND_AT & KIND_BITS {
        1 => read("lz4", FrameDecoder::new(body)),
        2 => match ruzstd::decoding::StreamingDecoder::new(body) {
            Ok(decoder) => read("zstd", decoder),
            Err(error) => Err(format!("the body says zstd, but {error}")),
        },
        // Clients over gRPC compress with gzip, and no bit tells it from zlib; 0 is what old producers write.
        0 | 3 if body.starts_with(&[0x1f, 0x8b]) => read("gzip", MultiGzDecoder::new(body)),
        0 | 3 => read("zlib", ZlibDecoder::new(body)),
        kind => Err(format!("the body is compressed in a way that is not known, {kind}")),
    };
    read.map(Cow::Owned)
}

fn read(kind: &str, decoder: impl Read) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    decoder
        .take(MAX_DECOMPRESSED as u64 + 1)
        .read_to_end(&mut body)
        .map_err(|error| format!("the body says {kind}, but {error}"))?;
    if body.len() > MAX_DECOMPRESSED {
        return Err(format!("the body is larger than {MAX_DECOMPRESSED} bytes when decompressed"));
    }
    Ok(body)
}
